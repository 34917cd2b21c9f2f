"""An event loop without I/O and without real time; `run` is `asyncio.run` on it.

By itself it is at once as late as its next timer says, where nothing is ready. A simulated world says what time it is,
and steps it one callback at a time: every await that suspends ends in a callback, so that to stop stepping is to stop a
process at an await.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar, TypeVarTuple

__all__ = ["VirtualClock", "VirtualLoop", "in_virtual_time", "run"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: Tasks made before those that have ended are let go of.
_MANY = 10_000


class _Numbered:
    """What has its number as its hash, so that sets of tasks and futures are walked in the same order in every run."""

    number: int

    def __new__(cls, *args: Any, **options: Any) -> Self:
        self = super().__new__(cls)
        self.number = options["loop"].next_number()
        return self

    def __hash__(self) -> int:
        return self.number


class _Task(_Numbered, asyncio.Task[Any]):
    """A task with a number."""


class _Future(_Numbered, asyncio.Future[Any]):
    """A future with a number."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """One process's event loop. `now` is its monotonic clock; `failed` is told of what nobody caught."""

    def __init__(
        self,
        now: Callable[[], float] | None = None,
        failed: Callable[[str], object] | None = None,
        *,
        eager: bool = False,
    ) -> None:
        self._now = 0.0
        self.time = now or (lambda: self._now)  # type: ignore[method-assign]  # a call less for each look at the clock
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self._many = _MANY
        self._failures: list[str] = []
        self._failed = failed or self._failures.append
        #: Tasks run to their first await where they are made, as `asyncio.eager_task_factory` has it.
        self._options = {"eager_start": True} if eager and sys.version_info >= (3, 12) else {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0

    def next_number(self) -> int:
        """A number that no other task, future or timer of this loop has."""
        self._number += 1
        return self._number

    # --- What asyncio asks for

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> Any:
        return asyncio.Task if self._options else None

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.next_number(), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        eager = self._options if events._get_running_loop() is self else {}
        task = _Task(coro, loop=self, name="", context=context, **eager)
        self.tasks.append(task)
        if len(self.tasks) > self._many:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._many = 2 * len(self.tasks) + _MANY
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(f"{context.get('message')}: {context.get('exception')!r}")

    # --- What a runner asks for

    call_soon_threadsafe = call_soon

    def set_debug(self, enabled: bool) -> None:
        """There is nothing more to see."""

    def run_until_complete(self, future: Any) -> Any:
        """Step until it is done, at whatever time that is."""
        future = asyncio.ensure_future(future, loop=self)
        ready = self.ready
        events._set_running_loop(self)
        try:
            while not future.done():
                if not ready:
                    when = self.next_timer()
                    assert when is not None, "nothing will ever happen again"
                    self._now = max(self._now, when)
                    self.wake()
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
        assert not self._failures, self._failures
        return future.result()

    async def shutdown_asyncgens(self) -> None:
        """None is kept."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def close(self) -> None:
        self.abandon()

    # --- What the world asks for

    def next_timer(self) -> float | None:
        """The monotonic time of the first timer that still counts."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def wake(self) -> None:
        """Make ready what is due."""
        now, timers = self.time(), self._timers
        while timers and timers[0][0] <= now:
            self.ready.append(heapq.heappop(timers)[2])

    def step(self) -> None:
        """Run one callback: a task from one await to the next."""
        handle = self.ready.popleft()
        if not handle.cancelled():
            events._set_running_loop(self)
            try:
                handle._run()
            finally:
                events._set_running_loop(None)

    def abandon(self) -> None:
        """The world is over: let go of every task, here and now and not when garbage is collected."""
        self._failed = self._failures.append  # nobody reads them any more
        events._set_running_loop(self)
        try:
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # of CPython
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        coroutine.close()
                elif not task.cancelled():
                    task.exception()
        finally:
            events._set_running_loop(None)
        self.tasks.clear()
        self.ready.clear()
        self._timers.clear()


class VirtualClock:
    """A `Clock` whose wall clock goes with the running loop's own time."""

    def time(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when, callback, *args)


def run(main: Coroutine[Any, Any, _T], *, eager: bool = False) -> _T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=partial(VirtualLoop, eager=eager)) as runner:  # type: ignore[abstract]  # no I/O
        return runner.run(main)


def in_virtual_time(
    test: Callable[_P, Coroutine[Any, Any, None]], *, eager: bool = False, longest: float | None = None
) -> Callable[_P, None]:
    """Run a test on a loop whose time jumps to the next timer; for so many of its seconds at most."""

    async def timed(*args: _P.args, **options: _P.kwargs) -> None:
        async with asyncio.timeout(longest):
            await test(*args, **options)

    @wraps(test)
    def run_it(*args: _P.args, **options: _P.kwargs) -> None:
        run(timed(*args, **options), eager=eager)

    return run_it
