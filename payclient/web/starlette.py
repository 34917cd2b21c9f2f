"""For Starlette, and for FastAPI, which is one: the tracker lives in the lifespan."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from payclient.errors import UsageError
from payclient.tracking.tracker import Tracker
from payclient.web.pages import Page
from payclient.web.routes import Routes


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


def page_response(page: Page) -> Response:
    """Return a page as this framework's response."""
    return Response(page.body, page.status, headers=page.headers)


def _route(path: str, answer: Callable[[Request, Mapping[str, str]], Awaitable[Page]]) -> Route:
    async def handle(request: Request) -> Response:
        return page_response(await answer(request, request.path_params))

    route = Route(path.replace("{id}", "{id:path}"), handle)
    route.methods = None  # every method
    return route


def _read(request: Request) -> tuple[str, str, AsyncIterable[bytes]]:
    # As bytes: a server may pass on what is not UTF-8, on which `request.url` raises.
    query = request.scope["query_string"].decode("utf-8", "replace")
    return query, request.headers.get("Content-Type", ""), request.stream()


_routes = Routes(tracker_of, page_response, _route, _read)
notification_route: Final = _routes.notification_route
order_routes: Final = _routes.order_routes
health_route: Final = _routes.health_route
redirect_response: Final = _routes.redirect_response
