"""The confirmations of one form: which id is confirmed next, and when. Pure: no clock, no I/O, no logging.

Anybody can send a browser back with any id, so that several ids of one form are confirmed in turn, one a second. Times
are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable

import attrs

from payclient.lifecycle import APPROVED, DROPPED, Record, State
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.evidence import Reading, conflict, read_form
from payclient.tracking.followup import NEVER, Scheduled

#: Ids of one form that are confirmed in turn: one of them is its own, the others are forged.
MOST_IDS = 16

#: Answers "no such transaction" after which an id is left alone until it comes again: 15 s by the back-off.
MOST_REFUSALS = 5

#: The part of the window for which a confirmation waits for its turn by the rate. Then the form comes first.
TURN_PATIENCE = 1 / 20

#: Seconds from one try to the next, for a window of `NORMAL_WINDOW`; the last one goes on.
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 15.0)


def is_confirmed(form: Record) -> bool:
    """Return whether no payment of a form is confirmed any more: one was. A person's word alone confirms none."""
    return form.state in APPROVED and (form.state is not State.ACCEPTED or form.transaction_id is not None)


class Stage(enum.Enum):
    """How far the confirmation of one id has come. The first four are open: a request of the id is to be made."""

    #: The return that names the id is being written. The id is confirmed after that.
    ARRIVED = "arrived"
    #: No answer has told how a confirmation, requested by any process, ended: it may be carried out.
    IN_DOUBT = "in doubt"
    #: The service's latest answer is an error: the confirmation was not carried out.
    REFUSED = "refused"
    #: The service answers that the transaction is not paid. That counts once no other id of the form is in doubt.
    DECLINED = "declined"
    #: The transaction is confirmed, and the answer did not name whose it is. A query by our id does.
    NAMELESS = "nameless"
    #: No other request is needed: an answer came, or nothing but a refusal within the window.
    SETTLED = "settled"
    #: The window is over, and the confirmation may be carried out.
    GIVEN_UP = "given up"


_OPEN_STAGES = (Stage.ARRIVED, Stage.IN_DOUBT, Stage.REFUSED, Stage.DECLINED)
#: The stages in which it may be carried out, without a word of the service.
_UNANSWERED = (Stage.ARRIVED, Stage.IN_DOUBT, Stage.GIVEN_UP)
#: The stages in which it keeps the form from being called unpaid.
_MAY_BE_PAID = (Stage.ARRIVED, Stage.IN_DOUBT, Stage.REFUSED, Stage.NAMELESS)


@attrs.define(eq=False)
class Confirmation:
    """One id to confirm; None: a status query, which shows whether the form was paid."""

    transaction_id: int | None
    begun: float
    due: float
    stage: Stage = Stage.IN_DOUBT
    tries: int = 0
    refusals: int = 0
    #: Whether another ask of the purchase was in its way at the latest try.
    is_withheld: bool = False
    #: Whether none was, and the ledger named it by then: a form that is paid later gives way to this one.
    goes_first: bool = False
    #: Whether the ledger names it, or did.
    on_record: bool = False
    #: Set, and replaced, at the end of each try.
    tried: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def is_query(self) -> bool:
        """Whether it stands for a status query, and confirms nothing."""
        return self.transaction_id is None

    @property
    def is_open(self) -> bool:
        """Whether a request of it is to be made."""
        return self.stage in _OPEN_STAGES

    def wake(self) -> None:
        """End the waits for the try that has ended."""
        self.tried.set()
        self.tried = asyncio.Event()


def read_confirmation(
    form: Record, transaction_id: int, report: StatusReport, at: float
) -> tuple[Reading, Stage]:
    """Return what an answer to a confirmation means, and its id's stage unless that, once written, decides the form."""
    if report.transaction_id != transaction_id:
        # A proxy may have given it to the wrong request: it settles nothing.
        return conflict(f"confirming transaction {transaction_id} answered another", at), Stage.IN_DOUBT
    # A field that cannot be read does not make the payment another form's.
    reading = read_form(form, attrs.evolve(report, unreadable=()), at)
    if reading.conflict is not None:
        return reading, Stage.SETTLED
    if report.unreadable or report.client_transaction_id is None or report.amount is None:
        what = f"confirming transaction {transaction_id} does not say what it confirms"
        stages = {"Aceptado": Stage.NAMELESS, "Cancelado": Stage.SETTLED}
        return conflict(what, at), stages.get(report.state or "", Stage.IN_DOUBT)
    return reading, Stage.DECLINED if report.state == "Cancelado" else Stage.IN_DOUBT


