"""Lanes: the rows of one customer at one store, who has one open sale at a time; and whose turn it is."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Iterable

import attrs

from payclient.batch.results import passes
from payclient.clock import Clock
from payclient.errors import LedgerError, StillPendingError
from payclient.lifecycle import State
from payclient.logs import Log
from payclient.models import SaleRequest
from payclient.tracking.bulk import Bulk
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.purchases import check_purchase
from payclient.validation import check_type

__all__ = ["ChargeRow"]

log: Log = Log("payclient.batch")

#: Seconds beyond the sale window from which a customer with an unknown sale is free.
UNKNOWN_GRACE = 60.0

#: Requests that are looked up in the ledger at once.
CHUNK = 200


@attrs.frozen(kw_only=True)
class ChargeRow:
    """One row of a batch: a request, and what it is for. Raises `InvalidRequestError` for a key that is not valid.

    - `request`: What is sent.
    - `purchase`: As of `tracker.sale`; None: the purchase is the client transaction id.
    """

    request: SaleRequest
    purchase: str | None = None

    def __attrs_post_init__(self) -> None:
        check_type("request", self.request, SaleRequest)
        if self.purchase is not None:
            check_purchase(self.purchase)


class LaneRow:
    """One request, the sale that the ledger had under its id when it was read, and its tries."""

    __slots__ = ("busy_since", "known", "looked_at", "purchase", "request", "tries")

    def __init__(self, request: SaleRequest, purchase: str | None, known: PendingSale | None) -> None:
        self.request: SaleRequest = request
        self.purchase: str | None = purchase
        self.known: PendingSale | None = known
        #: When the ledger was last read for what other processes did with the row, by the monotonic clock.
        self.looked_at: float = float("-inf")
        self.tries: int = 0
        #: When its customer was first found busy with a sale that is not ours.
        self.busy_since: float | None = None

    def sends(self, *, retry_refused: bool) -> bool:
        """Return whether the row may send, as far as is known; otherwise its answer is in the ledger."""
        known = self.known
        return known is None or (known.state is State.REFUSED and (retry_refused or passes(*known.refusal)))


class Lane:
    """The rows of one customer that are at hand."""

    __slots__ = ("key", "rows", "turn", "waits")

    def __init__(self, key: bytes) -> None:
        self.key: bytes = key
        #: Most lanes have one, and an empty deque takes ten times as much memory as a list.
        self.rows: list[LaneRow] = []
        #: Whether the first row waits for its turn, or is being charged.
        self.waits: bool = False
        #: The number of the place among `Turns`; 0: none.
        self.turn: int = 0


# --- Where they come from


async def rows_of(
    bulk: Bulk, requests: Iterable[SaleRequest | ChargeRow] | AsyncIterable[SaleRequest | ChargeRow]
) -> AsyncGenerator[LaneRow, None]:
    """Yield every row in the order of the requests. A request that had to be awaited is looked up alone."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            for row in await _look_up(bulk, [request]):
                yield row
        return
    iterator = iter(requests)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        for row in await _look_up(bulk, chunk):
            yield row
        await asyncio.sleep(0)


async def _look_up(bulk: Bulk, requests: list[SaleRequest | ChargeRow]) -> list[LaneRow]:
    rows = [
        (each.request, each.purchase) if isinstance(each, ChargeRow) else (each, None) for each in requests
    ]
    known = await bulk.find([request.client_transaction_id for request, _ in rows])
    return [
        LaneRow(request, purchase, known.get(request.client_transaction_id)) for request, purchase in rows
    ]


# --- Whose turn it is


class Turns:
    """The lanes whose customers are free. The lane with most rows left comes first, because it ends last."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Lane]] = []
        self._number = 0

    def __bool__(self) -> bool:
        while self._heap and self._heap[0][2].turn != self._heap[0][1]:
            heapq.heappop(self._heap)  # the lane has grown since, and stands further ahead
        return bool(self._heap)

    def add(self, lane: Lane) -> None:
        """Give a lane its place, or its new place after it got more rows."""
        self._number += 1
        lane.turn = self._number
        heapq.heappush(self._heap, (-len(lane.rows), self._number, lane))

    def take(self) -> Lane:
        """Remove the first of a non-empty queue and return it."""
        lane = self.first()
        heapq.heappop(self._heap)
        lane.turn = 0
        return lane

    def first(self) -> Lane:
        """Return the first of a non-empty queue."""
        if not self:
            raise IndexError("no lane waits")
        return self._heap[0][2]


class LaneHold:
    """Holds a lane while its customer is busy with a sale of ours.

    - `wait`: Seconds for which each sale is waited for; None: to its end.
    - `late`: Seconds for which the lane of an unknown sale is held beyond its expiry.
    """

    def __init__(self, clock: Clock, *, wait: float | None, late: float) -> None:
        self._clock = clock
        self._wait = wait
        self._late = late

    async def until_over(self, pending: PendingSale) -> bool:
        """Wait until the customer can be charged again; return True if the sale is waited for no longer."""
        while (left := self._left(pending)) > 0:
            try:
                await wait_for(pending, left if self._wait is None else min(left, self._wait))
            except StillPendingError:
                if self._wait is None or self._wait > left:
                    continue
            return True
        return False

    def _left(self, pending: PendingSale) -> float:
        """Return the seconds until the customer can no longer approve; an unknown sale has `late` more."""
        if pending.expires_at is None:
            return 0.0
        late = self._late if pending.state is State.UNKNOWN else 0.0
        return pending.expires_at + late - self._clock.time()


async def wait_for(pending: PendingSale, seconds: float | None = None) -> None:
    """Wait for a sale; an error of the ledger is logged and ends the wait. Raises `StillPendingError`."""
    try:
        await pending.wait(timeout=seconds)
    except LedgerError as error:
        identifier = pending.client_transaction_id
        log("error", "wait_failed", identifier, "cannot be waited for: %s", type(error).__name__)
