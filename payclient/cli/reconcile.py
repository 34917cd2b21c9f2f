"""`payclient reconcile`: the ledger beside a statement of the service or the bank, each cent in one of six classes.

`compare` decides, and is a pure function of two lists; the rest reads them and shows the result.
"""

import asyncio
import datetime
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path

import attrs

from payclient.cli import terminal
from payclient.cli.files import check_apart, write_file
from payclient.cli.ledger import opened
from payclient.cli.page import check_page, render
from payclient.cli.settings import Day, LedgerUrl, Profile, Yes
from payclient.cli.statement import Entry, StatementOptions, read_statement
from payclient.cli.tables import read_report, table_bytes
from payclient.cli.texts import counted, label, text
from payclient.errors import ConfigurationError, TransitionError
from payclient.events import Listed
from payclient.lifecycle import Record, State
from payclient.profile import find_profile

#: Words of other states that are shown at most; all are counted.
_SHOWN = 20

#: Payments of each class that the terminal names; the report has them all.
_NAMED = 3

#: Seconds in which PayPhone lets a push or a form be paid: two lives of its links, and the window of its confirmation.
_LONGEST = 1500.0

COLUMNS = (
    "class", "client_transaction_id", "transaction_id", "state_here", "here", "there", "currency", "here_units",
    "there_units", "lines",
)  # fmt: skip


class Class(StrEnum):
    """The result of comparing a payment's two sides: the ledger, which is here, and the statement, which is there."""

    #: Paid here and there, with the same amount; or given back on both sides.
    AGREED = "agreed"
    #: Paid here; the statement does not list it.
    ONLY_HERE = "only here"
    #: Paid there; the ledger has no such attempt.
    ONLY_THERE = "only there"
    #: Paid here and there, with different amounts or currencies, or beside a line in a state that is not read.
    AMOUNTS_DIFFER = "amounts differ"
    #: Paid there; the ledger has the attempt, and does not call it paid.
    PAID_THERE = "paid there, not known here"
    #: Given back there, and not here, or with another amount.
    GIVEN_BACK = "given back there"


@attrs.frozen(kw_only=True)
class Pair:
    """One payment: an attempt of the ledger, lines of the statement, or both."""

    record: Record | None
    entries: tuple[Entry, ...]
    #: Whether a line whose state is not read may be about this payment: it may have been given back.
    is_doubted: bool = False

    @cached_property
    def kind(self) -> Class:
        """The class."""
        record, entries, there = self.record, self.entries, self.there
        if record is None:
            return Class.ONLY_THERE
        if not entries:
            return Class.ONLY_HERE
        if any(entry.currency not in (None, record.currency) for entry in entries):
            return Class.AMOUNTS_DIFFER
        if there < record.amount and any(entry.amount < 0 for entry in entries):
            # Given back once and whole; the payment itself may be in an earlier statement.
            whole, amounts = record.amount, sorted(entry.amount for entry in entries)
            agrees = record.state.paid is False and amounts in ([-whole], [-whole, whole])
            return Class.AGREED if agrees else Class.GIVEN_BACK
        if record.state is not State.ACCEPTED:
            return Class.PAID_THERE
        return Class.AGREED if there == record.amount and not self.is_doubted else Class.AMOUNTS_DIFFER

    @property
    def here(self) -> int:
        """Cents that the ledger calls paid."""
        return self.record.amount if self.record is not None and self.record.state is State.ACCEPTED else 0

    @property
    def there(self) -> int:
        """Cents of the currency that the statement lists, less what was given back."""
        return sum(entry.amount for entry in self.entries if entry.currency in (None, self.currency))

    @property
    def currency(self) -> str:
        """The ledger's currency, else that of the first line; empty where it names none."""
        return self.record.currency if self.record is not None else self.entries[0].currency or ""

    @property
    def can_be_resolved(self) -> bool:
        """Whether the statement proves an undecided sale paid: its one line, with its amount, in no other currency."""
        record = self.record
        return (
            self.kind is Class.PAID_THERE
            and record is not None
            and record.state in (State.UNKNOWN, State.EXPIRED)
            and len(self.entries) == 1
            and not self.is_doubted
            and self.there == record.amount
        )

    def row(self) -> dict[str, object]:
        """Return the payment as a row of the report; its ids are the ledger's, else those of the first line."""
        first = self.record or self.entries[0]
        key, number = first.client_transaction_id, first.transaction_id
        if number is None and self.entries:
            number = self.entries[0].transaction_id
        state = None if self.record is None else str(self.record.state)
        units = (Decimal(cents).scaleb(-2) for cents in (self.here, self.there))
        lines = ", ".join(str(entry.line) for entry in self.entries)
        cells = (str(self.kind), key, number, state, self.here, self.there, self.currency, *units, lines)
        return dict(zip(COLUMNS, cells, strict=True))


