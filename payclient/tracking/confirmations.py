"""What is asked about a form that came back, and which of it is next. Pure: no clock, no I/O, no logging.

A paid form must be confirmed, or the service reverses it. Anybody can send a browser back with any id, so that
several are confirmed in turn, one a second, the least tried first. Times are monotonic seconds.
"""

from __future__ import annotations

from typing import Any

import attrs

from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.followup import Scheduled

__all__: list[str] = []

#: Answers "no such transaction" after which an id is left alone until it comes again: 15 s by the back-off.
MOST_REFUSALS = 5

#: Ids of one form that are confirmed in turn, one a second: one of them is its own, the others are forged.
MOST_IDS = 16

#: Seconds from one try to the next, for a window of `NORMAL_WINDOW`; the last one goes on.
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 15.0)

#: States of a form about which nothing is asked any more: a cancelled one may yet be paid.
OVER = (State.ACCEPTED, State.REFUSED, State.REVERSING, State.REVERSED)

#: The part of the window for which a confirmation waits for its turn by the rate. Then the form comes first.
TURN = 1 / 20


@attrs.define(eq=False)
class Confirmation:
    """One id to confirm; None: the browser came back cancelled, and a query tells whether the form was paid."""

    transaction_id: int | None
    open: bool = False
    begun: float = 0.0
    due: float = 0.0
    tries: int = 0
    refusals: int = 0
    #: The futures of those who wait for one more try.
    waiters: list[Any] = attrs.field(factory=list)

    def begin(self, now: float) -> None:
        """Open the confirmation, with all its tries before it."""
        self.open = True
        self.begun = self.due = now
        self.tries = self.refusals = 0

    def wake(self) -> None:
        """End the waits for one more try."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class ReturnedForm(Scheduled):
    """One form that came back, or was found paid. `window` is how long the service waits for the confirmation."""

    __slots__ = (
        "_least_gap", "_scale", "_window", "asked", "confirmations",
        "found", "record", "report", "tried_at", "writing",
    )  # fmt: skip

    def __init__(self, record: Record, window: float) -> None:
        super().__init__()
        self.record: Record = record
        self._window = window
        self._scale = window / NORMAL_WINDOW
        self._least_gap = min(1.0, self._scale)
        self.confirmations: dict[int | None, Confirmation] = {}
        #: Ids whose return is being written, to be confirmed then.
        self.writing: set[int | None] = set()
        #: Transaction id -> when a status query first found it accepted.
        self.found: dict[int | None, float] = {}
        self.tried_at: float = float("-inf")
        #: What is being asked right now.
        self.asked: Confirmation | None = None
        self.report: StatusReport | None = None

    @property
    def is_over(self) -> bool:
        """Whether the service's word is final: a cancelled form may yet be paid."""
        return self.record.state in OVER

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to ask, so that the ledger knows all that there is."""
        busy = self.open() or self.writing or self.task is not None
        return not busy and (self.record.state.decided or not self.found)

    def open(self) -> list[Confirmation]:
        """Return the open confirmations."""
        return [each for each in self.confirmations.values() if each.open]

    def takes(self, transaction_id: int | None) -> bool:
        """Return whether one more id may be asked about."""
        return self.knows(transaction_id) or len(self.open()) + len(self.writing) < MOST_IDS

    def knows(self, transaction_id: int | None) -> bool:
        """Return whether this id came before."""
        return transaction_id in self.confirmations or transaction_id in self.writing

    def begin(self, transaction_id: int | None, now: float) -> Confirmation:
        """Open the confirmation of this id, unless it is open already."""
        found = self.confirmations.get(transaction_id)
        if found is None:
            if len(self.confirmations) >= 2 * MOST_IDS:
                self.confirmations = {each.transaction_id: each for each in self.open()}
            found = self.confirmations[transaction_id] = Confirmation(transaction_id)
        if not found.open:
            found.begin(now)
        return found

    def due(self, now: float) -> float | None:
        """Return when the next request is made; None: nothing is left to ask."""
        next_one = self._next(now)
        return None if next_one is None else max(next_one.due, self.tried_at + self._least_gap)

    def forced_at(self, due: float) -> float:
        """Return when a request that was due then is made though the rate does not allow it."""
        return due + self._window * TURN

    def next_request(self, now: float) -> Confirmation | None:
        """Return what is asked now, and note it."""
        self.asked = self._next(now)
        if self.asked is not None:
            self.asked.tries += 1
            self.tried_at = now
        return self.asked

    def _next(self, now: float) -> Confirmation | None:
        """Return the open confirmation that is due and was tried least: forged ids do not hold up a fresh one."""
        return min(self.open(), key=lambda each: (max(each.due, now), each.tries), default=None)

    def wait_for(self, retry_after: float | None) -> float:
        """Return the seconds to wait after a 429: never so long that the payment is reversed meanwhile."""
        return min(5.0 if retry_after is None else retry_after, self._window / 10)

    def answered(self, now: float, *, settled: bool, wait: float) -> bool:
        """Note that the request has ended; the next comes after `wait` seconds. Return whether its id is given up."""
        asked, self.asked = self.asked, None
        if self.is_over:
            for each in self.open():
                each.open = False
        if asked is None or not asked.open:
            return False
        if not settled and now - asked.begun <= self._window:
            asked.due = now + max(BACK_OFF[min(asked.tries - 1, len(BACK_OFF) - 1)] * self._scale, wait)
            return False
        asked.open = False
        return not settled and asked.transaction_id is not None

    def wake(self, asked: Confirmation | None) -> None:
        """End the waits for one more try of this id, and for what is not asked any more."""
        for each in self.confirmations.values():
            if each is asked or not each.open:
                each.wake()

    def close(self) -> None:
        """Close every confirmation."""
        for each in self.confirmations.values():
            each.open = False
            each.wake()

    def is_unconfirmed(self, transaction_id: int | None, now: float) -> bool:
        """Return whether a transaction that a query found accepted may still be reversed by the service, even late.

        The time counts from that query: anybody can send a browser that names an id before it is paid.
        """
        return now - self.found.setdefault(transaction_id, now) <= 2 * self._window
