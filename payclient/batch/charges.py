"""The run of one batch: from the requests to the lanes, from the lanes to the tracker, from there to the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Self

from payclient.batch.lanes import ChargeResult, Lane, LaneRow, Requests, Turns, may_send, rows_of
from payclient.batch.retries import SEND_BACKOFF, RetryPolicy, sends_per_second
from payclient.clock import Timer, sleep, start, within
from payclient.errors import LedgerError, NotSentError, StillPendingError, UsageError
from payclient.lifecycle import State
from payclient.logs import Log
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.outcomes import PendingSale, seconds_left
from payclient.tracking.rate_limit import RateLimit
from payclient.tracking.tracker import Tracker
from payclient.validation import check_type, is_positive

__all__ = ["Charges"]

log: Log = Log("payclient.batch")

#: Rows read ahead at least, so that a busy customer does not hold up the others.
WINDOW = 1000

#: Seconds until the ledger is read again for a row that another process is sending right now.
SENDING_DELAY = 1.0

#: Seconds between two looks at a sale that is waited for no longer, whose customer has other rows.
HELD_DELAY = 2.0
#: Seconds beyond the sale window from which a customer with an unknown sale is free.
UNKNOWN_GRACE = 60.0

#: Seconds for which a row as it was read from the ledger, or that it could not be read, counts as current.
KNOWN_FOR = 5.0


class Charges(AsyncIterator[ChargeResult]):
    """The results of one batch, in the order in which the sales are decided; iterate it once. Made by `charge_all`."""

    def __init__(
        self,
        tracker: Tracker,
        requests: Requests,
        max_in_flight: int,
        max_pending: int,
        rate: float | None,
        wait: float | None,
        retry: Collection[str],
    ) -> None:
        check_type("tracker", tracker, Tracker)
        check_type("requests", requests, Iterable | AsyncIterable)
        check_type("max_in_flight", max_in_flight, int | float)
        check_type("max_pending", max_pending, int | float)
        check_type("rate", rate, int | float | None)
        check_type("wait", wait, int | float | None)
        check_type("retry", retry, Collection)
        if not (max_in_flight >= 1 and max_pending >= 1):
            raise ValueError("max_in_flight and max_pending must be 1 or more")
        if rate is not None and not is_positive(rate):
            raise ValueError("rate must be a positive number of sends a second")
        if wait is not None and not (wait == 0 or is_positive(wait)):
            raise ValueError("wait must be a number of seconds, 0 or more")
        if not set(retry) <= {"refused"}:
            raise ValueError("retry must be empty or {'refused'}")
        self._tracker, self._attempts = tracker, tracker.attempts
        self._clock = tracker.clock
        self._requests = requests
        #: Whether other processes may work on the same batch.
        self._shares = self._attempts.are_shared
        self._max_in_flight = max_in_flight
        self._max_pending = max_pending
        self._scale = tracker.profile.sale_window / NORMAL_WINDOW
        per_second = sends_per_second(tracker.profile, rate, wait)
        self._rate = RateLimit(None if per_second is None else 60.0 * per_second, SEND_BACKOFF)
        session = self._attempts.session
        self._retries = RetryPolicy(
            self._clock, self._rate, self._scale, session.renews_token, stop=self.stop
        )
        #: Seconds for which the lane of an unknown sale is busy beyond its expiry, which has the total time-out in it.
        self._late = max(UNKNOWN_GRACE * self._scale - session.timeouts.total, 0.0)
        #: Seconds for which a sale keeps its lane at the longest: until it is found late, and its window from then on.
        self._longest = (
            tracker.profile.absent_after + tracker.profile.sale_window + UNKNOWN_GRACE * self._scale
        )
        self._wait = wait
        self._retry = retry
        #: While so many results wait for their reader, no further row is sent.
        self._window = max(WINDOW, 2 * max_pending)
        self._results: asyncio.Queue[ChargeResult | None] = asyncio.Queue()
        # A list of requests is read whole, so that the longest lane of all comes first.
        count = len(requests) if isinstance(requests, list | tuple) else 0
        #: Bounds the rows between being read and their result.
        self._room = asyncio.Semaphore(max(self._window, count))
        self._lanes: dict[bytes, Lane] = {}
        self._turns = Turns()
        self._in_flight = 0  # rows that are being sent, or read again
        #: Why the ledger could not be read for a row, and when.
        self._failed_read: tuple[LedgerError | None, float] = (None, float("-inf"))
        self._rate_timer: Timer | None = None
        #: Rows that are known and have no result yet.
        self._open_rows = 0
        self._fed = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: The tasks that send right now; they are never cancelled.
        self._sends: set[asyncio.Task[Any] | None] = set()
        self._failure: BaseException | None = None
        self._exited = False
        #: Why nothing more is sent; None while the batch sends.
        self.stopped: str | None = None
        self._stopping = asyncio.Event()
        #: Sales of this batch that wait for a customer.
        self.pending: int = 0

    async def __aenter__(self) -> Self:
        self._start(self._feed())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send nothing more and let what is in flight be recorded; the tracker follows what is open."""
        self._exited = True
        self.stop("the batch was left")
        self._end_readers()
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        for task in self._tasks - self._sends:
            task.cancel()
        while tasks := tuple(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)
            # Over tasks that are done, `gather` does not let the loop run, and they leave the set by a callback.
            self._tasks.difference_update(tasks)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChargeResult:
        if self._exited or not (self._fed or self._tasks):  # it was left, or never entered
            self._end_readers()
        result = await self._results.get()
        if result is not None:
            self._start_ready()
            if self._exited:  # another one may wait, too
                self._end_readers()
            return result
        self._results.put_nowait(None)  # for a second call after the end
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    def _end_readers(self) -> None:
        """Queue an error for who waits for a result, where none is left: no other will come."""
        if self._results.empty():
            words = "the results of a batch are read inside its `with` block; run it again to go on"
            self._failure = self._failure or UsageError(words)
            self._results.put_nowait(None)

    def stop(self, why: str) -> None:
        """Send nothing more. Pending sales are followed to their end; the other rows end as not sent yet."""
        if self.stopped is None:
            self.stopped = why
            self._stopping.set()
            if not self._exited:
                log("warning", "batch_stopped", "", "the batch sends nothing more: %s", why)
                self._start_ready()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        start(work, self._tasks).add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """End the batch where a task failed, or was cancelled by others: its row would never have a result."""
        if self._exited:
            return
        if task.cancelled():
            words = "a task of the batch was cancelled by its process; run the batch again to go on"
            self._fail(UsageError(words), "a task of the batch was cancelled")
        elif (error := task.exception()) is not None:
            self._fail(error, "a task of the batch failed")
        else:
            return
        self._results.put_nowait(None)

    # --- From the requests to the lanes

    async def _feed(self) -> None:
        """Read the requests into lanes while there is room, to the last one or to the first error."""
        try:
            async with aclosing(rows_of(self._attempts, self._requests)) as rows:
                async for row in rows:
                    if self._exited:
                        break  # what the requests waited for lost our cancellation, as `wait_for` of CPython 3.11 may
                    await self._room.acquire()
                    self._open_rows += 1
                    key = self._attempts.lane(row.request)
                    is_new = key not in self._lanes
                    lane = self._lanes.setdefault(key, Lane(key))
                    lane.rows.append(row)
                    if is_new or lane.place:  # the longer lane gets a better place
                        self._queue_lane(lane)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # A bare `CancelledError` would end a consumer in a task group as though nothing had failed.
            words = "what the requests waited for was cancelled: the rest of them was not read"
            self._fail(UsageError(words))
        except Exception as error:
            self._fail(error)
        self._fed = True
        self._end_if_done()

    def _fail(self, error: BaseException, why: str = "the requests ended in an error") -> None:
        self._failure = error
        self.stop(why)

    def _end_if_done(self) -> None:
        if self._fed and self._open_rows == 0:
            self._results.put_nowait(None)

    def _free(self, lane: Lane) -> None:
        """Queue a lane for its next row, now that its customer is free."""
        if self._exited:
            return
        if lane.rows:
            self._queue_lane(lane)
        else:
            del self._lanes[lane.key]
        self._start_ready()

    # --- Whose turn it is

    def _queue_lane(self, lane: Lane, place: int | None = None) -> None:
        """Queue a lane whose first row may be sent, or is answered without a send; `place` is one that it had."""
        self._turns.add(lane, place, sends=self._may_send(lane.rows[0]))
        self._start_ready()

    def _may_send(self, row: LaneRow) -> bool:
        known = None if row.known is None else row.known.record
        return may_send(known, self._retry)

    async def _queue_later(self, lane: Lane, seconds: float) -> None:
        """Queue a lane again in so many seconds, or once the batch stops meanwhile; until then others may start."""
        self._start_ready()
        if self.stopped is None:
            with suppress(TimeoutError):
                await within(self._clock, seconds, self._stopping.wait())
        else:  # the event is set, and would end the wait at once
            await sleep(self._clock, seconds)
        self._queue_lane(lane)

    def _start_ready(self) -> None:
        """Start the lanes that may start within the limits.

        A row that may be sent is read again if another process may have sent it; otherwise it waits for the rate.
        `_charge` also answers a row that is not sent.
        """
        while (
            self._in_flight < self._max_in_flight
            and self._in_flight + self.pending < self._max_pending
            and self._results.qsize() < self._window
            and not self._exited
            and (lane := self._turns.first()) is not None
        ):
            row, now = lane.rows[0], self._clock.monotonic()
            work: Callable[[Lane], Coroutine[None, None, None]] = self._charge
            if self.stopped is None and self._may_send(row):
                if self._shares and now - row.read_at > KNOWN_FOR:
                    work = partial(self._read_first, place=lane.place)
                elif now < (when := self._rate.ready_at()):
                    if self._rate_timer is not None:
                        self._rate_timer.cancel()
                    self._rate_timer = self._clock.call_at(when, self._start_ready)
                    return
                else:
                    self._rate.note_request(now)
            self._turns.take()
            self._in_flight += 1
            self._start(work(lane))

    # --- With other processes that charge the same rows

    async def _read_first(self, lane: Lane, place: int) -> None:
        """Read a lane's first row again: another process may have sent it. Queue it; later if the ledger fails.

        It keeps its place: were all others read first, what was read of it would be out of date again.
        """
        try:
            fault = await self._read_again(lane.rows[0])
        finally:
            self._in_flight -= 1
        if fault is None or self.stopped is not None:
            self._queue_lane(lane, place)
        else:
            await self._queue_later(lane, SENDING_DELAY * self._scale)

    async def _read_again(self, row: LaneRow) -> LedgerError | None:
        """Read what became of a row since it was read; return why the ledger cannot be read, None where it was."""
        identifier = row.request.client_transaction_id
        fault, failed_at = self._failed_read
        if self.stopped is not None and self._clock.monotonic() - failed_at <= KNOWN_FOR:
            return fault  # for thousands of unsent rows: a server that is away takes seconds to fail
        try:
            row.known = (await self._attempts.find([identifier])).get(identifier)
        except LedgerError as error:
            self._attempts.log_ledger_failure(error)
            self._failed_read = error, self._clock.monotonic()
            return error
        except UsageError:
            pass  # the tracker was closed: the send raises this again
        row.read_at = self._clock.monotonic()
        return None

    # --- One row

    async def _charge(self, lane: Lane) -> None:
        """Send the first row of a lane and keep the lane busy until its customer is free again."""
        try:
            sent: PendingSale | ChargeResult | float = await self._send(lane.rows[0])
            raced = isinstance(sent, PendingSale) and sent.state in (State.SENDING, State.REFUSED)
            if self._shares and raced:
                # Another process was quicker: its attempt decides what becomes of the row.
                await self._read_again(lane.rows[0])
                sent = SENDING_DELAY * self._scale
        finally:
            self._in_flight -= 1
        if isinstance(sent, float):  # the seconds to the next try
            await self._queue_later(lane, sent)
            return
        lane.rows.pop(0)
        if isinstance(sent, PendingSale):
            await self._follow(lane, sent)
        else:
            self._emit(sent)
            self._free(lane)

    async def _follow(self, lane: Lane, sent: PendingSale) -> None:
        """Wait for a sale, emit its result, and free its lane once its customer is free."""
        self.pending += 1
        began = self._clock.monotonic()
        self._start_ready()
        try:
            has_result = self._wait == 0 or self._exited or await self._wait_for_result(sent, began)
        finally:
            self.pending -= 1
        if not has_result:  # expired by our clock: the last queries are still to come
            self._free(lane)
            with suppress(StillPendingError):
                await _wait_for(sent, self._left(began))
        self._emit(ChargeResult(request_key=sent.client_transaction_id, outcome=sent.outcome))
        if has_result:
            await self._hold(lane, sent, began)
            self._free(lane)

    async def _hold(self, lane: Lane, pending: PendingSale, began: float) -> None:
        """Keep a lane until its customer is free, after the wait for a sale ended, where its next row would be sent."""
        # Without a limit (`wait` None) the wait itself lasted until then, or failed.
        while self._wait is not None and self.stopped is None and lane.rows and self._may_send(lane.rows[0]):
            if pending.state.decided or (seconds := self._seconds_until_free(pending, began)) <= 0:
                return
            with suppress(TimeoutError):
                await within(self._clock, min(seconds, HELD_DELAY * self._scale), self._stopping.wait())

    def _seconds_until_free(self, pending: PendingSale, began: float) -> float:
        """Return the seconds until a sale's customer is free, at the latest. The wait for the sale began at `began`."""
        grace = self._late if pending.state is State.UNKNOWN else 0.0
        # A sale that is not followed ends by the wall clock, which may be set back: no lane is kept for longer.
        return min(seconds_left(pending) + grace, began + self._longest - self._clock.monotonic())

    async def _send(self, row: LaneRow) -> PendingSale | ChargeResult | float:
        """Send a row, unless its sale exists. Return the sale, a result without one, or the seconds to the next try."""
        unread: LedgerError | None = None
        if row.refused or (self._shares and self.stopped is not None):
            # The row's sale may have been found paid since, or sent by another process.
            unread = await self._read_again(row)
        key, sends = row.request.client_transaction_id, self._may_send(row)
        if row.refused and not sends:
            refused = row.refused.outcome if unread is None else None
            return ChargeResult(request_key=key, outcome=refused, error=unread)
        if sends and self.stopped is not None:
            unsent = unread or NotSentError(f"not sent yet: {self.stopped}", client_transaction_id=key)
            return ChargeResult(request_key=key, error=unsent)
        self._sends.add(asyncio.current_task())
        token_used, made_at = self._retries.token_number, self._clock.monotonic()
        try:
            pending = await self._tracker.sale(row.request, purchase=row.purchase)
        except Exception as error:
            again = self._retries.retry_delay(row, error, token_used, made_at)
            if again is None or self.stopped is not None:
                return ChargeResult(request_key=key, error=error)
            return again
        finally:
            self._sends.discard(asyncio.current_task())
        if sends:  # a sale that was in the ledger proves nothing about the service now
            self._retries.note_sent(pending, token_used, made_at)
        return pending

    def _left(self, began: float) -> float | None:
        """Return the seconds for which a sale is still waited for; None: to its end."""
        return None if self._wait is None else max(began + self._wait - self._clock.monotonic(), 0.0)

    async def _wait_for_result(self, pending: PendingSale, began: float) -> bool:
        """Wait until a sale is decided, or for `wait` seconds; return True then.

        Returns False once its customer is free by the clock, while its last queries may be to come.
        """
        while (seconds := self._seconds_until_free(pending, began)) > 0:
            left = self._left(began)
            try:
                await _wait_for(pending, seconds if left is None else min(seconds, left))
            except StillPendingError:
                if left is None or left > seconds:
                    continue  # its expiry may have moved
            return True
        return False

    def _emit(self, result: ChargeResult) -> None:
        """Queue a row's result for the reader, and make room for another row."""
        if not self._exited:
            self._results.put_nowait(result)
        self._room.release()
        self._open_rows -= 1
        self._end_if_done()


async def _wait_for(pending: PendingSale, seconds: float | None) -> None:
    """Wait for a sale; any other error than `StillPendingError`, which is raised, is logged and ends the wait."""
    try:
        await pending.wait(timeout=seconds)
    except StillPendingError:
        raise
    except Exception as error:  # the tracker closes, or the ledger fails: the row has its result all the same
        identifier = pending.client_transaction_id
        log("error", "wait_failed", identifier, "cannot be waited for: %s", type(error).__name__)
