"""The merchant's requests (§4, §5): Sale, Prepare, and the status queries and changes that the settings have."""

import asyncio
import contextlib
import math
import re
import socket
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from .books import Books
from .clock import sleep
from .faults import Fault
from .messages import FieldFault, Language, RefusalError, preferred_language
from .notifications import Notifications
from .routes import Route, json_reply
from .rules import members_of, parse_body
from .settings import OPERATIONS
from .status import status_of
from .transactions import Form

_MINUTE: Final = 60.0
_TRANSACTION_ID: Final = re.compile(r"[1-9][0-9]{0,18}")
_REGIONS: Final = [{"name": "Ecuador", "prefixNumber": 593, "iso": "EC"}]
#: The kind of application that an operation requires.
_APPLICATIONS: Final = {"sale": "API", "prepare": "WEB", "confirm": "WEB"}
#: Names of the merchant's own id, here and in a Confirm, in small letters.
_CLIENT_ID: Final = frozenset({"clienttransactionid", "clienttxid"})
#: Where a redirect leads: nothing is there.
_ASIDE: Final = "/aside"
_CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Accept-Language",
    "Access-Control-Allow-Methods": "GET, POST",
}
#: The refusals by fault that are more than a code (§7.3, §7.5).
_REFUSALS: Final = {
    2061: RefusalError(22, inner=(2061,)),
    800: RefusalError(800, faults=(FieldFault("Amount", "simulated"),)),
}
_HTTP_STATUSES: Final[Mapping[int | str, int]] = {"unauthorized": 401, "throttled": 429}


class MerchantApi:
    """The routes that take a bearer token: every request is logged, and answered unless a fault applies to it."""

    def __init__(self, books: Books, notifications: Notifications) -> None:
        self._books = books
        self._notifications = notifications
        self._queries: deque[float] = deque()  # when the last minute's were answered

    def routes(self) -> Iterator[Route]:
        settings = self._books.settings
        paths = [("sale", "/api/Sale"), ("prepare", "/api/button/Prepare")]
        paths += [(operation, path) for operation in OPERATIONS for path in settings.paths.get(operation, ())]
        status_paths = (settings.status_by_client_transaction_id, settings.status_by_transaction_id)
        paths += [("status", path) for path in status_paths if path is not None]
        for operation, path in paths:
            method = "GET" if operation in ("status", "regions") else "POST"
            yield Route(method, path, partial(self._answer, operation), settings.tolerant)
            if settings.cors:
                yield Route("OPTIONS", path, self._get_permission, settings.tolerant)

    async def _get_permission(self, _: web.BaseRequest, __: Mapping[str, str]) -> web.Response:
        return web.Response(status=204, headers=_CORS)

    async def _answer(
        self, operation: str, request: web.BaseRequest, match: Mapping[str, str]
    ) -> web.StreamResponse:
        raw, kind = await request.read(), operation.partition("_by_")[0]
        client_id = match.get("client_transaction_id") or _client_id(request.content_type, raw)
        fault = self._books.faults.next(kind, request.path if client_id is None else client_id, client_id)
        if fault is not None and fault.kind == "latency" and fault.when == "before":
            await sleep(self._books.clock, fault.seconds)
        answer, transaction_id = None, None
        if fault is None or fault.lets_execute:
            answer, transaction_id = self._execute(operation, request, raw, match)
        response: web.StreamResponse | None = answer
        if fault is not None:
            response = await self._apply_fault(fault, request, answer, transaction_id)
        self._books.log_entry(
            "request",
            kind if answer is not None else f"{kind}, not executed",
            client_id,
            transaction_id,
            status=None if response is None else response.status,
            fault=fault and fault.kind,
        )
        if response is None:
            return await _break_off(request, fault)
        if self._books.settings.cors and not response.prepared:
            response.headers.update(_CORS)
        return response

    def _execute(
        self, operation: str, request: web.BaseRequest, raw: bytes, match: Mapping[str, str]
    ) -> tuple[web.Response, int | None]:
        """Return the answer and the transaction id in it."""
        books, settings = self._books, self._books.settings
        is_query, is_counted = operation == "status", operation != "regions"
        books.tally.update(requests=int(is_counted), queries=int(is_query))
        language = preferred_language(request.headers.get("Accept-Language", ""))
        status, headers = 200, {}
        try:
            account = self._account(request, operation)
            if is_query:
                self._count_query()
            books.timetable.run_due()
            answer: Any = _REGIONS
            if is_query:
                answer = self._status(match, account, language)
            elif is_counted:
                body = parse_body(request.content_type, raw, settings)
                answer = self._change(operation, body, account, language)
        except RefusalError as refused:
            if is_counted and not is_query:
                books.tally["refused"] += 1
            answer = refused.as_json(language)
            not_found_status, not_found_code = settings.not_found
            statuses = {**_HTTP_STATUSES, not_found_code: not_found_status}
            status = statuses.get(refused.key) or settings.error_statuses.get(refused.code or 0, 400)
            if refused.message == "throttled":
                headers["Retry-After"] = str(refused.values[0])
        transaction_id = answer.get("transactionId") if isinstance(answer, dict) else None
        return json_reply(answer, status, headers), transaction_id

    def _account(self, request: web.BaseRequest, operation: str) -> str:
        settings = self._books.settings
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")  # §5.1
        is_bearer = scheme == "Bearer" or (settings.tolerant and scheme.lower() == "bearer")
        account = self._books.account_of(token) if is_bearer else None
        wanted = _APPLICATIONS.get(operation)
        if account is None or (wanted and settings.application not in (None, wanted)):
            raise RefusalError(message="unauthorized")
        return account

    def _count_query(self) -> None:
        """Count a query that is answered; RefusalError, with the seconds until the next one is, beyond the limit."""
        most, now = self._books.settings.queries_per_minute, self._books.clock.monotonic()
        while self._queries and now - self._queries[0] >= _MINUTE:
            self._queries.popleft()
        if most is not None and len(self._queries) >= most:
            raise RefusalError(message="throttled", values=(math.ceil(self._queries[0] + _MINUTE - now),))
        self._queries.append(now)

    def _status(self, match: Mapping[str, str], account: str, language: Language) -> object:
        settings, transaction_id = self._books.settings, None
        if (text := match.get("transaction_id")) is not None:
            transaction_id = int(text) if _TRANSACTION_ID.fullmatch(text) else 0
        found = self._books.find(account, transaction_id, match.get("client_transaction_id", ""))
        if not found and settings.foreign_is_unauthorized and self._books.exists(transaction_id):
            raise RefusalError(message="unauthorized")
        seen = [one for one in found if not (settings.forgets_expired and one.how == "expired")]
        if not seen:
            raise RefusalError(settings.not_found[1])  # its errorCode
        answers = [status_of(one, self._books, language) for one in seen]
        return answers if transaction_id is None else answers[0]

    def _change(self, operation: str, body: dict[str, Any], account: str, language: Language) -> object:
        if operation == "sale":
            return {"transactionId": self._books.create_sale(body, account).transaction_id}
        if operation == "prepare":
            return self._prepare_answer(self._books.create_form(body, account))
        changed = self._books.change(operation, body, account)
        return status_of(changed, self._books, language) if operation == "confirm" else True

    def _prepare_answer(self, form: Form) -> dict[str, str]:
        settings = self._books.settings
        return {
            "paymentId": form.payment_id,
            settings.wallet_link_field: self._books.url + self._books.link(form, "wallet"),
            "payWithCard": self._books.url + self._books.link(form, "card"),
        }

    async def _apply_fault(
        self, fault: Fault, request: web.BaseRequest, answer: web.Response | None, transaction_id: int | None
    ) -> web.StreamResponse | None:
        """Return the answer that is sent after a fault; None: no answer is sent."""
        match fault.kind:
            case "latency":
                if fault.when == "after":
                    await sleep(self._books.clock, fault.seconds)
                return answer
            case "early":
                sale = self._books.sales.get(transaction_id or 0)
                if sale is not None and sale.how is None:
                    self._books.decide_sale(sale, "approved")
                    await self._notifications.delivered(sale)
                return answer
            case "stall" | "reset":
                return None
            case "cut":
                return await _cut(request, answer)
            case _:
                return _instead(fault)