def compare(records: Iterable[Record], entries: Iterable[Entry]) -> list[Pair]:
    """Put every attempt that is paid and every line that is read into exactly one pair, and each pair into one class.

    Attempts that are not paid and not listed are in none: absence from a statement decides nothing.
    """
    records, entries = list(records), list(entries)
    unread = [each for each in entries if not each.is_read]
    known = defaultdict[int | str | None, list[Record]](list)
    for record in records:
        known[record.client_transaction_id].append(record)
        known[record.transaction_id].append(record)
    lines: dict[object, list[Entry]] = {record: [] for record in records}
    for entry in (each for each in entries if each.is_read):
        found = _match(entry, known) or (entry.transaction_id, entry.client_transaction_id)
        lines.setdefault(found, []).append(entry)
    pairs, is_doubted = list[Pair](), _doubts(unread)
    for about, own in lines.items():
        attempt = about if isinstance(about, Record) else None
        if own or (attempt is not None and attempt.state is State.ACCEPTED):
            pairs.append(Pair(record=attempt, entries=tuple(own), is_doubted=is_doubted(attempt, own)))
    return pairs


def _match(entry: Entry, known: Mapping[int | str | None, Sequence[Record]]) -> Record | None:
    """Return the attempt that a line is about: the one of its transaction, else of its client transaction id."""
    number, key = entry.transaction_id, entry.client_transaction_id
    of_number, of_key = (known.get(each, ()) if each else () for each in (number, key))
    if of_number:  # a line whose two ids name two sales is about neither
        possible = [each for each in of_number if key in (None, each.client_transaction_id)]
    else:  # an attempt of another transaction is another payment
        possible = [each for each in of_key if number is None or each.transaction_id is None]
    return max(possible, key=_likelihood, default=None)


def _doubts(unread: Sequence[Entry]) -> Callable[[Record | None, Sequence[Entry]], bool]:
    """Return a function that says whether one of these lines may be about the payment of an attempt and its lines.

    The client transaction id says so where a side has no transaction id: two transaction ids are two payments.
    """
    numbers = {each.transaction_id for each in unread} - {None}
    keys = {each.client_transaction_id for each in unread} - {None}
    keys_alone = {each.client_transaction_id for each in unread if each.transaction_id is None} - {None}

    def is_doubted(record: Record | None, own: Sequence[Entry]) -> bool:
        doubted = keys if any(each.transaction_id is None for each in own) else keys_alone
        sides: list[Entry | Record] = [*own] if record is None else [*own, record]
        return any(each.transaction_id in numbers or each.client_transaction_id in doubted for each in sides)

    return is_doubted


def _likelihood(record: Record) -> tuple[bool, bool, int]:
    return record.state is State.ACCEPTED, record.state is not State.REFUSED, record.attempt


