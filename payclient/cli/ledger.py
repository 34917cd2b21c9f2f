"""`payclient ledger`: what the ledger holds, what in it is open and why, and deciding by hand what nobody can ask."""

from __future__ import annotations

import asyncio
import csv
import datetime
import io
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from payclient.access import check_base_url, environment_digest
from payclient.cli import terminal
from payclient.cli.lines import PAID_WORDS
from payclient.cli.report import defuse
from payclient.cli.settings import Flag, LedgerUrl, Profile, profile_of
from payclient.cli.tables import facts, simple_table
from payclient.errors import ConfigurationError
from payclient.ledger import Change, Ledger, open_ledger
from payclient.lifecycle import (
    TRANSITIONS,
    DecidedAccepted,
    DecidedCancelled,
    DecidedRefused,
    Decision,
    Evidence,
    Record,
    State,
)
from payclient.schedule import LAST_QUERIES, NORMAL_WINDOW

__all__: list[str] = []

T = TypeVar("T")

ledger = App(name="ledger", help="Read the ledger, and decide by hand what nobody else can.")

#: Seconds after its permit from which nobody can be sending a sale any more: the total time-out and 30 s.
SENDER_GONE = 60.0

DECISIONS: dict[str, type[Decision]] = {
    "accepted": DecidedAccepted,
    "cancelled": DecidedCancelled,
    "refused": DecidedRefused,
}

#: What an operator's word means for whoever runs the shop.
MEANINGS = {
    "accepted": "It counts as paid from now on, whatever the service says. This is final.",
    "cancelled": "It counts as not paid from now on. Only the service's word that it was accepted can change that.",
    "refused": (
        "This RE-OPENS CHARGING: the next charge of this client transaction id is sent to the service again. "
        "If this attempt does exist there, the customer pays twice."
    ),
}

#: What a record rests on, in words.
RESTS_ON = {
    Evidence.PERMIT: "it was allowed to be sent; nothing else is known",
    Evidence.ANSWER: "the service answered our request",
    Evidence.NOT_SENT: "it is proven that no byte reached the service",
    Evidence.NO_ANSWER: "it was sent, and no usable answer came: it may exist",
    Evidence.RECOVERY: "its process ended while it was being sent: it may exist",
    Evidence.QUERY: "the service said so when asked",
    Evidence.ABSENT: "the service did not find it, twice and late enough: nothing was created",
    Evidence.CLOCK: "nobody heard of an answer in time: presumed cancelled, not proven",
    Evidence.OPERATOR: "a person said so",
    Evidence.NOTIFICATION: "a notification came, which proves nothing",
    Evidence.RETURN: "the customer's browser came back, which proves nothing",
    Evidence.UNPAID: "the customer came back without paying, and the service knows of no payment",
    Evidence.WITHDRAWN: "the service took our withdrawal",
    Evidence.CONFLICT: "something that is not ours was reported",
    Evidence.LANE_BUSY: "a later charge of this customer was refused because of a pending one: it may exist",
}

#: Each event's own sentence.
SENTENCES = {
    kind.__name__: (kind.__doc__ or "").strip() for table in TRANSITIONS.values() for kind in table
} | {"Permitted": "The permit was committed, before the first byte."}

_RECORD_COLUMNS = (
    "client_transaction_id", "attempt", "kind", "state", "paid", "evidence", "transaction_id", "candidate_id",
    "amount", "currency", "created_at", "expires_at", "notified_at", "decided_at", "error_code", "error_type",
)  # fmt: skip
COLUMNS = (*_RECORD_COLUMNS, "messages", "actor", "reason")

Identifier = Annotated[str, Parameter(help="The client transaction id.")]


# --- list


