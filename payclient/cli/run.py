"""One run over rows: `charge_all`, with its report, its progress and its signals.

The first Ctrl-C stops the sending; the run still waits for what is pending. The second stops the waiting; the same
command goes on later. The third ends the process at once. SIGTERM and SIGHUP are a first Ctrl-C, and a second one 30 s
later.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, TypeVar

import attrs

from payclient.batch import ChargeRow, charge_all
from payclient.batch.lanes import CHUNK, may_send
from payclient.cli import terminal
from payclient.cli.page import RELOAD, RunPage
from payclient.cli.progress import Look, Progress
from payclient.cli.report import (
    NOT_SENT_YET,
    OTHER_CONTENT,
    PURCHASE_OPEN,
    Line,
    Report,
    Tally,
    ledger_line,
    line_of,
)
from payclient.cli.settings import ChargeOptions, Limits, location_of
from payclient.cli.signals import handled
from payclient.cli.terminal import iso
from payclient.cli.texts import reason, text
from payclient.clock import cancel_all
from payclient.errors import AlreadyPaidError, PayError
from payclient.lifecycle import State
from payclient.session import Exchange
from payclient.tracking.attempts import lane_text
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.tracker import Tracker

T = TypeVar("T")

#: Seconds from SIGTERM until the waiting ends as well.
TERM_GRACE = 30.0

#: Seconds from an interrupt to the count of pending customers; requests in flight are answered meanwhile.
IN_FLIGHT = 0.5

#: The service counts as away where a request ends without an answer this many seconds after the first of them.
AWAY_SECONDS = 10.0

#: Errors of the network. Any other error without an answer is of this machine, such as the ledger's.
_OF_THE_NETWORK = frozenset({"TransportError", "NotSentError", "OutcomeUnknownError"})


class Reach:
    """The watch over whether the service answers: notes once that it has gone, and once that it is back."""

    def __init__(self) -> None:
        self._is_answered, self._is_away = True, False
        #: When the first request without an answer ended, by the caller's clock.
        self.since: float = 0.0

    def note(self, exchange: Exchange, now: float) -> Literal["unreachable", "reachable"] | None:
        """Note a request that ended, and return a change that people should know of. A 5xx is an answer, too."""
        was_away = self._is_away
        if exchange.http_status is not None:
            self._is_answered, self._is_away = True, False
        elif exchange.error in _OF_THE_NETWORK:
            self.since = now if self._is_answered else self.since
            self._is_answered, self._is_away = False, now - self.since >= AWAY_SECONDS
        if self._is_away == was_away:
            return None
        return "unreachable" if self._is_away else "reachable"


class Run:
    """One run over rows. It reads the ledger before and after: another run may have charged, or changed, a row."""

    def __init__(
        self,
        rows: Sequence[ChargeRow],
        limits: Limits,
        *,
        report: Report | None = None,
        look: Look = "auto",
        page: RunPage | None = None,
    ) -> None:
        self._rows, self._limits, self._report, self._page = rows, limits, report, page
        self.tally: Tally = Tally()
        #: The current line of each row, by its client transaction id.
        self.lines: dict[str, Line] = {}
        #: Rows of which `charge_all` has not returned a result.
        self._without_result = {row.request.client_transaction_id: row for row in rows}
        self.progress: Progress = Progress(self.tally, len(rows), self._without_result, look)
        self._reach, self._signals = Reach(), 0
        self._charging: asyncio.Task[None] | None = None
        #: The exit code of what went wrong: 4, or 5 where the report could not be written.
        self._fault = 0
        #: Whether the batch stopped the sending by itself.
        self._ended_early = False

    async def charge(self, options: ChargeOptions, *, create: bool | None = None) -> int:
        """Charge the rows and return the exit code. Raises a `PayError` only where nothing was sent.

        `create` is whether a missing ledger is made; None: as the options say.
        """
        with handled(self._interrupt, self._terminate):
            async with options.tracker(self._note, create=create) as tracker:
                self.progress.begin(location_of(options.ledger))
                # Only decided rows are counted now. Refused ones may be tried again.
                async for line in self._ledger_lines(tracker):
                    if line.paid is not None and line.state != State.REFUSED:
                        self._count(line)
                # The report is replaced once this run owns the ledger, so that no second run spoils it.
                if self._report is not None:
                    self._report.begin(self.lines.values())
                await self._send(tracker)
                return self._finish()

    def end(self, code: int) -> None:
        """Show that the run is over: its outcomes, and the files that were written, by their options."""
        written = {"report": self._report, "html": self._page}
        files = {name: str(each.path) for name, each in written.items() if each is not None}
        self.progress.end(code, self.lines.values(), files)

    def _note(self, exchange: Exchange) -> None:
        now = time.monotonic()
        if (news := self._reach.note(exchange, now)) is not None:
            since = terminal.at(time.time() - (now - self._reach.since))
            self.progress.note(news, text(f"run.{news}", since=since))

    async def _send(self, tracker: Tracker) -> None:
        self.progress.tracker = tracker
        left = (row.request for row in self._rows if row.request.client_transaction_id not in self.lines)
        lanes = Counter(map(lane_text, left))
        seconds = self._limits.longest(tracker.profile, lanes.total(), max(lanes.values(), default=0))
        self.progress.ends_by = time.time() + seconds
        work = self._charge_all_rows(tracker), self.progress.show(), self._refresh_page()
        tasks = [asyncio.create_task(each) for each in work]
        self._charging = tasks[0]
        if self._signals > 1:  # they came while the ledger was opened and read
            self._charging.cancel()
        try:
            await asyncio.wait([self._charging])
            await self._reread_ledger(tracker)
        finally:
            await cancel_all(tasks)
        if not self._charging.cancelled():
            self._charging.result()

    async def _charge_all_rows(self, tracker: Tracker) -> None:
        """Charge all rows; count and report each result as it comes. A `PayError` is shown and fails the run."""
        rows = [*self._rows]
        if tracker.attempts.are_shared:  # so that several processes over one file seldom want the same row
            random.shuffle(rows)
        try:
            async with charge_all(tracker, rows, **attrs.asdict(self._limits)) as results:
                self.progress.results = results
                if self._signals:
                    results.stop("interrupted")
                async for result in results:
                    row = self._without_result.pop(result.request_key)
                    self._add(line_of(row, result.outcome, result.error))
                self._ended_early = results.stopped is not None and not self._signals
        except PayError as error:
            self._fail(str(error))

    # --- What the ledger holds

    async def _ledger_lines(self, tracker: Tracker) -> AsyncIterator[Line]:
        """Yield the line of each row by the ledger."""
        for begin in range(0, len(self._rows), CHUNK):
            chunk = {row.request.client_transaction_id: row for row in self._rows[begin : begin + CHUNK]}
            known = await tracker.attempts.find([*chunk])
            for key, row in chunk.items():
                yield self._line(tracker, row, known.get(key))

    def _line(self, tracker: Tracker, row: ChargeRow, pending: PendingSale | None) -> Line:
        """Return the line of a row by the sale that has its id."""
        # A refused row that is sent again is not sent yet: its earlier attempt may have been found meanwhile.
        record = None if pending is None else pending.record
        if record is None or may_send(record, self._limits.retry):
            return line_of(row, None)
        return ledger_line(row, record, tracker.attempts.encode(row.request).digest)

    async def _reread_ledger(self, tracker: Tracker) -> None:
        """Count by the ledger, once nothing is sent any more, each row without a result or with a newer one."""
        try:
            async for line in self._ledger_lines(tracker):
                if _is_news(self.lines.get(line.client_transaction_id), line):
                    self._count(line)
            await self._reread_purchases(tracker)
        except PayError as error:
            self._fail(f"the open rows cannot be listed: {error}")
            # The ledger cannot be read: what this process has sent is counted from memory.
            sales = {sale.client_transaction_id: sale for sale in tracker.open_sales()}
            for key, row in self._without_result.items():
                if key not in self.lines:
                    known = sales.get(key)
                    self._count(self._line(tracker, row, known) if known else line_of(row, None, error))

    async def _reread_purchases(self, tracker: Tracker) -> None:
        """Count each row anew whose purchase was open when its turn came, once the other ask is decided."""
        for row in self._rows:
            key = row.request.client_transaction_id
            if key in self.lines and self.lines[key].label == PURCHASE_OPEN:
                purchase = await tracker.purchase(row.purchase or key)
                paid = next((ask.client_transaction_id for ask in purchase.asks if ask.paid), None)
                if paid is not None:
                    words = f"this purchase is paid by {paid}; nothing was sent"
                    self._count(line_of(row, None, AlreadyPaidError(words)))
                elif purchase.paid is False:
                    self._count(line_of(row, None))  # not sent yet

    # --- What is counted and written

    def _count(self, line: Line) -> Line | None:
        """Count and show a row's new line, and return its former one."""
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
            self._report = None
            self._fail(text("run.no_report", why=reason(error.strerror or "")), code=5)

    def _fail(self, why: str, code: int = 4) -> None:
        self._fault = max(self._fault, code)
        terminal.complain(reason(why))
        if self.progress.results is not None:
            self.progress.results.stop(why)

    def _finish(self) -> int:
        """Put the report into the order of the rows, write the page, and return the exit code."""
        if self._report is not None:
            keys = (row.request.client_transaction_id for row in self._rows)
            self._write_report(self._report.rewrite, [self.lines[key] for key in keys if key in self.lines])
        code = self._fault or self.tally.exit_code
        # A row that met a 401 is sent again, and is not finished.
        if self._ended_early and code == 3 and self.tally.passing:
            code = 4
        if self._signals and code == self.tally.exit_code == 4:  # interrupted, with rows whose end is unknown
            code = 130
        self._write_page(code)
        return code

    def _write_page(self, code: int | None = None) -> None:
        try:
            if self._page is not None:
                self._page.write(self.lines.values(), self.tally, total=len(self._rows), code=code)
        except OSError as error:
            # The run goes on: the same command writes the page again, from the ledger.
            terminal.complain(text("run.no_page", why=reason(error.strerror or "")))
            self._page = None

    async def _refresh_page(self) -> None:
        while self._page is not None:
            self._write_page()
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
            # Nothing is lost: the ledger and the report are written at each change.
            terminal.err.show_cursor()  # which the live progress hides
            os._exit(130)

    def _terminate(self, place: int = 1) -> None:
        """Act as the first signal, and `TERM_GRACE` later as the second; not where another came in its place."""
        if self._signals == place - 1:
            self._interrupt()
        if place == 1:
            asyncio.get_running_loop().call_later(TERM_GRACE, self._terminate, 2)

    def _say_until_when(self) -> None:
        counts, left = self.progress.unfinished()
        if left:
            until, time_left = time.time() + max(left), terminal.duration(max(left))
            pending = counts[State.PENDING]
            words = text("run.until", count=pending, at=terminal.at(until), left=time_left)
            self.progress.note("waiting", words, pending=pending, until=iso(until))


def _is_news(before: Line | None, now: Line) -> bool:
    """Return whether a row's line by the ledger replaces the line that this run gave it, if any."""
    if before is None or now.label == OTHER_CONTENT:
        return True
    # A row that this run could not send may have a refused attempt of an earlier run: the reason of this run counts.
    if now.state == State.REFUSED and not before.state:
        return False
    return now.label not in (NOT_SENT_YET, before.label)
