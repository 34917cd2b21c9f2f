"""The progress of a run (live on a terminal, plain lines elsewhere, JSON for machines), and the words at its end."""

import asyncio
import json
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from rich import progress
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from payclient.batch import Charges
from payclient.cli import terminal
from payclient.cli.configuration import origins
from payclient.cli.report import LABELS, NOT_SENT_YET, OTHER_CONTENT, PURCHASE_OPEN, Line, Tally, paid_word
from payclient.cli.terminal import at, duration, iso, sums
from payclient.cli.texts import counted, label, reason, text
from payclient.lifecycle import State
from payclient.tracking.tracker import Tracker
from payclient.validation import sanitize_text

#: How a run shows its progress. "auto": live on a terminal, plain lines elsewhere.
Look = Literal["auto", "quiet", "json"]

#: Seconds between two plain lines, two live pictures, and two JSON events of progress.
PLAIN_EVERY, LIVE_EVERY, JSON_EVERY = 15.0, 0.25, 1.0

#: Reasons why rows were not sent that are shown at the end; the commonest ones.
REASONS = 3

#: The labels that are always in the live picture, and their colours; other labels are there once they occur.
_COLOURS: dict[str, str] = {
    State.ACCEPTED: "green", State.CANCELLED: "yellow", State.REFUSED: "yellow", State.EXPIRED: "magenta",
    State.UNKNOWN: "bold magenta",
}  # fmt: skip


class Progress:
    """The progress of a run whose tally others fill. A quiet one shows notes only.

    For machines it is one JSON object a line on stdout: `begin`, `row`, `progress`, `stopping`, `waiting`,
    `leaving`, `unreachable`, `reachable`, `end`. Cents and UTC.
    """

    def __init__(self, tally: Tally, rows: int, without_result: Collection[str], look: Look = "auto") -> None:
        self._tally, self._rows, self._without_result, self._look = tally, rows, without_result, look
        self._began = time.monotonic()
        #: When the run is over at the latest, by `time.time()`; None: not known yet.
        self.ends_by: float | None = None
        self.tracker: Tracker | None = None
        self.results: Charges | None = None

    def begin(self, location: str) -> None:
        """Show that the run begins, and where the ledger is, in which people can look at it meanwhile."""
        self._emit("begin", rows=self._rows)
        if self._look == "auto" and not location.startswith("memory:"):
            terminal.say(text("run.look", ledger=shlex.quote(location)), whole=True)

    async def show(self) -> None:
        """Show the counts again and again, until cancelled."""
        if self._look == "auto" and terminal.err.is_terminal:
            with Live(
                console=terminal.err, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            ) as live:  # fmt: skip
                while True:
                    live.update(self.picture(), refresh=True)
                    await asyncio.sleep(LIVE_EVERY)
        while self._look != "quiet":
            await asyncio.sleep(JSON_EVERY if self._look == "json" else PLAIN_EVERY)
            if self._look == "auto":
                terminal.say(self.sentence())
            else:
                counts, left = self.unfinished()
                self._emit(
                    "progress", done=self._tally.done, rows=self._rows, **counts, ends_by=iso(self.ends_by),
                    next_expiry_in=round(left[0], 3) if left else None, outcomes=self._tally.summary(),
                )  # fmt: skip

    def row(self, line: Line) -> None:
        """Show a row's line to a machine."""
        self._emit("row", **line.cells())

    def note(self, event: str, text: str, **facts: object) -> None:
        """Show an event at once; people read its text on stderr."""
        terminal.say(text)
        self._emit(event, **facts)

    def end(self, code: int, lines: Iterable[Line], files: Mapping[str, str]) -> None:
        """Show that the run is over: its outcomes, the reasons of what was not sent, and the files by their options."""
        tally = self._tally
        outcomes = tally.summary()
        self._emit("end", exit_code=code, done=tally.done, rows=self._rows, outcomes=outcomes, **files)
        if self._look == "auto":
            terminal.out().print(outcome_table(tally))
        if self._look != "quiet":
            _say_reasons(lines)
            for name, path in files.items():
                terminal.say(text(f"run.{name}", path=path), whole=True)

    def unfinished(self) -> tuple[dict[str, int], list[float]]:
        """Count the rows without a result, and return the seconds that each pending sale has left, in order.

        A customer can approve what is `pending`; the last queries of what is `expired` are due; what is `unknown` may
        exist or not; the others are `queued`, or being sent.
        """
        sales = () if self.tracker is None else self.tracker.open_sales()
        own = [sale for sale in sales if sale.client_transaction_id in self._without_result]
        found = Counter(sale.state for sale in own)
        counts = {str(state): found[state] for state in (State.PENDING, State.EXPIRED, State.UNKNOWN)}
        counts["queued"] = max(len(self._without_result) - sum(counts.values()), 0)
        return counts, sorted(sale.remaining for sale in own if sale.state is State.PENDING)

    def sentence(self) -> str:
        """Return the progress in one line."""
        tally, (pending, waiting) = self._tally, self._waiting()
        counts = [
            f"{counted(count, each)} ({', '.join(sums(tally.totals(each)))})"
            for each, count in tally.counts.most_common()
            if count
        ]
        if pending:
            waiting = text("progress.count_waiting", count=pending, words=waiting)
        outcomes = "; ".join(counts) or text("progress.no_outcome")
        return text(
            "progress.sentence", at=at(time.time()), done=tally.done, rows=self._rows, outcomes=outcomes,
            waiting=waiting, by=self._bound(),
        )  # fmt: skip

    def picture(self) -> progress.Progress:
        """Return the progress as bars with their counts; those of usual outcomes are there before they occur."""
        tally = self._tally
        of = text("progress.of", count=self._rows, time=duration(time.monotonic() - self._began))
        rows = [(text("progress.done"), tally.done, of + self._bound())]
        for each in LABELS:
            if tally.counts[each] or each in _COLOURS:
                name = f"[{_COLOURS.get(each, 'blue')}]{label(each)}[/]"
                rows.append((name, tally.counts[each], "   ".join(sums(tally.totals(each)))))
        rows.append((text("progress.waiting"), *self._waiting()))
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        picture = progress.Progress(
            progress.TextColumn("{task.description}", table_column=Column(min_width=10, no_wrap=True)),
            progress.BarColumn(None, table_column=Column(min_width=8, max_width=24)),
            progress.TextColumn("{task.fields[count]}", justify="right", table_column=Column(min_width=7)),
            progress.TextColumn("{task.fields[words]}", markup=False, table_column=words),
            console=terminal.err, expand=True,
        )  # fmt: skip
        for name, count, said in rows:
            total = max(self._rows, 1)
            picture.add_task(name, total=total, completed=count, count=counted(count), words=said)
        return picture

    def _waiting(self) -> tuple[int, str]:
        """Return the number of pending sales, and a sentence about the customers and rows that the run waits for."""
        counts, left = self.unfinished()
        pending = counts.pop(State.PENDING)
        parts = [text("progress.customer", time=duration(left[0]))] if left else []
        parts += [text(f"progress.{name}", count=count) for name, count in counts.items() if count]
        return pending, "; ".join(parts) or text("progress.nobody")

    def _bound(self) -> str:
        """Return when the run is over at the latest, or why it sends no more, in words."""
        if self.results is not None and self.results.stopped is not None:
            return f"; {reason(self.results.stopped)}"
        if self.ends_by is None:
            return ""
        is_late = self.ends_by < time.time()
        return text("progress.late") if is_late else text("progress.by", time=at(self.ends_by))

    def _emit(self, event: str, **facts: object) -> None:
        if self._look == "json":
            terminal.print_line(json.dumps({"event": event, "at": iso(time.time()), **facts}))


