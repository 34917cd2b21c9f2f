"""Many sales from the request to the outcome, beside the truth of the service that decided them.

`PYTHONPATH=.:tests python -m crowd --sales 100000`, in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import pairwise

import attrs

import payclient
from fake_service import PROFILE, FakeService, answer, tracking
from fake_service import sale as push
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from virtual_loop import VirtualClock, in_virtual_time
from virtual_loop import run as run_in_virtual_time

__all__ = [
    "BOUND", "PROFILE", "Service", "farthest", "hint", "in_virtual_time", "limited", "notify", "now", "push", "pushed",
    "run", "tracking", "waited",
]  # fmt: skip

WINDOW = 300.0
#: Seconds in which a wait must have ended: the sale window, and ten minutes.
BOUND = 900.0


@attrs.frozen(kw_only=True)
class Result:
    """Counts of one run."""

    sales: int
    accepted: int
    queries: int
    #: Client transaction ids whose outcome is not what the service decided.
    different: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.sales:,} sales, {self.accepted:,} accepted, {self.queries / self.sales:.1f} queries each, "
            f"{len(self.different)} outcomes differ from the service's truth {self.different[:5] or ''}"
        )


#: What a query is answered; None: as it should be.
Trouble = Callable[[], Awaitable[HttpResponse | None]]


class Service(FakeService):
    """Decides each sale by its own dice, in the loop's time, and loses some answers to Sales.

    Each query is answered by `trouble`, and as it should where that gives None. `undecided`: nobody ever answers.
    """

    def __init__(
        self, trouble: Trouble | None = None, *, undecided: bool = False, seed: int = 11, loses: float = 0.0
    ) -> None:
        super().__init__(VirtualClock())
        self.first_id = 1
        self.random = random.Random(seed)  # noqa: S311 - it must repeat
        self.trouble, self.undecided, self.loses = trouble, undecided, loses
        #: Client transaction id -> when it is decided, and as what.
        self.truth: dict[str, tuple[float, str]] = {}
        self._numbers: dict[str, int] = {}
        #: Told of each answer that a person gave, for notifications.
        self.answered: Callable[[int, str], object] | None = None

    @property
    def asked(self) -> list[tuple[float, str]]:
        """When each query was made, and for which sale."""
        return list(zip(self.queried_at, map(self._asked_for, self.queries), strict=True))

    def _asked_for(self, path: str) -> str:
        index, _, name = path.rpartition("/")
        return name if index.endswith("client") else str(self.sales[int(name)]["clientTransactionId"])

    async def reply(self, path: str) -> HttpResponse:
        if self.trouble is not None and (trouble := await self.trouble()) is not None:
            return trouble
        await asyncio.sleep(0.02)
        return answer(200, self.report(self._asked_for(path)))

    def report(self, identifier: str) -> dict[str, object]:
        """What a query says now."""
        when, state = self.truth[identifier]
        return self.sales[self._numbers[identifier]] | {"state": state if now() >= when else "Pendiente"}

    async def take(self, request: HttpRequest, before_send: BeforeSend) -> HttpResponse:
        await before_send()
        response = self.execute(request)
        if request.path == "/api/Sale":
            await asyncio.sleep(0.05)
            if self.loses and self.random.random() < self.loses:
                raise ConnectionResetError
        return response

    def create(self, request: HttpRequest) -> int:
        number = super().create(request)
        identifier = str(self.sales[number]["clientTransactionId"])
        assert identifier not in self.truth, "charged twice"
        after = 25.0 * 2.718 ** (0.8 * self.random.gauss(0, 1))
        state = "Aceptado" if self.random.random() < 0.85 else "Cancelado"
        if after >= WINDOW or self.random.random() < 0.1:
            after, state = WINDOW, "Cancelado"
        elif self.answered is not None:
            asyncio.get_running_loop().call_later(after + 0.3, self.answered, number, identifier)
        self._numbers[identifier] = number
        self.truth[identifier] = (1e9, "Aceptado") if self.undecided else (now() + after, state)
        return number


def moody(seed: int) -> Trouble:
    """Slow, 5xx or 429 now and then, by dice that decide nothing else, however often they are cast."""
    dice = random.Random(seed)  # noqa: S311 - it must repeat

    async def trouble() -> HttpResponse | None:
        chance = dice.random()
        if chance < 0.01:
            await asyncio.sleep(2.0)
        if chance > 0.99:
            return HttpResponse(503, {}, b"")
        return limited("1") if chance > 0.9899 else None

    return trouble


def hint(pending: payclient.PendingSale) -> payclient.Notification:
    """What the service sends when a sale is decided."""
    assert pending.transaction_id is not None
    return payclient.Notification(
        transaction_id=pending.transaction_id, client_transaction_id=pending.client_transaction_id
    )


def limited(retry_after: str | None = None) -> HttpResponse:
    """A 429."""
    return HttpResponse(429, {} if retry_after is None else {"Retry-After": retry_after}, b"{}")


def now() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


async def pushed(tracker: payclient.Tracker, count: int, name: str = "order") -> list[payclient.PendingSale]:
    """So many sales, one after another."""
    return [await tracker.sale(push(f"{name}-{number}")) for number in range(count)]


async def waited(pendings: Iterable[payclient.PendingSale], bound: float = BOUND) -> list[payclient.Outcome]:
    """The outcomes of sales, none of which is waited for longer than so many seconds."""
    began = now()
    async with asyncio.timeout(100 * BOUND):
        outcomes = await asyncio.gather(*(pending.wait() for pending in pendings))
    assert now() - began <= bound, f"the last wait took {now() - began:.0f} s"
    return outcomes


def farthest(times: Iterable[float]) -> float:
    """The seconds from one query to the next, at most."""
    return max(after - before for before, after in pairwise(times))


async def notify(tracker: payclient.Tracker, number: int, identifier: str) -> None:
    """Notify a tracker, which may be closed by now."""
    with suppress(payclient.PayError):
        await tracker.notify(payclient.Notification(transaction_id=number, client_transaction_id=identifier))


async def _run(sales: int, seed: int) -> Result:
    service = Service(moody(seed), seed=seed, loses=0.01)
    outcomes: dict[str, payclient.Outcome] = {}
    async with tracking(service) as tracker:
        hints: set[asyncio.Task[None]] = set()

        def answered(number: int, identifier: str) -> None:
            if service.random.random() < 0.5:
                task = asyncio.create_task(notify(tracker, number, identifier))
                hints.add(task)
                task.add_done_callback(hints.discard)

        service.answered = answered

        async def one(number: int) -> None:
            await asyncio.sleep(number * 0.005)
            pending = await tracker.sale(push(f"order-{number}"))
            outcomes[pending.client_transaction_id] = await pending.wait()

        await asyncio.gather(*(one(number) for number in range(sales)))
        await asyncio.gather(*hints)
    wanted = {name: state == "Aceptado" for name, (_, state) in service.truth.items()}
    return Result(
        sales=sales,
        accepted=sum(wanted.values()),
        queries=len(service.queries),
        different=tuple(name for name, paid in wanted.items() if outcomes[name].paid is not paid)
        + tuple(name for name in outcomes if name not in wanted),
    )


def run(sales: int, seed: int) -> Result:
    """200 sales a second, half of the answers notified."""
    return run_in_virtual_time(_run(sales, seed))


def main() -> int:
    """Run one crowd and say what differs from the truth; exit 1 if anything does."""
    parser = argparse.ArgumentParser(prog="crowd")
    parser.add_argument("--sales", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    result = run(options.sales, options.seed)
    print(f"{result} in {time.perf_counter() - began:.0f} s")
    return 1 if result.different else 0


if __name__ == "__main__":
    sys.exit(main())
