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
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from payclient.batch import ChargeRow, charge_all
from payclient.cli import terminal
from payclient.cli.page import RELOAD, RunPage
from payclient.cli.progress import Look, Progress, progress_of
from payclient.cli.reach import Reach
from payclient.cli.report import Line, Report, Tally, line_of
from payclient.cli.settings import Limits, Service
from payclient.cli.signals import handled
from payclient.cli.terminal import iso
from payclient.cli.texts import reason, text
from payclient.errors import DifferentRequestError, PayError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.session import Exchange
from payclient.tracking.attempts import lane_text
from payclient.tracking.outcomes import Outcome, PendingSale
from payclient.tracking.tracker import Tracker

__all__: list[str] = []

#: Seconds from SIGTERM until the waiting ends as well.
TERM_GRACE = 30.0

#: Seconds after which every request that was in flight at an interrupt has its answer.
IN_FLIGHT = 0.5

#: Rows that are looked up in the ledger at once.
CHUNK = 500


def by_customer(requests: Sequence[SaleRequest], *, scattered: bool) -> list[SaleRequest]:
    """Return the rows of each customer together, the customer with most rows first.

    `scattered`: those with as many rows come in an order of this process's own, so that several over one file seldom
    meet.
    """
    lanes: dict[str, list[SaleRequest]] = {}
    for request in requests:
        lanes.setdefault(lane_text(request), []).append(request)
    order = list(lanes.values())
    if scattered:
        random.shuffle(order)
    return [request for lane in sorted(order, key=len, reverse=True) for request in lane]


