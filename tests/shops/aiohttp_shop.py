"""The shop in aiohttp.web: `python -m shops.aiohttp_shop FD` serves it on an inherited socket."""

from __future__ import annotations

import socket
import sys

from aiohttp import web

import payclient
from payclient.web import is_waiting, waiting_page
from payclient.web.aiohttp import (
    health_route,
    notification_route,
    order_routes,
    page_response,
    redirect_response,
    tracker_context,
    tracker_of,
)
from shops import shop

__all__ = ["make_app"]


def html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=shop.HEADERS)


def shown(sale: payclient.PendingSale | None) -> web.Response:
    if sale is None:
        raise web.HTTPNotFound
    if is_waiting(sale):
        status_url = f"/orders/{sale.client_transaction_id}/status"
        return page_response(waiting_page(sale, status_url, "en"))
    return html(shop.outcome_html(sale))


async def home(request: web.Request) -> web.Response:
    return html(shop.home_html())


async def pay(request: web.Request) -> web.Response:
    identifier = request.match_info["id"]
    try:
        await tracker_of(request).sale(shop.sale_request(identifier, shop.phone_in(await request.read())))
    except payclient.PayError as error:  # this call created nothing
        return html(shop.refused_html(error), 409)
    raise web.HTTPSeeOther(f"/orders/{identifier}")


async def order(request: web.Request) -> web.Response:
    return shown(await tracker_of(request).find(request.match_info["id"]))


async def form(request: web.Request) -> web.Response:
    prepared = await tracker_of(request).live_form(request.match_info["cart"], shop.prepare_request)
    return redirect_response(request, prepared.card, "en", again="/")


async def back(request: web.Request) -> web.Response:
    return shown(await shop.back_of(tracker_of(request), request.match_info["id"], request.query_string))


async def cancelled(request: web.Request) -> web.Response:
    await shop.close(tracker_of(request), request.match_info["id"], request.query_string)
    return html(shop.cancelled_html())


def make_app() -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(tracker_context(shop.opening))
    app.add_routes(
        [
            web.get("/", home),
            web.post("/pay/{id}", pay),
            web.get("/orders/{id}", order),
            web.get("/form/{cart}", form),
            web.get("/back/{id}", back),
            web.get("/cancelled/{id}", cancelled),
            *order_routes(),
            health_route("/health"),
            notification_route("/pay/notify", secret=shop.SECRET, on_receipt=shop.heard),
        ]
    )
    return app


if __name__ == "__main__":
    web.run_app(make_app(), sock=socket.socket(fileno=int(sys.argv[1])), access_log=None, print=None)
