"""The tracker over a service that is a function, in virtual time: what is asked, sent, written and answered."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import FailingLedger, ForgetfulLedger, HookedLedger, disk_full, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Held,
    Script,
    alarms,
    answer,
    answers,
    broken,
    error_of,
    events_of,
    form,
    held_by,
    hint,
    lost_answer,
    lost_request,
    no_connection,
    outcome_of,
    pending_of,
    posted,
    record_in,
    refused,
    refuses,
    sale,
    seen_dead,
    selling,
    tracking,
    when,
)
from payclient.events import DecidedCancelled, Evidence, NotSent
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.session import PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

State = payclient.State

pytestmark = pytest.mark.usefixtures("delays")


async def test_a_handle_tells_of_its_own_attempt_alone(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made as the first was sent, and waits: that is proven absent, and the sale is sent again at once."""
    gate = Gate()
    service.scripts = [when(gate, lost_request)]
    async with tracking(service) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await gate.there.wait()
        handle = await pending_of(tracker)
        gate.go.set()
        await sending
        waiting, get = asyncio.ensure_future(handle.wait()), service.ledger.get

        async def again(identifier: str) -> Record | None:
            known = await get(identifier)
            if known is not None and known.state is State.REFUSED:
                monkeypatch.undo()
                await tracker.sale(sale())
            return await get(identifier)

        monkeypatch.setattr(service.ledger, "get", again)
        await service.clock.advance(800)
        assert (await waiting).state is State.REFUSED
        assert handle.attempt == 1


async def test_a_handle_of_an_attempt_that_was_replaced_says_nothing_while_the_ledger_fails(
    service: FakeService,
) -> None:
    """It knows its attempt as it was being sent: what became of it stands in the ledger alone."""
    gate, fails = Gate(), False
    service.scripts = [when(gate, lost_request)]
    async with tracking(service, FailingLedger(lambda name: name == "get" and fails)) as tracker:
        sending = asyncio.ensure_future(tracker.sale(sale()))
        await gate.there.wait()
        handle = await pending_of(tracker)
        gate.go.set()
        assert (await outcome_of(service, await sending)).evidence is Evidence.ABSENT
        await tracker.sale(sale())
        fails = True
        await error_of(payclient.LedgerUnavailableError, handle.wait())


async def test_an_accepted_sale_is_paid(service: FakeService) -> None:
    async with selling(service) as (_, pending):
        assert (pending.state, pending.transaction_id, pending.remaining) == (State.PENDING, 1000, 300)
        service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid, outcome.transaction_id) == (State.ACCEPTED, True, 1000)
    assert outcome.evidence is Evidence.QUERY
    assert outcome.report is not None
    assert outcome.report.amount == 1150


async def test_a_payment_keeps_its_transaction_where_a_report_names_none(service: FakeService) -> None:
    """Nor is a second report of that kind news."""
    async with selling(service) as (_, pending):
        service.instead = lambda path: answer(200, {"state": "Aceptado"})
        assert (await outcome_of(service, pending)).transaction_id == 1000
        await service.clock.advance(2)
        assert (await pending.check()).transaction_id == 1000
    assert (await events_of(service.ledger)).count("FoundAccepted") == 1


async def test_an_expired_sale_that_stays_pending_is_unknown_not_unpaid(service: FakeService) -> None:
    """The wait ends after the last query, with `paid` None: nobody knows."""
    async with selling(service) as (tracker, pending):
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
        assert service.clock.monotonic() == 300 + 140
        service.decide("Aceptado")
        asked = len(service.queries)
        await service.clock.advance(450)
        assert len(service.queries) == asked
        await service.clock.advance(100)  # ten minutes after its expiry: a correction
        assert (await pending_of(tracker)).outcome.paid is True


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_tracker_that_can_query_nothing_warns(
    service: FakeService, caplog: pytest.LogCaptureFixture, is_own: bool
) -> None:
    """A status source of the user's own is as good as the profile's."""
    source = AsyncMock(return_value=None) if is_own else None
    async with tracking(service, profile=payclient.ServiceProfile(name="bare"), status=source):
        pass
    assert ("no status source" in caplog.text) is not is_own


