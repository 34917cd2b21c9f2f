"""A real event loop with real sockets, whose clock jumps to the next timer when nothing has come for a while."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["JumpingLoop", "jump_after", "run_jumping"]

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Waits `silence` at most; `ahead` is by how much its clock is ahead of the real one."""

    silence = 0.5
    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= self.silence:
            return super().select(timeout)
        found = super().select(self.silence)
        if not found:
            self.ahead += timeout - self.silence
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop that is told by `jump_after` how many real seconds of silence mean that a timer is waited for."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.ahead

    def jump_after(self, seconds: float) -> None:
        """Lower it where everything that answers runs in this loop."""
        self._jumping.silence = seconds


def jump_after(seconds: float) -> None:
    """Of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.jump_after(seconds)


def run_jumping(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, where minutes of waiting take half a second."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)
