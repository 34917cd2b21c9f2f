"""The shop in Django under ASGI, in one file, with the default middleware that matters here."""

from __future__ import annotations

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

import payclient
from payclient.web import is_waiting, waiting_page
from payclient.web.django import (
    TrackerApplication,
    health_route,
    notification_route,
    order_routes,
    page_response,
    redirect_response,
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


def html(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(text, status=status)


def shown(sale: payclient.PendingSale | None) -> HttpResponse:
    if sale is None:
        raise Http404
    if is_waiting(sale):
        status_url = f"/orders/{sale.client_transaction_id}/status"
        return page_response(waiting_page(sale, status_url, "en"))
    return html(shop.outcome_html(sale))


async def home(request: HttpRequest) -> HttpResponse:
    return html(shop.home_html())


@csrf_exempt  # type: ignore[untyped-decorator]  # Django has no types; and the test's client keeps no cookie
def pay(request: HttpRequest, identifier: str) -> HttpResponse:
    """A sync view, as many are: the tracker's calls run on the server's own loop all the same."""
    try:
        async_to_sync(tracker_of(request).sale)(shop.sale_request(identifier, shop.phone_in(request.body)))
    except payclient.PayError as error:  # this call created nothing
        return html(shop.refused_html(error), 409)
    return HttpResponseRedirect(f"/orders/{identifier}", status=303)


async def order(request: HttpRequest, identifier: str) -> HttpResponse:
    return shown(await tracker_of(request).find(identifier))


async def form(request: HttpRequest, cart: str) -> HttpResponse:
    prepared = await tracker_of(request).live_form(cart, shop.prepare_request)
    return redirect_response(request, prepared.card, "en", again="/")


async def back(request: HttpRequest, identifier: str) -> HttpResponse:
    return shown(await shop.back_of(tracker_of(request), identifier, request.META["QUERY_STRING"]))


async def cancelled(request: HttpRequest, identifier: str) -> HttpResponse:
    await shop.close(tracker_of(request), identifier, request.META["QUERY_STRING"])
    return html(shop.cancelled_html())


urlpatterns = [
    path("", home),
    path("pay/<str:identifier>", pay),
    path("orders/<str:identifier>", order),
    path("form/<str:cart>", form),
    path("back/<str:identifier>", back),
    path("cancelled/<str:identifier>", cancelled),
    *order_routes(),
    health_route("/health"),
    notification_route("pay/notify", secret=shop.SECRET, on_receipt=shop.heard),
]

app = TrackerApplication(get_asgi_application(), shop.opening)
