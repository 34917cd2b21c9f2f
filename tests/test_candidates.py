"""Transaction ids that an answer or a notification named: asked for one by one, before anything is proven."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from unittest.mock import AsyncMock

import attrs
import pytest

import payclient
from fake_ledgers import HookedLedger, Hooks, SharedLedger, disk_full, once
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Held,
    Script,
    answer,
    answers,
    error_of,
    events_of,
    form,
    hint,
    lost_answer,
    lost_request,
    outcome_of,
    pending_of,
    posted,
    record_in,
    refusal,
    refused,
    refuses,
    reset,
    sale,
    selling,
    tracking,
    when,
)
from payclient.events import Evidence, Notified, Refused
from payclient.ledger import Change, Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.profile import StatusProfile
from payclient.wire import HttpResponse
from raw_server import turns

Receipt, State = payclient.Receipt, payclient.State

#: The charge is executed; the answer names it and is no success.
FAILS_WITH_AN_ID = posted(1, answers(500, {"transactionId": 1000}))


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


async def test_a_forged_candidate_does_not_mute_the_genuine_one(service: Lagging) -> None:
    """A second id is another candidate and worth its query, whatever became of the first; so are a third, a fourth."""
    async with selling(service, lost_answer) as (tracker, pending):
        await service.clock.advance(20)
        for number in (777, 778, 779):
            assert await tracker.notify(hint(number)) is Receipt.MATCHED
        service.decide("Aceptado")
        assert await tracker.notify(hint(1000)) is Receipt.MATCHED
        await service.clock.advance(2.0)
        assert pending.outcome.paid is True


@pytest.mark.parametrize("transaction_id", [1000, 2000], ids=["ours", "nobody's"])
async def test_a_repeated_notification_is_written_once_and_asks_once_a_second(
    service: Lagging, transaction_id: int, ledger: Ledger
) -> None:
    """A flood of one forged notification: a query a second, and one row."""
    service.lags = transaction_id != 1000
    async with selling(service, lost_answer, ledger=ledger) as (tracker, pending):
        await pending.check()
        await tracker.notify(hint(transaction_id))
        await service.clock.advance(30)
        before, written = len(service.queries), len(await events_of(ledger))
        for _ in range(40):
            await tracker.notify(hint(transaction_id))
            await service.clock.advance(0.25)
        assert 4 <= len(service.queries) - before <= 12
        assert len(await events_of(ledger)) <= written + 1


async def test_a_repeated_notification_is_worth_one_query(service: Lagging) -> None:
    """A second later at least; the series after the first one is over, and begins no second time."""
    service.lags = False
    async with selling(service, schedule=payclient.Fixed(1000.0)) as (tracker, _):
        await tracker.notify(hint())
        await service.clock.advance(30)
        queries = len(service.queries)
        assert await tracker.notify(hint()) is Receipt.DUPLICATE
        await service.clock.advance(30)
    assert len(service.queries) == queries + 1


async def test_a_flood_of_candidates_is_bounded_and_muted_by_nobody(service: Lagging, ledger: Ledger) -> None:
    """A hundred forged ids a second: one query a second, few rows; and a genuine one is found within seconds."""
    async with selling(service, lost_answer, ledger=ledger) as (tracker, pending):
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
async def test_a_candidate_of_another_binds_nothing(service: Lagging, changes: dict[str, object]) -> None:
    """Whatever its state: another's transaction is not our sale, and its report is shown to nobody."""
    async with selling(service, lost_request) as (tracker, pending):
        service.add_sale(2000, **changes)
        await tracker.notify(hint(2000))
        for _ in range(10):
            outcome = await pending.check()
            assert (outcome.state, outcome.transaction_id, outcome.report) == (State.UNKNOWN, None, None)
            await service.clock.advance(1.5)
        assert service.by_id(2000) >= 1


