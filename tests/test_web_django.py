"""Django under ASGI: the tracker's life around it, sync views, and the system check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path

import payclient
import payclient.web.django
from asgi import asking_of, lifespan
from fake_service import FakeService, sale, tracking
from payclient.web.django import (
    TrackerApplication,
    health_route,
    notification_route,
    order_routes,
    tracker_of,
)

loops: list[object] = []


def sync_view(request: HttpRequest) -> HttpResponse:
    """Charges from a thread."""

    async def charge() -> payclient.PendingSale:
        loops.append(asyncio.get_running_loop())
        return await tracker_of(request).sale(sale("from-a-thread"))

    return HttpResponse(str(async_to_sync(charge)().transaction_id))


async def test_a_sync_view_charges_on_the_servers_own_loop() -> None:
    """Also below a sync middleware: the tracker is never used from another loop, and goes with the server's life."""
    heard: list[object] = []
    routes = [
        path("charge", sync_view),
        notification_route("notify", on_receipt=lambda notification, receipt: heard.append(receipt)),
    ]
    async with tracking(FakeService()) as tracker, asking_of(payclient.web.django, tracker, routes) as asking:
        answered = await asking("GET", "/charge")
        assert (answered.status, answered.body) == (200, b"1000")
        answered = await asking("POST", "/notify", [b"id=1000&clientTransactionID=from-a-thread"])
        assert (answered.status, answered.body) == (200, b"OK")
    assert loops == [asyncio.get_running_loop()]
    assert heard == [payclient.Receipt.MATCHED]


async def test_a_site_behind_a_login_is_notified() -> None:
    """Django 5.1's middleware sent the service to the login page; a sale's state is seen behind the login only."""
    members = [
        f"django.contrib.auth.middleware.{name}Middleware" for name in ("Authentication", "LoginRequired")
    ]
    routes = [notification_route("notify"), health_route("health"), *order_routes("orders")]
    with override_settings(MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", *members]):
        async with (
            tracking(FakeService()) as tracker,
            asking_of(payclient.web.django, tracker, routes) as asking,
        ):
            await tracker.sale(sale())
            answered = await asking("POST", "/notify", [b"id=1000&clientTransactionID=order-17"])
            assert (answered.status, answered.body) == (200, b"OK")
            assert (
                (await asking("GET", "/health")).status
                == (await asking("GET", "/orders/assets/style.css")).status
                == 200
            )
            assert (await asking("GET", "/orders/order-17/status")).status == 302
            noted = await tracker.find("order-17")
            assert noted is not None
            assert noted.notified_at is not None


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


async def test_a_tracker_that_does_not_close_is_named_at_the_end() -> None:
    """The server was up: it is the end that failed."""

    @asynccontextmanager
    async def failing() -> AsyncIterator[payclient.Tracker]:
        async with tracking(FakeService()) as tracker:
            yield tracker
        raise OSError("secret")

    async with lifespan(TrackerApplication(get_asgi_application(), failing)) as sent:
        pass
    assert [one["type"] for one in sent] == ["lifespan.startup.complete", "lifespan.shutdown.failed"]
    assert "secret" not in repr(sent)


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
