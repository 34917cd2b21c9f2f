"""What the merchant asks over HTTP: Sale, Button/Prepare and, where there is one, the status (§4, §5)."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import orjson
from aiohttp import web

from .forms import METHODS, Forms
from .rules import Fault, Refusal, validation_refusal
from .service import Service
from .settings import ACCEPTED, CANCELLED, PENDING
from .transactions import Transaction
from .web_values import id_in_path, json_response

__all__ = ["Api"]

_STATUS_CODES = {PENDING: 1, CANCELLED: 2, ACCEPTED: 3}

_T = TypeVar("_T")


class Api:
    """The routes that take a bearer token. `url` is called for the service's own address, known once it is open."""

    def __init__(self, service: Service, forms: Forms, token: str | None, url: Callable[[], str]) -> None:
        self._settings = service.settings
        self._service = service
        self._forms = forms
        self._token = token
        self._url = url

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/api/Sale", self._post_sale)
        router.add_post("/api/button/Prepare", self._post_prepare)
        if (template := self._settings.status_by_client_transaction_id) is not None:
            # By default aiohttp keeps braces out of a path's variables; a merchant's id may have them.
            path = template.replace("{client_transaction_id}", "{client_transaction_id:[^/]+}")
            router.add_get(path, self._get_status_by_client_id)
        if self._settings.status_by_transaction_id is not None:
            router.add_get(self._settings.status_by_transaction_id, self._get_status)

    async def _post_sale(self, request: web.Request) -> web.Response:
        sale = await self._execute(request, self._service.create)
        if isinstance(sale, web.Response):
            return sale
        return json_response({"transactionId": sale.transaction_id})

    async def _post_prepare(self, request: web.Request) -> web.Response:
        form = await self._execute(request, self._forms.prepare)
        if isinstance(form, web.Response):
            return form
        links = {method: f"{self._url()}/form/{method}?paymentId={form.payment_id}" for method in METHODS}
        return json_response(
            {
                "paymentId": form.payment_id,
                self._settings.wallet_link_field: links["wallet"],
                "payWithCard": links["card"],
            }
        )

    async def _execute(
        self, request: web.Request, operation: Callable[[Mapping[str, object]], _T | Refusal]
    ) -> _T | web.Response:
        raw = await request.read()
        tally = self._service.tally
        tally["requests"] += 1
        if not self._is_authorized(request):
            tally["refused"] += 1
            return self._unauthorized()
        body = _parse_body(request.content_type, raw)
        result = body if isinstance(body, Refusal) else operation(body)
        if isinstance(result, Refusal):
            tally["refused"] += 1
            return json_response(result.as_json(), self._settings.error_status)
        return result

    async def _get_status(self, request: web.Request) -> web.Response:
        if not self._count_query(request):
            return self._unauthorized()
        number = id_in_path(request)
        found = None if number is None else self._service.query(number)
        return self._not_found() if found is None else json_response(self._status(found))

    async def _get_status_by_client_id(self, request: web.Request) -> web.Response:
        if not self._count_query(request):
            return self._unauthorized()
        found = self._service.query_by_client_id(request.match_info["client_transaction_id"])
        if not found:
            return self._not_found()
        if self._settings.client_status_as_array:
            return json_response([self._status(one) for one in found])
        return json_response(self._status(found[0]))

    def _count_query(self, request: web.Request) -> bool:
        self._service.tally["requests"] += 1
        self._service.tally["queries"] += 1
        return self._is_authorized(request)

    def _is_authorized(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")  # §5.1
        return scheme == "Bearer" and (bool(token.strip()) if self._token is None else token == self._token)

    def _unauthorized(self) -> web.Response:
        return json_response(
            {"message": "Authorization has been denied for this request."}, self._settings.unauthorized_status
        )

    def _not_found(self) -> web.Response:
        http_status, error_code = self._settings.not_found
        return json_response(Refusal(error_code, "La transacción no existe").as_json(), http_status)

    def _status(self, transaction: Transaction) -> dict[str, object]:
        state = transaction.state
        return {
            "transactionId": transaction.transaction_id,
            "clientTransactionId": transaction.client_transaction_id,
            "amount": transaction.amount,
            "currency": transaction.currency,
            self._settings.state_field: self._settings.state_words.get(state, state),
            "statusCode": _STATUS_CODES[state],
        }


def _parse_body(content_type: str, raw: bytes) -> dict[str, object] | Refusal:
    if content_type != "application/json":  # §5.2
        return validation_refusal([Fault("Content-Type", "Debe ser application/json")])
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return validation_refusal([Fault("body", "El cuerpo no es JSON")])
    if not isinstance(body, dict):
        return validation_refusal([Fault("body", "El cuerpo debe ser un objeto")])
    return body
