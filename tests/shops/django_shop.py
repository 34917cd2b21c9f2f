"""The shop in Django under ASGI, in one file, with the default middleware that matters here."""

from __future__ import annotations

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from payclient.web.django import (
    TrackerApplication,
    health_route,
    notification_route,
    order_routes,
    page_response,
    tracker_of,
)
from shops import shop

__all__ = ["app"]

settings.configure(
    SECRET_KEY=shop.SECRET,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",  # sends Referrer-Policy: same-origin
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
)


async def home(request: HttpRequest) -> HttpResponse:
    return page_response(shop.ways("order-1"))


@csrf_exempt  # type: ignore[untyped-decorator]  # Django has no types; and the test's client keeps no cookie
def pay(request: HttpRequest, order: str) -> HttpResponse:
    """A sync view, as many are: the tracker's calls run on the server's own loop all the same."""
    if request.method != "POST":
        return page_response(shop.ways(order, withdraws=True))
    return page_response(async_to_sync(shop.pay)(tracker_of(request), order, request.body))


async def card(request: HttpRequest, order: str) -> HttpResponse:
    return page_response(await shop.card(tracker_of(request), order))


async def order(request: HttpRequest, order: str) -> HttpResponse:
    return page_response(await shop.show(tracker_of(request), order))


async def back(request: HttpRequest, identifier: str) -> HttpResponse:
    return page_response(await shop.back(tracker_of(request), identifier, request.META["QUERY_STRING"]))


urlpatterns = [
    path("", home),
    path("pay/<str:order>", pay),
    path("card/<str:order>", card),
    path("orders/<str:order>", order),
    path("back/<str:identifier>", back),
    *order_routes(),
    health_route("/health"),
    notification_route("pay/notify", secret=shop.SECRET, on_receipt=shop.heard),
]

app = TrackerApplication(get_asgi_application(), shop.opening)
