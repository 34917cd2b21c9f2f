"""Paid, and given back: by the tracker, by somebody else, and by a request of which nobody knows what came of it."""

from __future__ import annotations

import asyncio
import json

import attrs
import pytest

import payclient
from fake_ledgers import SharedLedger
from fake_service import PROFILE as PLAIN
from fake_service import FakeService, answer, events_of, outcome_of, pending_of, record_in, refusal, tracking
from fake_service import sale as push
from payclient.events import Event, Evidence, FoundCancelled, ReversalPermitted, ReversalRefused
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record, State
from payclient.profile import StatusProfile, UndoProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

pytestmark = pytest.mark.usefixtures("delays")

PROFILE = attrs.evolve(
    PLAIN,
    reverse=UndoProfile(
        by_transaction_id="/api/Reverse", transaction_id_field="id", too_late_codes=frozenset({20})
    ),
)


class Service(FakeService):
    """Gives a payment back; one entry of `reverse_scripts` misbehaves for each next request."""

    def __init__(self) -> None:
        super().__init__()
        self.reversals: list[int] = []
        #: What is answered or raised, and whether it is given back all the same.
        self.reverse_scripts: list[tuple[HttpResponse | Exception, bool]] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.path != "/api/Reverse":
            return await super().__call__(request, before_send)
        number = json.loads(request.body)["id"]
        said, done = self.reverse_scripts.pop(0) if self.reverse_scripts else (answer(200, True), True)
        if isinstance(said, ConnectionRefusedError):
            raise said
        assert before_send is not None
        await before_send()
        self.reversals.append(number)
        await asyncio.sleep(0)
        if done:
            self.decide("Cancelado", number)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
def service() -> Service:
    return Service()


async def paid(service: Service, tracker: payclient.Tracker, name: str = "first") -> payclient.PendingSale:
    sale = await tracker.sale(push(name), purchase="order-17")
    number = sale.transaction_id
    assert number is not None
    service.decide("Aceptado", number)
    assert (await outcome_of(service, sale)).paid
    return sale


async def test_a_payment_is_given_back(service: Service) -> None:
    """The feed carries it, the purchase is not paid any more, and may be asked for again."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, PROFILE) as tracker:
        sale = await paid(service, tracker)
        outcome = await tracker.reverse(sale)
        assert (outcome.state, outcome.paid, outcome.evidence) == (State.REVERSED, False, Evidence.ANSWER)
        assert (await tracker.reverse(sale)).state is State.REVERSED
        assert service.reversals == [sale.transaction_id]
        changes = await ledger.changes()
        assert [change.after for change in changes] == [State.ACCEPTED, State.REVERSING, State.REVERSED]
        purchase = await tracker.purchase("order-17")
        assert (purchase.paid, purchase.collected) == (False, 0)
        await tracker.sale(push("second"), purchase="order-17")


async def test_only_one_request_leaves(service: Service) -> None:
    """Several calls, here and in another process: one is permitted, and the others say what is known."""
    ledger = SharedLedger()
    async with (
        tracking(service, ledger, PROFILE) as one,
        tracking(service, SharedLedger(ledger), PROFILE) as other,
    ):
        sale = await paid(service, one)
        there = await pending_of(other, "first")
        outcomes = await asyncio.gather(
            *(one.reverse(sale) for _ in range(3)), *(other.reverse(there) for _ in range(3))
        )
        assert {outcome.state for outcome in outcomes} <= {State.REVERSING, State.REVERSED}
        assert len(service.reversals) == 1
        history = await events_of(ledger, "first")
        assert history.count(ReversalPermitted.__name__) == 1


async def test_a_process_that_stood_still_gives_nothing_back(service: Service) -> None:
    """Woken too late after the permit: another may have been told meanwhile that it is still paid."""

    class Slow(MemoryLedger):
        async def apply(self, record: Record, event: Event) -> Record:
            after = await super().apply(record, event)
            if isinstance(event, ReversalPermitted):
                service.clock.jump_wall(31)
            return after

    async with tracking(service, Slow(), PROFILE) as tracker:
        sale = await paid(service, tracker)
        with pytest.raises(payclient.NotSentError):
            await tracker.reverse(sale)
        assert service.reversals == []
        assert (await tracker.purchase("order-17")).paid is True


async def test_a_reversal_goes_on_without_its_caller(service: Service) -> None:
    """Who is cancelled detaches; the request is not cut, and its answer is written."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, PROFILE) as tracker:
        sale = await paid(service, tracker)
        caller = asyncio.ensure_future(tracker.reverse(sale))
        while not service.reversals:  # noqa: ASYNC110 - no event of the service tells
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert [change.after for change in await ledger.changes()][-1] is State.REVERSED
    assert (await ledger.history("first"))[-1].event == "Reversed"
    assert len(service.reversals) == 1