async def test_an_answer_about_a_candidate_decides_nothing_once_another_one_is_ours(service: Lagging) -> None:
    """Another process found ours as the forged one was asked for, which this service answers without any id."""
    gate, ledger = Gate(), SharedLedger()
    slow = gate.before(service, "/api/Sale/777")
    service.instead = lambda path: answer(200, {"state": "Aceptado"}) if path.endswith("/777") else None
    async with (
        selling(service, lost_answer, ledger=ledger, transport=slow) as (tracker, pending),
        tracking(service, SharedLedger(ledger)) as other,
    ):
        await tracker.notify(hint(777))
        await gate.there.wait()
        service.lags = False
        there = await pending_of(other)
        while pending.transaction_id is None:
            await there.check()
            await service.clock.advance(1.0)
        gate.go.set()
        await service.clock.advance(5.0)
        assert (pending.state, pending.transaction_id) == (State.PENDING, 1000)
        assert await tracker.notify(hint(1000)) is Receipt.DUPLICATE


@pytest.mark.parametrize("named", ["order-18", "order-1", ""])
async def test_anothers_transaction_is_asked_for_once(service: Lagging, named: str) -> None:
    """The service's word that it is somebody else's ends it, however often it is named again."""
    async with selling(service, lost_request) as (tracker, pending):
        service.add_sale(2000, clientTransactionId=named)
        await tracker.notify(hint(2000))
        await service.clock.advance(5)
        for _ in range(10):
            assert await tracker.notify(hint(2000)) is Receipt.CONFLICT
            await service.clock.advance(1)
        assert service.by_id(2000) == 1
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)


@pytest.mark.parametrize("spelt", ["ORDER-2026-17", " order-2026-17 ", "order-2026-1"])
@pytest.mark.parametrize("script", [lost_answer, posted(1, refuses(22, 2061))])
async def test_a_transaction_whose_id_is_ours_in_another_spelling_is_nobody_elses(
    service: Lagging, spelt: str, script: Script
) -> None:
    """A service that keeps our id so finds nothing under ours, which proves no absence."""
    service.scripts, request = [script], sale("order-2026-17")
    async with tracking(service) as tracker:
        with suppress(payclient.CustomerBusyError):
            await tracker.sale(request)
        service.sales[1000] |= {"clientTransactionId": spelt, "state": "Aceptado"}
        await tracker.notify(hint(identifier="order-2026-17"))
        await service.clock.advance(2000)
        with suppress(payclient.NotSentError):
            assert (await tracker.sale(request)).state is State.UNKNOWN
    assert service.posted == {"order-2026-17": 1}


async def test_anothers_transaction_that_is_named_to_the_next_process_keeps_no_sale_unknown(
    service: Lagging,
) -> None:
    """That it is another's is on record already; the id is dropped once more."""
    ledger = MemoryLedger()
    service.add_sale(2000, clientTransactionId="order-18")
    async with selling(service, lost_request, ledger=ledger) as (tracker, _):
        await tracker.notify(hint(2000))
        await service.clock.advance(5)
    async with tracking(service, ledger) as tracker:
        assert await tracker.notify(hint(2000)) is Receipt.MATCHED
        outcome = await outcome_of(service, await pending_of(tracker))
    assert (outcome.state, outcome.evidence) == (State.REFUSED, Evidence.ABSENT)


async def test_anothers_transaction_is_no_event_of_a_refused_sale(service: Lagging) -> None:
    """Anybody may name it, and nothing of a decided sale hangs on it."""
    async with refused(service, refuses(22)) as tracker:
        service.add_sale(2000, clientTransactionId="order-18")
        await tracker.notify(hint(2000))
        await service.clock.advance(5)
        assert service.by_id(2000) == 1
    assert "Conflicted" not in await events_of(service.ledger)


async def test_each_conflict_is_one_event(service: Lagging, caplog: pytest.LogCaptureFixture) -> None:
    """Two transactions that name no client transaction id are queried in turn: each answer was news once more."""
    async with selling(service, lost_request) as (tracker, _):
        for number in (2000, 2001):
            service.add_sale(number, clientTransactionId=None)
            await service.clock.advance(3)
            await tracker.notify(hint(number))
        await service.clock.advance(3000)
        assert service.by_id(2000) > 2
    assert (await events_of(service.ledger)).count("Conflicted") == 2
    assert caplog.text.count("is not ours") == 2


