"""The routes that the waiting page needs, in each framework."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from http import HTTPStatus

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette

import payclient
import payclient.web.aiohttp
import payclient.web.starlette
from asgi import ask
from fake_service import FakeService, sale, tracking
from ports import served

NOT_FOUND = HTTPStatus.NOT_FOUND


async def may_see(request: object, client_transaction_id: str) -> bool:
    """Order 17 only; a shop looks at its session."""
    await asyncio.sleep(0)
    return client_transaction_id == "order-17"


async def answers(kind: str, tracker: payclient.Tracker, *paths: str) -> list[tuple[int, str, bytes]]:
    """The HTTP status, the content type and the body of each path."""
    if kind == "starlette":
        starlette = Starlette(routes=payclient.web.starlette.order_routes("/shop/orders/", may_see=may_see))
        asked = [await ask(starlette, "GET", path, (), "", {"tracker": tracker}) for path in paths]
        return [(one.status, one.headers.get("content-type", ""), one.body) for one in asked]
    app = web.Application()
    app.cleanup_ctx.append(payclient.web.aiohttp.tracker_context(lambda: nullcontext(tracker)))
    app.add_routes(payclient.web.aiohttp.order_routes("/shop/orders/", may_see=may_see))
    found = []
    async with served(app) as url, aiohttp.ClientSession(url) as session:
        for path in paths:
            async with session.get(path) as answer:
                found.append((answer.status, answer.headers["Content-Type"], await answer.read()))
    return found


@pytest.mark.parametrize("kind", ["aiohttp", "starlette"])
async def test_the_state_and_the_files(kind: str) -> None:
    """What may not be seen is what does not exist; other files are not served."""
    async with tracking(FakeService()) as tracker:
        await tracker.sale(sale())
        await tracker.sale(sale("order-18", phone="0984111333"))
        state, hidden, style, script, none = await answers(
            kind, tracker,
            "/shop/orders/order-17/status", "/shop/orders/order-18/status", "/shop/orders/assets/style.css",
            "/shop/orders/assets/waiting.js", "/shop/orders/assets/other.js",
        )  # fmt: skip
    assert (state[0], json.loads(state[2])["waiting"]) == (200, True)
    assert state[1].startswith("application/json")
    assert hidden == (NOT_FOUND, state[1], b"{}")
    assert (style[0], style[1]) == (200, "text/css; charset=utf-8")
    assert (script[0], b"fetch(" in script[2]) == (200, True)
    assert none[0] == NOT_FOUND