async def test_the_same_request_again_sends_nothing(service: FakeService) -> None:
    """A double click gets the same sale, open or decided."""
    async with tracking(service) as tracker:
        first, second = await asyncio.gather(tracker.sale(sale()), tracker.sale(sale()))
        third = await tracker.sale(sale())
        service.decide("Aceptado")
        await outcome_of(service, third)
        fourth = await tracker.sale(sale())
        assert {p.transaction_id for p in (first, second, third, fourth)} == {1000}
        assert (await fourth.wait()).paid is True
    assert service.posted == {"order-17": 1}


async def test_other_content_under_a_known_id_is_refused(service: FakeService) -> None:
    """`DifferentRequestError`, while it sends, when it is open and when it is decided; nothing is sent."""
    other = sale(tax=151)
    async with tracking(service) as tracker:
        first = asyncio.create_task(tracker.sale(sale()))
        await asyncio.sleep(0)
        await error_of(payclient.DifferentRequestError, tracker.sale(other))
        pending = await first
        await error_of(payclient.DifferentRequestError, tracker.sale(other))
        service.decide("Aceptado")
        await outcome_of(service, pending)
        error = await error_of(payclient.DifferentRequestError, tracker.sale(other))
        assert error.client_transaction_id == "order-17"
    assert service.posted == {"order-17": 1}


async def test_a_lost_request_is_proven_absent_only_late(service: FakeService) -> None:
    """ "Not found" twice, later than `absent_after` and a tenth of it apart: REFUSED, nothing was created."""
    async with selling(service, lost_request) as (tracker, pending):
        for seconds in (599, 30):
            await service.clock.advance(seconds)
            assert pending.state is State.UNKNOWN
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)
        assert (await tracker.history("order-17"))[-1].detail is None
        assert (await tracker.sale(sale())).state is State.PENDING
    assert service.posted == {"order-17": 1}


async def test_without_a_query_by_client_id_nothing_proves_absence(service: FakeService) -> None:
    """The wait still ends, with `paid` None; the sale stays unknown for an operator."""
    by_id = StatusProfile(by_transaction_id="/api/Sale/{transaction_id}", state_field="state")
    async with selling(service, lost_request, profile=attrs.evolve(PROFILE, status=by_id)) as (_, pending):
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
    assert not service.queries


async def test_a_source_of_ones_own_proves_no_absence(service: FakeService) -> None:
    """However often it finds nothing: it may know less than the service. What the sale holds queries it once more."""
    status = AsyncMock(return_value=None)
    async with selling(service, lost_answer, status=status) as (tracker, pending):
        await service.clock.advance(100_000)
        assert pending.state is State.UNKNOWN
        queries = status.await_count
        await held_by(tracker, "order-17")
        await service.clock.advance(1)
        assert status.await_count == queries + 1


async def test_wait_with_a_timeout_leaves_the_sale_tracked(service: FakeService) -> None:
    """`StillPendingError` is a TimeoutError; waiting again goes on."""
    async with selling(service) as (_, pending):
        wait = asyncio.create_task(pending.wait(timeout=5))
        await service.clock.advance(6)
        await error_of(payclient.StillPendingError, wait)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_a_hint_that_comes_before_the_sale_returns_is_known_to_its_handle(service: FakeService) -> None:
    """The record that the send returns is older than the one with the hint, and does not take its place."""
    ledger = HookedLedger(after={"Created": lambda: tracker.notify(hint())})
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale())).notified_at is not None


