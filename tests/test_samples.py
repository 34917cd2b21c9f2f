"""Payloads and error mapping through aiohttp, with answers that were seen. No socket is opened."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aioresponses import aioresponses
from yarl import URL

from payclient.errors import (
    CustomerBusyError,
    RefusedError,
    UnauthorizedError,
)
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest, StatusReport
from payclient.profile import ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.validation import from_service

SAMPLES = Path(__file__).parent / "samples"
BASE = "https://pay.example/v1"
TOKEN = "token-1"
SALE, PREPARE = f"{BASE}/api/Sale", f"{BASE}/api/button/Prepare"

SHOP = ServiceProfile(
    not_found_codes=frozenset({20}),
    status=StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        state_field="transactionStatus",
        states={"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"},
    ),
)


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_bytes())


def ours(fields: dict[str, Any]) -> dict[str, Any]:
    return {from_service(name): value for name, value in fields.items()}


def with_order(fields: dict[str, Any]) -> dict[str, Any]:
    order = fields["order"]
    items = tuple(LineItem(**ours(item)) for item in order["lineItems"])
    return ours(fields) | {"order": Order(bill_to=BillTo(**ours(order["billTo"])), line_items=items)}


def sampled_sale() -> SaleRequest:
    return SaleRequest(**with_order(sample("sale_request.json")))


@pytest.fixture
def mocked() -> Iterator[aioresponses]:
    """The service's place, in which each test puts an answer."""
    with aioresponses() as service:
        yield service


def sent(mocked: aioresponses, method: str, url: str) -> dict[str, Any]:
    """How the one request was made."""
    (calls,) = mocked.requests.values()
    (call,) = calls
    assert list(mocked.requests) == [(method, URL(url))]
    kwargs = call.kwargs
    assert isinstance(kwargs, dict)
    return kwargs


async def test_a_sale_sends_the_sample(mocked: aioresponses) -> None:
    """§2.2, §4, §5: path, headers and every field of the body."""
    mocked.post(SALE, payload={"transactionId": 23178284})
    async with PaySession(BASE, TOKEN) as session:
        result = await session.sale(sampled_sale())
    assert result.transaction_id == 23178284
    request = sent(mocked, "POST", SALE)
    assert json.loads(request["data"]) == sample("sale_request.json")
    assert request["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert request["headers"]["Content-Type"] == "application/json"
    assert request["allow_redirects"] is False


async def test_a_prepare_sends_the_sample(mocked: aioresponses) -> None:
    """§2.3, §4: the other endpoint, and nothing for what is null."""
    answer = {
        "paymentId": "p-1",
        "payWithCard": "https://pay.example/c",
        "payWithBrand": "https://pay.example/w",
    }
    mocked.post(PREPARE, payload=answer)
    fields = sample("prepare_request.json")
    async with PaySession(BASE, TOKEN) as session:
        result = await session.prepare(PrepareRequest(**with_order(fields)))
    assert (result.payment_id, result.pay_with_card, result.pay_with_wallet) == tuple(answer.values())
    request = sent(mocked, "POST", PREPARE)
    assert json.loads(request["data"]) == {name: value for name, value in fields.items() if value is not None}
    assert request["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert request["headers"]["Content-Type"] == "application/json"


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
    mocked: aioresponses,
    status: int,
    name: str,
    kind: type[RefusedError],
    code: int | None,
    shown: str | None,
) -> None:
    """§7.1: with the message that the user is to see."""
    mocked.post(SALE, status=status, body=(SAMPLES / name).read_bytes())
    async with PaySession(BASE, TOKEN) as session:
        with pytest.raises(RefusedError) as caught:
            await session.sale(sampled_sale())
    error = caught.value
    assert type(error) is kind
    assert (error.error_code, error.http_status) == (code, status)
    assert error.user_messages == (shown or sample(name)["message"],)
    assert error.client_transaction_id == "ID_UNICO_X_TRANSACCION-001"
    assert TOKEN not in repr(error) + repr(vars(error)) + repr(error.__context__)


@pytest.mark.parametrize(
    ("word", "state"), [("Pending", "Pendiente"), ("Approved", "Aceptado"), ("Canceled", "Cancelado")]
)
async def test_a_sampled_status_is_read(mocked: aioresponses, word: str, state: str) -> None:
    """By the profile's path, field and words."""
    url = f"{BASE}/api/Sale/23178284"
    mocked.get(url, payload=sample("status_approved.json") | {"transactionStatus": word})
    async with PaySession(BASE, TOKEN, profile=SHOP) as session:
        report = await session.status(transaction_id=23178284)
    assert isinstance(report, StatusReport)
    assert (report.state, report.transaction_id, report.amount, report.currency) == (
        state,
        23178284,
        315,
        "USD",
    )
    assert sent(mocked, "GET", url)["headers"]["Authorization"] == f"Bearer {TOKEN}"


async def test_a_transaction_that_is_not_there_is_none(mocked: aioresponses) -> None:
    """By the profile's code."""
    mocked.get(f"{BASE}/api/Sale/5", status=404, body=(SAMPLES / "reverse_error_20.json").read_bytes())
    async with PaySession(BASE, TOKEN, profile=SHOP) as session:
        assert await session.status(transaction_id=5) is None
