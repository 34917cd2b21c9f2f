"""Payloads and error mapping through aiohttp, with answers that were seen. No socket is opened."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aioresponses import aioresponses

from payclient.errors import (
    CustomerBusyError,
    RefusedError,
    UnauthorizedError,
)
from payclient.models import BillTo, LineItem, Order, SaleRequest, StatusReport
from payclient.profile import ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.validation import from_service

SAMPLES = Path(__file__).parent / "samples"
BASE = "https://pay.example/v1"
TOKEN = "token-1"
SALE = f"{BASE}/api/Sale"

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
    """By the profile's path, field and words; a transaction that is not there, by its code."""
    mocked.get(
        f"{BASE}/api/Sale/23178284", payload=sample("status_approved.json") | {"transactionStatus": word}
    )
    mocked.get(f"{BASE}/api/Sale/5", status=404, body=(SAMPLES / "reverse_error_20.json").read_bytes())
    async with PaySession(BASE, TOKEN, profile=SHOP) as session:
        report = await session.status(transaction_id=23178284)
        assert await session.status(transaction_id=5) is None
    assert isinstance(report, StatusReport)
    read = (report.state, report.transaction_id, report.amount, report.currency)
    assert read == (state, 23178284, 315, "USD")
