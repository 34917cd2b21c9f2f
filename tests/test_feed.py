"""The feed: each outcome as its own attempt's, in order, until the tracker closes, whatever the ledger goes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import attrs
import pytest

import payclient
from fake_service import FakeService, error_of, hint, pending_of, refuses, sale, tracking, two_processes
from payclient.errors import RefusedError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.tracking.outcomes import Outcome
from test_ledger import opened, url_of

T = TypeVar("T")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    async with opened(await url_of(request.param, request, tmp_path)) as ledger:
        yield ledger


async def in_time(work: Awaitable[T]) -> T:
    async with asyncio.timeout(60):
        return await work


async def paid(service: FakeService, tracker: payclient.Tracker, number: int = 0) -> str:
    """A sale that a query found paid; its client transaction id."""
    pending = await tracker.sale(sale(f"order-{number}", f"098411122{number}"))
    service.decide("Aceptado", 1000 + len(service.sales) - 1)
    assert (await pending.check()).paid is True
    return pending.client_transaction_id


async def test_a_refused_attempt_is_shown_without_the_nexts_id(service: FakeService, ledger: Ledger) -> None:
    """Each outcome is its own attempt's: its error, its ids, its times."""
    service.scripts = [refuses(22)]
    async with tracking(service, ledger) as tracker:
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        await service.clock.advance(10)
        pending = await tracker.sale(sale())
        await tracker.notify(hint())
        service.decide("Aceptado")
        await service.clock.advance(2)
        assert (await pending.check()).paid is True
        feed = tracker.outcomes()
        first, second = await in_time(anext(feed)), await in_time(anext(feed))
    assert (first.state, first.transaction_id, first.notified_at) == (State.REFUSED, None, None)
    assert isinstance(first.error, payclient.RefusedError)
    assert first.error.error_code == 22
    assert (second.state, second.transaction_id, second.error) == (State.ACCEPTED, 1000, None)
    assert second.created_at is not None
    assert first.created_at is not None
    assert second.created_at >= first.created_at + 10
    assert second.notified_at == second.created_at


async def test_what_changes_as_the_feed_is_read_comes_out(service: FakeService) -> None:
    """The read that found nothing has ended, and nothing waits for the next change yet."""
    happening: list[Callable[[], Awaitable[object]]] = []

    class Slow(MemoryLedger):
        async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
            found = await super().changes(since, limit)
            if happening:
                await happening.pop()()
            return found

    async with tracking(service, Slow()) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        happening.append(pending.check)
        assert (await asyncio.wait_for(anext(tracker.outcomes()), 2)).paid is True


async def test_a_feed_that_has_read_all_reads_no_more_until_something_changes(service: FakeService) -> None:
    """However much has changed before."""

    class Counting(MemoryLedger):
        reads = 0

        async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
            self.reads += 1
            assert self.reads < 10
            return await super().changes(since, limit)

    async with tracking(service, Counting()) as tracker:
        feed = tracker.outcomes()
        for number in range(2):
            following = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0)
            await paid(service, tracker, number)
            assert (await in_time(following)).paid is True


async def test_what_another_process_decided_comes_out(service: FakeService) -> None:
    """Whoever waits for the feed there is woken."""
    async with two_processes(service) as (first, second):
        coming = asyncio.ensure_future(anext(second.outcomes()))
        pending = await first.sale(sale())
        service.decide("Cancelado")
        await pending.check()
        assert (await in_time(coming)).state is State.CANCELLED


async def test_a_refusal_comes_out_at_once(service: FakeService) -> None:
    """It was never followed; who waits for the feed is woken all the same."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        coming = asyncio.ensure_future(anext(tracker.outcomes()))
        await service.clock.advance(1)
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        assert (await in_time(coming)).state is State.REFUSED


async def test_a_refused_sale_that_was_notified_is_worth_one_query(service: FakeService) -> None:
    """By the id that was named, once for each id; what is not accepted changes nothing."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        await error_of(payclient.NotCreatedError, tracker.sale(sale()))
        for number in (2000, 2001):
            assert await tracker.notify(hint(number)) is payclient.Receipt.LATE
            assert await tracker.notify(hint(number)) is payclient.Receipt.DUPLICATE
            await service.clock.advance(5)
        assert service.queries == ["/api/Sale/2000", "/api/Sale/2001"]
        pending = await pending_of(tracker)
        assert (pending.state, pending.transaction_id) == (State.REFUSED, None)


class Reader:
    """Reads the feed of a tracker to its end."""

    def __init__(self, tracker: payclient.Tracker) -> None:
        self.told: list[str] = []
        self.some = asyncio.Event()
        self.task = asyncio.create_task(self._read(tracker))

    async def _read(self, tracker: payclient.Tracker) -> None:
        async for outcome in tracker.outcomes():
            assert outcome.state is State.ACCEPTED
            self.told.append(outcome.client_transaction_id)
            self.some.set()


@pytest.mark.parametrize("closes_ledger", [True, False])
async def test_the_feed_ends_when_the_tracker_closes(
    service: FakeService, ledger: Ledger, closes_ledger: bool
) -> None:
    """`async for` just ends, waiting or not, whether or not the ledger is closed too."""
    async with tracking(service, ledger) as tracker:
        name = await paid(service, tracker)
        reader = Reader(tracker)
        await in_time(reader.some.wait())
    if closes_ledger:
        await ledger.aclose()
    await in_time(reader.task)
    assert reader.told == [name]
    again = [each.client_transaction_id async for each in tracker.outcomes()]
    assert again == ([] if closes_ledger else [name])


