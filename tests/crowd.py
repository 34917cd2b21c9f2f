"""Many sales from the request to the outcome, beside the truth of the service that decided them.

`PYTHONPATH=.:tests python -m crowd --sales 100000`, in virtual time; `--sockets 2000` over real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, ParamSpec

import attrs

import payclient
from fake_service import PROFILE
from fake_service import sale as push
from payclient.ledger import Ledger
from payclient.ledger.memory import MemoryLedger
from payclient.simulator import Answers, Settings, Simulator
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport
from virtual_loop import VirtualClock
from virtual_loop import run as run_in_virtual_time

__all__ = [
    "BOUND", "PROFILE", "Crowd", "Service", "farthest", "hint", "in_virtual_time", "limited", "now", "push", "pushed",
    "run", "tracking", "waited",
]  # fmt: skip

WINDOW = 300.0
#: Seconds in which a wait must have ended: the sale window, and ten minutes.
BOUND = 900.0
#: Of a crowd over real sockets.
SHORT_WINDOW = 6.0


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


class Crowd:
    """Decides each sale by its own dice, loses some answers, and is slow, or says 5xx and 429, now and then."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.random = random.Random(seed)  # noqa: S311 - it must repeat
        #: By dice of their own, so that what people answer does not hang on when and how often they are asked for.
        self.query_random = random.Random(seed)  # noqa: S311 - as above
        self.faults = faults
        #: Client transaction id -> when it is decided, and as what.
        self.truth: dict[str, tuple[float, str]] = {}
        self._ids: dict[int, str] = {}
        self._bodies: dict[str, dict[str, object]] = {}
        self.queries: list[tuple[float, str]] = []
        #: Told of each answer that a person gave, for notifications.
        self.answered: Callable[[int, str], object] | None = None

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if before_send is not None:
            await before_send()
        if request.method == "POST":
            return await self._sale(json.loads(request.body))
        path, _, name = request.path.rpartition("/")
        identifier = name if path.endswith("client") else self._ids[int(name)]
        loop = asyncio.get_running_loop()
        self.queries.append((loop.time(), identifier))
        dice = self.query_random.random()
        await asyncio.sleep(2.0 if self.faults and dice < 0.01 else 0.02)
        if self.faults and dice > 0.99:
            return HttpResponse(503, {}, b"")
        if self.faults and dice > 0.9899:
            return HttpResponse(429, {"Retry-After": "1"}, b"{}")
        return self._answer(self.status(identifier))

    def status(self, identifier: str) -> dict[str, object]:
        """What a query says now."""
        when, state = self.truth[identifier]
        now = asyncio.get_running_loop().time()
        return self._bodies[identifier] | {"state": state if now >= when else "Pendiente"}

    async def _sale(self, data: dict[str, object]) -> HttpResponse:
        loop = asyncio.get_running_loop()
        identifier, number = str(data["clientTransactionId"]), 1 + len(self._ids)
        assert identifier not in self.truth, "charged twice"
        after = 25.0 * 2.718 ** (0.8 * self.random.gauss(0, 1))
        state = "Aceptado" if self.random.random() < 0.85 else "Cancelado"
        if after >= WINDOW or self.random.random() < 0.1:
            after, state = WINDOW, "Cancelado"
        elif self.answered is not None:
            loop.call_at(loop.time() + after + 0.3, self.answered, number, identifier)
        self._ids[number] = identifier
        self.truth[identifier] = (loop.time() + after, state)
        self._bodies[identifier] = {
            "transactionId": number, "clientTransactionId": identifier,
            "amount": data["amount"], "currency": data["currency"],
        }  # fmt: skip
        await asyncio.sleep(0.05)
        if self.faults and self.random.random() < 0.01:
            raise ConnectionResetError
        return self._answer({"transactionId": number})

    @staticmethod
    def _answer(value: object) -> HttpResponse:
        return HttpResponse(200, {}, json.dumps(value).encode())


def hint(pending: payclient.PendingSale) -> payclient.Notification:
    """What the service sends when a sale is decided."""
    assert pending.transaction_id is not None
    return payclient.Notification(
        transaction_id=pending.transaction_id, client_transaction_id=pending.client_transaction_id
    )


def limited(retry_after: str | None = None) -> HttpResponse:
    """A 429."""
    return HttpResponse(429, {} if retry_after is None else {"Retry-After": retry_after}, b"{}")


#: What a query is answered; None: as it should be.
Trouble = Callable[[], Awaitable[HttpResponse | None]]


