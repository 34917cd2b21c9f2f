"""What can go wrong at the simulated service, and payclient's right answer to each, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, TypeVar

import aiohttp
import attrs
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import payclient
from fake_service import PROFILE as PLAIN
from payclient import Fixed, State, Timeouts, Tracker, open_tracker
from payclient.simulator import PAYPHONE, SCENARIOS, Fault, Faults, JumpClock, Simulator
from payclient.simulator.faults import KINDS
from ports import served
from simulated import QUERIES, until

_T = TypeVar("_T")

assert PLAIN.status is not None
PROFILE = attrs.evolve(PLAIN, status=attrs.evolve(PLAIN.status, state_field="transactionStatus"))


def request(identifier: str = "order-1", **changes: Any) -> payclient.SaleRequest:
    """A charge of one customer."""
    fields: dict[str, Any] = {
        "phone_number": "0984111222", "country_code": "593", "amount_without_tax": 1150, "currency": "USD",
        "client_transaction_id": identifier, "store_id": "S1", **changes,
    }  # fmt: skip
    return payclient.SaleRequest(**fields)


pytestmark = pytest.mark.usefixtures("delays")


@pytest.fixture
async def service() -> AsyncIterator[Simulator]:
    async with Simulator(settings=QUERIES) as simulator:
        yield simulator


@asynccontextmanager
async def tracker_of(service: Simulator, total: float = 20.0) -> AsyncIterator[Tracker]:
    """A tracker in the service's time that asks often."""
    options: dict[str, Any] = {"schedule": Fixed(0.02), "timeouts": Timeouts(total=total)}
    async with open_tracker(service.url, "any", profile=PROFILE, clock=service.clock, **options) as tracker:
        yield tracker


@pytest.fixture
async def tracker(service: Simulator) -> AsyncIterator[Tracker]:
    async with tracker_of(service) as it:
        yield it


async def settled(service: Simulator, waiting: Awaitable[_T], step: float = 40.0) -> _T:
    """A result that needs time: minutes pass until it is there."""
    task = asyncio.ensure_future(waiting)
    for _ in range(1000):
        done, _ = await asyncio.wait({task}, timeout=0.004)
        if done:
            return await task
        await service.advance(step)
    task.cancel()
    raise AssertionError("hours have passed")


async def assert_found_and_paid(service: Simulator, pending: payclient.PendingSale) -> None:
    """An unknown sale that was created is found by its client transaction id, and paid once."""
    while pending.transaction_id is None:
        await pending.check()
        await service.advance(1)
    assert pending.transaction_id in service.sales
    await service.approve(pending.transaction_id)
    outcome = await pending.wait()
    assert (outcome.state, outcome.paid) == (State.ACCEPTED, True)
    assert service.created_per_client_id == {"order-1": 1}


async def assert_never_created(service: Simulator, pending: payclient.PendingSale) -> None:
    """An unknown sale that was not created is proven absent, by the service's word and late enough."""
    outcome = await settled(service, pending.wait())
    assert (outcome.state, outcome.paid) == (State.REFUSED, False)
    assert service.counts.created == 0


# What befalls a Sale


@pytest.mark.parametrize(
    ("kind", "when"),
    [*product(["reset", "error", "html", "redirect", "stall"], ["before", "after"]), ("cut", "after")],
)
async def test_a_sale_whose_answer_says_nothing(service: Simulator, kind: str, when: str) -> None:
    """Unknown, and never sent again: executed it is found and paid once, else proven absent, and may be sent again."""
    service.fail_next(Fault(kind, when=when))
    async with tracker_of(service, total=0.3 if kind == "stall" else 20.0) as tracker:
        pending = await tracker.sale(request())
        assert pending.outcome.paid is None
        assert service.counts.requests == (when == "after")
        if when == "after":
            assert pending.state in (State.UNKNOWN, State.PENDING)
            assert (await tracker.sale(request())).client_transaction_id == "order-1"
            assert service.faults.done == {kind: 1}
            await assert_found_and_paid(service, pending)
            return
        await assert_never_created(service, pending)
        again = await tracker.sale(request())
        await service.approve("order-1")
        assert (await again.wait()).paid is True


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_late_answer_is_an_answer(service: Simulator, tracker: Tracker, when: str) -> None:
    """Latency within the time-out changes nothing; it is counted by the service's own clock."""
    service.fail_next(Fault("latency", when=when, seconds=5.0))
    sending = asyncio.create_task(tracker.sale(request()))
    await until(lambda: service.counts.created if when == "after" else service.faults.done["latency"])
    assert not sending.done()
    assert service.counts.created == (1 if when == "after" else 0)
    await service.advance(5)
    pending = await sending
    assert pending.state is State.PENDING
    await service.approve("order-1")
    assert (await pending.wait()).paid is True