@ledger.command(name="list")
def list_(
    *,
    ledger: LedgerUrl = None,
    unresolved: Annotated[
        bool, Flag, Parameter(help="Only what waits for a person: unknown, or expired after its last query.")
    ] = False,
    state: Annotated[
        State | None,
        Parameter(help="Only the sales in this state, decided ones too; without it, what is open."),
    ] = None,
    profile: Profile = None,
) -> int:
    """Show which sales are open, and why. The profile's sale window says when an expired one was last asked for."""
    window = profile_of(profile).sale_window
    now = time.time()

    async def read(book: Ledger) -> list[Record]:
        newest = {}
        async for record in book.unfinished() if state is None else book.records():
            newest[record.client_transaction_id] = record
        return [
            record
            for record in newest.values()
            if (state is None or record.state is state)
            and (not unresolved or is_unresolved(record, now, window))
        ]

    found = _with(ledger, read)
    if not found:
        terminal.say("no such sale" if state or unresolved else "nothing is open")
        return 0
    table = simple_table()
    for name in ("client transaction id", "state", "paid", "amount", "since (UTC)", "why"):
        table.add_column(name, no_wrap=name != "why", justify="right" if name == "amount" else "left")
    for record in found:
        table.add_row(
            escape(record.client_transaction_id),
            record.state,
            PAID_WORDS[record.state.paid],
            escape(terminal.money(record.amount, record.currency)),
            utc(record.created_at),
            escape(why(record, now, window)),
        )
    _console().print(table)
    waiting = sum(is_unresolved(record, now, window) for record in found)
    terminal.say(
        f"{len(found):,} shown"
        + (f", {waiting:,} of them unresolved: `payclient ledger resolve`" * bool(waiting))
    )
    return 0


def is_unresolved(record: Record, now: float, window: float) -> bool:
    """Whether nothing that runs by itself is likely to settle it any more."""
    if record.state is State.SENDING:
        return now > record.created_at + SENDER_GONE
    return record.state is State.UNKNOWN or (
        record.state is State.EXPIRED and now > last_query(record, window)
    )


def last_query(record: Record, window: float) -> float:
    """When a tracker has asked for the last time that a wait hopes for."""
    expires_at = record.created_at + window if record.expires_at is None else record.expires_at
    return expires_at + sum(LAST_QUERIES) * window / NORMAL_WINDOW


def why(record: Record, now: float, window: float) -> str:
    """Why a sale is where it is, in words."""
    word = RESTS_ON[record.evidence]
    match record.state:
        case State.SENDING if now > record.created_at + SENDER_GONE:
            word = "its process ended while it was being sent; the next run calls it unknown, and asks"
        case State.SENDING:
            word = "being sent, or its process has just ended"
        case State.UNKNOWN if record.candidate_id is not None:
            word += f"; transaction {record.candidate_id} was heard of, unproven"
        case State.PENDING if record.expires_at is not None and now < record.expires_at:
            word = f"the customer has not answered; can until {utc(record.expires_at)}"
        case State.PENDING:
            word = "the customer's time is over; the next run asks for the last word"
        case State.EXPIRED if now <= last_query(record, window):
            word += f"; a run that is open asks until {utc(last_query(record, window))}"
        case State.REFUSED if record.evidence is Evidence.ANSWER:
            word = f"the service refused it: {refusal(record)}"
    if record.notified_at is not None and not record.state.decided:
        word += "; a notification came"
    return word


def refusal(record: Record) -> str:
    """A refusal's code and messages."""
    said = "; ".join(record.messages) or record.error_type or ""
    return said if record.error_code is None else f"{said} (code {record.error_code})"


# --- init


@ledger.command
def init(*, ledger: LedgerUrl = None) -> int:
    """Make a ledger, or check the one that is there: its place, its server's settings, its tables."""
    if not ledger or ledger.startswith("memory:"):
        raise ConfigurationError(
            "give --ledger, such as sqlite:charges.db or postgresql://USER@HOST/DATABASE"
        )

    async def run() -> None:
        await (await open_ledger(ledger)).aclose()

    asyncio.run(run())
    terminal.say("the ledger is ready")
    return 0


# --- moved


@ledger.command
def moved(
    *,
    ledger: LedgerUrl = None,
    base_url: Annotated[str, Parameter(help="The service's new address.")],
    yes: Annotated[bool, Flag, Parameter(help="Do not ask.")] = False,
) -> int:
    """Say that the service is at another address from now on: the same one, with all that was charged there."""
    address = check_base_url(base_url)
    if not yes:
        terminal.check_can_ask("nothing was changed")
    terminal.say(
        "What this ledger holds is asked for at the new address from now on. Where that is another service, a test "
        "system for instance, it will not be found there, and could be charged twice."
    )
    if not yes and not terminal.agrees("Is it the same service?", "nothing was changed"):
        return 2

    async def move(book: Ledger) -> None:
        await book.environment(environment_digest(address, book.digest_key), moved=True)

    _with(ledger, move)
    terminal.say(f"the ledger belongs to {address} from now on")
    return 0


# --- show


