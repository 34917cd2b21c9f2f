"""Forms that came back, or were found paid: the service reverses a payment that nobody confirms within a window.

Anybody can send a browser back with any id, so that several ids of one form are confirmed in turn, one a second, the
least tried first. After the profile's window a status query shows the outcome. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from payclient.clock import within
from payclient.errors import (
    LedgerError,
    OutcomeUnknownError,
    PayError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.events import Abandoned, Conflicted, FoundCancelled, FoundPending, Returned
from payclient.ledger.records import holds_purchase
from payclient.lifecycle import DROPPED, PAID, Record, State
from payclient.logs import Log
from payclient.models import StatusReport
from payclient.notifications import Return
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.evidence import Reading, find_mismatch, read_confirmation, read_form
from payclient.tracking.followup import NEVER, Scheduled
from payclient.tracking.outcomes import Outcome
from payclient.tracking.recovery import is_abandoned, unconfirmed_ids, unpaid_since

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

log: Log = Log("payclient.tracker")

#: Answers "no such transaction" after which an id is left alone until it comes again: 15 s by the back-off.
MOST_REFUSALS = 5

#: Ids of one form that are confirmed in turn: one of them is its own, the others are forged.
MOST_IDS = 16

#: Seconds from one try to the next, for a window of `NORMAL_WINDOW`; the last one goes on.
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 15.0)

#: States of a form that is confirmed no more. CANCELLED and REFUSED are not among them: such a form may yet be paid.
OVER = (State.ACCEPTED, State.REVERSING, State.REVERSED)

#: The part of the window for which a confirmation waits for its turn by the rate. Then the form comes first.
TURN = 1 / 20


@attrs.define(eq=False)
class Confirmation:
    """One id to confirm; None: the browser came back cancelled, and a query shows whether the form was paid."""

    transaction_id: int | None
    open: bool = False
    begun: float = 0.0
    due: float = 0.0
    tries: int = 0
    refusals: int = 0
    #: Whether the service said that it is not paid.
    declined: bool = False
    #: Whether the service's latest answer shows that it is not carried out. Until then it may be, by whatever process.
    is_answered: bool = False
    #: Whether the ledger names it, or did.
    on_record: bool = False
    #: Set, and replaced, at the end of each try.
    tried: asyncio.Event = attrs.field(factory=asyncio.Event)

    def wake(self) -> None:
        """End the waits for the try that has ended."""
        self.tried.set()
        self.tried = asyncio.Event()


class ReturnedForm(Scheduled):
    """The confirmations of one form. Pure. `window` is how many seconds the service waits for one."""

    __slots__ = ("accepted_at", "confirmations", "record", "report", "tried_at", "window", "writing")

    def __init__(self, record: Record, window: float) -> None:
        super().__init__()
        self.record: Record = record
        self.window: float = window
        #: By transaction id; that of None is a status query.
        self.confirmations: dict[int | None, Confirmation] = {}
        #: Ids whose return is being written, to be confirmed then.
        self.writing: set[int | None] = set()
        #: Transaction id -> when a status query first found it accepted.
        self.accepted_at: dict[int | None, float] = {}
        #: When the latest request about the form was made.
        self.tried_at: float = NEVER
        self.report: StatusReport | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is left to make, so that the ledger has all that there is."""
        busy = self.all_open() or self.writing or self.task is not None
        return not busy and (self.record.state.decided or not (self.accepted_at or self.record.candidate_ids))

    @property
    def rested_at(self) -> float:
        """When the next request may be made: one a second."""
        return self.tried_at + min(1.0, self.window / NORMAL_WINDOW)

    def all_open(self) -> list[Confirmation]:
        """Return the open confirmations."""
        return [each for each in self.confirmations.values() if each.open]

    def has_room_for(self, transaction_id: int | None) -> bool:
        """Return whether this id may be confirmed: it came before, or few others are open."""
        return self.has_seen(transaction_id) or len(self.all_open()) + len(self.writing) < MOST_IDS

    def has_seen(self, transaction_id: int | None) -> bool:
        """Return whether this id came before."""
        return transaction_id in self.confirmations or transaction_id in self.writing

    def others_in_doubt(self, report: StatusReport | None) -> set[int | None]:
        """Return the transactions that may have paid the form, as far as is known, without those that a report names.

        The service's list under our own id may lag behind, and another transaction than the reported one may be paid.
        """
        named = {None, DROPPED} if report is None else {None, DROPPED, report.transaction_id, *report.others}
        answered = {
            each.transaction_id for each in self.confirmations.values() if each.declined or not each.open
        }
        return {*self.record.candidate_ids, *self.confirmations, *self.writing} - named - answered

    def unanswered(self) -> list[int]:
        """Return the transactions named to this form whose confirmation never had an answer, in the order of time."""
        answered = {each.transaction_id for each in self.confirmations.values() if each.is_answered}
        return [each for each in self.record.candidate_ids if each not in (DROPPED, *answered, *self.writing)]

    def begin(self, transaction_id: int | None, now: float) -> Confirmation:
        """Return the open confirmation of this id; begin one anew, with all its tries, where none is open."""
        before = self.confirmations.get(transaction_id)
        if before is not None and before.open:
            return before
        # An id that was tried a moment ago rests, however often it is named. A new id is tried at once, unless others
        # are open: the form has one request a second then.
        due = now if before is None else max(now, self.rested_at)
        if before is None and not self.all_open():
            self.tried_at = NEVER
        if before is None and len(self.confirmations) >= 2 * MOST_IDS:
            self.confirmations = {each.transaction_id: each for each in self.all_open()}
        on_record = before is not None and before.on_record
        begun = Confirmation(transaction_id, open=True, begun=now, due=due, on_record=on_record)
        # In the place of the one before, if any: the order is that of their first coming.
        self.confirmations[transaction_id] = begun
        return begun

    def due(self, now: float) -> float | None:
        """Return when the next request is made; None: no request is left."""
        following = self._next(now)
        return None if following is None else max(following.due, self.rested_at)

    def next_request(self, now: float) -> Confirmation | None:
        """Return the confirmation to be requested now, and count the try; None: none is open."""
        following = self._next(now)
        if following is not None:
            following.tries, self.tried_at = following.tries + 1, now
        return following

    def _next(self, now: float) -> Confirmation | None:
        """Return the open confirmation that is due and was tried least: forged ids do not hold up a fresh one.

        The first id that has no answer comes before all others: it may have been carried out, and only one payment of a
        form is confirmed.
        """
        waiting = self.all_open()
        first = next(
            (each for each in waiting if each.transaction_id is not None and not each.is_answered), None
        )
        if first is not None:
            waiting = [each for each in waiting if each is first or each.transaction_id is None]
        return min(waiting, key=lambda each: (max(each.due, now), each.tries), default=None)

    def end_request(self, current: Confirmation | None, now: float, *, settled: bool, wait: float) -> bool:
        """Note the end of a request; the next comes after `wait` seconds or more. Return whether its id is given up."""
        if self.record.state in OVER:
            self.close()
        if current is None or not current.open:
            return False
        scale = self.window / NORMAL_WINDOW
        current.due = now + max(BACK_OFF[min(current.tries, len(BACK_OFF)) - 1] * scale, wait)
        if settled:
            current.is_answered, current.open = True, False
        elif current.is_answered or current.transaction_id is None:
            current.open = now - current.begun <= self.window
        elif all(now - each.begun > self.window for each in self.all_open()):
            # The ids that have waited for its answer were not confirmed in time either.
            self.close()
        current.wake()
        return not settled and not current.open

    def close(self) -> None:
        """Close every confirmation."""
        for each in self.all_open():
            each.open = False
            each.wake()

    def is_unconfirmed(self, transaction_id: int | None, now: float) -> bool:
        """Return whether the service may still reverse a transaction that a query found accepted just now, even late.

        The time counts from the first such query, which is noted. A return that names an id may be forged, and early.
        """
        return now - self.accepted_at.setdefault(transaction_id, now) <= 2 * self.window


