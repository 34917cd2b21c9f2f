"""`payclient ledger`: what the ledger holds, what in it is open and why, and deciding by hand what nobody can ask."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from cyclopts import App, Parameter
from rich.markup import escape

from payclient.auth import check_base_url, service_fingerprint
from payclient.cli import terminal
from payclient.cli.files import atomic_write
from payclient.cli.report import PAID_WORDS
from payclient.cli.settings import NO_LEDGER, LedgerUrl, Profile, Yes, profile_of
from payclient.cli.tables import csv_line, json_line
from payclient.cli.terminal import iso
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger, archive_ledger, backup_ledger, open_ledger
from payclient.lifecycle import DROPPED, TRANSITIONS, Record, State
from payclient.schedule import FINAL_QUERY_DELAYS, NORMAL_WINDOW
from payclient.tracking.decisions import DECISIONS, DecidedAs, objection

__all__: list[str] = []

T = TypeVar("T")

Identifier = Annotated[str, Parameter(help="The client transaction id.")]

#: What an operator's word means for whoever runs the shop.
_MEANINGS = {
    "accepted": "It counts as paid from now on, whatever the service says. This is final.",
    "cancelled": "It counts as not paid from now on. Only the service's word that it was accepted can change that.",
    "refused": "This RE-OPENS CHARGING: the next charge of this client transaction id is sent to the service again. "
    "If this attempt does exist there, the customer pays twice.",
}

_RECORD_COLUMNS = (
    "client_transaction_id", "attempt", "kind", "state", "paid", "evidence", "transaction_id",
    "candidate_ids",
    "amount", "currency", "purchase", "created_at", "expires_at", "notified_at", "decided_at", "error_code",
    "error_type",
)  # fmt: skip

#: Of an export.
COLUMNS = (*_RECORD_COLUMNS, "messages", "actor", "reason", "receipt")


ledger: App = App(
    name="ledger",
    help="Read the ledger, and decide by hand what nobody else can.",
)


def with_ledger(url: str | None, work: Callable[[Ledger], Awaitable[T]], *, changes: bool = False) -> T:
    """Do one thing with the ledger of a URL, which must be there already: read it beside its owner, or change it."""
    if not url:
        raise ConfigurationError(NO_LEDGER)
    if url.startswith("memory:"):
        raise ConfigurationError("a memory: ledger ended with its process; there is nothing to read")

    async def run() -> T:
        # To make one here would let a slip of the pen look like a clean sheet.
        book = await open_ledger(url, create=False, read_only=not changes)
        try:
            return await work(book)
        finally:
            await book.aclose()

    try:
        return asyncio.run(run())
    except LedgerInUseError as error:
        who = "another process" if error.owner is None else f"process {error.owner}"
    raise LedgerInUseError(
        f"the ledger must be closed for this, and {who} has it open: stop that process first; nothing was changed. "
        "To look at it meanwhile use `payclient ledger list` or `show`; to try this out, a copy by `payclient ledger "
        "backup`"
    )


async def newest(book: Ledger, identifier: str) -> Record:
    """Return the newest attempt of a sale. Raises `ConfigurationError` where there is none."""
    record = await book.get(identifier)
    if record is None:
        raise ConfigurationError(f"the ledger has no sale {identifier!r}")
    return record


# --- What is said of a record: why it is where it is, what that rests on, and when

#: Seconds after its permit from which nobody can be sending a sale any more: the total time-out and 30 s.
SENDER_GONE = 60.0

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
    Evidence.LAST_QUERY: "nobody heard of an answer, to the last query: presumed cancelled, not proven",
    Evidence.OPERATOR: "a person said so",
    Evidence.LISTED: "a person read it in a statement",
    Evidence.NOTIFICATION: "a notification came, which proves nothing",
    Evidence.RETURN: "the customer's browser came back, which proves nothing",
    Evidence.UNPAID: "the customer came back without paying, and the service knows of no payment",
    Evidence.WITHDRAWN: "the service took our withdrawal",
    Evidence.CONFLICT: "something that is not ours was reported",
    Evidence.LANE_BUSY: "a later charge of this customer was refused because of a pending one: it may exist",
}

_BY_A_PERSON = (Evidence.OPERATOR, Evidence.LISTED)

#: Each event's own sentence.
SENTENCES = {
    kind.__name__: (kind.__doc__ or "").strip() for table in TRANSITIONS.values() for kind in table
} | {"Permitted": "The permit was committed, before the first byte."}


def is_unresolved(record: Record, now: float, window: float) -> bool:
    """Return whether nothing that runs by itself is likely to settle the record any more."""
    if record.state is State.SENDING:
        return now > record.created_at + SENDER_GONE
    if record.state in (State.EXPIRED, State.REVERSING):
        return record.evidence is Evidence.LAST_QUERY or now > last_query(record, window)
    return record.state is State.UNKNOWN


def last_query(record: Record, window: float) -> float:
    """Return when a tracker makes the last query that a wait hopes for."""
    expires_at = record.created_at + window if record.expires_at is None else record.expires_at
    return expires_at + sum(FINAL_QUERY_DELAYS) * window / NORMAL_WINDOW


def heard_of(record: Record) -> str:
    """The candidate ids, in words."""
    return ", ".join("others" if each == DROPPED else str(each) for each in record.candidate_ids)


def why(record: Record, now: float, window: float) -> str:
    """Return why a sale is where it is, in words."""
    word = RESTS_ON[record.evidence]
    match record.state:
        case State.SENDING if now > record.created_at + SENDER_GONE:
            word = "its process ended while it was being sent; the next run calls it unknown, and asks"
        case State.SENDING:
            word = "being sent, or its process has just ended"
        case State.UNKNOWN if record.candidate_ids:
            word += f"; transaction {heard_of(record)} was heard of, unproven"
        case State.PENDING if record.expires_at is not None and now < record.expires_at:
            word = f"the customer has not answered; can until {utc(record.expires_at)}"
        case State.PENDING:
            word = "the customer's time is over; the next run asks for the last word"
        case State.REVERSING:
            word = "a request to give it back was sent, or was about to be, and has no answer"
        case State.EXPIRED if record.evidence is Evidence.CLOCK and now <= last_query(record, window):
            word += f"; a run that is open asks until {utc(last_query(record, window))}"
        case State.REFUSED if record.evidence is Evidence.ANSWER:
            word = f"the service refused it: {refusal(record)}"
    if record.notified_at is not None and not record.state.decided:
        word += "; a notification came"
    return word


def refusal(record: Record) -> str:
    """Return a refusal's code and messages."""
    said = "; ".join(record.messages) or record.error_type or ""
    return said if record.error_code is None else f"{said} (code {record.error_code})"