class Service(Crowd):
    """Answers each query by `trouble`, and as it should where that gives None. `undecided`: nobody ever answers."""

    def __init__(self, trouble: Trouble | None = None, *, undecided: bool = False, seed: int = 11) -> None:
        super().__init__(seed, faults=False)
        self.trouble = trouble
        self.undecided = undecided
        #: When each query was made.
        self.made: list[float] = []

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if request.method == "GET":
            self.made.append(now())
            if self.trouble is not None:
                if before_send is not None:
                    await before_send()
                if (answer := await self.trouble()) is not None:
                    return answer
        answer = await super().__call__(request, before_send)
        if request.method == "POST" and self.undecided:
            self.truth[json.loads(request.body)["clientTransactionId"]] = (1e9, "Aceptado")
        return answer


def tracking(
    service: Crowd,
    *,
    ledger: Ledger | None = None,
    profile: payclient.ServiceProfile = PROFILE,
    status: payclient.StatusSource | None = None,
    schedule: payclient.Schedule | None = None,
    transport: Transport | None = None,
    token: Callable[[], Awaitable[str]] | None = None,
) -> payclient.Tracker:
    """A tracker over this service, or over what stands in front of it."""
    session = payclient.PaySession(
        "https://pay.example", token or "token", profile=profile, transport=transport or service
    )
    return payclient.Tracker(
        session, MemoryLedger() if ledger is None else ledger, status=status, schedule=schedule,
        clock=VirtualClock(),
    )  # fmt: skip


P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop whose time jumps to the next timer."""

    @functools.wraps(test)
    def run_it(*args: P.args, **options: P.kwargs) -> None:
        run_in_virtual_time(test(*args, **options))

    return run_it


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


async def _run(sales: int, seed: int) -> Result:
    service = Crowd(seed)
    outcomes: dict[str, payclient.Outcome] = {}
    tracker = tracking(service)
    async with tracker:

        async def notify(number: int, identifier: str) -> None:
            with suppress(payclient.PayError):
                await tracker.notify(
                    payclient.Notification(transaction_id=number, client_transaction_id=identifier)
                )

        hints: set[asyncio.Task[None]] = set()

        def answered(number: int, identifier: str) -> None:
            if service.random.random() < 0.5:
                task = asyncio.create_task(notify(number, identifier))
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


async def run_over_sockets(sales: int, seed: int) -> Result:
    """All at once, each with a customer of its own."""
    settings = Settings(
        sale_window=SHORT_WINDOW,
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    assert PROFILE.status is not None
    status = attrs.evolve(PROFILE.status, state_field="transactionStatus")
    profile = attrs.evolve(PROFILE, sale_window=SHORT_WINDOW, form_window=2 * SHORT_WINDOW, status=status)
    answers = Answers.parse("approve=0.75,reject=0.15,ignore=0.1", delay=(1.0, 0.6), seed=seed)
    exchanges: list[payclient.Exchange] = []
    async with (
        Simulator(token="secret", settings=settings, answers=answers) as service,
        payclient.open_tracker(
            service.url, "secret", ledger="memory:", profile=profile, on_exchange=exchanges.append
        ) as tracker,
    ):
        gate = asyncio.Semaphore(100)

        async def one(number: int) -> payclient.Outcome:
            async with gate:
                pending = await tracker.sale(push(f"order-{number}", f"09{number:08}"))
            return await pending.wait()

        outcomes = await asyncio.gather(*(one(number) for number in range(sales)))
        counts = service.counts
        said = sum(outcome.paid is True for outcome in outcomes)
        different = [name for name, times in service.created_per_client_id.items() if times != 1]
        different += [outcome.client_transaction_id for outcome in outcomes if outcome.paid is None]
        if (said, len(outcomes) - said) != (counts.approved, counts.rejected + counts.expired):
            different.append(f"{said} paid where {counts.approved} were approved")
    return Result(
        sales=sales,
        accepted=counts.approved,
        queries=sum(exchange.operation == "status" for exchange in exchanges),
        different=tuple(different),
    )


def main() -> int:
    """Run one crowd and say what differs from the truth; exit 1 if anything does."""
    parser = argparse.ArgumentParser(prog="crowd")
    parser.add_argument("--sales", type=int, default=100_000)
    parser.add_argument("--sockets", type=int, default=0, help="so many over real sockets instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    if options.sockets:
        result = asyncio.run(run_over_sockets(options.sockets, options.seed))
    else:
        result = run(options.sales, options.seed)
    print(f"{result} in {time.perf_counter() - began:.0f} s")
    return 1 if result.different else 0


if __name__ == "__main__":
    sys.exit(main())
