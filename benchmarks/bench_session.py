"""What `session.sale` costs beside a bare aiohttp POST and beside what people write or use instead.

Run: python benchmarks/bench_session.py [--uvloop]. The stripe row needs `pip install stripe`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import attrs
import cattrs

import payclient
from _measure import interleaved, pin, ratio, row, server, steady_heap
from bench_wire import BILL_TO, ITEM, SALE, full, twin
from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.profile import DOCUMENT
from payclient.validation import to_service
from payclient.wire import encode_sale

AT_ONCE = 50


def plain_classes() -> tuple[Any, Any, Any, Any]:
    """The same classes as people write them: the service's names, an attrs validator for each field."""
    bill_to, item = (twin(model, checked=True, spell=to_service) for model in (BillTo, LineItem))
    order = twin(Order, checked=True, inner={"bill_to": bill_to, "line_items": item}, spell=to_service)
    return twin(SaleRequest, checked=True, inner={"order": order}, spell=to_service), order, bill_to, item


def spelled(fields: dict[str, Any]) -> dict[str, Any]:
    return {to_service(name): value for name, value in fields.items()}


@attrs.define
class PlainResult:
    transactionId: int  # noqa: N815 - as the service spells it


def stripe_call(url: str) -> Callable[[int], Awaitable[object]] | None:
    """An analogous call of stripe-python's async client on aiohttp, or None where it is not installed."""
    try:
        import stripe
    except ImportError:
        return None
    # What our full Sale says, in the other's terms: amount, customer, address, items and the merchant's own data.
    payment_intent = {
        "amount": SALE["amount"], "currency": "usd", "description": SALE["reference"],
        "receipt_email": BILL_TO["email"],
        "shipping": {
            "name": f"{BILL_TO['first_name']} {BILL_TO['last_name']}", "phone": BILL_TO["phone_number"],
            "address": {
                "line1": BILL_TO["address1"], "line2": BILL_TO["address2"], "city": BILL_TO["locality"],
                "state": BILL_TO["state"], "country": BILL_TO["country"], "postal_code": BILL_TO["postal_code"],
            },
        },
        "metadata": {
            name: str(SALE[name])
            for name in ("client_transaction_id", "store_id", "client_user_id", "lat", "lng", "time_zone", "tax",
                         "optional_parameter1", "optional_parameter2", "optional_parameter3", "amount_with_tax",
                         "amount_without_tax")
        }
        | {f"item0_{name}": str(value) for name, value in ITEM.items()},
    }  # fmt: skip
    client = stripe.StripeClient("sk_test_x", base_addresses={"api": url}, http_client=stripe.AIOHTTPClient())

    async def call(number: int) -> object:
        return await client.v1.payment_intents.create_async(payment_intent)  # type: ignore[arg-type]  # plain data

    return call


async def main() -> None:
    pin(0)
    headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
    body = encode_sale(full(), DOCUMENT).body
    converter = cattrs.Converter()
    limit = aiohttp.ClientTimeout(total=30)
    plain_sale, plain_order, plain_bill_to, plain_item = plain_classes()
    sale_fields, bill_to_fields, item_fields = spelled(SALE), spelled(BILL_TO), spelled(ITEM)
    async with (
        server() as url,
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as bare,
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as plain_session,
        payclient.PaySession(url, "token") as session,
    ):
        address = url + "/api/Sale"

        async def post(number: int) -> object:
            async with bare.post(address, data=body) as response:
                return await response.read()

        async def sale(number: int) -> object:
            return await session.sale(full())

        async def nothing() -> None:
            pass

        async def sale_with_permit(number: int) -> object:
            return await session.sale(full(), before_send=nothing)

        async def plain(number: int) -> object:
            order = plain_order(
                billTo=plain_bill_to(**bill_to_fields), lineItems=(plain_item(**item_fields),)
            )
            request = plain_sale(**sale_fields, order=order)
            body = converter.unstructure(request)
            async with plain_session.post(address, json=body, timeout=limit) as response:
                answer = await response.json()
                if response.status >= 300 or "errorCode" in answer:
                    raise RuntimeError(answer.get("message"))
                return converter.structure(answer, PlainResult)

        calls: dict[str, Callable[[int], Awaitable[object]]] = {
            "bare POST": post, "session.sale": sale, "with before_send": sale_with_permit,
            "plain attrs + cattrs + json": plain,
        }  # fmt: skip
        if (stripe := stripe_call(url)) is not None:
            calls["stripe async on aiohttp"] = stripe
        figures = await interleaved(calls, count=3000, at_once=AT_ONCE, rounds=9)
        loop = type(asyncio.get_running_loop()).__module__
        target = 1.50 if loop.startswith("uvloop") else 1.35
        row(f"session.sale on {loop}", ratio(figures[1], figures[0]), target, "bare aiohttp POST + read")
        row("before_send that does nothing", ratio(figures[2], figures[1]) - 1, 0.05, "session.sale without")
        row("session.sale", ratio(figures[1], figures[3]), 0.62, "plain attrs + cattrs + json= + .json()")
        if stripe is not None:
            row("session.sale", ratio(figures[1], figures[4]), 0.40, "stripe-python async on aiohttp")
        else:
            print("      stripe is not installed: its row was not measured")


if __name__ == "__main__":
    steady_heap()
    parser = argparse.ArgumentParser()
    parser.add_argument("--uvloop", action="store_true")
    if parser.parse_args().uvloop:
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())
