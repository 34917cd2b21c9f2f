"""For Django under ASGI: the tracker lives in the server's lifespan, which Django itself does not take.

A server that speaks lifespan is needed (uvicorn, hypercorn). A sync view calls `async_to_sync(tracker.sale)(...)`,
which runs on the server's loop. Under WSGI and runserver use `payclient.sync`.

The receiver of notifications needs no CSRF token and no login; Django itself has read the whole body by then, into a
file if it is large. The page of `redirect_response` has a `Referrer-Policy` of its own, whatever
SECURE_REFERRER_POLICY says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from payclient.errors import PayError, UsageError
from payclient.tracking.tracker import Tracker
from payclient.web.pages import Page
from payclient.web.referrer import advice, effective_policy, sends_origin
from payclient.web.routes import Routes

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
        if scope["type"] != "lifespan":
            await self._application({**scope, _KEY: self._tracker}, receive, send)
            return
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


def tracker_of(request: HttpRequest) -> Tracker:
    """Return the worker's tracker. Raises `UsageError` where there is none, under WSGI for example."""
    tracker = getattr(request, "scope", {}).get(_KEY)
    if not isinstance(tracker, Tracker):
        raise UsageError(
            "no tracker: serve TrackerApplication(get_asgi_application(), ...) by an ASGI server with lifespan, "
            "such as uvicorn; under WSGI, runserver and daphne use payclient.sync"
        )
    return tracker


def page_response(page: Page) -> HttpResponse:
    """Return a page as this framework's response."""
    return HttpResponse(page.body, status=page.status, headers=dict(page.headers))


def _route(where: str, answer: Callable[[HttpRequest, Mapping[str, str]], Awaitable[Page]]) -> URLPattern:
    async def handle(request: HttpRequest, **found: str) -> HttpResponse:
        return page_response(await answer(request, found))

    # As the decorators mark it. Only the state of a sale stays behind a login that the whole site requires.
    vars(handle).update(csrf_exempt=True, login_required="{id}" in where)
    return path(where.lstrip("/").replace("{id}", "<path:id>").replace("{key}", "<str:key>"), handle)


def _read(request: HttpRequest) -> tuple[str, str, AsyncIterator[bytes]]:
    return request.META.get("QUERY_STRING", ""), request.META.get("CONTENT_TYPE", ""), _blocks(request)


async def _blocks(request: HttpRequest) -> AsyncIterator[bytes]:
    while block := request.read(4096):
        yield block


_routes: Routes[HttpRequest, HttpResponse, URLPattern] = Routes(tracker_of, page_response, _route, _read)
notification_route: Final = _routes.notification_route
order_routes: Final = _routes.order_routes
health_route: Final = _routes.health_route
redirect_response: Final = _routes.redirect_response


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
