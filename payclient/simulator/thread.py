"""The simulator in a thread of its own, for tests whose code runs in other loops, or in none."""

import asyncio
import copy
import threading
from types import TracebackType
from typing import Any, Final, Self

from .clock import JumpClock
from .server import Simulator

__all__ = ["SimulatorThread"]

_PATIENCE: Final = 30.0  # seconds until a call that is not answered is given up


class SimulatorThread:
    """A `Simulator`, by default `Simulator()`, at `url` while its `with` lasts.

    Every method and property of `Simulator` is here too, to be used from any thread and any loop: methods are called
    without `await`, properties are copies. Nothing waits for the merchant: a notification is on its way when
    `approve` returns.
    """

    def __init__(self, simulator: Simulator | None = None) -> None:
        self._simulator = Simulator() if simulator is None else simulator
        self._simulator.waits_for_delivery = False
        if not isinstance(self._simulator.clock, JumpClock):
            raise TypeError("a simulator in a thread needs a JumpClock, which any thread may move")
        #: Shared with whoever is to live in the same time, such as `open_tracker(clock=...)`.
        self.clock: JumpClock = self._simulator.clock
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="payclient-simulator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Simulator, name):
            raise AttributeError(f"neither SimulatorThread nor Simulator has {name!r}")
        if callable(getattr(Simulator, name)):
            return lambda *args, **options: self.call(name, *args, **options)
        return self.call(name)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the simulator in its thread, or copy a property, and return the result."""

        async def there() -> Any:
            found = getattr(self._simulator, name)
            if not callable(found):
                return copy.deepcopy(found)
            result = found(*args, **options)
            return copy.deepcopy(await result if asyncio.iscoroutine(result) else result)

        if self._loop is None or not self._thread.is_alive():
            raise RuntimeError("the SimulatorThread is not open: use `with`")
        if threading.current_thread() is self._thread:
            raise RuntimeError("called from the simulator's own thread, which would wait for itself")
        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(_PATIENCE)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised again by whoever started the thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with self._simulator:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stop.wait()
