"""For aiohttp.web: the tracker lives in a `cleanup_ctx`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from payclient.errors import UsageError
from payclient.tracking.forms import FormLink
from payclient.tracking.tracker import Tracker
from payclient.web.customer import MaySee, order_status, redirect_page
from payclient.web.pages import ASSETS, Language, Page, health_page
from payclient.web.receiver import ANSWER, OnReceipt, Receiver, route_of

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


def notification_route(
    path: str, *, secret: str | bytes | None = None, on_receipt: OnReceipt | None = None
) -> web.RouteDef:
    """Make the receiver of notifications (§6) to mount at `responseUrl`: any method, always the same 200.

    With a `secret`, `path` is the path of the `base` that is given to `notification_url(base, ..., secret)`.
    """
    receiver = Receiver(secret, on_receipt)

    async def receive(request: web.Request) -> web.Response:
        await receiver.take(
            tracker_of(request),
            key=request.match_info.get("key", ""),
            query=request.rel_url.raw_query_string,
            content_type=request.headers.get("Content-Type", ""),
            body=request.content.iter_any(),
        )
        response = page_response(ANSWER)
        if "Content-Encoding" in request.headers and not request.content.is_eof():
            # On a kept connection aiohttp would inflate the rest of the body in one go, to reach the next request.
            await response.prepare(request)
            await response.write_eof()
            request.protocol.force_close()
        return response

    return web.route("*", route_of(path, secret, "{key}"), receive)


def order_routes(prefix: str = "/orders", *, may_see: MaySee | None = None) -> list[web.RouteDef]:
    """Make the routes `{prefix}/{id}/status`, which `waiting_page` queries, and style and scripts at `{prefix}/assets`.

    `may_see(request, client_transaction_id)` returns whether this customer may see the sale, and may be async. Without
    `may_see`, anybody who knows an id sees its state.
    """

    async def status(request: web.Request) -> web.Response:
        identifier = request.match_info["id"]
        return page_response(await order_status(tracker_of(request), request, identifier, may_see))

    async def asset(request: web.Request) -> web.Response:
        return page_response(ASSETS[request.match_info["name"]])

    names = "|".join(ASSETS).replace(".", r"\.")
    return [
        web.get(f"{prefix.rstrip('/')}/{{id}}/status", status),
        web.get(f"{prefix.rstrip('/')}/assets/{{name:{names}}}", asset),
    ]


def health_route(path: str = "/health") -> web.RouteDef:
    """Make the route of `tracker.health()` for a load balancer: JSON, with status 200, or 503 and its `problems`.

    The body holds counts and times, no id and no amount. Anybody who reaches the route sees them.
    """

    async def health(request: web.Request) -> web.Response:
        return page_response(health_page(await tracker_of(request).health()))

    return web.get(path, health)


def page_response(page: Page) -> web.Response:
    """Return a page as this framework's response."""
    return web.Response(status=page.status, headers=page.headers, body=page.body)


def redirect_response(
    request: web.Request,
    link: FormLink,
    language: Language = "es",
    *,
    again: str | None = None,
    assets: str | None = None,
) -> web.Response:
    """Send the customer to a form by `redirect_page`, with the tracker's clock and the profile's `link_hosts`."""
    tracker = tracker_of(request)
    hosts, now = tracker.profile.link_hosts, tracker.clock.time()
    return page_response(redirect_page(link, language, again=again, hosts=hosts, now=now, assets=assets))
