"""The shop in Starlette; its routes and its lifespan are FastAPI's too."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payclient.web.starlette import (
    health_route,
    notification_route,
    order_routes,
    page_response,
    tracker_lifespan,
    tracker_of,
)
from shops import shop

__all__ = ["app"]


async def home(request: Request) -> Response:
    return page_response(shop.ways("order-1"))


async def ways(request: Request) -> Response:
    return page_response(shop.ways(request.path_params["order"], withdraws=True))


async def pay(request: Request) -> Response:
    body = await request.body()
    return page_response(await shop.pay(tracker_of(request), request.path_params["order"], body))


async def card(request: Request) -> Response:
    return page_response(await shop.card(tracker_of(request), request.path_params["order"]))


async def order(request: Request) -> Response:
    return page_response(await shop.show(tracker_of(request), request.path_params["order"]))


async def back(request: Request) -> Response:
    return page_response(await shop.back(tracker_of(request), request.path_params["id"], request.url.query))


routes = [
    Route("/", home),
    Route("/pay/{order}", ways, methods=["GET"]),
    Route("/pay/{order}", pay, methods=["POST"]),
    Route("/card/{order}", card),
    Route("/orders/{order}", order),
    Route("/back/{id}", back),
    *order_routes(),
    health_route("/health"),
    notification_route("/pay/notify", secret=shop.SECRET or None, on_receipt=shop.heard),
]

app = Starlette(routes=routes, lifespan=tracker_lifespan(shop.opening))