# --- What absence needs


async def test_absence_is_not_proven_by_queries_by_a_candidate_alone(service: Lagging) -> None:
    """A forged one is not found, now and then; the query by our own id, which would find the sale, always fails."""
    failing, seen = answer(500, {}), list[float]()

    def instead(path: str) -> HttpResponse | None:
        now = service.clock.monotonic()
        if now > 600 and path == "/api/Sale/777":
            seen.append(now)
        is_answered = path == "/api/Sale/777" and (now <= 600 or len(seen) == 1 or now > seen[0] + 60)
        return None if is_answered else failing

    service.instead = instead
    async with selling(service, lost_answer) as (tracker, pending):
        await tracker.notify(hint(777))
        await service.clock.advance(10_000)
        assert len(seen) > 2
        assert pending.state is State.UNKNOWN


async def test_absence_is_not_proven_while_a_candidate_answers_nothing(service: Lagging) -> None:
    """The query by the named id fails for ever: "not found" by the other id proves nothing, and nothing is sent."""
    service.instead = lambda path: answer(400, {}) if path == "/api/Sale/1000" else None
    async with selling(service, FAILS_WITH_AN_ID) as (tracker, pending):
        outcome = await outcome_of(service, pending)
        assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
        await service.clock.advance(10_000)
        assert pending.outcome.paid is None
        await tracker.sale(sale())
    assert service.posted == {"order-17": 1}


@pytest.mark.parametrize("soon", [590, 650])
async def test_absence_is_proven_though_a_query_for_it_is_not_answered(service: Lagging, soon: int) -> None:
    """It is made once more, and the wait goes on until then."""
    async with selling(service, lost_request) as (_, pending):
        await service.clock.advance(soon)
        service.status_scripts = [reset] * 2
        assert (await outcome_of(service, pending, 200)).evidence is Evidence.ABSENT


@pytest.mark.parametrize(("heard", "count"), [(0.0, 1), (9.0, 3), (50.0, 2)])
async def test_absence_needs_every_candidate_not_found(service: Lagging, heard: float, count: int) -> None:
    """Forged ids delay the proof and do not prevent it: each is asked once more between the two proofs."""
    forged = range(777, 777 + count)
    async with selling(service, lost_request) as (tracker, pending):
        await service.clock.advance(heard)
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
    async with selling(service, lost_answer) as (tracker, pending):
        await service.clock.advance(630)
        assert pending.state is State.UNKNOWN
        await tracker.notify(hint(777))
        await service.clock.advance(40)
        assert pending.state is State.UNKNOWN
        await tracker.notify(hint(1000))
        service.decide("Aceptado")
        await service.clock.advance(2)
        assert pending.outcome.paid is True


@pytest.mark.parametrize("by", ["a slow write", "a cancelled caller", "a process that died"])
async def test_absence_is_not_proven_while_a_notification_is_not_heard_of(service: Lagging, by: str) -> None:
    """It is in the ledger: whoever brought it does not know yet or never will, or was another process."""
    gate, shared = Gate(), SharedLedger()
    ledger = shared if by == "a process that died" else HookedLedger(after={"Notified": gate})
    async with selling(service, lost_answer, ledger=ledger) as (tracker, pending):
        service.decide("Aceptado")
        await service.clock.advance(630)
        if ledger is shared:
            shared.watchers.clear()  # nobody hears anything any more
            async with tracking(service, SharedLedger(shared)) as other:
                await other.notify(hint(1000))
        else:
            notified = asyncio.ensure_future(tracker.notify(hint(1000)))
            await gate.there.wait()
            if by == "a cancelled caller":
                notified.cancel()
        await service.clock.advance(45)
        assert pending.outcome.paid is True
        gate.go.set()
    assert "ProvenAbsent" not in await events_of(ledger)