async def test_a_wait_that_ended_leaves_nothing_behind(service: FakeService) -> None:
    """A page that waits a second, again and again, keeps no future of each wait until the sale is decided."""

    def futures() -> int:
        gc.collect()
        return sum(type(each) is asyncio.Future for each in gc.get_objects())

    async with selling(service) as (_, pending):
        before = futures()
        for _ in range(10):
            wait = asyncio.create_task(pending.wait(timeout=1))
            await service.clock.advance(1)
            await error_of(payclient.StillPendingError, wait)
        assert futures() < before + 10


async def test_a_wait_until_no_time_is_refused(service: FakeService) -> None:
    """A timer at nan is neither before nor after others: the loop would fire those behind it late, or never."""
    async with selling(service) as (_, pending):
        wait = asyncio.create_task(pending.wait(timeout=math.nan))
        await service.clock.advance(1)
        assert wait.done()
        await error_of(payclient.UsageError, wait)
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_a_sale_that_is_found_late_is_waited_for_again(service: FakeService) -> None:
    """The service was silent until its wait had ended; then it says that the customer may still approve."""
    async with selling(service, lost_answer) as (_, pending):
        service.status_scripts = [lambda: answer(500, {})] * 1000
        assert (await outcome_of(service, pending)).state is State.UNKNOWN
        service.status_scripts = []
        await service.clock.advance(2)
        assert (await pending.check()).state is State.PENDING
        waiting = asyncio.ensure_future(pending.wait())
        await service.clock.advance(320)
        assert not waiting.done()
        service.decide("Aceptado")
        await service.clock.advance(90)
        assert (await waiting).paid is True


async def test_a_check_of_a_cancelled_sale_queries_whether_it_was_paid_after_all(
    service: FakeService,
) -> None:
    """A `Cancelado` is not final while its window runs: who looks again has the service queried."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Cancelado")
        assert (await pending.check()).paid is False
        await service.clock.advance(10)
        service.decide("Aceptado")
        assert (await (await pending_of(tracker)).check()).paid is True
        assert (await pending_of(tracker)).state is State.ACCEPTED


async def test_a_sale_whose_answer_is_written_late_is_waited_for_again(service: FakeService) -> None:
    """The ledger failed until its wait had ended: what it takes then is followed, and a new wait ends by it."""
    fails = True
    async with selling(service, ledger=FailingLedger(lambda name: name == "apply" and fails)) as (_, pending):
        assert (await outcome_of(service, pending)).state is State.UNKNOWN
        service.decide("Aceptado")
        fails = False
        await service.clock.advance(60)
        waiting = asyncio.ensure_future(pending.wait())
        await service.clock.advance(10)
        assert waiting.done()
        assert (await waiting).paid is True


async def test_closing_ends_a_wait_by_an_error_of_its_own(service: FakeService) -> None:
    async with selling(service) as (tracker, pending):
        wait = asyncio.create_task(pending.wait())
        await asyncio.sleep(0)
    for late in (wait, pending.wait(), pending.check(), tracker.sale(sale("another"))):
        await error_of(payclient.TrackerClosedError, late)


async def test_recovery_makes_what_was_sending_unknown_and_follows_it(service: FakeService) -> None:
    """A crash left one SENDING and one PENDING: neither is sent again, both are decided."""
    phones = {"pending": "0984111222", "sending": "0984111223"}
    held = Held()
    async with tracking(service) as tracker:
        await tracker.sale(sale("pending", phones["pending"]))
        service.scripts = [held]
        send = asyncio.create_task(tracker.sale(sale("sending", phones["sending"])))
        await service.clock.advance(1)
        snapshot = [record async for record in service.ledger.unfinished()]
        assert {record.state for record in snapshot} == {State.PENDING, State.SENDING}
        # The process dies here: a second tracker takes over the same ledger.
        service.decide("Aceptado", 1000)
        service.decide("Aceptado", 1001)
        async with tracking(service, service.ledger) as after:
            assert (await pending_of(after, "sending")).state is State.UNKNOWN
            for name, phone in phones.items():
                again = await after.sale(sale(name, phone))
                assert (await outcome_of(service, again)).paid is True
        held.go.set()
        await send
    assert service.posted == {"pending": 1, "sending": 1}


async def test_without_a_status_source_a_wait_ends_after_the_expiry(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns once at the start; `paid` stays None, and is not called unpaid by a clock."""
    async with selling(service, profile=payclient.DOCUMENT) as (_, pending):
        assert "can never become True" in caplog.text
        assert 'a wait lasts until a notification or the expiry; give profile="payphone"' in caplog.text
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.EXPIRED, None)
    assert 310 <= service.clock.monotonic() <= 312


