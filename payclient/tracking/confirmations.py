"""Forms that came back, or were found paid: the service reverses a payment that nobody confirms within a window.

`returned_form` says which id is confirmed next, and when. After the profile's window a status query shows the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from payclient.clock import within
from payclient.errors import (
    LedgerError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    PayError,
    RateLimitedError,
    RefusedError,
    TransportError,
    UnauthorizedError,
)
from payclient.events import Conflicted, Evidence, FoundPending, Returned
from payclient.ledger.records import purchase_holder
from payclient.lifecycle import DROPPED, PAID, Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.notifications import Return
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.evidence import Reading, find_mismatch, read_form
from payclient.tracking.outcomes import Outcome
from payclient.tracking.recovery import latest_changes, unconfirmed_ids
from payclient.tracking.returned_form import (
    MOST_REFUSALS,
    Confirmation,
    ReturnedForm,
    Stage,
    is_confirmed,
    read_confirmation,
)

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller


#: The part of the window for which a confirmation waits for a ledger that cannot say what else is paid.
LEDGER_PATIENCE = 1 / 5

#: The states of a form in which another ask of its purchase may be sent, until a transaction of it is on record.
FREE_UNTIL_NAMED = (State.CANCELLED, State.REFUSED)


class Confirmer:
    """The forms of one tracker that came back, or were found paid. One request at a time is made for each."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._asks = poller.asks
        self._clock = poller.clock
        self._session = poller.session
        self._queries = poller.queries
        profile = poller.session.profile
        #: Whether the service wants confirmations at all.
        self.confirms: bool = profile.confirm is not None
        self._window = NORMAL_WINDOW if profile.confirm is None else profile.confirm.window
        self._forms: dict[str, ReturnedForm] = {}
        self._asks.on_form_decided.append(self._note_decided)

    # --- What is to be confirmed

    async def returned(self, record: Record, back: Return) -> Outcome:
        """Record what a browser brought back, confirm it once, and say what is known then."""
        if back.unusable:
            what = "the form could not be used: is it opened from the registered domain?"
            log("warning", "form_unusable", record.client_transaction_id, what)
        transaction_id = back.transaction_id
        is_over = record.archived or is_confirmed(record) or record.state is State.REFUSED
        if is_over or (transaction_id is None and record.state.decided):
            return Outcome.of(record)
        form = self._form(record)
        if form.has_room_for(transaction_id):
            is_new = transaction_id not in form.confirmations
            tried = self._plan(form, transaction_id, Stage.ARRIVED if is_new else Stage.IN_DOUBT)
            if is_new:
                confirmation = form.confirmations[transaction_id]
                words = "the tracker was closed before the return was on record"
                write = self._write_return(form, confirmation)
                confirm = partial(self._confirm_arrived, form, confirmation)
                await self._poller.finish(write, record.client_transaction_id, words, at_end=confirm)
            with suppress(TimeoutError):
                await within(self._clock, self._session.timeouts.total, tried.wait())
        return Outcome.of(form.record, report=form.report)

    async def _write_return(self, form: ReturnedForm, confirmation: Confirmation) -> None:
        """Record a return, so that no crash loses it."""
        event = Returned(at=self._clock.time(), transaction_id=confirmation.transaction_id)
        form.record = await self._asks.ledger.apply(form.record, event)
        confirmation.on_record = True
        self._asks.note_written(form.record)

    def _confirm_arrived(self, form: ReturnedForm, confirmation: Confirmation) -> None:
        """Confirm a return once its write has ended, in whatever way: else the service reverses the payment."""
        if confirmation.stage is Stage.ARRIVED:
            confirmation.stage = Stage.IN_DOUBT
        if confirmation.on_record and not self._asks.is_open:
            form.close()  # the next process, which finds it in the ledger, confirms it
        else:
            self._poller.plan_form(form)

    def confirm_named(self, record: Record, transaction_ids: Sequence[int | None]) -> None:
        """Confirm transactions that were named to a form, without waiting; for None query whether it is paid.

        Also of a form that is CANCELLED or REFUSED: it may yet be paid.
        """
        if self.confirms and not is_confirmed(record):
            for transaction_id in transaction_ids:
                if transaction_id != DROPPED and (form := self._form(record)).has_room_for(transaction_id):
                    self._plan(form, transaction_id)

    async def recover(self, records: Sequence[Record]) -> None:
        """Go on confirming those of these forms that came back."""
        for record in records if self.confirms else ():
            if record.kind == "form" and (record.notified_at is not None or record.candidate_ids):
                ids = await unconfirmed_ids(self._asks.ledger, record)
                if (known := self._forms.get(record.client_transaction_id)) is not None:
                    answered = known.ids_at(Stage.NAMELESS, Stage.SETTLED)
                    ids = [each for each in ids if each not in answered]
                self.confirm_named(record, ids)

    def confirm_first(self, record: Record, report: StatusReport) -> bool:
        """Plan what is confirmed before a report of a form decides, and return whether anything is.

        A payment that the report shows is confirmed now, unless another one was confirmed: the service gives back the
        second one. Beside a cancelled transaction another one may be paid until its confirmation has an answer.
        """
        was_confirmed = is_confirmed(record)
        is_second = report.state == "Aceptado" and report.transaction_id not in (None, record.transaction_id)
        if not self.confirms or record.kind != "form" or (was_confirmed and not is_second):
            return False
        form, waits = self._form(record), False
        if report.state == "Cancelado":
            waits = self._plan_others(form, report)
        elif report.state == "Aceptado" and not find_mismatch(record, report):
            waits = self._plan_accepted(form, report.transaction_id, was_confirmed=was_confirmed)
        if not waits:
            self._poller.plan_form(form)  # which forgets it
        return waits

    def _plan_accepted(self, form: ReturnedForm, transaction_id: int | None, *, was_confirmed: bool) -> bool:
        """Plan to confirm a payment that a query found, or beside a confirmed one to query whether it was given back.

        Returns False where it is surely not given back: it is confirmed, or has stood for longer than the window.
        """
        may_be_reversed = form.note_accepted(transaction_id, self._clock.monotonic())
        if not may_be_reversed or transaction_id in form.ids_at(Stage.NAMELESS):
            return False
        if was_confirmed:
            self._poller.recheck(form.record, after=2 * self._window)
        elif transaction_id is not None:  # a payment without an id cannot be confirmed, and is queried again
            self._plan(form, transaction_id)
        return True

    def _form(self, record: Record) -> ReturnedForm:
        """Return the form's confirmations, with its newest record."""
        form = self._forms.setdefault(record.client_transaction_id, ReturnedForm(record, self._window))
        if (record.attempt, record.version) > (form.record.attempt, form.record.version):
            form.record = record
        return form

    def _plan(
        self, form: ReturnedForm, transaction_id: int | None, stage: Stage = Stage.IN_DOUBT
    ) -> asyncio.Event:
        """Plan to confirm a transaction, for None to query whether the form is paid; return the event of its next try.

        Transactions in doubt come first: a form has only one confirmed payment. A new confirmation begins at `stage`.
        """
        now = self._clock.monotonic()
        form.begin_in_doubt(now)
        tried = form.begin(transaction_id, now, stage).tried
        if self._asks.closed:
            form.close()
        else:
            self._poller.plan_form(form)
        return tried

    def forget(self, form: ReturnedForm) -> None:
        """Drop a form that has nothing left to confirm: the ledger has its outcome."""
        if self._forms.get(form.record.client_transaction_id) is form:
            del self._forms[form.record.client_transaction_id]

    def _note_decided(self, record: Record) -> None:
        """Drop a form that a query, a person or another process decided, unless something of it is confirmed."""
        if record.client_transaction_id in self._forms:
            self._poller.plan_form(self._form(record))

    def reversal_times(self) -> list[float]:
        """Return when the service reverses each form that is being confirmed: UTC seconds, too early where unsure."""
        now, at = self._clock.monotonic(), self._clock.time()
        times = (form.reversed_at(now, at) for form in self._forms.values())
        return [each for each in times if each is not None]

    def close(self) -> None:
        """Stop. The ledger has what is open; the next start confirms it."""
        for form in self._forms.values():
            form.close()

    # --- The requests

    async def request(self, form: ReturnedForm, current: Confirmation) -> None:
        """Make a request for `current`, or for an id that comes before it; take the answer, and plan the next one."""
        identifier, stage, wait = form.record.client_transaction_id, None, 0.0
        made_at = form.tried_at
        try:
            with suppress(LedgerError):  # a ledger that cannot be read stops no confirmation
                await self._reread(form)
            await self._put_on_record(form, current)
            current = self._first_in_doubt(form, current)
            if not is_confirmed(form.record):  # else no other confirmation is needed
                stage = await self._try(form, current)
        except RateLimitedError as limited:
            # Never so long that the payment is reversed meanwhile.
            wait = min(5.0 if limited.retry_after is None else limited.retry_after, self._window / 10)
            self._poller.rate.rate_limited(self._clock.monotonic(), made_at, wait)
        except UnauthorizedError as refused:
            self._queries.note_request(made_at, answered=False)
            what = f"confirmations are refused ({refused.http_status}): is the token still good?"
            self._queries.warn_once("confirmations_unauthorized", identifier, what)
        except RefusedError as refused:
            stage = await self._refused(form, current, refused)
        except PayError as error:
            if isinstance(error, TransportError):
                self._queries.note_request(made_at, answered=False)
            if isinstance(error, OutcomeUnknownError):
                stage = Stage.IN_DOUBT
            what = f"a confirmation failed: {type(error).__name__}"
            self._queries.warn_once("confirmation_unanswered", identifier, what)
        except Exception as error:  # our own error must not lose the form
            log("error", "confirmation_failed", identifier, "confirming failed: %s", type(error).__name__)
        form.task = None  # `Poller._note_end` plans the next request where this one was cancelled
        self._end_request(form, current, stage or current.stage, wait)

    async def _reread(self, form: ReturnedForm) -> None:
        """Take the ledger's newest record of a form, after its Prepare is written anew where a failover forgot it."""
        identifier = form.record.client_transaction_id
        newest, ask = await self._asks.ledger.get(identifier), self._asks.find(identifier)
        is_forgotten = newest is None or newest.state is State.SENDING
        if is_forgotten and ask is not None and await self._asks.late.restore_end(ask.record):
            newest = await self._asks.ledger.get(identifier)
        newest = newest or form.record
        if newest.state.decided and newest.version > form.record.version:
            self._asks.note_written(newest)  # written after all, though the write seemed to fail
        form.record = newest

    async def _put_on_record(self, form: ReturnedForm, current: Confirmation) -> None:
        """Write into the ledger which transaction id is confirmed now, unless the ledger has it already.

        After a crash the next process goes on from it: the confirmation may be carried out, and its answer lost.
        """
        record = form.record
        if current.transaction_id is None or is_confirmed(record):
            return
        # A person's decision takes out of the ledger what was named before.
        is_taken_out = record.evidence is Evidence.OPERATOR and not record.candidate_ids
        if current.on_record and not is_taken_out:
            return
        current.on_record = current.transaction_id in (record.transaction_id, *record.candidate_ids)
        if not current.on_record:
            # A browser's word may be forged: only a report of a query is the service's word.
            event_type = FoundPending if current.transaction_id in form.accepted_at else Returned
            event = event_type(at=self._clock.time(), transaction_id=current.transaction_id)
            form.record = await self._asks.write(record, event)
            # Events of a return that the ledger could not take are written later, those of a query with the next try.
            current.on_record = event_type is Returned or current.transaction_id in form.record.candidate_ids

    def _first_in_doubt(self, form: ReturnedForm, current: Confirmation) -> Confirmation:
        """Return the confirmation to request now: of a transaction that the ledger names before this one, if any.

        Another process may be confirming that one. Both are on record by now, so that each process sees the other's.
        """
        first = None if current.is_query else form.begin_in_doubt(self._clock.monotonic())
        if first is None or first is current:
            return current
        first.tries, first.on_record = first.tries + 1, True
        return first

    def _end_request(self, form: ReturnedForm, current: Confirmation, stage: Stage, wait: float) -> None:
        """End a request by `ReturnedForm.end_request`, and plan when the form is looked at again, or forgotten."""
        now, record, policy = self._clock.monotonic(), form.record, self._poller.policy
        given_up = form.end_request(current, now, stage, wait)
        if given_up and not current.is_query:
            identifier = record.client_transaction_id
            log("error", "confirmation_late", identifier, "not confirmed in time; its status will tell")
        # A confirmation was carried out, or may have been: query until there is an answer; at least for a window, since
        # the wall clock, by which the form's links are dead, may have been set forward.
        may_be_paid = given_up and (not current.is_query or self._clock.time() < policy.closed_until(record))
        polling_ended = record.state in (State.CANCELLED, State.EXPIRED)
        if polling_ended and (may_be_paid or current.stage is Stage.NAMELESS):
            form.begin(None, now)
        self._poller.plan_form(form)

    async def _try(self, form: ReturnedForm, current: Confirmation) -> Stage:
        """Confirm an id, or make the status query. Return to which stage that brings the id."""
        record, transaction_id = form.record, current.transaction_id
        if transaction_id is None:
            return Stage.SETTLED if await self._query(form) else Stage.IN_DOUBT
        is_on_record = current.on_record and record.client_transaction_id not in self._asks.late.kept
        if record.state in FREE_UNTIL_NAMED and record.evidence is not Evidence.UNPAID and not is_on_record:
            raise LedgerUnavailableError("a cancelled form holds its purchase once the return is on record")
        await self._note_withheld(record, current)
        if current.is_withheld:
            what = "its payment is not confirmed: its purchase has another ask, which is paid or may be"
            self._queries.warn_once("confirmation_withheld", record.client_transaction_id, what)
            return current.stage
        report = await self._session.confirm(transaction_id, record.client_transaction_id, repeat=False)
        self._poller.rate.note_success(form.tried_at)
        self._queries.note_request(form.tried_at, answered=True)
        if report.state == "Aceptado" and not await self._is_tied(record, transaction_id):
            return current.stage
        reading, stage = read_confirmation(record, transaction_id, report, self._clock.time())
        return Stage.SETTLED if await self._write_answer(form, record, reading) else stage

    async def _is_tied(self, form: Record, transaction_id: int) -> bool:
        """Return whether a payment is surely the form's: it was named to the form, or this token finds the form.

        A query under another account's token may have found that account's form of the same id and amount.
        """
        if self._queries.source is not None or not form.credentials or self._queries.can_see(form):
            return True
        history = await latest_changes(self._asks.ledger, form)
        named = (each.facts.get("transaction_id") for each in history if each.event != FoundPending.__name__)
        return transaction_id in named

    async def _query(self, form: ReturnedForm) -> bool:
        """Query whether a form is paid; return whether no other query is needed, as where none can show it."""
        record = form.record
        if not self._poller.policy.by_client_id:
            return True
        report = await self._session.status(client_transaction_id=record.client_transaction_id, repeat=False)
        if await self._queries.is_anothers(record, report):
            return False
        if report is not None and self.confirm_first(record, report):
            return not form.ids_at(Stage.NAMELESS)
        if report is None and form.ids_at(Stage.NAMELESS):
            return False  # its list lags: what was confirmed is there
        decides = report is None or report.state in ("Aceptado", "Cancelado")
        if decides and not self._queries.can_see(record):
            return True
        reading = read_form(record, report, self._clock.time())
        return await self._write_answer(form, record, reading) or reading.conflict is not None

    async def _note_withheld(self, form: Record, current: Confirmation) -> None:
        """Note whether another ask of a form's purchase is paid, or may be: then the form is not confirmed.

        A push that the shop chose to send beside the form does not count. Nor does a form that nobody has paid so far,
        or that was paid after this one: its confirmation finds this one in the ledger.
        """
        try:
            asks = await self._asks.ledger.asks(form.purchase)
        except LedgerError:
            is_early = self._clock.monotonic() < current.begun + self._window * LEDGER_PATIENCE
            if is_early or form.state in FREE_UNTIL_NAMED:
                raise  # there is time to try again, or its purchase was free for other asks
            return  # what the latest try found counts
        others = (
            each
            for each in asks
            if each.state in PAID or each.kind == "sale" or (each.candidate_ids and not current.goes_first)
            if not each.beside_open_form and each.client_transaction_id != form.client_transaction_id
        )
        current.is_withheld = purchase_holder(others, self._clock.time()) is not None
        # The confirmation of another form finds this one by what the ledger names of it.
        current.goes_first = not current.is_withheld and current.transaction_id in form.candidate_ids

    def _plan_others(self, form: ReturnedForm, report: StatusReport | None) -> bool:
        """Plan to confirm what may have paid a form beside what a report names; return whether anything may."""
        others = form.others_that_may_have_paid(report)
        for transaction_id in others:
            if transaction_id not in form.confirmations:
                self._plan(form, transaction_id)
        return bool(others)

    async def _write_answer(self, form: ReturnedForm, record: Record, reading: Reading) -> bool:
        """Write what an answer means, read against `record`, and return whether that decides the form."""
        answer = reading.report  # None: not found, or a conflict
        is_unpaid = reading.conflict is None and (answer is None or answer.state == "Cancelado")
        if is_unpaid and record.state is State.ACCEPTED:
            return True  # a person has seen another card pay
        if is_unpaid and self._plan_others(form, answer):
            return False
        form.report = answer or form.report
        self._form(await self._queries.write(record, reading) or record)
        # The state may not take the event, or the ledger fails: then it is confirmed again later. A form may have been
        # CANCELLED before: that decides only where this answer says so, too.
        return is_confirmed(form.record) or (is_unpaid and form.record.state.decided)

    async def _refused(self, form: ReturnedForm, current: Confirmation, refused: RefusedError) -> Stage:
        """Note a refusal, and return its id's stage: settled where "no such transaction" came often enough."""
        current.refusals += refused.error_code in self._session.profile.not_found_codes
        identifier = form.record.client_transaction_id
        if current.refusals < MOST_REFUSALS:
            what = f"a confirmation was refused: {refused.error_code}"
            self._queries.warn_once("confirmation_refused", identifier, what)
            return Stage.REFUSED
        what = f"confirming transaction {current.transaction_id}: no such transaction"
        # The id no longer keeps a closed form's purchase. From another account "no such transaction" proves nothing.
        drops = form.record.state is State.CANCELLED and self._queries.can_see(form.record)
        dropped = current.transaction_id if drops else None
        event = Conflicted(at=self._clock.time(), what=what, candidate_id=dropped)
        with suppress(LedgerError):  # a forged notification may come again and again: it is written once
            if await self._queries.is_known_conflict(form.record, [event]):
                return Stage.SETTLED
        form.record = await self._asks.write(form.record, event)
        return Stage.SETTLED
