"""When to query next."""

import math
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient import ConfigurationError, schedule
from payclient.schedule import (
    FINAL_QUERY_DELAYS,
    NORMAL_WINDOW,
    RECHECK_AGES,
    Attentive,
    Fixed,
    Schedule,
    Steps,
    expected_lag,
    first_part,
    phase,
)
from schedule_table import PRESUMED, Crowd, forecast, lognormal, portion_for_a_second, table


@given(st.floats(0, 1e6), st.floats(0.01, 1e3), st.floats(0, 1))
def test_fixed_is_the_same_at_every_age(age: float, seconds: float, heard: float) -> None:
    """A fixed beat is one, whatever arrives; a part of it is that part."""
    beat: Schedule = Fixed(seconds)
    assert beat.gap(age, heard=heard) == seconds
    assert beat.gap(age, part=0.5) == seconds / 2
    assert Fixed() == Fixed(2.0)


def test_steps_hold_up_to_their_ages() -> None:
    """The last one for ever."""
    steps: Schedule = Steps((60, 5), (300, 20))
    assert [steps.gap(age) for age in (0, 59, 60, 299, 300, 1000)] == [5, 5, 20, 20, 20, 20]
    assert steps.gap(0, part=0.5) == 2.5
    assert steps == Steps((60, 5), (300, 20))


def test_people_answer_by_the_window() -> None:
    """Where they have twice as long, a delay twice as long takes as many queries."""
    wide, usual = Attentive(target_delay=2.0, window=600.0), Attentive(target_delay=1.0)
    assert wide.gap(40.0) == pytest.approx(2 * usual.gap(20.0))


def test_a_clock_that_was_set_back_makes_a_sale_a_new_one() -> None:
    """And is waited for."""
    assert Attentive().gap(-300.0) == pytest.approx(300.0 + Attentive().gap(0.0))


