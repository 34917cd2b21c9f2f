"""What the ledger knows of forms that came back and may still have to be confirmed: read once, on entry."""

from __future__ import annotations

import json

from payclient.events import Abandoned, Notified, Returned
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State

__all__: list[str] = []

_HEARD = (Returned.__name__, Notified.__name__)


async def heard_ids(ledger: Ledger, record: Record) -> list[int | None]:
    """The transaction ids that this attempt heard of and no decision answered, the newest first.

    None: the browser came back cancelled.
    """
    heard: dict[int | None, None] = {}
    for change in reversed(await ledger.history(record.client_transaction_id)):
        if change.attempt != record.attempt or (change.after.decided and change.before is not change.after):
            break
        if change.event in _HEARD:
            heard[json.loads(change.detail or "{}").get("transaction_id")] = None
    return list(heard)


async def given_up(ledger: Ledger, since: float) -> list[Record]:
    """The forms that came back cancelled since a UTC time and are so still: a customer may pay all the same."""
    cursor, found = await _cursor_at(ledger, since), set()
    while changes := await ledger.changes(cursor):
        cursor = changes[-1].cursor
        found |= {
            change.client_transaction_id
            for change in changes
            if change.event == Abandoned.__name__ and change.at >= since
        }
    records = await ledger.get_many(list(found))
    return [record for record in records.values() if record.state is State.CANCELLED]


async def _cursor_at(ledger: Ledger, since: float) -> int:
    """A cursor of the feed just before that time, by halving: the feed may be years long."""

    async def is_older(cursor: int) -> bool:
        changes = await ledger.changes(cursor, 1)
        return bool(changes) and changes[0].at < since

    low, high = 0, 1
    while await is_older(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if await is_older(middle):
            low = middle
        else:
            high = middle
    return low
