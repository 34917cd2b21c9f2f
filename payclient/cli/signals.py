"""Functions for signals, for as long as a command waits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

__all__: list[str] = []


@contextmanager
def handled(functions: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Call each function, in the loop, at the signal of its name. A signal that this system lacks is passed over.

    SIGHUP stays ignored under `nohup`. In a thread nothing is handled, and Ctrl-C ends the process as ever.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for name, function in functions.items():
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            try:
                loop.add_signal_handler(number, function)
                stack.callback(loop.remove_signal_handler, number)
            except NotImplementedError:  # Windows: by the interpreter's own handlers
                with suppress(ValueError):
                    before = signal.signal(number, _caller(loop, function))
                    stack.callback(signal.signal, number, before)
            except (RuntimeError, ValueError):
                pass
        yield


def _caller(
    loop: asyncio.AbstractEventLoop, function: Callable[[], None]
) -> Callable[[int, FrameType | None], None]:
    def call(_: int, __: FrameType | None) -> None:
        loop.call_soon_threadsafe(function)

    return call
