"""The tables that commands print, and what a run says at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from payclient.cli import terminal
from payclient.cli.lines import LABELS, NEVER_SENT, OTHER_CONTENT, Line, Tally, paid_word
from payclient.cli.terminal import money
from payclient.ledger.details import bounded
from payclient.lifecycle import State

__all__: list[str] = []

#: Reasons shown at the end of rows that were never sent.
REASONS = 3

COLOURS: dict[str, str] = {
    State.ACCEPTED: "green",
    State.CANCELLED: "yellow",
    State.REFUSED: "yellow",
    State.EXPIRED: "magenta",
    State.UNKNOWN: "bold magenta",
    OTHER_CONTENT: "bold magenta",
    NEVER_SENT: "bold magenta",
}


def simple_table(*words: str, numbers: Sequence[str] = ()) -> Table:
    """Return a table with a head: columns of words, then of numbers."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def facts(rows: Mapping[str, object]) -> Table:
    """Return names and what they are, in two columns; what is None is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(str(value)))
    return table


def money_lines(totals: Mapping[str, int]) -> str:
    """Return sums by currency, one a line."""
    return "\n".join(money(cents, currency) for currency, cents in totals.items())


def outcome_table(tally: Tally) -> Table:
    """Return what became of the rows, with the money."""
    table = simple_table("outcome", "paid", numbers=("charges", "total"))
    for label in LABELS:
        if count := tally.counts[label]:
            text = Text(label, COLOURS.get(label, ""))
            table.add_row(text, paid_word(label), f"{count:,}", money_lines(tally.totals(label)))
    if tally.done:
        table.add_section()
        table.add_row("all", "", f"{tally.done:,}", money_lines(tally.sums()))
    return table


def say_reasons(lines: Iterable[Line]) -> None:
    """Say why rows were not sent, the commonest reasons first."""
    reasons = Counter(
        (line.label, bounded(line.message))
        for line in lines
        if line.message and line.label in (NEVER_SENT, OTHER_CONTENT)
    )
    for (label, reason), count in reasons.most_common(REASONS):
        terminal.say(f"{count:,} {label}: {reason.removeprefix(f'{NEVER_SENT}: ')}")


def comparison_table(pairs: Sequence[tuple[str, int, str, int]]) -> Table:
    """Return what a run reported beside what the service did."""
    table = simple_table("outcome", numbers=("payclient says", "the service did"))
    table.add_column("")
    for label, said, word, did in pairs:
        same = "[green]equal[/]" if said == did else "[bold red]DIFFERENT[/]"
        table.add_row(label, str(said), f"{did} {word}", same)
    return table
