"""Transaction ids that an answer or a notification named: asked for one by one, before anything is proven."""

from __future__ import annotations

import asyncio

import attrs
import pytest

import payclient
from fake_ledgers import SharedLedger
from fake_service import (
    PROFILE,
    FakeService,
    Script,
    answer,
    events_of,
    form,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    refusal,
    sale,
    tracking,
)
from payclient.events import Event, Evidence, Lost, Notified
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

Receipt, State = payclient.Receipt, payclient.State


class Lagging(FakeService):
    """A service whose query by client transaction id finds nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.lags = True

    def status(self, path: str) -> HttpResponse:
        if self.lags and path.startswith("/api/Sale/client/"):
            return refusal(20, status=404)
        return super().status(path)

    def by_id(self, transaction_id: int) -> int:
        """How often this transaction was asked for."""
        return self.queries.count(f"/api/Sale/{transaction_id}")


@pytest.fixture
def service() -> Lagging:
    return Lagging()


def fails_with_an_id(status: int = 500, transaction_id: int | None = None) -> Script:
    """The charge is executed; the answer names it and is no success."""

    async def script(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        created = service.create(request)
        return answer(status, {"transactionId": transaction_id or created})

    return script


async def test_a_forged_candidate_does_not_mute_the_genuine_one(service: Lagging) -> None:
    """A second id is another candidate and worth its query, whatever became of the first; so are a third, a fourth."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(20)
        for number in (777, 778, 779):
            assert await tracker.notify(hint(number)) is Receipt.MATCHED
        service.decide("Aceptado")
        assert await tracker.notify(hint(1000)) is Receipt.MATCHED
        await service.clock.advance(2.0)
        assert pending.outcome.paid is True


@pytest.mark.parametrize("transaction_id", [1000, 2000], ids=["ours", "nobody's"])
async def test_a_repeated_notification_is_written_once_and_asks_once_a_second(
    transaction_id: int, ledger: Ledger
) -> None:
    """A flood of one forged notification: a query a second, and one row."""
    service = Lagging()
    service.scripts = [lost_answer]
    service.lags = transaction_id != 1000
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        await pending.check()
        await tracker.notify(hint(transaction_id))
        await service.clock.advance(30)
        before, written = len(service.queries), len(await events_of(ledger))
        for _ in range(40):
            await tracker.notify(hint(transaction_id))
            await service.clock.advance(0.25)
        assert 4 <= len(service.queries) - before <= 12
        assert len(await events_of(ledger)) <= written + 1


async def test_a_flood_of_candidates_is_bounded_and_muted_by_nobody(ledger: Ledger) -> None:
    """A hundred forged ids a second: one query a second, few rows; and a genuine one is found within seconds."""
    service = Lagging()
    service.scripts = [lost_answer]
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(10)
        before = len(service.queries)
        for second in range(10):
            for number in range(100):
                await tracker.notify(hint(1_000_000 + second * 100 + number))
            await service.clock.advance(1)
        assert len(service.queries) - before <= 14
        assert len(await events_of(ledger)) <= 40
        service.decide("Aceptado")
        for _ in range(5):  # as a service repeats one
            await tracker.notify(hint(1000))
            await service.clock.advance(1)
        async with asyncio.timeout(60):  # for the ledger's thread: virtual time stands still
            assert (await pending.wait()).paid is True


@pytest.mark.parametrize(
    "changes",
    [{"clientTransactionId": "order-18"}, {"clientTransactionId": None}, {"amount": 1}, {"currency": "EUR"}],
    ids=["client id", "no client id", "amount", "currency"],
)
async def test_a_candidate_that_does_not_match_binds_nothing(
    service: Lagging, changes: dict[str, object]
) -> None:
    """Whatever its state: another's transaction is not our sale, and its report is shown to nobody."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.add_sale(2000, **changes)
        await tracker.notify(hint(2000))
        for _ in range(10):
            outcome = await pending.check()
            assert (outcome.state, outcome.transaction_id, outcome.report) == (State.UNKNOWN, None, None)
            await service.clock.advance(1.5)
        assert service.by_id(2000) >= 1


async def test_anothers_transaction_is_asked_for_once(service: Lagging) -> None:
    """The service's word that it is somebody else's ends it, however often it is named again."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        service.add_sale(2000, clientTransactionId="order-18")
        await tracker.notify(hint(2000))
        await service.clock.advance(5)
        for _ in range(10):
            assert await tracker.notify(hint(2000)) is Receipt.CONFLICT
            await service.clock.advance(1)
        assert service.by_id(2000) == 1
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)


# --- What absence needs


