"""A crowd of customers in virtual time: the poller itself follows them, and no real second passes."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import payclient
from payclient.events import Created
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import Record
from payclient.models import Notification, StatusReport
from payclient.schedule import Schedule
from payclient.session import PaySession
from payclient.tracking.arrivals import Arrivals
from payclient.tracking.followup import Followed, Scheduled, TransactionRef
from payclient.tracking.poller import Poller
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

# The tests' loop in virtual time.
sys.path.insert(0, os.fspath(Path(__file__).parents[1] / "tests"))
from virtual_loop import VirtualClock, run

__all__ = ["Crowd", "RoundRobin", "run"]

WINDOW = 300.0


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
        profile = payclient.ServiceProfile(queries_per_minute=queries_per_minute)
        session = PaySession("https://pay.example", "token", profile=profile, transport=_unused)
        self.poller = Poller(session, self.ledger, self.clock, status=self._status, schedule=schedule)
        self.arrivals = Arrivals(self.poller)

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
        await self.poller.aclose()

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
        self.poller.asks.follow(record)
        if after < WINDOW and self.random.random() < self.notified(number):
            hint = Notification(transaction_id=number, client_transaction_id=record.client_transaction_id)
            late = now + after + 0.2
            asyncio.get_running_loop().call_at(late, lambda: asyncio.create_task(self.arrivals.notify(hint)))
        outcome = await self.poller.handle(record).wait()
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
    """The same poller, the same rate; whoever was asked least recently comes next, whatever his age."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.poller._lines.lag = self._longest  # type: ignore[method-assign]  # that is the comparison

    @staticmethod
    def _longest(ask: Scheduled, now: float) -> float:
        assert isinstance(ask, Followed)
        return now - max(ask.queried_at, ask.record.created_at + ask.offset)


async def _unused(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
    """No request is made: the status source answers."""
    raise AssertionError
