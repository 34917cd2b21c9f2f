"""Lanes: one customer at one store, one open sale at a time; whose turn it is, and when a customer is free again."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Protocol, runtime_checkable

from payclient.batch.results import passing
from payclient.clock import Clock
from payclient.errors import LedgerError, StillPendingError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.tracking.outcomes import PendingSale

__all__ = ["UNKNOWN_GRACE", "Hold", "Lane", "LaneRow", "Lanes", "Turns"]

logger: logging.Logger = logging.getLogger("payclient.batch")

#: Seconds beyond the sale window from which a customer with an unknown sale is free.
UNKNOWN_GRACE = 60.0


@runtime_checkable
class Lanes(Protocol):
    """Requests whose lanes are known beforehand, such as a file's that was read once."""

    def lanes(self) -> Iterator[tuple[Any, int]]:
        """Each lane with how many rows it has, the longest first."""

    def next_of(self, lane: Any) -> SaleRequest | None:
        """The next row of a lane; None at its end."""


class LaneRow:
    """One request, what the ledger knew of it when it was read, and its tries."""

    __slots__ = ("busy_since", "known", "looked_at", "request", "tries")

    def __init__(self, request: SaleRequest, known: PendingSale | None) -> None:
        self.request: SaleRequest = request
        self.known: PendingSale | None = known
        #: When the ledger was last asked what other processes did with it, by the monotonic clock.
        self.looked_at: float = float("-inf")
        self.tries: int = 0
        #: When its customer was first found busy with a sale that is not ours.
        self.busy_since: float | None = None

    def sends(self, *, retry_refused: bool) -> bool:
        """Whether it may send, as far as is known; else its answer is in the ledger."""
        known = self.known
        return known is None or (known.state is State.REFUSED and (retry_refused or passing(known)))


class Lane:
    """The rows of one customer that are at hand, and how many come behind them."""

    __slots__ = ("ahead", "key", "rows", "turn", "waits")

    def __init__(self, key: Hashable, ahead: int = 0) -> None:
        self.key: Hashable = key
        self.rows: deque[LaneRow] = deque()
        #: Rows that the source still has of it.
        self.ahead: int = ahead
        #: Its first row waits for its turn, or is being charged.
        self.waits: bool = False
        #: The number of its place among `Turns`; 0 where it has none.
        self.turn: int = 0

    def __len__(self) -> int:
        return len(self.rows) + self.ahead


class Turns:
    """The lanes whose customers are free: the one with most rows left comes first, for it ends last."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Lane]] = []
        self._number = 0

    def __bool__(self) -> bool:
        while self._heap and self._heap[0][2].turn != self._heap[0][1]:
            heapq.heappop(self._heap)  # it has grown since, and stands further ahead
        return bool(self._heap)

    def add(self, lane: Lane) -> None:
        """Give a free customer a place, or one that has got more rows its new place."""
        self._number += 1
        lane.turn = self._number
        heapq.heappush(self._heap, (-len(lane), self._number, lane))

    def take(self) -> Lane:
        """Remove the first of a non-empty queue and return it."""
        lane = self.first()
        heapq.heappop(self._heap)
        lane.turn = 0
        return lane

    def first(self) -> Lane:
        """Return the first of a non-empty queue."""
        if not self:
            raise IndexError("nobody waits")
        return self._heap[0][2]


class Hold:
    """Holds a lane while its customer is busy with a sale of ours.

    `wait`: seconds for which each is waited for, None: to its end. `late`: seconds for which an unknown one is held
    beyond its expiry.
    """

    def __init__(self, clock: Clock, *, wait: float | None, late: float) -> None:
        self._clock = clock
        self._wait = wait
        self._late = late

    async def until_over(self, pending: PendingSale) -> bool:
        """Wait until the customer can be charged again; True if there is nothing more to wait for."""
        while (left := self._left(pending)) > 0:
            try:
                await pending.wait(timeout=left if self._wait is None else min(left, self._wait))
            except StillPendingError:
                if self._wait is not None and self._wait <= left:
                    return True
                continue
            except LedgerError as error:
                logger.error(
                    "%s: cannot be waited for: %s", pending.client_transaction_id, type(error).__name__
                )
            return True
        return False

    def _left(self, pending: PendingSale) -> float:
        """Seconds until the customer can no longer approve, and a while more where nobody knows since when."""
        if pending.expires_at is None:
            return 0.0
        late = self._late if pending.state is State.UNKNOWN else 0.0
        return pending.expires_at + late - self._clock.time()
