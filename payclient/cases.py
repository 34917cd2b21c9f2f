"""What is asked of one form that came back, and which of it is next. No I/O; times are monotonic seconds."""

from __future__ import annotations

import asyncio

from payclient.lifecycle import Record
from payclient.models import StatusReport

__all__: list[str] = []

#: Answers "no such transaction" after which an id is left alone until it is heard of again: 15 s by the back-off.
MOST_REFUSALS = 5

#: Ids of one form that are asked in turn, one a second: one of them is its own, the others are forged.
MOST_IDS = 16


class Question:
    """To confirm an id, or (None) whether the form was paid at all."""

    __slots__ = ("asked", "begun", "due", "open", "refusals", "transaction_id", "tries")

    def __init__(self, transaction_id: int | None) -> None:
        self.transaction_id = transaction_id
        self.open = False
        self.begun = self.due = 0.0
        self.tries = self.refusals = 0
        #: Done when it was asked once more, or is asked no more, or has been waited for long enough.
        self.asked: asyncio.Future[None] | None = None

    def begin(self, now: float) -> None:
        """It is to be asked from now on."""
        self.open = True
        self.begun = self.due = now
        self.tries = self.refusals = 0

    def close(self) -> None:
        """It is asked no more."""
        self.open = False
        self.answered()

    def answered(self) -> None:
        """Let go of whoever waits for one try."""
        if self.asked is not None:
            end(self.asked)
        self.asked = None


class Case:
    """One form that came back, or was found paid."""

    __slots__ = ("coming", "found", "questions", "record", "report", "task", "tried_at", "wake")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.questions: dict[int | None, Question] = {}
        #: Ids that are being written down, to be asked then.
        self.coming: set[int | None] = set()
        #: Transaction id -> when the status first said accepted.
        self.found: dict[int | None, float] = {}
        self.tried_at = float("-inf")
        self.task: asyncio.Task[None] | None = None
        #: Ends the task's sleep: there is something new to ask.
        self.wake: asyncio.Future[None] | None = None
        self.report: StatusReport | None = None

    def open(self) -> list[Question]:
        """What is still to be asked."""
        return [question for question in self.questions.values() if question.open]

    def takes(self, transaction_id: int | None) -> bool:
        """Whether one more id may be asked about."""
        known = transaction_id in self.questions or transaction_id in self.coming
        return known or len(self.open()) + len(self.coming) < MOST_IDS

    def question(self, transaction_id: int | None) -> Question:
        """The question about this id, asked before or not."""
        found = self.questions.get(transaction_id)
        if found is None:
            if len(self.questions) >= 2 * MOST_IDS:
                self.questions = {question.transaction_id: question for question in self.open()}
            found = self.questions[transaction_id] = Question(transaction_id)
        return found

    def next(self, now: float) -> Question | None:
        """What is asked next. Of all that is due, what was asked least: forged ids do not hold up a fresh one."""
        return min(self.open(), key=lambda each: (max(each.due, now), each.tries), default=None)


def end(wait: asyncio.Future[None]) -> None:
    """Let go of whoever waits."""
    if not wait.done():
        wait.set_result(None)
