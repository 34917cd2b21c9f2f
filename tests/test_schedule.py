"""When to query next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient import schedule
from payclient.schedule import AFTERTHOUGHTS, LAST_QUERIES, NORMAL_WINDOW, Fixed, Schedule, phase


@given(st.floats(0, 1e6), st.floats(0.01, 1e3))
def test_fixed_is_the_same_at_every_age(age: float, seconds: float) -> None:
    """A fixed beat is one."""
    beat: Schedule = Fixed(seconds)
    assert beat.gap(age) == seconds


def test_fixed_is_two_seconds_unless_given() -> None:
    """A value that can be compared."""
    assert Fixed().gap(0) == 2.0
    assert Fixed() == Fixed(2.0)


@given(st.text(max_size=40))
def test_a_phase_is_a_part_of_one(identifier: str) -> None:
    """It depends on the id alone, so that it repeats after a restart."""
    assert 0 <= phase(identifier) < 1
    assert phase(identifier) == phase(identifier)


@pytest.mark.parametrize("pattern", ["order-{}", "2026-{:04}", "{:08x}"])
def test_phases_spread(pattern: str) -> None:
    """Ids that differ in their last digits are asked for at different times."""
    buckets = [0] * 10
    for number in range(1000):
        buckets[int(phase(pattern.format(number)) * 10)] += 1
    assert min(buckets) > 0


def test_the_last_queries_outlast_late_news() -> None:
    """They begin after the expiry, get rarer, and end within the first afterthought (§8: five minutes)."""
    assert NORMAL_WINDOW == 300
    assert all(gap > 0 for gap in LAST_QUERIES)
    assert list(LAST_QUERIES) == sorted(LAST_QUERIES)
    assert list(AFTERTHOUGHTS) == sorted(AFTERTHOUGHTS) == [600, 3600, 86400]
    assert NORMAL_WINDOW + sum(LAST_QUERIES) < AFTERTHOUGHTS[0]


def test_the_module_exports_the_two() -> None:
    """`Schedule` is what a user may write, `Fixed` the simplest of them."""
    assert schedule.__all__ == ["Fixed", "Schedule"]
