"""What a batch will take: seconds and status queries, as far as can be said before anybody has answered."""

from __future__ import annotations

import math

import attrs

from payclient.profile import ServiceProfile
from payclient.schedule import NORMAL_WINDOW, Schedule

__all__ = ["Estimate", "estimate", "expected_queries", "sends_per_second"]

#: How people answer: the median in seconds and the spread of its logarithm, and the part that never does.
MEDIAN, SIGMA, SILENT = 25.0, 0.8, 0.1

#: Where `queries_per_minute` binds, what a sale needs at least: one query that finds it open, one that finds its end.
LEAST_QUERIES = 2.0

#: Seconds of one exchange with the service.
EXCHANGE = 0.3


@attrs.frozen(kw_only=True)
class Estimate:
    """About how long a batch runs, and how many status queries it makes."""

    seconds: float
    queries: float
    #: What it waits for most.
    bound_by: str


def still_open(age: float, scale: float = 1.0) -> float:
    """The part of sales that have no answer at this age."""
    if age <= 0:
        return 1.0
    normal = (math.log(age / scale) - math.log(MEDIAN)) / SIGMA
    return SILENT + (1 - SILENT) * 0.5 * math.erfc(normal / math.sqrt(2))


def expected_queries(schedule: Schedule, window: float) -> float:
    """Status queries of one sale when nothing holds them back. The one place that forecasts them."""
    scale, age, queries = window / NORMAL_WINDOW, 0.0, 0.0
    for _ in range(10_000):
        before = age
        age += max(schedule.gap(age), 1e-3)
        # A query is made for every sale that was not found decided by the one before.
        queries += still_open(before, scale)
        if age >= window:
            break
    return queries


def mean_open(window: float) -> float:
    """Seconds that a sale is open, on average."""
    scale, step = window / NORMAL_WINDOW, window / 300
    return sum(still_open((number + 0.5) * step, scale) for number in range(300)) * step


def sends_per_second(profile: ServiceProfile, rate: float | None, wait: float | None) -> float | None:
    """Sends that the queries can follow, and no more than `rate`; None: no limit."""
    # With `wait` 0 this run asks for nothing.
    if profile.queries_per_minute is None or profile.status is None or wait == 0:
        return rate
    followed = profile.queries_per_minute / 60.0 / LEAST_QUERIES
    return followed if rate is None else min(rate, followed)


def estimate(
    profile: ServiceProfile,
    schedule: Schedule,
    *,
    rows: int,
    longest_lane: int,
    max_in_flight: int,
    max_pending: int,
    rate: float | None,
    wait: float | None = None,
) -> Estimate:
    """Of so many rows to send; `longest_lane` are those of one customer, one after another."""
    if rows == 0:
        return Estimate(seconds=0.0, queries=0.0, bound_by="nothing to send")
    window = profile.sale_window
    asks = profile.status is not None
    held = mean_open(window) if asks else window
    if wait is not None:
        held = min(held, wait)
    each = expected_queries(schedule, window) if asks and wait != 0 else 0.0
    sends = sends_per_second(profile, rate, wait)
    parts = {
        "the time of each request": rows * EXCHANGE / max_in_flight,
        "the rate of sends": 0.0 if rate is None else rows / rate,
        "queries_per_minute": 0.0 if sends is None or sends == rate else rows / sends,
        "the prompts that may be open at once": rows * held / max_pending,
        "the customer with most charges": longest_lane * held,
    }
    bound_by = max(parts, key=lambda part: parts[part])
    # The last ones answer late, or never.
    late = window if rows * SILENT >= 1 and wait is None else held
    seconds = max(parts[bound_by] - held, 0.0) + late
    if seconds < 2 * late:
        bound_by = "people's answers"
    queries = rows * each
    if profile.queries_per_minute is not None:
        queries = min(queries, seconds * profile.queries_per_minute / 60.0)
    return Estimate(seconds=seconds, queries=queries, bound_by=bound_by)
