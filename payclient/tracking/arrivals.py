"""Notifications: hints, never verdicts. They are noted before they are acted on: a crash in between is recovered."""

from __future__ import annotations

from payclient.events import Conflicted, Event, Evidence, Notified
from payclient.lifecycle import DROPPED, Record, State
from payclient.models import Notification
from payclient.notifications import Receipt
from payclient.tracking.followup import NEVER, Followed
from payclient.tracking.poller import Poller


class Arrivals:
    """Takes what arrives for one tracker."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._ledger = poller.asks.ledger
        self._clock = poller.clock
        #: No more notes of notifications about unknown or conflicting ids before this.
        self._noted_until = NEVER

    async def notify(self, notification: Notification) -> Receipt:
        """Write a hint, and query at once; see `Tracker.notify`."""
        receipt, confirmer = await self._notify(notification), self._poller.confirmer
        if confirmer.confirms and receipt in (Receipt.MATCHED, Receipt.LATE, Receipt.CONFLICT):
            record = await self._ledger.get(notification.client_transaction_id)
            if record is not None and record.kind == "form":
                confirmer.named(record, [notification.transaction_id])
        return receipt

    async def _notify(self, notification: Notification) -> Receipt:
        poller = self._poller
        identifier, transaction_id = notification.client_transaction_id, notification.transaction_id
        ask = poller.asks.find(identifier)
        if ask is not None and (ask.record.state.decided or ask.elsewhere):
            ask = None  # a newer attempt may be on its way, which the hint is for
        record = ask.record if ask is not None else await self._ledger.get(identifier)
        if record is None:
            return Receipt.UNMATCHED
        now, at = self._clock.monotonic(), self._clock.time()
        known, candidates = record.transaction_id, record.candidate_ids
        if record.notified_at is not None and transaction_id in (known, *candidates):
            # Written once. Whoever came first may have forged it, so that this one is worth its query too.
            if not record.state.decided and record.state is not State.SENDING:
                poller.notified(record, again=True)
            return Receipt.DUPLICATE
        if known is None and ask is not None and ask.about(transaction_id).is_another:
            return Receipt.CONFLICT
        is_ours = known in (None, transaction_id)
        if not is_ours or DROPPED in candidates:
            # Written once a second at most, since anybody can send these.
            if now < self._noted_until:
                return Receipt.CONFLICT
            self._noted_until = now + 1.0
        if not is_ours:
            what = f"a notification names transaction {transaction_id}"
            await self._note(ask, record, Conflicted(at=at, what=what))
            return Receipt.CONFLICT
        return self._query_noted(
            await self._note(ask, record, Notified(at=at, transaction_id=transaction_id))
        )

    def _query_noted(self, record: Record) -> Receipt:
        """Plan the query that a notification is worth; while the sale is being sent there is nothing to query yet."""
        if record.state is State.SENDING:
            return Receipt.EARLY
        if record.state.decided:
            if record.evidence is Evidence.QUERY:
                self._poller.policy.notified_late()
            self._poller.recheck(record)
            return Receipt.LATE
        self._poller.notified(record)
        return Receipt.MATCHED

    async def _note(self, ask: Followed | None, record: Record, event: Event) -> Record:
        if ask is None:
            return await self._ledger.apply(record, event)
        newest = await self._ledger.apply(ask.record, event)
        self._poller.asks.learn(ask, newest)
        return newest
