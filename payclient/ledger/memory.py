"""A ledger that lasts as long as its process: for tests, demos and programs that may forget."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count
from operator import attrgetter

from payclient.errors import UsageError
from payclient.events import Created, Event, Evidence, Overpaid
from payclient.ledger import Change, FoundRecords, Ledger, TransactionTakenError
from payclient.ledger.records import FEED, advance_attempt, check_fresh, describe, may_permit, overpaid
from payclient.lifecycle import PAID, Record, State

__all__ = ["MemoryLedger"]

#: Client transaction id and number of an attempt.
Key = tuple[str, int]


class MemoryLedger(Ledger):
    """The ledger in a dict. Nothing here awaits, so nothing can come between a check and its write."""

    location = "memory:"
    created = True

    def __init__(self) -> None:
        self.digest_key: bytes = secrets.token_bytes(32)
        self._service: bytes | None = None
        #: The attempts of each client transaction id: number n stands at n - 1.
        self._attempts: dict[str, list[Record]] = {}
        #: Client transaction id and number of each attempt, as they were permitted; and those of each purchase.
        self._permits: list[Key] = []
        self._purchases: dict[str, list[Key]] = {}
        #: Transaction id and credentials -> the client transaction ids that have it.
        self._taken_by: dict[tuple[int, bytes], set[str]] = {}
        #: A form's attempt -> its links, and until when they are kept.
        self._links: dict[Key, tuple[str, float]] = {}
        self._history: dict[str, list[Change]] = {}
        self._feed: list[Change] = []
        self._cursors = count(1)
        self._closed = False

    async def service_fingerprint(self, mine: bytes, *, moved: bool = False) -> bytes:
        self._check_open()
        if self._service is None or moved:
            self._service = mine
        return self._service

    async def permit(self, record: Record) -> bool:
        attempts = self._of(record.client_transaction_id)
        check_fresh(record)
        if not may_permit(attempts, self._asks(record.purchase), record):
            return False
        self._attempts.setdefault(record.client_transaction_id, attempts).append(record)
        key = (record.client_transaction_id, record.attempt)
        self._permits.append(key)
        self._purchases.setdefault(record.purchase, []).append(key)
        self._note(record, before=None, event=None)
        return True

    async def apply(self, record: Record, event: Event) -> Record:
        attempts = self._of(record.client_transaction_id)
        before, after = advance_attempt(attempts, record, event)
        if after.transaction_id is not None and after.credentials:
            # Under the same credentials, no new sale can have the transaction id of another.
            identifier = after.client_transaction_id
            taken_by = self._taken_by.setdefault((after.transaction_id, after.credentials), {identifier})
            if isinstance(event, Created) and taken_by != {identifier}:
                raise TransactionTakenError.of(after, event.transaction_id)
            taken_by.add(identifier)
        attempts[record.attempt - 1] = after
        self._note(after, before.state, event)
        is_paid = after.state is State.ACCEPTED and before.state not in PAID
        if is_paid and (paid := overpaid(self._asks(after.purchase), after, event.at)):
            return await self.apply(after, paid)
        return after

    def _of(self, client_transaction_id: str) -> list[Record]:
        self._check_open()
        return self._attempts.get(client_transaction_id, [])

    def _records(self, keys: Iterable[Key]) -> list[Record]:
        self._check_open()
        return [self._attempts[identifier][attempt - 1] for identifier, attempt in keys]

    def _asks(self, purchase: str | None) -> list[Record]:
        return self._records(self._purchases.get(purchase or "", ()))

    async def find(self, ids: Sequence[str], purchase: str | None = None) -> FoundRecords:
        return {each: list(attempts) for each in ids if (attempts := self._of(each))}, self._asks(purchase)

    async def taken_by(self, record: Record, transaction_id: int) -> str | None:
        taken_by = self._taken_by.get((transaction_id, record.credentials), set())
        return min(taken_by - {record.client_transaction_id}, default=None)

    async def keep_links(self, record: Record, links: str, until: float) -> None:
        if len(self._of(record.client_transaction_id)) >= record.attempt:
            self._links[record.client_transaction_id, record.attempt] = links, until

    async def links(self, purchase: str, now: float) -> dict[str, str]:
        await self.drop_links(now)
        kept = [key for key in self._purchases.get(purchase, ()) if key in self._links]
        return {identifier: self._links[identifier, attempt][0] for identifier, attempt in kept}

    async def drop_links(self, now: float) -> float | None:
        for (key, (_, until)), record in zip([*self._links.items()], self._records(self._links), strict=True):
            is_over = record.state.decided or record.state is State.REVERSING
            # UNPAID: the customer closed the form, and may use its links again.
            if until <= now or (is_over and record.evidence is not Evidence.UNPAID):
                del self._links[key]
        return min((until for _, until in self._links.values()), default=None)

    def unfinished(self) -> AsyncIterator[Record]:
        found = [record for record in self._records(self._permits) if not record.state.decided]
        return _each(sorted(found, key=attrgetter("created_at")))

    def records(self) -> AsyncIterator[Record]:
        return _each(self._records(self._permits))

    async def history(self, client_transaction_id: str) -> list[Change]:
        self._check_open()
        return list(self._history.get(client_transaction_id, ()))

    async def changes(self, since: int = 0, limit: int = 500) -> list[Change]:
        self._check_open()
        start = bisect_right(self._feed, since, key=attrgetter("cursor"))
        return self._feed[start : start + limit]

    async def aclose(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the ledger is closed")

    def _note(self, after: Record, before: State | None, event: Event | None) -> None:
        """Add a change to the history, and to the feed if it belongs there; no event: the permit."""
        change = Change(
            cursor=next(self._cursors),
            client_transaction_id=after.client_transaction_id,
            attempt=after.attempt,
            at=after.created_at if event is None else event.at,
            event="Permitted" if event is None else type(event).__name__,
            before=before,
            after=after.state,
            evidence=after.evidence if event is None else event.evidence,
            detail=None if event is None else describe(event),
        )
        self._history.setdefault(after.client_transaction_id, []).append(change)
        if (before is not after.state and after.state in FEED) or isinstance(event, Overpaid):
            self._feed.append(change)


async def _each(records: list[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record