def test_a_bad_knob_is_refused() -> None:
    """Both at once, zero, infinity; no steps, falling ages, a gap that is none."""
    for make in (
        lambda: Attentive(target_delay=1.0, max_queries=8),
        lambda: Attentive(target_delay=0.0),
        lambda: Attentive(max_queries=math.inf),
        lambda: Attentive(window=-1.0),
        lambda: Fixed(0.0),
        Steps,
        lambda: Steps((60, 5), (30, 2)),
        lambda: Steps((60, 0)),
        lambda: Steps((60, math.inf)),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_what_is_not_a_number_is_refused() -> None:
    """By an error that names the schedule, and not later by each sale."""
    fixed, steps, attentive = cast(Any, Fixed), cast(Any, Steps), cast(Any, Attentive)
    for bad in ("5", True, math.nan, 10**400, (1,)):
        for make in (
            partial(fixed, bad),
            partial(steps, bad),
            partial(steps, (60, bad)),
            partial(attentive, target_delay=bad),
            partial(attentive, max_queries=bad),
        ):
            with pytest.raises(ConfigurationError, match=r"^schedule: "):
                make()
    for make in (partial(fixed, None), partial(attentive, window=None), partial(steps, (60, 5, 1))):
        with pytest.raises(ConfigurationError, match=r"^schedule: "):
            make()
    for age in (None, "60", math.nan, -1):
        with pytest.raises(ConfigurationError, match=r"^schedule: "):
            steps((age, 5))


@given(st.floats(0.2, 2))
def test_the_target_delay_is_reached(seconds: float) -> None:
    delay = forecast(Attentive(target_delay=seconds), PRESUMED).delay
    assert 0.95 * seconds <= delay <= 1.02 * seconds


@given(st.integers(1, 200))
def test_nobody_is_asked_for_more_often_than_max_queries(most: int) -> None:
    """Who never answers gets as many before the expiry, one more or less by his phase."""
    plan = Attentive(max_queries=most)
    for spread in (0.0, 0.5, 0.999):
        count, age = 0, plan.gap(0.0, part=first_part(spread))
        while age < 300.0:
            count += 1
            age += plan.gap(age)
        assert most - 1 <= count <= most


def test_it_asks_most_often_when_people_answer() -> None:
    """Rarer before and after, and the gap is never nothing."""
    gaps = [Attentive().gap(age) for age in (0.0, 15.0, 60.0, 150.0, 290.0, 500.0)]
    assert gaps[1] == min(gaps)
    assert gaps[1:] == sorted(gaps[1:])


@given(st.floats(0, 2000), st.floats(0, 1), st.floats(0, 1))
def test_notifications_thin_it_and_never_stop_it(age: float, heard: float, more: float) -> None:
    """The surer they arrive, the longer the gap; up to some seven times."""
    plan, (low, high) = Attentive(), sorted((heard, more))
    assert 0 < plan.gap(age, heard=low) <= plan.gap(age, heard=high) + 1e-6
    assert plan.gap(20.0, heard=1.0) < 20 * plan.gap(20.0)


@given(st.floats(1e-3, 1e4), st.floats(0, 600))
def test_times_scale_with_the_window(window: float, age: float) -> None:
    """A window of 3 s has the schedule of one of 300 s, a hundred times as fast."""
    scale = window / NORMAL_WINDOW
    assert Attentive(window=window).gap(age * scale) == pytest.approx(Attentive().gap(age) * scale, rel=1e-4)


def test_the_table_is_the_models() -> None:
    """What `benchmarks/schedule_table.py` prints stands in the package."""
    assert table() == schedule.AGES
    assert round(portion_for_a_second(), 6) == schedule.PORTION


@given(st.floats(0, 400), st.floats(0, 400), st.floats(0.01, 10))
def test_the_expected_lag_is_the_models(one: float, other: float, scale: float) -> None:
    """In closed form what the model sums up: the seconds for which an answer has been there unseen."""
    since, age = sorted((one, other))
    lag = expected_lag(since * scale, age * scale, NORMAL_WINDOW * scale)
    assert lag == pytest.approx(PRESUMED.undetected(since, age) * scale, abs=5e-3 * scale)


def test_the_forecast_of_a_fixed_beat_is_well_known() -> None:
    """2 s: a mean delay of one second, for 30.9 queries."""
    found = forecast(Fixed(2.0), Crowd(lognormal(25.0, 0.8), 0.1))
    assert found.delay == pytest.approx(1.0, abs=0.01)
    assert found.queries == pytest.approx(30.9, abs=0.1)
    assert found.least_queries == pytest.approx(0.72 * 30.9, abs=0.2)


@pytest.mark.parametrize("median", [10.0, 25.0, 40.0])
@pytest.mark.parametrize("sigma", [0.4, 0.8, 1.2])
def test_it_is_never_worse_than_a_fixed_beat(median: float, sigma: float) -> None:
    """At equal delay, for crowds that are not the one presumed."""
    crowd = Crowd(lognormal(median, sigma), 0.1)
    mine = forecast(Attentive(), crowd)
    assert mine.least_queries < mine.queries < forecast(Fixed(2 * mine.delay), crowd).queries


@pytest.mark.parametrize("pattern", ["order-{}", "2026-{:04}", "{:08x}"])
def test_phases_spread(pattern: str) -> None:
    """Ids that differ in their last digits are queried at different times, the same after a restart."""
    buckets = [0] * 10
    for number in range(1000):
        identifier = pattern.format(number)
        assert 0 <= phase(identifier) < 1
        assert phase(identifier) == phase(identifier)
        buckets[int(phase(identifier) * 10)] += 1
    assert min(buckets) > 0


def test_the_last_queries_outlast_late_news() -> None:
    """They begin after the expiry, get rarer, and end within the first afterthought (§8: five minutes)."""
    assert NORMAL_WINDOW == 300
    assert all(gap > 0 for gap in FINAL_QUERY_DELAYS)
    assert list(FINAL_QUERY_DELAYS) == sorted(FINAL_QUERY_DELAYS)
    assert list(RECHECK_AGES) == sorted(RECHECK_AGES) == [600, 3600, 86400]
    assert NORMAL_WINDOW + sum(FINAL_QUERY_DELAYS) < RECHECK_AGES[0]
