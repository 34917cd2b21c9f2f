"""A program that charges, with places in it where it can be killed or stopped. Nothing in payclient knows of them.

It charges `count` customers and writes what it is told to a file of claims, a line at a time. Exit codes: 0 every
charge is decided on the service's word; 1 some are not, run it again; 2 the ledger is in use.
"""

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import sys
from asyncio import selector_events
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import payclient
from payclient import session
from payclient.batch import charge_all
from payclient.ledger.sqlite import SqliteLedger
from payclient.schedule import Fixed

TOKEN = "crashes"
TOTAL = 1.0
WINDOW = 1.5

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
            elif words == ["INSERT", "INTO", "changes"]:
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

    SqliteLedger.permit = watched_permit  # type: ignore[method-assign]
    SqliteLedger.aclose = watched_close  # type: ignore[method-assign]
    SqliteLedger.unfinished = watched_unfinished  # type: ignore[method-assign]

    for method in ("write", "writelines"):
        _watch_bytes(place, method)
    decode = session.decode_sale  # type: ignore[attr-defined]  # imported there

    def watched_decode(*arguments: Any) -> payclient.SaleResult:
        place.reach("answer read")
        return decode(*arguments)

    session.decode_sale = watched_decode  # type: ignore[attr-defined, assignment]


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


def requests(prefix: str, count: int) -> list[payclient.SaleRequest]:
    """The charges, the same on every run; each customer has one."""
    return [
        payclient.SaleRequest(
            phone_number=f"09{abs(hash_of(prefix)) % 10000:04}{number:04}",
            country_code="593",
            amount_without_tax=1000 + number,
            currency="USD",
            client_transaction_id=f"{prefix}-{number}",
            store_id=prefix,
        )
        for number in range(count)
    ]


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum(ord(character) * 31**place for place, character in enumerate(text))


class Claims:
    """What the process was told, with the operating system at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        #: Ids decided on the service's word.
        self.decided: set[str] = set()

    def note(
        self, identifier: str, outcome: payclient.Outcome | None, error: BaseException | None = None
    ) -> None:
        claim: dict[str, object] = {"id": identifier}
        if outcome is not None:
            claim |= {"state": outcome.state, "paid": outcome.paid, "evidence": outcome.evidence}
            claim["transaction_id"] = outcome.transaction_id
            if outcome.state in (payclient.State.ACCEPTED, payclient.State.CANCELLED):
                self.decided.add(identifier)
        if error is not None:
            claim["error"] = type(error).__name__
        os.write(self._file, json.dumps(claim).encode() + b"\n")


async def batch(tracker: payclient.Tracker, sales: list[payclient.SaleRequest], claims: Claims) -> None:
    """All of them by `charge_all`."""
    async with charge_all(tracker, sales, max_in_flight=8) as results:
        async for result in results:
            claims.note(result.request_key, result.outcome, result.error)


async def single(tracker: payclient.Tracker, sales: list[payclient.SaleRequest], claims: Claims) -> None:
    """One by one by `tracker.sale`, eight at a time, each waited for."""
    room = asyncio.Semaphore(8)

    async def charge(request: payclient.SaleRequest) -> None:
        try:
            async with room:
                pending = await tracker.sale(request)
        except payclient.PayError as error:
            claims.note(request.client_transaction_id, None, error)
        else:
            claims.note(request.client_transaction_id, pending.outcome)
            claims.note(request.client_transaction_id, await pending.wait())

    await asyncio.gather(*(charge(request) for request in sales))


async def run(options: argparse.Namespace) -> int:
    """Charge them, and say whether every one is decided."""
    profile = payclient.ServiceProfile(
        name="crashes",
        sale_window=WINDOW,
        not_found_codes=frozenset({20}),
        status=payclient.StatusProfile(
            by_transaction_id="/api/Sale/{transaction_id}",
            by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
            state_field="transactionStatus",
        ),
    )
    sales, claims = requests(options.prefix, options.count), Claims(options.claims)
    try:
        async with payclient.open_tracker(
            options.url,
            TOKEN,
            ledger=options.ledger,
            profile=profile,
            schedule=Fixed(0.2),
            timeouts=payclient.Timeouts(connect=TOTAL, total=TOTAL),
        ) as tracker:
            await (batch if options.mode == "batch" else single)(tracker, sales, claims)
    except payclient.LedgerInUseError:
        return 2
    return 0 if len(claims.decided) == len(sales) else 1


def main() -> int:
    """Read the options, set the place, charge."""
    parser = argparse.ArgumentParser()
    for name in ("--url", "--ledger", "--prefix", "--claims"):
        parser.add_argument(name, required=True)
    parser.add_argument("--mode", choices=("batch", "single"), required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--at", choices=POINTS)
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    options = parser.parse_args()
    if options.at is not None:
        place = Place(options.at, options.occurrence, signal.Signals[options.signal])
        watch_sql(place)
        watch_steps(place)
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
