"""What a batch will take: seconds and status queries, as far as can be said before anybody has answered."""

from __future__ import annotations

import attrs

from payclient.batch.pace import sends_per_second
from payclient.profile import ServiceProfile
from payclient.schedule import ANSWERED, NORMAL_WINDOW

__all__ = ["Estimate", "estimate"]

#: Seconds of one exchange with the service.
EXCHANGE = 0.3

#: Of one sale under the schedule used unless told otherwise: mean seconds that it is open, for a window of 300 s, and
#: status queries. `benchmarks/schedule_table.py` works them out.
OPEN_SECONDS, QUERIES = 78.7, 33.1


@attrs.frozen(kw_only=True)
class Estimate:
    """About how long a batch runs, and how many status queries it makes."""

    seconds: float
    queries: float
    #: What it waits for most.
    bound_by: str


def estimate(
    profile: ServiceProfile,
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
    # Seconds that a sale is open, on average.
    held = OPEN_SECONDS * window / NORMAL_WINDOW if asks else window
    if wait is not None:
        held = min(held, wait)
    each = QUERIES if asks and wait != 0 else 0.0
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
    late = window if rows * (1 - ANSWERED) >= 1 and wait is None else held
    seconds = max(parts[bound_by] - held, 0.0) + late
    if seconds < 2 * late:
        bound_by = "people's answers"
    queries = rows * each
    if profile.queries_per_minute is not None:
        queries = min(queries, seconds * profile.queries_per_minute / 60.0)
    return Estimate(seconds=seconds, queries=queries, bound_by=bound_by)
