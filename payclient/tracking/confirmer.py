"""Confirms paid forms, which the service reverses otherwise: one request at a time for each form.

From the end of the profile's window on the status query tells.
"""

from __future__ import annotations

import logging
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
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.confirmations import MOST_REFUSALS, OVER, Confirmation, ReturnedForm
from payclient.tracking.evidence import Reading, find_mismatch, read_confirmation, read_form

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("payclient.tracker")


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
        """What is asked about a form, with its newest record."""
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
        """Keep nothing of a form about which nothing is asked: the ledger knows what came of it."""
        if form.is_idle and self._forms.get(form.record.client_transaction_id) is form:
            del self._forms[form.record.client_transaction_id]

    def unless_confirmed(self, record: Record, report: StatusReport) -> StatusReport:
        """Call no form accepted which may still be reversed: it is pending, and confirmed now."""
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
        request = form.next_request(now)
        asked = form.asked
        try:
            await self._reread(form)
            if form.is_over or request is None:
                settled = True
            elif request.transaction_id is None:
                settled = await self._query(form)
            else:
                settled = await self._confirm(form, request.transaction_id)
        except RateLimitedError as limited:
            wait = form.wait_for(limited.retry_after)
        except UnauthorizedError:
            self._poller.queries.say(
                "confirm 401", "confirmations are refused (401): is the token still good?"
            )
        except RefusedError as refused:
            settled = await self._refused(form, refused)
        except LedgerError as error:
            self._poller.asks.late.failed(error)
        except PayError as error:
            name = type(error).__name__
            self._poller.queries.say(f"confirm {name}", f"a confirmation failed: {name}")
        except Exception as error:  # a fault of ours must not lose the form
            logger.error("%s: confirming failed: %s", identifier, type(error).__name__)
        finally:
            form.task = None
        if form.answered(self._poller.clock.monotonic(), settled=settled, wait=wait):
            logger.error("%s: not confirmed in time; its status will tell", identifier)
        form.wake(asked)
        self._poller.plan_form(form)
        self.forget(form)

    async def _reread(self, form: ReturnedForm) -> None:
        """See what others wrote. A ledger that cannot be read stops no confirmation."""
        try:
            form.record = await self._poller.asks.ledger.get(form.record.client_transaction_id) or form.record
        except LedgerError as error:
            self._poller.asks.late.failed(error)

    async def _confirm(self, form: ReturnedForm, transaction_id: int) -> bool:
        """Whether the service's answer settles this id."""
        report = await self._session.confirm(transaction_id, form.record.client_transaction_id, repeat=False)
        at = self._poller.clock.time()
        return await self._take(form, read_confirmation(form.record, transaction_id, report, at))

    async def _query(self, form: ReturnedForm) -> bool:
        """The browser came back cancelled, which proves nothing: query, where that can be done."""
        if not self._poller.queries.by_client_id:
            return True
        record = form.record
        report = await self._session.status(client_transaction_id=record.client_transaction_id, repeat=False)
        unpaid = report is None or report.state == "Cancelado"
        if unpaid and not self._poller.queries.may_deny(record):
            return True
        if report is not None and self.confirms and report.state == "Aceptado":
            held = self.unless_confirmed(record, report)
            if held is not report:
                return True
        return await self._take(form, read_form(record, report, self._poller.clock.time()))

    async def _refused(self, form: ReturnedForm, refused: RefusedError) -> bool:
        """Whether the id is left alone: the service answered "no such transaction" often enough."""
        asked = form.asked
        if asked is None:
            return True
        asked.refusals += refused.error_code in self._session.profile.not_found_codes
        if asked.refusals < MOST_REFUSALS:
            code = refused.error_code
            self._poller.queries.say(f"confirm refused {code}", f"a confirmation was refused: {code}")
            return False
        what = f"confirming transaction {asked.transaction_id}: no such transaction"
        conflicted = Conflicted(at=self._poller.clock.time(), what=what)
        try:
            return await self._apply(form, conflicted)
        except LedgerError as error:
            self._poller.asks.late.failed(error)
            return False

    async def _take(self, form: ReturnedForm, reading: Reading) -> bool:
        """Let the ledger take what an answer means; False: it is no verdict yet."""
        identifier = form.record.client_transaction_id
        if reading.report is not None:
            form.report = reading.report
        for alarm in reading.alarms:
            logger.critical("%s: %s", identifier, alarm)
        if reading.conflict is not None:
            logger.error("%s: a confirmation is not ours: %s", identifier, reading.conflict)
        settled = False
        for event in reading.events:
            settled = await self._apply(form, event)
        return settled

    async def _apply(self, form: ReturnedForm, event: Event) -> bool:
        """Whether the ledger took the event; where the state forbids it now, the id is asked about again later."""
        try:
            form.record = await self._poller.asks.ledger.apply(form.record, event)
        except TransitionError:
            newest = await self._poller.asks.ledger.get(form.record.client_transaction_id)
            form.record = newest or form.record
            return form.record.state.decided
        self._poller.took(form.record)
        return True

    def close(self) -> None:
        """Stop: what is open stands in the ledger, and is asked at the next entry."""
        for form in self._forms.values():
            form.close()
