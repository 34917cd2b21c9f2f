"""The feed: each outcome as its own attempt's, in order, until the tracker closes, whatever the ledger goes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import attrs
import pytest

import payclient
from fake_ledgers import SharedLedger
from fake_service import FakeService, hint, pending_of, refuses, sale, tracking
from payclient.errors import RefusedError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger
from payclient.ledger import postgres as postgres_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.tracking.outcomes import Outcome
from postgres_server import PostgresServer


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    url = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path / 'charges.db'}"}.get(request.param, "")
    if not url:
        postgres = request.getfixturevalue("postgres")
        url = postgres.url(await postgres.emptied())
    async with aclosing(await payclient.open_ledger(url)) as opened:
        yield opened


async def taken(feed: AsyncIterator[payclient.Outcome], count: int) -> list[payclient.Outcome]:
    async with asyncio.timeout(60):
        return [await anext(feed) for _ in range(count)]


async def test_a_refused_attempt_is_shown_without_the_next_ones_id(
    service: FakeService, ledger: Ledger
) -> None:
    """Each outcome is its own attempt's: its error, its ids, its times."""
    service.scripts = [refuses(22)]
    async with tracking(service, ledger) as tracker:
        with pytest.raises(payclient.NotCreatedError):
            await tracker.sale(sale())
        await service.clock.advance(10)
        pending = await tracker.sale(sale())
        await tracker.notify(hint())
        service.decide("Aceptado")
        await service.clock.advance(2)
        assert (await pending.check()).paid is True
        first, second = await taken(tracker.outcomes(), 2)
    assert (first.state, first.transaction_id, first.notified_at) == (State.REFUSED, None, None)
    assert isinstance(first.error, payclient.RefusedError)
    assert first.error.error_code == 22
    assert (second.state, second.transaction_id, second.error) == (State.ACCEPTED, 1000, None)
    assert second.created_at is not None
    assert first.created_at is not None
    assert second.created_at >= first.created_at + 10
    assert second.notified_at == second.created_at


async def test_what_was_corrected_is_told_as_it_was(service: FakeService) -> None:
    """A refusal that a notification corrects: first refused with its error and no id, then accepted."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.NotCreatedError):
            await tracker.sale(sale())
        service.add_sale()
        await service.clock.advance(5)
        assert await tracker.notify(hint()) is payclient.Receipt.LATE
        await service.clock.advance(1)
        first, second = await taken(tracker.outcomes(), 2)
    assert (first.state, first.transaction_id, first.notified_at) == (State.REFUSED, None, None)
    assert isinstance(first.error, payclient.RefusedError)
    assert (second.state, second.transaction_id, second.error) == (State.ACCEPTED, 1000, None)


async def test_what_another_process_decided_comes_out(service: FakeService) -> None:
    """Whoever waits for the feed there is woken."""
    ledger = SharedLedger()
    async with tracking(service, ledger) as first, tracking(service, SharedLedger(ledger)) as second:
        coming = asyncio.ensure_future(anext(second.outcomes()))
        pending = await first.sale(sale())
        service.decide("Cancelado")
        await pending.check()
        async with asyncio.timeout(60):
            assert (await coming).state is State.CANCELLED


async def test_a_refused_sale_that_was_notified_is_worth_one_query(service: FakeService) -> None:
    """By the id that was named, once for each id; what is not accepted changes nothing."""
    service.scripts = [refuses(22)]
    async with tracking(service) as tracker:
        with pytest.raises(payclient.NotCreatedError):
            await tracker.sale(sale())
        for number in (2000, 2001):
            assert await tracker.notify(hint(number)) is payclient.Receipt.LATE
            assert await tracker.notify(hint(number)) is payclient.Receipt.DUPLICATE
            await service.clock.advance(5)
        assert service.queries == ["/api/Sale/2000", "/api/Sale/2001"]
        pending = await pending_of(tracker)
        assert (pending.state, pending.transaction_id) == (State.REFUSED, None)


@pytest.mark.parametrize("closes_ledger", [True, False])
async def test_the_feed_ends_when_the_tracker_closes(
    service: FakeService, ledger: Ledger, closes_ledger: bool
) -> None:
    """`async for` just ends, waiting or not, whether or not the ledger is closed too."""
    told, some = [], asyncio.Event()

    async def read(tracker: payclient.Tracker) -> None:
        async for outcome in tracker.outcomes():
            told.append(outcome.state)
            some.set()

    async with tracking(service, ledger) as tracker:
        pending = await tracker.sale(sale())
        service.decide("Aceptado")
        await pending.check()
        reading = asyncio.create_task(read(tracker))
        async with asyncio.timeout(60):
            await some.wait()
    if closes_ledger:
        await ledger.aclose()
    async with asyncio.timeout(60):
        await reading
    assert told == [State.ACCEPTED]
    assert closes_ledger or [each.state async for each in tracker.outcomes()] == [State.ACCEPTED]
    if closes_ledger:
        assert [each.state async for each in tracker.outcomes()] == []


class Failing(MemoryLedger):
    """A ledger that cannot be read for a while."""

    fails = False

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        if self.fails:
            raise payclient.LedgerUnavailableError("gone")
        return await super().changes(since, limit)

    async def attempts(self, client_transaction_ids: Sequence[str]) -> dict[str, list[Record]]:
        if self.fails:
            raise payclient.LedgerUnavailableError("gone")
        return await super().attempts(client_transaction_ids)


async def test_a_ledger_that_cannot_be_read_delays_the_feed(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on from its cursor, without loss or repeat, and says it once; a close ends it in the midst."""
    ledger = Failing()
    told: list[str] = []

    async def read(tracker: payclient.Tracker) -> None:
        async for outcome in tracker.outcomes():
            told.append(outcome.client_transaction_id)

    async with tracking(service, ledger) as tracker:
        reading = asyncio.create_task(read(tracker))
        for number in range(4):
            ledger.fails = number in (1, 2)
            pending = await tracker.sale(sale(f"order-{number}", f"098411122{number}"))
            service.decide("Aceptado", 1000 + number)
            assert (await pending.check()).paid is True
            await service.clock.advance(3)
        assert told == [f"order-{number}" for number in range(4)]
        assert caplog.text.count("outcomes cannot be read now") == 1
        pending = await tracker.sale(sale("order-9", "0984111229"))
        ledger.fails = True
        service.decide("Aceptado", 1004)
        assert (await pending.check()).paid is True
        await service.clock.advance(3)
    async with asyncio.timeout(60):
        await reading
    assert caplog.text.count("outcomes cannot be read now") == 2


