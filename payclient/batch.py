"""`charge_all`: many charges through one tracker, one open sale per customer, memory bounded.

Two limits: requests in flight, and prompts pending on people's phones. A pending prompt holds no connection, so one
limit around both would be slow.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Collection, Coroutine, Iterable
from types import TracebackType
from typing import Self

import attrs

from payclient.clock import sleep
from payclient.errors import (
    CustomerBusyError,
    NotSentError,
    RateLimitedError,
    RefusedError,
    StillPendingError,
    UnauthorizedError,
)
from payclient.lifecycle import Evidence, State
from payclient.models import SaleRequest
from payclient.outcomes import Outcome
from payclient.pending import PendingSale
from payclient.schedule import NORMAL_WINDOW
from payclient.tracker import Tracker

__all__ = ["ChargeResult", "Charges", "charge_all"]

logger = logging.getLogger("payclient.batch")

#: Requests read ahead, so that a busy customer does not hold up the others.
WINDOW = 1000

#: Requests that the ledger is asked for at once.
CHUNK = 200

#: Tries of one row after HTTP 429.
RATE_LIMITED_TRIES = 5

#: Seconds between tries of a customer who is busy with a sale that is not ours (2061), and how long at most.
BUSY_DELAYS = (10.0, 20.0, 40.0, 60.0)
BUSY_FOR = 360.0

#: Unknown outcomes in a row that stop the sending: something is wrong out there.
UNKNOWN_IN_A_ROW = 5

#: Refusals that another run tries again by itself: they were about the moment, not about the row.
PASSING = frozenset({UnauthorizedError.__name__, RateLimitedError.__name__, CustomerBusyError.__name__})


@attrs.frozen(kw_only=True)
class ChargeResult:
    """What became of one request: an outcome, or the error that says why nothing was created."""

    #: The request's client transaction id.
    request_key: str
    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def paid(self) -> bool | None:
        """True, False, or None: nobody knows."""
        if self.outcome is not None:
            return self.outcome.paid
        # An error of another kind says nothing of what the client transaction id may stand for already.
        return False if isinstance(self.error, RefusedError) else None


class Charges(AsyncIterator[ChargeResult]):
    """The results of one batch, in the order in which they come; iterate it once. Made by `charge_all`."""

    def __init__(
        self,
        tracker: Tracker,
        requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest],
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
        self._tracker = tracker
        self._clock = tracker.clock
        self._scale = tracker.profile.sale_window / NORMAL_WINDOW
        self._requests = requests
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._prompts = asyncio.Semaphore(max_pending)
        self._gap = 0.0 if rate is None else 1.0 / rate
        self._next_send = float("-inf")
        self._wait = wait
        self._retry_refused = "refused" in retry
        self._lanes: dict[bytes, deque[_Row]] = {}
        self._room = asyncio.Semaphore(WINDOW)
        self._results: asyncio.Queue[ChargeResult | None] = asyncio.Queue(maxsize=WINDOW)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those of the tasks that send right now: they are never cancelled.
        self._sends: set[asyncio.Task[None]] = set()
        self._unknown_in_a_row = 0
        self._failure: Exception | None = None
        self._left = False
        #: Why nothing more is sent; None while the batch sends.
        self.stopped: str | None = None
        #: Sales of this batch that wait for a customer.
        self.pending = 0

    async def __aenter__(self) -> Self:
        self._start(self._feed())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send nothing more and let what is in flight be recorded; the tracker follows what is open."""
        self._left = True
        self.stop("the batch was left")
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
        """Send nothing more: what is pending is followed to its end, the rest comes out as never sent."""
        if self.stopped is None:
            self.stopped = why
            if not self._left:
                logger.warning("the batch sends nothing more: %s", why)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- From the requests to the lanes

    async def _feed(self) -> None:
        try:
            async for chunk in _chunks(self._requests):
                known = await self._tracker.find_many([request.client_transaction_id for request in chunk])
                for request in chunk:
                    await self._room.acquire()
                    self._queue(_Row(request, known.get(request.client_transaction_id)))
        except Exception as error:
            self._failure = error
            self.stop("the requests ended in an error")
        # All the room back: every row has its result.
        for _ in range(WINDOW):
            await self._room.acquire()
        await self._results.put(None)

    def _queue(self, row: _Row) -> None:
        lane = self._tracker.lane(row.request)
        rows = self._lanes.get(lane)
        if rows is None:
            self._lanes[lane] = deque([row])
            self._start(self._work(lane))
        else:
            rows.append(row)

    async def _work(self, lane: bytes) -> None:
        """One customer at one store: one open sale at a time."""
        rows = self._lanes[lane]
        while rows:
            await self._charge(rows.popleft())
        del self._lanes[lane]

    # --- One row

    async def _charge(self, row: _Row) -> None:
        """Send one row and hold the lane until its customer is free again."""
        async with self._prompts:
            sent = await self._send(row)
            if isinstance(sent, ChargeResult):
                await self._emit(sent)
                return
            self.pending += 1
            try:
                over = self._wait == 0 or self._left or await self._until_free(sent)
            finally:
                self.pending -= 1
        if over:
            await self._emit(ChargeResult(request_key=sent.client_transaction_id, outcome=sent.outcome))
        else:
            # Expired by our clock: the customer is free, but the service's last word is still awaited.
            self._start(self._finish(sent))

    async def _send(self, row: _Row) -> PendingSale | ChargeResult:
        """The sale, or the row's result where there is none to wait for."""
        key = row.request.client_transaction_id
        known = row.known
        if known is not None and known.state is State.REFUSED and not (self._retry_refused or passing(known)):
            return ChargeResult(request_key=key, outcome=known.outcome)
        tries, busy_since = 0, self._clock.monotonic()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a worker is a task
        while True:
            async with self._in_flight:
                if known is None or known.state is State.REFUSED:
                    await self._pace()
                    if self.stopped is not None:
                        unsent = NotSentError(f"never sent: {self.stopped}", client_transaction_id=key)
                        return ChargeResult(request_key=key, error=unsent)
                self._sends.add(task)
                try:
                    pending = await self._tracker.sale(row.request)
                except CustomerBusyError as error:
                    # An attempt that created nothing: their sale of another making will end.
                    wait = BUSY_DELAYS[min(tries, len(BUSY_DELAYS) - 1)] * self._scale
                    if self._clock.monotonic() + wait - busy_since > BUSY_FOR * self._scale:
                        return ChargeResult(request_key=key, error=error)
                except RateLimitedError as error:
                    wait = error.retry_after if error.retry_after is not None else 5.0
                    self._next_send = max(self._next_send, self._clock.monotonic() + wait)
                    if tries >= RATE_LIMITED_TRIES:
                        return ChargeResult(request_key=key, error=error)
                except UnauthorizedError as error:
                    self.stop("the service does not take the token (401 or 403)")
                    return ChargeResult(request_key=key, error=error)
                except Exception as error:
                    return ChargeResult(request_key=key, error=error)
                else:
                    if known is None or known.state is State.REFUSED:
                        # What a crash left unknown says nothing of how the service is now.
                        self._count_unknown(pending)
                    return pending
                finally:
                    self._sends.discard(task)
            tries += 1
            await sleep(self._clock, wait)

    def _count_unknown(self, pending: PendingSale) -> None:
        if pending.state is not State.UNKNOWN:
            self._unknown_in_a_row = 0
            return
        self._unknown_in_a_row += 1
        if self._unknown_in_a_row >= UNKNOWN_IN_A_ROW:
            self.stop(f"{UNKNOWN_IN_A_ROW} unknown outcomes in a row")

    async def _pace(self) -> None:
        now = self._clock.monotonic()
        when = max(now, self._next_send)
        self._next_send = when + self._gap
        if when > now:
            await sleep(self._clock, when - now)

    async def _until_free(self, pending: PendingSale) -> bool:
        """Wait until the customer can be charged again; True if there is nothing more to wait for."""
        while (left := pending.remaining) > 0:
            try:
                await pending.wait(timeout=left if self._wait is None else min(left, self._wait))
            except StillPendingError:
                if self._wait is not None and self._wait <= left:
                    return True
                continue
            return True
        return False

    async def _finish(self, pending: PendingSale) -> None:
        await pending.wait()
        await self._emit(ChargeResult(request_key=pending.client_transaction_id, outcome=pending.outcome))

    async def _emit(self, result: ChargeResult) -> None:
        if not self._left:
            await self._results.put(result)
        self._room.release()


