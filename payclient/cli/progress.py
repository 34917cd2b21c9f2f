"""How a run is doing: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from payclient.batch import Charges
from payclient.cli import terminal
from payclient.cli.lines import NEVER_SENT, Tally
from payclient.lifecycle import State

__all__: list[str] = []

#: Seconds between two plain lines.
PLAIN_EVERY = 5.0

_COLOURS = {
    State.ACCEPTED: "green",
    State.CANCELLED: "yellow",
    State.REFUSED: "yellow",
    State.EXPIRED: "magenta",
    State.UNKNOWN: "bold magenta",
    NEVER_SENT: "bold magenta",
}


class Progress:
    """Shows a tally that somebody else fills; opened by `async with`."""

    def __init__(self, tally: Tally, total: int, under_way: Sized) -> None:
        self._tally = tally
        self._total = total
        self._under_way = under_way
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None
        self.results: Charges | None = None

    async def __aenter__(self) -> Self:
        if terminal.err.is_terminal:
            self._live = Live(
                console=terminal.err, get_renderable=self._picture, refresh_per_second=10, transient=True
            )
            self._live.start()
        else:
            self._task = asyncio.create_task(self._plain())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._task is not None:
            self._task.cancel()

    async def _plain(self) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY)
            terminal.say(self.sentence())

    @property
    def pending(self) -> int:
        """Sales that wait for a customer."""
        return 0 if self.results is None else self.results.pending

    def sentence(self) -> str:
        """The tally in one line."""
        counts = ", ".join(f"{count} {label}" for label, count in self._tally.counts.most_common())
        return f"{self._tally.done:,} of {self._total:,} done: {counts or 'none yet'}; {self._waiting()}"

    def _waiting(self) -> str:
        # Under way are also those that queue for a connection, or whose last word is awaited.
        others = max(len(self._under_way) - self.pending, 0)
        return f"{self.pending:,} wait for a customer, {others:,} others under way"

    def _picture(self) -> Table:
        tally = self._tally
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(self._total, 1), completed=tally.done, width=40, complete_style="green"),
            f"{tally.done:,} of {self._total:,}",
            Text(self._waiting(), style="dim"),
        )
        states = Text(overflow="ellipsis", no_wrap=True)
        for label, colour in _COLOURS.items():
            if (count := tally.counts[label]) or label not in (State.UNKNOWN, NEVER_SENT):
                states.append(f"{label} ", style="dim").append(
                    f"{count:<6,}", style=colour if count else "dim"
                )
        picture = Table.grid()
        picture.add_row(bar)
        picture.add_row(states)
        return picture