async def test_absence_is_not_proven_where_more_ids_came_than_are_kept(
    service: Lagging, caplog: pytest.LogCaptureFixture
) -> None:
    """One of those that were dropped may have been ours: an operator decides, whom a warning tells why."""
    async with selling(service, lost_request) as (tracker, pending):
        for number in range(17):
            await tracker.notify(hint(2000 + number))
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
    assert "named that cannot be queried" in caplog.text


async def test_absence_is_not_proven_where_the_named_id_cannot_be_asked(
    service: Lagging, caplog: pytest.LogCaptureFixture
) -> None:
    """A profile without a query by transaction id: the sale stays unknown, and a warning says why."""
    by_client = StatusProfile(
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}", state_field="state"
    )
    profile = attrs.evolve(PROFILE, status=by_client)
    async with selling(service, FAILS_WITH_AN_ID, profile=profile) as (_, pending):
        outcome = await outcome_of(service, pending)
    assert (outcome.state, outcome.paid) == (State.UNKNOWN, None)
    assert "named that cannot be queried" in caplog.text


@pytest.mark.parametrize(
    ("script", "named"), [(FAILS_WITH_AN_ID, ()), (lost_answer, (777, 1000))], ids=["answer", "notification"]
)
async def test_a_candidate_survives_a_restart(
    service: Lagging, script: Script, named: tuple[int, ...], ledger: Ledger
) -> None:
    """It stands in the ledger, also where the process ended before it asked, and binds the sale afterwards."""
    blind = attrs.evolve(PROFILE, status=None)  # nothing is asked yet
    async with selling(service, script, ledger=ledger, profile=blind) as (tracker, _):
        for number in named:
            await tracker.notify(hint(number))
    service.decide("Aceptado")
    async with tracking(service, ledger) as tracker:
        pending = await pending_of(tracker)
        assert pending.state is State.UNKNOWN
        outcome = await outcome_of(service, pending, ledger=ledger)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)
    assert service.posted == {"order-17": 1}


async def test_an_early_candidate_survives_a_crash_in_the_send(service: Lagging, ledger: Ledger) -> None:
    """Notified while it was being sent, and then the process ends: its id is asked for by the next one."""
    now = service.clock.time()
    record = Record(client_transaction_id="order-17", amount=1150, currency="USD", created_at=now)
    async with tracking(service, ledger) as tracker:
        await ledger.permit(record)  # as of a process that dies while it sends
        assert await tracker.notify(hint(1000)) is Receipt.EARLY
    service.add_sale()
    async with tracking(service, ledger) as later:
        pending = await pending_of(later)
        assert (await outcome_of(service, pending, ledger=ledger)).transaction_id == 1000


async def test_an_early_hint_brings_no_query_before_the_answer(service: Lagging) -> None:
    """However often it comes: what is being sent is nothing to the service yet."""
    receipts: list[payclient.Receipt] = []
    asked: list[str] = []

    async def notified() -> None:
        for _ in range(2):
            receipts.append(await tracker.notify(hint(1000)))
            await turns(5)
        asked.extend(service.queries)

    service.scripts = [posted(1, when(notified))]
    async with tracking(service) as tracker:
        await tracker.sale(sale())
    assert receipts == [Receipt.EARLY, Receipt.DUPLICATE]
    assert asked == []


async def test_what_was_named_early_and_is_found_open_is_queried_as_after_a_notification(
    service: Lagging,
) -> None:
    """Its customer is acting: four queries within seconds, however seldom the routine asks."""

    async def notified() -> None:
        assert await tracker.notify(hint(1000)) is Receipt.EARLY

    service.scripts = [posted(1, when(notified, lost_request))]
    async with tracking(service, schedule=payclient.Fixed(20.0)) as tracker:
        pending = await tracker.sale(sale())
        while pending.state is State.UNKNOWN:
            await service.clock.advance(0.25)
        queries = len(service.queries)
        await service.clock.advance(9)
    assert len(service.queries) - queries == 4


