"""For Django under ASGI: the tracker lives in the server's lifespan, which Django itself does not take.

A server that speaks lifespan is needed (uvicorn, hypercorn). A sync view calls `async_to_sync(tracker.sale)(...)`,
which runs on the server's loop. Under WSGI and runserver use `payclient.sync`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from django.conf import settings
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from payclient.errors import PayError, UsageError
from payclient.tracking.forms import FormLink
from payclient.tracking.tracker import Tracker
from payclient.web.customer import MaySee, order_status, redirect_page
from payclient.web.pages import ASSETS, Language, Page, health_page
from payclient.web.receiver import ANSWER, OnReceipt, Receiver, route_of
from payclient.web.referrer import advice, effective_policy, sends_origin

_KEY = "payclient.tracker"

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Application = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class TrackerApplication:
    """Around `get_asgi_application()`: opens the tracker by `opening()` on the worker's own loop, and closes it."""

    def __init__(
        self, application: _Application, opening: Callable[[], AbstractAsyncContextManager[Tracker]]
    ) -> None:
        self._application = application
        self._opening = opening
        self._tracker: Tracker | None = None

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._application({**scope, _KEY: self._tracker}, receive, send)

    async def _live(self, receive: _Receive, send: _Send) -> None:
        await receive()
        answer = "lifespan.startup"
        try:
            async with self._opening() as self._tracker:
                await send({"type": "lifespan.startup.complete"})
                answer = "lifespan.shutdown"
                await receive()
        except Exception as error:
            # Only our own errors are sure to hold no secret.
            why = f": {error}" if isinstance(error, PayError) else ""
            await send({"type": f"{answer}.failed", "message": f"{type(error).__name__}{why}"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
        finally:
            self._tracker = None


def tracker_of(request: HttpRequest) -> Tracker:
    """Return the worker's tracker. Raises `UsageError` where there is none, under WSGI for example."""
    tracker = getattr(request, "scope", {}).get(_KEY)
    if not isinstance(tracker, Tracker):
        raise UsageError(
            "no tracker: serve TrackerApplication(get_asgi_application(), ...) by an ASGI server with lifespan, "
            "such as uvicorn; under WSGI, runserver and daphne use payclient.sync"
        )
    return tracker


def notification_route(
    route: str, *, secret: str | bytes | None = None, on_receipt: OnReceipt | None = None
) -> URLPattern:
    """Make the receiver of notifications (§6) for `urlpatterns`: any method, always the same 200, no CSRF token.

    With a `secret`, `route` is the path of the `base` that is given to `notification_url(base, ..., secret)`. (Django
    itself has read the whole body by then, into a file if it is large.)
    """
    receiver = Receiver(secret, on_receipt)

    async def receive(request: HttpRequest, key: str = "") -> HttpResponse:
        await receiver.take(
            tracker_of(request),
            key=key,
            query=request.META.get("QUERY_STRING", ""),
            content_type=request.META.get("CONTENT_TYPE", ""),
            body=_blocks(request),
        )
        return page_response(ANSWER)

    receive.csrf_exempt = True  # type: ignore[attr-defined]  # as the decorator marks it
    return path(route_of(route, secret, "<str:key>"), receive)


async def _blocks(request: HttpRequest) -> AsyncIterator[bytes]:
    while block := request.read(4096):
        yield block


def order_routes(prefix: str = "orders", *, may_see: MaySee | None = None) -> list[URLPattern]:
    """Make the routes `{prefix}/{id}/status`, which `waiting_page` queries, and style and scripts at `{prefix}/assets`.

    `may_see(request, client_transaction_id)` returns whether this customer may see the sale, and may be async. Without
    `may_see`, anybody who knows an id sees its state.
    """

    async def status(request: HttpRequest, id: str) -> HttpResponse:  # noqa: A002 - the route's own name
        return page_response(await order_status(tracker_of(request), request, id, may_see))

    async def asset(_: HttpRequest, name: str) -> HttpResponse:
        return page_response(ASSETS[name])

    folder = f"{prefix.strip('/')}/"
    assets = [path(f"{folder}assets/{name}", asset, {"name": name}) for name in ASSETS]
    return [path(f"{folder}<path:id>/status", status), *assets]


def health_route(route: str = "health") -> URLPattern:
    """Make the route of `tracker.health()` for a load balancer: JSON, with status 200, or 503 and its `problems`.

    The body holds counts and times, no id and no amount. Anybody who reaches the route sees them.
    """

    async def health(request: HttpRequest) -> HttpResponse:
        return page_response(health_page(await tracker_of(request).health()))

    return path(route.lstrip("/"), health)


def page_response(page: Page) -> HttpResponse:
    """Return a page as this framework's response."""
    return HttpResponse(page.body, status=page.status, headers=dict(page.headers))


def redirect_response(
    request: HttpRequest,
    link: FormLink,
    language: Language = "es",
    *,
    again: str | None = None,
    assets: str | None = None,
) -> HttpResponse:
    """Send the customer to a form by `redirect_page`, with the tracker's clock and the profile's `link_hosts`.

    Its own `Referrer-Policy` holds whatever SECURE_REFERRER_POLICY says.
    """
    tracker = tracker_of(request)
    hosts, now = tracker.profile.link_hosts, tracker.clock.time()
    return page_response(redirect_page(link, language, again=again, hosts=hosts, now=now, assets=assets))


@checks.register(checks.Tags.security)  # type: ignore[untyped-decorator]  # Django has no types
def _check_referrer_policy(**_: object) -> list[checks.CheckMessage]:
    """Warn where the site's own pages would not send the referrer that the forms ask for (§4)."""
    value = settings.SECURE_REFERRER_POLICY
    if "django.middleware.security.SecurityMiddleware" not in settings.MIDDLEWARE or value is None:
        return []
    policy = effective_policy([value if isinstance(value, str) else ",".join(value)])
    if sends_origin(policy):
        return []
    return [
        checks.Warning(
            f"SECURE_REFERRER_POLICY is {policy!r}: a payment form that is linked from your pages answers "
            "'access denied', because no referrer comes (§4).",
            hint=f"{advice('SECURE_REFERRER_POLICY')} Or send customers by payclient.web.django.redirect_response "
            "only, whose page has a policy of its own.",
            id="payclient.W001",
        )
    ]
