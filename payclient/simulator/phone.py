"""The page to play with: the customer's phone, the prepared forms and the log, with what they show as JSON."""

from collections.abc import Mapping
from importlib.resources import files
from itertools import count
from typing import Final

import attrs
from aiohttp import web

from .clock import Clock
from .faults import FaultPlan
from .forms import METHODS, Form, Forms
from .journal import Journal
from .refusals import Refusal
from .routing import json_response
from .service import Sale, Service

__all__ = ["Phone"]

_SHOWN = 12
_FILES: Final = {"page.js": "text/javascript", "page.css": "text/css"}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "origin",  # the forms open from a page that tells where it is (§4)
    "X-Content-Type-Options": "nosniff",
}
#: Merchant, cents and phone of the charges that the page can make up.
_SAMPLES: Final = (
    ("Café Central", 1150, "0984111222"),
    ("Librería Sur", 2490, "0991222333"),
    ("Taxi 42", 375, "0987333444"),
    ("Farmacia Norte", 1899, "0995444555"),
)


class Phone:
    """The page's routes. They show payment ids, as links, so they are part of the control routes."""

    def __init__(
        self, service: Service, forms: Forms, faults: FaultPlan, clock: Clock, journal: Journal
    ) -> None:
        self._faults = faults
        self._clock = clock
        self._service = service
        self._forms = forms
        self._journal = journal

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", self._get_page)
        router.add_get("/_simulator/{name:page\\.js|page\\.css}", self._get_file)
        router.add_get("/_simulator/phone", self._get_phone)
        router.add_post("/_simulator/samples/{kind:sale|form}", self._post_sample)

    async def _get_page(self, _: web.Request) -> web.Response:
        return _file("page.html", "text/html")

    async def _get_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _file(name, _FILES[name])

    async def _get_phone(self, _: web.Request) -> web.Response:
        self._service.agenda.run_due()
        sales = list(self._service.sales.values())
        pending = [sale for sale in sales if sale.how is None]
        decided = [sale for sale in sales if sale.how is not None]
        return json_response(
            {
                "time": self._clock.time(),
                "sale_window": self._service.settings.sale_window,
                "pushes": [self._push(sale) for sale in pending[-_SHOWN:][::-1]],
                "more_pushes": max(0, len(pending) - _SHOWN),
                "decided": [self._push(sale) for sale in decided[-_SHOWN:][::-1]],
                "forms": [self._form(form) for form in list(self._forms.forms.values())[-_SHOWN:][::-1]],
                "counts": attrs.asdict(self._service.counts),
                "duplicates": self._service.duplicates,
                "faults": dict(self._faults.done),
            }
        )

    async def _post_sample(self, request: web.Request) -> web.Response:
        """A charge, or a form, as a merchant might ask for it."""
        kind = request.match_info["kind"]
        known = {form.client_transaction_id for form in self._forms.forms.values()}
        known |= self._service.created_per_client_id.keys()
        number = next(n for n in count(1) if f"sample-{n}" not in known)
        made: Sale | Form | Refusal
        if kind == "sale":
            made = self._service.create(_sale(number))
        else:
            made = self._forms.prepare(_form(number, f"{request.scheme}://{request.host}/"))
        if isinstance(made, Refusal):
            return json_response(made.as_json(), 409)
        self._journal.write("service", f"sample {kind}", client_transaction_id=made.client_transaction_id)
        return json_response(
            {"client_transaction_id": made.client_transaction_id, "transaction_id": made.transaction_id}, 201
        )

    def _push(self, sale: Sale) -> dict[str, object]:
        window = self._service.settings.sale_window
        return {
            "transaction_id": sale.transaction_id,
            "client_transaction_id": sale.client_transaction_id,
            "store": sale.store_id,
            "amount": sale.amount,
            "currency": sale.currency,
            "customer": f"…{sale.customer[-3:]}",
            "expires_in": max(0.0, sale.created_at + window - self._clock.time()),
            "ignored": sale.ignored,
            "how": sale.how,
            "state": sale.state,
            "notification": sale.notification,
        }

    def _form(self, form: Form) -> dict[str, object]:
        return {
            "client_transaction_id": form.client_transaction_id,
            "store": form.store_id,
            "amount": form.amount,
            "currency": form.currency,
            "how": form.how,
            "links": {} if form.how is not None else self._links(form),
        }

    def _links(self, form: Form) -> Mapping[str, str]:
        return {
            method: self._forms.link(form, method)
            for method in METHODS
            if not self._forms.is_expired(form, method)
        }


def _sale(number: int) -> dict[str, object]:
    store, cents, phone = _SAMPLES[number % len(_SAMPLES)]
    return {
        "phoneNumber": f"{phone[:-4]}{number % 10_000:04}",
        "countryCode": "593",
        "amount": cents,
        "amountWithoutTax": cents,
        "currency": "USD",
        "clientTransactionId": f"sample-{number}",
        "storeId": store,
    }


def _form(number: int, address: str) -> dict[str, object]:
    return {
        **{
            name: value for name, value in _sale(number).items() if name not in ("phoneNumber", "countryCode")
        },
        "responseUrl": address,
        "cancellationUrl": address,
    }


def _file(name: str, content_type: str) -> web.Response:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=content_type, headers=_HEADERS)
