"""A real event loop with real sockets, whose clock jumps to the next timer when nothing has come for a while."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["jump_after", "run_jumping"]

T = TypeVar("T")


class _Jumps:
    """Waits `silence` at most; `ahead` is by how much the loop's clock is ahead of the real one."""

    def __init__(self, loop: Any) -> None:
        self.silence = 0.0
        self.ahead = 0.0
        self._select, self._time = loop._selector.select, loop.time
        loop._selector.select, loop.time = self.select, self.time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        waits = timeout is None or timeout <= self.silence
        found: list[tuple[selectors.SelectorKey, int]] = self._select(timeout if waits else self.silence)
        if timeout is not None and not waits and not found:
            self.ahead += timeout - self.silence
        return found

    def time(self) -> float:
        real: float = self._time()
        return real + self.ahead


_JUMPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Jumps] = WeakKeyDictionary()


def jump_after(seconds: float) -> None:
    """Of the running loop: so many real seconds of silence mean that a timer is waited for.

    Few are enough where everything that answers runs in this loop, and no thread and no other process.
    """
    loop = asyncio.get_running_loop()
    if loop not in _JUMPS:
        _JUMPS[loop] = _Jumps(loop)
    _JUMPS[loop].silence = seconds


def run_jumping(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, where minutes of waiting take half a second."""

    async def main() -> T:
        jump_after(0.5)
        return await work

    return asyncio.run(main())
