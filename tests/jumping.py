"""A real event loop with real sockets, whose clock jumps to the next timer when nothing has come for a while."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

__all__ = ["in_jumping_time", "jump_after"]

P = ParamSpec("P")


class _Selector(selectors.DefaultSelector):
    """Waits `silence` at most; `ahead` is by how much its loop's clock is ahead of the real one."""

    silence = 0.5
    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        waits = timeout is None or timeout <= self.silence
        found = super().select(timeout if waits else self.silence)
        if timeout is not None and not waits and not found:
            self.ahead += timeout - self.silence
        return found


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return super().time() + self.selector.ahead


def jump_after(seconds: float) -> None:
    """Of the running loop: so many real seconds of silence mean that a timer is waited for.

    Few are enough where everything that answers runs in this loop, and no thread and no other process.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _JumpingLoop)
    loop.selector.silence = seconds


def in_jumping_time(silence: float) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a test on such a loop."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run_it(*args: P.args, **options: P.kwargs) -> None:
            async def main() -> None:
                jump_after(silence)
                await test(*args, **options)

            with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
                runner.run(main())

        return run_it

    return decorate