class Failing(MemoryLedger):
    """A ledger that cannot be read for a while."""

    fails = False

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        if self.fails:
            raise payclient.LedgerUnavailableError("gone")
        return await super().changes(since, limit)


UNREADABLE = "the ledger failed: LedgerUnavailableError"


async def test_a_ledger_that_cannot_be_read_delays_the_feed(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on from its cursor, without loss or repeat, and says it once a minute; a close ends it in the midst."""
    async with tracking(service, ledger := Failing()) as tracker:
        reader = Reader(tracker)
        for number in range(4):
            ledger.fails = number in (1, 2)
            await paid(service, tracker, number)
            await service.clock.advance(3)
        assert reader.told == [f"order-{number}" for number in range(4)]
        assert caplog.text.count(UNREADABLE) == 1
        ledger.fails = True
        await paid(service, tracker, 9)
        await service.clock.advance(3)
    await in_time(reader.task)
    assert caplog.text.count(UNREADABLE) == 1


async def test_a_ledger_that_was_closed_ends_the_feed_by_an_error(service: FakeService) -> None:
    """Nothing will ever be read from it again: no silence for ever."""
    async with tracking(service) as tracker:
        await service.ledger.aclose()
        await error_of(payclient.UsageError, in_time(anext(tracker.outcomes())), match="closed")


async def test_a_cursor_that_is_no_number_is_an_error(service: FakeService) -> None:
    """SQLite compares any number as less than a text: nothing would ever come after the cursor "3"."""
    async with tracking(service) as tracker:
        with pytest.raises(TypeError, match="since must be a int; str was given"):
            tracker.outcomes("3")  # type: ignore[arg-type]  # as read from a file


async def test_a_cursor_that_the_ledger_never_gave_is_warned_of(
    service: FakeService, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """It was moved or restored: its outcomes are passed over until there are as many. The last one's is no such.

    One that no database could have is read and warned of, too.
    """
    async with tracking(service, ledger) as tracker:
        reader = Reader(tracker)  # of nothing yet, from the beginning
        await paid(service, tracker)
        last = (await in_time(anext(tracker.outcomes(-(2**70))))).cursor
        assert last is not None
        feeds = [tracker.outcomes(each) for each in (last, last + 1, 2**70)]
    assert [each for feed in feeds async for each in feed] == []
    await in_time(reader.task)
    assert caplog.text.count("nothing is at cursor") == 2
    assert f"nothing is at cursor {last + 1} or after it: was it archived" in caplog.text


# --- What an outcome says of its record


RECORD = Record(
    client_transaction_id="order-17", state=State.ACCEPTED, evidence=Evidence.QUERY, transaction_id=7,
    created_at=1.0, notified_at=2.0, decided_at=3.0,
)  # fmt: skip
#: The record of a declined sale, and of a refused one.
DECLINED = attrs.evolve(RECORD, state=State.CANCELLED, reason="no funds")
REFUSED = attrs.evolve(
    RECORD, state=State.REFUSED, evidence=Evidence.ANSWER, error_code=22, messages=("one", "two")
)


def at(after: State, record: Record = RECORD, evidence: Evidence = Evidence.QUERY) -> Outcome:
    """What the feed tells of a change of the past."""
    change = Change(
        cursor=5, client_transaction_id="order-17", attempt=1, at=9.0, event="X", before=State.PENDING,
        after=after, evidence=evidence,
    )  # fmt: skip
    return Outcome.at(change, record)


def test_an_outcome_says_what_its_record_says() -> None:
    """With the report, if this process heard one."""
    report = StatusReport(state="Aceptado", transaction_id=7)
    assert Outcome.of(RECORD, report=report) == Outcome(
        client_transaction_id="order-17", purchase="order-17", state=State.ACCEPTED,
        evidence=Evidence.QUERY, transaction_id=7, created_at=1.0, notified_at=2.0, decided_at=3.0,
        report=report,
    )  # fmt: skip
    assert Outcome.of(RECORD).report is None


def test_a_refused_outcome_has_its_error() -> None:
    """Also one of the past, where it was refused then."""
    for outcome in (Outcome.of(REFUSED), at(State.REFUSED, REFUSED)):
        error = outcome.error
        assert isinstance(error, RefusedError)
        assert (error.error_code, error.message, error.client_transaction_id) == (22, "one; two", "order-17")
        assert str(error) == "[22] one; two"
    assert at(State.EXPIRED, REFUSED).error is None


@pytest.mark.parametrize("evidence", [Evidence.NOT_SENT, Evidence.ABSENT, Evidence.OPERATOR])
def test_a_refusal_without_words_says_its_evidence(evidence: Evidence) -> None:
    error = Outcome.of(attrs.evolve(RECORD, state=State.REFUSED, evidence=evidence)).error
    assert str(error) == f"nothing was created ({evidence})"


def test_an_outcome_of_the_past_is_as_it_was() -> None:
    """The feed tells each change with the place to go on from, and with no reason that came later."""
    outcome = at(State.EXPIRED, evidence=Evidence.CLOCK)
    assert (outcome.state, outcome.evidence, outcome.cursor) == (State.EXPIRED, Evidence.CLOCK, 5)
    assert (outcome.paid, outcome.decided_at, outcome.error, outcome.transaction_id) == (None, None, None, 7)
    assert at(State.CANCELLED).decided_at == 9.0
    assert at(State.EXPIRED, DECLINED).reason is None
    assert at(State.CANCELLED, DECLINED).reason == "no funds"