async def test_a_refused_sale_raises(service: Simulator, tracker: Tracker) -> None:
    """The error object, on 429 too, proves that nothing was created; a gateway's 429 is nobody's word, and unknown."""
    for fault, error in (
        (Fault("refuse"), payclient.NotCreatedError),
        (Fault("refuse", error_code=2061), payclient.CustomerBusyError),
        (Fault("throttle", error_code=429, retry_after=7), payclient.RateLimitedError),
    ):
        service.fail_next(fault)
        with pytest.raises(error) as raised:
            await tracker.sale(request())
        assert getattr(raised.value, "retry_after", 7) == 7
    service.fail_next(Fault("throttle"))
    unknown = await tracker.sale(request("order-2"))
    assert unknown.outcome.paid is None
    await assert_never_created(service, unknown)
    pending = await tracker.sale(request())
    await service.reject("order-1")
    assert (await pending.wait()).state is State.CANCELLED
    assert service.created_per_client_id == {"order-1": 1}


@pytest.mark.parametrize("kind", ["reset", "cut", "error", "html", "redirect", "throttle"])
async def test_a_query_that_fails_decides_nothing(service: Simulator, tracker: Tracker, kind: str) -> None:
    """The sale stays pending, is asked for again, and is paid once the service can say so."""
    pending = await tracker.sale(request())
    service.fail_next(Fault(kind, operation="status"), times=3)
    await service.approve("order-1")
    outcome = await settled(service, pending.wait())
    assert outcome.paid is True
    assert service.faults.done[kind] == 3


# Restart


async def test_a_service_that_is_down_proves_nothing_was_sent(service: Simulator, tracker: Tracker) -> None:
    """A refused connection is `NotSentError`; what was pending before is still there afterwards, and paid."""
    pending = await tracker.sale(request())
    url = service.url
    await service.stop()
    with pytest.raises(payclient.NotSentError):
        await tracker.sale(request("order-2", phone_number="0984111333"))
    await service.start()
    assert service.url == url
    await service.approve("order-1")
    assert (await settled(service, pending.wait())).paid is True
    assert service.created_per_client_id == {"order-1": 1}


