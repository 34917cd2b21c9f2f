"""Handlers of signals, for as long as a command waits."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def handled(interrupt: Callable[[], None], terminate: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` at Ctrl-C, and `terminate` at SIGTERM and SIGHUP, in the loop.

    SIGHUP stays ignored under `nohup`; Windows lacks it. Outside the main thread nothing is handled, and Ctrl-C ends
    the process.
    """
    wake = asyncio.get_running_loop().call_soon_threadsafe
    with ExitStack() as stack:
        for name, function in (("SIGINT", interrupt), ("SIGTERM", terminate), ("SIGHUP", terminate)):
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            with suppress(ValueError):  # not in the main thread
                # Not by `loop.add_signal_handler`, which Windows lacks.
                before = signal.signal(number, lambda *_, call=function: wake(call))
                stack.callback(signal.signal, number, before)
        yield