async def test_an_early_candidate_survives_a_write_that_seems_to_fail(service: Lagging) -> None:
    """The end of a send is written, and its commit fails: what was named meanwhile is asked for all the same."""

    async def notified() -> None:
        assert await tracker.notify(hint(1000)) is Receipt.EARLY

    service.scripts = [posted(1, when(notified, lost_request))]
    async with tracking(service, HookedLedger(after={"Lost": once(disk_full)})) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).transaction_id == 1000


@pytest.mark.parametrize("hooks", [{}, {"Refused": once(disk_full)}], ids=["written", "written late"])
async def test_an_early_candidate_of_a_refused_sale_is_asked_for(service: Lagging, hooks: Hooks) -> None:
    """Something in front repeats the POST: the first created it, as a notification tells, and the second is refused."""

    async def notified() -> None:
        service.decide("Aceptado")
        assert await tracker.notify(hint(1000)) is Receipt.EARLY

    service.scripts = [posted(1, when(notified, refuses(100)))]
    async with tracking(service, HookedLedger(before=hooks)) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_what_was_named_to_a_refused_sale_is_asked_for_until_it_is_answered(service: Lagging) -> None:
    """Our own id is not listed yet: the query that is made again goes by what was named, too."""
    async with refused(service, posted(1, refuses(100))) as tracker:
        service.decide("Aceptado")
        service.status_scripts = [reset]
        await tracker.notify(hint(1000))
        await service.clock.advance(10)
        assert (await pending_of(tracker)).outcome.paid is True


@pytest.mark.parametrize("script", [FakeService.take, posted(1, refuses(100))], ids=["cancelled", "refused"])
async def test_a_late_notification_whose_write_seems_to_fail_counts(service: Lagging, script: Script) -> None:
    """It is on record, so that the same once more is a duplicate."""
    service.scripts, service.lags = [script], False
    async with tracking(service, HookedLedger(after={"Notified": disk_full})) as tracker:
        with suppress(payclient.RefusedError):
            pending = await tracker.sale(sale())
            service.decide("Cancelado")
            assert (await outcome_of(service, pending)).paid is False
        service.decide("Aceptado")
        await error_of(payclient.LedgerUnavailableError, tracker.notify(hint(1000)))
        assert await tracker.notify(hint(1000)) is Receipt.DUPLICATE
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_a_refusal_that_is_archived_as_a_process_begins(service: Lagging) -> None:
    """The feed had it a moment ago, and its history is gone."""
    service.scripts, ledger = [refuses(100)], MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
    ledger.history = AsyncMock(return_value=[])  # type: ignore[method-assign]
    async with tracking(service, ledger) as tracker:
        assert (await pending_of(tracker)).state is State.REFUSED


@pytest.mark.parametrize("script", [FakeService.take, posted(1, refuses(100))], ids=["cancelled", "refused"])
async def test_a_late_notification_outlives_its_process(
    service: Lagging, ledger: Ledger, script: Script
) -> None:
    """The service answers no query when it comes; the next process asks, and a repeated one would be a duplicate."""
    service.scripts, service.lags = [script], False
    profile = attrs.evolve(PROFILE, confirm=payclient.PAYPHONE.confirm)  # forms are looked for, too
    async with tracking(service, ledger, profile) as tracker:
        with suppress(payclient.RefusedError):
            pending = await tracker.sale(sale())
            service.decide("Cancelado")
            assert (await pending.check()).paid is False  # the notification comes in the same moment
        service.status_scripts = [reset] * 100
        assert await tracker.notify(hint(1000)) is Receipt.LATE
        await service.clock.advance(60)
    service.status_scripts = []
    service.decide("Aceptado")
    async with tracking(service, ledger, profile) as tracker:
        for _ in range(10):
            await service.clock.advance(1)
            await ledger.get("what was queued before is written")
        assert (await pending_of(tracker)).outcome.paid is True
        queries = len(service.queries)
    async with tracking(service, ledger, profile) as tracker:
        await service.clock.advance(60)
    assert len(service.queries) == queries


