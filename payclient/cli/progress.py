"""How a run is doing: a live picture on a terminal, a plain line now and then elsewhere, JSON for machines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Literal, Self

from rich.live import Live

from payclient.batch import Charges
from payclient.cli import terminal
from payclient.cli.report_lines import Line, Tally, iso
from payclient.cli.tables import outcome_table, run_picture
from payclient.cli.unfinished import Unfinished, Workload, unfinished
from payclient.tracker import Tracker

__all__: list[str] = []

#: What a run shows of itself. "auto": live on a terminal, plain lines elsewhere.
Look = Literal["auto", "quiet", "json"]

#: Seconds between two plain lines, in the first minute and later.
PLAIN_EVERY, PLAIN_LATER = 5.0, 30.0

#: Seconds between two pictures, and between two JSON events of progress.
LIVE_EVERY, JSON_EVERY = 0.25, 1.0


class Progress:
    """Shows a tally that somebody else fills, and nothing by itself; opened by `async with`."""

    def __init__(self, tally: Tally, work: Workload, under_way: Collection[str]) -> None:
        self._tally = tally
        self._work = work
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
        """Until it is cancelled."""

    def row(self, line: Line) -> None:
        """A row has its line."""

    def note(self, event: str, text: str, **facts: object) -> None:
        """Something to know at once; people are told on stderr."""
        terminal.say(text)

    def end(self, code: int, **files: object) -> None:
        """The run is over."""

    @property
    def stopped(self) -> str | None:
        """Why nothing more is sent; None while it is."""
        return None if self.results is None else self.results.stopped

    @property
    def elapsed(self) -> float:
        """Seconds since it was opened."""
        return time.monotonic() - self._began

    def unfinished(self) -> Unfinished:
        """What is open now."""
        if self.tracker is None:
            return Unfinished()
        return unfinished(
            self.tracker.open_sales(),
            self._under_way,
            done=self._tally.done,
            work=self._work,
            profile=self.tracker.profile,
            clock=self.tracker.clock,
            stopped=self.stopped is not None,
        )


class PlainProgress(Progress):
    """A line now and then, and a table at the end."""

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY if self.elapsed < 60 else PLAIN_LATER)
            terminal.say(self.sentence())

    def sentence(self) -> str:
        """All of it in one line."""
        now, tally = self.unfinished(), self._tally
        counts = []
        for label, count in tally.counts.most_common():
            money = ", ".join(terminal.money(cents, name) for name, cents in tally.totals(label).items())
            counts.append(f"{count:,} {label} ({money})")
        parts = [
            f"{terminal.at(time.time())}  {tally.done:,} of {self._work.rows:,} done",
            "; ".join(counts) or "no outcome yet",
            f"{now.pending:,} wait for a customer",
        ]
        if now.next_left is not None:
            parts[-1] += f" (the next expires in {terminal.duration(now.next_left)})"
        if now.expired:
            parts.append(f"{now.expired:,} expired, their last word awaited")
        if now.unknown:
            parts.append(f"{now.unknown:,} unknown, being looked up")
        if now.queued:
            parts.append(f"{now.queued:,} queue")
        if now.latest_end is not None:
            parts.append(f"over by {terminal.at(now.latest_end)}")
        return "; ".join(parts)

    def end(self, code: int, **files: object) -> None:
        terminal.out().print(outcome_table(self._tally))


class LiveProgress(PlainProgress):
    """A picture that stays in its place, and a table at the end."""

    async def _show(self) -> None:
        # Drawn from this loop and not by rich's own thread: the tally changes under nobody's eyes.
        with Live(
            self._picture(), console=terminal.err, auto_refresh=False, transient=True, redirect_stdout=False
        ) as live:
            while True:
                live.update(self._picture(), refresh=True)
                await asyncio.sleep(LIVE_EVERY)

    def _picture(self) -> Any:
        return run_picture(
            self._tally,
            self.unfinished(),
            total=self._work.rows,
            elapsed=self.elapsed,
            stopped=self.stopped,
            width=terminal.err.width,
        )


class JsonProgress(Progress):
    """One JSON object a line on stdout: `begin`, `row`, `progress`, `stopping`, `waiting`, `end`. Cents and UTC."""

    def __init__(self, tally: Tally, work: Workload, under_way: Collection[str]) -> None:
        super().__init__(tally, work, under_way)
        self._deaf = False

    async def _show(self) -> None:
        self._emit("begin", rows=self._work.rows)
        while True:
            await asyncio.sleep(JSON_EVERY)
            now = self.unfinished()
            self._emit(
                "progress",
                done=self._tally.done,
                rows=self._work.rows,
                pending=now.pending,
                expired=now.expired,
                unknown=now.unknown,
                queued=now.queued,
                next_expiry_in=None if now.next_left is None else round(now.next_left, 3),
                latest_end=None if now.latest_end is None else iso(now.latest_end),
                outcomes=self._tally.summary(),
            )

    def row(self, line: Line) -> None:
        self._emit("row", **line.cells())

    def note(self, event: str, text: str, **facts: object) -> None:
        super().note(event, text)
        self._emit(event, **facts)

    def end(self, code: int, **files: object) -> None:
        self._emit(
            "end", exit_code=code, done=self._tally.done, rows=self._work.rows,
            outcomes=self._tally.summary(), **files,
        )  # fmt: skip

    def _emit(self, event: str, **facts: object) -> None:
        if self._deaf:
            return
        try:
            print(json.dumps({"event": event, "at": iso(time.time()), **facts}), flush=True)
        except OSError:
            # Whoever read has gone; the charges are no less real, and the ledger and the report hold them.
            self._deaf = True
            terminal.complain("stdout is closed: no more events; the run goes on")


def progress_of(look: Look) -> Callable[[Tally, Workload, Collection[str]], Progress]:
    """What shows a run in this way."""
    if look == "json":
        return JsonProgress
    if look == "quiet":
        return Progress
    return LiveProgress if terminal.err.is_terminal else PlainProgress
