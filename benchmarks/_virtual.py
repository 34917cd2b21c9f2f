"""A crowd of customers in virtual time: the driver itself follows them, and no real second passes."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from payclient.asking import TransactionRef
from payclient.events import Created
from payclient.following import Following
from payclient.following.entries import Entry
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.results import Notification, StatusReport
from payclient.schedule import Schedule

T = TypeVar("T")

WINDOW = 300.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """Where nothing is ready, it is at once as late as the next timer says."""

    now = 0.0

    def __init__(self) -> None:
        selector = selectors.SelectSelector()
        select = selector.select
        # No real second passes, also where the timer that was next has been cancelled.
        selector.select = lambda timeout=None: select(None if timeout is None else 0)  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # of BaseEventLoop
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]  # as above
        super()._run_once()  # type: ignore[misc]  # as above


class VirtualClock:
    """The wall clock goes with the loop's own time."""

    def time(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when, callback, *args)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class Crowd:
    """Customers whose answer is drawn from a law, and the service that knows of it."""

    def __init__(
        self,
        schedule: Schedule,
        draw: Callable[[random.Random], float],
        *,
        seed: int,
        queries_per_minute: float | None = None,
        notified: Callable[[int], float] = lambda number: 0.0,
    ) -> None:
        self.random = random.Random(seed)  # noqa: S311 - it must repeat
        self.draw = draw
        #: The chance that the answer of a sale is notified, by the sale's number.
        self.notified = notified
        self.answers_at: dict[int, float] = {}
        #: Per sale: queries made, and seconds from the answer to the end of the wait.
        self.queries: dict[int, int] = {}
        self.delays: dict[int, float] = {}
        #: Seconds from each sale's creation to the end of its wait.
        self.lives: dict[int, float] = {}
        self.ledger = MemoryLedger()
        self.clock = VirtualClock()
        self.following = Following(
            self.ledger, self.clock, status=self._status, schedule=schedule, proves_absence=True,
            sale_window=WINDOW, form_window=600.0, total_timeout=30.0, absent_after=600.0,
            queries_per_minute=queries_per_minute,
        )  # fmt: skip

    async def _status(self, reference: TransactionRef) -> StatusReport:
        number = reference.transaction_id
        assert number is not None
        self.queries[number] += 1
        await asyncio.sleep(0.02)
        now, at = self.clock.monotonic(), self.answers_at[number]
        created = self.created[number]
        answered = "Aceptado" if at <= now else "Cancelado" if now >= created + WINDOW else "Pendiente"
        return StatusReport(state=answered, transaction_id=number)

    created: dict[int, float]

    async def follow(self, arrivals: Iterator[float]) -> None:
        """One sale at each of these times, each followed to its end."""
        self.created = {}
        waits = []
        for number, when in enumerate(arrivals, 1):
            await asyncio.sleep(max(when - self.clock.monotonic(), 0.0))
            waits.append(asyncio.create_task(self._sale(number)))
        await asyncio.gather(*waits)
        await self.following.aclose()

    async def _sale(self, number: int) -> None:
        now, wall = self.clock.monotonic(), self.clock.time()
        after = self.draw(self.random)
        self.created[number] = now
        self.answers_at[number] = now + after if after < WINDOW else math.inf
        self.queries[number] = 0
        record = Record(client_transaction_id=f"order-{number:06}", created_at=wall)
        await self.ledger.permit(record)
        event = Created(at=wall, transaction_id=number, expires_at=wall + WINDOW)
        record = await self.ledger.apply(record, event)
        self.following.follow(record)
        if after < WINDOW and self.random.random() < self.notified(number):
            hint = Notification(transaction_id=number, client_transaction_id=record.client_transaction_id)
            late = now + after + 0.2
            asyncio.get_running_loop().call_at(late, lambda: asyncio.create_task(self.following.notify(hint)))
        outcome = await self.following.wait(record, None)
        self.lives[number] = self.clock.monotonic() - now
        if outcome.paid and after < WINDOW:
            self.delays[number] = self.clock.monotonic() - self.answers_at[number]

    def mean_delay(self, first: int = 0, last: int = 10**9) -> float:
        """Of the sales numbered so."""
        delays = [delay for number, delay in self.delays.items() if first <= number <= last]
        return sum(delays) / len(delays)

    def mean_queries(self, first: int = 0, last: int = 10**9) -> float:
        """Of the sales numbered so."""
        counts = [count for number, count in self.queries.items() if first <= number <= last]
        return sum(counts) / len(counts)


class RoundRobin(Crowd):
    """The same driver, the same rate; whoever was asked least recently comes next, whatever his age."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.following._driver._turns.need = self._longest  # type: ignore[method-assign]  # that is the comparison

    @staticmethod
    def _longest(entry: Entry, now: float) -> float:
        record = entry.record
        return now - max(entry.asked_at, record.created_at + entry.offset)
