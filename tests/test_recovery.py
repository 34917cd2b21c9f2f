"""What the ledger knows of forms that came back: read for the next entry, however long its history."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from payclient.events import (
    Abandoned,
    Expired,
    FoundAccepted,
    FoundCancelled,
    Notified,
    Prepared,
    Refused,
    Returned,
)
from payclient.ledger import Ledger, open_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.tracking.recovery import abandoned_forms, unconfirmed_ids


async def prepared(ledger: Ledger, identifier: str, at: float = 0.0, attempt: int = 1) -> Record:
    record = Record(client_transaction_id=identifier, kind="form", created_at=at, attempt=attempt)
    assert await ledger.permit(record)
    return await ledger.apply(record, Prepared(at=at, expires_at=at + 1200))


async def test_ids_are_the_newest_first_and_each_once() -> None:
    """Returns and notifications alike; None is a browser that came back cancelled."""
    ledger = MemoryLedger()
    record = await prepared(ledger, "form-1")
    for event in (
        Returned(at=1.0, transaction_id=7),
        Notified(at=2.0, transaction_id=8),
        Returned(at=3.0),
        Returned(at=4.0, transaction_id=7),
    ):
        record = await ledger.apply(record, event)
    assert await unconfirmed_ids(ledger, record) == [7, None, 8]


async def test_what_a_decision_answered_is_asked_no_more() -> None:
    """Nor what an earlier attempt heard."""
    ledger = MemoryLedger()
    first = Record(client_transaction_id="form-1", kind="form")
    assert await ledger.permit(first)
    await ledger.apply(first, Returned(at=1.0, transaction_id=6))
    await ledger.apply(first, Refused(at=1.0, error_type="RefusedError"))
    record = await prepared(ledger, "form-1", attempt=2)
    assert await unconfirmed_ids(ledger, record) == []
    for event in (
        Returned(at=1.0, transaction_id=7),
        Expired(at=2.0),
        Returned(at=3.0),
        Abandoned(at=4.0),
        Returned(at=5.0, transaction_id=8),
        FoundCancelled(at=6.0),
    ):
        record = await ledger.apply(record, event)
    assert await unconfirmed_ids(ledger, record) == [8]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("aced")), max_size=40), st.integers(-1, 60))
async def test_given_up_since(steps: list[tuple[int, str]], since: int) -> None:
    """As by reading all of the feed: cancelled by its customer, at that time or later, and cancelled still."""
    ledger, now, expected = MemoryLedger(), 0, set()
    for number, (gap, step) in enumerate(steps):
        now += gap
        identifier = f"form-{number}"
        record = await prepared(ledger, identifier, float(now))
        if step == "e":
            await ledger.apply(record, Expired(at=float(now)))
        elif step == "d":
            await ledger.apply(record, FoundCancelled(at=float(now)))
        else:
            record = await ledger.apply(record, Abandoned(at=float(now)))
            if step == "c":
                await ledger.apply(record, FoundAccepted(at=float(now), transaction_id=number + 1))
            elif now >= since:
                expected.add(identifier)
    found = await abandoned_forms(ledger, float(since))
    assert {record.client_transaction_id for record in found} == expected


async def test_a_long_feed_is_halved(tmp_path: Path) -> None:
    """A real file: of three hundred decisions few are read to find where the last minutes begin."""
    ledger = await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
    changes, calls = ledger.changes, []

    async def counting(since: int = 0, limit: int = 500) -> list[object]:
        found = await changes(since, limit)
        calls.append(len(found))
        return list(found)

    try:
        for number in range(300):
            record = await prepared(ledger, f"form-{number}", float(number))
            await ledger.apply(record, Abandoned(at=float(number)))
        ledger.changes = counting  # type: ignore[method-assign,assignment]  # counts what is read
        found = await abandoned_forms(ledger, 297.0)
        assert {record.client_transaction_id for record in found} == {"form-297", "form-298", "form-299"}
        assert sum(calls) < 40
    finally:
        await ledger.aclose()