async def test_a_status_source_of_the_merchants_own(service: FakeService) -> None:
    """Another way to ask, and its faults end nothing, nor that it hangs."""
    faults: list[Callable[[], Awaitable[object]]] = [
        asyncio.Event().wait, AsyncMock(side_effect=RuntimeError("down")),
    ]  # fmt: skip

    async def status(reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        assert reference.client_transaction_id == "order-17"
        if faults:
            await faults.pop()()
        return payclient.StatusReport(state="Cancelado", transaction_id=1000, reason=5)  # type: ignore[arg-type]

    async with selling(service, profile=payclient.DOCUMENT, status=status) as (_, pending):
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.reason) == (False, None)


@pytest.mark.parametrize("named", [None, "order-17"])
async def test_a_source_that_does_not_name_an_unknown_sale_decides_nothing(
    service: FakeService, named: str | None
) -> None:
    """It may have been asked for something else: no transaction id is known to compare."""
    report = payclient.StatusReport(state="Aceptado", transaction_id=1000, client_transaction_id=named)
    async with selling(service, lost_answer, status=AsyncMock(return_value=report)) as (_, pending):
        assert (await outcome_of(service, pending)).paid is (None if named is None else True)


async def test_the_feed_has_decisions_presumptions_and_corrections(service: FakeService) -> None:
    """`outcomes()` gives EXPIRED, then ACCEPTED, each with its cursor, and goes on from one."""
    profile = attrs.evolve(PROFILE, receipt_fields=("transactionId",))
    async with selling(service, profile=profile) as (tracker, _):
        feed = tracker.outcomes()
        first = asyncio.ensure_future(anext(feed))
        await service.clock.advance(301)
        expired = await first
        service.decide("Aceptado")
        second = asyncio.ensure_future(anext(feed))
        await service.clock.advance(10)
        accepted = await second
        assert [expired.state, accepted.state] == [State.EXPIRED, State.ACCEPTED]
        assert accepted.cursor is not None
        assert (await anext(tracker.outcomes(since=expired.cursor or 0))).cursor == accepted.cursor
        again = await anext(tracker.outcomes())
        assert (again.state, again.receipt, accepted.receipt) == (State.EXPIRED, {}, {"transactionId": 1000})


async def test_as_decided_gives_outcomes_in_the_order_of_their_decision(service: FakeService) -> None:
    async with tracking(service) as tracker:
        pendings = [await tracker.sale(sale(f"o{n}", phone=f"09841112{n:02}")) for n in range(2)]
        service.decide("Aceptado", 1001)

        async def collect() -> list[str]:
            return [each.client_transaction_id async for each in payclient.as_decided(pendings)]

        task = asyncio.create_task(collect())
        await service.clock.advance(5)
        service.decide("Cancelado", 1000)
        await service.clock.advance(5)
        assert await task == ["o1", "o0"]


async def test_who_takes_the_first_of_several_outcomes_waits_for_no_other(service: FakeService) -> None:
    async with tracking(service) as tracker:
        pendings = [await tracker.sale(sale(f"o{n}", phone=f"09841112{n:02}")) for n in range(3)]
        service.decide("Aceptado", 1001)
        await pendings[1].check()
        before = asyncio.all_tasks()
        outcomes = payclient.as_decided(pendings)
        assert isinstance(outcomes, AsyncGenerator)
        assert (await anext(outcomes)).paid is True
        await outcomes.aclose()
        assert asyncio.all_tasks() == before


