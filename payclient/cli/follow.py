"""`payclient follow`: a process that follows what is open, and prints each outcome as a line of JSON."""

import asyncio
import errno
import os
import select
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number as Range

from payclient import Outcome
from payclient.cli import terminal
from payclient.cli.report import TIMES, error_facts
from payclient.cli.settings import ChargeOptions, Whole
from payclient.cli.signals import handled
from payclient.cli.tables import json_line
from payclient.cli.texts import text
from payclient.clock import cancel_all
from payclient.errors import ConfigurationError

_STDOUT = 1

#: Seconds from one look at whether somebody still reads stdout to the next.
LOOK = 1.0


async def follow(
    *,
    options: ChargeOptions = ChargeOptions(),
    since: Annotated[int, Whole, Parameter(validator=Range(gte=0))] = 0,
) -> int:
    """Follow what is open and print each outcome as a line of JSON, until SIGTERM or Ctrl-C.

    Decisions, expiries and corrections come in order, each at least once, without delay. Store a line's cursor with
    what you did about it, and start again with --since.

    Exit codes: 0 stopped by a signal; 2 bad input, or nobody reads the lines.

    :param since: The cursor of the last outcome that you dealt with.
    """
    options.check()
    stopped = asyncio.Event()
    with handled(stopped.set, stopped.set):
        async with options.tracker() as tracker:
            work = (_print(tracker.outcomes(since)), _watch_reader(), stopped.wait())
            tasks = [asyncio.ensure_future(each) for each in work]
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await cancel_all(tasks)
            for task in ended:
                task.result()
    terminal.say(text("run.followed"))
    return 0


async def _print(outcomes: AsyncIterator[Outcome]) -> None:
    async for outcome in outcomes:
        line = json_line(_facts(outcome))
        try:
            while line:
                await _writable()
                line = line[os.write(_STDOUT, line[: terminal.AT_ONCE]) :]
        except OSError as error:
            raise _unwritable(error.errno) from None


def _unwritable(number: int | None) -> ConfigurationError:
    return ConfigurationError(f"the outcomes cannot be written: {os.strerror(number or errno.EIO)}")


async def _watch_reader() -> None:
    """Raise once nobody reads stdout any more, which no write notices while no outcome comes."""
    if sys.platform == "win32":
        await asyncio.Event().wait()
        return
    poll = select.poll()
    poll.register(_STDOUT, 0)
    while not any(event & select.POLLERR for _, event in poll.poll(0)):  # noqa: ASYNC110 - by another process
        await asyncio.sleep(LOOK)
    raise _unwritable(errno.EPIPE)


async def _writable() -> None:
    """Wait until stdout can be written again; the sales are followed meanwhile."""
    if sys.platform == "win32" or select.select([], [_STDOUT], [], 0)[1]:
        return
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(_STDOUT, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(_STDOUT)


def _facts(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome by the names of a report's columns; times are ISO 8601, in UTC."""
    names = (
        "cursor", "client_transaction_id", "transaction_id", "state", "paid", "evidence", "purchase", "amount",
        "currency",
    )  # fmt: skip
    facts = {name: getattr(outcome, name) for name in names}
    facts |= {name: terminal.iso(getattr(outcome, name)) for name in TIMES}
    facts |= {"error_code": None, "message": outcome.reason or ""} | error_facts(outcome.error)
    if outcome.also_paid:  # the purchase was paid twice, and one payment is to be given back
        facts["also_paid"] = [*outcome.also_paid]
    return facts
