"""The merchant's requests on their way: each is written down, and what the plan has in mind befalls it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from .clock import Clock, sleep
from .faults import Fault, FaultPlan
from .journal import Journal
from .refusals import FieldFault, Refusal, refusal, validation_refusal
from .routing import json_response
from .site import WHY

__all__ = ["ASIDE_PATH", "Traffic", "is_of"]

#: Where a redirect leads: nothing is executed there.
ASIDE_PATH = "/_simulator/aside"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: What a merchant's own id is called, here and in a Confirm, in small letters.
_CLIENT_ID = frozenset({"clienttransactionid", "clienttxid"})

_GATEWAY_PAGE = """<!DOCTYPE html>
<html><head><title>{status} {reason}</title></head>
<body><center><h1>{status} {reason}</h1></center><hr><center>gateway</center></body></html>
"""


class Traffic:
    """The middleware around what the merchant asks, and nothing else. `approve` answers a push for its customer."""

    def __init__(
        self,
        plan: FaultPlan,
        journal: Journal,
        clock: Clock,
        approve: Callable[[int], Awaitable[None]],
        operation_of: Callable[[web.Request], str],
        *,
        is_merchants: Callable[[web.Request], bool],
        is_customers: Callable[[web.Request], bool],
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._clock = clock
        self._approve = approve
        self._operation_of = operation_of
        self._is_merchants = is_merchants
        self._is_customers = is_customers
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let go of the requests that stall."""
        self._stopping.set()

    def middleware(self) -> Any:
        """What aiohttp calls around each handler."""

        @web.middleware
        async def carry(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if self._is_merchants(request):
                return await self._carry(request, handler)
            response = await handler(request)
            if self._is_customers(request):  # without its query: who has that has the payment
                why = f", {response[WHY]}" if WHY in response else ""
                self._journal.write("page", f"{request.method} {request.path}{why}", status=response.status)
            return response

        return carry

    async def _carry(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        operation = self._operation_of(request)
        client_id = await _client_id(request)
        fault = self._plan.next(operation, request.path if client_id is None else client_id, client_id)
        if fault is not None and fault.kind == "latency" and fault.when == "before":
            await sleep(self._clock, fault.seconds)
        answer: web.StreamResponse | None = None
        if fault is None or fault.when == "after" or fault.kind == "latency":
            answer = await handler(request)
        number = _transaction_id(answer)
        response = answer if fault is None else await self._befall(fault, request, answer, number)
        self._journal.write(
            "request",
            operation if answer is not None else f"{operation}, not executed",
            client_transaction_id=client_id,
            transaction_id=number,
            status=None if response is None else response.status,
            fault=None if fault is None else fault.kind,
        )
        # After a reset there is nobody to read it.
        return web.Response(status=500) if response is None else response

    async def _befall(
        self, fault: Fault, request: web.Request, answer: web.StreamResponse | None, number: int | None
    ) -> web.StreamResponse | None:
        """The answer that leaves; None if none does."""
        match fault.kind:
            case "latency":
                if fault.when == "after":
                    await sleep(self._clock, fault.seconds)
                return answer
            case "early":
                if number is not None:
                    with contextlib.suppress(LookupError, ValueError):  # somebody else was faster
                        await self._approve(number)
                return answer
            case "stall":
                await self._stopping.wait()
                _reset(request.transport)
                return None
            case "reset":
                _reset(request.transport)
                return None
            case "cut":
                return await _cut(request, answer)
            case "html":
                return _html(fault.status)
            case "redirect":
                return web.Response(status=fault.status, headers={"Location": ASIDE_PATH})
            case "refuse":
                return json_response(_refusal(fault.error_code or 22).as_json(), fault.status)
            case "throttle":
                return _throttled(fault)
            case _:
                return web.Response(status=fault.status)


def is_of(owner: object) -> Callable[[web.Request], bool]:
    """Whether a request goes to a method of `owner`, whatever the settings call its path."""
    return lambda request: getattr(request.match_info.handler, "__self__", None) is owner


def _reset(transport: asyncio.Transport | None) -> None:
    """Close it by a reset, whatever has not been sent."""
    if transport is not None:
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def _cut(request: web.Request, answer: web.StreamResponse | None) -> web.StreamResponse:
    body = answer.body if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else b"{}"
    response = web.StreamResponse(
        status=200 if answer is None else answer.status, headers={"Content-Type": "application/json"}
    )
    response.content_length = len(body)
    response.force_close()
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def _html(status: int) -> web.Response:
    response = web.Response(status=status, content_type="text/html")
    response.text = _GATEWAY_PAGE.format(status=status, reason=response.reason)
    return response


def _throttled(fault: Fault) -> web.Response:
    if fault.error_code is None:
        response = web.Response(status=429, text="Too Many Requests\n")
    else:
        response = json_response(Refusal(fault.error_code, "Demasiadas solicitudes").as_json(), 429)
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def _refusal(code: int) -> Refusal:
    """The error object of a code as the document shows it (§7.2 to §7.6)."""
    if code == 800:
        return validation_refusal([FieldFault("Amount", "Rechazo simulado")])
    return refusal(22, 2061) if code == 2061 else refusal(code)


async def _client_id(request: web.Request) -> str | None:
    if request.method == "GET":
        return request.match_info.get("client_transaction_id")
    body = _object(await request.read())  # kept by the request for the handler
    found = next((value for name, value in body.items() if name.lower() in _CLIENT_ID), None)
    return str(found) if isinstance(found, (str, int)) else None


def _transaction_id(answer: web.StreamResponse | None) -> int | None:
    body = answer.body if isinstance(answer, web.Response) else None
    found = _object(body).get("transactionId") if isinstance(body, bytes) else None
    return found if isinstance(found, int) else None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}
