"""The progress of a run (live on a terminal, plain lines elsewhere, JSON for machines), and the words at its end."""

import asyncio
import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

import attrs
from rich import progress
from rich.table import Column, Table
from rich.text import Text

from payclient.batch import Charges
from payclient.cli import terminal
from payclient.cli.configuration import origins
from payclient.cli.report import LABELS, NOT_SENT_YET, OTHER_CONTENT, PURCHASE_OPEN, Line, Tally, paid_word
from payclient.cli.terminal import at, duration, iso, money
from payclient.cli.texts import counted, label, reason, text
from payclient.events import sanitize_text
from payclient.lifecycle import State
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.tracker import Tracker

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


@attrs.frozen(kw_only=True)
class Unfinished:
    """The rows of a run that have no result yet, counted. Times are UTC seconds since the epoch."""

    #: Sales that a customer can still approve.
    pending: int = 0
    #: Sales past their time, whose last queries are due.
    expired: int = 0
    #: Sales that may exist or not.
    unknown: int = 0
    #: The other rows: they queue, or are being sent.
    queued: int = 0
    #: Seconds until the first pending sale expires, and when the last one expires.
    next_left: float | None = None
    expires_at: float | None = None

    def words(self) -> str:
        """Return a sentence about the customers and rows that the run waits for."""
        parts = [] if self.next_left is None else [text("progress.customer", time=duration(self.next_left))]
        counts = {name: getattr(self, name) for name in ("expired", "unknown", "queued")}
        parts += [text(f"progress.{name}", count=count) for name, count in counts.items() if count]
        return "; ".join(parts) or text("progress.nobody")


def unfinished(sales: Iterable[PendingSale], under_way: Collection[str], now: float) -> Unfinished:
    """Count what is open of a run among a tracker's open sales. `under_way`: the ids of its rows without a result."""
    found = [(sale.state, sale.expires_at) for sale in sales if sale.client_transaction_id in under_way]
    counts = Counter(state for state, _ in found)
    ends = sorted(end for state, end in found if state is State.PENDING and end is not None)
    opened = counts[State.PENDING] + counts[State.EXPIRED] + counts[State.UNKNOWN]
    return Unfinished(
        pending=counts[State.PENDING],
        expired=counts[State.EXPIRED],
        unknown=counts[State.UNKNOWN],
        queued=max(len(under_way) - opened, 0),
        next_left=max(ends[0] - now, 0.0) if ends else None,
        expires_at=ends[-1] if ends else None,
    )


class Progress:
    """The progress of a run whose tally others fill. This class shows notes only; its subclasses show all."""

    def __init__(self, tally: Tally, rows: int, under_way: Collection[str]) -> None:
        self._tally, self._rows, self._under_way = tally, rows, under_way
        self._began = time.monotonic()
        #: When the run is over at the latest, by `time.time()`; None: not known yet.
        self.ends_by: float | None = None
        self.tracker: Tracker | None = None
        self.results: Charges | None = None

    def begin(self, location: str) -> None:
        """Show where the ledger is, in which people can look at the run meanwhile."""

    async def show(self) -> None:
        """Show the progress, until cancelled."""

    def row(self, line: Line) -> None:
        """Show a row's line."""

    def note(self, event: str, text: str, **facts: object) -> None:
        """Show an event at once; people read its text on stderr."""
        terminal.say(text)

    def end(self, code: int, **files: object) -> None:
        """Show that the run is over."""

    def bound(self) -> str:
        """Return when the run is over at the latest, or why it sends no more, in words."""
        if self.results is not None and self.results.stopped is not None:
            return f"; {reason(self.results.stopped)}"
        if self.ends_by is None:
            return ""
        is_late = self.ends_by < time.time()
        return text("progress.late") if is_late else text("progress.by", time=at(self.ends_by))

    def unfinished(self) -> Unfinished:
        """Return what is open now."""
        if self.tracker is None:
            return Unfinished()
        return unfinished(self.tracker.open_sales(), self._under_way, self.tracker.clock.time())


class PlainProgress(Progress):
    """A line every `PLAIN_EVERY` seconds, and a table at the end."""

    def begin(self, location: str) -> None:
        if not location.startswith("memory:"):
            terminal.say(text("run.look", ledger=shlex.quote(location)), whole=True)

    async def show(self) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY)
            terminal.say(self.sentence())

    def sentence(self) -> str:
        """Return the progress in one line."""
        now, tally = self.unfinished(), self._tally
        counts = [
            f"{counted(count, each)} ({', '.join(money(c, name) for name, c in tally.totals(each).items())})"
            for each, count in tally.counts.most_common()
            if count
        ]
        waiting = now.words()
        if now.pending:
            waiting = text("progress.count_waiting", count=now.pending, words=waiting)
        outcomes = "; ".join(counts) or text("progress.no_outcome")
        return text(
            "progress.sentence", at=at(time.time()), done=tally.done, rows=self._rows, outcomes=outcomes,
            waiting=waiting, by=self.bound(),
        )  # fmt: skip

    def end(self, code: int, **files: object) -> None:
        terminal.out().print(outcome_table(self._tally))


