"""`payclient ledger`: what the ledger holds, what in it is open and why, and deciding by hand what nobody can ask."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from payclient.access import check_base_url, environment_digest
from payclient.cli import terminal
from payclient.cli.ledger_export import new_file, write_attempts
from payclient.cli.ledger_opening import Identifier, newest, with_ledger
from payclient.cli.ledger_resolve import resolve
from payclient.cli.ledger_words import RESTS_ON, heard_of, is_unresolved, local, move, refusal, utc, what, why
from payclient.cli.report_lines import PAID_WORDS
from payclient.cli.settings import Flag, LedgerUrl, Profile, Yes, profile_of
from payclient.cli.tables import facts, simple_table
from payclient.errors import ConfigurationError
from payclient.ledger import Change, Ledger, backup_ledger, open_ledger
from payclient.lifecycle import Record, State

__all__: list[str] = []

ledger = App(name="ledger", help="Read the ledger, and decide by hand what nobody else can.")
ledger.command(resolve)


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
        latest = {}
        async for record in book.unfinished() if state is None else book.records():
            latest[record.client_transaction_id] = record
        return [
            record
            for record in latest.values()
            if (state is None or record.state is state)
            and (not unresolved or is_unresolved(record, now, window))
        ]

    found = with_ledger(ledger, read)
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


# --- init


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


# --- backup


@ledger.command
def backup(file: Path, /, *, ledger: LedgerUrl = None) -> int:
    """Copy a SQLite ledger to a new file, also while a shop or a batch uses it.

    A restored copy does not know what was charged after it was made.
    """
    if not ledger:
        raise ConfigurationError("give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER")
    asyncio.run(backup_ledger(ledger, file))
    terminal.say(f"the backup is in {file.absolute()}")
    return 0


# --- moved


@ledger.command
def moved(
    *,
    ledger: LedgerUrl = None,
    base_url: Annotated[str, Parameter(help="The service's new address.")],
    yes: Yes = False,
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

    with_ledger(ledger, move)
    terminal.say(f"the ledger belongs to {address} from now on")
    return 0


# --- show


@ledger.command
def show(identifier: Identifier, /, *, ledger: LedgerUrl = None) -> int:
    """Show one sale's whole history: every attempt and every change, what each rests on, in UTC and local time."""

    async def read(book: Ledger) -> tuple[Record, list[Change]]:
        return await newest(book, identifier), await book.history(identifier)

    record, changes = with_ledger(ledger, read)
    _print_record(record)
    for attempt in sorted({change.attempt for change in changes}):
        _console().print(f"\n[bold]attempt {attempt}[/]")
        table = simple_table()
        for name in ("UTC", "local", "change", "evidence", "what"):
            table.add_column(name, no_wrap=name in ("UTC", "local", "change"))
        for change in changes:
            if change.attempt == attempt:
                table.add_row(
                    utc(change.at), local(change.at), move(change), change.evidence, escape(what(change))
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
        "heard of, unproven": heard_of(record) or None,
        "could be approved until": None if until is None else f"{utc(until)} UTC, {local(until)}",
        "message": (refusal(record) or None) if record.state is State.REFUSED else None,
    }
    _console().print(facts(rows))


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
    kind: Literal["csv", "jsonl"] = format or (
        "jsonl" if out is not None and out.suffix.lower() == ".jsonl" else "csv"
    )

    async def write(book: Ledger) -> int:
        with nullcontext(sys.stdout.buffer) if out is None else new_file(out) as file:
            return await write_attempts(book, file, kind)

    count = with_ledger(ledger, write)
    if out is not None:
        terminal.say(f"{count:,} attempts are in {out}")
    return 0


def _console() -> Console:
    """A table for a pipe keeps each sale on one line."""
    console = terminal.out()
    return console if console.is_terminal else Console(highlight=False, width=240)
