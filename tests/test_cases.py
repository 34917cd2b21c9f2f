"""What is asked of one form next, and how much of it is kept."""

from __future__ import annotations

import asyncio

from payclient.cases import MOST_IDS, Case, Question
from payclient.lifecycle import Record


def case() -> Case:
    return Case(Record(client_transaction_id="form-1", kind="form"))


def asked(form: Case, transaction_id: int | None, *, due: float, tries: int) -> Question:
    question = form.question(transaction_id)
    question.begin(0.0)
    question.due, question.tries = due, tries
    return question


def test_of_what_is_due_the_least_asked_comes_first() -> None:
    """Forged ids that are due again stand behind a fresh one; what is not due yet stands behind both."""
    form = case()
    assert form.next(10.0) is None
    later = asked(form, 1, due=12.0, tries=0)
    forged = asked(form, 2, due=3.0, tries=4)
    fresh = asked(form, 3, due=10.0, tries=0)
    for question in (fresh, forged, later):
        assert form.next(10.0) is question
        question.close()
    assert form.next(10.0) is None


def test_an_id_more_is_taken_while_there_is_room() -> None:
    """What is being written counts, and what is known is always taken."""
    form = case()
    for number in range(MOST_IDS - 1):
        asked(form, number + 1, due=0.0, tries=0)
    assert form.takes(99)
    form.coming.add(98)
    assert not form.takes(99)
    assert form.takes(98)
    assert form.takes(1)


def test_closed_questions_are_forgotten_in_the_end() -> None:
    """A flood over hours leaves no more than twice as many as are asked at once."""
    form = case()
    for number in range(1000):
        asked(form, number + 1, due=0.0, tries=0).close()
    assert len(form.questions) <= 2 * MOST_IDS
    assert form.question(1000) is form.question(1000)


async def test_who_waits_for_one_try_is_let_go_once() -> None:
    """By the try, by the end of the asking, or not at all where nobody waits."""
    question = Question(1)
    question.answered()
    wait = question.asked = asyncio.get_running_loop().create_future()
    question.close()
    assert wait.done()
    assert question.asked is None