class Run:
    """Charges rows, and reads at its end what the ledger holds of each."""

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
        self._failed = False
        #: False: the report could not be written.
        self.reported: bool = True
        #: The batch itself sent nothing more, whatever is left to send.
        self._stopped = False

    async def charge(self, service: Service) -> int:
        """Charge the rows and return the exit code. Raises a `PayError` only where nothing was sent."""
        functions = {"SIGINT": self._interrupt, "SIGTERM": self._terminate, "SIGHUP": self._terminate}
        with handled(functions):
            async with service.tracker(self._note) as tracker:
                self.progress.begin(service.ledger)
                if self._report is None:
                    await self._send(tracker)
                    return self._finish()
                # Written by the owner of the ledger, so that no second run spoils the report.
                with self._report.begin(await self._decided_before(tracker, self._report)):
                    await self._send(tracker)
                    return self._finish()

    async def _decided_before(self, tracker: Tracker, report: Report) -> list[Line]:
        """Return the lines of an earlier report's rows that are decided by the ledger, and count them.

        Refused rows are left out, because this run may try them again, and open ones until they are decided.
        """
        earlier = report.earlier()
        for chunk in _chunks([each for each in self._requests if each.client_transaction_id in earlier]):
            known = await self._find(tracker, chunk)
            for request in chunk:
                pending = known.get(request.client_transaction_id)
                if (
                    pending is not None
                    and pending.state.decided
                    and pending.state is not State.REFUSED
                    and self._is_same(tracker, request, pending)
                ):
                    self._count(self._line(request, pending.outcome))
        return list(self.lines.values())

    def _note(self, exchange: Exchange) -> None:
        now = time.monotonic()
        if (news := self._reach.note(exchange, now)) is not None:
            since = terminal.at(time.time() - (now - self._reach.since))
            self.progress.note(news, text(f"run.{news}", since=since))

    async def _send(self, tracker: Tracker) -> None:
        self.progress.tracker, profile = tracker, tracker.profile
        lane = max(Counter(map(lane_text, self._requests)).values(), default=0)
        self.progress.longest = lambda rows: self._limits.longest(profile, rows, min(lane, rows))
        async with _beside(self.progress.show()), _beside(self._refresh_page()):
            charging = self._charging = asyncio.create_task(self._charge_all_rows(tracker))
            try:
                await asyncio.wait([charging])
            finally:
                if not charging.done():
                    charging.cancel()
                    await asyncio.wait([charging])
            await self._read_ledger(tracker)
        if not charging.cancelled():
            charging.result()

    async def _charge_all_rows(self, tracker: Tracker) -> None:
        """Charge all rows; count and report each result as it comes. A `PayError` is shown and fails the run."""
        limits = self._limits
        requests = by_customer(self._requests, scattered=tracker.bulk.are_shared)
        try:
            async with charge_all(
                tracker,
                [self._row(request) for request in requests],
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
                self._stopped = results.stopped is not None
        except PayError as error:
            self._fail(str(error))

    def _row(self, request: SaleRequest) -> SaleRequest | ChargeRow:
        purchase = self._purchases.get(request.client_transaction_id)
        return request if purchase is None else ChargeRow(request=request, purchase=purchase)

    async def _read_ledger(self, tracker: Tracker) -> None:
        """Add what the ledger holds now: of rows without a result, and of rows that changed since theirs.

        The report takes them all at once, when it is finished.
        """
        try:
            for chunk in _chunks(self._requests):
                known = await self._find(tracker, chunk)
                for request in chunk:
                    self._add_newer(tracker, request, known.get(request.client_transaction_id))
        except PayError as error:
            self._fail(f"the open rows cannot be listed: {error}")
            for request in self._requests:
                if request.client_transaction_id not in self.lines:
                    self._count(self._line(request, None, error))

    @staticmethod
    async def _find(tracker: Tracker, chunk: Sequence[SaleRequest]) -> Mapping[str, PendingSale]:
        return await tracker.bulk.find([request.client_transaction_id for request in chunk])

    def _line(self, request: SaleRequest, outcome: Outcome | None, error: Exception | None = None) -> Line:
        return line_of(request, self._purchases.get(request.client_transaction_id), outcome, error)

    def _is_same(self, tracker: Tracker, request: SaleRequest, pending: PendingSale) -> bool:
        return tracker.bulk.is_same(request, self._purchases.get(request.client_transaction_id), pending)

    def _add_newer(self, tracker: Tracker, request: SaleRequest, pending: PendingSale | None) -> None:
        before = self.lines.get(request.client_transaction_id)
        if pending is None:
            if before is None:
                self._count(self._line(request, None))
            return
        now = self._line(request, pending.outcome)
        if before is not None and now.state == before.state and now.paid == before.paid:
            return
        if not self._is_same(tracker, request, pending):
            if now.state != State.REFUSED:
                words = f"this id is in the ledger with other content and {now.state}; nothing was sent"
                now = self._line(request, None, DifferentRequestError(words))
                self._count(now)
            elif before is None:
                self._count(self._line(request, None))
        # A refused attempt is no news of a row that this run could not send.
        elif before is None or now.state != State.REFUSED or before.state:
            self._count(now)

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
        if self._report is None or before == line:
            return
        try:
            if before is None:
                self._report.write(line)
            else:
                self._report.rewrite(self.lines.values())
        except OSError as error:
            self._fail(text("run.no_report", why=reason(error.strerror or "")))
            self._report, self.reported = None, False

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
            try:
                rows = (self.lines.get(request.client_transaction_id) for request in self._requests)
                self._report.rewrite(line for line in rows if line is not None)
            except OSError as error:
                self._fail(text("run.no_report", why=reason(error.strerror or "")))
                self.reported = False
        code = self.tally.exit_code
        if not self.reported:
            code = 5
        elif self._signals and self.tally.paid[None]:
            code = 130
        elif self._failed or (self._stopped and not self._signals):
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
        if tracker is None or now.expires_at is None:
            return
        left = terminal.duration(now.expires_at - tracker.clock.time())
        self.progress.note(
            "waiting",
            text("run.until", count=now.pending, at=terminal.at(now.expires_at), left=left),
            pending=now.pending,
            until=iso(now.expires_at),
        )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something while this lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _chunks(requests: Sequence[SaleRequest]) -> Iterator[Sequence[SaleRequest]]:
    for begin in range(0, len(requests), CHUNK):
        yield requests[begin : begin + CHUNK]