def move(change: Change) -> str:
    """Return what happened, and between which states."""
    between = f": {change.before or 'nothing'} → {change.after}" if change.before is not change.after else ""
    return f"{change.event}{between}"


def what(change: Change) -> str:
    """Return an event's own sentence, with its details."""
    details = []
    for name, value in (json.loads(change.detail) if change.detail else {}).items():
        text = f"{utc(value)} UTC" if name.endswith("_at") else str(value)
        details.append(f"{name.replace('_', ' ')}: {text}")
    return " ".join([SENTENCES.get(change.event, ""), "; ".join(details)]).strip()


def utc(when: float) -> str:
    """Return `2026-03-01 17:04:59`."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def local(when: float) -> str:
    """Return the same moment on this machine's clock, with its distance from UTC."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


# --- list, show


async def records_in(book: Ledger, state: State | None) -> AsyncIterator[Record]:
    """Return the newest attempts in a state, or what is open, one after another: a ledger may be long."""
    async for record in book.unfinished() if state is None or not state.decided else book.records():
        if state in (None, record.state):
            # Only after a refused attempt may there be a newer one.
            newer = await book.get(record.client_transaction_id) if record.state is State.REFUSED else None
            if newer is None or newer.attempt == record.attempt:
                yield record


@ledger.command(name="list")
def list_(
    *,
    ledger: LedgerUrl = None,
    unresolved: Annotated[
        bool, Parameter(help="Only what waits for a person: unknown, or expired after its last query.")
    ] = False,
    state: Annotated[
        State | None,
        Parameter(help="Only the sales in this state, decided ones too; without it, what is open."),
    ] = None,
    profile: Profile = None,
) -> int:
    """Show which sales are open, and why. The profile's sale window says when an expired one was last queried."""
    window, now = profile_of(profile).sale_window, time.time()

    async def show(book: Ledger) -> tuple[int, int]:
        shown = waiting = 0
        async for record in records_in(book, state):
            stuck = is_unresolved(record, now, window)
            if unresolved and not stuck:
                continue
            if not shown:
                _print_columns("client transaction id", "state", "paid", "amount", "since (UTC)", "why")
            shown, waiting = shown + 1, waiting + stuck
            amount, paid = terminal.money(record.amount, record.currency), PAID_WORDS[record.state.paid]
            since, reason = utc(record.created_at), why(record, now, window)
            _print_columns(record.client_transaction_id, record.state, paid, amount, since, reason)
        return shown, waiting

    shown, waiting = with_ledger(ledger, show)
    if not shown:
        terminal.say("no such sale" if state or unresolved else "nothing is open")
    else:
        stuck = f", {waiting:,} of them unresolved: `payclient ledger resolve`" * bool(waiting)
        terminal.say(f"{shown:,} shown{stuck}")
    return 0


