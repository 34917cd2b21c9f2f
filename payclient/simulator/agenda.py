"""What will happen at its time: one heap and one timer, however much is pending."""

import heapq
import itertools
from collections.abc import Callable

from .clock import Clock, TimerHandle

__all__ = ["Agenda"]


class Agenda:
    """Calls back in the order of time, on the clock's monotonic seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = itertools.count()  # what falls on the same moment happens in the order of the calls
        self._timer: TimerHandle | None = None
        self._timer_at = float("inf")

    def after(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        """Call `callback(*args)` in so many seconds."""
        when = self._clock.monotonic() + seconds
        heapq.heappush(self._entries, (when, next(self._sequence), callback, args))
        self._arm()

    def run_due(self) -> None:
        """Let happen what is due; also called before every request, because a busy loop fires its timers late."""
        now = self._clock.monotonic()
        while self._entries and self._entries[0][0] <= now:
            _, _, callback, args = heapq.heappop(self._entries)
            callback(*args)

    def close(self) -> None:
        """Stop the timer: nothing more is decided by time."""
        if self._timer is not None:
            self._timer.cancel()
        self._entries.clear()

    def _arm(self) -> None:
        if self._entries and self._entries[0][0] < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._entries[0][0]
            self._timer = self._clock.call_at(self._timer_at, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.run_due()
        self._arm()