def reconcile(
    statement: Path,
    /,
    *,
    ledger: LedgerUrl = None,
    form: StatementOptions = StatementOptions(),
    since: Day | None = None,
    until: Day | None = None,
    report: Path | None = None,
    html: Path | None = None,
    resolve: bool = False,
    actor: str | None = None,
    yes: Yes = False,
    profile: Profile = None,
) -> int:
    """Compare the ledger with a statement of the service or the bank, cent by cent.

    Nothing is sent. Absence from a statement decides nothing. Without --since and --until all that the ledger calls
    paid is compared. Exit codes: 0 each cent agrees; 3 some do not; 2 bad input.

    :param statement: A .csv, .xlsx, .ods or .jsonl file of the service or the bank.
    :param since: The first day of the statement, such as 2026-03-01. Days are those of this machine's clock: on a
        server in UTC set the statement's time zone, as by TZ=America/Guayaquil.
    :param until: The last day of the statement.
    :param report: Write each payment to a .csv, .xlsx or .jsonl file.
    :param html: Write a page for people.
    :param resolve: Decide what is undecided here and listed with its amount.
    :param actor: The name of the person who decides; kept in the history.
    """
    name = (actor or "").strip()
    if resolve != bool(name):
        raise ConfigurationError("--resolve and --actor NAME: give both or none")
    begin, end = _period(since, until)
    check_apart({"STATEMENT": statement, "--report": report, "--html": html})
    if html is not None:
        check_page(html)
    if report is not None:
        read_report(report, COLUMNS[0])  # raises where another file is there
    entries, others, unnamed, dialect = read_statement(statement, form, find_profile(profile))
    pairs = asyncio.run(_pair_up(ledger, entries, begin, end))
    if resolve and (proven := [pair for pair in pairs if pair.can_be_resolved]):
        _ask(proven, yes=yes)
        count = asyncio.run(_decide(ledger, proven, name, statement.name))
        terminal.say(text("reconcile.decided", count=count, actor=name))
        pairs = asyncio.run(_pair_up(ledger, entries, begin, end))
    facts = _facts(pairs, others, unnamed)
    classes = [_total(kind, pairs) for kind in Class]
    _show(classes, _total(None, pairs), facts)
    if report is not None:
        rows = (pair.row() for pair in pairs)
        _write("--report", report, table_bytes(report.suffix.lower(), COLUMNS, rows, dialect))
    if html is not None:
        page = render("reconcile.html.j2", title=statement.name, classes=classes, facts=facts)
        _write("--html", html, page)
    return 0 if all(pair.kind is Class.AGREED for pair in pairs) else 3


def _period(since: datetime.date | None, until: datetime.date | None) -> tuple[datetime.date, datetime.date]:
    """Return the first and the last day; an open end is the first or the last of all days."""
    begin, end = since or datetime.date.min, until or datetime.date.max
    if begin > end:  # without a day no payment would be only here, and each cent would agree
        raise ConfigurationError("--since must not be after --until")
    return begin, end


async def _pair_up(
    url: str | None, entries: Sequence[Entry], begin: datetime.date, end: datetime.date
) -> list[Pair]:
    """Compare the lines with all attempts that are listed, or were paid in a period.

    The attempts are read one by one: a ledger may be long.
    """
    ids = ((entry.transaction_id, entry.client_transaction_id) for entry in entries if entry.is_read)
    known = {*chain.from_iterable(ids)} - {None}
    found = list[Record]()
    async with opened(url) as book:
        async for record in book.records():
            # Its customer has paid by the end of the window, however late that is found or decided by hand. A reversal
            # that was refused has moved both times of the record.
            ends = record.created_at + _LONGEST, record.expires_at or math.inf
            paid_at = min(record.decided_at or record.created_at, *ends)
            when = datetime.datetime.fromtimestamp(paid_at, datetime.UTC)
            inside = begin <= when.astimezone().date() <= end  # on this machine's clock
            listed = record.transaction_id in known or record.client_transaction_id in known
            if listed or (inside and record.state is State.ACCEPTED):
                found.append(record)
    if len(currencies := {record.currency for record in found}) == 1:
        (only,) = currencies  # also that of the lines that name none
        entries = [attrs.evolve(entry, currency=entry.currency or only) for entry in entries]
    return compare(found, entries)


