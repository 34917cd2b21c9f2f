"""`payclient`, a hundred times as quick, with places in it where it can be killed or stopped.

Nothing in payclient knows of them.
`python -m campaigns.child [--at POINT --occurrence N --signal S] [--notify PORT] charge FILE ...`
"""

import argparse
import importlib
import os
import pkgutil
import signal
import sqlite3
import sys
from asyncio import selector_events
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from aiohttp import web

import payclient
from payclient import cli, wire
from payclient.ledger import postgres
from payclient.ledger.sqlite import SqliteLedger
from payclient.schedule import Fixed
from payclient.tracking import leases
from payclient.web.aiohttp import notification_route, tracker_context
from ports import served

#: Seconds: the total time-out, and after how many other hosts take over what a dead one followed.
TOTAL, LEASE = 1.0, 1.5

#: Where it can be hit, in the order of a sale's life.
POINTS = (
    "opened",  # the ledger is open, nothing is recovered yet
    "permit asked",
    "permit inserted",  # and not committed
    "permit committed",  # and not known to the sender
    "permit known",  # and no byte has left
    "first byte",  # has been handed to the kernel
    "answer read",  # and not given to the ledger
    "answer written",  # and not committed
    "answer committed",
    "decision written",
    "decision committed",
    "recovery written",
    "recovery committed",
    "closing",
)


class Place:
    """The one place at which this process hits itself, once."""

    def __init__(self, point: str, occurrence: int, number: int) -> None:
        self._point = point
        self._occurrence = occurrence
        self._signal = number
        self._seen: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self._seen[point] += 1
        if point == self._point and self._seen[point] == self._occurrence:
            os.kill(os.getpid(), self._signal)


def watch_sql(place: Place) -> None:
    """See each transaction's content before and after its COMMIT, in the thread that writes it."""

    class Watched(sqlite3.Connection):
        kinds: set[str] = set()  # noqa: RUF012 - there is one connection

        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if sql == "COMMIT":
                for kind in sorted(self.kinds):
                    place.reach(f"{kind} {'inserted' if kind == 'permit' else 'written'}")
            cursor = super().execute(sql, parameters)
            words = sql.split(maxsplit=3)[:3]
            if words[:1] == ["BEGIN"]:
                self.kinds.clear()
            elif words == ["INSERT", "INTO", "attempts"]:
                self.kinds.add("permit")
            elif words[:2] == ["INSERT", "INTO"]:
                self.kinds |= {_kind_of(value) for value in parameters} - {""}
            elif sql == "COMMIT":
                for kind in sorted(self.kinds):
                    place.reach(f"{kind} committed")
                self.kinds.clear()
            return cursor

    sqlite3.connect = partial(sqlite3.connect, factory=Watched)  # type: ignore[assignment]  # for this process


def _kind_of(value: object) -> str:
    """The kind of an event by its name, which is among the values of its row."""
    if value in ("Created", "Lost", "NotSent"):
        return "answer"
    if value in ("FoundAccepted", "FoundCancelled", "ProvenAbsent"):
        return "decision"
    return "recovery" if value == "Recovered" else ""


def watch_steps(place: Place) -> None:
    """See the steps of a sale: around the permit, at its first byte, at its answer, at the end."""
    permit, close, unfinished = SqliteLedger.permit, SqliteLedger.aclose, SqliteLedger.unfinished

    async def watched_permit(self: SqliteLedger, record: Any) -> bool:
        place.reach("permit asked")
        granted = await permit(self, record)
        place.reach("permit known")
        return granted

    async def watched_close(self: SqliteLedger) -> None:
        place.reach("closing")
        await close(self)

    def watched_unfinished(self: SqliteLedger) -> Any:
        place.reach("opened")
        return unfinished(self)

    SqliteLedger.permit = watched_permit  # type: ignore[method-assign, assignment]
    SqliteLedger.aclose = watched_close  # type: ignore[method-assign, assignment]
    SqliteLedger.unfinished = watched_unfinished  # type: ignore[method-assign, assignment]
    for method in ("write", "writelines"):
        _watch_bytes(place, method)
    decode = wire.decode_sale

    def watched_decode(*arguments: Any) -> payclient.SaleResult:
        place.reach("answer read")
        return decode(*arguments)

    wire.decode_sale = watched_decode  # type: ignore[assignment]


def _watch_bytes(place: Place, method: str) -> None:
    transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # where bytes leave
    original: Callable[..., None] = getattr(transport, method)

    def watched(self: object, data: Any) -> None:
        first = data if method == "write" else next(iter(data := list(data)), b"")
        original(self, data)
        if bytes(first[:5]) == b"POST ":
            place.reach("first byte")

    setattr(transport, method, watched)


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
    leases.LEASE, leases.RENEW, leases.SENDING_GRACE = LEASE, 0.3, 0.5
    postgres.PostgresLedger.open.__func__.__kwdefaults__["poll"] = 1.0  # type: ignore[attr-defined]  # bound when it was defined
    for module in pkgutil.iter_modules(cli.__path__, "payclient.cli."):
        found = importlib.import_module(module.name)
        if hasattr(found, "open_tracker"):
            found.open_tracker = partial(hasty, port)  # type: ignore[attr-defined]  # imported there


def main() -> int:
    """Read the options, set the place, charge."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--at", choices=POINTS)
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    parser.add_argument("--notify", type=int)
    options, arguments = parser.parse_known_args()
    if options.at is not None:
        place = Place(options.at, options.occurrence, signal.Signals[options.signal])
        watch_sql(place)
        watch_steps(place)
    hurry(options.notify)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
