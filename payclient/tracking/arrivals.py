"""Notifications: hints, never verdicts. Each is written before its query, so that a crash in between is recovered."""

from __future__ import annotations

import asyncio

from payclient.errors import LedgerError
from payclient.events import Conflicted, Evidence, Notified
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
        #: Until then `_is_first_in_a_second` returns False.
        self._noted_until = NEVER

    async def notify(self, notification: Notification) -> Receipt:
        """Write a hint, and query at once; see `Tracker.notify`."""
        ask = self._poller.asks.open_ask(notification.client_transaction_id)
        record = await self._ledger.get(notification.client_transaction_id) if ask is None else ask.record
        if record is None:
            return Receipt.UNMATCHED
        if record.archived:  # takes no more events: what the query finds is only logged
            if self._is_first_in_a_second():
                self._poller.recheck(record)
            return Receipt.LATE
        receipt = Receipt.EARLY if record.state is State.SENDING else Receipt.MATCHED
        try:
            receipt = await self._notify(notification, ask, record)
        finally:  # also where the ledger fails, or all tasks are cancelled: else the service reverses the payment
            if record.kind == "form" and receipt is not Receipt.EARLY:
                self._poller.confirmer.confirm_named(record, [notification.transaction_id])
        return receipt

    async def _notify(self, notification: Notification, ask: Followed | None, record: Record) -> Receipt:
        """Write a hint unless it is repeated or comes too often, plan its query, and return its receipt."""
        transaction_id = notification.transaction_id
        named = (record.transaction_id, *record.candidate_ids)
        if record.notified_at is not None and transaction_id in named:
            # A repetition is not written, but queried: the first one may have been forged, and this one not.
            if not record.state.decided and record.state is not State.SENDING:
                self._poller.query_notified(record, is_repeated=True)
            return Receipt.DUPLICATE
        if record.transaction_id is None and ask is not None and ask.about(transaction_id).is_anothers:
            return Receipt.CONFLICT
        names_another = record.transaction_id not in (None, transaction_id)
        if (names_another or DROPPED in named) and not self._is_first_in_a_second():
            return Receipt.CONFLICT
        at = self._clock.time()
        if names_another:
            what = f"a notification names transaction {transaction_id}"
            await self._ledger.apply(record, Conflicted(at=at, what=what))
            return Receipt.CONFLICT
        try:
            record = await self._ledger.apply(record, Notified(at=at, transaction_id=transaction_id))
        except (LedgerError, asyncio.CancelledError):
            # The hint may be on record all the same, and a repeated hint of a decided attempt is not queried.
            if record.state.decided:
                self._poller.recheck(record)
            raise
        return self._plan_query(record)

    def _plan_query(self, record: Record) -> Receipt:
        """Plan the query of a notification that was written, unless the attempt is being sent; return its receipt."""
        if record.state is State.SENDING:
            return Receipt.EARLY
        if not record.state.decided:
            self._poller.query_notified(record)
            return Receipt.MATCHED
        if record.evidence is Evidence.QUERY:
            self._poller.policy.note_late_notification()
        self._poller.recheck(record)
        return Receipt.LATE

    def _is_first_in_a_second(self) -> bool:
        """Return True for one hint a second: anybody can send hints that are written, or queried, again and again."""
        now = self._clock.monotonic()
        if now < self._noted_until:
            return False
        self._noted_until = now + 1.0
        return True
