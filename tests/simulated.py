"""A merchant of the simulator: a client over real HTTP, the bodies that it sends, and its server. Fixtures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from manual_clock import ManualClock
from payclient.simulator import Form, Settings, Simulator
from ports import served

__all__ = [
    "BEARER", "QUERIES", "SHOP", "Client", "Merchant", "client_of", "merchant", "prepare_of", "sale_of", "until",
]  # fmt: skip

BEARER = {"Authorization": "Bearer token-1"}
SHOP = {"Referer": "https://shop.example/"}
QUERIES = Settings(
    status_by_transaction_id="/api/Sale/{transaction_id}",
    status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
)
#: What a form asks for, if it is not given.
TYPED = {"phoneNumber": "+593984111222", "email": "ann@shop.example", "documentId": "0102030405"}

Answer = tuple[int, Any]


def sale_of(number: int = 1, /, **changes: Any) -> dict[str, object]:
    """A valid Sale of one customer; a change to `...` takes the field out."""
    body: dict[str, object] = {
        "phoneNumber": f"09{number:08}", "countryCode": "593", "amount": 1150, "amountWithTax": 1000, "tax": 150,
        "currency": "USD", "clientTransactionId": f"order-{number}", "storeId": "S1", **changes,
    }  # fmt: skip
    return {name: value for name, value in body.items() if value is not ...}


def prepare_of(number: int = 1, /, **changes: Any) -> dict[str, object]:
    """A valid Button/Prepare with everything for which a form would ask."""
    body: dict[str, object] = {
        "amount": 1150, "amountWithTax": 1000, "tax": 150, "currency": "USD", "clientTransactionId": f"form-{number}",
        "storeId": "S1", "responseUrl": "https://shop.example/paid", "cancellationUrl": "https://shop.example/cancelled",
        **TYPED, **changes,
    }  # fmt: skip
    return {name: value for name, value in body.items() if value is not ...}


class Client:
    """A merchant's client of one simulator, and a browser. `headers` are those of the last answer."""

    def __init__(self, service: Simulator, session: aiohttp.ClientSession) -> None:
        self.service = service
        self._session = session
        self.headers: dict[str, str] = {}

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        """One request; the status, and the JSON or the text of the answer."""
        options.setdefault("headers", BEARER)
        url = path if path.startswith("http") else self.service.url + path
        async with self._session.request(method, url, allow_redirects=False, **options) as response:
            text = await response.text()
            self.headers = dict(response.headers)
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json and text else text

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.send("GET", path, **options)

    async def post(self, path: str, body: object, **options: Any) -> Answer:
        return await self.send("POST", path, json=body, **options)

    async def control(self, operation: str, /, **arguments: Any) -> Answer:
        """Call an operation of the control routes."""
        return await self.post(f"/_simulator/{operation}", arguments)

    async def sell(self, body: object, **options: Any) -> Answer:
        return await self.post("/api/Sale", body, **options)

    async def prepare(self, body: object, **options: Any) -> Answer:
        return await self.post("/api/button/Prepare", body, **options)

    async def sale(self, number: int = 1, /, **changes: Any) -> int:
        """The transaction id of a new sale."""
        status, answer = await self.sell(sale_of(number, **changes))
        assert status == 200, answer
        assert type(answer["transactionId"]) is int
        return int(answer["transactionId"])

    async def form(self, number: int = 1, /, **changes: Any) -> Form:
        """A new form."""
        status, answer = await self.prepare(prepare_of(number, **changes))
        assert status == 200, answer
        return self.service.forms[answer["paymentId"]]

    async def paid(self, number: int = 1, /, **changes: Any) -> int:
        """The transaction id of a form that was prepared and paid."""
        form = await self.form(number, **changes)
        await self.service.pay(form.payment_id)
        assert form.transaction_id is not None
        return form.transaction_id

    async def confirm(self, transaction_id: int, client_transaction_id: str = "form-1") -> Answer:
        body = {"id": transaction_id, "clientTxId": client_transaction_id}
        return await self.post("/api/button/V2/Confirm", body)

    async def state(self, transaction_id: int) -> str:
        """The state that a query answers."""
        _, answer = await self.get(f"/api/Sale/{transaction_id}")
        return str(answer["transactionStatus"])

    async def failing(self, path: str, body: object, **options: Any) -> list[str]:
        """The fields that a validation error names (§7.5); none for a success."""
        status, answer = await self.send(
            "POST", path, **({"json": body} if body is not None else {}), **options
        )
        if status == 200:
            return []
        assert (status, answer["errorCode"]) == (400, 800)
        for entry in answer["errors"]:
            assert entry["errorCode"] == 0
            assert entry["errorDescriptions"]
        return [entry["message"] for entry in answer["errors"]]


@asynccontextmanager
async def client_of(settings: Settings = QUERIES, **options: Any) -> AsyncIterator[Client]:
    """A client of a new simulator."""
    async with Simulator(settings=settings, **options) as service, aiohttp.ClientSession() as session:
        yield Client(service, session)


async def until(condition: Callable[[], object]) -> None:
    """Until it holds: five seconds at most."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it has not come true")


class Merchant:
    """The merchant's server: writes down what it is sent, and answers what it is told."""

    def __init__(self) -> None:
        self.received: list[tuple[str, list[tuple[str, str]], Any]] = []
        self.status = 200
        self.answer: object = {"Response": True, "ErrorCode": "000"}
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.received.append((request.method, list(request.query.items()), json.loads(raw) if raw else None))
        text = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        return web.Response(status=self.status, text=text, headers={"Location": "/elsewhere"})


@pytest.fixture
async def merchant() -> AsyncIterator[Merchant]:
    it = Merchant()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", it.handle)
    async with served(application) as it.url:
        yield it


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()  # 22:13:20 UTC, 17:13:20 in Ecuador


@pytest.fixture
def settings() -> Settings:
    return QUERIES


@pytest.fixture
async def client(clock: ManualClock, settings: Settings) -> AsyncIterator[Client]:
    async with client_of(settings, clock=clock) as it:
        yield it