async def test_absence_is_not_proven_while_a_candidate_answers_nothing(service: Lagging) -> None:
    """The query by the named id fails for ever: "not found" by the other id proves nothing, and nothing is sent."""
    service.scripts = [fails_with_an_id()]
    shipped = service.status

    def status(path: str) -> HttpResponse:
        return answer(400, {}) if path == "/api/Sale/1000" else shipped(path)

    service.status = status  # type: ignore[method-assign]  # this id's query is broken
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
        await service.clock.advance(10_000)
        assert pending.outcome.paid is None
        await tracker.sale(sale())
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize(("heard", "count"), [(0.0, 1), (9.0, 3), (50.0, 2)])
async def test_absence_is_proven_once_every_candidate_is_not_found_too(
    service: Lagging, heard: float, count: int
) -> None:
    """Forged ids delay the proof and do not prevent it: each is asked once more between the two proofs."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(heard)
        forged = range(777, 777 + count)
        for number in forged:
            await tracker.notify(hint(number))
        await service.clock.advance(590 - heard)
        before = [service.by_id(number) for number in forged]
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)
        asked = [service.by_id(number) - known for number, known in zip(forged, before, strict=True)]
        assert all(1 <= times <= 2 for times in asked)


async def test_a_notification_between_the_two_proofs_undoes_the_first(service: Lagging) -> None:
    """Whatever it names is asked for, and the time between two proofs begins anew."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(630)
        assert pending.state is State.UNKNOWN
        await tracker.notify(hint(777))
        await service.clock.advance(40)
        assert pending.state is State.UNKNOWN
        await tracker.notify(hint(1000))
        service.decide("Aceptado")
        await service.clock.advance(2)
        assert pending.outcome.paid is True


class SlowToTell(MemoryLedger):
    """A ledger that takes a notification at once, and says so when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.taken, self.go = asyncio.Event(), asyncio.Event()

    async def apply(self, record: Record, event: Event) -> Record:
        after = await super().apply(record, event)
        if isinstance(event, Notified):
            self.taken.set()
            await self.go.wait()
        return after


@pytest.mark.parametrize("cancelled", [False, True])
async def test_absence_is_not_proven_while_a_notification_is_written(
    service: Lagging, cancelled: bool
) -> None:
    """It is in the ledger, and whoever brought it has not heard so yet, or never will: it is queried first."""
    service.scripts = [lost_answer]
    ledger = SlowToTell()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        await service.clock.advance(630)
        notified = asyncio.ensure_future(tracker.notify(hint(1000)))
        await ledger.taken.wait()
        if cancelled:
            notified.cancel()
        await service.clock.advance(45)
        assert pending.outcome.paid is True
        ledger.go.set()
    assert "ProvenAbsent" not in await events_of(ledger)


async def test_absence_is_not_proven_by_a_process_that_did_not_hear_of_a_notification(
    service: Lagging,
) -> None:
    """Another process of the ledger took it, and died: what it named is queried before anything is proven."""
    service.scripts = [lost_answer]
    ledger = SharedLedger()
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        await service.clock.advance(630)
        ledger.watchers.clear()  # nobody hears anything any more
        async with tracking(service, SharedLedger(ledger)) as other:
            await other.notify(hint(1000))
        await service.clock.advance(45)
        assert pending.outcome.paid is True
    assert "ProvenAbsent" not in await events_of(ledger)


async def test_absence_is_not_proven_where_more_ids_came_than_are_kept(service: Lagging) -> None:
    """One of those that were dropped may have been ours: an operator decides."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        for number in range(17):
            await tracker.notify(hint(2000 + number))
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)


async def test_absence_is_not_proven_where_the_named_id_cannot_be_asked(
    service: Lagging, caplog: pytest.LogCaptureFixture
) -> None:
    """A profile without a query by transaction id: the sale stays unknown, and a warning says why."""
    service.scripts = [fails_with_an_id()]
    profile = payclient.ServiceProfile(
        not_found_codes=frozenset({20}),
        status=StatusProfile(
            by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
        ),
    )
    async with tracking(service, profile=profile) as tracker:
        pending = await tracker.sale(sale())
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
    assert "named that cannot be queried" in caplog.text