class Confirmer:
    """The forms of one tracker that came back, or were found paid. One request at a time is made for each."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._asks = poller.asks
        self._clock = poller.clock
        self._session = poller.session
        profile = poller.session.profile
        #: Whether the service wants confirmations at all.
        self.confirms: bool = profile.confirm is not None
        self._window = NORMAL_WINDOW if profile.confirm is None else profile.confirm.window
        self._forms: dict[str, ReturnedForm] = {}

    # --- What is to be confirmed

    async def returned(self, record: Record, back: Return) -> Outcome:
        """Record what a browser brought back, confirm it once, and say what is known then."""
        if back.unusable:
            what = "the form could not be used: is it opened from the registered domain?"
            log("warning", "form_unusable", record.client_transaction_id, what)
        transaction_id = back.transaction_id
        is_over = record.state in OVER or record.state is State.REFUSED
        if is_over or (transaction_id is None and record.state is State.CANCELLED):
            return Outcome.of(record)
        form = self._form(record)
        if form.has_room_for(transaction_id):
            if form.has_seen(transaction_id):
                tried = self._confirm(form, transaction_id)
            else:
                form.writing.add(transaction_id)
                words = "the tracker was closed before the return was on record"
                write = self._write_return(form, transaction_id)
                tried = await self._poller.finish(write, record.client_transaction_id, words)
            with suppress(TimeoutError):
                await within(self._clock, self._session.timeouts.total, tried.wait())
        return Outcome.of(form.record, report=form.report)

    async def _write_return(self, form: ReturnedForm, transaction_id: int | None) -> asyncio.Event:
        """Record a return, then confirm it: in this order, so that it is confirmed again after a crash."""
        try:
            event = Returned(at=self._clock.time(), transaction_id=transaction_id)
            form.record = await self._asks.ledger.apply(form.record, event)
        except LedgerError:
            # Confirm even if the ledger is down: otherwise the service reverses the payment.
            self._confirm(form, transaction_id)
            raise
        finally:
            form.writing.discard(transaction_id)
        self._asks.note_written(form.record)
        return self._confirm(form, transaction_id, begins=self._asks.is_open)

    def confirm_named(self, record: Record, transaction_ids: Sequence[int | None]) -> None:
        """Confirm transactions that were named to a form, without waiting; for None query whether it is paid."""
        if self.confirms and record.state not in OVER:
            for transaction_id in transaction_ids:
                if (form := self._form(record)).has_room_for(transaction_id):
                    self._confirm(form, transaction_id)

    async def recover(self, records: Sequence[Record]) -> None:
        """Go on confirming those of these forms that came back."""
        for record in records if self.confirms else ():
            if record.kind == "form" and (record.notified_at is not None or record.candidate_ids):
                self.confirm_named(record, (await unconfirmed_ids(self._asks.ledger, record))[:MOST_IDS])

    async def recover_abandoned(self, seconds: float) -> None:
        """Go on with every form that was paid after its customer had given it up, so many seconds ago at most.

        Its confirmation may have been carried out by a process that died before the answer came.
        """
        if self.confirms:
            async for record in unpaid_since(self._asks.ledger, self._clock.time() - seconds):
                await self.recover([record] if is_abandoned(record) else [])

    def pending_until_confirmed(self, record: Record, report: StatusReport) -> StatusReport:
        """Return the report of a form, with the state Pendiente while a payment of the form is not confirmed.

        A payment that the report shows is confirmed then. Of a cancelled one another transaction may be the payment,
        as long as its confirmation has no answer.
        """
        if not self.confirms or record.state in OVER:
            return report
        if report.state == "Cancelado":
            is_final = not self._confirm_others(self._form(record), report)
            return report if is_final else attrs.evolve(report, state="Pendiente")
        if report.state != "Aceptado" or find_mismatch(record, report):
            return report  # it shows no payment of this form
        form = self._form(record)
        if not form.is_unconfirmed(report.transaction_id, self._clock.monotonic()):
            self.forget(form)
            return report  # the service would have reversed an unconfirmed payment by now
        if report.transaction_id is not None:
            self._confirm(form, report.transaction_id)
        return attrs.evolve(report, state="Pendiente")

    def _form(self, record: Record) -> ReturnedForm:
        """Return the form's confirmations, with its newest record."""
        form = self._forms.setdefault(record.client_transaction_id, ReturnedForm(record, self._window))
        if (record.attempt, record.version) > (form.record.attempt, form.record.version):
            form.record = record
        return form

    def _confirm(
        self, form: ReturnedForm, transaction_id: int | None, *, begins: bool = True
    ) -> asyncio.Event:
        """Confirm this transaction, now or as soon as it is its turn, and return the event that is set after that try.

        None: query whether the form is paid. With `begins` False it is left to the next process. Transactions that were
        named before and have no answer come first: one may have been confirmed, here or elsewhere, and only one payment
        of a form is.
        """
        ends = self._asks.closed or not begins
        for each in (*form.unanswered(), transaction_id):
            confirmation = form.begin(each, self._clock.monotonic())
            confirmation.open = not ends  # where it ends, the next process finds it in the ledger
        tried = confirmation.tried
        if ends:
            tried.set()
        else:
            self._poller.plan_form(form)
        return tried

    def forget(self, form: ReturnedForm) -> None:
        """Drop a form that has nothing left to confirm: the ledger has its outcome.

        Only a second after its last request: a form that is named again and again is not requested more often.
        """
        if not form.is_idle or self._forms.get(form.record.client_transaction_id) is not form:
            return
        if self._clock.monotonic() < form.rested_at and not self._asks.closed:
            self._asks.due.put(form, form.rested_at)
        else:
            del self._forms[form.record.client_transaction_id]

    def reversal_times(self) -> list[float]:
        """Return when the service reverses each form that is being confirmed: UTC seconds, too early where unsure."""
        now, at = self._clock.monotonic(), self._clock.time()
        times = []
        for form in self._forms.values():
            begun = [at - (now - each.begun) for each in form.all_open() if each.transaction_id is not None]
            if begun:
                # After a restart the confirmation has a new begin here; the service counts on from the old one.
                noted = form.record.notified_at
                times.append(min(begun if noted is None else [*begun, noted]) + self._window)
        return times

    def close(self) -> None:
        """Stop. The ledger has what is open; the next start confirms it."""
        for form in self._forms.values():
            form.close()

    # --- The requests

    async def request(self, form: ReturnedForm, now: float) -> None:
        """Make the next request about a form, if one is left, take the answer, and plan the one after it."""
        identifier, settled, wait = form.record.client_transaction_id, False, 0.0
        current, queries = form.next_request(now), self._poller.queries
        try:
            with suppress(LedgerError):  # a ledger that cannot be read stops no confirmation
                form.record = await self._asks.ledger.get(identifier) or form.record
            await self._put_on_record(form, current)
            settled = current is None or form.record.state in OVER or await self._try(form, current)
        except RateLimitedError as limited:
            # Never so long that the payment is reversed meanwhile.
            wait = min(5.0 if limited.retry_after is None else limited.retry_after, self._window / 10)
        except UnauthorizedError:
            what = "confirmations are refused (401): is the token still good?"
            queries.warn_once("confirmations_unauthorized", identifier, what)
        except RefusedError as refused:
            settled = current is None or await self._refused(form, current, refused)
        except PayError as error:
            if current is not None and isinstance(error, OutcomeUnknownError):
                current.is_answered = False
            what = f"a confirmation failed: {type(error).__name__}"
            queries.warn_once("confirmation_unanswered", identifier, what)
        except Exception as error:  # our own error must not lose the form
            log("error", "confirmation_failed", identifier, "confirming failed: %s", type(error).__name__)
        finally:
            form.task = None
        self._end_request(form, current, settled, wait)

    async def _put_on_record(self, form: ReturnedForm, current: Confirmation | None) -> None:
        """Write the transaction id that is confirmed next to the ledger, unless the ledger has it already.

        After a crash the next process goes on from it: the confirmation may be carried out, and its answer lost.
        """
        record = form.record
        if current is None or current.transaction_id is None or current.on_record or record.state in OVER:
            return
        if current.transaction_id in form.writing:
            return  # `_write_return` is writing it
        current.on_record = current.transaction_id in (record.transaction_id, *record.candidate_ids)
        if not current.on_record:
            # What a browser brought may be forged: only what a query found is the service's word.
            named = FoundPending if current.transaction_id in form.accepted_at else Returned
            event = named(at=self._clock.time(), transaction_id=current.transaction_id)
            form.record = await self._asks.write(record, event)
            # What the ledger could not take of a return is written later; of a query it is written with the next try.
            current.on_record = named is Returned or current.transaction_id in form.record.candidate_ids

    def _end_request(
        self, form: ReturnedForm, current: Confirmation | None, settled: bool, wait: float
    ) -> None:
        """Note that a request has ended, and plan the next one; forget a form that needs none."""
        now, record, policy = self._clock.monotonic(), form.record, self._poller.policy
        given_up = form.end_request(current, now, settled=settled, wait=wait)
        if given_up:
            if current is not None and current.transaction_id is not None:
                identifier = record.client_transaction_id
                log("error", "confirmation_late", identifier, "not confirmed in time; its status will tell")
            polling_ended = record.state in (State.CANCELLED, State.EXPIRED)
            if polling_ended and self._clock.time() < policy.closed_until(record):
                # A confirmation may have been carried out: query until there is an answer.
                form.begin(None, now)
        self._poller.plan_form(form)
        self.forget(form)

    async def _try(self, form: ReturnedForm, current: Confirmation) -> bool:
        """Confirm an id, or query a form whose browser came back cancelled. Return whether that settles it."""
        record, transaction_id, queries = form.record, current.transaction_id, self._poller.queries
        identifier = record.client_transaction_id
        if transaction_id is None:
            return await self._query(form, current)
        if await self._is_replaced(record):
            what = "its payment is not confirmed: its purchase has another ask, which is paid or may be"
            queries.warn_once("confirmation_withheld", identifier, what)
            return False
        report = await self._session.confirm(transaction_id, identifier, repeat=False)
        reading = read_confirmation(record, transaction_id, report, self._clock.time())
        is_settled = await self._take(form, current, reading)
        # What an answer says of another transaction settles nothing: a proxy gave it to the wrong request.
        is_about_it = report.transaction_id == transaction_id
        current.is_answered = current.declined and is_about_it
        return is_settled and is_about_it

    async def _query(self, form: ReturnedForm, current: Confirmation) -> bool:
        """Query whether a form is paid. Return whether the answer, or that there can be none, settles that."""
        record, queries = form.record, self._poller.queries
        if not self._poller.policy.by_client_id:
            return True
        report = await self._session.status(client_transaction_id=record.client_transaction_id, repeat=False)
        if (report is None or report.state == "Cancelado") and not queries.can_see(record):
            return True
        if report is not None and self.pending_until_confirmed(record, report) is not report:
            return True  # a payment of the form is confirmed first
        return await self._take(form, current, read_form(record, report, self._clock.time()))

    async def _is_replaced(self, form: Record) -> bool:
        """Return whether another ask of a form's purchase is paid, or may be: then the form is not confirmed.

        A push that the shop chose to send beside the form does not count, nor a form that nobody has paid so far.
        """
        another = Record(client_transaction_id="", purchase=form.purchase, created_at=self._clock.time())
        try:
            asks = await self._asks.ledger.asks(form.purchase)
        except LedgerError:
            if form.state is State.CANCELLED:
                raise  # its purchase was free for other asks
            return False
        return any(
            each.client_transaction_id != form.client_transaction_id
            and not each.beside_open_form
            and holds_purchase(each, another)
            and (each.kind == "sale" or each.state in PAID or bool(each.candidate_ids))
            for each in asks
        )

    def _confirm_others(self, form: ReturnedForm, report: StatusReport | None) -> bool:
        """Confirm the other transactions that may have paid a form than a report names; return whether any may."""
        others = form.others_in_doubt(report)
        for transaction_id in others:
            if not form.has_seen(transaction_id):
                self._confirm(form, transaction_id)
        self.forget(form)
        return bool(others)

    async def _take(self, form: ReturnedForm, current: Confirmation, reading: Reading) -> bool:
        """Write what an answer means, and return whether that settles the confirmation."""
        current.declined = any(isinstance(each, Abandoned | FoundCancelled) for each in reading.events)
        if current.declined and self._confirm_others(form, reading.report):
            return False
        form.report = reading.report or form.report
        if reading.conflict is not None:
            what = f"a confirmation is not ours: {reading.conflict}"
            log("error", "confirmation_conflicted", form.record.client_transaction_id, "%s", what)
        form.record = await self._poller.queries.write(form.record, reading)
        # The id is confirmed again later where nothing is decided, the state does not take the event, or the ledger
        # fails. A form may have been CANCELLED before: that settles an id only if its own answer says so, too.
        is_over = form.record.state in OVER or (current.declined and form.record.state.decided)
        return is_over or any(isinstance(each, Conflicted) for each in reading.events)

    async def _refused(self, form: ReturnedForm, current: Confirmation, refused: RefusedError) -> bool:
        """Return whether the id is left alone: the service answered "no such transaction" often enough."""
        current.is_answered = True
        current.refusals += refused.error_code in self._session.profile.not_found_codes
        identifier = form.record.client_transaction_id
        if current.refusals < MOST_REFUSALS:
            what = f"a confirmation was refused: {refused.error_code}"
            self._poller.queries.warn_once("confirmation_refused", identifier, what)
            return False
        what = f"confirming transaction {current.transaction_id}: no such transaction"
        # From another account "no such transaction" proves nothing about a confirmation sent from ours.
        closed = form.record.state is State.CANCELLED and self._poller.queries.can_see(form.record)
        event = Conflicted(
            at=self._clock.time(), what=what, candidate_id=current.transaction_id if closed else None
        )
        form.record = await self._asks.write(form.record, event)
        return True