async def test_an_operators_word_during_the_send_stands(service: FakeService) -> None:
    """A late answer that the lifecycle does not take any more gives the ledger's record."""

    async def decide() -> None:
        await service.ledger.apply(await record_in(service.ledger), NotSent(at=0.0))

    async with selling(service, when(decide)) as (_, pending):
        assert pending.state is State.REFUSED
    late = DecidedCancelled(at=0.0, actor="Ana", reason="called")
    await error_of(payclient.TransitionError, service.ledger.apply(await record_in(service.ledger), late))


@pytest.mark.parametrize("kind", ["memory:", "sqlite:"])
async def test_a_ledger_of_another_service(service: FakeService, tmp_path: Path, kind: str) -> None:
    """A test system would not find what the real one charged, and prove it absent: the ledger is refused."""
    ledger = await payclient.open_ledger(kind if kind == "memory:" else f"{kind}{tmp_path / 'charges.db'}")

    def tracker(base_url: str) -> payclient.Tracker:
        session = PaySession(base_url, "token", profile=PROFILE, transport=service)
        return payclient.Tracker(session, ledger, clock=service.clock)

    service.scripts = [lost_request]
    async with tracker("https://pay.example") as first:
        assert (await first.sale(sale())).state is State.UNKNOWN
    with pytest.raises(payclient.ConfigurationError, match="used with another service"):
        await tracker("https://sandbox.pay.example").__aenter__()
    async with tracker("https://PAY.example:443/") as again:
        assert [each.client_transaction_id for each in again.open_sales()] == ["order-17"]
    await ledger.aclose()


async def test_each_error_names_its_own_charge(service: FakeService) -> None:
    """Also where several callers wait for one token and are given one error, and where the request is refused here."""

    async def token() -> str:
        await asyncio.sleep(0)
        return "Bearer token"

    async with tracking(service, token=token) as tracker:
        calls = (
            tracker.sale(sale("first")), tracker.sale(sale("second")), tracker.prepare(form("third")),
            tracker.sale(sale("fourth"), purchase=" "), tracker.prepare(form("fifth"), purchase=" "),
        )  # fmt: skip
        raised = await asyncio.gather(*calls, return_exceptions=True)
    named = [each.client_transaction_id for each in raised if isinstance(each, payclient.PayError)]
    assert named == ["first", "second", "third", "fourth", "fifth"]


async def test_an_error_of_a_token_s_own_class_stays_one(service: FakeService) -> None:
    """Its class is called with other arguments than ours are."""

    class ExpiredError(payclient.PayError):
        def __init__(self, who: str, when: int) -> None:
            super().__init__(f"{who} has no token since {when}")
            self.when = when

    async def token() -> str:
        raise ExpiredError("shop", 17)

    async with tracking(service, token=token) as tracker:
        raised = await error_of(ExpiredError, tracker.sale(sale()), match="shop has no token since 17")
    assert (raised.when, raised.client_transaction_id) == (17, "order-17")


async def test_a_tracker_is_entered_once(service: FakeService) -> None:
    """Whoever left the inner block would close the tracker of the outer one; a closed one would follow nothing."""
    async with PaySession("https://pay.example", "token", profile=PROFILE, transport=service) as session:
        async with payclient.Tracker(session, service.ledger, clock=service.clock) as tracker:
            with pytest.raises(payclient.UsageError, match="opened"):
                await tracker.__aenter__()
            assert (await tracker.sale(sale())).state is State.PENDING
        with pytest.raises(payclient.UsageError, match="closed"):
            async with tracker:
                await tracker.sale(sale("order-18"))
    assert service.posted == {"order-17": 1}


