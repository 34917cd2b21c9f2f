"""`payclient reconcile`: the ledger beside a statement of the service or the bank, each cent in one of six classes.

`compare` decides, and is a pure function of two lists; the rest reads the two, and tells.
"""

from __future__ import annotations

import datetime
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter
from rich.table import Table

from payclient.cli import terminal
from payclient.cli.files import atomic_write, check_apart, check_output
from payclient.cli.ledger import with_ledger
from payclient.cli.page import check_page, render
from payclient.cli.settings import Count, LedgerUrl, Profile, Yes, pair_of, profile_of
from payclient.cli.tables import Dialect, dialect_of, read_table, table_bytes
from payclient.cli.texts import label, text
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.events import Listed
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.profile import ServiceProfile
from payclient.rows.cells import CellError, Cells, RowError, find_mark
from payclient.rows.format import KEY, SHOWABLE, Format, plain
from payclient.rows.records import Records, read_records
from payclient.validation import to_service

__all__: list[str] = []


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
class Entry:
    """One line of a statement: a payment, or one that was given back. At least one of the ids is there."""

    line: int
    transaction_id: int | None = None
    client_transaction_id: str | None = None
    #: Cents, less than 0 where it was given back.
    amount: int
    currency: str | None = None


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


# --- The statement

_FIELDS = (KEY, "transaction_id", "amount", "currency", "state")
_NUMBER = re.compile(r"[1-9][0-9]{0,18}")

#: How a column is called, and what a cell says, where a line may not be paid; without accents and capitals.
_STATE = re.compile(r"estado|estatus|state|status|resultado|result|situacion")
_NOT_PAID = re.compile(
    r"(rechaz|cancel|anul|revers|devuel|devol|declin|deneg|reject|refus|refund|fall|fail|void)\w*"
)

#: Faults and words shown of a statement; all are counted.
_SHOWN = 20

#: Payments of each class that the terminal names; the report has them all.
_NAMED = 3


@attrs.frozen(kw_only=True)
class StatementFormat(Format):
    """What is known of a statement before it is read."""

    named: Mapping[str, str] = attrs.field(factory=dict)

    def fields_of(self, name: str) -> list[str]:
        """Return the field that a column of this name holds, or none."""
        spelled = {field: self.named.get(field, field) for field in _FIELDS}
        return [
            f
            for f, column in spelled.items()
            if plain(name.strip()) in (plain(column), plain(to_service(column)))
        ]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class StatementOptions:
    """How the statement is written; what is left out is found in the file, never guessed."""

    map: tuple[str, ...] = ()
    """FIELD=COLUMN for client_transaction_id, transaction_id, amount, currency or state. Repeatable."""
    paid: tuple[str, ...] = ()
    """A word of the column state that means paid, beside Aceptado and the profile's. Repeatable."""
    returned: tuple[str, ...] = ()
    """A word of the column state that means given back, as an amount less than 0 does. Repeatable."""
    currency: str | None = None
    """Of all lines, where there is no such column."""
    amounts: Literal["cents", "decimal"] | None = None
    """Whole cents (1050), or units with decimals (10.50). Default: decimal where an amount has a mark."""
    decimal_mark: Literal[",", "."] | None = None
    """The decimal mark of the amounts. Default: found."""
    encoding: str | None = None
    """Such as utf-8, cp1252 or utf-16. Default: found."""
    sheet: str | None = None
    """A spreadsheet's sheet, by name or number. Default: the one with content."""
    header_row: Count | None = None
    """The line of the header. Default: found, also under a title."""

    def format(self, path: Path) -> StatementFormat:
        """Return what is known of the file before it is read. Raises `ConfigurationError`."""
        named = dict(pair_of("--map", each, "must be FIELD=COLUMN") for each in self.map)
        if unknown := named.keys() - {*_FIELDS}:
            raise ConfigurationError(f"--map {min(unknown)}: the field must be one of {', '.join(_FIELDS)}")
        in_cents = self.amounts == "cents" or path.suffix.lower() == ".jsonl"
        return StatementFormat(
            named=named, amounts="cents" if in_cents else "decimal", decimal_mark=self.decimal_mark,
            encoding=self.encoding, sheet=self.sheet, header_row=self.header_row, ignore_rest=True,
        )  # fmt: skip

    def signs(self, profile: ServiceProfile) -> dict[str, int]:
        """Return the known words of the column state, in lower case: 1 means paid, -1 given back."""
        states = {} if profile.status is None else profile.status.states
        paid = ["Aceptado", *self.paid, *(word for word, state in states.items() if state == "Aceptado")]
        return {word.casefold(): 1 for word in paid} | {word.casefold(): -1 for word in self.returned}


