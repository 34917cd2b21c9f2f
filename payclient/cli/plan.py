"""What a run would do, shown before it does: rows, money, customers, what the ledger knows, how long it takes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import attrs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from payclient.batch.results import passes
from payclient.cli import terminal
from payclient.cli.report import LABELS
from payclient.cli.run import CHUNK
from payclient.cli.settings import Limits, location_of
from payclient.cli.texts import counted, reason, text
from payclient.errors import ConfigurationError, LedgerInUseError, LedgerMissingError
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.rows import ChargeFile, Row
from payclient.rows.cells import RowError

__all__: list[str] = []


#: Client transaction ids shown of an error about many.
SHOWN = 3

#: Cents. Where every amount of a file is less, they may be units.
SMALL = 1000


@attrs.frozen
class Known:
    """What the ledger holds of the rows, before anything is sent."""

    #: Rows by state; rows without one are not counted.
    states: Counter[str] = attrs.field(factory=Counter)
    #: Refused rows that would be tried again.
    again: int = 0
    in_use: bool = False
    #: There is no ledger yet.
    new: bool = False
    #: Rows that an earlier report calls paid or open, and that the ledger lacks: all would be charged again.
    lost: Sequence[str] = ()


async def read_ledger(
    url: str | None, file: ChargeFile, limits: Limits, reported: Mapping[str, bool] = MappingProxyType({})
) -> Known:
    """Look the rows up, and close the ledger again. `reported`: see `Report.earlier`."""
    sent = [key for key in (each.client_transaction_id for each in file.requests) if reported.get(key)]
    if not url:
        return Known(new=True)
    if url.startswith("memory:"):
        return Known(new=True, lost=sent)
    try:
        book = await open_ledger(url, create=False)
    except LedgerInUseError:
        return Known(in_use=True)
    except LedgerMissingError:
        return Known(new=True, lost=sent)
    states, again, known = Counter[str](), 0, set[str]()
    try:
        keys = (request.client_transaction_id for request in file.requests)
        while chunk := list(itertools.islice(keys, CHUNK)):
            for key, record in (await book.get_many(chunk)).items():
                known.add(key)
                states[record.state] += 1
                again += record.state is State.REFUSED and (
                    limits.retry == "refused" or passes(record.evidence, record.error_type)
                )
    finally:
        await book.aclose()
    return Known(states, again, lost=[key for key in sent if key not in known])


@attrs.frozen(kw_only=True)
class Plan:
    """All that is known before the first charge."""

    file: ChargeFile
    known: Known
    limits: Limits
    #: Where the bad rows go.
    skip_bad: Path | None
    #: Where it goes; None where a dry run was not told.
    base_url: str | None
    profile: ServiceProfile
    #: A dry run needs none.
    has_token: bool = True
    ledger: str | None = attrs.field(repr=False)  # its address may hold a password
    #: What an earlier report holds; see `Report.earlier`.
    reported: Mapping[str, bool] = attrs.field(factory=dict, repr=False)
    #: Nobody said whether whole numbers are cents.
    guessed_cents: bool = False

    @property
    def to_send(self) -> int:
        """Rows that are sent, as far as the ledger knows."""
        return len(self.file.requests) - self.known.states.total() + self.known.again

    @property
    def are_small(self) -> bool:
        """Whether all amounts may be units that were read as cents, since nobody said which they are."""
        amounts = [each.amount for each in self.file.requests]
        return self.guessed_cents and max(amounts, default=SMALL) < SMALL

    @property
    def replaced(self) -> int:
        """Rows of an earlier report that are not in the file, and so not in its next one."""
        mine = {each.client_transaction_id for each in self.file.requests}
        return sum(key not in mine and key[:1] != "'" for key in self.reported)

    def check(self, report: str) -> None:
        """Raise `ConfigurationError` where nothing may be sent. `report`: the name of an earlier run's report."""
        if self.are_small:
            raise ConfigurationError(
                "every amount is less than 10.00: give --amounts decimal where 25 means 25.00, or --amounts cents "
                "where it means 0.25; nothing was sent"
            )
        if lost := self.known.lost:
            raise ConfigurationError(
                f"--report {report} calls {len(lost):,} rows paid or open that the ledger does not know "
                f"({terminal.listed(lost, SHOWN)}): give the ledger that charged them, or another --report; "
                "nothing was sent"
            )

    def picture(self) -> RenderableType:
        """Return it for people: the money, then a line for each thing to know."""
        numbers = (text(f"plan.{name}") for name in ("charges", "total", "smallest", "largest"))
        table = terminal.simple_table(text("plan.currency"), numbers=tuple(numbers))
        for currency, (count, cents) in self.file.totals.items():
            amounts = [each.amount for each in self.file.requests if each.currency == currency]
            sums = (terminal.money(each, currency) for each in (cents, min(amounts), max(amounts)))
            table.add_row(currency, counted(count), *sums)
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, words in self._facts():
            facts.add_row(text(f"plan.{name}"), words if isinstance(words, Text) else Text(words))
        return Group(table, facts, Text(""))

    def _facts(self) -> Iterator[tuple[str, Text | str]]:
        yield from self._file_facts()
        if lanes := self.file.lanes:
            count, longest = len(lanes), max(lanes.values())
            words = counted(count) if longest < 2 else text("plan.longest", count=count, longest=longest)
            yield "customers", words
        yield "ledger", self._ledger()
        yield "to_send", self._to_send(max(lanes.values(), default=0))
        if not self.has_token:
            yield "token", text("plan.no_token")
        if self.base_url is not None:
            yield "to", text("plan.service", url=self.base_url, name=self.profile.name)

    def _file_facts(self) -> Iterator[tuple[str, Text | str]]:
        """Yield what the file holds, and what a person should look at twice."""
        yield from self._line_facts()
        file, loud = self.file, "bold yellow"
        if file.unread:
            yield "unread", text("plan.columns", count=len(file.unread), names=terminal.listed(file.unread))
        if doubles := [text("plan.and").join(map(str, lines)) for lines in file.doubles]:
            words = text("plan.doubles", count=len(doubles), lines=terminal.listed(doubles))
            yield "twice", Text(words, loud)
        if self.replaced:
            yield "report", Text(text("plan.replaced", count=self.replaced), loud)
        if self.are_small:
            largest = max(file.requests, key=lambda each: each.amount)
            words = text("plan.small", largest=terminal.money(largest.amount, largest.currency))
            yield "amounts", Text(words, loud)

    def _line_facts(self) -> Iterator[tuple[str, Text | str]]:
        """Yield which lines are charged, and which are not."""
        file = self.file
        yield "file", f"{file.path.name}: {', '.join(map(reason, file.description.split(', ')))}"
        good = Text(text("plan.good", count=len(file.requests)))
        if file.bad:
            good.append(text("plan.bad", count=len(file.bad)), "bold red")
            good.append(text("plan.skipped", path=self.skip_bad) if self.skip_bad else "")
        yield "rows", good
        left = [text("plan.above", count=file.above)] if file.above else []
        for name, lines in (("empty", file.empty), ("total_line", file.total_lines)):
            if lines:
                left.append(text(f"plan.{name}", count=len(lines), lines=terminal.listed(lines)))
        if left:
            yield "left_out", "; ".join(left)
        for fault in file.total_faults:
            yield "sum", Text(in_words(fault), "bold red")
        if respelled := [row for row in file.rows if row.respelled and row.request and not row.errors]:
            yield "phones", self._respelled(respelled)

    def _respelled(self, rows: Sequence[Row]) -> str:
        countries = sorted({row.request.country_code for row in rows if row.request is not None})
        shapes = ", ".join(f"{self.profile.phone_shapes[each]} ({each})" for each in countries)
        lines = terminal.listed([row.line for row in rows])
        return text("plan.respelled", count=len(rows), shapes=shapes, lines=lines)

    def _ledger(self) -> Text:
        if self.ledger is None:
            return Text(text("plan.no_ledger"))
        known, words = self.known, Text(location_of(self.ledger))
        if known.new:
            return words.append(text("plan.new"), "bold yellow").append(text("plan.knows_nothing"))
        if known.in_use:
            return words.append(text("plan.in_use"))
        if not (total := known.states.total()):
            return words.append(text("plan.knows_none"))
        states = ", ".join(counted(known.states[each], each) for each in LABELS if known.states[each])
        words.append(text("plan.knows", count=total, counts=states))
        return words.append(text("plan.again", count=known.again) if known.again else "")

    def _to_send(self, longest_lane: int) -> str:
        if not self.to_send:
            return text("plan.nothing")
        if self.file.bad and self.skip_bad is None:
            return text("plan.nothing_bad", count=self.to_send)
        seconds = self.limits.longest(self.profile, self.to_send, longest_lane)
        end = terminal.at(time.time() + seconds)
        return text("plan.send", count=self.to_send, time=terminal.duration(seconds), at=end)


def in_words(error: RowError) -> str:
    """Return where a row is wrong, and why."""
    column = f", {error.column}" if error.column else ""
    return f"{text('file.line', line=str(error.line))}{column}: {reason(error.reason)}"