def test_a_tracker_s_own_time_is_its_loop_s(service: FakeService) -> None:
    """Of the loop in which it was entered last, and of the running one until then."""

    async def main(tracker: payclient.Tracker) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert before <= tracker.clock.monotonic() <= loop.time()
        async with tracker:
            assert tracker.clock.monotonic == loop.time

    async def make() -> payclient.Tracker:
        session = PaySession("https://pay.example", "token", profile=PROFILE, transport=service)
        return payclient.Tracker(session, MemoryLedger())

    for _ in range(2):
        with asyncio.Runner() as runner:
            runner.run(main(runner.run(make())))


def test_a_tracker_belongs_to_one_event_loop(service: FakeService) -> None:
    """Who waited in another thread's loop was never woken."""

    async def first(items: AsyncIterator[object]) -> object:
        return await anext(items)

    opening = tracking(service)
    with asyncio.Runner() as own, asyncio.Runner() as other:
        tracker = own.run(opening.__aenter__())
        pending = own.run(tracker.sale(sale()))
        for call in (
            pending.wait(), pending.check(), tracker.sale(sale()), tracker.find("order-17"),
            tracker.notify(hint()), first(tracker.outcomes()),
        ):  # fmt: skip
            with pytest.raises(payclient.UsageError, match="another event loop"):
                other.run(call)
        own.run(opening.__aexit__(None, None, None))


# --- What is written of a send that went wrong, and who may send


@pytest.mark.parametrize("script", [lost_answer, posted(1, broken)], ids=["the network", "our own"])
async def test_a_fault_after_the_permit_proves_nothing(service: FakeService, script: Script) -> None:
    """Whatever breaks once the bytes may have left: unknown, found by the query, and never sent again."""
    async with selling(service, script) as (tracker, pending):
        assert (pending.state, pending.outcome.paid, pending.transaction_id) == (State.UNKNOWN, None, None)
        assert (await tracker.sale(sale())).state is State.UNKNOWN
        service.decide("Aceptado")
        outcome = await outcome_of(service, pending)
        assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    assert service.posted == {"order-17": 1}


async def test_a_sale_is_followed_whose_transport_raises_what_is_no_exception(service: FakeService) -> None:
    """As pytest's own failures and a green thread that is killed: its caller has that, and the sale may exist."""
    service.scripts = [when(lambda: pytest.fail("of the transport"))]
    async with tracking(service) as tracker:
        await error_of(pytest.fail.Exception, tracker.sale(sale()))
        service.add_sale()
        assert (await outcome_of(service, await pending_of(tracker))).paid is True


async def test_a_fault_of_ours_before_the_permit_leaves_nothing(service: FakeService) -> None:
    """It is raised, and the ledger has no row."""
    service.scripts = [broken]
    async with tracking(service) as tracker:
        await error_of(payclient.UsageError, tracker.sale(sale()))
        assert await tracker.find("order-17") is None
        assert (await tracker.sale(sale())).state is State.PENDING


@pytest.mark.parametrize("sent", [True, False])
def test_a_send_that_is_cancelled_with_its_loop_is_unknown(service: FakeService, sent: bool) -> None:
    """A program that ends without closing its tracker cancels it: what may have left is not called unsent."""

    async def main() -> None:
        service.scripts = [held := Held(FakeService.take if sent else broken)]
        session = PaySession("https://pay.example", "token", profile=PROFILE, transport=service)
        tracker = await payclient.Tracker(session, service.ledger, clock=service.clock).__aenter__()
        task = asyncio.create_task(tracker.sale(sale()))
        await held.there.wait()
        del task

    asyncio.run(main())
    record = asyncio.run(service.ledger.get("order-17"))
    if sent:
        assert record is not None
        assert (record.state, record.evidence) == (State.UNKNOWN, Evidence.NO_ANSWER)
        assert record.expires_at is not None
    else:
        assert record is None


