"""The shop in aiohttp.web: `python -m shops.aiohttp_shop FD` serves it on an inherited socket."""

from __future__ import annotations

import socket
import sys

from aiohttp import web

from payclient.web.aiohttp import (
    health_route,
    notification_route,
    order_routes,
    page_response,
    tracker_context,
    tracker_of,
)
from shops import shop

__all__ = ["make_app"]


async def home(request: web.Request) -> web.Response:
    return page_response(shop.ways("order-1"))


async def ways(request: web.Request) -> web.Response:
    return page_response(shop.ways(request.match_info["order"], withdraws=True))


async def pay(request: web.Request) -> web.Response:
    body = await request.read()
    return page_response(await shop.pay(tracker_of(request), request.match_info["order"], body))


async def card(request: web.Request) -> web.Response:
    return page_response(await shop.card(tracker_of(request), request.match_info["order"]))


async def order(request: web.Request) -> web.Response:
    return page_response(await shop.show(tracker_of(request), request.match_info["order"]))


async def back(request: web.Request) -> web.Response:
    return page_response(await shop.back(tracker_of(request), request.match_info["id"], request.query_string))


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(tracker_context(shop.opening))
    app.add_routes(
        [
            web.get("/", home),
            web.get("/pay/{order}", ways),
            web.post("/pay/{order}", pay),
            web.get("/card/{order}", card),
            web.get("/orders/{order}", order),
            web.get("/back/{id}", back),
            *order_routes(),
            health_route("/health"),
            notification_route("/pay/notify", secret=shop.SECRET, on_receipt=shop.heard),
        ]
    )
    return app


if __name__ == "__main__":
    web.run_app(make_app(), sock=socket.socket(fileno=int(sys.argv[1])), access_log=None, print=None)
