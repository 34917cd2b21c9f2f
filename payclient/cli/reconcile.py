"""`payclient reconcile`: the ledger beside a statement of the service or the bank, each cent in one of six classes.

`compare` decides, and is a pure function of two lists; the rest reads the two, and tells.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter
from rich.table import Table

from payclient.cli import terminal
from payclient.cli.files import atomic_write, check_apart, check_output
from payclient.cli.ledger import with_ledger
from payclient.cli.page import check_page, render
from payclient.cli.settings import LedgerUrl, Profile, Yes, profile_of
from payclient.cli.statement import Entry, StatementOptions, read_statement
from payclient.cli.tables import read_table, table_bytes
from payclient.cli.texts import label, text
from payclient.errors import ConfigurationError
from payclient.events import Listed
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.rows.format import KEY

__all__: list[str] = []

#: Words of other states that are shown; all are counted.
_SHOWN = 20

#: Payments of each class that the terminal names; the report has them all.
_NAMED = 3


class Class(StrEnum):
    """What the two sides say of a payment."""

    #: Paid here and there, with the same amount; or given back on both sides.
    AGREED = "agreed"
    #: Paid here; the statement does not list it.
    ONLY_HERE = "only here"
    #: Paid there; the ledger has no such ask.
    ONLY_THERE = "only there"
    #: Paid here and there, with different amounts or currencies.
    AMOUNTS_DIFFER = "amounts differ"
    #: Paid there; the ledger has the ask, and does not call it paid.
    PAID_THERE = "paid there, not known here"
    #: Given back there, and not here.
    GIVEN_BACK = "given back there"


@attrs.frozen(kw_only=True)
class Pair:
    """What is one payment: an attempt of the ledger, lines of the statement, or both."""

    kind: Class
    record: Record | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def here(self) -> int:
        """Cents that the ledger calls paid."""
        return self.record.amount if self.record is not None and self.record.state is State.ACCEPTED else 0

    @property
    def there(self) -> int:
        """Cents that the statement lists, less what was given back."""
        return sum(entry.amount for entry in self.entries)

    @property
    def currency(self) -> str:
        """The currency, as far as a side tells."""
        return self.record.currency if self.record is not None else self.entries[0].currency or ""

    @property
    def can_be_resolved(self) -> bool:
        """Whether the statement proves an undecided sale paid: one line, the same amount, no other currency."""
        record = self.record
        return (
            self.kind is Class.PAID_THERE
            and record is not None
            and record.state in (State.UNKNOWN, State.EXPIRED)
            and len(self.entries) == 1
            and self.there == record.amount
        )


# --- The comparison


def compare(records: Iterable[Record], entries: Iterable[Entry]) -> list[Pair]:
    """Put every attempt that is paid and every line into exactly one pair, and each pair into one class.

    Attempts that are not paid and not listed are in none: absence from a statement decides nothing.
    """
    records = list(records)
    known: dict[int | str, list[Record]] = {}
    for record in records:
        for each in (record.client_transaction_id, record.transaction_id):
            if each is not None:
                known.setdefault(each, []).append(record)
    listed: dict[tuple[str, int], list[Entry]] = {}
    alone: dict[tuple[int | None, str | None], list[Entry]] = {}
    for entry in entries:
        if (found := _match(entry, known)) is None:
            alone.setdefault((entry.transaction_id, entry.client_transaction_id), []).append(entry)
        else:
            listed.setdefault((found.client_transaction_id, found.attempt), []).append(entry)
    pairs = [
        Pair(kind=_classify(record, own), record=record, entries=tuple(own))
        for record in records
        if (own := listed.get((record.client_transaction_id, record.attempt), []))
        or record.state is State.ACCEPTED
    ]
    return pairs + [Pair(kind=Class.ONLY_THERE, entries=tuple(own)) for own in alone.values()]


def _match(entry: Entry, known: Mapping[int | str, Sequence[Record]]) -> Record | None:
    """Return the attempt that a line is about: the one of its transaction, else of its client transaction id."""
    number, key = entry.transaction_id, entry.client_transaction_id
    of_number, of_key = (known.get(each, ()) if each else () for each in (number, key))
    if of_number:  # two ids that name two sales are one of neither
        possible = [each for each in of_number if key in (None, each.client_transaction_id)]
    else:  # an attempt of another transaction is another payment
        possible = [each for each in of_key if number is None or each.transaction_id is None]
    return max(possible, key=_likelihood, default=None)


def _likelihood(record: Record) -> tuple[bool, bool, int]:
    return record.state is State.ACCEPTED, record.state is not State.REFUSED, record.attempt


def _classify(record: Record, entries: Sequence[Entry]) -> Class:
    if not entries:
        return Class.ONLY_HERE
    there, paid = sum(entry.amount for entry in entries), record.state is State.ACCEPTED
    if any(entry.currency not in (None, record.currency) for entry in entries):
        return Class.AMOUNTS_DIFFER
    if there < record.amount and any(entry.amount < 0 for entry in entries):
        return Class.AGREED if there <= 0 and record.state.paid is False else Class.GIVEN_BACK
    if not paid:
        return Class.PAID_THERE
    return Class.AGREED if there == record.amount else Class.AMOUNTS_DIFFER


# --- The command

COLUMNS = (
    "class", "client_transaction_id", "transaction_id", "state_here", "here", "there", "currency", "here_units",
    "there_units", "lines",
)  # fmt: skip


def reconcile(
    statement: Annotated[
        Path, Parameter(help="A .csv, .xlsx, .ods or .jsonl file of the service or the bank.")
    ],
    /,
    *,
    ledger: LedgerUrl = None,
    written: StatementOptions = StatementOptions(),
    since: Annotated[
        str | None, Parameter(help="The first day of the statement, such as 2026-03-01.")
    ] = None,
    until: Annotated[str | None, Parameter(help="Its last day.")] = None,
    report: Annotated[
        Path | None, Parameter(help="Write each payment to a .csv, .xlsx or .jsonl file.")
    ] = None,
    html: Annotated[Path | None, Parameter(help="Write a page for people.")] = None,
    resolve: Annotated[
        bool, Parameter(help="Decide what is undecided here and listed with its amount.")
    ] = False,
    actor: Annotated[str | None, Parameter(help="Who decides; kept in the history. With --resolve.")] = None,
    yes: Yes = False,
    profile: Profile = None,
) -> int:
    """Compare the ledger with a statement of the service or the bank, cent by cent. Nothing is sent.

    Absence from a statement decides nothing. Without --since and --until all that the ledger calls paid is compared.
    Exit codes: 0 each cent agrees; 3 some do not; 2 bad input.
    """
    name = (actor or "").strip()
    if resolve != bool(name):
        raise ConfigurationError("--resolve and --actor NAME: give both or none")
    check_apart({"STATEMENT": statement, "--report": report, "--html": html})
    check_page(html)
    _check_report(report)
    days = _day("--since", since, 0, float("-inf")), _day("--until", until, 1, float("inf"))
    entries, others, dialect = read_statement(statement, written, profile_of(profile))
    records, silent = with_ledger(ledger, lambda book: _records(book, entries, *days))
    entries = _with_currency(entries, {record.currency for record in records})
    pairs = compare(records, entries)
    if resolve and (ripe := [pair for pair in pairs if pair.can_be_resolved]):
        _list_ripe(ripe)
        if not terminal.agrees(text("reconcile.ask", count=len(ripe)), text("ask.unchanged"), yes=yes):
            return 2
        count = with_ledger(ledger, lambda book: _decide(book, ripe, name, statement.name), changes=True)
        terminal.say(text("reconcile.decided", count=count, actor=name))
        records, silent = with_ledger(ledger, lambda book: _records(book, entries, *days))
        pairs = compare(records, entries)
    facts = _facts(pairs, others, silent)
    classes = _show(pairs, facts)
    if report is not None:
        _write("--report", report, table_bytes(report.suffix.lower(), COLUMNS, map(_cells, pairs), dialect))
    if html is not None:
        values = {"title": statement.name, "classes": classes, "facts": facts, "cells_of": _cells}
        _write("--html", html, render("reconcile.html.j2", **values))
    return 0 if all(pair.kind is Class.AGREED for pair in pairs) else 3


def _check_report(report: Path | None) -> None:
    """Raise `ConfigurationError` where the path holds something else than a report of this command."""
    check_output("--report", report, ".csv", ".xlsx", ".jsonl")
    if report is not None and report.exists() and report.stat().st_size:
        before = read_table(report, COLUMNS)
        if before is None or not all(COLUMNS[0] in row for row in before[:1]):
            raise ConfigurationError(
                f"--report {report.name}: is there already and is not a report of this command"
            )


def _with_currency(entries: list[Entry], currencies: set[str]) -> list[Entry]:
    """Return the lines, those without a currency in the ledger's where it has one only."""
    if len(currencies) != 1:
        return entries
    (only,) = currencies
    return [attrs.evolve(each, currency=each.currency or only) for each in entries]


