"""The tables and pictures that a run prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from payclient.cli.report_lines import LABELS, NEVER_SENT, Tally, paid_word
from payclient.cli.terminal import at, duration, money
from payclient.cli.unfinished import Unfinished
from payclient.lifecycle import State

__all__: list[str] = []

#: Always in the live picture, whatever their count; the others only where they are.
_SHOWN = (State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED, State.UNKNOWN)

_COLOURS: dict[str, str] = {
    State.ACCEPTED: "green",
    State.CANCELLED: "yellow",
    State.REFUSED: "yellow",
    State.EXPIRED: "magenta",
    State.UNKNOWN: "bold magenta",
    NEVER_SENT: "bold magenta",
}


def simple_table(*words: str, numbers: Sequence[str] = ()) -> Table:
    """A table with a head: columns of words, then of numbers; `add_column` adds others."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def facts(rows: Mapping[str, object]) -> Table:
    """Names and what they are, in two columns; what is None is left out."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(str(value)))
    return table


def plan_table(charges: Mapping[str, int], totals: Mapping[str, int]) -> Table:
    """What a file would charge, by currency."""
    table = simple_table("currency", numbers=("charges", "total"))
    for currency in sorted(charges):
        table.add_row(currency, f"{charges[currency]:,}", money(totals[currency], currency))
    return table


def outcome_table(tally: Tally) -> Table:
    """What became of the rows, with the money, a line for each state and currency."""
    table = simple_table("outcome", "paid", numbers=("charges", "total"))
    for label in LABELS:
        if not tally.counts[label]:
            continue
        table.add_row(
            Text(label, _COLOURS.get(label, "")),
            paid_word(label),
            f"{tally.counts[label]:,}",
            _lines(tally.totals(label)),
        )
    if tally.done:
        table.add_section()
        table.add_row("all", "", f"{tally.done:,}", _lines(tally.sums()))
    return table


def run_picture(
    tally: Tally, now: Unfinished, *, total: int, elapsed: float, stopped: str | None, width: int
) -> RenderableType:
    """A run while it goes: how far it is, what came of the rows with their money, and what is open."""
    share = tally.done / max(total, 1)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        ProgressBar(
            total=max(total, 1),
            completed=tally.done,
            width=max(min(width - 36, 60), 10),
            complete_style="green",
            finished_style="green",
        ),
        f"{tally.done:,} of {total:,} done, {int(share * 100)} %",
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_column(min_width=10, no_wrap=True)
    rows.add_column(justify="right", min_width=len(f"{total:,}"), no_wrap=True)
    rows.add_column()
    for label in LABELS:
        count = tally.counts[label]
        if not count and label not in _SHOWN:
            continue
        sums = "   ".join(money(cents, currency) for currency, cents in tally.totals(label).items())
        style = _COLOURS.get(label, "") if count else "dim"
        rows.add_row(Text(label, style), Text(f"{count:,}", style), Text(sums, "" if count else "dim"))
    rows.add_row("", "", "")
    rows.add_row("waiting", Text(f"{now.pending:,}", "bold"), _waiting(now))
    if now.queued or not (now.pending or now.expired or now.unknown):
        unread = max(total - tally.done - now.pending - now.expired - now.unknown, 0)
        rows.add_row("to go", f"{unread:,}", "nothing more is sent" if stopped else "queue for their turn")
    foot = f"running {duration(elapsed)}"
    if now.latest_end is not None:
        foot += f", over by {at(now.latest_end)} even if nobody else answers"
    parts: list[RenderableType] = [head, "", rows, Text(foot, "dim", overflow="ellipsis", no_wrap=True)]
    if stopped is not None:
        parts.append(Text(f"stopping: {stopped}", "bold yellow", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _waiting(now: Unfinished) -> str:
    parts = []
    if now.next_left is not None:
        parts.append(f"for a customer; the next expires in {duration(now.next_left)}")
    if now.expired:
        parts.append(f"{now.expired:,} expired, last word awaited")
    if now.unknown:
        parts.append(f"{now.unknown:,} unknown, looked up")
    return "; ".join(parts) or "for nobody"


def _lines(totals: Mapping[str, int]) -> str:
    return "\n".join(money(cents, currency) for currency, cents in totals.items())


def comparison_table(pairs: Sequence[tuple[str, int, str, int]]) -> Table:
    """What a run reported beside what the service did."""
    table = simple_table("outcome", numbers=("payclient says", "the service did"))
    table.add_column("")
    for label, said, word, did in pairs:
        table.add_row(
            label, str(said), f"{did} {word}", "[green]equal[/]" if said == did else "[bold red]DIFFERENT[/]"
        )
    return table
