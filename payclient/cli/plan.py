"""What a run would do, shown before it does: rows, money, customers, what the ledger knows, how long it takes."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from payclient.batch.estimate import Estimate, estimate
from payclient.batch.results import passes
from payclient.cli import terminal
from payclient.cli.tables import plan_table, simple_table
from payclient.cli.unfinished import Limits
from payclient.errors import LedgerInUseError
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.rows.check import MAX_FAULTS, FileCheck
from payclient.rows.faults import Fault

__all__: list[str] = []

#: Rows that the ledger is asked for at once.
CHUNK = 500

_ORDER = (
    State.ACCEPTED,
    State.CANCELLED,
    State.REFUSED,
    State.PENDING,
    State.EXPIRED,
    State.UNKNOWN,
    State.SENDING,
)


@attrs.frozen
class Known:
    """What the ledger says of the rows, before anything is sent."""

    #: Rows by state; those that have none are not counted.
    states: Counter[str]
    #: Refused ones that would be tried again.
    again: int = 0
    in_use: bool = False

    @property
    def settled(self) -> int:
        """Rows that nothing is sent for."""
        return self.states.total() - self.again


async def ask_ledger(url: str | None, checked: FileCheck, retry: Sequence[str]) -> Known | None:
    """Look the rows up, and let the ledger go again; None: there is none yet."""
    kind, _, path = (url or "").partition(":")
    if not url or kind == "memory" or (kind == "sqlite" and not os.path.exists(path)):  # noqa: ASYNC240 - once
        return None
    try:
        book = await open_ledger(url)
    except LedgerInUseError:
        return Known(Counter(), in_use=True)
    states: Counter[str] = Counter()
    again = 0
    try:
        with checked.requests() as rows:
            keys = (request.client_transaction_id for request in rows.in_order())
            while chunk := list(itertools.islice(keys, CHUNK)):
                for record in (await book.get_many(chunk)).values():
                    states[record.state] += 1
                    again += record.state is State.REFUSED and (
                        "refused" in retry or passes(record.evidence, record.error_type)
                    )
    finally:
        await book.aclose()
    return Known(states, again)


@attrs.frozen(kw_only=True)
class Plan:
    """All that is known before the first charge."""

    checked: FileCheck
    known: Known | None
    limits: Limits
    #: Where the bad rows go.
    left_out: Path | None
    #: Where it goes; None where a dry run was not told.
    base_url: str | None
    profile: ServiceProfile
    ledger: str | None = attrs.field(repr=False)  # its address may hold a password

    @property
    def to_send(self) -> int:
        """Rows that are sent, as far as the ledger knows."""
        return self.checked.good_rows - (0 if self.known is None else self.known.settled)

    def picture(self) -> RenderableType:
        """For people: the money, then a line for each thing to know."""
        checked = self.checked
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        facts.add_row("file", Text(f"{checked.path.name}: {checked.description}"))
        facts.add_row("rows", self._rows())
        if checked.good_rows:
            many = (
                ""
                if checked.longest_lane < 2
                else f"; one of them has {checked.longest_lane:,} charges, one at a time"
            )
            facts.add_row("customers", f"{checked.customers:,}{many}")
        facts.add_row("ledger", Text(self._ledger()))
        facts.add_row("to send", self._to_send())
        if self.base_url is not None:
            facts.add_row("to", Text(f"{self.base_url} as {self.profile.name}"))
        return Group(plan_table(checked.charges, checked.totals), facts, Text(""))

    def _rows(self) -> Text:
        checked = self.checked
        text = Text(f"{checked.good_rows:,} good")
        if checked.bad_rows:
            text.append(f", {checked.bad_rows:,} bad", style="bold red")
            if self.left_out is not None:
                text.append(f", which are left out and go to {self.left_out}")
        return text

    def _ledger(self) -> str:
        if self.ledger is None:
            return "not told: give --ledger to see what was charged before"
        known, ledger = self.known, terminal.without_password(self.ledger)
        if known is None or not known.states.total():
            words = (
                "is in use by another run" if known is not None and known.in_use else "knows none of the rows"
            )
            return f"{ledger} {words}"
        counts = ", ".join(f"{known.states[state]:,} {state}" for state in _ORDER if known.states[state])
        again = f" ({known.again:,} of them tried again)" if known.again else ""
        return f"{ledger} knows {known.states.total():,} rows: {counts}{again}"

    def _expected(self) -> Estimate:
        return estimate(
            self.profile,
            rows=self.to_send,
            longest_lane=min(self.checked.longest_lane, self.to_send),
            max_in_flight=self.limits.max_in_flight,
            max_pending=self.limits.max_pending,
            rate=self.limits.rate,
            wait=self.limits.wait,
        )

    def _to_send(self) -> str:
        if not self.to_send:
            return "nothing"
        if self.checked.bad_rows and self.left_out is None:
            return f"nothing: a row is bad; --skip-bad FILE would send the other {self.to_send:,}"
        expected = self._expected()
        queries = f"{_rounded(expected.queries)} status queries"
        if self.profile.status is None:
            queries = "no status queries: the profile names none"
        return f"{self.to_send:,} charges; expect about {_about(expected.seconds)} ({expected.bound_by}), and {queries}"


def show_faults(checked: FileCheck) -> None:
    """The first faults: a table on a terminal, lines elsewhere."""
    if not terminal.err.is_terminal:
        for fault in checked.faults:
            terminal.say(fault)
        return
    show(terminal.err, _fault_table(list(checked.index.faults(MAX_FAULTS))))


def _fault_table(faults: Sequence[Fault]) -> Table:
    table = simple_table()
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("column", overflow="fold")
    table.add_column("holds")
    table.add_column("what is wrong", ratio=1)
    for fault in faults:
        table.add_row(str(fault.line), Text(fault.column or ""), fault.kind or "", Text(fault.reason))
    return table


def show(console: Console, picture: RenderableType) -> None:
    """Print what is wrapped at words, to the width of the terminal."""
    console.print(picture, soft_wrap=False)


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _rounded(number: float) -> str:
    whole = round(number)
    if whole < 100:
        return f"{whole}"
    step = 10 ** (len(str(whole)) - 2)
    return f"{round(whole / step) * step:,}"
