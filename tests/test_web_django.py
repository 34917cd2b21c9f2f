"""Django under ASGI: the tracker's life around it, sync views, and the system check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core import checks
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path

import payclient
from asgi import ask, lifespan
from fake_service import PROFILE, FakeService, sale, tracking
from payclient.tracking.forms import FormLink
from payclient.web.django import (
    TrackerApplication,
    notification_route,
    order_routes,
    redirect_response,
    tracker_of,
)


class SyncMiddleware:
    """As many still are: Django then runs all that is below it in a thread."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: object) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)  # type: ignore[operator]  # Django has no types


if not settings.configured:
    settings.configure(
        SECRET_KEY="test",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            f"{__name__}.SyncMiddleware",
        ],
    )

loops: list[object] = []
heard: list[object] = []


def sync_view(request: HttpRequest) -> HttpResponse:
    """Charges from a thread."""

    async def charge() -> payclient.PendingSale:
        loops.append(asyncio.get_running_loop())
        return await tracker_of(request).sale(sale("from-a-thread"))

    return HttpResponse(str(async_to_sync(charge)().transaction_id))


async def form(request: HttpRequest) -> HttpResponse:
    """Sends the customer to a form that was prepared long ago, or just now."""
    age = float(request.GET["age"])
    link = FormLink(f"https://{request.GET['host']}/form", tracker_of(request).clock.time() - age)
    try:
        return redirect_response(request, link, "en", again="/cart")
    except payclient.ConfigurationError:
        return HttpResponse("refused", status=500)


urlpatterns = [
    path("charge", sync_view),
    path("form", form),
    *order_routes(),
    notification_route("notify", on_receipt=lambda notification, receipt: heard.append(receipt)),
]


@asynccontextmanager
async def opening() -> AsyncIterator[payclient.Tracker]:
    profile = attrs.evolve(PROFILE, link_hosts=frozenset({"pay.example"}))
    async with tracking(FakeService(), profile=profile) as tracker:
        yield tracker


@asynccontextmanager
async def selling() -> AsyncIterator[payclient.Tracker]:
    async with opening() as tracker:
        await tracker.sale(sale("2026/17"))
        yield tracker


async def test_a_sync_view_charges_on_the_servers_own_loop() -> None:
    """Also below a sync middleware: the tracker is never used from another loop."""
    app = TrackerApplication(get_asgi_application(), opening)
    async with lifespan(app) as sent:
        assert [message["type"] for message in sent] == ["lifespan.startup.complete"]
        answered = await ask(app, "GET", "/charge")
        assert (answered.status, answered.body) == (200, b"1000")
        answered = await ask(app, "POST", "/notify", [b"id=1000&clientTransactionID=from-a-thread"])
        assert (answered.status, answered.body) == (200, b"OK")
    assert loops == [asyncio.get_running_loop()]
    assert heard == [payclient.Receipt.MATCHED]
    assert [message["type"] for message in sent][1:] == ["lifespan.shutdown.complete"]


async def test_the_redirect_keeps_its_own_policy() -> None:
    """Whatever SecurityMiddleware would add; a form of ten minutes ago is gone by the tracker's clock."""
    app = TrackerApplication(get_asgi_application(), opening)
    async with lifespan(app):
        answered = await ask(app, "GET", "/form?host=pay.example&age=1")
        assert (answered.status, answered.headers["Referrer-Policy"]) == (200, "origin")
        answered = await ask(app, "GET", "/form?host=pay.example&age=600")
        assert (answered.status, b'href="/cart"' in answered.body) == (410, True)
        assert (await ask(app, "GET", "/form?host=evil.example&age=1")).status == 500
    # The tracker went with the server's life.
    assert (await ask(app, "GET", "/form?host=pay.example&age=1")).status == 500


async def test_an_id_may_have_a_slash_in_it() -> None:
    """It reaches Django as a part of the path."""
    app = TrackerApplication(get_asgi_application(), selling)
    async with lifespan(app):
        assert (await ask(app, "GET", "/orders/2026%2F17/status")).status == 200
        assert (await ask(app, "GET", "/orders/2026%2F18/status")).status == 404


async def test_a_tracker_that_does_not_open_stops_the_server() -> None:
    """With the reason where it is one of ours, and the class alone where it is not."""

    @asynccontextmanager
    async def failing(error: Exception) -> AsyncIterator[payclient.Tracker]:
        raise error
        yield

    for error, said in (
        (payclient.ConfigurationError("token: is empty"), "ConfigurationError: token: is empty"),
        (OSError("secret"), "OSError"),
    ):
        app = TrackerApplication(get_asgi_application(), lambda error=error: failing(error))  # type: ignore[misc]  # mypy infers no default
        async with lifespan(app) as sent:
            assert sent == [{"type": "lifespan.startup.failed", "message": said}]


async def test_without_lifespan_or_asgi_it_says_what_to_do() -> None:
    """daphne sends none; a WSGI request has a loop of its own."""
    with pytest.raises(payclient.UsageError, match="uvicorn"):
        tracker_of(RequestFactory().get("/"))


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ("same-origin", True), ("no-referrer", True), (["origin", "same-origin"], True), ("origin", False),
        ("no-referrer, strict-origin-when-cross-origin", False), (None, False),
    ],
)  # fmt: skip
def test_the_system_check_reads_the_setting(policy: object, warned: bool) -> None:
    """`manage.py check` says what to change, before a customer is denied (§4); without the middleware, nothing."""

    def found() -> list[Any]:
        return [each for each in checks.run_checks(tags=["security"]) if each.id == "payclient.W001"]

    with override_settings(SECURE_REFERRER_POLICY=policy):
        assert bool(found()) is warned
        assert all("SECURE_REFERRER_POLICY to 'origin'" in each.hint for each in found())
        with override_settings(MIDDLEWARE=[]):
            assert found() == []