def _instead(fault: Fault) -> web.Response:
    """Return the answer of a gateway, or of the service that refuses."""
    response = web.Response(status=fault.status)
    if fault.kind == "html":
        response.content_type = "text/html"
        response.text = f"<!DOCTYPE html>\n<h1>{fault.status} {response.reason}</h1><hr>gateway\n"
    elif fault.kind == "redirect":
        response.headers["Location"] = _ASIDE
    elif fault.kind == "refuse" or fault.error_code is not None:
        code, message = fault.error_code or 22, "throttled" if fault.kind == "throttle" else ""
        refused = _REFUSALS.get(code) or RefusalError(code, message=message)
        response = json_reply(refused.as_json("es"), fault.status)
    elif fault.kind == "throttle":
        response.text = "Too Many Requests\n"
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


async def _break_off(request: web.BaseRequest, fault: Fault | None) -> web.Response:
    """Reset a request's connection, at once or, if it stalls, when the service closes."""
    if fault is not None and fault.kind == "stall":
        await asyncio.Event().wait()
    _reset(request.transport)
    return web.Response(status=500)  # nothing sends it any more


def _reset(transport: asyncio.Transport | None) -> None:
    """Close a connection by a TCP reset, which drops what has not been sent."""
    if transport is not None:
        with contextlib.suppress(OSError):  # it is closed already
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()


async def _cut(request: web.BaseRequest, answer: web.Response | None) -> web.StreamResponse:
    """Send the head of an answer and half of its body, and close the connection."""
    body = answer.body if answer is not None and isinstance(answer.body, bytes) else b"{}"
    response = web.StreamResponse(status=200 if answer is None else answer.status)
    response.content_type = "application/json"
    response.content_length = len(body)
    response.force_close()
    with contextlib.suppress(ConnectionError):  # the client has hung up already
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def _client_id(content_type: str, raw: bytes) -> str | None:
    members = members_of(content_type, raw) or {}
    found = next((value for name, value in members.items() if name.lower() in _CLIENT_ID), None)
    return str(found) if isinstance(found, (str, int)) else None