def read_statement(
    path: Path, options: StatementOptions, profile: ServiceProfile
) -> tuple[list[Entry], Counter[str], Dialect]:
    """Return what is paid or given back, how many lines have which other word as their state, and how it is written.

    Raises `ConfigurationError` or `InvalidRequestError` with what is wrong, line by line.
    """
    form = options.format(path)
    file = read_records(path, form)
    _check_columns(path.name, file, form)
    _check_state(path.name, file, form)
    rows, faults = _rows(file, form)
    in_cents = form.amounts == "cents"
    mark = None if in_cents else _mark(path.name, options, [row.get("amount") for _, row in rows])
    signs = options.signs(profile)
    entries, others = list[Entry](), Counter[str]()
    for line, row in rows:
        word = str(row.get("state") or "").strip()
        sign = signs.get(word.casefold()) if "state" in row else 1
        if sign is None:
            others[word if SHOWABLE.fullmatch(word) else "?"] += 1
            continue
        try:
            entries.append(_entry(line, row, Cells(mark), sign, options.currency))
        except CellError as error:
            faults.append(RowError(line, None, str(error)))
    if faults:
        raise InvalidRequestError(f"{path.name}: {terminal.listed(faults, _SHOWN)}")
    dialect = dialect_of(
        path,
        file.delimiter,
        mark,
        told_mark=options.decimal_mark,
        told_delimiter=None,
        bom=file.for_spreadsheets,
    )
    return entries, others, dialect


def _check_columns(name: str, file: Records, form: StatementFormat) -> None:
    """Raise `InvalidRequestError` where the header lacks the amount, both ids, or a column of `--map`."""
    fields = {field for column in file.names for field in form.fields_of(column)}
    lacking = {*form.named, "amount", KEY} - fields - ({KEY} if "transaction_id" in fields else set())
    if file.delimiter and lacking:
        tell = " ".join(f"--map {field}=COLUMN" for field in sorted(lacking))
        there = ", ".join(name.strip() for name in file.names if SHOWABLE.fullmatch(name.strip()))
        has = f"; the line has {there}" if fields and there else ""
        raise InvalidRequestError(f"{name}: line {file.line} lacks columns: give {tell}{has}")


def _check_state(name: str, file: Records, form: StatementFormat) -> None:
    """Raise `InvalidRequestError` where a column that is not read may say that a line was not paid."""
    for _, names, found, _ in file.records:
        if isinstance(found, CellError) or any("state" in form.fields_of(column) for column in names):
            continue
        for column, cell in zip(names, found, strict=False):
            unread, said = not form.fields_of(column), plain(cell.strip()) if isinstance(cell, str) else ""
            if unread and (_STATE.fullmatch(plain(column.strip())) or _NOT_PAID.fullmatch(said)):
                shown = column.strip() if SHOWABLE.fullmatch(column.strip()) else "COLUMN"
                raise InvalidRequestError(
                    f"{name}: the column {shown} may say that a line was not paid: give --map state={shown}, and "
                    "--paid WORD for each word of it that means paid"
                )


def _rows(file: Records, form: StatementFormat) -> tuple[list[tuple[int, dict[str, Any]]], list[RowError]]:
    """Return the cells of each line by field, without empty lines and a total at the end; and what cannot be read."""
    faults, rows = list[RowError](), list[tuple[int, dict[str, Any]]]()
    for line, names, found, _ in file.records:
        if isinstance(found, CellError):
            faults.append(RowError(line, None, str(found)))
        elif any(cell not in ("", None) for cell in found):
            pairs = zip(names, found, strict=False)
            rows.append((line, {field: cell for name, cell in pairs for field in form.fields_of(name)}))
    # A total below the lines names no payment.
    while rows and not (rows[-1][1].get(KEY) or rows[-1][1].get("transaction_id")):
        rows.pop()
    return rows, faults


def _mark(name: str, options: StatementOptions, amounts: Sequence[Any]) -> str:
    """Return the decimal mark. Raises `ConfigurationError` where no amount shows whether the amounts are cents."""
    texts = [_unsigned(each)[0] for each in amounts if isinstance(each, str)]
    proven = any("," in each or "." in each for each in texts)
    if not (proven or options.amounts or any(isinstance(each, float) and each % 1 for each in amounts)):
        raise ConfigurationError(f"{name}: no amount shows what 25 means: give --amounts cents or decimal")
    return options.decimal_mark or find_mark(name, texts)


def _entry(line: int, row: Mapping[str, Any], cells: Cells, sign: int, currency: str | None) -> Entry:
    ids = {name: str(cells.read(row[name], KEY)).strip() for name in (KEY, "transaction_id") if row.get(name)}
    number, (amount, negative) = ids.get("transaction_id"), _unsigned(row.get("amount", ""))
    if not ids or not (number is None or _NUMBER.fullmatch(number)):
        raise CellError("transaction_id: must be a number, 1 or more" if ids else "names no payment")
    cents = cells.read(amount, "amount")
    if type(cents) is not int or cents < 0:
        raise CellError("amount: must be given")
    return Entry(
        line=line,
        transaction_id=None if number is None else int(number),
        client_transaction_id=ids.get(KEY),
        amount=-cents if negative else sign * cents,
        currency=str(row.get("currency") or "").strip() or currency,
    )


def _unsigned(amount: Any) -> tuple[Any, bool]:
    """Return an amount without its sign, and whether it is less than 0: -10.50, 10.50- and (10.50)."""
    if not isinstance(amount, str):
        return (abs(amount), amount < 0) if type(amount) in (int, float) else (amount, False)
    text = amount.strip().replace("\N{MINUS SIGN}", "-")
    bare = text.strip("-()").strip()
    return bare, text in (f"-{bare}", f"{bare}-", f"({bare})", f"- {bare}")


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
