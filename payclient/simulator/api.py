"""What the merchant asks over HTTP: Sale, Button/Prepare and, where there are any, status and changes (§4, §5)."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeVar

from aiohttp import web

from .changes import CHANGES, Changes
from .forms import METHODS, Form, Forms
from .limits import QueryLimit
from .messages import english, wants_english
from .reading import read_body
from .refusals import Refusal, refusal
from .routing import any_case, id_in_path, json_response
from .rules import PREPARE_FIELDS, SALE_FIELDS
from .service import Service
from .status import status_of

__all__ = ["Api"]

_T = TypeVar("_T")


class Api:
    """The routes that take a bearer token.

    `account_of` returns the account of a token, or None. `url` returns the service's own address, known once it is
    open.
    """

    def __init__(
        self,
        service: Service,
        forms: Forms,
        changes: Changes,
        limit: QueryLimit,
        account_of: Callable[[str], str | None],
        url: Callable[[], str],
    ) -> None:
        self._settings = settings = service.settings
        self._service = service
        self._forms = forms
        self._changes = changes
        self._limit = limit
        self._account_of = account_of
        self._url = url
        self._operations: dict[web.AbstractRoute, str] = {}
        flag, language = settings.nick_name_flag, settings.language_field
        self._sale_fields = {**SALE_FIELDS, **({} if flag is None else {flag: bool})}
        self._prepare_fields = {
            **PREPARE_FIELDS,
            **({} if language is None else {language: str}),
            "transactionSummaryUrl": str,
        }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        settings = self._settings
        spelled = any_case if settings.tolerant else str
        router.add_post(spelled("/api/Sale"), self._post_sale)
        router.add_post(spelled("/api/button/Prepare"), self._post_prepare)
        for operation in CHANGES:
            for path in settings.paths.get(operation, ()):
                self._operations[router.add_post(spelled(path), self._post_change)] = operation
        for path in settings.paths.get("regions", ()):
            router.add_get(spelled(path), self._get_regions)
        if (template := settings.status_by_client_transaction_id) is not None:
            # By default aiohttp keeps braces out of a path's variables; a merchant's id may have them.
            path = template.replace("{client_transaction_id}", "{client_transaction_id:[^/]+}")
            router.add_get(spelled(path), self._get_status_by_client_id)
        if settings.status_by_transaction_id is not None:
            router.add_get(spelled(settings.status_by_transaction_id), self._get_status)

    def operation_of(self, request: web.Request) -> str:
        """What a request asks for: sale, prepare, status, confirm, cancel, reverse or regions."""
        if (change := self._operations.get(request.match_info.route)) is not None:
            return change.partition("_by_")[0]
        if request.method != "GET":
            return request.path.rpartition("/")[2].lower()
        return "regions" if request.match_info.handler == self._get_regions else "status"

    async def _post_sale(self, request: web.Request) -> web.Response:
        sale = await self._execute(request, self._service.create, self._sale_fields, "API")
        if isinstance(sale, web.Response):
            return sale
        return json_response({"transactionId": sale.transaction_id})

    async def _post_prepare(self, request: web.Request) -> web.Response:
        form = await self._execute(request, self._forms.prepare, self._prepare_fields, "WEB")
        return form if isinstance(form, web.Response) else json_response(self._prepared(form))

    async def _post_change(self, request: web.Request) -> web.Response:
        operation = self._operations[request.match_info.route]
        changed = await self._execute(
            request,
            partial(self._changes.execute, operation),
            CHANGES[operation],
            "WEB" if operation == "confirm" else None,
        )
        if isinstance(changed, web.Response):
            return changed
        return self._answer(request, status_of(changed, self._settings) if operation == "confirm" else True)

    async def _get_regions(self, request: web.Request) -> web.Response:
        if self._account(request) is None:
            return self._unauthorized(request)
        return json_response([dict(region) for region in self._settings.regions])

    async def _execute(
        self,
        request: web.Request,
        operation: Callable[[Mapping[str, object], str], _T | Refusal],
        fields: Mapping[str, type],
        application: Literal["API", "WEB"] | None,
    ) -> _T | web.Response:
        raw = await request.read()
        settings, tally = self._settings, self._service.tally
        tally["requests"] += 1
        wrong_kind = application is not None and settings.application not in {None, application}
        account = self._account(request)
        if wrong_kind or account is None:
            tally["refused"] += 1
            return self._unauthorized(request)
        body = read_body(request.content_type, raw, fields, tolerant=settings.tolerant)
        result = body if isinstance(body, Refusal) else operation(body, account)
        if isinstance(result, Refusal):
            tally["refused"] += 1
            status = settings.error_statuses.get(result.error_code, settings.error_status)
            return self._refused(request, result, status)
        return result

    async def _get_status(self, request: web.Request) -> web.Response:
        account = self._queried(request)
        if isinstance(account, web.Response):
            return account
        number = id_in_path(request)
        found = None if number is None else self._service.query(number, account)
        if found is None:
            return self._not_found(request)
        return self._answer(request, status_of(found, self._settings))

    async def _get_status_by_client_id(self, request: web.Request) -> web.Response:
        account = self._queried(request)
        if isinstance(account, web.Response):
            return account
        found = self._service.query_by_client_id(request.match_info["client_transaction_id"], account)
        if not found:
            return self._not_found(request)
        if self._settings.client_status_as_array:
            return self._answer(request, [status_of(one, self._settings) for one in found])
        return self._answer(request, status_of(found[0], self._settings))

    def _queried(self, request: web.Request) -> str | web.Response:
        """The account that a query is about, or why it is refused."""
        self._service.tally["requests"] += 1
        self._service.tally["queries"] += 1
        account = self._account(request)
        if account is None:
            return self._unauthorized(request)
        if (wait := self._limit.take()) > 0:
            settings = self._settings
            answer = self._answer(request, {"message": "Demasiadas consultas"}, settings.rate_limited_status)
            if settings.rate_limited_retry_after:
                answer.headers["Retry-After"] = str(math.ceil(wait))
            return answer
        return account

    def _account(self, request: web.Request) -> str | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")  # §5.1
        if self._settings.tolerant:
            scheme = scheme.capitalize()
        return self._account_of(token) if scheme == "Bearer" else None

    def _unauthorized(self, request: web.Request) -> web.Response:
        settings = self._settings
        return self._answer(request, {"message": settings.unauthorized_message}, settings.unauthorized_status)

    def _not_found(self, request: web.Request) -> web.Response:
        http_status, error_code = self._settings.not_found
        return self._refused(request, refusal(error_code), http_status)

    def _refused(self, request: web.Request, why: Refusal, status: int) -> web.Response:
        return self._answer(request, why.as_json(without_empty=not self._settings.empty_errors), status)

    def _answer(self, request: web.Request, answer: object, status: int = 200) -> web.Response:
        if self._settings.accept_language and wants_english(request.headers.get("Accept-Language", "")):
            answer = english(answer)
        return json_response(answer, status)

    def _prepared(self, form: Form) -> dict[str, object]:
        settings = self._settings
        links = {method: self._url() + self._forms.link(form, method) for method in METHODS}
        prepared: dict[str, object] = {
            "paymentId": form.payment_id,
            settings.wallet_link_field: links["wallet"],
            "payWithCard": links["card"],
        }
        if settings.payment_code_link_field is not None and form.has_payment_code:
            link = f"{self._url()}{settings.payment_code_path}?paymentId={form.payment_id}"
            prepared[settings.payment_code_link_field] = link
        return prepared
