"""What a run would do, shown before it does: rows, money, customers, what the ledger knows, how long it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from payclient.batch.lanes import passes
from payclient.cli import terminal
from payclient.cli.report import LABELS, OTHER_CONTENT
from payclient.cli.run import CHUNK
from payclient.cli.settings import ChargeOptions, Limits, location_of
from payclient.cli.texts import counted, reason, text
from payclient.errors import ConfigurationError, LedgerMissingError
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.rows import ChargeFile
from payclient.rows.cells import RowError
from payclient.tracking.attempts import content_digest
from payclient.wire import encode_sale

#: Client transaction ids shown of an error about many.
SHOWN = 3

#: Cents. Where every amount of a file is less, they may be units.
SMALL = 1000


@attrs.define
class Known:
    """What the ledger holds of the rows, before anything is sent."""

    #: Rows by label; rows that the ledger lacks are not counted.
    labels: Counter[str] = attrs.field(factory=Counter)
    #: Refused rows that would be tried again.
    again: int = 0
    #: There is no ledger yet.
    new: bool = False
    #: Rows that an earlier report calls paid or open, and that the ledger lacks: all would be charged again.
    lost: Sequence[str] = ()
    #: Rows that the ledger has with other content: nothing is sent for them.
    changed: list[str] = attrs.field(factory=list)


async def read_ledger(
    url: str | None,
    file: ChargeFile,
    profile: ServiceProfile,
    retry: str | None,
    reported: Mapping[str, bool],
) -> Known:
    """Look the rows up, also while another process has the ledger open. `reported`: see `Report.earlier`."""
    sent = [
        key for key in (each.client_transaction_id for each in file.requests) if url and reported.get(key)
    ]
    if not url or url.startswith("memory:"):
        return Known(new=True, lost=sent)
    try:
        book = await open_ledger(url, read_only=True)
    except LedgerMissingError:
        return Known(new=True, lost=sent)
    known, keys, purchases = Known(), set[str](), file.purchases
    try:
        for begin in range(0, len(file.requests), CHUNK):
            requests = {each.client_transaction_id: each for each in file.requests[begin : begin + CHUNK]}
            for key, record in (await book.get_many([*requests])).items():
                digest = content_digest(encode_sale(requests[key], profile).body, book.digest_key)
                is_same = record.digest == digest and purchases.get(key) in (None, record.purchase)
                is_refused = record.state is State.REFUSED
                keys.add(key)
                known.labels[record.state if is_same or is_refused else OTHER_CONTENT] += 1
                if is_refused:
                    known.again += retry == "refused" or passes(record.evidence, record.error_type)
                elif not is_same:
                    known.changed.append(key)
    finally:
        await book.aclose()
    known.lost = [key for key in sent if key not in keys]
    return known


@attrs.frozen(kw_only=True)
class Plan:
    """All that is known before the first charge."""

    file: ChargeFile
    known: Known
    options: ChargeOptions
    limits: Limits
    profile: ServiceProfile
    #: Where the bad rows go.
    skip_bad: Path | None
    #: What an earlier report holds; see `Report.earlier`.
    reported: Mapping[str, bool] = attrs.field(repr=False)
    #: Nobody said whether whole numbers are cents.
    guessed_cents: bool

    @property
    def to_send(self) -> int:
        """Rows that are sent, as far as the ledger knows."""
        return len(self.file.requests) - self.known.labels.total() + self.known.again

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

    def check(self, report: Path | None) -> None:
        """Raise `ConfigurationError` where nothing may be sent. `report`: that of an earlier run."""
        if self.are_small:
            raise ConfigurationError(
                "every amount is less than 10.00: give --amounts decimal where 25 means 25.00, or --amounts cents "
                "where it means 0.25; nothing was sent"
            )
        if (lost := self.known.lost) and report is not None:
            raise ConfigurationError(
                f"--report {report.name} calls {len(lost):,} rows paid or open that the ledger does not know "
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
        for name, words, *style in (*self._file_facts(), *self._run_facts()):
            facts.add_row(text(f"plan.{name}"), Text(words, *style))
        return Group(table, facts, Text(""))

    def _file_facts(self) -> Iterator[tuple[str, ...]]:
        """Yield which lines are charged, which are not, and what a person should look at twice, each with its style."""
        file, loud, bad = self.file, "bold yellow", "bold red"
        yield "file", f"{file.path.name}: {', '.join(map(reason, file.description.split(', ')))}"
        good = text("plan.good", count=len(file.requests))
        if file.bad:
            skipped = text("plan.skipped", path=self.skip_bad) if self.skip_bad else ""
            yield "rows", good + text("plan.bad", count=len(file.bad)) + skipped, bad
        else:
            yield "rows", good
        above = range(1, file.records.line)
        left = [
            text(f"plan.{name}", count=len(lines), lines=terminal.listed(lines))
            for name, lines in (("above", above), ("empty", file.empty), ("total_line", file.total_lines))
            if lines
        ]
        if left:
            yield "left_out", "; ".join(left)
        for fault in file.total_faults:
            yield "sum", in_words(fault), bad
        if respelled := [row for row in file.rows if row.respelled and row.request]:
            countries = sorted({row.request.country_code for row in respelled if row.request})
            shapes = ", ".join(f"{self.profile.phone_shapes[each]} ({each})" for each in countries)
            lines = terminal.listed([row.line for row in respelled])
            yield "phones", text("plan.respelled", count=len(respelled), shapes=shapes, lines=lines)
        if file.unread:
            yield "unread", text("plan.columns", count=len(file.unread), names=terminal.listed(file.unread))
        if doubles := [text("plan.and").join(map(str, lines)) for lines in file.doubles]:
            yield "twice", text("plan.doubles", count=len(doubles), lines=terminal.listed(doubles)), loud
        if self.replaced:
            yield "report", text("plan.replaced", count=self.replaced), loud
        if self.are_small:
            largest = max(file.requests, key=lambda each: each.amount)
            yield (
                "amounts",
                text("plan.small", largest=terminal.money(largest.amount, largest.currency)),
                loud,
            )

    def _run_facts(self) -> Iterator[tuple[str, ...]]:
        """Yield who is charged where, and how long it takes."""
        lanes, longest = self.file.lanes, max(self.file.lanes.values(), default=0)
        if lanes:
            words = "plan.longest" if longest > 1 else "plan.customers_count"
            yield "customers", text(words, count=len(lanes), longest=longest)
        yield "ledger", *self._ledger()
        if changed := self.known.changed:
            yield (
                "changed",
                text("plan.other", count=len(changed), ids=terminal.listed(changed)),
                "bold yellow",
            )
        yield "to_send", self._to_send(longest)
        if not self.options.has_token:
            yield "token", text("plan.no_token")
        if url := self.options.base_url or self.profile.base_url:
            yield "to", text("plan.service", url=url, name=self.profile.name)

    def _ledger(self) -> tuple[str, ...]:
        known, total = self.known, self.known.labels.total()
        if self.options.ledger is None:
            return (text("plan.no_ledger"),)
        place = location_of(self.options.ledger)
        if known.new:
            return place + text("plan.new"), "bold yellow"
        states = ", ".join(counted(known.labels[each], each) for each in LABELS if known.labels[each])
        words = text("plan.knows", count=total, counts=states) if total else text("plan.knows_none")
        return (place + words + (text("plan.again", count=known.again) if known.again else ""),)

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
