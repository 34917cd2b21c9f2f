"""How a run is doing: live on a terminal, a plain line now and then elsewhere, JSON for machines."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Literal, Self

import attrs
from rich import progress
from rich.table import Column

from payclient.batch import Charges
from payclient.cli import terminal
from payclient.cli.lines import LABELS, Line, Tally
from payclient.cli.summary import COLOURS, outcome_table
from payclient.cli.terminal import at, duration, iso, money
from payclient.lifecycle import State
from payclient.pending import PendingSale
from payclient.tracker import Tracker

__all__: list[str] = []

#: What a run shows of itself. "auto": live on a terminal, plain lines elsewhere.
Look = Literal["auto", "quiet", "json"]

#: Seconds between two plain lines, in the first minute and later.
PLAIN_EVERY, PLAIN_LATER = 5.0, 30.0

#: Seconds between two pictures, and between two JSON events of progress.
LIVE_EVERY, JSON_EVERY = 0.25, 1.0

#: Always in the live picture, whatever their count; the others only where they are.
_SHOWN = (State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED, State.UNKNOWN)


@attrs.frozen(kw_only=True)
class Limits:
    """How a run is paced; see `charge_all`."""

    max_in_flight: int = 50
    max_pending: int = 1000
    rate: float | None = None
    wait: float | None = None
    retry: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Unfinished:
    """What is open of a run. Times are UTC seconds since the epoch."""

    #: Sales that a customer can still approve, and those past their time, whose last queries are due.
    pending: int = 0
    expired: int = 0
    #: Sales that may exist or not.
    unknown: int = 0
    #: Rows read that are none of these: they queue, or are on their way.
    queued: int = 0
    #: Seconds left of the pending sale that expires first, and when the last one expires.
    next_left: float | None = None
    expires_at: float | None = None

    def words(self) -> str:
        """Return what is waited for."""
        left = (
            ""
            if self.next_left is None
            else f"for a customer; the next expires in {duration(self.next_left)}"
        )
        expired = f"{self.expired:,} expired, last word awaited" if self.expired else ""
        unknown = f"{self.unknown:,} unknown, looked up" if self.unknown else ""
        queued = f"{self.queued:,} queue" if self.queued else ""
        return "; ".join(filter(None, (left, expired, unknown, queued))) or "no customer pending"


def unfinished(sales: Iterable[PendingSale], under_way: Collection[str], now: float) -> Unfinished:
    """Return what is open of a run, by the tracker's open sales; those of other runs are passed over."""
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
    """Shows a tally that somebody else fills, and nothing by itself; opened by `async with`."""

    def __init__(self, tally: Tally, rows: int, under_way: Collection[str]) -> None:
        self._tally = tally
        self._rows = rows
        self._under_way = under_way
        self._task: asyncio.Task[None] | None = None
        self._began = time.monotonic()
        self.tracker: Tracker | None = None
        self.results: Charges | None = None

    async def __aenter__(self) -> Self:
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._show())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _show(self) -> None:
        """Show, until it is cancelled."""

    def row(self, line: Line) -> None:
        """Show a row's line."""

    def note(self, event: str, text: str, **facts: object) -> None:
        """Show something to know at once; people are told on stderr."""
        terminal.say(text)

    def end(self, code: int, **files: object) -> None:
        """Show that the run is over."""

    @property
    def stopped(self) -> str | None:
        """Why nothing more is sent; None while it is."""
        return None if self.results is None else self.results.stopped

    @property
    def elapsed(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._began

    def unfinished(self) -> Unfinished:
        """Return what is open now."""
        if self.tracker is None:
            return Unfinished()
        return unfinished(self.tracker.open_sales(), self._under_way, self.tracker.clock.time())


class PlainProgress(Progress):
    """A line now and then, and a table at the end."""

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY if self.elapsed < 60 else PLAIN_LATER)
            terminal.say(self.sentence())

    def sentence(self) -> str:
        """Return all of it in one line."""
        now, tally = self.unfinished(), self._tally
        counts = [
            f"{count:,} {label} ({', '.join(money(cents, name) for name, cents in tally.totals(label).items())})"
            for label, count in tally.counts.most_common()
            if count
        ]
        waiting = f"{now.pending:,} waiting: {now.words()}" if now.pending else now.words()
        outcomes = "; ".join(counts) or "no outcome yet"
        return f"{at(time.time())}  {tally.done:,} of {self._rows:,} done; {outcomes}; {waiting}"

    def end(self, code: int, **files: object) -> None:
        terminal.out().print(outcome_table(self._tally))


class LiveProgress(PlainProgress):
    """A picture that stays in its place, and a table at the end."""

    async def _show(self) -> None:
        picture = self.picture()
        with picture:
            while True:
                self.update(picture)
                await asyncio.sleep(LIVE_EVERY)

    def picture(self) -> progress.Progress:
        """Return bars, one for each outcome. They are drawn from this loop: the tally changes under nobody's eyes."""
        return progress.Progress(
            progress.TextColumn("{task.description}", table_column=Column(min_width=10, no_wrap=True)),
            progress.BarColumn(None, table_column=Column(min_width=8, max_width=24)),
            progress.TextColumn("{task.fields[count]}", justify="right", table_column=Column(min_width=7)),
            progress.TextColumn(
                "{task.fields[words]}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=terminal.err,
            auto_refresh=False,
            expand=True,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def update(self, picture: progress.Progress) -> None:
        """Show the state of this moment."""
        tally, now = self._tally, self.unfinished()
        ids = {task.description: task.id for task in picture.tasks}
        words = f"of {self._rows:,}; running {duration(self.elapsed)}"
        rows: list[tuple[str, int, str]] = [("done", tally.done, words)]
        for label in LABELS:
            if tally.counts[label] or label in _SHOWN:
                sums = "   ".join(money(cents, currency) for currency, cents in tally.totals(label).items())
                rows.append((f"[{COLOURS.get(label, 'blue')}]{label}[/]", tally.counts[label], sums))
        rows.append(("waiting", now.pending, now.words()))
        if self.stopped is not None:
            rows.append(("stopping", 0, self.stopped))
        for name, count, text in rows:
            shown = {"completed": count, "count": f"{count:,}" if name != "stopping" else "", "words": text}
            if name in ids:
                picture.update(ids[name], **shown)  # type: ignore[arg-type]  # by name
            else:
                picture.add_task(name, total=max(self._rows, 1), **shown)  # type: ignore[arg-type]  # by name
        picture.refresh()


class JsonProgress(Progress):
    """One JSON object a line on stdout: `begin`, `row`, `progress`, `stopping`, `waiting`, `end`. Cents and UTC."""

    _deaf = False

    async def _show(self) -> None:
        self._emit("begin", rows=self._rows)
        while True:
            await asyncio.sleep(JSON_EVERY)
            now = self.unfinished()
            self._emit(
                "progress",
                done=self._tally.done,
                rows=self._rows,
                **{name: getattr(now, name) for name in ("pending", "expired", "unknown", "queued")},
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
        if self._deaf:
            return
        try:
            sys.stdout.write(json.dumps({"event": event, "at": iso(time.time()), **facts}) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError):
            # The reader has gone; the charges are no less real, and the ledger and the report hold them.
            self._deaf = True
            terminal.complain("stdout is closed: no more events; the run goes on")


def progress_of(look: Look) -> Callable[[Tally, int, Collection[str]], Progress]:
    """Return the class that shows a run in this way."""
    auto = LiveProgress if terminal.err.is_terminal else PlainProgress
    return JsonProgress if look == "json" else Progress if look == "quiet" else auto
