"""A crowd through the function transport: the whole tracker, and no real second passes."""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections.abc import Callable
from contextlib import suppress

import payclient
from crowd.result import Result
from payclient.ledger.memory import MemoryLedger

__all__ = ["Service", "VirtualClock", "VirtualLoop", "run", "tracking"]

WINDOW = 300.0

PROFILE = payclient.ServiceProfile(
    name="crowd",
    not_found_codes=frozenset({20}),
    status=payclient.StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="state",
    ),
)


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


class Service:
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

    async def __call__(
        self, request: payclient.HttpRequest, before_send: payclient.BeforeSend | None
    ) -> payclient.HttpResponse:
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
            return payclient.HttpResponse(503, {}, b"")
        if self.faults and dice > 0.9899:
            return payclient.HttpResponse(429, {"Retry-After": "1"}, b"{}")
        return self._answer(self.status(identifier))

    def status(self, identifier: str) -> dict[str, object]:
        """What a query says now."""
        when, state = self.truth[identifier]
        now = asyncio.get_running_loop().time()
        return self._bodies[identifier] | {"state": state if now >= when else "Pendiente"}

    async def _sale(self, data: dict[str, object]) -> payclient.HttpResponse:
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
    def _answer(value: object) -> payclient.HttpResponse:
        return payclient.HttpResponse(200, {}, json.dumps(value).encode())


def request(identifier: str) -> payclient.SaleRequest:
    """A small Sale."""
    return payclient.SaleRequest(
        phone_number="0984111222", country_code="593", amount_without_tax=500, currency="USD",
        client_transaction_id=identifier, store_id="S1",
    )  # fmt: skip


def tracking(
    service: Service,
    *,
    profile: payclient.ServiceProfile = PROFILE,
    schedule: payclient.Schedule | None = None,
) -> payclient.Tracker:
    """A tracker over this service."""
    session = payclient.PaySession("https://pay.example", "token", profile=profile, transport=service)
    return payclient.Tracker(session, MemoryLedger(), schedule=schedule, clock=VirtualClock())


async def _run(sales: int, seed: int) -> Result:
    service = Service(seed)
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
            pending = await tracker.sale(request(f"order-{number}"))
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
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_run(sales, seed))
