"""Handlers of signals, for as long as a command waits."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def handled(functions: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Call each function, in the loop, at the signal of its name. A signal that this system lacks is passed over.

    SIGHUP stays ignored under `nohup`. Outside the main thread nothing is handled, and Ctrl-C ends the process.
    """
    wake = asyncio.get_running_loop().call_soon_threadsafe
    with ExitStack() as stack:
        for name, function in functions.items():
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            with suppress(ValueError):  # not in the main thread
                # Not by `loop.add_signal_handler`, which Windows lacks.
                before = signal.signal(number, lambda *_, call=function: wake(call))
                stack.callback(signal.signal, number, before)
        yield
