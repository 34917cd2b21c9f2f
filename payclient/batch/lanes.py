"""The rows of a batch, in lanes: those of one customer at one store, who has one open sale at a time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterable
from typing import TypeGuard

import attrs

from payclient.errors import (
    AlreadyPaidError,
    CustomerBusyError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.events import Evidence
from payclient.lifecycle import Record, State
from payclient.models import SaleRequest
from payclient.tracking.attempts import Attempts
from payclient.tracking.outcomes import Outcome, PendingSale
from payclient.tracking.purchases import check_purchase
from payclient.validation import check_type

__all__ = ["ChargeResult", "ChargeRow"]

#: Errors about the moment and not about the row: another run tries the row again.
PASSING = frozenset({UnauthorizedError.__name__, RateLimitedError.__name__, CustomerBusyError.__name__})

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


@attrs.frozen(kw_only=True)
class ChargeResult:
    """The result of one request: an outcome, or the error that says why this run created nothing.

    - `request_key`: The request's client transaction id.
    - `outcome`: What is known of the sale, also of an earlier run's; None where there is an error.
    - `error`: Why this run created nothing; None where there is an outcome.
    """

    request_key: str
    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def paid(self) -> bool | None:
        """True, False, or None: not known. False of a row whose purchase is paid by another charge."""
        if self.outcome is not None:
            return self.outcome.paid
        # After an error of another kind an earlier attempt of the id may exist.
        return False if is_refusal(self.error) or isinstance(self.error, AlreadyPaidError) else None


def is_refusal(error: Exception | None) -> TypeGuard[RefusedError]:
    """Return whether the service refused the row: without an HTTP status, an earlier attempt was found open."""
    return isinstance(error, RefusedError) and error.http_status is not None


def may_send(known: Record | None, retry: Collection[str]) -> bool:
    """Return whether a row may be sent by the attempt that its id has; otherwise that attempt is its answer.

    A refusal about the moment, and not about the row, is always tried again, others with `retry={"refused"}`.
    """
    if known is None or known.state is not State.REFUSED:
        return known is None
    return passes(known.error_type, known.evidence) or "refused" in retry


def passes(error_type: str | None, evidence: str) -> bool:
    """Return whether a refusal is about the moment, and not about the row."""
    return error_type in PASSING or evidence in (Evidence.NOT_SENT, Evidence.ABSENT)


@attrs.define(eq=False, repr=False, weakref_slot=False)
class LaneRow:
    """One request, the sale that the ledger had under its id when it was read, and its tries."""

    request: SaleRequest
    purchase: str | None
    known: PendingSale | None
    #: When the ledger was last read for what other processes did with the row, by the monotonic clock.
    read_at: float = float("-inf")
    #: The tries that met HTTP 429, and those whose customer was busy with a sale that is not ours.
    limited: int = 0
    busy: int = 0
    #: When its customer was first found busy so.
    busy_since: float | None = None

    @property
    def refused(self) -> PendingSale | None:
        """The sale that the ledger had, where it was refused."""
        return self.known if self.known is not None and self.known.state is State.REFUSED else None


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Lane:
    """The rows of one customer at one store that were read and not sent yet: the first may be sent."""

    key: bytes
    #: Most lanes have one, and an empty deque takes ten times as much memory as a list.
    rows: list[LaneRow] = attrs.field(factory=list)
    #: The number of the lane's entry among `Turns`; 0: it has none.
    place: int = 0


# --- Where they come from


Requests = Iterable[SaleRequest | ChargeRow] | AsyncIterable[SaleRequest | ChargeRow]


async def rows_of(attempts: Attempts, requests: Requests) -> AsyncGenerator[LaneRow, None]:
    """Yield a row for each request, in their order, with the sale that the ledger has of its id."""
    async for chunk in _chunks(requests):
        rows = [each if isinstance(each, ChargeRow) else ChargeRow(request=each) for each in chunk]
        known = await attempts.find([row.request.client_transaction_id for row in rows])
        for row in rows:
            yield LaneRow(row.request, row.purchase, known.get(row.request.client_transaction_id))


async def _chunks(requests: Requests) -> AsyncGenerator[list[SaleRequest | ChargeRow], None]:
    """Yield the requests as lists that are looked up at once: of an async iterable each alone, as it comes."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield [request]  # not held back until a chunk is full
        return
    iterator = iter(requests)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk
        await asyncio.sleep(0)


# --- Whose turn it is


class Turns:
    """The lanes whose customers are free. First one that needs no send, then that with most rows: it ends last."""

    def __init__(self) -> None:
        #: Whether the first row is sent, the negative number of rows (most first), the lane's place then, and the lane.
        self._heap: list[tuple[bool, int, int, Lane]] = []
        self._last_place = 0

    def add(self, lane: Lane, place: int | None = None, *, sends: bool) -> None:
        """Give a lane its place, or its new place after it got more rows; `place` is that of one that was taken."""
        self._last_place += 1
        lane.place = self._last_place if place is None else place
        heapq.heappush(self._heap, (sends, -len(lane.rows), lane.place, lane))

    def first(self) -> Lane | None:
        """Return the first lane, which keeps its place; None: no customer is free."""
        while self._heap:
            *_, place, lane = self._heap[0]
            if place == lane.place:
                return lane
            heapq.heappop(self._heap)  # the lane has grown since, and has a place further ahead
        return None

    def take(self) -> None:
        """Remove the first lane."""
        heapq.heappop(self._heap)[3].place = 0
