"""The merchant's routes: Sale, Button/Prepare and, where there are any, status and changes (§4, §5)."""

import math
import re
from collections import deque
from collections.abc import Callable
from typing import Final

from aiohttp import web

from .addresses import any_case
from .changes import change
from .forms import Form, FormBook
from .messages import Language, RefusalError, preferred_language
from .replies import json_reply
from .rules import read_body
from .sales import Sales
from .status import status_of
from .transactions import Books, Transaction

_MINUTE: Final = 60.0
_TRANSACTION_ID: Final = re.compile(r"[1-9][0-9]{0,18}")
_REGIONS: Final = ({"name": "Ecuador", "prefixNumber": "593", "iso": "EC"},)

#: The kind of application that an operation asks for.
_APPLICATIONS: Final = {"sale": "API", "prepare": "WEB", "confirm": "WEB"}


class MerchantApi:
    """The routes that take a bearer token.

    `account_of` returns the account of a token, or None. `url` returns the service's own address, known once it is
    open.
    """

    def __init__(
        self,
        books: Books,
        sales: Sales,
        forms: FormBook,
        account_of: Callable[[str], str | None],
        url: Callable[[], str],
    ) -> None:
        self._books = books
        self._sales = sales
        self._forms = forms
        self._account_of = account_of
        self._url = url
        self._answered: deque[float] = deque()
        #: The operation of each route: sale, prepare, status, status_by_client_id, or one of `settings.OPERATIONS`.
        self.operations: dict[web.AbstractRoute, str] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        settings = self._books.settings
        paths = [("sale", "/api/Sale"), ("prepare", "/api/button/Prepare")]
        paths += [(operation, path) for operation, ways in settings.paths.items() for path in ways]
        if (template := settings.status_by_client_transaction_id) is not None:
            # By default aiohttp keeps braces out of a path's variables; a merchant's id may have them.
            path = template.replace("{client_transaction_id}", "{client_transaction_id:[^/]+}")
            paths.append(("status_by_client_id", path))
        if settings.status_by_transaction_id is not None:
            paths.append(("status", settings.status_by_transaction_id))
        for operation, path in paths:
            method = "GET" if operation.startswith("status") or operation == "regions" else "POST"
            spelled = any_case(path) if settings.tolerant else path
            self.operations[router.add_route(method, spelled, self._answer)] = operation

    async def _answer(self, request: web.Request) -> web.Response:
        operation = self.operations[request.match_info.route]
        raw = await request.read()
        settings, tally = self._books.settings, self._books.tally
        language = preferred_language(request.headers.get("Accept-Language", ""))
        is_query = operation.startswith("status")
        if operation != "regions":
            tally["requests"] += 1
            tally["queries"] += is_query
        headers, status = {}, 200
        try:
            account = self._account(request, operation)
            if is_query and (wait := self._wait()) > 0:
                headers, status = {"Retry-After": str(math.ceil(wait))}, 429
                raise RefusalError(None, "throttled")
            self._books.timetable.run_due()
            if operation == "regions":
                answer: object = _REGIONS
            elif is_query:
                answer = self._queried(request, operation, account, language)
            else:
                answer = self._executed(operation, request.content_type, raw, account, language)
        except RefusalError as refused:
            tally["refused"] += not is_query and operation != "regions"
            answer = refused.as_json(language, empty_errors=settings.empty_errors)
            if refused.code is None:
                status = 429 if headers else 401
            elif refused.code == settings.not_found[1]:
                status = settings.not_found[0]
            else:
                status = settings.error_statuses.get(refused.code, 400)
        return json_reply(answer, status=status, headers=headers)

    def _account(self, request: web.Request, operation: str) -> str:
        settings = self._books.settings
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")  # §5.1
        is_bearer = scheme == "Bearer" or (settings.tolerant and scheme.lower() == "bearer")
        account = self._account_of(token) if is_bearer else None
        wanted = _APPLICATIONS.get(operation, settings.application)
        if account is None or settings.application not in (None, wanted):
            raise RefusalError(None, "unauthorized")
        return account

    def _wait(self) -> float:
        """Return 0 if a query is answered now, else the seconds until the next one is."""
        if (most := self._books.settings.queries_per_minute) is None:
            return 0.0
        now, answered = self._books.clock.monotonic(), self._answered
        while answered and now - answered[0] >= _MINUTE:
            answered.popleft()
        if len(answered) >= most:
            return answered[0] + _MINUTE - now
        answered.append(now)
        return 0.0

    def _queried(self, request: web.Request, operation: str, account: str, language: Language) -> object:
        settings = self._books.settings
        found: list[Transaction] = []
        if operation == "status_by_client_id":
            found = self._books.find_by_client_id(request.match_info["client_transaction_id"], account)
        elif _TRANSACTION_ID.fullmatch(text := request.match_info["transaction_id"]):
            one = self._books.find(int(text))
            if one is not None and one.account != account and settings.foreign_is_unauthorized:
                raise RefusalError(None, "unauthorized")
            found = [one] if one is not None and one.account == account else []
        seen = [one for one in found if not (settings.forgets_expired and one.how == "expired")]
        answers = [status_of(one, settings, language) for one in seen]
        if not answers:
            raise RefusalError.of(settings.not_found[1])
        return (
            answers if operation == "status_by_client_id" and settings.client_status_as_array else answers[0]
        )

    def _executed(
        self, operation: str, content_type: str, raw: bytes, account: str, language: Language
    ) -> object:
        body = read_body(operation, content_type, raw, self._books.settings)
        if operation == "sale":
            return {"transactionId": self._sales.create(body, account).transaction_id}
        if operation == "prepare":
            return self._prepared(self._forms.prepare(body, account))
        changed = change(operation, body, account, self._books, self._sales, self._forms)
        return status_of(changed, self._books.settings, language) if operation == "confirm" else True

    def _prepared(self, form: Form) -> dict[str, str]:
        names = {"wallet": self._books.settings.wallet_link_field, "card": "payWithCard"}
        if "code" in self._books.settings.form_paths and "transactionSummaryUrl" in form.texts:
            names["code"] = "payWithPaymentCode"
        links = {name: self._url() + self._forms.link(form, way) for way, name in names.items()}
        return {"paymentId": form.payment_id, **links}