# --- At the end


def outcome_table(tally: Tally) -> Table:
    """Return a table of the outcomes: rows and money of each."""
    table = terminal.simple_table("outcome", "paid", numbers=("charges", "total"))
    for each in LABELS:
        if count := tally.counts[each]:
            words = Text(label(each), _COLOURS.get(each, "bold magenta"))
            table.add_row(words, label(paid_word(each)), counted(count), "\n".join(sums(tally.totals(each))))
    if total := tally.counts.total():
        table.add_section()
        table.add_row(label("all"), "", counted(total), "\n".join(sums(tally.totals())))
    return table


def _say_reasons(lines: Iterable[Line]) -> None:
    """Print why rows were not sent, or will be sent again, the commonest reasons first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.message and (line.passes or not line.state):
            words = sanitize_text(line.message).removeprefix(f"{NOT_SENT_YET}: ")
            reasons.setdefault((line.label, words), []).append(line.client_transaction_id)
    for (each, words), keys in sorted(reasons.items(), key=lambda found: -len(found[1]))[:REASONS]:
        named = f" ({terminal.listed(keys)})" if each == OTHER_CONTENT else ""
        terminal.say(f"{counted(len(keys), each)}{named}: {reason(words)}")


def next_steps(tally: Tally, location: str, code: int, window: float) -> Iterator[str]:
    """Yield a line for each thing that a person should do after a run, with its command, the first one first.

    `location`: the ledger's address, which commands leave out where a variable gives it. `window`: seconds that a
    customer has.
    """
    counts, again = tally.counts, terminal.again()
    origin = origins.get().get("ledger", ("", "PAYCLIENT_LEDGER"))[1]
    at_ledger = "" if origin.startswith("PAYCLIENT") else f" --ledger {shlex.quote(location)}"
    open_labels = (NOT_SENT_YET, State.SENDING, State.PENDING, State.REVERSING, PURCHASE_OPEN)
    unfinished = sum(counts[each] for each in open_labels) + tally.passing
    retry = again if "--retry" in again else f"{again} --retry refused"
    undecided = counts[State.UNKNOWN] + counts[State.EXPIRED]
    run_again = {130: ("run.go_on", 1), 5: ("todo.report", 1)}.get(code, ("todo.again", unfinished))
    for key, count, command in (
        (*run_again, again),
        ("todo.resolve", undecided, f"payclient ledger list --unresolved{at_ledger}"),
        ("todo.other", counts[OTHER_CONTENT], f"payclient ledger show ID{at_ledger}"),
        ("todo.refused", counts[State.REFUSED] - tally.passing, retry),
        (
            "todo.cancelled",
            counts[State.CANCELLED],
            f"payclient charge NEW_FILE --report NEW_REPORT{at_ledger}",
        ),
    ):
        if count:
            yield text(key, count=count, command=command, time=duration(window))
