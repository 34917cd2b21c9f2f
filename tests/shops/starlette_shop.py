"""The shop in Starlette; its routes and its lifespan are FastAPI's too."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import payclient
from payclient.web import is_waiting, waiting_page
from payclient.web.starlette import (
    health_route,
    notification_route,
    order_routes,
    page_response,
    redirect_response,
    tracker_lifespan,
    tracker_of,
)
from shops import shop

__all__ = ["app"]


def html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers=shop.HEADERS)


def shown(sale: payclient.PendingSale | None) -> Response:
    if sale is None:
        raise HTTPException(404)
    if is_waiting(sale):
        status_url = f"/orders/{sale.client_transaction_id}/status"
        return page_response(waiting_page(sale, status_url, "en"))
    return html(shop.outcome_html(sale))


async def home(request: Request) -> Response:
    return html(shop.home_html())


async def pay(request: Request) -> Response:
    identifier = request.path_params["id"]
    try:
        await tracker_of(request).sale(shop.sale_request(identifier, shop.phone_in(await request.body())))
    except payclient.PayError as error:  # this call created nothing
        return html(shop.refused_html(error), 409)
    return RedirectResponse(f"/orders/{identifier}", 303)


async def order(request: Request) -> Response:
    return shown(await tracker_of(request).find(request.path_params["id"]))


async def form(request: Request) -> Response:
    prepared = await tracker_of(request).live_form(request.path_params["cart"], shop.prepare_request)
    return redirect_response(request, prepared.card, "en", again="/")


async def back(request: Request) -> Response:
    return shown(await shop.back_of(tracker_of(request), request.path_params["id"], request.url.query))


async def cancelled(request: Request) -> Response:
    await shop.close(tracker_of(request), request.path_params["id"], request.url.query)
    return html(shop.cancelled_html())


routes = [
    Route("/", home),
    Route("/pay/{id}", pay, methods=["POST"]),
    Route("/orders/{id}", order),
    Route("/form/{cart}", form),
    Route("/back/{id}", back),
    Route("/cancelled/{id}", cancelled),
    *order_routes(),
    health_route("/health"),
    notification_route("/pay/notify", secret=shop.SECRET or None, on_receipt=shop.heard),
]

app = Starlette(routes=routes, lifespan=tracker_lifespan(shop.opening))