@ledger.command
def show(identifier: Identifier, /, *, ledger: LedgerUrl = None) -> int:
    """Show one sale's whole history: every attempt and every change, what each rests on, in UTC and local time."""

    async def read(book: Ledger) -> tuple[Record | None, list[Change]]:
        return await book.get(identifier), await book.history(identifier)

    record, changes = _with(ledger, read)
    if record is None:
        raise _missing(identifier)
    _print_record(record)
    for attempt in sorted({change.attempt for change in changes}):
        _console().print(f"\n[bold]attempt {attempt}[/]")
        table = simple_table()
        for name in ("UTC", "local", "change", "evidence", "what"):
            table.add_column(name, no_wrap=name in ("UTC", "local", "change"))
        for change in changes:
            if change.attempt == attempt:
                table.add_row(
                    utc(change.at), local(change.at), _move(change), change.evidence, escape(_what(change))
                )
        _console().print(table)
    return 0


def _print_record(record: Record) -> None:
    until = record.expires_at
    rows = {
        "client transaction id": record.client_transaction_id,
        "state": f"{record.state}, because {RESTS_ON[record.evidence]}",
        "paid": PAID_WORDS[record.state.paid],
        "amount": terminal.money(record.amount, record.currency),
        "transaction id": record.transaction_id,
        "heard of, unproven": record.candidate_id,
        "could be approved until": None if until is None else f"{utc(until)} UTC, {local(until)}",
        "message": (refusal(record) or None) if record.state is State.REFUSED else None,
    }
    _console().print(facts(rows))


def _move(change: Change) -> str:
    return (
        change.event
        if change.before is change.after
        else f"{change.event}: {change.before or 'nothing'} → {change.after}"
    )


def _what(change: Change) -> str:
    details = []
    for name, value in (json.loads(change.detail) if change.detail else {}).items():
        text = f"{utc(value)} UTC" if name.endswith("_at") else str(value)
        details.append(f"{name.replace('_', ' ')}: {text}")
    return " ".join([SENTENCES.get(change.event, ""), "; ".join(details)]).strip()


# --- resolve


