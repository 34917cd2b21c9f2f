"""The samples: through aiohttp without a socket, and end to end against the simulated service."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web
from aioresponses import aioresponses

from fake_service import error_of
from manual_clock import ManualClock
from payclient import Tracker
from payclient.errors import CustomerBusyError, RefusedError, UnauthorizedError, ValidationFailedError
from payclient.ledger.memory import MemoryLedger
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest
from payclient.profile import ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.simulator import Simulator
from payclient.transport import AiohttpTransport
from payclient.validation import from_service
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, decode_status
from simulated import QUERIES

SAMPLES = Path(__file__).parent / "samples"
BASE = "https://pay.example/v1"
TOKEN = "token-1"
ID = "ID_UNICO_X_TRANSACCION-001"
WORDS = {"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"}

#: A profile and settings that say the same of one service, the way that the sampled status answers.
SHOP = ServiceProfile(
    name="shop",
    not_found_codes=frozenset({20}),
    duplicate_codes=frozenset({23}),
    wallet_link_field="payWithBrand",
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="transactionStatus",
        states=WORDS,
    ),
)
SERVICE = attrs.evolve(
    QUERIES, state_field="transactionStatus", state_words={state: word for word, state in WORDS.items()},
    wallet_link_field="payWithBrand", duplicate_code=23,
)  # fmt: skip


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_bytes())


def ours(fields: dict[str, Any]) -> dict[str, Any]:
    return {from_service(name): value for name, value in fields.items()}


def with_order(fields: dict[str, Any]) -> dict[str, Any]:
    order = fields["order"]
    items = tuple(LineItem(**ours(item)) for item in order["lineItems"])
    return ours(fields) | {"order": Order(bill_to=BillTo(**ours(order["billTo"])), line_items=items)}


SALE = SaleRequest(**with_order(sample("sale_request.json")))
PREPARE = PrepareRequest(**with_order(sample("prepare_request.json")))


# --- Without a socket


@pytest.mark.parametrize(
    ("status", "name", "kind", "code", "shown"),
    [
        (401, "error_401.json", UnauthorizedError, None,
         "Su aplicación no esta autorizada para acceder a este recurso"),
        (400, "sale_error_2061.json", CustomerBusyError, 22, "El cliente tiene transacciones pendientes con su local"),
        (404, "reverse_error_20.json", RefusedError, 20, None),
        (400, "cancel_error_25.json", RefusedError, 25, "Transacción no existe"),
    ],
)  # fmt: skip
async def test_each_sampled_error_has_its_class(
    status: int, name: str, kind: type[RefusedError], code: int | None, shown: str | None
) -> None:
    """§7.1: with the message that the user is to see."""
    with aioresponses() as mocked:
        mocked.post(f"{BASE}/api/Sale", status=status, body=(SAMPLES / name).read_bytes())
        async with PaySession(BASE, TOKEN) as session:
            with pytest.raises(RefusedError) as caught:
                await session.sale(SALE)
    error = caught.value
    assert type(error) is kind
    assert (error.error_code, error.http_status, error.client_transaction_id) == (code, status, ID)
    assert error.user_messages == (shown or sample(name)["message"],)
    assert TOKEN not in repr(error) + repr(vars(error)) + repr(error.__context__)


# --- What the SDK sends reaches the simulated service whole, and what that answers is read


class Wire:
    """aiohttp as ever, and the last answer that it carried."""

    def __init__(self, url: str) -> None:
        self.transport = AiohttpTransport(url, connect_timeout=5.0)
        self.last: Any = None

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        response = await self.transport(request, before_send)
        self.last = json.loads(response.body)
        return response


@asynccontextmanager
async def session_over(url: str, token: str = TOKEN) -> AsyncIterator[tuple[PaySession, Wire]]:
    """A session, and what it carries."""
    wire = Wire(url)
    try:
        async with PaySession(url, token, profile=SHOP, transport=wire) as session:
            yield session, wire
    finally:
        await wire.transport.aclose()


class Recorded(Simulator):
    """A simulator that keeps the bodies that it was sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bodies: list[Any] = []

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and request.path.startswith("/api/"):
            assert request.headers["Content-Type"] == "application/json"
            assert request.headers["Authorization"].startswith("Bearer ")
            self.bodies.append(await request.json())
        return await super().serve(request)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Recorded, PaySession, Wire]]:
    """A simulator over HTTP on a clock that stands, a session to it, and what went between them."""
    service = Recorded(clock=ManualClock(), settings=SERVICE, token=TOKEN)
    async with service, session_over(service.url) as (session, wire):
        yield service, session, wire


