"""What arrives from outside: notifications, and browsers that come back from a form. Hints, never verdicts.

They are noted before they are acted on, so that a crash in between is recovered on entry.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from payclient.clock import within
from payclient.errors import LedgerError
from payclient.events import Conflicted, Event, Evidence, Notified, Returned
from payclient.lifecycle import DROPPED, Record, State
from payclient.logs import Log
from payclient.models import Notification
from payclient.notifications import Receipt, Return
from payclient.tracking.confirmations import OVER, Confirmation, ReturnedForm
from payclient.tracking.followup import NEVER, Followed
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller

__all__: list[str] = []

log: Log = Log("payclient.tracker")


class Arrivals:
    """Takes what arrives for one tracker."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._ledger = poller.asks.ledger
        self._clock = poller.clock
        self._confirmer = poller.confirmer
        #: No more notes of notifications about unknown or conflicting ids before this.
        self._noted_until = NEVER

    # --- Notifications

    async def notify(self, notification: Notification) -> Receipt:
        """Write a hint, and query at once; see `Tracker.notify`."""
        receipt = await self._notify(notification)
        if self._confirmer.confirms and receipt in (Receipt.MATCHED, Receipt.LATE, Receipt.CONFLICT):
            record = await self._ledger.get(notification.client_transaction_id)
            if record is not None and record.kind == "form" and record.state not in OVER:
                self._confirm(record, notification.transaction_id)
        return receipt

    async def _notify(self, notification: Notification) -> Receipt:
        poller = self._poller
        identifier, transaction_id = notification.client_transaction_id, notification.transaction_id
        ask = poller.asks.find(identifier)
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
        found = None if ask is None else ask.findings
        if known is None and found is not None and found.is_anothers(transaction_id):
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

    # --- Browsers that come back

    async def returned(self, record: Record, back: Return) -> Outcome:
        """Record what a browser brought back, confirm it once, and say what is known then."""
        if back.unusable:
            what = "the form could not be used: is it opened from the registered domain?"
            log("warning", "form_unusable", record.client_transaction_id, what)
        if record.state in OVER or (back.transaction_id is None and record.state is State.CANCELLED):
            return Outcome.of(record)
        form = self._confirmer.form(record)
        if form.takes(back.transaction_id):
            if not form.knows(back.transaction_id):
                # Before anything is confirmed, so that it is confirmed again after a crash.
                form = await self._write(form, back.transaction_id)
            await self._first_answer(self._confirmer.confirm(form, back.transaction_id))
        return Outcome.of(form.record, report=form.report)

    async def _write(self, form: ReturnedForm, transaction_id: int | None) -> ReturnedForm:
        """Write that a browser came back."""
        form.writing.add(transaction_id)
        try:
            event = Returned(at=self._clock.time(), transaction_id=transaction_id)
            record = await self._ledger.apply(form.record, event)
        except LedgerError:
            # Confirm even if the ledger is down: otherwise the service reverses the payment.
            self._confirmer.confirm(form, transaction_id)
            raise
        finally:
            form.writing.discard(transaction_id)
        self._poller.note_written(record)
        return self._confirmer.form(record)

    async def _first_answer(self, confirmation: Confirmation) -> None:
        """Wait for one try of the confirmation, at most the total time-out."""
        if confirmation.open:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            confirmation.waiters.append(waiter)
            with suppress(TimeoutError):
                await within(self._clock, self._poller.policy.total_timeout, waiter)

    def _confirm(self, record: Record, transaction_id: int) -> None:
        """Confirm the transaction of a form that a notification named, without waiting."""
        form = self._confirmer.form(record)
        if form.takes(transaction_id):
            self._confirmer.confirm(form, transaction_id)