@ledger.command
def resolve(
    identifier: Identifier,
    /,
    *,
    as_: Annotated[
        Literal["accepted", "cancelled", "refused"],
        Parameter(
            name="--as", help="What it was; refused says that nothing was created, and re-opens charging."
        ),
    ],
    actor: Annotated[str, Parameter(help="Who decides; kept in the history.")],
    reason: Annotated[str, Parameter(help="Why, and by what proof; kept in the history.")],
    ledger: LedgerUrl = None,
    yes: Annotated[bool, Flag, Parameter(help="Do not ask.")] = False,
) -> int:
    """Decide an unknown or expired sale by hand, for good, with a name and a reason as its evidence."""
    for option, value in (("--actor", actor), ("--reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{option}: must not be empty")
    if not yes:
        terminal.check_can_ask("nothing was changed")

    async def read(book: Ledger) -> Record:
        record = await book.get(identifier)
        if record is None:
            raise _missing(identifier)
        return record

    # Closed while it asks, so that nobody's charges stand still for it.
    seen = _with(ledger, read)
    _check_open(seen, as_)
    _say_what_it_means(seen, as_)
    if not yes and not terminal.agrees("Decide it so?", "nothing was changed"):
        return 2

    async def decide(book: Ledger) -> Record:
        record = await read(book)
        if (record.attempt, record.version) != (seen.attempt, seen.version):
            raise ConfigurationError(
                f"{identifier} has changed meanwhile: look at it again; nothing was changed"
            )
        return await book.apply(
            record, DECISIONS[as_](at=time.time(), actor=actor.strip(), reason=reason.strip())
        )

    after = _with(ledger, decide)
    terminal.say(f"{identifier} is {after.state} from now on, on the word of {actor.strip()}")
    return 0


def _check_open(record: Record, decision: str) -> None:
    if DECISIONS[decision] in TRANSITIONS[record.state]:
        return
    allowed = " or ".join(
        state for state, table in TRANSITIONS.items() if DECISIONS[decision] in table and not state.decided
    )
    hint = ""
    if record.state in (State.SENDING, State.PENDING):
        hint = "; run the charge again, which asks the service first"
    raise ConfigurationError(
        f"{record.client_transaction_id} is {record.state}: only what is {allowed} is decided by hand{hint}; "
        "nothing was changed"
    )


def _say_what_it_means(record: Record, decision: str) -> None:
    now = time.time()
    terminal.say(
        f"{record.client_transaction_id}, attempt {record.attempt}, "
        f"{terminal.money(record.amount, record.currency)}, is {record.state}: {RESTS_ON[record.evidence]}"
    )
    if record.expires_at is not None and now < record.expires_at:
        left = terminal.duration(record.expires_at - now)
        terminal.say(f"The customer may still approve it, until {utc(record.expires_at)} UTC (in {left}).")
    terminal.say(f"As {decision}: {MEANINGS[decision]}")


# --- export


@ledger.command
def export(
    *,
    ledger: LedgerUrl = None,
    format: Annotated[  # noqa: A002 - the option's name
        Literal["csv", "jsonl"] | None, Parameter(help="By default the one that --out ends in, or csv.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="A new file, for its owner only; else it is printed.")] = None,
) -> int:
    """Write every attempt as a row: amounts in cents, times in UTC; no personal data, for the ledger has none."""
    kind = format or ("jsonl" if out is not None and out.suffix.lower() == ".jsonl" else "csv")

    async def write(book: Ledger) -> int:
        with nullcontext(sys.stdout.buffer) if out is None else _new(out) as file:
            count = 0
            if kind == "csv":
                file.write(_csv(COLUMNS))
            async for record in book.records():
                row = await _row(book, record)
                file.write(_csv(map(_cell, row.values())) if kind == "csv" else _jsonl(row))
                count += 1
            file.flush()
            return count

    count = _with(ledger, write)
    if out is not None:
        terminal.say(f"{count:,} attempts are in {out}")
    return 0


@contextmanager
def _new(path: Path) -> Iterator[BinaryIO]:
    """A new file, on disk when this ends; none where it cannot be written whole."""
    try:
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
    except FileExistsError:
        raise ConfigurationError(f"--out {path.name}: is there already; nothing was written") from None
    except OSError as error:
        raise ConfigurationError(f"--out {path.name}: cannot be written: {error.strerror}") from None
    try:
        with file:
            yield file
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise ConfigurationError(f"--out {path.name}: cannot be written: {error.strerror}") from None
        raise


async def _row(book: Ledger, record: Record) -> dict[str, object]:
    row: dict[str, object] = {
        name: _utc_or_none(getattr(record, name)) if name.endswith("_at") else getattr(record, name, None)
        for name in _RECORD_COLUMNS
    }
    row |= {"paid": record.state.paid, "messages": list(record.messages), "actor": None, "reason": None}
    if record.evidence is Evidence.OPERATOR:
        for change in await book.history(record.client_transaction_id):
            if change.attempt == record.attempt and change.evidence is Evidence.OPERATOR and change.detail:
                row |= {name: json.loads(change.detail).get(name) for name in ("actor", "reason")}
    return row


def _cell(value: object) -> str:
    if isinstance(value, list):
        value = "; ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else defuse(str(value))


def _csv(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()


def _jsonl(row: dict[str, object]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


# --- What they share


def _with(url: str | None, work: Callable[[Ledger], Awaitable[T]]) -> T:
    """Do one thing with the ledger of a URL, which must be there already."""

    async def run() -> T:
        async with opened(url) as book:
            return await work(book)

    return asyncio.run(run())


@asynccontextmanager
async def opened(url: str | None) -> AsyncIterator[Ledger]:
    """The ledger of a URL, which must be there already."""
    if not url:
        raise ConfigurationError("give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER")
    kind, _, path = url.partition(":")
    if kind == "memory":
        raise ConfigurationError("a memory: ledger ended with its process; there is nothing to read")
    # To open it would make one, and a slip of the pen would look like a clean sheet.
    if kind == "sqlite" and path and not os.path.exists(path):  # noqa: ASYNC240 - once, before anything runs
        raise ConfigurationError(f"there is no ledger at {path}")
    book = await open_ledger(url, create=False)
    try:
        yield book
    finally:
        await book.aclose()


def _missing(identifier: str) -> ConfigurationError:
    return ConfigurationError(f"the ledger has no sale {identifier!r}")


def _console() -> Console:
    """A table for a pipe keeps each sale on one line."""
    console = terminal.out()
    return console if console.is_terminal else Console(highlight=False, width=240)


def _moment(when: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(when, datetime.UTC)


def utc(when: float) -> str:
    """`2026-03-01 17:04:59`."""
    return _moment(when).strftime("%Y-%m-%d %H:%M:%S")


def local(when: float) -> str:
    """The same moment on this machine's clock, with its distance from UTC."""
    return _moment(when).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _utc_or_none(when: float | None) -> str | None:
    return None if when is None else _moment(when).isoformat(timespec="milliseconds").replace("+00:00", "Z")
