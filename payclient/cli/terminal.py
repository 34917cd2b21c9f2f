"""What goes to the terminal: results to stdout, everything else to stderr, one line at a time."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import time
from contextvars import ContextVar

from rich.console import Console
from rich.markup import escape

from payclient.errors import ConfigurationError

__all__: list[str] = []


def out() -> Console:
    """Where results go."""
    return Console(highlight=False, soft_wrap=True)


#: Where progress, questions and warnings go.
err = Console(stderr=True, highlight=False, soft_wrap=True)


#: The arguments of this run, to say how it goes on.
command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())


def again() -> str:
    """This run's own command line, without the password of a ledger."""
    return shlex.join(("payclient", *map(without_password, command_line.get())))


def without_password(text: str) -> str:
    """The same, where it is or ends in an address, with `***` in the place of its password."""
    text = re.sub(r"(?s)(postgres(?:ql)?://[^:/?#@]*:).*@", r"\1***@", text)
    return re.sub(r"(?is)([?&](?:ssl)?password=)[^&#]*", r"\1***", text)


def say(text: str, *, whole: bool = False) -> None:
    """A sentence to stderr, above the progress where there is one; `whole` is not broken: it may be copied."""
    err.print(escape(text), soft_wrap=whole or not err.is_terminal)


def tell(text: str) -> None:
    """A sentence among the results, broken between words on a terminal only."""
    console = out()
    console.print(escape(text), soft_wrap=not console.is_terminal)


def complain(text: str) -> None:
    """An error in one line."""
    text = " ".join(text.split())
    err.print(f"[bold red]payclient:[/] {escape(text)}")


def check_can_ask(otherwise: str) -> None:
    """Raise `ConfigurationError`, with what came of it, where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise ConfigurationError(f"there is no terminal to ask on: give --yes; {otherwise}")


def agrees(question: str, otherwise: str) -> bool:
    """Ask on the terminal; only a yes is one, and anything else is told what came of it."""
    try:
        answer = err.input(f"{escape(question)} \\[y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() in ("y", "yes"):
        return True
    complain(otherwise)
    return False


def money(cents: int, currency: str) -> str:
    """`USD 1,234.50`: cents as decimal units (§1: the value is multiplied by 100)."""
    return f"{currency} {cents // 100:,}.{cents % 100:02}"


def duration(seconds: float) -> str:
    """`3 min 20 s`, rounded up to a second; `2 h 5 min`."""
    whole = max(int(-(-seconds // 1)), 0)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min {whole % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def at(when: float) -> str:
    """A moment on this machine's clock, with its day where that is not today."""
    moment, today = time.localtime(when), time.localtime()
    return time.strftime("%H:%M:%S" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M", moment)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"[yellow]{record.levelname.lower()}:[/] {escape(record.getMessage())}")


def show_warnings() -> None:
    """What the package warns about, as lines that do not break the progress. They hold ids only."""
    logger = logging.getLogger("payclient")
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines(logging.WARNING))
        logger.propagate = False
