"""The run of one batch: from the requests to the lanes, from the lanes to the tracker, from there to the results."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Collection, Coroutine, Hashable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Self

from payclient.batch.lanes import UNKNOWN_GRACE, Hold, Lane, LaneRow, Lanes, Turns
from payclient.batch.pace import send_rate, sends_per_second
from payclient.batch.results import ChargeResult
from payclient.batch.source import begin_lanes, next_row, rows_of
from payclient.batch.tries import Tries
from payclient.clock import Timer, start
from payclient.errors import LedgerError, NotSentError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.tracker import Tracker

__all__ = ["Charges"]

logger: logging.Logger = logging.getLogger("payclient.batch")

#: Rows read ahead at least, so that a busy customer does not hold up the others.
WINDOW = 1000

#: Seconds until the ledger is asked again for a row that another process is sending right now.
SENDING_DELAY = 1.0

#: Seconds for which it is known what other processes did with a row.
KNOWN_FOR = 5.0


class Charges(AsyncIterator[ChargeResult]):
    """The results of one batch, in the order in which they come; iterate it once. Made by `charge_all`."""

    def __init__(
        self,
        tracker: Tracker,
        requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest] | Lanes,
        *,
        max_in_flight: int,
        max_pending: int,
        rate: float | None,
        wait: float | None,
        retry: Collection[str],
    ) -> None:
        if max_in_flight < 1 or max_pending < 1:
            raise ValueError("max_in_flight and max_pending are 1 or more")
        if rate is not None and not 0 < rate < float("inf"):
            raise ValueError("rate is a positive number of sends a second")
        if wait is not None and not 0 <= wait < float("inf"):
            raise ValueError("wait is a number of seconds, 0 or more")
        if not set(retry) <= {"refused"}:
            raise ValueError("retry takes 'refused'")
        self._bulk = tracker.bulk
        self._clock = tracker.clock
        self._requests = requests
        #: Other processes may work on the same batch.
        self._shares = tracker.bulk.are_shared
        self._max_in_flight = max_in_flight
        self._max_pending = max_pending
        self._scale = tracker.profile.sale_window / NORMAL_WINDOW
        self._rate = send_rate(sends_per_second(tracker.profile, rate, wait))
        self._tries = Tries(
            self._clock, self._rate, scale=self._scale, renews_token=tracker.bulk.renews_token, stop=self.stop
        )
        # In the total time-out of the request an unknown sale's end has been put off already.
        late = max(UNKNOWN_GRACE * self._scale - tracker.bulk.total_timeout, 0.0)
        self._hold = Hold(self._clock, wait=wait, late=late)
        self._wait = wait
        self._retry_refused = "refused" in retry
        window = max(WINDOW, 2 * max_pending)
        #: Rows that may be under way, from being read to their result.
        self._room = asyncio.Semaphore(window)
        self._results: asyncio.Queue[ChargeResult | None] = asyncio.Queue(maxsize=window)
        self._lanes: dict[Hashable, Lane] = {}
        #: Lanes whose next row may send, and those whose next row has its answer in the ledger.
        self._turns = Turns()
        self._answered: deque[Lane] = deque()
        self._in_flight = 0
        self._prompts = 0
        self._alarm: Timer | None = None
        #: Rows known of and without a result.
        self._open_rows = 0
        self._fed = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those of the tasks that send right now: they are never cancelled.
        self._sends: set[asyncio.Task[None]] = set()
        self._timers: set[Timer] = set()
        self._failure: Exception | None = None
        self._left = False
        #: Why nothing more is sent; None while the batch sends.
        self.stopped: str | None = None
        #: Sales of this batch that wait for a customer.
        self.pending: int = 0

    async def __aenter__(self) -> Self:
        self._start(self._feed())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send nothing more and let what is in flight be recorded; the tracker follows what is open."""
        self._left = True
        self.stop("the batch was left")
        for timer in (*self._timers, *([self._alarm] if self._alarm else ())):
            timer.cancel()
        for task in self._tasks - self._sends:
            task.cancel()
        while tasks := tuple(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)
            # Over tasks that are done, `gather` does not let the loop run, and they leave the set by a callback.
            self._tasks.difference_update(tasks)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChargeResult:
        result = await self._results.get()
        if result is not None:
            return result
        self._results.put_nowait(None)  # whoever asks again hears the same
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    def stop(self, why: str) -> None:
        """Send nothing more: what is pending is followed to its end, the rest comes out as not sent yet."""
        if self.stopped is None:
            self.stopped = why
            if not self._left:
                logger.warning("the batch sends nothing more: %s", why)
                self._pump()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _later(self, seconds: float, lane: Lane) -> None:
        """Its turn comes again then."""

        def ring() -> None:
            self._timers.discard(timer)
            self._ready(lane)

        timer = self._clock.call_at(self._clock.monotonic() + seconds, ring)
        self._timers.add(timer)

    # --- From the requests to the lanes

    async def _feed(self) -> None:
        try:
            if isinstance(self._requests, Lanes):
                await self._feed_lanes(self._requests)
            else:
                await self._feed_rows(self._requests)
        except Exception as error:
            self._fail(error)
        self._fed = True
        self._end_if_done()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.stop("the requests ended in an error")

    def _end_if_done(self) -> None:
        if self._fed and self._open_rows == 0:
            self._start(self._results.put(None))

    async def _feed_lanes(self, source: Lanes) -> None:
        """All lanes are known: each gives its rows one by one, the longest begin."""
        async with aclosing(begin_lanes(self._bulk, source)) as begun:
            async for lane, row in begun:
                await self._room.acquire()
                self._lanes[lane.key] = lane
                self._open_rows += lane.ahead
                lane.ahead -= 1
                self._queue(lane, row)

    async def _feed_rows(self, requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest]) -> None:
        async with aclosing(rows_of(self._bulk, requests)) as rows:
            async for row in rows:
                await self._room.acquire()
                key = self._bulk.lane(row.request)
                lane = self._lanes.setdefault(key, Lane(key))
                self._open_rows += 1
                self._queue(lane, row)

    def _queue(self, lane: Lane, row: LaneRow) -> None:
        lane.rows.append(row)
        if not lane.waits:
            self._ready(lane)
        elif lane.turn:
            self._turns.add(lane)

    async def _next(self, lane: Lane) -> None:
        """Its customer is free."""
        if self._left:
            return
        lane.waits = False
        if not lane.rows and lane.ahead:
            await self._fetch(lane)
        if lane.rows:
            self._ready(lane)
        else:
            del self._lanes[lane.key]
        self._pump()

    async def _fetch(self, lane: Lane) -> None:
        assert isinstance(self._requests, Lanes)  # noqa: S101 - only those say what comes
        await self._room.acquire()
        try:
            row = await next_row(self._bulk, self._requests, lane.key)
        except Exception as error:
            self._open_rows -= lane.ahead
            lane.ahead = 0
            self._room.release()
            self._fail(error)
            self._end_if_done()
        else:
            lane.ahead -= 1
            lane.rows.append(row)

    # --- Whose turn it is

    def _ready(self, lane: Lane) -> None:
        lane.waits = True
        if lane.rows[0].sends(retry_refused=self._retry_refused):
            self._turns.add(lane)
        else:
            self._answered.append(lane)
        self._pump()

    def _pump(self) -> None:
        """Begin what may begin now."""
        while (
            (self._answered or self._turns)
            and self._in_flight < self._max_in_flight
            and self._prompts < self._max_pending
            and not self._left
        ):
            if self._answered:
                work = self._charge(self._answered.popleft())
            elif self._must_look(self._turns.first().rows[0]):
                work = self._look_first(self._turns.take())
            else:
                if self.stopped is None:
                    now = self._clock.monotonic()
                    if now < (when := self._rate.ready_at()):
                        self._wake_at(when)
                        return
                    self._rate.spend(now)
                work = self._charge(self._turns.take())
            self._in_flight += 1
            self._prompts += 1
            self._start(work)

    def _wake_at(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._clock.call_at(when, self._pump)

    # --- With other processes that charge the same rows

    def _must_look(self, row: LaneRow) -> bool:
        return self._shares and self.stopped is None and self._clock.monotonic() - row.looked_at > KNOWN_FOR

    async def _look_first(self, lane: Lane) -> None:
        """See what other processes did with the first row of a lane; then its turn comes again."""
        try:
            looked = await self._look(lane.rows[0])
        finally:
            self._in_flight -= 1
            self._prompts -= 1
        if looked or self.stopped is not None:
            self._ready(lane)
        else:
            self._later(SENDING_DELAY * self._scale, lane)
            self._pump()

    async def _look(self, row: LaneRow) -> bool:
        """See what another process did with a row since it was read; False: the ledger cannot say."""
        identifier = row.request.client_transaction_id
        try:
            row.known = (await self._bulk.find([identifier])).get(identifier)
        except LedgerError as error:
            logger.warning("what other processes did cannot be read now: %s", type(error).__name__)
            return False
        row.looked_at = self._clock.monotonic()
        return True

    # --- One row

    async def _charge(self, lane: Lane) -> None:
        """Send the first row of a lane and hold the lane until its customer is free again."""
        try:
            sent = await self._send(lane.rows[0])
            if (
                self._shares
                and isinstance(sent, PendingSale)
                and sent.state in (State.SENDING, State.REFUSED)
            ):
                # Another process was quicker: what comes of its attempt, or came of it, is looked at first.
                await self._look(lane.rows[0])
                sent = SENDING_DELAY * self._scale
        finally:
            self._in_flight -= 1
        if not isinstance(sent, PendingSale):
            self._prompts -= 1
            if isinstance(sent, float):
                self._later(sent, lane)
                self._pump()
                return
            lane.rows.popleft()
            self._pump()
            await self._emit(sent)
            await self._next(lane)
            return
        lane.rows.popleft()
        self._pump()
        self.pending += 1
        try:
            over = self._wait == 0 or self._left or await self._hold.until_over(sent)
        finally:
            self.pending -= 1
            self._prompts -= 1
        if over:
            await self._emit(ChargeResult(request_key=sent.client_transaction_id, outcome=sent.outcome))
        else:
            # Expired by our clock: the customer is free, but the service's last word is still awaited.
            self._start(self._finish(sent))
        await self._next(lane)

    async def _send(self, row: LaneRow) -> PendingSale | ChargeResult | float:
        """The sale; or the row's result where there is none to wait for; or in how many seconds to try again."""
        if self._shares and self.stopped is not None:
            await self._look(row)  # what we did not send may be sent by another
        key, known = row.request.client_transaction_id, row.known
        sends = row.sends(retry_refused=self._retry_refused)
        if known is not None and known.state is State.REFUSED and not sends:
            return ChargeResult(request_key=key, outcome=known.outcome)
        if sends and self.stopped is not None:
            unsent = NotSentError(f"not sent yet: {self.stopped}", client_transaction_id=key)
            return ChargeResult(request_key=key, error=unsent)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a row is charged by a task
        self._sends.add(task)
        token, made_at = self._tries.token, self._clock.monotonic()
        try:
            # Tried again, the row has an attempt in the ledger that `known` does not tell of.
            pending = await self._bulk.send(row.request, is_new=known is None and row.tries == 0)
        except Exception as error:
            again = self._tries.again(row, error, token, made_at)
            if again is None or self.stopped is not None:
                return ChargeResult(request_key=key, error=error)
            return again
        finally:
            self._sends.discard(task)
        if sends:  # what a crash left says nothing of how the service is now
            self._tries.sent(pending, token, made_at)
        return pending

    async def _finish(self, pending: PendingSale) -> None:
        try:
            await pending.wait()
        except LedgerError as error:
            logger.error("%s: cannot be waited for: %s", pending.client_transaction_id, type(error).__name__)
        await self._emit(ChargeResult(request_key=pending.client_transaction_id, outcome=pending.outcome))

    async def _emit(self, result: ChargeResult) -> None:
        if not self._left:
            await self._results.put(result)
        self._room.release()
        self._open_rows -= 1
        self._end_if_done()
