"""The JSON routes below /_simulator, by which another process reads and decides; they ask for no token."""

from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
from aiohttp import web

from .forms import Form, Forms
from .routing import id_in_path, json_response
from .service import Sale, Service

__all__ = ["Control"]

_Answering = Callable[[int, Literal["approved", "rejected"]], Awaitable[None]]


class Control:
    """Lists and counts, and answers a push for its customer."""

    def __init__(self, service: Service, forms: Forms, answer: _Answering) -> None:
        self._service = service
        self._forms = forms
        self._answer = answer

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/_simulator/counts", self._get_counts)
        router.add_get("/_simulator/sales", self._get_sales)
        router.add_get("/_simulator/forms", self._get_forms)
        router.add_post("/_simulator/sales/{transaction_id}/{verb:approve|reject}", self._post_answer)

    async def _get_counts(self, _: web.Request) -> web.Response:
        counts = attrs.asdict(self._service.counts)
        return json_response({**counts, "duplicates": self._service.duplicates})

    async def _get_sales(self, _: web.Request) -> web.Response:
        return json_response([_summary(sale) for sale in self._service.sales.values()])

    async def _get_forms(self, _: web.Request) -> web.Response:
        return json_response([_form_summary(form) for form in self._forms.forms.values()])

    async def _post_answer(self, request: web.Request) -> web.Response:
        number = id_in_path(request)
        sale = None if number is None else self._service.find(number)
        if sale is None:
            return json_response({"message": "no sale has this transaction id"}, 404)
        try:
            await self._answer(
                sale.transaction_id, "approved" if request.match_info["verb"] == "approve" else "rejected"
            )
        except ValueError as error:
            return json_response({"message": str(error)}, 409)
        return json_response(_summary(sale))


def _summary(payment: Sale | Form) -> dict[str, object]:
    return {
        "transaction_id": payment.transaction_id,
        "client_transaction_id": payment.client_transaction_id,
        "state": payment.state,
        "how": payment.how,
        "reversal": payment.reversal,
        "amount": payment.amount,
        "currency": payment.currency,
    }


def _form_summary(form: Form) -> dict[str, object]:
    # Neither payment id nor contact data: who has the payment id has the links.
    return {
        **_summary(form),
        "method": form.method,
        "loaded": sorted(form.deadlines),
        "confirmed": form.confirmed_at is not None,
    }
