"""Time as an argument: the machine's clock, one that jumps ahead, and one that tests move by hand."""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "JumpClock", "ManualClock", "SystemClock", "TimerHandle", "sleep"]

# Passes through the event loop after a callback: enough for a chain of tasks that wake each other.
_SETTLING_PASSES = 10


class TimerHandle(Protocol):
    """A callback that is waiting for its time."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for people, monotonic time for waits, and callbacks; all in seconds."""

    def time(self) -> float:
        """UTC wall time, in seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        """Call `callback(*args)` once `monotonic()` has reached `when`."""


class SystemClock:
    """The machine's clock and the running event loop's timers."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return asyncio.get_running_loop().call_at(when, callback, *args)


class _ManualTimer:
    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that stands still until a test moves it; no real time passes."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._wall_offset = start
        self._monotonic = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._sequence = itertools.count()  # timers of the same moment fire in the order of their calls

    def time(self) -> float:
        return self._wall_offset + self._monotonic

    def monotonic(self) -> float:
        return self._monotonic

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        timer = _ManualTimer(callback, args)
        heapq.heappush(self._timers, (when, next(self._sequence), timer))
        return timer

    @property
    def next_timer(self) -> float | None:
        """The monotonic time of the next pending callback."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Move both clocks on, firing what falls due in the order of time, each callback at its own time."""
        if seconds < 0:
            raise ValueError("monotonic time does not go back; jump_wall moves the wall clock alone")
        target = self._monotonic + seconds
        await self._settle()  # tasks that were only just started may still set a timer within this step
        while (when := self.next_timer) is not None and when <= target:
            timer = heapq.heappop(self._timers)[2]
            self._monotonic = max(self._monotonic, when)
            timer.callback(*timer.args)
            await self._settle()
        self._monotonic = max(self._monotonic, target)

    def jump_wall(self, seconds: float) -> None:
        """Move wall time alone, as when an operator or NTP sets the machine's clock."""
        self._wall_offset += seconds

    async def _settle(self) -> None:
        for _ in range(_SETTLING_PASSES):
            await asyncio.sleep(0)


class JumpClock:
    """The machine's clock, which jumps ahead on demand: five minutes pass in a call, from any thread and any loop.

    One clock serves a service and a client in different loops: each callback runs in the loop that set it.
    """

    def __init__(self) -> None:
        self._offset = 0.0
        self._timers: set[_JumpTimer] = set()
        self._lock = threading.Lock()

    def time(self) -> float:
        return time.time() + self._offset

    def monotonic(self) -> float:
        return time.monotonic() + self._offset

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        timer = _JumpTimer(self, asyncio.get_running_loop(), when, callback, args)
        with self._lock:
            self._timers.add(timer)
        timer.arm()
        return timer

    def advance(self, seconds: float) -> None:
        """Jump ahead. What falls due runs once its loop turns, so what waits for it has to be awaited."""
        if not seconds >= 0:
            raise ValueError("time does not go back: seconds must be 0 or more")
        with self._lock:
            self._offset += seconds
            timers = list(self._timers)
        for timer in timers:
            try:
                timer.loop.call_soon_threadsafe(timer.arm)
            except RuntimeError:  # its loop is closed
                self._forget(timer)

    def _forget(self, timer: "_JumpTimer") -> None:
        with self._lock:
            self._timers.discard(timer)


class _JumpTimer:
    """One callback; all but the constructor runs in its own loop."""

    def __init__(
        self,
        clock: JumpClock,
        loop: asyncio.AbstractEventLoop,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._when = when
        self._callback = callback
        self._args = args
        self._handle: asyncio.TimerHandle | None = None
        self._done = False

    def arm(self) -> None:
        if self._done:
            return
        if self._handle is not None:
            self._handle.cancel()
        # By the difference: a loop's own clock may count from another start.
        self._handle = self.loop.call_later(max(0.0, self._when - self._clock.monotonic()), self._ring)

    def cancel(self) -> None:
        self._done = True
        self._clock._forget(self)
        if self._handle is not None:
            self._handle.cancel()

    def _ring(self) -> None:
        if self._clock.monotonic() < self._when:
            self.arm()  # the loop's resolution let it ring a moment early
            return
        self.cancel()
        self._callback(*self._args)


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep by a clock."""
    woken = asyncio.Event()
    timer = clock.call_at(clock.monotonic() + seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