async def _records(
    book: Ledger, entries: Sequence[Entry], since: float, until: float
) -> tuple[list[Record], int]:
    """Return the attempts that are paid in a time or listed at all, and how many open ones of the time are not listed.

    One attempt after another is looked at: a ledger may be long.
    """
    known = {each for entry in entries for each in (entry.transaction_id, entry.client_transaction_id)} - {
        None
    }
    found, silent = list[Record](), 0
    async for record in book.records():
        inside = since <= (record.decided_at or record.created_at) < until
        listed = record.transaction_id in known or record.client_transaction_id in known
        if listed or (inside and record.state is State.ACCEPTED):
            found.append(record)
        else:
            silent += inside and record.state.paid is None
    return found, silent


async def _decide(book: Ledger, pairs: Sequence[Pair], actor: str, statement: str) -> int:
    """Call what the statement proves paid, and return how many; what has changed since it was read is left alone."""
    seen = {
        (each.client_transaction_id, each.attempt, each.version): pair
        for pair in pairs
        if (each := pair.record)
    }
    done = 0
    for attempts in (await book.attempts([key for key, *_ in seen])).values():
        for record in attempts:
            pair = seen.get((record.client_transaction_id, record.attempt, record.version))
            if pair is not None:
                entry = pair.entries[0]
                number = "" if entry.transaction_id is None else f", transaction {entry.transaction_id}"
                reason = f"{statement}, line {entry.line}{number}"
                await book.apply(record, Listed(at=time.time(), actor=actor, reason=reason))
                done += 1
    return done