@pytest.mark.parametrize("kind", [MemoryLedger, SharedLedger])
async def test_an_early_candidate_of_a_refused_sale_outlives_its_process(
    service: Lagging, kind: type[MemoryLedger]
) -> None:
    """It was named before the refusal, and no query about it was answered: the next process asks."""

    async def notified() -> None:
        assert await tracker.notify(hint(1000)) is Receipt.EARLY
        await service.clock.advance(1)

    service.scripts, service.status_scripts = [posted(1, when(notified, refuses(100)))], [reset] * 100
    async with tracking(service, kind()) as tracker:
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        await service.clock.advance(60)
    service.status_scripts = []
    service.decide("Aceptado")
    async with tracking(service, service.ledger) as tracker:
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True


async def test_a_hint_is_found_by_the_next_process_though_the_feed_has_older_news_behind(
    service: Lagging,
) -> None:
    """A write that the ledger took late, or of a process whose clock is behind."""
    ledger, day = MemoryLedger(), service.clock.time() - 86400
    times = {"long ago": day - 5000, "order-17": day + 60, "late": day - 60, "later": day - 60}
    records = [Record(client_transaction_id=name, amount=1150, currency="USD") for name in times]
    for record in records:
        await ledger.permit(record)
    for record, at in zip(records, times.values(), strict=True):
        record = await ledger.apply(record, Notified(at=at, transaction_id=1000))
        await ledger.apply(record, Refused(at=at, error_type="RefusedError", error_code=100, messages=()))
    service.add_sale()
    async with tracking(service, ledger) as tracker:
        await service.clock.advance(5)
        assert (await pending_of(tracker)).outcome.paid is True


# --- Proofs of absence


async def test_two_proofs_at_once_are_one(service: Lagging) -> None:
    """However often it is checked, they are a tenth of `absent_after` apart."""
    async with selling(service, lost_request) as (_, pending):
        await service.clock.advance(600)
        for _ in range(50):
            await pending.check()
            await service.clock.advance(1.1)
        assert pending.state is State.UNKNOWN
        await service.clock.advance(10)
        assert pending.outcome.paid is False


async def test_the_second_proof_counts_at_the_moment_at_which_it_is_due(service: Lagging) -> None:
    """A sum and a difference of the same times are not the same floats: no other query would be made for the wait."""
    service.clock.stand_at(222.0)
    profile = attrs.evolve(PROFILE, sale_window=299.0, absent_after=598.0)
    async with selling(service, lost_request, profile=profile) as (_, pending):
        assert (await outcome_of(service, pending)).paid is False


async def test_absence_is_proven_though_anothers_candidate_could_not_be_dropped_between(
    service: Lagging,
) -> None:
    """The ledger fails for both proofs, and the two are made anew once it takes what the candidate is."""
    fails = True

    def write() -> None:
        if fails:
            disk_full()

    another = {"transactionId": 777, "clientTransactionId": "another", "state": "Pendiente"}
    service.instead = lambda path: answer(200, another) if path == "/api/Sale/777" else None
    async with selling(service, lost_request, ledger=HookedLedger(before={"Conflicted": write})) as (
        tracker,
        pending,
    ):
        await tracker.notify(hint(777))
        await service.clock.advance(700)
        assert pending.state is State.UNKNOWN
        fails = False
        await service.clock.advance(100_000)
        assert (pending.state, pending.outcome.evidence) == (State.REFUSED, Evidence.ABSENT)


async def test_absence_does_not_count_across_a_sighting(service: Lagging) -> None:
    """Not found, then seen in whatever state, then not found: the first "not found" counts no more."""
    async with selling(service, lost_answer) as (_, pending):
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


@pytest.mark.parametrize(
    "script",
    [answers(200, {"paymentId": "p", "payWithCard": "https://pay.example/c"}), lost_request],
    ids=["prepared", "lost"],
)
async def test_an_unpaid_form_is_never_proven_absent(service: Lagging, script: Script) -> None:
    """Nobody has paid it, so it is not found: that says nothing about whether it exists."""
    service.scripts = [script]
    async with tracking(service) as tracker:
        preparing = tracker.prepare(form("order-17"))
        await (error_of(payclient.OutcomeUnknownError, preparing) if script is lost_request else preparing)
    async with tracking(service, service.ledger) as tracker:
        await service.clock.advance(4000)
        assert (await pending_of(tracker)).outcome.paid is None
        assert 5 < len(service.queries) < 100  # not once a second from the day on which it could be absent
        await error_of(payclient.DifferentRequestError, tracker.prepare(form("order-17")))