def _print_columns(identifier: str, state: str, paid: str, amount: str, since: str, reason: str) -> None:
    terminal.plain(f"{identifier:<36}  {state:<9}  {paid:<7}  {amount:>16}  {since:<19}  {reason}")


@ledger.command
def show(identifier: Identifier, /, *, ledger: LedgerUrl = None) -> int:
    """Show one sale's whole history: every attempt and every change, what each rests on, in UTC and local time."""

    async def read(book: Ledger) -> tuple[Record, list[Change]]:
        return await newest(book, identifier), await book.history(identifier)

    record, changes = with_ledger(ledger, read)
    out, until = terminal.out(), record.expires_at
    receipt = json.loads(record.receipt or "{}")
    terminal.print_facts(
        {
            "client transaction id": record.client_transaction_id,
            "purchase": None if record.purchase == record.client_transaction_id else record.purchase,
            "state": f"{record.state}, because {RESTS_ON[record.evidence]}",
            "paid": PAID_WORDS[record.state.paid],
            "amount": terminal.money(record.amount, record.currency),
            "transaction id": record.transaction_id,
            "heard of, unproven": heard_of(record) or None,
            "could be approved until": None if until is None else f"{utc(until)} UTC, {local(until)}",
            "message": (refusal(record) or None) if record.state is State.REFUSED else record.reason,
            "receipt": ", ".join(f"{name} {value}" for name, value in receipt.items()) or None,
        }
    )
    for attempt in sorted({change.attempt for change in changes}):
        out.print(f"\n[bold]attempt {attempt}[/]")
        table = terminal.simple_table()
        for name in ("UTC", "local", "change", "evidence", "what"):
            table.add_column(name, no_wrap=name in ("UTC", "local", "change"))
        for each in (change for change in changes if change.attempt == attempt):
            table.add_row(utc(each.at), local(each.at), move(each), each.evidence, escape(what(each)))
        out.print(table)
    return 0


# --- init, backup, moved


@ledger.command
def init(*, ledger: LedgerUrl = None) -> int:
    """Make a ledger, or check the one that is there: its place, its server's settings, its tables."""
    if not ledger or ledger.startswith("memory:"):
        raise ConfigurationError(
            "give --ledger, such as sqlite:charges.db or postgresql://USER@HOST/DATABASE"
        )

    async def run() -> str:
        book = await open_ledger(ledger)
        await book.aclose()
        return f"the ledger is ready at {book.location}" + "; it was there already" * (not book.created)

    terminal.say(asyncio.run(run()))
    return 0


@ledger.command
def backup(file: Path, /, *, ledger: LedgerUrl = None) -> int:
    """Copy a SQLite ledger to a new file, also while a shop or a batch uses it.

    A restored copy does not know what was charged after it was made.
    """
    if not ledger:
        raise ConfigurationError(NO_LEDGER)
    asyncio.run(backup_ledger(ledger, file))
    terminal.say(f"the backup is in {file.absolute()}")
    return 0


@ledger.command
def archive(
    *,
    before: Annotated[
        datetime.date, Parameter(help="Only what was decided before this day begins (UTC), as 2026-01-31.")
    ],
    to: Annotated[Path, Parameter(help="A new file; or the one of the same command that was interrupted.")],
    ledger: LedgerUrl = None,
) -> int:
    """Move decided sales out to a file, which keeps all their changes; their ids and purchases stay taken.

    A SQLite ledger must be closed; a PostgreSQL one may be in use. What is open or unknown stays.
    """
    if not ledger:
        raise ConfigurationError(NO_LEDGER)
    begins = datetime.datetime.combine(before, datetime.time(), datetime.UTC).timestamp()
    count = asyncio.run(archive_ledger(ledger, begins, to))
    terminal.say(f"{terminal.counted(count, 'attempt')} archived in {to.absolute()}")
    return 0


@ledger.command
def moved(
    *,
    ledger: LedgerUrl = None,
    base_url: Annotated[str, Parameter(help="The service's new address.")],
    yes: Yes = False,
) -> int:
    """Set another address of the service: the same one, with all that was charged there."""
    address = check_base_url(base_url)
    if not yes:
        terminal.check_can_ask("nothing was changed")
    terminal.say(
        "This ledger's charges are queried at the new address from now on. Where that is another service, a test "
        "system for instance, it will not find them, and they could be charged twice."
    )
    if not terminal.agrees("Is it the same service?", "nothing was changed", yes=yes):
        return 2

    async def move(book: Ledger) -> None:
        await book.environment(service_fingerprint(address, book.digest_key), moved=True)

    with_ledger(ledger, move, changes=True)
    terminal.say(f"the ledger belongs to {address} from now on")
    return 0


