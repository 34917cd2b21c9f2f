"""One run over rows: `charge_all`, with its report, its progress and its signals.

Ctrl-C once: nothing more is sent, and what is pending is waited for. Twice: the waiting ends too; the same command
goes on later. Thrice: now. SIGTERM is once, and after 30 s twice.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

from payclient.batch import charge_all
from payclient.cli import terminal
from payclient.cli.html_report import RELOAD, Page
from payclient.cli.progress import Look, progress_of
from payclient.cli.report import Report
from payclient.cli.report_lines import Line, Tally, iso, line_of
from payclient.cli.settings import Service
from payclient.cli.unfinished import Workload
from payclient.errors import PayError
from payclient.models import SaleRequest
from payclient.rows.check import CheckedRows
from payclient.tracker import Tracker

__all__: list[str] = []

#: Seconds from SIGTERM until the waiting ends as well.
TERM_GRACE = 30.0

#: Seconds after which an interrupted run knows whom it waits for: what was in flight has its answer.
IN_FLIGHT = 0.5

#: Rows that the ledger is asked for at once.
CHUNK = 500


class Run:
    """Charges rows, and lists those that are left open; reads each once."""

    def __init__(
        self,
        requests: CheckedRows | Iterable[SaleRequest],
        work: Workload,
        *,
        report: Report | None = None,
        on_line: Callable[[Line], object] | None = None,
        look: Look = "auto",
        page: Page | None = None,
    ) -> None:
        self._source: CheckedRows | Iterator[SaleRequest]
        if isinstance(requests, CheckedRows):
            requests.on_row = self._note
            self._source = requests
        else:
            self._source = map(self._note, requests)
        self._work = work
        self._report = report
        self._page = page
        self._on_line = on_line
        self.tally = Tally()
        #: Rows that `charge_all` has read and not given back: a window's worth.
        self._under_way: dict[str, SaleRequest] = {}
        self.progress = progress_of(look)(self.tally, work, self._under_way)
        self._reading: asyncio.Task[None] | None = None
        self._signals = 0
        self._failed = False
        #: The batch itself sent nothing more, whatever is left to send.
        self._stopped = False

    async def charge(self, service: Service) -> int:
        """Charge them all and give the exit code. Raises a `PayError` only where nothing was sent."""
        with _handled(self._interrupt, self._terminate):
            async with service.tracker() as tracker:
                # Opened by the owner of the ledger, so that no second run spoils the report.
                with self._report or nullcontext():
                    await self._send_and_list(tracker)
                    return self._exit_code()

    async def _send_and_list(self, tracker: Tracker) -> None:
        self.progress.tracker = tracker
        async with self.progress, self._refreshed_page():
            reading = self._reading = asyncio.create_task(self._read(tracker))
            try:
                await asyncio.wait([reading])
            finally:
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait([reading])
            if reading.cancelled() or self._failed:
                await self._list_open(tracker)
        if not reading.cancelled():
            reading.result()

    async def _read(self, tracker: Tracker) -> None:
        limits = self._work.limits
        if isinstance(self._source, CheckedRows):
            self._source.scattered = tracker.shares
        try:
            async with charge_all(
                tracker,
                self._source,
                max_in_flight=limits.max_in_flight,
                max_pending=limits.max_pending,
                rate=limits.rate,
                wait=limits.wait,
                retry=limits.retry,
            ) as results:
                self.progress.results = results
                if self._signals:
                    results.stop("interrupted")
                async for result in results:
                    request = self._under_way.pop(result.request_key)
                    self._tell(line_of(request, result.outcome, result.error))
                self._stopped = results.stopped is not None
        except PayError as error:
            self._fail(str(error))

    def _note(self, request: SaleRequest) -> SaleRequest:
        self._under_way[request.client_transaction_id] = request
        return request

    async def _list_open(self, tracker: Tracker) -> None:
        """Tell of the rows that have no result: what the ledger knows of them, or that they were never sent."""
        try:
            # What was read and not given back, and what was not read yet: no list of a million ids is kept.
            left = itertools.chain(tuple(self._under_way.values()), self._source)
            while chunk := list(itertools.islice(left, CHUNK)):
                known = await tracker.find_many([request.client_transaction_id for request in chunk])
                for request in chunk:
                    pending = known.get(request.client_transaction_id)
                    self._tell(line_of(request, None if pending is None else pending.outcome))
        except PayError as error:
            self._fail(f"the open rows cannot be listed: {error}")

    def _tell(self, line: Line) -> None:
        self.tally.add(line)
        self.progress.row(line)
        if self._page is not None:
            self._page.add(line)
        if self._on_line is not None:
            self._on_line(line)
        if self._report is not None:
            try:
                self._report.write(line)
            except OSError as error:
                self._report = None
                self._fail(f"the report cannot be written: {error.strerror}")

    def _fail(self, why: str) -> None:
        self._failed = True
        terminal.complain(why)
        if self.progress.results is not None:
            self.progress.results.stop(why)

    def _exit_code(self) -> int:
        if self._report is not None:
            try:
                self._report.finish()
            except OSError as error:
                self._fail(f"the report cannot be written: {error.strerror}")
        code = self.tally.exit_code
        if self._signals and self.tally.paid[None]:
            code = 130
        elif self._failed or (self._stopped and not self._signals):
            code = 4
        self._write_page(code)
        return code

    def _write_page(self, code: int | None) -> None:
        if self._page is None:
            return
        try:
            self._page.write(self.tally, total=self._work.rows, code=code)
        except OSError as error:
            # A copy of what the ledger holds: it stops nothing, and the same command writes it again.
            terminal.complain(f"the page cannot be written: {error.strerror}")
            self._page = None

    @asynccontextmanager
    async def _refreshed_page(self) -> AsyncIterator[None]:
        """While the run goes, the page is written now and then."""

        async def refresh() -> None:
            while True:
                self._write_page(None)
                await asyncio.sleep(RELOAD)

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    # --- Signals

    def _interrupt(self) -> None:
        self._signals += 1
        if self._signals == 1:
            if self.progress.results is not None:
                self.progress.results.stop("interrupted")
            self.progress.note(
                "stopping",
                "interrupted: sending no more, and waiting for who was asked; Ctrl-C again stops waiting",
            )
            asyncio.get_running_loop().call_later(IN_FLIGHT, self._say_until_when)
        elif self._signals == 2:
            self.progress.note("leaving", "stopped waiting; what is in flight is recorded")
            if self._reading is not None:
                self._reading.cancel()
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
            f"waiting for {now.pending:,} customers until {terminal.at(now.expires_at)} (in {left})",
            pending=now.pending,
            until=iso(now.expires_at),
        )


@contextmanager
def _handled(interrupt: Callable[[], None], terminate: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, terminate)
    except (NotImplementedError, RuntimeError, ValueError):
        # Not the main thread, or Windows: Ctrl-C ends the process as ever, and the ledger goes on later.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