def typed(value: Any) -> Any:
    """A JSON value with the type of each leaf, so that 1, 1.0 and True are three things."""
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value).__name__, value


async def test_the_samples_reach_the_service_as_they_stand() -> None:
    """§2.2, §2.3: name for name and type for type, by the session and by the tracker; what is null is left out."""
    async with serving() as (service, session, wire):
        result = await session.prepare(PREPARE)
        links = {"payWithCard": result.pay_with_card, "payWithBrand": result.pay_with_wallet}
        assert wire.last == {"paymentId": result.payment_id, **links}
        async with Tracker(session, MemoryLedger(), clock=service.clock) as tracker:
            pending = await tracker.sale(SALE)
        wanted = {name: value for name, value in sample("prepare_request.json").items() if value is not None}
        assert typed(service.bodies) == [typed(wanted), typed(sample("sale_request.json"))]
        (sale,), (form,) = service.sales.values(), service.forms.values()
    assert (sale.transaction_id, sale.client_transaction_id) == (pending.transaction_id, ID)
    assert (sale.amount, sale.currency, sale.store_id) == (315, "USD", "your_storeId")
    assert sale.response_url == sample("sale_request.json")["responseUrl"]
    assert (form.client_transaction_id, form.amount, form.payment_id) == (ID, 315, result.payment_id)
    assert (form.response_url, form.cancellation_url) == (wanted["responseUrl"], wanted["cancellationUrl"])


async def test_errors_of_the_service_are_read_as_sampled() -> None:
    """§5, §7: a busy customer, a wrong token, a transaction that is not there, and a field that fails."""
    async with serving() as (service, session, wire):
        await session.sale(SALE)
        await error_of(CustomerBusyError, session.sale(attrs.evolve(SALE, client_transaction_id="order-2")))
        assert wire.last == sample("sale_error_2061.json")
        for missing in ({"transaction_id": 5}, {"client_transaction_id": "x"}):
            assert await session.status(**missing) is None
            assert wire.last["message"] == sample("reverse_error_20.json")["message"]
        body = json.dumps({"clientTransactionId": "x", "amount": 1}).encode()
        with pytest.raises(ValidationFailedError) as failed:
            await session.send_sale(attrs.evolve(session.encode_sale(SALE), body=body))
        assert set(wire.last) == set(sample("cancel_error_25.json"))
        assert {"phoneNumber", "countryCode", "currency"} <= set(failed.value.fields)
        async with session_over(service.url, "token-2") as (other, wire):
            for call in (other.sale(SALE), other.prepare(PREPARE), other.status(transaction_id=5)):
                await error_of(UnauthorizedError, call)
                assert wire.last == sample("error_401.json")


async def test_a_status_is_read_like_the_sampled_one() -> None:
    """Each field of the sample is in the simulator's answer, with its type, and gives the same report."""
    seen = sample("status_approved.json")
    async with serving() as (service, session, wire):
        result = await session.sale(SALE)
        await service.approve(result.transaction_id)
        report = await session.status(transaction_id=result.transaction_id)
        for name in seen.keys() - {"message"}:  # null there, left out here
            assert type(wire.last[name]) is type(seen[name]), name
    wanted = decode_status(HttpResponse(200, {}, json.dumps(seen).encode()), SHOP)
    assert report is not None
    assert wanted is not None
    assert attrs.evolve(report, raw={}, transaction_id=1) == attrs.evolve(wanted, raw={}, transaction_id=1)


def test_every_sample_goes_through() -> None:
    """A new sample asks for a test."""
    tested = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in SAMPLES.glob("*.json") if path.name not in tested] == []
