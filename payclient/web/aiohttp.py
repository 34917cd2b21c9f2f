"""For aiohttp.web: the tracker lives in a `cleanup_ctx`."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from aiohttp import web

from payclient.errors import UsageError
from payclient.tracking.tracker import Tracker
from payclient.web.pages import Page
from payclient.web.routes import Routes

_TRACKER = web.AppKey("payclient.tracker", Tracker)


def tracker_context(
    opening: Callable[[], AbstractAsyncContextManager[Tracker]],
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a context for `app.cleanup_ctx`: `opening()` opens each process's tracker, from its start to its end."""

    async def context(app: web.Application) -> AsyncIterator[None]:
        async with opening() as app[_TRACKER]:
            yield

    return context


def tracker_of(request: web.Request) -> Tracker:
    """Return the app's tracker, in a sub-app too. Raises `UsageError` where there is none."""
    if _TRACKER not in request.config_dict:
        raise UsageError("no tracker: add tracker_context(...) to the app's cleanup_ctx")
    return request.config_dict[_TRACKER]


def page_response(page: Page) -> web.Response:
    """Return a page as this framework's response."""
    return web.Response(status=page.status, headers=page.headers, body=page.body)


def _route(path: str, answer: Callable[[web.Request, Mapping[str, str]], Awaitable[Page]]) -> web.RouteDef:
    async def handle(request: web.Request) -> web.Response:
        response = page_response(await answer(request, request.match_info))
        if "Content-Encoding" in request.headers and not request.content.is_eof():
            # On a kept connection aiohttp would inflate the rest of the body in one go, to reach the next request.
            await response.prepare(request)
            await response.write_eof()
            request.protocol.force_close()
        return response

    return web.route("*", path.replace("{id}", "{id:.+}"), handle)


def _read(request: web.Request) -> tuple[str, str, AsyncIterable[bytes]]:
    content_type = request.headers.get("Content-Type", "")
    return request.rel_url.raw_query_string, content_type, _blocks(request)


async def _blocks(request: web.Request) -> AsyncIterator[bytes]:
    async for block in request.content.iter_any():
        yield block
    yield await request.read()  # a middleware may have read the body, which the stream has no more


_routes = Routes(tracker_of, page_response, _route, _read)
notification_route: Final = _routes.notification_route
order_routes: Final = _routes.order_routes
health_route: Final = _routes.health_route
redirect_response: Final = _routes.redirect_response