def _day(option: str, day: str | None, more: int, otherwise: float) -> float:
    """Return when a day, or the day after it, begins on this machine's clock."""
    if day is None:
        return otherwise
    try:
        begin = datetime.datetime.fromisoformat(day) + datetime.timedelta(more)
    except ValueError:
        raise ConfigurationError(f"{option}: must be a day such as 2026-03-31") from None
    return begin.astimezone().timestamp()


def _write(option: str, path: Path, content: bytes) -> None:
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigurationError(f"{option} {path.name}: cannot be written: {error.strerror}") from None
    terminal.say(text("reconcile.written", path=path), whole=True)


# --- What is shown

#: A class or "all", its payments, and cents here and there by currency.
Totals = tuple[str, Sequence[Pair], list[tuple[str, int, int]]]


def _named(pair: Pair) -> str:
    """Return the id of a payment, with its line in the statement."""
    key, number, *_, lines = _cells(pair)[1:]
    where = text("reconcile.at_line", line=lines) if lines else ""
    return f"{key or number}{where}"


def _list_ripe(pairs: Iterable[Pair]) -> None:
    """Print what `--resolve` would decide, one line each."""
    for pair in pairs:
        key, *_, lines = _cells(pair)[1:]
        money = terminal.money(pair.there, pair.currency)
        terminal.say(text("reconcile.sale", key=key, money=money, line=lines))


def _facts(pairs: Iterable[Pair], others: Counter[str], silent: int) -> list[str]:
    """Return what to know beside the classes: words of other states, open asks, what `--resolve` could decide."""
    words = ", ".join(f"{word} ({count})" for word, count in others.most_common(_SHOWN))
    ripe = sum(pair.can_be_resolved for pair in pairs)
    counts = {"others": others.total(), "silent": silent, "ripe": ripe}
    return [text(f"reconcile.{key}", count=count, words=words) for key, count in counts.items() if count]


def _show(pairs: Sequence[Pair], facts: Iterable[str]) -> Sequence[Totals]:
    """Print the classes, the first payments of those that do not agree, and the facts; return the classes."""
    groups = [(str(kind), [pair for pair in pairs if pair.kind is kind]) for kind in Class]
    classes = [(kind, own, _sums(own)) for kind, own in groups]
    terminal.out().print(_table([*classes, ("all", pairs, _sums(pairs))]))
    for kind, own, _ in classes:
        if own and kind != Class.AGREED:
            name, keys = text(f"class.{kind}"), ", ".join(map(_named, own[:_NAMED]))
            more = text("reconcile.more", count=len(own) - _NAMED) if len(own) > _NAMED else ""
            terminal.tell(f"{name}: {keys}{more}")
    for fact in facts:
        terminal.say(fact)
    return classes


def _cells(pair: Pair) -> Sequence[object]:
    sides = [side for side in (*pair.entries[:1], pair.record) if side is not None]
    key, number = (
        next((value for side in reversed(sides) if (value := getattr(side, name)) is not None), None)
        for name in (KEY, "transaction_id")
    )
    state = None if pair.record is None else str(pair.record.state)
    units = (Decimal(cents).scaleb(-2) for cents in (pair.here, pair.there))
    lines = ", ".join(str(entry.line) for entry in pair.entries)
    return str(pair.kind), key, number, state, pair.here, pair.there, pair.currency, *units, lines


def _sums(pairs: Sequence[Pair]) -> list[tuple[str, int, int]]:
    """Return cents here and there, by currency."""
    here, there = Counter[str](), Counter[str]()
    for pair in pairs:
        here[pair.currency] += pair.here
        there[pair.currency] += pair.there
    return [(currency, here[currency], there[currency]) for currency in sorted(here)]


def _table(classes: Iterable[Totals]) -> Table:
    names = (text(f"reconcile.{name}") for name in ("payments", "here", "there"))
    table = terminal.simple_table(text("reconcile.class"), numbers=tuple(names))
    for kind, pairs, sums in classes:
        here = "\n".join(terminal.money(cents, currency) for currency, cents, _ in sums)
        there = "\n".join(terminal.money(cents, currency) for currency, _, cents in sums)
        name = label(kind) if kind == "all" else text(f"class.{kind}")
        table.add_row(name, terminal.counted(len(pairs)), here, there)
    return table