async def test_an_answer_that_is_cut_for_nobody_is_logged(
    service: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    """The client hung up first: aiohttp logged an error, and the service's log lacked the request."""
    service.fail_next(Fault("cut"))
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(b"POST /api/Sale HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    writer.close()
    await until(lambda: service.log[-1].fault == "cut")
    assert not caplog.messages


async def test_a_restart_breaks_what_is_in_flight(service: Simulator, tracker: Tracker) -> None:
    """A Sale that stalls when the service dies is unknown, and found once it is back."""
    service.fail_next(Fault("stall", when="after"))
    sending = asyncio.create_task(tracker.sale(request()))
    await until(lambda: service.counts.created)
    assert (service.log[-1].fault, service.log[-1].status) == ("stall", None)
    await service.restart(down=0.01)
    await assert_found_and_paid(service, await sending)


# Notifications


class Shop:
    """The merchant's receiver, which hands each notification to its tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.url = ""
        self.receipts: list[payclient.Receipt] = []

    async def handle(self, incoming: web.Request) -> web.Response:
        notification = payclient.parse_notification(query=incoming.query_string)
        self.receipts.append(await self.tracker.notify(notification))
        return web.Response()


@pytest.fixture
async def shop(service: Simulator) -> AsyncIterator[Shop]:
    """A tracker that asks only when told, or at the end: what is known sooner came by a notification."""
    schedule = Fixed(1_000.0)
    async with open_tracker(
        service.url, "any", profile=PROFILE, schedule=schedule, clock=service.clock
    ) as tracker:
        it = Shop(tracker)
        application = web.Application()
        application.router.add_get("/paid", it.handle)
        async with served(application) as url:
            it.url = f"{url}/paid"
            yield it


async def sold(shop: Shop) -> payclient.PendingSale:
    return await shop.tracker.sale(request(response_url=shop.url))


@pytest.mark.parametrize(
    ("fault", "arriving", "receipt"),
    [
        (Fault("lost"), 0, None),  # the last query after the five minutes finds the money
        (Fault("late", seconds=60.0), 1, payclient.Receipt.MATCHED),
        (Fault("duplicate"), 2, payclient.Receipt.MATCHED),  # the second one changes nothing
        # Ours exists before its first byte left; the answer binds it.
        (Fault("early"), 1, payclient.Receipt.EARLY),
        (Fault("forged"), 2, payclient.Receipt.CONFLICT),  # the true one beside it is taken
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
async def test_a_notification_that_goes_wrong(
    service: Simulator, shop: Shop, fault: Fault, arriving: int, receipt: payclient.Receipt | None
) -> None:
    """The sale is paid once, under its own id, whatever comes of its notification."""
    service.fail_next(fault)
    pending = await sold(shop)
    if fault.kind != "early":
        assert shop.receipts == []
        await service.approve("order-1")
    if fault.kind == "late":
        assert shop.receipts == []
        await service.advance(60)
    await until(lambda: len(shop.receipts) == arriving)
    assert receipt is None or receipt in shop.receipts
    outcome = await settled(service, pending.wait())
    assert (outcome.paid, outcome.transaction_id) == (True, 1001)
    assert (outcome.notified_at is None) == (arriving == 0)
    assert (service.counts.approved, service.counts.created) == (1, 1)


async def test_a_forged_approval_pays_nothing(service: Simulator, shop: Shop) -> None:
    """With the true ids, and nobody has answered: the service is asked, and says pending."""
    pending = await sold(shop)
    await service.forge("order-1")
    assert shop.receipts == [payclient.Receipt.MATCHED]
    assert (await pending.check()).paid is None
    assert service.counts.approved == 0
    await service.reject("order-1")
    assert (await settled(service, pending.wait())).paid is False


async def test_who_gave_no_address_is_sent_nothing(service: Simulator, tracker: Tracker) -> None:
    """Without a `responseUrl` there is nothing to lose, to delay or to forge."""
    service.fail_next(Fault("lost"))
    await tracker.sale(request())
    with pytest.raises(ValueError, match="responseUrl"):
        await service.forge("order-1")
    await service.approve("order-1")
    assert service.faults.done == {}


# By chance


_FAULTS = st.sampled_from(
    [Fault("reset"), Fault("html", operation="any"), Fault("stall", operation="status")]
)


@given(
    chances=st.dictionaries(_FAULTS, st.floats(0.01, 0.33), min_size=1),
    asked=st.lists(st.tuples(st.sampled_from(["sale", "status"]), st.sampled_from("abc")), max_size=30),
    seed=st.integers(0, 5),
)
def test_the_order_of_arrival_changes_no_fault(
    chances: dict[Fault, float], asked: list[tuple[str, str]], seed: int
) -> None:
    """The n-th exchange of an id meets the same fault whatever happened in between."""

    def befallen(order: list[tuple[str, str]]) -> dict[tuple[str, str], list[Fault | None]]:
        plan, result = Faults(chances, seed=seed), dict[tuple[str, str], list[Fault | None]]()
        for operation, key in order:
            result.setdefault((operation, key), []).append(plan.next(operation, key))
        return result

    assert befallen(asked) == befallen(asked[::-1])


def test_faults_that_are_given_twice_are_the_same_in_both_runs() -> None:
    """A test's constant: the draws, the script and the counts are each service's own."""
    given = Faults({Fault("html"): 0.5}, seed=7)

    def run() -> tuple[list[Fault | None], dict[str, int]]:
        service = Simulator(faults=given)
        found = [service.faults.next("sale", "a") for _ in range(20)]
        service.fail_next(Fault("stall"))
        return found, dict(service.faults.done)

    assert run() == run()


async def test_a_script_comes_before_chance_and_is_meant_for_whom_it_names() -> None:
    """An entry is used up by its own operation and id alone."""
    service = Simulator(faults=Faults({Fault("html"): 1.0}))
    service.fail_next(Fault("reset", client_transaction_id="a"))
    service.fail_next(Fault("stall"), times=2)
    plan = service.faults
    found = [plan.next("sale", one, one) for one in "babaa"]
    assert [fault.kind if fault else None for fault in found] == ["stall", "reset", "stall", "html", "html"]
    assert plan.next("status", "a", "a") is None
    service.clear_faults()
    assert plan.next("sale", "a", "a") is None
    assert plan.done == {"stall": 2, "reset": 1, "html": 2}
    drawn = Faults({Fault("html"): 0.5})
    assert {drawn.next("sale", "a") for _ in range(20)} == {None, Fault("html")}, "each request draws anew"


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "flood"}, {"kind": "reset", "when": "later"}, {"kind": "reset", "status": 500},
        {"kind": "reset", "operation": "notification"}, {"kind": "cut", "when": "before"},
        {"kind": "lost", "operation": "sale"}, {"kind": "early", "operation": "status"},
        {"kind": "error", "status": 404}, {"kind": "latency", "seconds": -1},
        {"kind": "latency", "seconds": float("nan")},
    ],
)  # fmt: skip
def test_a_fault_that_cannot_be_is_named(members: dict[str, Any]) -> None:
    """And one that can be is read as it is written: its members say all of it."""
    with pytest.raises(ValueError, match="must be"):
        Fault(**members)
    for fault in map(Fault, KINDS):
        assert Fault(**fault.as_json()) == fault  # type: ignore[arg-type]  # as JSON has them


def test_the_chances_of_one_exchange_sum_to_at_most_one() -> None:
    """All that may befall one operation; a fault that names an id counts for the exchanges of that id alone."""
    mine, others = Fault("error", client_transaction_id="a"), Fault("error", client_transaction_id="b")
    Faults({Fault("reset"): 0.4, mine: 0.6, others: 0.6, Fault("html", operation="status"): 0.6})
    for more in (mine, Fault("html", operation="any")):
        with pytest.raises(ValueError, match=r"all faults of sale must sum to at most 1, not 1\.3"):
            Faults({Fault("reset"): 0.7, more: 0.6})
    chances: list[Any] = [0, 1.5, -1, True, "1"]
    for chance in chances:
        with pytest.raises(ValueError, match="chance"):
            Faults({Fault("reset"): chance})
    with pytest.raises(ValueError, match="times"):
        Simulator().fail_next(Fault("reset"), times=0)


# Scenarios


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_scenario_charges_nobody_twice_and_every_wait_ends(name: str) -> None:
    """Ten charges through each: every outcome is what the service did, or an honest "nobody knows"."""
    async with (
        Simulator.scenario(name, settings=QUERIES, clock=JumpClock()) as service,
        tracker_of(service) as tracker,
    ):

        async def one(number: int) -> payclient.Outcome | payclient.PayError:
            identifier = f"order-{number}"
            try:
                pending = await tracker.sale(request(identifier, phone_number=f"09{number:08}"))
            except payclient.PayError as error:
                return error
            return await pending.wait()

        results = await settled(service, asyncio.gather(*(one(number) for number in range(10))), step=20)
        how = {sale.client_transaction_id: sale.how for sale in service.sales.values()}
        assert max(service.created_per_client_id.values(), default=1) == 1
        for result in results:
            if isinstance(result, payclient.Outcome) and result.paid is not None:
                assert result.paid == (how.get(result.client_transaction_id) == "approved")
            elif isinstance(result, payclient.PayError):
                assert result.client_transaction_id not in how


async def test_what_one_service_has_beside_the_document_meets_faults_too() -> None:
    """Confirm, Cancel and Reverse are known by what they are, wherever the settings put them."""
    operations = ["confirm", "cancel", "reverse"]
    async with Simulator(settings=PAYPHONE) as service, aiohttp.ClientSession() as session:
        paths = ["/api/Button/v2/confirm", "/api/Cancel/Client", "/api/Reverse/Set"]
        for operation, path in zip(operations, paths, strict=True):
            service.fail_next(Fault("error", operation=operation, client_transaction_id="order-1"))
            body = {"clientTxId": "order-1", "clientTransactionId": "order-1", "id": 1}
            async with session.post(service.url + path, json=body) as answer:
                assert answer.status == 503
        service.fail_next(Fault("error", operation="any"))
        async with session.get(service.url + "/api/Regions") as answer:
            assert answer.status == 503
        assert service.faults.done == {"error": 4}
        assert service.counts.requests == 0
