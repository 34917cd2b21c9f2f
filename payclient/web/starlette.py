"""For Starlette, and for FastAPI, which is one: the tracker lives in the lifespan."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from payclient.errors import UsageError
from payclient.tracking.forms import FormLink
from payclient.tracking.tracker import Tracker
from payclient.web.customer import MaySee, order_status, redirect_page
from payclient.web.pages import ASSETS, Language, Page, health_page
from payclient.web.receiver import ANSWER, OnReceipt, Receiver, route_of


def tracker_lifespan(
    opening: Callable[[], AbstractAsyncContextManager[Tracker]],
) -> Callable[[Starlette], AbstractAsyncContextManager[dict[str, Tracker]]]:
    """Return a `lifespan=`: `opening()` opens each worker's tracker. Your own lifespan yields the same mapping."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Tracker]]:
        async with opening() as tracker:
            yield {"tracker": tracker}

    return lifespan


def tracker_of(connection: HTTPConnection) -> Tracker:
    """Return the worker's tracker, `request.state.tracker`. Raises `UsageError` where there is none."""
    tracker = getattr(connection.state, "tracker", None)
    if not isinstance(tracker, Tracker):
        raise UsageError(
            "no tracker: give lifespan=tracker_lifespan(...), or yield {'tracker': tracker} in yours"
        )
    return tracker


class _Endpoint:
    """An ASGI app, since a route to one takes every method."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._receiver.take(
            tracker_of(request),
            key=request.path_params.get("key", ""),
            # As bytes: a server may pass on what is not UTF-8, on which `request.url` raises.
            query=scope["query_string"].decode("utf-8", "replace"),
            content_type=request.headers.get("Content-Type", ""),
            body=request.stream(),
        )
        await page_response(ANSWER)(scope, receive, send)


def notification_route(
    path: str, *, secret: str | bytes | None = None, on_receipt: OnReceipt | None = None
) -> Route:
    """Make the receiver of notifications (§6) to mount at `responseUrl`: any method, always the same 200.

    With a `secret`, `path` is the path of the `base` that is given to `notification_url(base, ..., secret)`.
    """
    return Route(route_of(path, secret, "{key}"), _Endpoint(Receiver(secret, on_receipt)))


def order_routes(prefix: str = "/orders", *, may_see: MaySee | None = None) -> list[Route]:
    """Make the routes `{prefix}/{id}/status`, which `waiting_page` queries, and style and scripts at `{prefix}/assets`.

    `may_see(request, client_transaction_id)` returns whether this customer may see the sale, and may be async. Without
    `may_see`, anybody who knows an id sees its state.
    """

    async def status(request: Request) -> Response:
        identifier = request.path_params["id"]
        return page_response(await order_status(tracker_of(request), request, identifier, may_see))

    def asset_route(name: str) -> Route:
        async def asset(_: Request) -> Response:
            return page_response(ASSETS[name])

        return Route(f"{prefix.rstrip('/')}/assets/{name}", asset)

    return [Route(f"{prefix.rstrip('/')}/{{id:path}}/status", status), *map(asset_route, ASSETS)]


def health_route(path: str = "/health") -> Route:
    """Make the route of `tracker.health()` for a load balancer: JSON, with status 200, or 503 and its `problems`.

    The body holds counts and times, no id and no amount. Anybody who reaches the route sees them.
    """

    async def health(request: Request) -> Response:
        return page_response(health_page(await tracker_of(request).health()))

    return Route(path, health)


def page_response(page: Page) -> Response:
    """Return a page as this framework's response."""
    return Response(page.body, page.status, headers=page.headers)


def redirect_response(
    request: HTTPConnection,
    link: FormLink,
    language: Language = "es",
    *,
    again: str | None = None,
    assets: str | None = None,
) -> Response:
    """Send the customer to a form by `redirect_page`, with the tracker's clock and the profile's `link_hosts`."""
    tracker = tracker_of(request)
    hosts, now = tracker.profile.link_hosts, tracker.clock.time()
    return page_response(redirect_page(link, language, again=again, hosts=hosts, now=now, assets=assets))