async def test_what_is_not_paid_is_not_given_back(service: Service) -> None:
    """Nothing is sent; nor where the profile does not say how."""
    async with tracking(service, profile=PROFILE) as tracker:
        sale = await tracker.sale(push("first"))
        with pytest.raises(payclient.UsageError):
            await tracker.reverse(sale)
    async with tracking(service) as tracker:
        sale = await paid(service, tracker, "second")
        with pytest.raises(payclient.ConfigurationError):
            await tracker.reverse(sale)
        assert sale.state is State.ACCEPTED
    assert service.reversals == []


async def test_a_refused_reversal_leaves_it_paid(service: Service) -> None:
    """As does one that was not sent; either may be tried again."""
    async with tracking(service, profile=PROFILE) as tracker:
        sale = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), False)] + [(ConnectionRefusedError(), False)] * 100
        with pytest.raises(payclient.NotReversibleError):
            await tracker.reverse(sale)
        assert (await pending_of(tracker, "first")).outcome.paid is True
        waiting = asyncio.ensure_future(tracker.reverse(sale))
        for _ in range(100):
            await service.clock.advance(1.0)
        with pytest.raises(payclient.NotSentError):
            await waiting
        assert (await pending_of(tracker, "first")).outcome.paid is True
        service.reverse_scripts = []
        assert (await tracker.reverse(sale)).paid is False


async def test_the_end_of_a_first_reversal_ends_no_second_one(service: Service) -> None:
    """It was written, and the ledger said that it was not: written again, it would call paid what is given back."""

    class FailingLate(MemoryLedger):
        fails = True

        async def apply(self, record: Record, event: Event) -> Record:
            after = await super().apply(record, event)
            if isinstance(event, ReversalRefused) and self.fails:
                self.fails = False
                raise payclient.LedgerUnavailableError("disk I/O error")
            return after

    ledger = FailingLate()
    async with tracking(service, ledger, PROFILE) as tracker:
        sale = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), False), (ConnectionResetError(), True)]
        with pytest.raises(payclient.NotReversibleError):
            await tracker.reverse(sale)
        await service.clock.advance(0.1)
        assert (await tracker.reverse(sale)).state is State.REVERSING
        await service.clock.advance(1)  # the first one's end is written again
        assert (await record_in(ledger, "first")).state is State.REVERSING
        await service.clock.advance(600)
    assert (await record_in(ledger, "first")).state is State.REVERSED


async def test_a_repeated_request_is_refused_though_it_was_given_back(service: Service) -> None:
    """What stands between us and the service repeats it: a query tells, before anything is called paid."""
    async with tracking(service, profile=PROFILE) as tracker:
        sale = await paid(service, tracker)
        service.reverse_scripts = [(refusal(20), True)]
        assert (await tracker.reverse(sale)).state is State.REVERSED


