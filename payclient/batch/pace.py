"""How fast a batch sends: as told, as the queries can follow, and slower after each HTTP 429."""

from __future__ import annotations

from payclient.profile import ServiceProfile
from payclient.tracking.rate_limit import Manners, RateLimit

__all__ = ["send_rate", "sends_per_second"]

#: Where `queries_per_minute` binds, what a sale needs at least: one query that finds it open, one that finds its end.
#: Not what the schedule would like to make: it does with fewer then, and asks where an answer is likeliest.
LEAST_QUERIES = 2.0

#: After a 429: a hold of 5 s where it names none, half as fast as of late, a send a minute at the slowest; each send
#: that is taken wins back 3 % of that.
MANNERS = Manners(most_slowdown=60.0, relief=0.97, longest_pause=float("inf"), pause=5.0, measures=True)


def sends_per_second(profile: ServiceProfile, rate: float | None, wait: float | None) -> float | None:
    """Return the sends that the queries can follow, and no more than `rate`; None: no limit."""
    # With `wait` 0 this run queries nothing.
    if profile.queries_per_minute is None or profile.status is None or wait == 0:
        return rate
    followed = profile.queries_per_minute / 60.0 / LEAST_QUERIES
    return followed if rate is None else min(rate, followed)


def send_rate(per_second: float | None) -> RateLimit:
    """Return a limit of sends; None: as they come."""
    return RateLimit(None if per_second is None else 60.0 * per_second, MANNERS)
