"""The simulator in a thread of its own, for tests whose code runs in other loops, or in none."""

import asyncio
import copy
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self

from .clock import JumpClock
from .server import Simulator

_PATIENCE: Final = 30.0  # seconds until a call that is not answered is given up


class SimulatorThread:
    """A `Simulator`, by default `Simulator()`, at `url` while its `with` lasts.

    Every method and attribute of `Simulator` is here too, to be used from any thread and any loop: methods are called
    without `await`, attributes are copies. Nothing waits for the merchant: a notification is on its way when
    `approve` returns.
    """

    def __init__(self, simulator: Simulator | None = None) -> None:
        self._simulator = Simulator() if simulator is None else simulator
        self._simulator.waits_for_delivery = False
        if not isinstance(self._simulator.clock, JumpClock):
            raise TypeError("a simulator in a thread needs a JumpClock, which any thread may move")
        #: Shared with whoever is to live in the same time, such as `open_tracker(clock=...)`.
        self.clock: JumpClock = self._simulator.clock
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="payclient-simulator", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._simulator.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._simulator.__aexit__(None, None, None))
        self._end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if callable(getattr(Simulator, name, None)):
            return lambda *args, **options: self._call(name, *args, **options)
        return self._call(name)

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the simulator in its thread, or copy an attribute, and return the result."""

        async def there() -> Any:
            result = getattr(self._simulator, name)
            if callable(result):
                result = result(*args, **options)
            return copy.deepcopy(await result if asyncio.iscoroutine(result) else result)

        if threading.current_thread() is self.__dict__.get("_thread"):
            raise RuntimeError("called from the simulator's own thread, which would wait for itself")
        return self._run(there())

    def _run(self, there: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            there.close()
            raise RuntimeError("the SimulatorThread is not open: use `with`")
        return asyncio.run_coroutine_threadsafe(there, self._loop).result(_PATIENCE)

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
