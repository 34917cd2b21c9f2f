"""The routes that the waiting page needs, in each framework."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asgi import FRAMEWORKS, asking_of
from fake_service import FakeService, sale, tracking


async def may_see(request: object, client_transaction_id: str) -> bool:
    """Order 17 only; a shop looks at its session."""
    await asyncio.sleep(0)
    return client_transaction_id == "order-17"


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_the_state_and_the_files(framework: Any) -> None:
    """What may not be seen is what does not exist; other files are not served."""
    routes = framework.order_routes("/shop/orders/", may_see=may_see)
    async with tracking(FakeService()) as tracker, asking_of(framework, tracker, routes) as asking:
        await tracker.sale(sale())
        await tracker.sale(sale("order-18", phone="0984111333"))
        paths = (
            "order-17/status", "order-18/status", "assets/style.css", "assets/waiting.js",
            "assets/other.js",
        )  # fmt: skip
        state, hidden, style, script, none = [await asking("GET", f"/shop/orders/{path}") for path in paths]
    assert (state.status, json.loads(state.body)["waiting"]) == (200, True)
    assert state.headers["content-type"].startswith("application/json")
    assert (hidden.status, hidden.body) == (404, b"{}")
    assert hidden.headers["content-type"] == state.headers["content-type"]
    assert (style.status, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert (script.status, b"fetch(" in script.body) == (200, True)
    assert none.status == 404


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_id_may_have_a_slash_in_it(framework: Any) -> None:
    """A customer was shown "no connection" for as long as the push lasted."""
    async with tracking(FakeService()) as tracker:
        await tracker.sale(sale("2026/17"))
        async with asking_of(framework, tracker, framework.order_routes()) as asking:
            assert (await asking("GET", "/orders/2026%2F17/status")).status == 200