# --- resolve


@ledger.command
def resolve(
    identifier: Identifier,
    /,
    *,
    as_: Annotated[
        DecidedAs,
        Parameter(
            name="--as", help="What it was; refused says that nothing was created, and re-opens charging."
        ),
    ],
    actor: Annotated[str, Parameter(help="Who decides; kept in the history.")],
    reason: Annotated[str, Parameter(help="Why, and by what proof; kept in the history.")],
    ledger: LedgerUrl = None,
    yes: Yes = False,
) -> int:
    """Decide an unknown or expired sale by hand, for good, with a name and a reason as its evidence."""
    for option, value in (("--actor", actor), ("--reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{option}: must not be empty")
    if not yes:
        terminal.check_can_ask("nothing was changed")

    # Closed while it asks, so that nobody's charges stand still for it.
    seen = with_ledger(ledger, lambda book: newest(book, identifier), changes=True)
    _check_open(seen, as_)
    _say_what_it_means(seen, as_)
    if not terminal.agrees("Decide it so?", "nothing was changed", yes=yes):
        return 2

    async def decide(book: Ledger) -> Record:
        record = await newest(book, identifier)
        if (record.attempt, record.version) != (seen.attempt, seen.version):
            raise ConfigurationError(
                f"{identifier} has changed meanwhile: look at it again; nothing was changed"
            )
        decision = DECISIONS[as_](at=time.time(), actor=actor.strip(), reason=reason.strip())
        return await book.apply(record, decision)

    after = with_ledger(ledger, decide, changes=True)
    terminal.say(f"{identifier} is {after.state} from now on, on the word of {actor.strip()}")
    return 0


def _check_open(record: Record, decision: str) -> None:
    fault = objection(record, decision)
    if fault is not None:
        raise ConfigurationError(fault)


def _say_what_it_means(record: Record, decision: str) -> None:
    now = time.time()
    terminal.say(
        f"{record.client_transaction_id}, attempt {record.attempt}, "
        f"{terminal.money(record.amount, record.currency)}, is {record.state}: {RESTS_ON[record.evidence]}"
    )
    if record.expires_at is not None and now < record.expires_at:
        left = terminal.duration(record.expires_at - now)
        terminal.say(f"The customer may still approve it, until {utc(record.expires_at)} UTC (in {left}).")
    given_back = record.state is State.REVERSING and decision == "cancelled"
    meaning = "It counts as given back from now on. This is final." if given_back else _MEANINGS[decision]
    terminal.say(f"As {decision}: {meaning}")


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
    named = out is not None and out.suffix.lower() == ".jsonl"
    as_json = (format or ("jsonl" if named else "csv")) == "jsonl"

    if out is not None and out.exists():
        raise ConfigurationError(f"--out {out.name}: is there already; nothing was written")

    async def write(book: Ledger) -> int:
        count = 0
        with nullcontext(sys.stdout.buffer) if out is None else atomic_write(out) as file:
            if not as_json:
                file.write(csv_line(COLUMNS))
            async for record in book.records():
                row = await _row(book, record)
                file.write(json_line(row) if as_json else csv_line(row.values()))
                count += 1
            file.flush()
        return count

    try:
        count = with_ledger(ledger, write)
    except OSError as error:
        if out is None:
            raise
        raise ConfigurationError(f"--out {out.name}: cannot be written: {error.strerror}") from None
    if out is not None:
        terminal.say(f"{terminal.counted(count, 'attempt')} written to {out}")
    return 0


async def _row(book: Ledger, record: Record) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(record, name, None) for name in _RECORD_COLUMNS}
    for name in ("created_at", "expires_at", "notified_at", "decided_at"):
        row[name] = None if (when := getattr(record, name)) is None else iso(when)
    row["candidate_ids"] = [each for each in record.candidate_ids if each != DROPPED]
    row |= {
        "paid": record.state.paid,
        "messages": list(record.messages),
        "actor": None,
        "reason": record.reason,
    }
    row["receipt"] = json.loads(record.receipt or "{}")
    if record.evidence in _BY_A_PERSON:
        for change in await book.history(record.client_transaction_id):
            if change.attempt == record.attempt and change.evidence in _BY_A_PERSON and change.detail:
                row |= {name: json.loads(change.detail).get(name) for name in ("actor", "reason")}
    return row