@pytest.mark.parametrize("notified", [False, True], ids=["answer", "notification"])
async def test_a_candidate_survives_a_restart(notified: bool, ledger: Ledger) -> None:
    """It stands in the ledger, also where the process ended before it asked, and binds the sale afterwards."""
    service = Lagging()
    service.scripts = [lost_answer if notified else fails_with_an_id()]
    async with tracking(
        service, ledger, attrs.evolve(PROFILE, status=None)
    ) as tracker:  # nothing is asked yet
        await tracker.sale(sale())
        if notified:
            for number in (777, 1000):
                await tracker.notify(hint(number))
    service.decide("Aceptado")
    async with tracking(service, ledger) as tracker:
        pending = await pending_of(tracker)
        assert pending.state is State.UNKNOWN
        outcome = await outcome_of(service, pending, ledger=ledger)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    assert service.posted == {"order-17": 1}


async def test_an_early_candidate_survives_a_crash_before_the_answer(ledger: Ledger) -> None:
    """Notified while it was being sent, and then the process ends: its id is asked for by the next one."""
    service = Lagging()
    record = Record(
        client_transaction_id="order-17", amount=1150, currency="USD", created_at=service.clock.time()
    )
    async with tracking(service, ledger) as tracker:
        await ledger.permit(record)  # as of a process that dies while it sends
        assert await tracker.notify(hint(1000)) is Receipt.EARLY
    service.add_sale()
    async with tracking(service, ledger) as later:
        pending = await pending_of(later)
        assert (await outcome_of(service, pending, ledger=ledger)).transaction_id == 1000


class FailingLate(MemoryLedger):
    """A ledger that carries out one write and says that it failed."""

    fails = True

    async def apply(self, record: Record, event: Event) -> Record:
        after = await super().apply(record, event)
        if isinstance(event, Lost) and self.fails:
            self.fails = False
            raise payclient.LedgerUnavailableError("disk I/O error")
        return after


async def test_an_early_candidate_survives_a_write_that_seems_to_fail(service: Lagging) -> None:
    """The end of a send is written, and its commit fails: what was named meanwhile is asked for all the same."""
    ledger = FailingLate()

    async def notified(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        number = service.create(request)
        assert await tracker.notify(hint(number)) is Receipt.EARLY
        raise ConnectionResetError

    service.scripts = [notified]
    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).transaction_id == 1000


# --- Proofs of absence


async def test_two_proofs_at_once_are_one(service: Lagging) -> None:
    """However often it is checked, they are a tenth of `absent_after` apart."""
    service.scripts = [lost_request]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(600)
        for _ in range(50):
            await pending.check()
            await service.clock.advance(1.1)
        assert pending.state is State.UNKNOWN
        await service.clock.advance(10)
        assert pending.outcome.paid is False


async def test_absence_does_not_count_across_a_sighting(service: Lagging) -> None:
    """Not found, then seen in whatever state, then not found: the first "not found" counts no more."""
    service.scripts = [lost_answer]
    async with tracking(service) as tracker:
        pending = await tracker.sale(sale())
        await service.clock.advance(630)
        service.lags = False
        service.decide("Rara")  # a word that the profile does not map: seen, and no verdict
        await pending.check()
        service.lags = True
        await service.clock.advance(45)
        assert pending.state is State.UNKNOWN
        service.lags = False
        service.decide("Aceptado")
        assert (await pending.check()).paid is True


@pytest.mark.parametrize("lost", [False, True], ids=["prepared", "lost"])
async def test_an_unpaid_form_is_never_proven_absent(service: Lagging, lost: bool) -> None:
    """Nobody has paid it, so it is not found: that says nothing about whether it exists."""

    async def prepares(service: FakeService, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        if lost:
            raise ConnectionResetError
        return answer(200, {"paymentId": "p", "payWithCard": "https://pay.example/c"})

    service.scripts = [prepares]
    request = form("order-17")
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        try:
            await tracker.prepare(request)
        except payclient.OutcomeUnknownError:
            assert lost
    async with tracking(service, ledger) as tracker:
        await service.clock.advance(4000)
        pending = await pending_of(tracker)
        assert pending.outcome.paid is None
        assert (
            5 < len(service.queries) < 100
        )  # and not once a second from the day on which it could be absent
        with pytest.raises(payclient.DifferentRequestError):
            await tracker.prepare(request)


async def test_a_forged_candidate_does_not_mute_a_users_own_source(service: Lagging) -> None:
    """A source that goes by our own id names the true transaction, which is ours whatever candidate had its turn."""

    async def source(reference: payclient.TransactionRef) -> payclient.StatusReport:
        return payclient.StatusReport(
            state="Aceptado", transaction_id=1000, client_transaction_id=reference.client_transaction_id,
            amount=1150, currency="USD",
        )  # fmt: skip

    service.scripts = [lost_answer]
    async with tracking(service, status=source) as tracker:
        pending = await tracker.sale(sale())
        await tracker.notify(hint(777))
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