async def test_a_forged_candidate_does_not_mute_a_users_own_source(service: Lagging) -> None:
    """A source that goes by our own id names the true transaction, which is ours whatever candidate had its turn."""
    source = AsyncMock(return_value=payclient.StatusReport(
        state="Aceptado", transaction_id=1000, client_transaction_id="order-17", amount=1150, currency="USD",
    ))  # fmt: skip
    async with selling(service, lost_answer, status=source) as (tracker, pending):
        await tracker.notify(hint(777))
        outcome = await outcome_of(service, pending)
    assert (outcome.paid, outcome.transaction_id) == (True, 1000)


async def test_what_a_users_own_source_cannot_read_decides_nothing(service: Lagging) -> None:
    """It says so of the amount, which need not be ours."""
    report = payclient.StatusReport(state="Aceptado", transaction_id=1000, unreadable=("amount",))
    async with selling(service, status=AsyncMock(return_value=report)) as (_, pending):
        assert (await outcome_of(service, pending)).paid is None


async def test_a_forged_candidate_of_a_refused_sale_is_not_believed_of_a_users_own_source(
    service: Lagging,
) -> None:
    """It goes by the id that was named, and does not say whose it is: that pays nothing."""

    async def source(reference: payclient.TransactionRef) -> payclient.StatusReport:
        return payclient.StatusReport(state="Aceptado", transaction_id=reference.candidate_id)

    async with refused(service, refuses(22), status=source) as tracker:
        await tracker.notify(hint(777))
        await error_of(payclient.NotSentError, tracker.sale(sale()))
        assert (await pending_of(tracker)).outcome.paid is False


async def test_an_old_handle_takes_no_name_from_the_next_attempt(service: FakeService) -> None:
    """It was made as the first attempt was being sent, and checked as nobody answered: the name is the second one's."""
    first, second = Held(refuses(22)), Gate()

    service.scripts = [first, posted(1, when(second, lost_request))]
    async with tracking(service) as tracker:
        sending = asyncio.create_task(tracker.sale(sale()))
        await first.there.wait()
        handle = await pending_of(tracker)
        first.go.set()
        await error_of(payclient.RefusedError, sending)
        service.status_scripts = [reset] * 20
        await handle.check()
        again = asyncio.create_task(tracker.sale(sale()))
        await second.there.wait()
        receipt = await tracker.notify(hint())
        second.go.set()
        await again
        assert receipt is Receipt.EARLY
        record = await record_in(service.ledger)
        assert (record.attempt, record.state, record.candidate_ids) == (2, State.UNKNOWN, (1000,))


async def test_a_look_back_at_a_refused_attempt_ends_no_wait_for_the_next_one(service: Lagging) -> None:
    """A process that begins reads for a while what was refused; its sale may be sent again meanwhile."""
    service.lags = False
    ledger, gate = MemoryLedger(), Gate()
    async with tracking(service, ledger) as tracker:
        service.scripts = [refuses(22)]
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        await tracker.notify(hint())
        await service.clock.advance(5)
    history = ledger.history

    async def slow_history(client_transaction_id: str) -> list[Change]:
        found = await history(client_transaction_id)
        if not gate.there.is_set():
            await gate()
        return found

    ledger.history = slow_history  # type: ignore[method-assign]  # the first read takes long
    async with tracking(service, ledger) as tracker:
        await gate.there.wait()
        pending = await tracker.sale(sale())
        assert pending.attempt == 2
        waiting = asyncio.ensure_future(pending.wait())
        gate.go.set()
        await service.clock.advance(5)
        assert not waiting.done()
        service.decide("Aceptado")
        await service.clock.advance(60)
        assert (await waiting).paid is True