@attrs.define(eq=False, weakref_slot=False)
class ReturnedForm(Scheduled):
    """The confirmations of one form. Pure. `window` is how many seconds the service waits for one."""

    record: Record
    window: float
    #: By transaction id; that of None is a status query.
    confirmations: dict[int | None, Confirmation] = attrs.field(factory=dict)
    #: Transaction id -> when a status query first found it accepted.
    accepted_at: dict[int | None, float] = attrs.field(factory=dict)
    #: When the latest request about the form was made.
    tried_at: float = NEVER
    report: StatusReport | None = None

    @property
    def patience(self) -> float:
        """For how many seconds a confirmation waits for its turn. Most of several ids are forged: all wait as one."""
        return self.window * TURN_PATIENCE / max(len(self.all_open()), 1)

    @property
    def is_idle(self) -> bool:
        """Whether no request is left to make, so that the ledger has all that there is."""
        may_be_paid = not self.record.state.decided and (self.accepted_at or self.record.candidate_ids)
        return not (self.all_open() or may_be_paid)

    def ids_at(self, *stages: Stage) -> set[int | None]:
        """Return the ids whose confirmations are at one of these stages."""
        return {each.transaction_id for each in self.confirmations.values() if each.stage in stages}

    def all_open(self) -> list[Confirmation]:
        """Return the open confirmations."""
        return [each for each in self.confirmations.values() if each.is_open]

    def has_room_for(self, transaction_id: int | None) -> bool:
        """Return whether this id may be confirmed: it came before, or few others are open."""
        return transaction_id in self.confirmations or len(self.all_open()) < MOST_IDS

    def others_that_may_have_paid(self, report: StatusReport | None) -> set[int | None]:
        """Return the transactions that may have paid the form, as far as is known, without those that a report names.

        The service's list under our own id may lag behind, and another transaction than the reported one may be paid.
        """
        named = {None, DROPPED} if report is None else {None, DROPPED, report.transaction_id, *report.others}
        unconfirmed = set(self.record.candidate_ids) - self.confirmations.keys()
        return (unconfirmed | self.ids_at(*_MAY_BE_PAID)) - named

    def begin_in_doubt(self, now: float) -> Confirmation | None:
        """Begin the confirmations of all ids in doubt, and put them before all others; return the first.

        Their order is the ledger's, so that processes that confirm one form at once confirm the same transaction.
        """
        answered = self.confirmations.keys() - self.ids_at(*_UNANSWERED)
        in_doubt = [each for each in self.record.candidate_ids if each not in (DROPPED, *answered)]
        begun = [self.begin(each, now) for each in in_doubt]
        self.confirmations = {each: self.confirmations[each] for each in (*in_doubt, *self.confirmations)}
        return begun[0] if begun else None

    def reversed_at(self, now: float, at: float) -> float | None:
        """Return when the service reverses an unconfirmed payment, in UTC seconds; None: no transaction is confirmed.

        `at` is the time `now` in UTC seconds.
        """
        begun = [at - (now - each.begun) for each in self.all_open() if not each.is_query]
        if begun and self.record.notified_at is not None:
            # After a restart the confirmation has a new begin here; the service counts on from the old one.
            begun.append(self.record.notified_at)
        return min(begun) + self.window if begun else None

    def begin(self, transaction_id: int | None, now: float, stage: Stage = Stage.IN_DOUBT) -> Confirmation:
        """Return the open confirmation of this id; begin one anew, with all its tries, where none is open."""
        before = self.confirmations.get(transaction_id)
        if before is not None and before.is_open:
            return before
        # A new id is tried at once, unless others are open: the form has one request a second then. An id that was
        # tried a moment ago rests, however often it is named.
        if before is None and not self.all_open():
            self.tried_at = NEVER
        if before is None and len(self.confirmations) >= 2 * MOST_IDS:
            self.confirmations = {each.transaction_id: each for each in self.all_open()}
        on_record = before is not None and before.on_record
        begun = Confirmation(transaction_id, begun=now, due=now, stage=stage, on_record=on_record)
        # In the place of the one before, if any: the order is that of their first coming.
        self.confirmations[transaction_id] = begun
        return begun

    def next_look(self, now: float) -> float | None:
        """Return when the next request is made, or when the form is forgotten; None: neither is left to do.

        Both only a second after the latest request: a form that is named again and again is not requested more often.
        """
        following, rested_at = self._next(now), self.tried_at + min(1.0, self.window / NORMAL_WINDOW)
        if following is None:
            return rested_at if self.is_idle else None
        return max(following.due, rested_at)

    def begin_request(self, now: float) -> Confirmation | None:
        """Count a try of the confirmation that is requested now, and return it; None: none is open."""
        following = self._next(now)
        if following is not None:
            following.tries, self.tried_at = following.tries + 1, now
        return following

    def _next(self, now: float) -> Confirmation | None:
        """Return the open confirmation that is due first; of those that are due now, the one that was tried least.

        The first id in doubt comes before the others: a form has only one confirmed payment.
        """
        waiting = [each for each in self.all_open() if each.stage is not Stage.ARRIVED]
        in_doubt = (each for each in waiting if each.stage is Stage.IN_DOUBT and not each.is_query)
        if (first := next(in_doubt, None)) is not None:
            waiting = [each for each in waiting if each is first or each.is_query]
        return min(waiting, key=lambda each: (max(each.due, now), each.tries), default=None)

    def end_request(self, current: Confirmation, now: float, stage: Stage, wait: float = 0.0) -> bool:
        """Note to which stage a request has brought its id; the next request comes after `wait` seconds or more.

        Returns whether the id is given up, because its window is over.
        """
        if is_confirmed(self.record):  # a form has only one confirmed payment
            self.close()
        if not current.is_open:  # closed here, or while the request was on its way
            return False
        scale = self.window / NORMAL_WINDOW
        current.due = now + max(BACK_OFF[min(current.tries, len(BACK_OFF)) - 1] * scale, wait)
        current.stage = stage
        # The other ids wait for one that is in doubt (`_next`): all are given up together, after the last window.
        is_waited_for = stage is Stage.IN_DOUBT and not current.is_query
        together = self.all_open() if is_waited_for else [current]
        is_given_up = current.is_open and all(now - each.begun > self.window for each in together)
        if is_given_up:
            self.close(together)
        current.wake()
        return is_given_up

    def close(self, which: Iterable[Confirmation] | None = None) -> None:
        """Make no other request of these open confirmations; None: of all."""
        for each in self.all_open() if which is None else which:
            each.stage = Stage.GIVEN_UP if each.stage in _UNANSWERED else Stage.SETTLED
            each.wake()

    def note_accepted(self, transaction_id: int | None, now: float) -> bool:
        """Note that a query found a transaction accepted; return whether the service may still reverse it, even late.

        The time counts from the first such query, not from a return that names the id: that may be forged, and early.
        """
        return now - self.accepted_at.setdefault(transaction_id, now) <= 2 * self.window
