"""One run over rows: `charge_all`, with its report, its progress and its signals.

Ctrl-C once: nothing more is sent, and what is pending is waited for. Twice: the waiting ends too; the same command
goes on later. Thrice: now. SIGTERM and SIGHUP are once, and after 30 s twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar

from payclient.batch import ChargeRow, charge_all
from payclient.cli import terminal
from payclient.cli.page import RELOAD, RunPage
from payclient.cli.progress import Look, Progress, progress_of
from payclient.cli.reach import Reach
from payclient.cli.report import NOT_SENT_YET, OTHER_CONTENT, Line, Report, Tally, line_of
from payclient.cli.settings import ChargeOptions, Limits
from payclient.cli.signals import handled
from payclient.cli.terminal import iso
from payclient.cli.texts import reason, text
from payclient.errors import DifferentRequestError, PayError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.profile import ServiceProfile
from payclient.session import Exchange
from payclient.tracking.attempts import lane_text
from payclient.tracking.outcomes import Outcome, PendingSale
from payclient.tracking.tracker import Tracker

T = TypeVar("T")

#: Seconds from SIGTERM until the waiting ends as well.
TERM_GRACE = 30.0

#: Seconds after which every request that was in flight at an interrupt has its answer.
IN_FLIGHT = 0.5

#: Rows that are looked up in the ledger at once.
CHUNK = 500


class Run:
    """Charges rows, and reads at its begin and its end what the ledger holds of each."""

    def __init__(
        self,
        requests: Sequence[SaleRequest],
        limits: Limits,
        *,
        purchases: Mapping[str, str] = MappingProxyType({}),
        report: Report | None = None,
        look: Look = "auto",
        page: RunPage | None = None,
    ) -> None:
        #: What rows are for, by their client transaction ids.
        self._purchases = purchases
        self._requests = requests
        self._limits = limits
        self._report = report
        self._page = page
        self.tally: Tally = Tally()
        #: What became of each row, by its client transaction id.
        self.lines: dict[str, Line] = {}
        #: Rows without a result of `charge_all`.
        self._under_way = {request.client_transaction_id: request for request in requests}
        self.progress: Progress = progress_of(look)(self.tally, len(requests), self._under_way)
        self._reach = Reach()
        self._charging: asyncio.Task[None] | None = None
        self._signals = 0
        #: Something failed, or the batch stopped by itself, whatever is left to send.
        self._failed = False
        #: False: the report could not be written.
        self.reported: bool = True

    async def charge(self, options: ChargeOptions, profile: ServiceProfile) -> int:
        """Charge the rows and return the exit code. Raises a `PayError` only where nothing was sent."""
        functions = {"SIGINT": self._interrupt, "SIGTERM": self._terminate, "SIGHUP": self._terminate}
        with handled(functions):
            async with options.tracker(profile, self._note) as tracker:
                self.progress.begin(options.location)
                # Refused rows may be tried again, and open ones are added once they are decided.
                async for _, line in self._ledgers_lines(tracker):
                    if line.state and line.state != State.REFUSED and State(line.state).decided:
                        self._count(line)
                # Written by the owner of the ledger, so that no second run spoils the report.
                with nullcontext() if self._report is None else self._report.begin(self.lines.values()):
                    await self._send(tracker)
                    return self._finish()

    def _note(self, exchange: Exchange) -> None:
        now = time.monotonic()
        if (news := self._reach.note(exchange, now)) is not None:
            since = terminal.at(time.time() - (now - self._reach.since))
            self.progress.note(news, text(f"run.{news}", since=since))

    async def _send(self, tracker: Tracker) -> None:
        self.progress.tracker = tracker
        lanes = Counter(
            lane_text(each) for each in self._requests if each.client_transaction_id not in self.lines
        )
        seconds = self._limits.longest(tracker.profile, lanes.total(), max(lanes.values(), default=0))
        self.progress.ends_by = time.time() + seconds
        async with _beside(self.progress.show()), _beside(self._refresh_page()):
            async with _beside(self._charge_all_rows(tracker)) as self._charging:
                await asyncio.wait([self._charging])
            await self._read_ledger(tracker)
        if not self._charging.cancelled():
            self._charging.result()

    async def _charge_all_rows(self, tracker: Tracker) -> None:
        """Charge all rows; count and report each result as it comes. A `PayError` is shown and fails the run."""
        limits = self._limits
        rows = [ChargeRow(request=each, purchase=self._purchase(each)) for each in self._requests]
        if tracker.attempts.are_shared:  # several processes over one file shall seldom meet
            random.shuffle(rows)
        try:
            async with charge_all(
                tracker,
                rows,
                max_in_flight=limits.max_in_flight,
                max_pending=limits.max_pending,
                rate=limits.rate,
                wait=limits.wait,
                retry=() if limits.retry is None else (limits.retry,),
            ) as results:
                self.progress.results = results
                if self._signals:
                    results.stop("interrupted")
                async for result in results:
                    request = self._under_way.pop(result.request_key)
                    self._add(self._line(request, result.outcome, result.error))
                self._failed |= results.stopped is not None and not self._signals
        except PayError as error:
            self._fail(str(error))

    def _purchase(self, request: SaleRequest) -> str | None:
        return self._purchases.get(request.client_transaction_id)

    def _line(self, request: SaleRequest, outcome: Outcome | None, error: Exception | None = None) -> Line:
        return line_of(request, self._purchase(request), outcome, error)

    # --- The ledger's word

    async def _ledgers_lines(self, tracker: Tracker) -> AsyncIterator[tuple[Line | None, Line]]:
        """Yield the line that each row has, and the one that it has by the ledger now."""
        for begin in range(0, len(self._requests), CHUNK):
            chunk = self._requests[begin : begin + CHUNK]
            known = await tracker.attempts.find([request.client_transaction_id for request in chunk])
            for request in chunk:
                key = request.client_transaction_id
                yield self.lines.get(key), self._ledgers_line(tracker, request, known.get(key))

    def _ledgers_line(self, tracker: Tracker, request: SaleRequest, pending: PendingSale | None) -> Line:
        if pending is None:
            return self._line(request, None)
        if tracker.attempts.is_same(request, self._purchase(request), pending):
            return self._line(request, pending.outcome)
        if pending.state is State.REFUSED:
            return self._line(request, None)
        words = f"this id is in the ledger with other content and {pending.state}; nothing was sent"
        return self._line(request, None, DifferentRequestError(words))

    async def _read_ledger(self, tracker: Tracker) -> None:
        """Count what the ledger holds now: of rows without a result, and of rows that changed since theirs.

        The report takes them all at once, when it is finished.
        """
        try:
            async for before, now in self._ledgers_lines(tracker):
                if before is not None and now.label != OTHER_CONTENT:
                    # A refused attempt of an earlier run says nothing new about a row that this run could not send.
                    is_old = now.state == State.REFUSED and not before.state
                    if is_old or now.label in (NOT_SENT_YET, before.label):
                        continue
                self._count(now)
        except PayError as error:
            self._fail(f"the open rows cannot be listed: {error}")
            for request in self._requests:
                if request.client_transaction_id not in self.lines:
                    self._count(self._line(request, None, error))

    # --- What is counted and written

    def _count(self, line: Line) -> Line | None:
        """Count a line and show it, and return the one that the row had before."""
        before = self.lines.get(line.client_transaction_id)
        if before == line:
            return before
        if before is not None:
            self.tally.add(before, -1)
        self.lines[line.client_transaction_id] = line
        self.tally.add(line)
        self.progress.row(line)
        return before

    def _add(self, line: Line) -> None:
        """Count a line and write it into the report."""
        before = self._count(line)
        if self._report is not None and before is None:
            self._write_report(self._report.write, line)
        elif self._report is not None and before != line:
            self._write_report(self._report.rewrite, self.lines.values())

    def _write_report(self, write: Callable[[T], None], lines: T) -> None:
        try:
            write(lines)
        except OSError as error:
            self._report, self.reported = None, False
            self._fail(text("run.no_report", why=reason(error.strerror or "")))

    def _fail(self, why: str) -> None:
        self._failed = True
        terminal.complain(reason(why))
        if self.progress.results is not None:
            self.progress.results.stop(why)

    def _finish(self) -> int:
        """Put the report into the order of the rows, write the page, and return the exit code.

        5: the report was not written; else 130: interrupted, with rows whose end is unknown; else 4: it failed, or it
        stopped by itself; else what the rows say.
        """
        if self._report is not None:
            keys = (request.client_transaction_id for request in self._requests)
            self._write_report(self._report.rewrite, [self.lines[key] for key in keys if key in self.lines])
        code = self.tally.exit_code
        if not self.reported:
            code = 5
        elif self._signals and code == 4:
            code = 130
        elif self._failed:
            code = 4
        self._write_page(code)
        return code

    def _write_page(self, code: int | None) -> None:
        if self._page is None:
            return
        try:
            self._page.write(self.lines.values(), self.tally, total=len(self._requests), code=code)
        except OSError as error:
            # A copy of what the ledger holds: it stops nothing, and the same command writes it again.
            terminal.complain(text("run.no_page", why=reason(error.strerror or "")))
            self._page = None

    async def _refresh_page(self) -> None:
        while self._page is not None:
            self._write_page(None)
            await asyncio.sleep(RELOAD)

    # --- Signals

    def _interrupt(self) -> None:
        """Stop sending at the first signal, stop waiting at the second, and end the process at the third."""
        self._signals += 1
        if self._signals == 1:
            if self.progress.results is not None:
                self.progress.results.stop("interrupted")
            self.progress.note("stopping", text("run.interrupted"))
            asyncio.get_running_loop().call_later(IN_FLIGHT, self._say_until_when)
        elif self._signals == 2:
            self.progress.note("leaving", text("run.leaving"))
            if self._charging is not None:
                self._charging.cancel()
        else:
            # The ledger and the report hold all that is known.
            os._exit(130)

    def _terminate(self) -> None:
        if self._signals == 0:
            self._interrupt()
        asyncio.get_running_loop().call_later(TERM_GRACE, self._give_up)

    def _give_up(self) -> None:
        if self._signals == 1:
            self._interrupt()

    def _say_until_when(self) -> None:
        now, tracker = self.progress.unfinished(), self.progress.tracker
        if tracker is not None and now.expires_at is not None:
            left = terminal.duration(now.expires_at - tracker.clock.time())
            words = text("run.until", count=now.pending, at=terminal.at(now.expires_at), left=left)
            self.progress.note("waiting", words, pending=now.pending, until=iso(now.expires_at))


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something while this lasts."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
