"""How fast a batch sends: as told, as the queries can follow, and slower after each HTTP 429."""

from __future__ import annotations

from collections import deque

from payclient.clock import Clock
from payclient.profile import ServiceProfile

__all__ = ["Pace", "sends_per_second"]

#: Where `queries_per_minute` binds, what a sale needs at least: one query that finds it open, one that finds its end.
#: Not what the schedule would like to make: it does with fewer then, and asks where an answer is likeliest.
LEAST_QUERIES = 2.0

#: Seconds to hold after a 429 that names no time.
HOLD = 5.0

#: Sends over which the present rate is measured.
MEASURED = 20

#: Each send that is taken wins back this part of what a 429 took.
RECOVERY = 0.97

#: Seconds; the slowest.
SLOWEST = 60.0


def sends_per_second(profile: ServiceProfile, rate: float | None, wait: float | None) -> float | None:
    """Sends that the queries can follow, and no more than `rate`; None: no limit."""
    # With `wait` 0 this run asks for nothing.
    if profile.queries_per_minute is None or profile.status is None or wait == 0:
        return rate
    followed = profile.queries_per_minute / 60.0 / LEAST_QUERIES
    return followed if rate is None else min(rate, followed)


class Pace:
    """Says when the next send may go. `rate` is sends a second; None: as they come."""

    def __init__(self, clock: Clock, rate: float | None) -> None:
        self._clock = clock
        self._least = self._gap = 0.0 if rate is None else 1.0 / rate
        self._next = float("-inf")
        self._slowed_until = float("-inf")
        self._recent: deque[float] = deque(maxlen=MEASURED)

    def wait(self) -> float:
        """Seconds until the next send, at least 0."""
        return max(self._next - self._clock.monotonic(), 0.0)

    def take(self) -> None:
        """One goes now."""
        now = self._clock.monotonic()
        self._next = max(now, self._next) + self._gap
        self._recent.append(now)

    def taken(self) -> None:
        """The service took one: a little faster again."""
        if self._gap > self._least:
            self._gap = max(self._gap * RECOVERY, self._least)
            if self._gap < 0.001:
                self._gap = self._least

    def slow(self, retry_after: float | None) -> None:
        """HTTP 429: hold, and then send half as fast. What else was in flight counts as the same."""
        now = self._clock.monotonic()
        hold = HOLD if retry_after is None else retry_after
        self._next = max(self._next, now + hold)
        if now < self._slowed_until:
            return
        self._slowed_until = self._next
        measured = (now - self._recent[0]) / len(self._recent) if self._recent else 0.0
        self._gap = min(max(2 * max(self._gap, measured), self._least), max(SLOWEST, self._least))
