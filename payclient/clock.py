"""The clocks and timers that everything else takes as an argument: the system's, or a test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

__all__ = ["Clock", "SystemClock"]

_T = TypeVar("_T")


class Timer(Protocol):
    """A callback of `Clock.call_at` that waits for its time."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """Two clocks and a timer. Records are written by the wall clock, waits are counted by the monotonic one."""

    def time(self) -> float:
        """Return the UTC wall clock in seconds since the epoch, which may jump."""

    def monotonic(self) -> float:
        """Return seconds that only rise."""

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        """Call once the monotonic clock has reached `when`."""


class SystemClock:
    """The machine's wall clock and the event loop's own time."""

    def time(self) -> float:
        """Return UTC in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return the running loop's time."""
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call by the running loop."""
        return asyncio.get_running_loop().call_at(when, callback, *args)


class LoopClock(SystemClock):
    """A `SystemClock` for one loop: in CPython 3.11 each look for the running loop is a system call."""

    def settle(self) -> None:
        """Take the time from the loop that runs now, from now on."""
        vars(self)["monotonic"] = (
            asyncio.get_running_loop().time
        )  # the loop's own method, without a call of ours around it


def start(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start a task that runs later, also where the loop's task factory is eager.

    An eager task may have ended before its creator has stored it, and then would stay stored for ever.
    """
    loop = asyncio.get_running_loop()
    return loop.create_task(work if loop.get_task_factory() is None else _later(work))


async def _later(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        await asyncio.sleep(0)
        return await work
    finally:
        work.close()  # where it was cancelled before it began


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep by a clock."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, _end, done)
    try:
        await done
    finally:
        timer.cancel()


async def within(clock: Clock, seconds: float, work: Awaitable[_T]) -> _T:
    """Await the work for at most so many seconds of a clock. `TimeoutError` also where it cannot be cancelled."""
    task = asyncio.ensure_future(work)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: _end(ended))
    timer = clock.call_at(clock.monotonic() + seconds, _end, ended)
    try:
        await ended
    finally:
        timer.cancel()
        late = task.cancel()
        # Mark what the task raises afterwards as seen, or asyncio logs it.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
    if late or task.cancelled():
        raise TimeoutError
    return task.result()


def _end(sleeping: asyncio.Future[None]) -> None:
    if not sleeping.done():
        sleeping.set_result(None)
