"""`payclient`, a hundred times as quick, with places in it where it can be killed or stopped.

Nothing in payclient knows of them.
`python -m campaigns.child [--at STEP --signal S] [--notify PORT] charge FILE ...`
"""

import argparse
import importlib
import os
import pkgutil
import signal
import sqlite3
import sys
from asyncio import selector_events
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from aiohttp import web

import payclient
from payclient import cli, wire
from payclient.ledger import postgres
from payclient.schedule import Fixed
from payclient.tracking import leases, poller
from payclient.web.aiohttp import notification_route, tracker_context
from ports import served

#: Seconds: the total time-out, and after how many other hosts take over what a dead one followed.
TOTAL, LEASE = 1.0, 1.5


class Steps:
    """Counts this process's steps from its first write on, and hits it before one of them.

    A step is a statement of the ledger's, bytes that leave, or the answer to a Sale that is read. Between two of them
    lie all places in the life of a sale: its permit asked, inserted, committed and known, the first byte, the answer
    read, written and committed, and so of its decision, of a recovery, and of the end.
    """

    def __init__(self, at: int, number: int) -> None:
        self._left, self._signal = at, number
        self._begun = False

    def watch(self) -> None:
        steps = self

        class Watched(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
                steps._begun = steps._begun or sql == "BEGIN IMMEDIATE"
                steps._take()
                return super().execute(sql, parameters)

        sqlite3.connect = partial(sqlite3.connect, factory=Watched)  # type: ignore[assignment]  # for this process
        transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # where bytes leave
        for owner, name in ((transport, "write"), (transport, "writelines"), (wire, "decode_sale")):
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._begun = True  # the ledger is open
            self._take()
            return function(*arguments)

        return counted

    def _take(self) -> None:
        self._left -= self._begun
        if self._begun and self._left == 0:
            os.kill(os.getpid(), self._signal)


# --- What it does


@asynccontextmanager
async def hasty(port: int | None, *args: Any, **options: Any) -> AsyncIterator[payclient.Tracker]:
    """A tracker with short time-outs, which is notified on a port as a shop's is."""
    options |= {"timeouts": payclient.Timeouts(connect=TOTAL, total=TOTAL), "schedule": Fixed(0.2)}
    async with payclient.open_tracker(*args, **options) as tracker:
        app = web.Application()
        app.cleanup_ctx.append(tracker_context(lambda: nullcontext(tracker)))
        app.add_routes([notification_route("/notified")])
        async with nullcontext() if port is None else served(app, port):
            yield tracker


def hurry(port: int | None) -> None:
    """Shorten what a command has no option for."""
    vars(leases).update(LEASE=LEASE, RENEW=0.3, SENDING_GRACE=0.5)
    poller.EXPIRIES_AT_ONCE = 1  # the others wait in line, as a crowd does
    postgres.PostgresLedger.open.__func__.__kwdefaults__["poll"] = 1.0  # type: ignore[attr-defined]  # bound when it was defined
    for module in pkgutil.iter_modules(cli.__path__, "payclient.cli."):
        found = importlib.import_module(module.name)
        if hasattr(found, "open_tracker"):
            found.open_tracker = partial(hasty, port)  # type: ignore[attr-defined]  # imported there


def main() -> int:
    """Read the options, watch the steps, charge."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--at", type=int)
    parser.add_argument("--signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    parser.add_argument("--notify", type=int)
    options, arguments = parser.parse_known_args()
    if options.at is not None:
        Steps(options.at, signal.Signals[options.signal]).watch()
    hurry(options.notify)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
