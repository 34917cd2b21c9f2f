"""Time as an argument: a clock that jumps ahead, and a timetable on any clock."""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

from attrs import define

_Callback = Callable[..., object]


class TimerHandle(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None: ...


class ServiceClock(Protocol):
    """UTC wall time since the epoch, monotonic time and callbacks, all in seconds."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def call_at(self, when: float, callback: _Callback, *args: object) -> TimerHandle: ...


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

    def call_at(self, when: float, callback: _Callback, *args: object) -> TimerHandle:
        timer = _JumpTimer(self, asyncio.get_running_loop(), when, callback, args)
        with self._lock:
            self._timers.add(timer)
        timer.arm()
        return timer

    def advance(self, seconds: float) -> None:
        """Jump ahead. Callbacks that fall due run once their loops turn."""
        if not seconds >= 0:
            raise ValueError("time does not go back: seconds must be 0 or more")
        with self._lock:
            self._offset += seconds
            timers = list(self._timers)
        for timer in timers:
            try:
                timer.loop.call_soon_threadsafe(timer.arm)
            except RuntimeError:  # its loop is closed
                self.forget(timer)

    def forget(self, timer: "_JumpTimer") -> None:
        """Drop a timer that fired, was cancelled or lost its loop."""
        with self._lock:
            self._timers.discard(timer)


@define(eq=False)
class _JumpTimer:
    """One callback; all but the constructor runs in its own loop."""

    clock: JumpClock
    loop: asyncio.AbstractEventLoop
    when: float
    callback: _Callback
    args: tuple[object, ...]
    handle: asyncio.TimerHandle | None = None
    done: bool = False

    def arm(self) -> None:
        """Set the loop's timer, which calls this again, as each jump does. Once the time has come, run the callback."""
        if self.done:
            return
        left = self.when - self.clock.monotonic()  # a loop's own clock may count from another start
        # Without a handle this is the call of `call_at`, in which no callback may run.
        if self.handle is not None:
            self.handle.cancel()
            if left <= 0:
                self.cancel()
                self.callback(*self.args)
                return
        self.handle = self.loop.call_later(max(0.0, left), self.arm)

    def cancel(self) -> None:
        self.done = True
        self.clock.forget(self)
        if self.handle is not None:
            self.handle.cancel()


class Timetable:
    """Callbacks in the order of time, on the clock's monotonic seconds."""

    def __init__(self, clock: ServiceClock) -> None:
        self._clock = clock
        self._entries: list[tuple[float, int, _Callback, tuple[object, ...], TimerHandle]] = []
        self._numbers = itertools.count()  # what falls on the same moment happens in the order of the calls

    def after(self, seconds: float, callback: _Callback, *args: object) -> None:
        """Call `callback(*args)` in so many seconds."""
        when = self._clock.monotonic() + seconds
        timer = self._clock.call_at(when, self.run_due)
        heapq.heappush(self._entries, (when, next(self._numbers), callback, args, timer))

    def run_due(self) -> None:
        """Run what is due; also called before every request, because a busy loop fires its timers late."""
        now = self._clock.monotonic()
        while self._entries and self._entries[0][0] <= now:
            _, _, callback, args, timer = heapq.heappop(self._entries)
            timer.cancel()
            callback(*args)

    def close(self) -> None:
        """Cancel every timer: nothing more is decided by time."""
        while self._entries:
            self._entries.pop()[-1].cancel()


async def sleep(clock: ServiceClock, seconds: float) -> None:
    """Sleep by a clock."""
    woken = asyncio.Event()
    timer = clock.call_at(clock.monotonic() + seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
