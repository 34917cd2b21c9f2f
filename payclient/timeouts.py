"""Time-outs that cost little: calls of equal length end in the order they began, so one timer serves them all."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import attrs

from payclient.errors import ConfigurationError

__all__ = ["Timeouts"]


def _positive(instance: Timeouts, attribute: attrs.Attribute[float], value: object) -> None:
    good = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
    if not good:
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
    timer: asyncio.TimerHandle | None = None
    _fired = False

    def __init__(self, task: asyncio.Task[object], when: float) -> None:
        self.task = task
        self.when = when
        self._cancelling = task.cancelling()

    def fire(self) -> None:
        """Cancel the call, if it still runs."""
        if not self.done:
            self._fired = True
            self.task.cancel()

    def end(self) -> None:
        """Note that the call has ended, and take back a cancellation of ours that did not reach it."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        if self._fired:
            self._fired = False
            self.task.uncancel()

    def overran(self) -> bool:
        """Return whether the `CancelledError` just caught is this deadline's alone."""
        if not self._fired:
            return False
        self._fired = False
        return self.task.uncancel() <= self._cancelling


class Deadlines:
    """Deadlines of one length (seconds) in one queue with one timer; others get a timer of their own.

    `asyncio.timeout` costs five microseconds a call, this half of one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._queue: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float | None = None) -> Deadline:
        """Begin a deadline for the running task; `end` it with the call."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call needs a running task")
        if seconds is not None and seconds != self._seconds:
            deadline = Deadline(task, self._loop.time() + seconds)
            deadline.timer = self._loop.call_at(deadline.when, deadline.fire)
            return deadline
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()
        deadline = Deadline(task, self._loop.time() + self._seconds)
        queue.append(deadline)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline.when, self._ring)
        return deadline

    def _ring(self) -> None:
        now, queue = self._loop.time(), self._queue
        while queue and (queue[0].done or queue[0].when <= now):
            queue.popleft().fire()
        self._timer = self._loop.call_at(queue[0].when, self._ring) if queue else None

    def close(self) -> None:
        """End the calls that still run; those with a timer of their own end by it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            self._queue.popleft().fire()
