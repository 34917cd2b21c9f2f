"""Confirms paid forms, which the service reverses otherwise: one request at a time for each form.

From the end of the profile's window on the status query tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from payclient.errors import (
    LedgerError,
    PayError,
    RateLimitedError,
    RefusedError,
    TransitionError,
    UnauthorizedError,
)
from payclient.events import Conflicted, Event
from payclient.lifecycle import Record
from payclient.logs import Log
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.confirmations import MOST_REFUSALS, OVER, Confirmation, ReturnedForm
from payclient.tracking.evidence import Reading, find_mismatch, read_confirmation, read_form

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

__all__: list[str] = []

log: Log = Log("payclient.tracker")


class Confirmer:
    """The forms of one tracker that came back, or were found paid."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._session = poller.session
        profile = poller.session.profile
        #: Whether the service wants confirmations at all.
        self.confirms: bool = profile.confirm is not None
        self._window = NORMAL_WINDOW if profile.confirm is None else profile.confirm.window
        self._forms: dict[str, ReturnedForm] = {}

    def form(self, record: Record) -> ReturnedForm:
        """Return what is asked about a form, with its newest record."""
        form = self._forms.get(record.client_transaction_id)
        if form is None:
            form = self._forms[record.client_transaction_id] = ReturnedForm(record, self._window)
        elif (record.attempt, record.version) > (form.record.attempt, form.record.version):
            form.record = record
        return form

    def confirm(self, form: ReturnedForm, transaction_id: int | None) -> Confirmation:
        """Confirm this transaction, now or as soon as it is its turn. None: query whether it is paid."""
        confirmation = form.begin(transaction_id, self._poller.clock.monotonic())
        if self._poller.asks.closed:
            confirmation.open = False  # it stands in the ledger
        else:
            self._poller.plan_form(form)
        return confirmation

    def ends(self) -> list[float]:
        """Return when the service reverses each form that is being confirmed, in UTC seconds; early where unsure."""
        now, at = self._poller.clock.monotonic(), self._poller.clock.time()
        found = []
        for form in self._forms.values():
            begun = [at - (now - each.begun) for each in form.open() if each.transaction_id is not None]
            if begun:
                # A restart begins anew, but not for the service.
                noted = form.record.notified_at
                found.append(min(begun if noted is None else [*begun, noted]) + self._window)
        return found

    def forget(self, form: ReturnedForm) -> None:
        """Drop a form that has nothing left to confirm: the ledger has its outcome."""
        if form.is_idle and self._forms.get(form.record.client_transaction_id) is form:
            del self._forms[form.record.client_transaction_id]

    def pending_until_confirmed(self, record: Record, report: StatusReport) -> StatusReport:
        """Return the report of a form; as pending, and confirm it, while the payment that it shows is unconfirmed."""
        if report.state != "Aceptado" or not self.confirms or record.state in OVER:
            return report
        if find_mismatch(record, report):
            return report  # what is not ours to confirm decides nothing
        form = self.form(record)
        if not form.is_unconfirmed(report.transaction_id, self._poller.clock.monotonic()):
            self.forget(form)
            return report  # it would have been reversed by now, and was not
        if report.transaction_id is not None:
            self.confirm(form, report.transaction_id)
        return attrs.evolve(report, state="Pendiente")

    async def request(self, form: ReturnedForm, now: float) -> None:
        """Make the next request about a form, take the answer, and plan the one after it."""
        identifier, settled, wait = form.record.client_transaction_id, False, 0.0
        asked = form.next_request(now)
        try:
            await self._reread(form)
            if form.is_over or asked is None:
                settled = True
            elif asked.transaction_id is None:
                settled = await self._query(form)
            else:
                settled = await self._confirm(form, asked.transaction_id)
        except RateLimitedError as limited:
            wait = form.wait_for(limited.retry_after)
        except UnauthorizedError:
            what = "confirmations are refused (401): is the token still good?"
            self._poller.queries.say("confirmations_unauthorized", identifier, what)
        except RefusedError as refused:
            settled = asked is None or await self._refused(form, asked, refused)
        except LedgerError as error:
            self._poller.asks.late.failed(error)
        except PayError as error:
            what = f"a confirmation failed: {type(error).__name__}"
            self._poller.queries.say("confirmation_unanswered", identifier, what)
        except Exception as error:  # a fault of ours must not lose the form
            log("error", "confirmation_failed", identifier, "confirming failed: %s", type(error).__name__)
        finally:
            form.task = None
        if form.answered(self._poller.clock.monotonic(), settled=settled, wait=wait):
            log("error", "confirmation_late", identifier, "not confirmed in time; its status will tell")
        form.wake(asked)
        self._poller.plan_form(form)
        self.forget(form)

    async def _reread(self, form: ReturnedForm) -> None:
        """Read the form's record again. A ledger that cannot be read stops no confirmation."""
        try:
            form.record = await self._poller.asks.ledger.get(form.record.client_transaction_id) or form.record
        except LedgerError as error:
            self._poller.asks.late.failed(error)

    async def _confirm(self, form: ReturnedForm, transaction_id: int) -> bool:
        """Return whether the service's answer settles this id."""
        report = await self._session.confirm(transaction_id, form.record.client_transaction_id, repeat=False)
        at = self._poller.clock.time()
        return await self._take(form, read_confirmation(form.record, transaction_id, report, at))

    async def _query(self, form: ReturnedForm) -> bool:
        """Query a form whose browser came back cancelled, which proves nothing; return whether that settles it."""
        if not self._poller.queries.by_client_id:
            return True
        record = form.record
        report = await self._session.status(client_transaction_id=record.client_transaction_id, repeat=False)
        unpaid = report is None or report.state == "Cancelado"
        if unpaid and not self._poller.queries.can_see(record):
            return True
        if report is not None and self.pending_until_confirmed(record, report) is not report:
            return True
        return await self._take(form, read_form(record, report, self._poller.clock.time()))

    async def _refused(self, form: ReturnedForm, asked: Confirmation, refused: RefusedError) -> bool:
        """Return whether the id is left alone: the service answered "no such transaction" often enough."""
        asked.refusals += refused.error_code in self._session.profile.not_found_codes
        if asked.refusals < MOST_REFUSALS:
            what = f"a confirmation was refused: {refused.error_code}"
            self._poller.queries.say("confirmation_refused", form.record.client_transaction_id, what)
            return False
        what = f"confirming transaction {asked.transaction_id}: no such transaction"
        conflicted = Conflicted(at=self._poller.clock.time(), what=what)
        try:
            return await self._apply(form, conflicted)
        except LedgerError as error:
            self._poller.asks.late.failed(error)
            return False

    async def _take(self, form: ReturnedForm, reading: Reading) -> bool:
        """Write what an answer means; False: it is not a verdict yet."""
        identifier = form.record.client_transaction_id
        if reading.report is not None:
            form.report = reading.report
        for alarm in reading.alarms:
            log("critical", "outcome_alarm", identifier, "%s", alarm)
        if reading.conflict is not None:
            what = f"a confirmation is not ours: {reading.conflict}"
            log("error", "confirmation_conflicted", identifier, "%s", what)
        settled = False
        for event in reading.events:
            settled = await self._apply(form, event)
        return settled

    async def _apply(self, form: ReturnedForm, event: Event) -> bool:
        """Return whether the ledger took the event; where the state forbids it now, the id is confirmed again later."""
        try:
            form.record = await self._poller.asks.ledger.apply(form.record, event)
        except TransitionError:
            newest = await self._poller.asks.ledger.get(form.record.client_transaction_id)
            form.record = newest or form.record
            return form.record.state.decided
        self._poller.note_written(form.record)
        return True

    def close(self) -> None:
        """Stop. The ledger has what is open; the next start confirms it."""
        for form in self._forms.values():
            form.close()
