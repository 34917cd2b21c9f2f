"""A service as a function: the whole of a `Transport`, for tests of what stands above it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable

import payclient
from payclient.simulator import ManualClock

PROFILE = payclient.ServiceProfile(
    name="test",
    duplicate_codes=frozenset({23}),
    not_found_codes=frozenset({20}),
    status=payclient.StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="state",
    ),
)

Script = Callable[
    ["FakeService", payclient.HttpRequest, payclient.BeforeSend], Awaitable[payclient.HttpResponse]
]


def answer(status: int, value: object) -> payclient.HttpResponse:
    """An answer with a JSON body."""
    return payclient.HttpResponse(status, {}, json.dumps(value).encode())


def refusal(code: int, inner: int | None = None, status: int = 400) -> payclient.HttpResponse:
    """An error object (§7)."""
    errors = [] if inner is None else [{"message": "inner", "errorCode": inner}]
    return answer(status, {"message": "general", "errorCode": code, "errors": errors})


class FakeService:
    """Creates sales, answers queries, and misbehaves by script: one entry of `scripts` for each next Sale."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        #: transaction id -> its status object.
        self.sales: dict[int, dict[str, object]] = {}
        self.scripts: list[Script] = []
        #: What a status query answers instead; called once for each query.
        self.status_scripts: list[Callable[[], payclient.HttpResponse]] = []
        #: Complete requests by client transaction id: what reached the service.
        self.posted: Counter[str] = Counter()
        self.queries: list[str] = []

    async def __call__(
        self, request: payclient.HttpRequest, before_send: payclient.BeforeSend | None
    ) -> payclient.HttpResponse:
        assert before_send is not None
        if request.method == "GET":
            await before_send()
            self.queries.append(request.path)
            await asyncio.sleep(0)
            return self.status_scripts.pop(0)() if self.status_scripts else self.status(request.path)
        if self.scripts:
            return await self.scripts.pop(0)(self, request, before_send)
        return await self.take(request, before_send)

    async def take(
        self, request: payclient.HttpRequest, before_send: payclient.BeforeSend
    ) -> payclient.HttpResponse:
        """The ordinary way: connect, permit, create, answer."""
        await asyncio.sleep(0)
        await before_send()
        return answer(200, {"transactionId": self.create(request)})

    def create(self, request: payclient.HttpRequest) -> int:
        """Execute the charge."""
        data = json.loads(request.body)
        identifier = 1000 + len(self.sales)
        self.posted[data["clientTransactionId"]] += 1
        self.sales[identifier] = {
            "transactionId": identifier,
            "clientTransactionId": data["clientTransactionId"],
            "amount": data["amount"],
            "currency": data["currency"],
            "state": "Pendiente",
        }
        return identifier

    def status(self, path: str) -> payclient.HttpResponse:
        """Answer a query by either id."""
        if path.startswith("/api/Sale/client/"):
            name = path.rpartition("/")[2]
            return answer(200, [sale for sale in self.sales.values() if sale["clientTransactionId"] == name])
        sale = self.sales.get(int(path.rpartition("/")[2]))
        return refusal(20, status=404) if sale is None else answer(200, sale)

    def decide(self, state: str, transaction_id: int = 1000) -> None:
        """The customer acts, or the request expires."""
        self.sales[transaction_id]["state"] = state


async def lost_answer(
    service: FakeService, request: payclient.HttpRequest, before_send: payclient.BeforeSend
) -> payclient.HttpResponse:
    """The charge is executed, and its answer never arrives."""
    await before_send()
    service.create(request)
    raise ConnectionResetError


async def lost_request(
    service: FakeService, request: payclient.HttpRequest, before_send: payclient.BeforeSend
) -> payclient.HttpResponse:
    """The bytes leave and are lost."""
    await before_send()
    raise ConnectionResetError


async def no_connection(
    service: FakeService, request: payclient.HttpRequest, before_send: payclient.BeforeSend
) -> payclient.HttpResponse:
    """Nobody answers at the door."""
    raise ConnectionRefusedError


def refuses(code: int, inner: int | None = None, status: int = 400) -> Script:
    """An error object is answered."""

    async def script(
        service: FakeService, request: payclient.HttpRequest, before_send: payclient.BeforeSend
    ) -> payclient.HttpResponse:
        await before_send()
        return refusal(code, inner, status)

    return script


def sale(identifier: str = "order-17", phone: str = "0984111222", **changes: object) -> payclient.SaleRequest:
    """A small Sale."""
    fields: dict[str, object] = {
        "phone_number": phone,
        "country_code": "593",
        "amount_with_tax": 1000,
        "tax": 150,
        "currency": "USD",
        "client_transaction_id": identifier,
        "store_id": "S1",
    }
    return payclient.SaleRequest(**(fields | changes))  # type: ignore[arg-type]  # any field, also a bad one