@pytest.mark.parametrize("tax", [150, 151])
async def test_who_is_denied_the_permit_gets_the_same_sale(service: FakeService, tax: int) -> None:
    """Both have looked before either was permitted. Another content is not taken for it: another amount was charged."""
    async with tracking(service) as first, tracking(service, service.ledger) as second:
        one, other = await asyncio.gather(
            first.sale(sale()), second.sale(sale(tax=tax)), return_exceptions=True
        )
    assert isinstance(one, payclient.PendingSale)
    assert isinstance(other, payclient.PendingSale if tax == 150 else payclient.DifferentRequestError)
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("word", ["Aceptado", "Cancelado"])
async def test_a_report_of_another_sale_decides_nothing(service: FakeService, known: bool, word: str) -> None:
    """Asked for ours, the service answers another's with our client transaction id and amount: a conflict."""
    async with selling(service, *[] if known else [lost_request]) as (tracker, pending):
        if not known:
            await tracker.notify(hint())
        service.add_sale(77, state=word)
        others = service.sales.pop(77)
        service.instead = lambda path: answer(200, others if path == "/api/Sale/1000" else [])
        await service.clock.advance(500)
        assert pending.transaction_id == (1000 if known else None)
        assert pending.outcome.paid is None
    changes = [each for each in await service.ledger.history("order-17") if each.event == "Conflicted"]
    assert any("77" in (change.detail or "") for change in changes)


async def test_the_end_of_each_send_is_written_as_what_it_was(service: FakeService) -> None:
    """Created, refused with its code and text, not sent, lost with the id that was seen."""
    service.scripts = [
        refuses(800), seen_dead, answers(500, {"transactionId": 55}), FakeService.take, *[no_connection] * 3,
    ]  # fmt: skip
    async with tracking(service) as tracker:
        began = service.clock.time()
        await error_of(payclient.ValidationFailedError, tracker.sale(sale("refused")))
        await error_of(payclient.NotSentError, tracker.sale(sale("dead")))
        await tracker.sale(sale("half"))
        await tracker.sale(sale("created"))
        await error_of(payclient.NotSentError, tracker.sale(sale("never")))
        assert await tracker.find("never") is None
        dead = (await pending_of(tracker, "dead")).record
        assert (dead.evidence, dead.error_type) == (Evidence.NOT_SENT, None)
    ledger = service.ledger
    assert await ledger.get("never") is None
    refused, dead, half, created = [
        await record_in(ledger, key) for key in ("refused", "dead", "half", "created")
    ]
    assert (refused.state, refused.evidence) == (State.REFUSED, Evidence.ANSWER)
    assert (refused.error_type, refused.error_code, refused.messages) == (
        "ValidationFailedError", 800, ("general",),
    )  # fmt: skip
    assert (dead.state, dead.evidence) == (State.REFUSED, Evidence.NOT_SENT)
    assert (half.state, half.evidence, half.expires_at) == (
        State.UNKNOWN, Evidence.NO_ANSWER, began + 30 + 300,
    )  # fmt: skip
    assert (created.state, created.transaction_id, created.expires_at) == (State.PENDING, 1000, began + 300)
    assert "55" in str([change.detail for change in await ledger.history("half")])
    async with tracking(service, ledger) as tracker:
        assert (await tracker.sale(sale("dead"))).state is State.PENDING
    assert service.posted == {"created": 1, "dead": 1}


async def test_a_customer_at_two_stores_has_two_lanes(service: FakeService) -> None:
    """One open sale for each customer at each store: by phone and country, or by nick name."""
    async with tracking(service) as tracker:
        lanes = {
            tracker.attempts.lane(request)
            for request in (
                sale("a"), sale("b", store_id="S2"), sale("c", store_id=None), sale("d", country_code="57"),
                sale("e", phone="0984111223"), sale("f", by_nick_name=True, nick_name="ana"),
                sale("g", by_nick_name=True, nick_name="eva"),
            )
        }  # fmt: skip
        assert len(lanes) == 7
        nick = sale("i", by_nick_name=True, nick_name="ana", phone="0984111229")
        assert {tracker.attempts.lane(sale("h", tax=1)), tracker.attempts.lane(nick)} < lanes


