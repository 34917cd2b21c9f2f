"""`payclient ledger`: what the ledger holds, what in it is open and why, and deciding by hand what nobody can ask."""

from __future__ import annotations

import asyncio
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
from payclient.cli.ledger_words import RESTS_ON, heard_of, is_unresolved, local, move, refusal, utc, what, why
from payclient.cli.report import PAID_WORDS, csv_line, json_line
from payclient.cli.settings import NO_LEDGER, LedgerUrl, Profile, Yes, profile_of
from payclient.cli.terminal import iso
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger, backup_ledger, open_ledger
from payclient.lifecycle import DROPPED, Record, State
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

ledger: App = App(name="ledger", help="Read the ledger, and decide by hand what nobody else can.")


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
    if record.evidence is Evidence.OPERATOR:
        for change in await book.history(record.client_transaction_id):
            if change.attempt == record.attempt and change.evidence is Evidence.OPERATOR and change.detail:
                row |= {name: json.loads(change.detail).get(name) for name in ("actor", "reason")}
    return row
