"""The confirmations of one form: which id is confirmed next, and when. Pure: no clock, no I/O, no logging.

Anybody can send a browser back with any id, so that several ids of one form are confirmed in turn, one a second. Times
are monotonic seconds.
"""

from __future__ import annotations

import asyncio

import attrs

from payclient.lifecycle import APPROVED, DROPPED, Record, State
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.followup import NEVER, Scheduled

#: Ids of one form that are confirmed in turn: one of them is its own, the others are forged.
MOST_IDS = 16

#: Answers "no such transaction" after which an id is left alone until it comes again: 15 s by the back-off.
MOST_REFUSALS = 5

#: The part of the window for which a confirmation waits for its turn by the rate. Then the form comes first.
TURN = 1 / 20

#: Seconds from one try to the next, for a window of `NORMAL_WINDOW`; the last one goes on.
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 15.0)


def is_confirmed(form: Record) -> bool:
    """Return whether no payment of a form is confirmed any more: one was. A person's word alone confirms none."""
    return form.state in APPROVED and (form.state is not State.ACCEPTED or form.transaction_id is not None)


@attrs.define(eq=False)
class Confirmation:
    """One id to confirm; None: the browser came back cancelled, and a query shows whether the form was paid."""

    transaction_id: int | None
    begun: float
    due: float
    open: bool = True
    tries: int = 0
    refusals: int = 0
    #: Whether the service said that it is not paid.
    declined: bool = False
    #: Whether the service confirmed it, and did not say whose it is: a query by our id does.
    is_nameless: bool = False
    #: Whether it may be carried out already, by whatever process, until the service's latest answer shows otherwise.
    in_doubt: bool = True
    #: Whether no other ask of the purchase was in its way at a try: a form that is paid later waits for this one.
    is_first: bool = False
    #: Whether another ask of the purchase was in its way at the latest try.
    is_withheld: bool = False
    #: Whether the ledger names it, or did.
    on_record: bool = False
    #: Whether the return that names it is being written: it is confirmed after that.
    is_being_written: bool = False
    #: Set, and replaced, at the end of each try.
    tried: asyncio.Event = attrs.field(factory=asyncio.Event)

    def wake(self) -> None:
        """End the waits for the try that has ended."""
        self.tried.set()
        self.tried = asyncio.Event()


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
        """For how many seconds a confirmation waits for its turn. Of several ids most are forged: all wait as one."""
        return self.window * TURN / max(len(self.all_open()), 1)

    @property
    def is_idle(self) -> bool:
        """Whether no request is left to make, so that the ledger has all that there is."""
        busy = self.all_open() or self.task is not None
        return not busy and (self.record.state.decided or not (self.accepted_at or self.record.candidate_ids))

    @property
    def nameless(self) -> set[int | None]:
        """The transactions that the service confirmed without saying whose they are."""
        return {each.transaction_id for each in self.confirmations.values() if each.is_nameless}

    def all_open(self) -> list[Confirmation]:
        """Return the open confirmations."""
        return [each for each in self.confirmations.values() if each.open]

    def has_room_for(self, transaction_id: int | None) -> bool:
        """Return whether this id may be confirmed: it came before, or few others are open."""
        return transaction_id in self.confirmations or len(self.all_open()) < MOST_IDS

    def is_settled(self, transaction_id: int | None) -> bool:
        """Return whether this id had its answer, so that it needs no other."""
        found = self.confirmations.get(transaction_id)
        return found is not None and not (found.in_doubt or found.open)

    def others_in_doubt(self, report: StatusReport | None) -> set[int | None]:
        """Return the transactions that may have paid the form, as far as is known, without those that a report names.

        The service's list under our own id may lag behind, and another transaction than the reported one may be paid.
        """
        named = {None, DROPPED} if report is None else {None, DROPPED, report.transaction_id, *report.others}
        answered = {
            each.transaction_id
            for each in self.confirmations.values()
            if each.declined or not (each.open or each.is_nameless)
        }
        return {*self.record.candidate_ids, *self.confirmations} - named - answered

    def begin_in_doubt(self, now: float) -> Confirmation | None:
        """Begin the confirmations of transactions that may be confirmed already, before all others; return the first.

        Theirs is the ledger's order, so that processes that confirm one form at once confirm the same transaction.
        """
        answered = {each.transaction_id for each in self.confirmations.values() if not each.in_doubt}
        in_doubt = [each for each in self.record.candidate_ids if each not in (DROPPED, *answered)]
        begun = [self.begin(each, now) for each in in_doubt]
        self.confirmations = {each: self.confirmations[each] for each in (*in_doubt, *self.confirmations)}
        return begun[0] if begun else None

    def reversed_at(self, now: float, at: float) -> float | None:
        """Return when the service reverses an unconfirmed payment, in UTC seconds; None: no transaction is confirmed.

        `at` is the time `now` in UTC seconds.
        """
        begun = [at - (now - each.begun) for each in self.all_open() if each.transaction_id is not None]
        if begun and self.record.notified_at is not None:
            # After a restart the confirmation has a new begin here; the service counts on from the old one.
            begun.append(self.record.notified_at)
        return min(begun) + self.window if begun else None

    def begin(self, transaction_id: int | None, now: float) -> Confirmation:
        """Return the open confirmation of this id; begin one anew, with all its tries, where none is open."""
        before = self.confirmations.get(transaction_id)
        if before is not None and before.open:
            return before
        # A new id is tried at once, unless others are open: the form has one request a second then. An id that was
        # tried a moment ago rests, however often it is named.
        if before is None and not self.all_open():
            self.tried_at = NEVER
        if before is None and len(self.confirmations) >= 2 * MOST_IDS:
            self.confirmations = {each.transaction_id: each for each in self.all_open()}
        on_record = before is not None and before.on_record
        begun = Confirmation(transaction_id, begun=now, due=now, on_record=on_record)
        # In the place of the one before, if any: the order is that of their first coming.
        self.confirmations[transaction_id] = begun
        return begun

    def due(self, now: float) -> float | None:
        """Return when the next request is made, or when the form is forgotten; None: neither is left to do.

        Both only a second after the last request: a form that is named again and again is not requested more often.
        """
        following, rested_at = self._next(now), self.tried_at + min(1.0, self.window / NORMAL_WINDOW)
        if following is None:
            return rested_at if self.is_idle else None
        return max(following.due, rested_at)

    def next_request(self, now: float) -> Confirmation | None:
        """Return the confirmation to be requested now, and count the try; None: none is open."""
        following = self._next(now)
        if following is not None:
            following.tries, self.tried_at = following.tries + 1, now
        return following

    def _next(self, now: float) -> Confirmation | None:
        """Return the open confirmation that is due first; of those that are due now, the one that was tried least.

        The first id that may be confirmed already comes before the others: a form has only one confirmed payment.
        """
        waiting = [each for each in self.all_open() if not each.is_being_written]
        first = next((each for each in waiting if each.transaction_id is not None and each.in_doubt), None)
        if first is not None:
            waiting = [each for each in waiting if each is first or each.transaction_id is None]
        return min(waiting, key=lambda each: (max(each.due, now), each.tries), default=None)

    def end_request(self, current: Confirmation, now: float, *, settled: bool, wait: float) -> bool:
        """Note the end of a request; the next comes after `wait` seconds or more. `settled`: its id needs no other.

        Returns whether the id is given up, because its window is over.
        """
        if is_confirmed(self.record):
            self.close()
        if not current.open:
            return False
        scale = self.window / NORMAL_WINDOW
        current.due = now + max(BACK_OFF[min(current.tries, len(BACK_OFF)) - 1] * scale, wait)
        if settled:
            current.in_doubt = current.open = False
        elif not current.in_doubt or current.transaction_id is None:
            current.open = now - current.begun <= self.window
        elif all(now - each.begun > self.window for each in self.all_open()):
            # The other ids had to wait for its answer (`_next`): all are given up together, after the last window.
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
