"""The clocks that everything else takes as an argument, the system's or a test's, and how long a call may take.

Deadlines cost little: most calls may take equally long, and so end in the order in which they began.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import attrs

from payclient.errors import ConfigurationError
from payclient.validation import is_positive

__all__ = ["Clock", "SystemClock", "Timeouts"]

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
        """Return the running loop's time; in a thread without one, that of all loops: a sale is shown there, too."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call by the running loop."""
        return asyncio.get_running_loop().call_at(when, callback, *args)


class LoopClock(SystemClock):
    """A `SystemClock` for one loop: in CPython 3.11 each look for the running loop is a system call."""

    def use_running_loop(self) -> None:
        """Take the time from the loop that runs now, from now on."""
        # The loop's own method, without a call of ours around it.
        vars(self)["monotonic"] = asyncio.get_running_loop().time


def start(work: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[Any]] | None = None) -> asyncio.Task[_T]:
    """Start a task that runs later, also under an eager task factory. The task stays in `tasks` until it ends.

    An eager task may have ended before its creator has stored it, and then would stay stored for ever.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        task = loop.create_task(work)
    else:
        task = loop.create_task(_later(work))
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before it began
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task


async def _later(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        await asyncio.sleep(0)
        return await work
    finally:
        work.close()  # where the task ended before it began, and its loop calls no callback any more


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep by a clock."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, end, done)
    try:
        await done
    finally:
        timer.cancel()


async def within(clock: Clock, seconds: float, work: Awaitable[_T]) -> _T:
    """Await the work for at most so many seconds of a clock. Then raise `TimeoutError`, even if the work goes on."""
    task = asyncio.ensure_future(work)
    ended = _end_of(task)
    timer = clock.call_at(clock.monotonic() + seconds, end, ended)
    try:
        await ended
    finally:
        timer.cancel()
        late = task.cancel()
    if late or task.cancelled():  # not by the caller: a `CancelledError` would end the caller's task
        raise TimeoutError
    return task.result()


def end(waiting: asyncio.Future[None]) -> None:
    """End a wait, unless it has ended."""
    if not waiting.done():
        waiting.set_result(None)


def read_exception(task: asyncio.Future[Any]) -> None:
    """Read the exception of a task that has ended: asyncio logs one that nobody reads."""
    if not task.cancelled():
        task.exception()


def is_cancelled_alone(task: asyncio.Future[Any]) -> bool:
    """Return whether a task that was waited for was cancelled, and not the caller, which is a task too."""
    caller = asyncio.current_task()
    return task.cancelled() and caller is not None and not caller.cancelling()


async def outlive(task: asyncio.Task[_T]) -> _T:
    """Await a task that goes on where its caller is cancelled: `asyncio.shield`, for a third of its cost."""
    await _end_of(task)
    return task.result()


def _end_of(task: asyncio.Future[Any]) -> asyncio.Future[None]:
    """Return a future that ends with a task, and can be cancelled without the task."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note_end(task: asyncio.Future[Any]) -> None:
        end(ended)
        read_exception(task)

    task.add_done_callback(note_end)
    return ended


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until each has ended, in whatever way."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def drain(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> None:
    """Let tasks end within so many seconds of real time, and cancel those that have not; earlier by a cancellation."""
    if tasks := tuple(tasks):
        try:
            await asyncio.wait(tasks, timeout=seconds)
        # Nothing else is caught: a coroutine that its loop leaves behind ends by GeneratorExit, and may not wait then.
        except asyncio.CancelledError:
            await cancel_all(tasks)
            raise
        await cancel_all(tasks)


# --- Time-outs


def _positive(instance: Timeouts, attribute: attrs.Attribute[float], value: object) -> None:
    if not is_positive(value):
        raise ConfigurationError(f"time-out {attribute.name} must be a positive, finite number of seconds")


@attrs.frozen(kw_only=True)
class Timeouts:
    """Seconds: `connect` for a new connection (TCP and TLS), `total` for the whole call, retries included."""

    connect: float = attrs.field(default=10.0, validator=_positive)
    total: float = attrs.field(default=30.0, validator=_positive)


class Deadline:
    """The time at which one call's task is cancelled; `overran` tells this cancellation from others."""

    # Defaults of the class, so that making one, which every call does, sets three attributes only.
    done: bool = False
    #: Whether it has cancelled the call, which has not caught that yet.
    fired: bool = False

    def __init__(self, task: asyncio.Task[object], when: float) -> None:
        self.task = task
        self.when = when
        self._cancelling = task.cancelling()

    def fire(self) -> None:
        """Cancel the call, if it still runs."""
        if not self.done:
            self.fired = True
            self.task.cancel()

    def end(self) -> None:
        """Note that the call has ended, and take back a cancellation of ours that did not reach it."""
        self.done = True
        if self.fired:
            self.fired = False
            self.task.uncancel()

    def overran(self) -> bool:
        """Return whether the `CancelledError` just caught came from this deadline, and from nobody else as well."""
        if not self.fired:
            return False
        self.fired = False
        return self.task.uncancel() <= self._cancelling

    def is_cancelled(self) -> bool:
        """Return whether somebody cancelled the call's task since; else only what it waited for was cancelled."""
        return self.task.cancelling() > self._cancelling


class Deadlines:
    """Deadlines in one queue with one timer. `asyncio.timeout` costs five microseconds a call, this half of one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: The next one first.
        self._queue: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf

    def start(self, seconds: float) -> Deadline:
        """Begin a deadline for the running task; `end` it with the call."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call needs a running task")
        deadline, queue = Deadline(task, self.loop.time() + seconds), self._queue
        while queue and queue[0].done:
            queue.popleft()
        if queue and deadline.when < queue[-1].when:  # shorter than one that began before
            insort(queue, deadline, key=attrgetter("when"))
        else:
            queue.append(deadline)
        if deadline.when < self._fires_at:
            self._set_timer()
        return deadline

    def _set_timer(self) -> None:
        """Set the timer for the next deadline, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = self._queue[0].when if self._queue else math.inf
        self._timer = self.loop.call_at(self._fires_at, self._fire_due) if self._queue else None

    def _fire_due(self) -> None:
        """Cancel the calls that are overdue, drop deadlines that are done, and set the timer for the next."""
        now, queue = self.loop.time(), self._queue
        while queue and (queue[0].done or queue[0].when <= now):
            queue.popleft().fire()
        self._set_timer()

    def close(self) -> None:
        """End the calls that still run."""
        for deadline in self._queue:
            deadline.fire()
        self._queue.clear()
        self._set_timer()