@pytest.mark.parametrize(
    ("state", "script", "word", "seconds"),
    [
        (State.UNKNOWN, lost_answer, "Pendiente", 0), (State.PENDING, FakeService.take, "Pendiente", 0),
        (State.EXPIRED, FakeService.take, "Pendiente", 301), (State.ACCEPTED, FakeService.take, "Aceptado", 60),
        (State.CANCELLED, FakeService.take, "Cancelado", 60),
    ],
)  # fmt: skip
async def test_what_another_tracker_sent_is_not_sent_again(
    service: FakeService, state: State, script: Script, word: str, seconds: float
) -> None:
    """The ledger alone knows of it: the same sale is returned, other content is refused, and no POST is begun."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as second, selling(service, script, ledger=ledger):
        service.decide(word)
        await service.clock.advance(seconds)
        await error_of(payclient.DifferentRequestError, second.sale(sale(tax=151)))
        again = await second.sale(sale())
        assert (again.state, again.attempt) == (state, 1)
    assert service.begun == 1


async def test_a_permit_that_a_failover_lost(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    """The attempt before it was refused, and not this one: it is not called unpaid, and a person is told."""
    ledger = ForgetfulLedger()
    async with refused(
        service, refuses(99), when(lambda: ledger.forget("order-17")), ledger=ledger
    ) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (pending.outcome.paid, (await outcome_of(service, pending)).paid) == (None, None)
    assert len(alarms(caplog)) == 1


async def test_a_form_whose_permit_a_failover_lost_is_not_handed_out(service: FakeService) -> None:
    """Its payment would be confirmed by nobody, and known to nobody."""
    ledger = ForgetfulLedger()
    service.scripts = [when(lambda: ledger.forget("form-1"))]
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.LedgerUnavailableError, tracker.prepare(form()))


@pytest.mark.parametrize(
    ("script", "event", "state"),
    [
        (lost_request, "ProvenAbsent", State.REFUSED),
        (FakeService.take, "FoundAccepted", State.ACCEPTED),
    ],
)
async def test_the_only_query_that_is_left_is_made_again_where_the_ledger_fails(
    service: FakeService, script: Script, event: str, state: payclient.State
) -> None:
    """Two days later no other query is planned: what is paid was known in no process until the next start."""
    ledger = HookedLedger(before={event: once(disk_full)})
    async with selling(service, script, ledger=ledger):
        await service.clock.advance(600)
    await service.clock.advance(172_800)
    for each in service.sales:
        service.decide("Aceptado", each)
    async with tracking(service, ledger):
        await service.clock.advance(2000)
    assert (await record_in(ledger)).state is state


async def test_a_word_that_the_profile_lacks_is_queried_seldom(service: FakeService) -> None:
    """It may stay the last one: else the charges of a few days would use up the rate for good."""
    async with selling(service):
        service.decide("Vencido")
        await service.clock.advance(86_400)
        begun = len(service.queries)
        await service.clock.advance(7 * 86_400)
    assert len(service.queries) - begun <= 1


async def test_a_transport_that_repeats_by_itself_sends_once(service: FakeService) -> None:
    """Its second request gets no permit, and what became of the first is asked for."""

    async def twice(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        service.create(request)  # whose answer was lost
        return await service.take(request, before_send)

    async with selling(service, twice) as (_, pending):
        assert (pending.state, service.posted) == (State.UNKNOWN, {"order-17": 1})
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True


async def test_a_query_that_is_rate_limited_is_none_of_the_last(service: FakeService) -> None:
    """From the expiry on the service answers 429, more often than there are last queries; then it says the outcome."""
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(299)
        service.status_scripts = [lambda: answer(429, {})] * 12
        service.decide("Aceptado")
        assert (await outcome_of(service, pending, 600)).paid is True
