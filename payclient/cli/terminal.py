"""Output to the terminal: results to stdout, everything else to stderr, one line at a time.

Writing never fails and never waits: a reader that has gone, a full disk behind the log, a pipe that nobody reads and a
terminal that is stopped hold up no run.
"""

import io
import logging
import math
import os
import re
import select
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any, cast

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from payclient.cli.texts import language, reason, sentence, text
from payclient.errors import ConfigurationError
from payclient.validation import escape_text

#: Bytes that a write to a pipe takes without waiting, once `select` returns the pipe (POSIX: 512 or more).
AT_ONCE = 512


class _StandardStream(io.TextIOBase):
    """The current `sys.stdout` or `sys.stderr`; its write errors are ignored."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Bytes that a full pipe or a stopped terminal did not take yet.
        self._unsent = bytearray()
        #: Why output was lost, such as a full disk.
        self.fault: str | None = None

    def _call(self, method: str, *arguments: str) -> Any:
        try:
            return getattr(getattr(sys, self._name), method)(*arguments)
        except (OSError, ValueError, AttributeError):
            return None

    def write(self, text: str) -> int:
        raw = text.encode(self.encoding, "replace")
        # `select` cannot show whether such a stream is ready.
        if sys.platform == "win32" or self._call("fileno") is None:
            self._call("write", raw.decode(self.encoding))
        else:
            self._unsent += raw
            self.send()
        return len(text)

    def send(self, seconds: float | None = 0) -> None:
        """Write what is not written yet, as far as it is taken; each time wait `seconds` for room (None: for ever)."""
        number = self._call("fileno")
        try:
            while self._unsent and select.select([], [number], [], seconds)[1]:
                del self._unsent[: os.write(number, self._unsent[:AT_ONCE])]
        except (OSError, ValueError, TypeError) as error:  # the reader has gone, or the stream is closed
            self._unsent.clear()
            self.note(error)

    def note(self, error: Exception) -> None:
        """Keep why output was lost; a reader that has gone wants no more."""
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            self.fault = error.strerror

    def flush(self) -> None:
        self._call("flush")

    def isatty(self) -> bool:
        return bool(self._call("isatty"))

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of the stream behind
        return getattr(getattr(sys, self._name), "encoding", None) or "utf-8"


_STDOUT, _STDERR = _StandardStream("stdout"), _StandardStream("stderr")


def out() -> Console:
    """Return the console for results; in a pipe it is wide, so that each row of a table keeps to one line."""
    width = None if _STDOUT.isatty() else 240
    return Console(file=cast(IO[str], _STDOUT), highlight=False, emoji=False, soft_wrap=True, width=width)


# No width at all, as some containers have it, would hide every word, and hold up a question for ever.
if not os.environ.get("COLUMNS", "").strip("0"):
    os.environ.pop("COLUMNS", None)

#: The console for progress, questions and warnings.
err: Console = Console(file=cast(IO[str], _STDERR), highlight=False, emoji=False, soft_wrap=True)

#: The arguments of this run, for the command that continues it.
command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())


def open_closed() -> None:
    """Open the standard streams that are closed: else the next file would take their number, and their output.

    The order gives each stream its own number. A character that a stream's encoding lacks is written as `?`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def finish_output() -> bool:
    """Write what is left, however long that takes, or until Ctrl-C. Complain of lost results; return whether any are.

    A stream that cannot be flushed is sent to nowhere: the interpreter would fail to flush it at its end, and exit with
    120.
    """
    with suppress(KeyboardInterrupt):
        for standard in (_STDOUT, _STDERR):
            standard.send(seconds=None)
    for standard, stream in ((_STDOUT, sys.stdout), (_STDERR, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:
            standard.note(error)
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
    fault, _STDOUT.fault = _STDOUT.fault, None
    if fault is not None:
        complain(reason(f"the output cannot be written: {fault}"))
    return fault is not None


def again() -> str:
    """Return the command line of a next run: without the password of a ledger, and without consent to a new one."""
    given = (each for each in command_line.get() if each.partition("=")[0] != "--new-ledger")
    return shlex.join(("payclient", *map(without_password, given)))


def without_password(text: str) -> str:
    """Return a text that is an address, or ends in one, with `***` for its password."""
    text = re.sub(r"(?s)([A-Za-z][\w+.-]*://[^:/?#]*:).*@", r"\1***@", text)
    return re.sub(r"(?is)(password\s*=)[^&#]*", r"\1***", text)


def printable(text: object) -> str:
    """Return a text for a console as it is: markup and what is not printable are escaped, for a name may hold both."""
    return escape("\n".join(map(escape_text, str(text).split("\n"))))


def say(text: str, *, whole: bool = False) -> None:
    """Write a sentence to stderr, above any live progress; a `whole` one is not wrapped, so that it can be copied."""
    err.print(printable(text), soft_wrap=whole or not err.is_terminal)


def print_result(text: str) -> None:
    """Write a sentence to stdout; on a terminal it is wrapped between words."""
    console = out()
    console.print(printable(text), soft_wrap=not console.is_terminal)


def print_line(text: str) -> None:
    """Write one line to stdout, never wrapped; what is not printable is escaped."""
    _STDOUT.write(f"{escape_text(text)}\n")
    _STDOUT.flush()


def complain(text: str) -> None:
    """Write an error in one line."""
    err.print(f"[bold red]payclient:[/] {printable(' '.join(text.split()))}")


def ask(question: str, otherwise: str, *, yes: bool) -> None:
    """Ask on the terminal unless `yes` is given. Raises `ConfigurationError`, whose message ends in `otherwise`, after
    any answer but a yes, and where there is no terminal.
    """
    if yes:
        return
    check_can_ask(otherwise)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a loop's would not end `input`
    try:
        answer = err.input(f"{printable(question)} {printable(text('ask.choice'))} ")
    except EOFError:
        answer = ""
    finally:
        signal.signal(signal.SIGINT, handler)
    if answer.strip().lower() not in ("y", "yes", "s", "si", "sí"):
        raise ConfigurationError(otherwise)


def check_can_ask(otherwise: str) -> None:
    """Raise `ConfigurationError`, whose message ends in `otherwise`, where there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise ConfigurationError(f"there is no terminal to ask on: give --yes; {otherwise}")


def simple_table(*words: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table with a header: columns of words, then columns of numbers. A narrow terminal cuts none."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in words:
        table.add_column(sentence(name), overflow="fold")
    for name in numbers:
        table.add_column(sentence(name), justify="right", overflow="fold")
    return table


def facts(rows: Iterable[tuple[Any, ...]]) -> Table:
    """Return names and values, in a style or none, as two columns, without values that are None or an empty text."""
    table = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value, *style in rows:
        if value not in (None, ""):
            table.add_row(printable(sentence(name)), printable(value), style="".join(style))
    return table


def print_facts(rows: Mapping[str, object]) -> None:
    """Print names and values as `facts` does."""
    out().print(facts(rows.items()))


def money(cents: int, currency: str) -> str:
    """Return `USD 1,234.50`, or `USD 1.234,50` in Spanish: cents as units (§1)."""
    amount = f"{'-' * (cents < 0)}{abs(cents) // 100:,}.{abs(cents) % 100:02}"
    return f"{currency} {amount if language() == 'en' else amount.translate(str.maketrans(',.', '.,'))}"


def sums(totals: Mapping[str, int]) -> list[str]:
    """Return cents by currency as texts."""
    return [money(cents, currency) for currency, cents in totals.items()]


def listed(items: Sequence[object], most: int = 5) -> str:
    """Return the first items, with dots for the others."""
    dots = ["..."] if len(items) > most else []
    return ", ".join([*map(str, items[:most]), *dots])


def duration(seconds: float) -> str:
    """Return `3 min 20 s`, rounded up to a second; from an hour on `2 h 5 min`, rounded up to a minute."""
    whole = max(math.ceil(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = math.ceil(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def at(when: float) -> str:
    """Return a time on this machine's clock, with its date unless that is today."""
    moment, today = time.localtime(when), time.localtime()
    return time.strftime("%H:%M:%S" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M", moment)


def iso(when: float | None) -> str | None:
    """Return `2025-11-21T10:21:27.123Z`; None for None."""
    if when is None:
        return None
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"[yellow]{record.levelname.lower()}:[/] {printable(record.getMessage())}")


def show_warnings() -> None:
    """Print the package's warnings as lines above any live progress. Warnings hold ids only."""
    logger = logging.getLogger("payclient")
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines(logging.WARNING))
        logger.propagate = False