def _ask(proven: Sequence[Pair], *, yes: bool) -> None:
    """Show what the statement proves paid, and ask whether to record it."""
    for pair in proven:
        row, money = pair.row(), terminal.money(pair.there, pair.currency)
        terminal.say(text("reconcile.sale", key=row["client_transaction_id"], money=money, line=row["lines"]))
    terminal.ask(text("reconcile.ask", count=len(proven)), "nothing was changed", yes=yes)


async def _decide(url: str | None, pairs: Iterable[Pair], actor: str, statement: str) -> int:
    """Record what the statement proves paid, and return how many; a sale that changed meanwhile is left alone."""
    done = 0
    async with opened(url, changes=True) as book:
        for pair in pairs:
            (entry,), seen = pair.entries, pair.record
            if seen is not None and await book.get(seen.client_transaction_id) == seen:
                number = "" if entry.transaction_id is None else f", transaction {entry.transaction_id}"
                reason = f"{statement}, line {entry.line}{number}"
                with suppress(TransitionError):  # another process has decided it first
                    await book.apply(seen, Listed(at=time.time(), actor=actor, reason=reason))
                    done += 1
    return done


def _write(option: str, path: Path, content: bytes) -> None:
    write_file(option, path, content)
    terminal.say(text("reconcile.written", path=path), whole=True)


# --- What is shown

#: A class or "all", its payments, and cents here and there by currency.
Totals = tuple[str, Sequence[Pair], Mapping[str, tuple[int, int]]]


def _facts(pairs: Iterable[Pair], others: Counter[str], unnamed: Sequence[int]) -> list[str]:
    """Return sentences beside the classes: of lines passed over, and of what `--resolve` decides."""
    states = ", ".join(f"{word} ({count})" for word, count in others.most_common(_SHOWN))
    facts = (
        ("others", others.total(), states),
        ("unnamed", len(unnamed), terminal.listed(unnamed)),
        ("proven", sum(pair.can_be_resolved for pair in pairs), ""),
    )
    return [text(f"reconcile.{key}", count=count, words=words) for key, count, words in facts if count]


def _show(classes: Sequence[Totals], total: Totals, facts: Iterable[str]) -> None:
    """Print the classes as a table, the first payments of those that do not agree, and the facts."""
    table = terminal.simple_table("class", numbers=("payments", "here", "there"))
    for kind, pairs, sums in (*classes, total):
        sides = (
            "\n".join(
                terminal.printable(terminal.money(both[n], currency)) for currency, both in sums.items()
            )
            for n in (0, 1)
        )
        table.add_row(label(kind), counted(len(pairs)), *sides)
    terminal.out().print(table)
    for kind, pairs, _ in classes:
        if pairs and kind != Class.AGREED:
            terminal.print_result(f"{label(kind)}: {_named(pairs)}")
    for fact in facts:
        terminal.say(fact)


def _named(pairs: Sequence[Pair]) -> str:
    """Return the ids of the first payments with their lines, and how many more there are."""
    names = []
    for pair in pairs[:_NAMED]:
        row = pair.row()
        line = text("reconcile.at_line", line=row["lines"]) if row["lines"] else ""
        names.append(f"{row['client_transaction_id'] or row['transaction_id']}{line}")
    more = text("reconcile.more", count=len(pairs) - _NAMED) if len(pairs) > _NAMED else ""
    return ", ".join(names) + more


def _total(kind: Class | None, pairs: Iterable[Pair]) -> Totals:
    """Return the payments of a class, or (None) of all, with their sums."""
    own = [pair for pair in pairs if kind in (None, pair.kind)]
    sums = defaultdict[str, list[int]](lambda: [0, 0])
    for pair in own:
        sums[pair.currency][0] += pair.here
        for entry in pair.entries:
            sums[entry.currency or pair.currency][1] += entry.amount
    return kind or "all", own, {currency: (here, there) for currency, (here, there) in sorted(sums.items())}
