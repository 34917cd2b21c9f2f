"""The one thread of a process that runs an event loop, for callers in other threads: a call waits for its task there.

The thread starts at the first call, hence in each fork anew. At the end of the main thread all that is open is closed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - `threading` calls first what registered last: its end is after ours
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from payclient.clock import cancel_all, read_exception
from payclient.errors import OutcomeUnknownError, TrackerClosedError, UsageError
from payclient.logs import tracker_log as log

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Seconds that the end of the process waits for trackers to close; then it leaves them as a crash would.
EXIT_PATIENCE = 60.0

_ENDED = "the thread of payclient.sync has ended, as at the end of a program: its trackers are closed"


class LoopThread:
    """The one thread of a process that runs an event loop."""

    def __init__(self) -> None:
        # Reentrant: the handler of a signal may call while the call that it interrupts holds it.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: The queue of each waiting caller, which gets the ended task of its call; or None, if the thread ended first.
        self._waiting: set[SimpleQueue[Any]] = set()
        self._ending = self._ended = False  # no more calls are taken; the loop ends
        #: The methods that close the trackers that are open on the loop.
        self.closers: set[Callable[[], Coroutine[Any, Any, None]]] = set()

    def run(self, work: Callable[_P, Coroutine[Any, Any, _R]], *args: _P.args, **options: _P.kwargs) -> _R:
        """Run a coroutine on the loop in the caller's context. A caller who is interrupted leaves it running."""
        would_block = asyncio._get_running_loop() is not None
        if would_block and (ipython := sys.modules.get("IPython")) is not None:
            # A Jupyter kernel's cells run on its loop, and are expected to block.
            would_block = getattr(ipython.get_ipython(), "kernel", None) is None
        if would_block or threading.current_thread() is self._thread:
            raise UsageError(
                "payclient.sync would block the event loop that runs in this thread: await the methods of "
                "payclient.open_tracker here, or call these by asyncio.to_thread"
            )
        with self._lock:
            if self._ending:
                raise TrackerClosedError(_ENDED)
            loop = self._loop or self._start()
            # Not by a future of `concurrent`: a caller who is interrupted may leave that locked, and the loop waiting.
            ended: SimpleQueue[asyncio.Task[_R] | None] = SimpleQueue()
            self._waiting.add(ended)
            loop.call_soon_threadsafe(_begin, work(*args, **options), ended)
        try:
            task = ended.get()
        finally:
            self._waiting.discard(ended)
        if task is None:
            raise OutcomeUnknownError(
                "the thread of payclient.sync ended first; the ledger knows what may exist"
            )
        try:
            return task.result()
        except asyncio.CancelledError:
            raise TrackerClosedError("the tracker was closed while this was waiting") from None

    def _start(self) -> asyncio.AbstractEventLoop:
        # `atexit` would be too late: by then the executor is gone that looks up hosts.
        try:
            threading._register_atexit(_end)  # type: ignore[attr-defined]  # as concurrent.futures does; not in typeshed
        except RuntimeError:  # a first call in `atexit`
            raise TrackerClosedError(_ENDED) from None
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._serve, args=[loop], name="payclient-sync", daemon=True)
        thread.start()
        if self._loop is None:  # unless the handler of a signal has started a loop meanwhile
            self._loop, self._thread = loop, thread
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._ended:
                # Raised by a callback, and its caller has it too.
                with suppress(KeyboardInterrupt, SystemExit):
                    loop.run_forever()
            loop.close()
        finally:  # also where the loop died, as one whose descriptors somebody closed
            with self._lock:
                self._ending = True
            self._release_all()

    def _release_all(self) -> None:
        """Let every caller that waits go: a thread that waits on would keep the process from ending."""
        for ended in tuple(self._waiting):
            ended.put(None)

    def end(self) -> None:
        """Close what is open, release every caller that waits, and end the thread."""
        with self._lock:
            loop, thread, ending, self._ending = self._loop, self._thread, self._ending, True
        if loop is None or thread is None or ending:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close_all(), loop).result(EXIT_PATIENCE)
        except BaseException as error:
            self._release_all()
            if not isinstance(error, TimeoutError):
                raise  # Ctrl-C
            log("warning", "trackers_not_closed", "", "trackers did not close within %g s", EXIT_PATIENCE)
        finally:
            self._ended = True
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)

    async def _close_all(self) -> None:
        for error in await asyncio.gather(*(close() for close in self.closers), return_exceptions=True):
            if error is not None:
                log("error", "tracker_close_failed", "", "a tracker did not close: %s", type(error).__name__)
        await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})
        await asyncio.get_running_loop().shutdown_asyncgens()


def _begin(work: Coroutine[Any, Any, Any], ended: SimpleQueue[Any]) -> None:
    """Start a task in the loop's thread, and hand it over once it has ended."""

    def hand_over(task: asyncio.Task[Any]) -> None:
        read_exception(task)
        ended.put(task)

    asyncio.get_running_loop().create_task(work).add_done_callback(hand_over)


#: By process id. A fork keeps its parent's and never touches it: their loop's descriptors are shared.
_threads: dict[int, LoopThread] = {}


def thread_of_process() -> LoopThread:
    """Return the loop thread of this process."""
    return _threads.get(os.getpid()) or _threads.setdefault(os.getpid(), LoopThread())


def _end() -> None:
    thread_of_process().end()
