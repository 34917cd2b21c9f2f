"""The control routes of a simulator, for a test in its loop and for one that looks at another process, and a Sale."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import aiohttp

__all__ = ["call", "call_process", "sale_of"]


def sale_of(number: int = 1, **changes: object) -> dict[str, object]:
    """The body of a valid Sale; each number is another customer and another id."""
    return {
        "phoneNumber": f"09{number:08}", "countryCode": "593", "amount": 1150, "amountWithoutTax": 1150,
        "currency": "USD", "clientTransactionId": f"order-{number}", **changes,
    }  # fmt: skip


async def call(url: str, operation: str, /, **arguments: Any) -> tuple[int, Any]:
    """Call an operation, and return the status and the result."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/_simulator/{operation}", json=arguments) as response,
    ):
        return response.status, json.loads(await response.read())


def call_process(url: str, operation: str, /, **arguments: Any) -> Any:
    """Call an operation of another process, and return the result; `urllib.error.HTTPError` if it is refused."""
    request = urllib.request.Request(  # noqa: S310 - our own
        f"{url}/_simulator/{operation}",
        data=json.dumps(arguments).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own
        return json.load(answer)
