"""How long people take to answer, in sums over a grid."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.answering import POINTS, Crowd, between, lognormal, people

EXPONENTIAL = Crowd(lambda age: 1 - math.exp(-age / 36), 0.1, 300.0)


def test_half_answer_by_the_median() -> None:
    """And nobody before the request."""
    law = lognormal(28.0, 1.1)
    assert law(28.0) == pytest.approx(0.5)
    assert law(0.0) == 0.0


def test_the_prior_is_the_documented_one() -> None:
    """Median 28 s, 12 of 100 silent; stretched with the window."""
    assert people().unanswered(28.0) == pytest.approx(1 - 0.88 / 2, abs=1e-4)
    assert people(3.0).unanswered(0.28) == pytest.approx(people().unanswered(28.0), abs=1e-4)
    assert people() is people()


@given(st.floats(0, 299), st.floats(0, 299))
def test_undetected_seconds_are_the_integral(one: float, other: float) -> None:
    """Of (age - x) f(x) over the ages since the last query, over S there; exponential, in closed form."""
    since, age = sorted((one, other))
    answered, silent, mean = EXPONENTIAL.unanswered, 0.1, 36.0
    begin, end = math.exp(-since / mean), math.exp(-age / mean)
    exact = (1 - silent) * ((age - since) * begin - mean * (begin - end)) / answered(since)
    assert EXPONENTIAL.undetected(since, age) == pytest.approx(exact, abs=2e-3)


def test_after_the_window_an_unseen_answer_lies_on() -> None:
    """Every second more is one for each answer."""
    later, end = EXPONENTIAL.undetected(0.0, 400.0), EXPONENTIAL.undetected(0.0, 300.0)
    assert later - end == pytest.approx(100 * EXPONENTIAL.share)


def test_the_bound_of_an_exponential_law_is_known() -> None:
    """Without silent people the hazard is constant, and a fixed beat is the best there is: 36 / 2 at one second."""
    crowd = Crowd(lambda age: 1 - math.exp(-age / 36), 0.0, 3000.0)
    assert crowd.least_queries(1.0) == pytest.approx(18.0, rel=1e-3)


@given(st.floats(0, 1))
def test_ages_read_worth_backwards(part: float) -> None:
    """The age by which a worth has come together has that worth."""
    crowd = people()
    age = between(crowd.ages, part)
    sums = crowd.worth
    assert between(sums, age / crowd.window) == pytest.approx(part * sums[-1], abs=sums[-1] / POINTS)
