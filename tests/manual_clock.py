"""A clock that tests move by hand, for a service, a tracker or both."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from attrs import define, field

__all__ = ["ManualClock"]

_Callback = Callable[..., object]

# Passes through the event loop after a callback: enough for a chain of tasks that wake each other.
_SETTLING_PASSES = 10

# So many timers of one moment are no work, but a loop that spins: it is named, and does not hang the suite.
_SPINNING = 20_000


@define(order=True)
class _ManualTimer:
    when: float
    number: int  # timers of the same moment fire in the order of their calls
    callback: _Callback = field(eq=False)
    args: tuple[object, ...] = field(eq=False)
    cancelled: bool = field(default=False, eq=False)

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that stands still until a test moves it; no real time passes."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._wall_offset = start
        self._monotonic = 0.0
        self._timers: list[_ManualTimer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._wall_offset + self._monotonic

    def monotonic(self) -> float:
        return self._monotonic

    def call_at(self, when: float, callback: _Callback, *args: object) -> _ManualTimer:
        timer = _ManualTimer(when, next(self._numbers), callback, args)
        heapq.heappush(self._timers, timer)
        return timer

    @property
    def next_timer(self) -> float | None:
        """The monotonic time of the next pending callback."""
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0].when if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Move both clocks on, firing what falls due in the order of time, each callback at its own time."""
        if seconds < 0:
            raise ValueError("monotonic time does not go back; jump_wall moves the wall clock alone")
        target = self._monotonic + seconds
        await self._settle()  # tasks that were only just started may still set a timer within this step
        fired = 0
        while (when := self.next_timer) is not None and when <= target:
            fired = 0 if when > self._monotonic else fired + 1
            assert fired < _SPINNING, f"timers without end at {self._monotonic} s"
            timer = heapq.heappop(self._timers)
            self._monotonic = max(self._monotonic, when)
            timer.callback(*timer.args)
            await self._settle()
        self._monotonic = max(self._monotonic, target)

    def stand_at(self, monotonic: float) -> None:
        """Move both clocks on and fire nothing, as a loop that is late."""
        self._monotonic = monotonic

    def jump_wall(self, seconds: float) -> None:
        """Move wall time alone, as when an operator or NTP sets the machine's clock."""
        self._wall_offset += seconds

    async def _settle(self) -> None:
        for _ in range(_SETTLING_PASSES):
            await asyncio.sleep(0)
