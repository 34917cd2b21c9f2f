"""One rate of queries for all processes of one ledger, which takes down how far it is spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from payclient.clock import Clock, start
from payclient.errors import LedgerError
from payclient.following.turns import Pace
from payclient.ledger import Shared

__all__: list[str] = []

#: Seconds after which a query that was reserved and not made is given up.
UNUSED = 1.0

#: Where the ledger cannot say whose turn it is: so many other processes are presumed.
PRESUMED = 10


class Budget(Pace):
    """Each query is reserved in the ledger right before it is made.

    One is reserved at a time, and whose turn it is is decided when it has come: a queue of reservations would make
    notified sales wait behind the routine. `ready` is called when a query may be made.
    """

    def __init__(
        self,
        queries_per_minute: float,
        ledger: Shared,
        clock: Clock,
        *,
        name: str,
        ready: Callable[[], object],
        trouble: Callable[[Exception], object],
    ) -> None:
        super().__init__(queries_per_minute)
        self._ledger = ledger
        self._clock = clock
        self._name = name
        self._ready = ready
        self._trouble = trouble
        #: From when on the reserved query may be made; infinity: none is reserved.
        self._slot = float("inf")
        self._reserving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def ready_at(self) -> float:
        return max(self._slot, self._paused_until)

    def want(self, now: float) -> None:
        # One that lay there unused is no reserve for a burst.
        if self._slot < now - max(self.gap, UNUSED):
            self._slot = float("inf")
        if self._slot == float("inf") and self._reserving is None:
            self._reserving = self._start(self._reserve())

    def spend(self, now: float) -> None:
        if self._slot == float("inf"):
            self._start(self._pause(self.gap))  # one that could not wait: the next one of all is later for it
        self._slot = float("inf")

    def rate_limited(self, now: float, made_at: float, retry_after: float | None) -> None:
        before = self._paused_until
        super().rate_limited(now, made_at, retry_after)
        if self._paused_until > before:
            self._start(self._pause(self._paused_until - now))

    async def _reserve(self) -> None:
        try:
            seconds = await self._ledger.reserve(self._name, 1, self.gap)
        except LedgerError as error:
            self._trouble(error)
            seconds = max(PRESUMED * self._gap, self.gap)
        finally:
            self._reserving = None
        self._slot = self._clock.monotonic() + seconds
        self._ready()

    async def _pause(self, seconds: float) -> None:
        try:
            await self._ledger.pause(self._name, seconds)
        except LedgerError as error:
            self._trouble(error)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
