"""The JSON routes by which another process makes things go wrong, lets time pass and reads the log."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Protocol

import orjson
from aiohttp import web

from .clock import Clock
from .faults import KINDS, Fault, FaultPlan
from .forms import METHODS, Method
from .journal import Journal
from .routing import id_in_path, json_response
from .scenarios import SCENARIOS
from .traffic import ASIDE_PATH

__all__ = ["Steered", "Steering"]

_MAX_WAIT = 25.0  # seconds, less than what most proxies and clients allow
_MAX_ADVANCE = 366 * 86_400.0
_MAX_DOWN = 3_600.0

_Handler = Callable[[web.Request], Awaitable[web.Response]]


class Steered(Protocol):
    """What is steered: the `Simulator`."""

    clock: Clock
    faults: FaultPlan

    async def advance(self, seconds: float) -> None: ...
    async def ignore(self, sale: int | str) -> None: ...
    async def forge(self, sale: int | str, pretended_id: int | None = None) -> None: ...
    async def pay(self, payment_id: str, method: Method, *, declined: bool) -> str: ...
    async def cancel_form(self, payment_id: str, method: Method) -> str | None: ...
    def use_scenario(self, name: str) -> None: ...


class Steering:
    """Faults, clock, restart, scenarios, forms and log. `restart` is called with the seconds to stay down."""

    def __init__(self, service: Steered, journal: Journal, restart: Callable[[float], None]) -> None:
        self._service = service
        self._journal = journal
        self._restart = restart

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/_simulator/faults", self._get_faults)
        router.add_post("/_simulator/faults", _checked(self._post_fault))
        router.add_delete("/_simulator/faults", self._delete_faults)
        router.add_get("/_simulator/clock", self._get_clock)
        router.add_post("/_simulator/clock", _checked(self._post_clock))
        router.add_post("/_simulator/restart", _checked(self._post_restart))
        router.add_get("/_simulator/scenarios", self._get_scenarios)
        router.add_post("/_simulator/scenario", _checked(self._post_scenario))
        router.add_get("/_simulator/log", _checked(self._get_log))
        router.add_post("/_simulator/sales/{transaction_id}/ignore", _checked(self._post_ignore))
        router.add_post("/_simulator/sales/{transaction_id}/forge", _checked(self._post_forge))
        router.add_post("/_simulator/forms/{payment_id}/{verb:pay|decline|cancel}", _checked(self._post_form))
        router.add_get("/_simulator/openapi.json", self._get_openapi)
        router.add_route("*", ASIDE_PATH, self._aside)

    async def _get_faults(self, _: web.Request) -> web.Response:
        plan = self._service.faults
        return json_response(
            {
                "script": [{**fault.as_json(), "times": times} for fault, times in plan.script],
                "chances": [
                    {**fault.as_json(), "chance": chance} for fault, chance in plan.chances.chances.items()
                ],
                "seed": plan.chances.seed,
                "done": dict(plan.done),
                "kinds": {name: kind.says for name, kind in KINDS.items()},
            }
        )

    async def _post_fault(self, request: web.Request) -> web.Response:
        members = dict(await _body(request))
        times, chance = members.pop("times", None), members.pop("chance", None)
        if times is not None and chance is not None:
            raise ValueError("a fault has times or a chance, not both")
        fault = Fault.parse(members)
        if chance is None:
            self._service.faults.add(fault, 1 if times is None else times)
            self._journal.write("service", f"next {fault.operation}: {fault.kind}")
            return json_response({**fault.as_json(), "times": 1 if times is None else times}, 201)
        self._service.faults.add_chance(fault, chance)
        return json_response({**fault.as_json(), "chance": chance}, 201)

    async def _delete_faults(self, request: web.Request) -> web.Response:
        self._service.faults.clear()
        return await self._get_faults(request)

    async def _get_clock(self, _: web.Request) -> web.Response:
        return json_response({"time": self._service.clock.time()})

    async def _post_clock(self, request: web.Request) -> web.Response:
        seconds = _number(await _body(request), "advance", _MAX_ADVANCE)
        try:
            await self._service.advance(seconds)
        except TypeError as error:
            return json_response({"message": str(error)}, 409)
        return await self._get_clock(request)

    async def _post_restart(self, request: web.Request) -> web.StreamResponse:
        down = _number(await _body(request), "down", _MAX_DOWN, default=0.0)
        response = json_response({"down": down}, 202)
        response.force_close()
        await response.prepare(request)
        await response.write_eof()  # it is on its way before the connection breaks
        self._restart(down)
        return response

    async def _get_scenarios(self, _: web.Request) -> web.Response:
        return json_response({name: one.says for name, one in SCENARIOS.items()})

    async def _post_scenario(self, request: web.Request) -> web.Response:
        name = (await _body(request)).get("name")
        if not isinstance(name, str):
            raise _UnreadableError("name is required, and a text")
        self._service.use_scenario(name)
        return json_response({"name": name, "says": SCENARIOS[name].says})

    async def _get_log(self, request: web.Request) -> web.Response:
        after = _query_number(request, "after", 2**53)
        wait = _query_number(request, "wait", _MAX_WAIT)
        if wait and not self._journal.after(int(after)):
            try:
                async with asyncio.timeout(wait):
                    await self._journal.wait(int(after))
            except TimeoutError:
                pass
        entries = self._journal.after(int(after))
        return json_response({"last": self._journal.last, "entries": [entry.as_json() for entry in entries]})

    async def _post_ignore(self, request: web.Request) -> web.Response:
        number = _sale_in_path(request)
        await self._service.ignore(number)
        return json_response({"transaction_id": number, "ignored": True})

    async def _post_forge(self, request: web.Request) -> web.Response:
        number = _sale_in_path(request)
        pretended = (await _body(request)).get("transaction_id")
        if pretended is not None and (type(pretended) is not int or not 1 <= pretended < 2**63):
            raise _UnreadableError("transaction_id must be a whole number from 1 to 2^63 - 1")
        await self._service.forge(number, pretended)
        return json_response({"transaction_id": number if pretended is None else pretended}, 202)

    async def _post_form(self, request: web.Request) -> web.Response:
        method, service = (await _body(request)).get("method", "card"), self._service
        if method not in METHODS:
            raise _UnreadableError(f"method must be {' or '.join(METHODS)}")
        payment_id, verb = request.match_info["payment_id"], request.match_info["verb"]
        if verb == "cancel":
            location = await service.cancel_form(payment_id, method)
        else:
            location = await service.pay(payment_id, method, declined=verb == "decline")
        return json_response({"location": location})

    async def _get_openapi(self, _: web.Request) -> web.Response:
        return web.Response(
            body=files(__package__).joinpath("control.openapi.json").read_bytes(),
            content_type="application/json",
        )

    async def _aside(self, _: web.Request) -> web.Response:
        """Where a redirect leads."""
        self._journal.write("request", "followed a redirect")
        return json_response({"message": "nothing is executed here"}, 404)


class _UnreadableError(ValueError):
    """What was sent says nothing."""


def _checked(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """The handler, with its errors as answers: 404 for what is not there, 409 or 400 for what cannot be."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except LookupError as error:
            return json_response({"message": str(error)}, 404)
        except ValueError as error:
            named = request.match_info.keys() & {"transaction_id", "payment_id"}
            clash = named and not isinstance(error, _UnreadableError)
            return json_response({"message": str(error)}, 409 if clash else 400)

    return answer


async def _body(request: web.Request) -> Mapping[str, Any]:
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError:
        raise _UnreadableError("the body is no JSON") from None
    if not isinstance(body, dict):
        raise _UnreadableError("the body must be an object")
    return body


def _number(members: Mapping[str, Any], name: str, most: float, default: float | None = None) -> float:
    value = members.get(name, default)
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"{name} must be a number of seconds from 0 to {most:g}")
    return float(value)


def _query_number(request: web.Request, name: str, most: float) -> float:
    try:
        value = float(request.query.get(name, "0"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}")
    return value


def _sale_in_path(request: web.Request) -> int:
    number = id_in_path(request)
    if number is None:
        raise LookupError("no sale has this transaction id")
    return number
