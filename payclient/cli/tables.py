"""The tables that a run prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from payclient.cli.lines import LABELS, Tally
from payclient.cli.terminal import money
from payclient.lifecycle import State

__all__: list[str] = []

_PAID: dict[str, str] = {State.ACCEPTED: "yes", State.CANCELLED: "no", State.REFUSED: "no"}


def plan_table(charges: Mapping[str, int], totals: Mapping[str, int]) -> Table:
    """What a file would charge, by currency."""
    table = _table("charges", "total", first="currency")
    for currency in sorted(charges):
        table.add_row(currency, f"{charges[currency]:,}", money(totals[currency], currency))
    return table


def outcome_table(tally: Tally) -> Table:
    """What became of the rows, with the money, a line for each state and currency."""
    table = _table("charges", "total", first="outcome", second="paid")
    for label in LABELS:
        if not tally.counts[label]:
            continue
        totals = "\n".join(money(cents, currency) for currency, cents in tally.totals(label).items())
        table.add_row(label, _PAID.get(label, "unknown"), f"{tally.counts[label]:,}", totals)
    if tally.done:
        table.add_section()
        table.add_row("all", "", f"{tally.done:,}", "\n".join(_sums(tally)))
    return table


def _sums(tally: Tally) -> list[str]:
    sums: dict[str, int] = {}
    for (_, currency), cents in tally.money.items():
        sums[currency] = sums.get(currency, 0) + cents
    return [money(cents, currency) for currency, cents in sorted(sums.items())]


def _table(*numbers: str, first: str, second: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column(first)
    if second is not None:
        table.add_column(second)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def comparison_table(pairs: Sequence[tuple[str, int, str, int]]) -> Table:
    """What a run reported beside what the service did."""
    table = _table("payclient says", "the service did", first="outcome")
    table.add_column("")
    for label, said, word, did in pairs:
        table.add_row(
            label, str(said), f"{did} {word}", "[green]equal[/]" if said == did else "[bold red]DIFFERENT[/]"
        )
    return table