async def test_of_two_that_were_paid_the_other_one_stays_paid(service: Service) -> None:
    """A POST was repeated in front and the customer approved both: one is given back, and the purchase is paid."""

    async def twice(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        service.create(request)
        return answer(200, {"transactionId": service.create(request)})

    service.scripts = [twice]
    async with tracking(service, profile=PROFILE) as tracker:
        service.clock.call_at(1.0, service.decide, "Aceptado", 1000)
        sale = await paid(service, tracker)
        assert (await tracker.reverse(sale)).paid is not False
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.sale(push("second"), purchase="order-17")
        await service.clock.advance(700)
        there = await pending_of(tracker, "first")
        assert (there.outcome.paid, there.transaction_id) == (True, 1000)
        assert (await tracker.reverse(there)).state is State.REVERSED
    assert service.reversals == [1001, 1000]


@pytest.mark.parametrize("done", [True, False])
async def test_a_lost_answer_is_settled_by_a_query(service: Service, done: bool) -> None:
    """Nobody knows until then; "accepted" counts once the request can no longer be on its way. Also after a crash."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, PROFILE) as tracker:
        sale = await paid(service, tracker)
        service.reverse_scripts = [(ConnectionResetError(), done)]
        outcome = await tracker.reverse(sale)
        assert (outcome.state, outcome.paid) == (State.REVERSING, None)
        with pytest.raises(payclient.AlreadyPaidError):
            await tracker.sale(push("second"), purchase="order-17")
        if not done:
            await service.clock.advance(10)
            assert (await sale.check()).state is State.REVERSING
            assert (await record_in(ledger, "first")).state is State.REVERSING
    async with tracking(service, ledger, PROFILE) as tracker:
        there = await pending_of(tracker, "first")
        outcome = await outcome_of(service, there)
        assert outcome.state is (State.REVERSED if done else State.ACCEPTED)
        assert outcome.evidence is Evidence.QUERY
    assert len(service.reversals) == 1


async def test_a_lost_answer_is_followed_though_nobody_waits(service: Service) -> None:
    """The process that lost it queries by itself, and the ledger has the end."""
    ledger = MemoryLedger()
    async with tracking(service, ledger, PROFILE) as tracker:
        sale = await paid(service, tracker)
        service.reverse_scripts = [(ConnectionResetError(), True)]
        assert (await tracker.reverse(sale)).state is State.REVERSING
        await service.clock.advance(600)
        assert (await record_in(ledger, "first")).state is State.REVERSED


async def test_somebody_else_gave_it_back(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """In the portal: a query finds it, which is a correction with an alarm, and never an error in the log."""
    async with tracking(service, profile=PROFILE) as tracker:
        sale = await paid(service, tracker)
        await service.clock.advance(100)
        assert (await sale.check()).paid is True
        service.decide("Cancelado")
        await service.clock.advance(2)
        outcome = await sale.check()
        assert (outcome.state, outcome.paid) == (State.REVERSED, False)
        assert [each.levelname for each in caplog.records] == ["CRITICAL"]
        service.decide("Aceptado")  # nonsense: it stays given back, and is looked at by a person
        await service.clock.advance(2)
        assert (await sale.check()).state is State.REVERSED


class Slow(SharedLedger):
    """One process's view of a shared ledger, whose word that it is cancelled comes late."""

    def __init__(self, with_: SharedLedger | None = None) -> None:
        super().__init__(with_)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def apply(self, record: Record, event: Event) -> Record:
        if isinstance(event, FoundCancelled):
            self.asked.set()
            await self.go.wait()
        return await super().apply(record, event)


async def test_what_was_cancelled_before_it_was_accepted_is_not_given_back(service: Service) -> None:
    """Two processes query one sale: the older word, "cancelled", is written after the newer one, "accepted"."""
    ledger = Slow()
    async with tracking(service, ledger) as one, tracking(service, SharedLedger(ledger)) as other:
        sale = await one.sale(push("first"), purchase="order-17")
        there = await pending_of(other, "first")
        service.decide("Cancelado")
        checking = asyncio.ensure_future(sale.check())
        await ledger.asked.wait()
        service.decide("Aceptado")
        assert (await there.check()).paid is True
        ledger.go.set()
        assert (await checking).paid is True
        with pytest.raises(payclient.AlreadyPaidError):
            await other.sale(push("second"), purchase="order-17")
    assert (await record_in(ledger, "first")).state is State.ACCEPTED


async def test_an_answer_from_before_it_was_accepted_does_not_give_it_back(service: Service) -> None:
    """The process that asked first has heard meanwhile what another one found; it has no second look of its own."""
    by_client = StatusProfile(
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
    )
    profile = attrs.evolve(PLAIN, status=by_client)
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        said = await service(request, before_send)
        if request.method == "GET":
            asked.set()
            await go.wait()
        return said

    ledger = SharedLedger()
    async with (
        tracking(service, ledger, profile, transport=slow) as one,
        tracking(service, SharedLedger(ledger), profile) as other,
    ):
        sale = await one.sale(push("first"), purchase="order-17")
        there = await pending_of(other, "first")
        service.decide("Cancelado")
        checking = asyncio.ensure_future(sale.check())
        await asked.wait()
        service.decide("Aceptado")
        assert (await there.check()).paid is True
        await service.clock.advance(0.1)
        go.set()
        assert (await checking).paid is True
    assert (await record_in(ledger, "first")).state is State.ACCEPTED