@attrs.frozen
class _Row:
    request: SaleRequest
    known: PendingSale | None


def passing(sale: PendingSale) -> bool:
    """Whether a refusal was about the moment: another run tries it again."""
    evidence, error_type = sale.refusal
    return error_type in PASSING or evidence in (Evidence.NOT_SENT, Evidence.ABSENT)


async def _chunks(
    requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest],
) -> AsyncIterator[tuple[SaleRequest, ...]]:
    """What is at hand, so that the ledger is asked for many rows at once."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield (request,)
        return
    iterator = iter(requests)
    while chunk := tuple(itertools.islice(iterator, CHUNK)):
        yield chunk
        await asyncio.sleep(0)


def charge_all(
    tracker: Tracker,
    requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest],
    *,
    max_in_flight: int = 50,
    max_pending: int = 1000,
    rate: float | None = None,
    wait: float | None = None,
    retry: Collection[str] = (),
) -> Charges:
    """Charge many, one open sale per customer: `async with charge_all(...) as results`, then `async for`.

    Every request gives one `ChargeResult`, in the order in which they are decided; one that fails never ends the
    others. `max_in_flight` counts requests, `max_pending` prompts on people's phones; `rate` is sends a second;
    `wait` is how many seconds each sale is waited for (None: to its end, 0: until it is recorded).

    Running it again with the same requests goes on where it stopped: it sends nothing that may exist. Refusals
    about the moment (401, 429, 2061, not sent, proven absent) are tried again, others with `retry={"refused"}`.
    Leaving the block sends nothing more and lets what is in flight be recorded.
    """
    return Charges(
        tracker,
        requests,
        max_in_flight=max_in_flight,
        max_pending=max_pending,
        rate=rate,
        wait=wait,
        retry=retry,
    )
