"""What a notification is to us: a hint, noted and followed by one query. And how surely they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from payclient.clock import Clock
from payclient.events import Conflicted, Event, Evidence, Notified
from payclient.following.entries import NEVER, PENDING, Entries, Entry
from payclient.ledger import Ledger
from payclient.lifecycle import DROPPED, Record, State
from payclient.models import Notification
from payclient.notifications import Receipt

__all__: list[str] = []

QUERY = Evidence.QUERY

#: What one answer weighs in the share of those that were notified: news of 50 sales ago hardly counts.
FADING = 1 / 16


class Arrivals:
    """How surely notifications come: one number, which fades with each answer."""

    def __init__(self) -> None:
        #: Of late, the part of all answers of which a notification came.
        self.share = 0.0

    def decided(self, before: Record, after: Record) -> None:
        """A sale was decided. One that a person answered counts: was it notified?"""
        if before.state is PENDING and after.evidence is QUERY and after.kind == "sale":
            self.share += FADING * ((after.notified_at is not None) - self.share)

    def late(self) -> None:
        """A notification came after the query that found the answer; the sale was counted as not notified."""
        self.share = min(self.share + FADING, 1.0)


class Hurry(Protocol):
    """Queries an open sale at once; `again`: it was notified before."""

    def __call__(self, record: Record, *, again: bool = False) -> object: ...


class Notifying:
    """Takes notifications. `hurry` asks for an open sale at once, `look_again` for a decided one."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        entries: Entries,
        arrivals: Arrivals,
        *,
        hurry: Hurry,
        look_again: Callable[[Record], object],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._entries = entries
        self._arrivals = arrivals
        self._hurry = hurry
        self._look_again = look_again
        #: No more notes of notifications about unknown or conflicting ids before this.
        self._noted_until = NEVER

    async def notify(self, notification: Notification) -> Receipt:
        """Take a hint: note it, and let one query be made at once; see `Tracker.notify`."""
        identifier, transaction_id = notification.client_transaction_id, notification.transaction_id
        entry = self._entries.get(identifier)
        record = entry.record if entry is not None else await self._ledger.get(identifier)
        if record is None:
            return Receipt.UNMATCHED
        now, at = self._clock.monotonic(), self._clock.time()
        known, candidates = record.transaction_id, record.candidate_ids
        if record.notified_at is not None and (transaction_id == known or transaction_id in candidates):
            # Written once. Whoever came first may have forged it, so that this one is worth its query too.
            if not record.state.decided and record.state is not State.SENDING:
                self._hurry(record, again=True)
            return Receipt.DUPLICATE
        case = None if entry is None else entry.case
        if known is None and case is not None and case.is_anothers(transaction_id):
            return Receipt.CONFLICT
        if known not in (None, transaction_id) or DROPPED in candidates:
            # Written once a second at most, since anybody can send these.
            if now < self._noted_until:
                return Receipt.CONFLICT
            self._noted_until = now + 1.0
        if known not in (None, transaction_id):
            what = f"a notification names transaction {transaction_id}"
            await self._note(entry, record, Conflicted(at=at, what=what))
            return Receipt.CONFLICT
        record = await self._note(entry, record, Notified(at=at, transaction_id=transaction_id))
        if record.state is State.SENDING:
            return Receipt.EARLY
        if record.state.decided:
            if record.evidence is Evidence.QUERY:
                self._arrivals.late()
            self._look_again(record)
            return Receipt.LATE
        self._hurry(record)
        return Receipt.MATCHED

    async def _note(self, entry: Entry | None, record: Record, event: Event) -> Record:
        if entry is None:
            return await self._ledger.apply(record, event)
        self._entries.take(entry, await self._ledger.apply(entry.record, event))
        return entry.record
