"""The control routes of a simulator, for a test in its loop and for one that looks at another process."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import aiohttp

__all__ = ["call", "call_process"]


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
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own
        return json.load(answer)