class LiveProgress(PlainProgress):
    """A picture that is redrawn in its place, and a table at the end."""

    async def show(self) -> None:
        with self.picture() as picture:
            while True:
                self.update(picture)
                await asyncio.sleep(LIVE_EVERY)

    def picture(self) -> progress.Progress:
        """Return a bar for each outcome, which only `update` draws."""
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        return progress.Progress(
            progress.TextColumn("{task.description}", table_column=Column(min_width=10, no_wrap=True)),
            progress.BarColumn(None, table_column=Column(min_width=8, max_width=24)),
            progress.TextColumn("{task.fields[count]}", justify="right", table_column=Column(min_width=7)),
            progress.TextColumn("{task.fields[words]}", markup=False, table_column=words),
            console=terminal.err, auto_refresh=False, expand=True, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip

    def update(self, picture: progress.Progress) -> None:
        """Draw the current counts."""
        tally, now = self._tally, self.unfinished()
        of = text("progress.of", count=self._rows, time=duration(time.monotonic() - self._began))
        rows = [(text("progress.done"), tally.done, of + self.bound())]
        for each in LABELS:
            if tally.counts[each] or each in _COLOURS:
                sums = "   ".join(money(cents, currency) for currency, cents in tally.totals(each).items())
                rows.append((f"[{_COLOURS.get(each, 'blue')}]{label(each)}[/]", tally.counts[each], sums))
        rows.append((text("progress.waiting"), now.pending, now.words()))
        tasks = {task.description: task.id for task in picture.tasks}
        for name, count, words in rows:
            if name not in tasks:
                tasks[name] = picture.add_task(name, total=max(self._rows, 1), count="", words="")
            picture.update(tasks[name], completed=count, count=counted(count), words=words)
        picture.refresh()


class JsonProgress(Progress):
    """One JSON object a line on stdout: `begin`, `row`, `progress`, `stopping`, `waiting`, `unreachable`, `reachable`,
    `end`. Cents and UTC.
    """

    def begin(self, location: str) -> None:
        self._emit("begin", rows=self._rows)

    async def show(self) -> None:
        while True:
            await asyncio.sleep(JSON_EVERY)
            now = self.unfinished()
            self._emit(
                "progress",
                done=self._tally.done,
                rows=self._rows,
                **{name: getattr(now, name) for name in ("pending", "expired", "unknown", "queued")},
                ends_by=iso(self.ends_by),
                next_expiry_in=None if now.next_left is None else round(now.next_left, 3),
                outcomes=self._tally.summary(),
            )

    def row(self, line: Line) -> None:
        self._emit("row", **line.cells())

    def note(self, event: str, text: str, **facts: object) -> None:
        super().note(event, text)
        self._emit(event, **facts)

    def end(self, code: int, **files: object) -> None:
        outcomes = self._tally.summary()
        self._emit("end", exit_code=code, done=self._tally.done, rows=self._rows, outcomes=outcomes, **files)

    def _emit(self, event: str, **facts: object) -> None:
        terminal.plain(json.dumps({"event": event, "at": iso(time.time()), **facts}))


def progress_of(look: Look) -> Callable[[Tally, int, Collection[str]], Progress]:
    """Return the class of `Progress` for this look."""
    auto = LiveProgress if terminal.err.is_terminal else PlainProgress
    return JsonProgress if look == "json" else Progress if look == "quiet" else auto


# --- At the end


def outcome_table(tally: Tally) -> Table:
    """Return a table of the outcomes: rows and money of each."""

    def lines(each: str | None = None) -> str:
        return "\n".join(money(cents, currency) for currency, cents in tally.totals(each).items())

    names = [text(f"progress.{name}") for name in ("outcome", "paid")]
    table = terminal.simple_table(*names, numbers=(text("plan.charges"), text("plan.total")))
    for each in LABELS:
        if count := tally.counts[each]:
            words = Text(label(each), _COLOURS.get(each, "bold magenta"))
            table.add_row(words, label(paid_word(each)), counted(count), lines(each))
    if total := tally.counts.total():
        table.add_section()
        table.add_row(label("all"), "", counted(total), lines())
    return table


def say_reasons(lines: Iterable[Line]) -> None:
    """Print why rows were not sent, the commonest reasons first."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.message and not line.state:
            words = sanitize_text(line.message).removeprefix(f"{NOT_SENT_YET}: ")
            reasons.setdefault((line.label, words), []).append(line.client_transaction_id)
    for (each, words), keys in sorted(reasons.items(), key=lambda found: -len(found[1]))[:REASONS]:
        named = text("run.which", keys=terminal.listed(keys)) if each == OTHER_CONTENT else ""
        terminal.say(f"{counted(len(keys), each)}{named}: {reason(words)}")


def next_steps(tally: Tally, location: str, code: int, window: float) -> Iterator[str]:
    """Yield a line for each thing that a person should do after a run, with its command, the first one first.

    `location`: the ledger's address. `window`: seconds that a customer has.
    """
    counts, again = tally.counts, terminal.again()
    origin = origins.get().get("ledger", ("", "PAYCLIENT_LEDGER"))[1]
    at_ledger = "" if origin.startswith("PAYCLIENT") else f" --ledger {shlex.quote(location)}"
    unfinished = sum(counts[each] for each in (NOT_SENT_YET, State.SENDING, State.PENDING, PURCHASE_OPEN))
    if code == 130:
        yield text("run.go_on", command=again)
    elif code == 5:
        yield text("todo.report", command=again)
    elif unfinished:
        yield text("todo.again", count=unfinished, command=again)
    retry = again if "--retry" in again else f"{again} --retry refused"
    undecided = counts[State.UNKNOWN] + counts[State.EXPIRED]
    for name, count, command in (
        ("resolve", undecided, f"payclient ledger list --unresolved{at_ledger}"),
        ("other", counts[OTHER_CONTENT], f"payclient ledger show ID{at_ledger}"),
        ("refused", counts[State.REFUSED], retry),
        ("cancelled", counts[State.CANCELLED], f"payclient charge NEW_FILE --report NEW_REPORT{at_ledger}"),
    ):
        if count:
            yield text(f"todo.{name}", count=count, command=command, time=duration(window))