async def test_the_feed_survives_a_restart_of_postgres(
    service: FakeService,
    postgres: PostgresServer,
    new_database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(postgres_ledger, "PATIENCE", 0.2)
    ledger = await payclient.open_ledger(postgres.url(new_database))
    async with tracking(service, ledger) as tracker:
        since = 0
        for number in range(2):
            await asyncio.to_thread(postgres.stop)
            feed = tracker.outcomes(since)
            coming = asyncio.ensure_future(anext(feed))
            async with asyncio.timeout(60):
                while caplog.text.count("outcomes cannot be read now") == number:  # noqa: ASYNC110 - no event of ours tells
                    await asyncio.sleep(0.01)
            assert not coming.done()
            await asyncio.to_thread(postgres.start)
            pending = await tracker.sale(sale(f"order-{number}", f"098411122{number}"))
            service.decide("Aceptado", 1000 + number)
            assert (await pending.check()).paid is True
            async with asyncio.timeout(60):
                while not coming.done():
                    await service.clock.advance(1)
                    await asyncio.sleep(0.02)
            outcome = await coming
            assert (outcome.client_transaction_id, outcome.paid) == (f"order-{number}", True)
            assert outcome.cursor is not None
            since = outcome.cursor
    await ledger.aclose()


async def test_a_ledger_that_was_closed_ends_the_feed_by_an_error(service: FakeService) -> None:
    """Nothing will ever be read from it again: no silence for ever."""
    ledger = MemoryLedger()
    async with tracking(service, ledger) as tracker:
        await ledger.aclose()
        with pytest.raises(payclient.UsageError, match="closed"):
            await asyncio.wait_for(anext(tracker.outcomes()), 5)


RECORD = Record(
    client_transaction_id="order-17", state=State.ACCEPTED, evidence=Evidence.QUERY, transaction_id=7,
    created_at=1.0, notified_at=2.0, decided_at=3.0,
)  # fmt: skip


def change(after: State, **fields: Any) -> Change:
    return Change(**{
        "cursor": 5, "client_transaction_id": "order-17", "attempt": 1, "at": 9.0, "event": "X",
        "before": State.PENDING,
        "after": after, "evidence": Evidence.QUERY, **fields,
    })  # fmt: skip


@pytest.mark.parametrize("state", State)
def test_paid_is_the_states(state: State) -> None:
    """None is "nobody knows", and never "unpaid"."""
    outcome = Outcome.of(attrs.evolve(RECORD, state=state))
    assert outcome.paid is state.paid
    assert (outcome.error is None) == (state is not State.REFUSED)


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
    refused = attrs.evolve(
        RECORD, state=State.REFUSED, evidence=Evidence.ANSWER, error_code=22, messages=("one", "two")
    )
    error = Outcome.of(refused).error
    assert isinstance(error, RefusedError)
    assert (error.error_code, error.message, error.client_transaction_id) == (22, "one; two", "order-17")
    assert str(error) == "[22] one; two"


@pytest.mark.parametrize("evidence", [Evidence.NOT_SENT, Evidence.ABSENT, Evidence.OPERATOR])
def test_a_refusal_without_words_says_its_evidence(evidence: Evidence) -> None:
    error = Outcome.of(attrs.evolve(RECORD, state=State.REFUSED, evidence=evidence)).error
    assert str(error) == f"nothing was created ({evidence})"


def test_an_outcome_of_the_past_has_its_cursor() -> None:
    """The feed tells each change as it was, with the place to go on from."""
    outcome = Outcome.at(change(State.EXPIRED, evidence=Evidence.CLOCK), RECORD)
    assert (outcome.state, outcome.evidence, outcome.cursor) == (State.EXPIRED, Evidence.CLOCK, 5)
    assert (outcome.paid, outcome.decided_at, outcome.error, outcome.transaction_id) == (None, None, None, 7)
    assert Outcome.at(change(State.CANCELLED), RECORD).decided_at == 9.0


def test_an_outcome_of_the_past_has_the_error_of_its_own_state() -> None:
    refused = attrs.evolve(RECORD, state=State.REFUSED, error_code=22, messages=("one",))
    error = Outcome.at(change(State.REFUSED), refused).error
    assert isinstance(error, RefusedError)
    assert error.error_code == 22
    assert Outcome.at(change(State.EXPIRED), refused).error is None


def test_an_outcome_of_the_past_has_no_reason_that_came_later() -> None:
    """Declined after it had expired: that it expired had no reason yet."""
    declined = attrs.evolve(RECORD, state=State.CANCELLED, reason="no funds")
    assert Outcome.at(change(State.EXPIRED), declined).reason is None
    assert Outcome.at(change(State.CANCELLED), declined).reason == "no funds"
