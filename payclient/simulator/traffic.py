"""Requests on their way: every one is logged and answered, and what the plan has in mind befalls the merchant's."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from .clock import sleep
from .faults import Fault, FaultPlan
from .merchant_api import MerchantApi
from .messages import FieldFault, RefusalError, invalid
from .replies import json_reply
from .transactions import Books

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Where a redirect leads: nothing is there.
_ASIDE: Final = "/aside"
#: Names of the merchant's own id, here and in a Confirm, in small letters.
_CLIENT_ID: Final = frozenset({"clienttransactionid", "clienttxid"})


class Traffic:
    """The middleware around all requests; `approve` answers a push for its customer."""

    def __init__(
        self,
        books: Books,
        faults: FaultPlan,
        api: MerchantApi,
        approve: Callable[[int], Awaitable[object]],
    ) -> None:
        self._books = books
        self._faults = faults
        self._api = api
        self._approve = approve
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let go of the requests that stall."""
        self._stopping.set()

    def middleware(self) -> Any:
        """Return what aiohttp calls around each handler."""

        @web.middleware
        async def carry(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if (operation := self._api.operations.get(request.match_info.route)) is not None:
                return await self._carry(request, handler, operation.partition("_by_")[0])
            try:
                response = await handler(request)
            except web.HTTPException as error:  # an unknown path, or another method
                allowed = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
                response = json_reply({"message": error.reason}, status=error.status, headers=allowed)
                self._books.log.write("request", f"{request.method} {request.path}", status=response.status)
            return response

        return carry

    async def _carry(self, request: web.Request, handler: _Handler, operation: str) -> web.StreamResponse:
        client_id = await _client_id(request)
        fault = self._faults.next(operation, request.path if client_id is None else client_id, client_id)
        if fault is not None and fault.kind == "latency" and fault.when == "before":
            await sleep(self._books.clock, fault.seconds)
        answer: web.StreamResponse | None = None
        if fault is None or fault.when == "after" or fault.kind == "latency":
            answer = await handler(request)
        number = _transaction_id(answer)
        response = answer if fault is None else await self._befall(fault, request, answer, number)
        text = operation if answer is not None else f"{operation}, not executed"
        status = None if response is None else response.status
        kind = None if fault is None else fault.kind
        self._books.log.write("request", text, client_id, number, status=status, fault=kind)
        # After a reset there is nobody to read it.
        return web.Response(status=500) if response is None else response

    async def _befall(
        self, fault: Fault, request: web.Request, answer: web.StreamResponse | None, number: int | None
    ) -> web.StreamResponse | None:
        """Return the answer that leaves; None if none does."""
        match fault.kind:
            case "latency":
                if fault.when == "after":
                    await sleep(self._books.clock, fault.seconds)
                return answer
            case "early":
                if number is not None:
                    with contextlib.suppress(LookupError, ValueError):  # somebody else was faster
                        await self._approve(number)
                return answer
            case "stall" | "reset":
                if fault.kind == "stall":
                    await self._stopping.wait()
                _reset(request.transport)
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
        code = fault.error_code or 22
        refused = RefusalError.of(22, 2061) if code == 2061 else RefusalError.of(code)  # §7.3
        if fault.kind == "throttle":
            refused = RefusalError(code, "throttled")
        elif code == 800:
            refused = invalid(FieldFault("Amount", "simulated"))
        response = json_reply(refused.as_json("es"), fault.status)
    elif fault.kind == "throttle":
        response.text = "Too Many Requests\n"
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def _reset(transport: asyncio.Transport | None) -> None:
    """Close it by a reset, whatever has not been sent."""
    if transport is not None:
        with contextlib.suppress(OSError):  # it is closed already
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()


async def _cut(request: web.Request, answer: web.StreamResponse | None) -> web.StreamResponse:
    body = _bytes(answer) or b"{}"
    response = web.StreamResponse(status=200 if answer is None else answer.status)
    response.content_type = "application/json"
    response.content_length = len(body)
    response.force_close()
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


async def _client_id(request: web.Request) -> str | None:
    if request.method == "GET":
        return request.match_info.get("client_transaction_id")
    body = _object(await request.read())  # kept by the request for the handler
    found = next((value for name, value in body.items() if name.lower() in _CLIENT_ID), None)
    return str(found) if isinstance(found, (str, int)) else None


def _transaction_id(answer: web.StreamResponse | None) -> int | None:
    found = _object(_bytes(answer)).get("transactionId")
    return found if isinstance(found, int) else None


def _bytes(answer: web.StreamResponse | None) -> bytes:
    return answer.body if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else b""


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}
