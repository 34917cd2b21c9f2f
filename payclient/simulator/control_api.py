"""The control routes `POST /_simulator/{operation}`: what Python calls by the same names, and the page that uses them.

`OPERATIONS` is the one table: arguments are checked by it, and the OpenAPI document is made from it.
"""

import inspect
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import attrs
import orjson
from aiohttp import web

from .faults import KINDS, Fault
from .faults import OPERATIONS as FAULT_OPERATIONS
from .forms import METHODS
from .messages import RefusedError
from .replies import json_reply
from .scenarios import SCENARIOS

__all__ = ["OPERATIONS", "ControlApi", "openapi"]

_Schema = Mapping[str, Any]


def _number(low: float, high: float, kind: str | list[str] = "number", **more: Any) -> _Schema:
    return {"type": kind, "minimum": low, "maximum": high, **more}


_FAULT: Final[_Schema] = {
    "type": "object",
    "required": ["kind"],
    "additionalProperties": False,
    "properties": {
        "kind": {"enum": list(KINDS), "description": "\n".join(f"{name}: {one.says}" for name, one in KINDS.items())},
        "operation": {"enum": list(FAULT_OPERATIONS)},
        "when": {"enum": ["before", "after"], "description": "The request is executed, or it is not."},
        "status": _number(200, 599, "integer"),
        "seconds": _number(0, 86_400),
        "retry_after": _number(0, 86_400, "integer"),
        "error_code": _number(0, 2**31 - 1, "integer"),
        "client_transaction_id": {"type": "string"},
    },
}  # fmt: skip
_SALE: Final[_Schema] = {
    "type": ["integer", "string"],
    "description": "A transaction id or a client transaction id.",
}
_FORM: Final[Mapping[str, _Schema]] = {
    "payment_id": {"type": "string"},
    "method": {"enum": list(METHODS), "default": "card"},
}
_BODY: Final[Mapping[str, _Schema]] = {
    "body": {"type": "object"},
    "account": {"type": "string", "default": ""},
}

#: Operations that only read; they answer GET as well.
_READ: Final = (
    "counts", "sales", "forms", "created_per_client_id", "collected_per_client_id", "log", "faults", "choices",
    "overview",
)  # fmt: skip
#: The arguments of each operation as JSON schemas; one without a default is required.
OPERATIONS: Final[Mapping[str, Mapping[str, _Schema]]] = {
    **{name: {} for name in (*_READ, "notifications_done", "clear_faults")},
    **{name: {"sale": _SALE} for name in ("approve", "reject", "ignore", "notification_query")},
    "forge": {"sale": _SALE, "pretended_id": _number(1, 2**63 - 1, ["integer", "null"], default=None)},
    "open_form": _FORM,
    "pay": {**_FORM, "declined": {"type": "boolean", "default": False}},
    "cancel_form": _FORM,
    "create_sale": _BODY,
    "create_form": _BODY,
    "fail_next": {"fault": _FAULT, "times": _number(1, 1_000_000, "integer", default=1)},
    "fail_by_chance": {"fault": _FAULT, "chance": _number(0, 1)},
    "use_scenario": {"name": {"enum": list(SCENARIOS)}},
    "read_log": {"after": _number(0, 2**53, "integer", default=0), "wait": _number(0, 25, default=0)},
    "advance": {"seconds": _number(0, 366 * 86_400)},
    "restart": {"down": _number(0, 3_600, default=0)},
}

_TYPES: Final = {"string": str, "object": dict, "boolean": bool, "null": type(None)}
_PAGE_FILES: Final = {"/": ("page.html", "text/html"), "/_simulator/page.js": ("page.js", "text/javascript")}
_PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "origin",  # the forms open from a page that tells where it is (§4)
    "X-Content-Type-Options": "nosniff",
}


class ControlApi:
    """The operations of a `Simulator`, its page, and the OpenAPI document."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def add_routes(self, application: web.Application) -> None:
        for path in _PAGE_FILES:
            application.router.add_get(path, self._get_page)
        application.router.add_get("/_simulator/openapi.json", self._get_openapi)
        for operation in OPERATIONS:
            application.router.add_post(f"/_simulator/{operation}", self._post)
        for operation in _READ:
            application.router.add_get(f"/_simulator/{operation}", self._post)

    async def _get_page(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE_FILES[request.path]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=content_type, headers=_PAGE_HEADERS)

    async def _get_openapi(self, _: web.Request) -> web.Response:
        return json_reply(openapi(type(self._service)))

    async def _post(self, request: web.Request) -> web.StreamResponse:
        operation = request.path.rpartition("/")[2]
        try:
            arguments = _arguments(operation, await request.read())
        except ValueError as error:
            return json_reply({"message": str(error)}, status=400)
        try:
            if operation == "restart":
                return await self._restart(request, **arguments)
            result = getattr(self._service, operation)
            if callable(result):
                result = result(**arguments)
            if inspect.isawaitable(result):
                result = await result
        except LookupError as error:
            return json_reply({"message": str(error)}, status=404)
        except RefusedError as error:
            return json_reply(error.as_json("en"), status=409)
        except (ValueError, RuntimeError) as error:
            return json_reply({"message": str(error)}, status=409)
        return json_reply(_json_of(result))

    async def _restart(self, request: web.Request, down: float) -> web.StreamResponse:
        response = json_reply(None)
        response.force_close()
        await response.prepare(request)
        await response.write_eof()  # it is on its way before the connection breaks
        self._service.restart_soon(down)
        return response


def _arguments(operation: str, raw: bytes) -> dict[str, Any]:
    """Return the arguments of an operation; ValueError for what the table does not allow."""
    schemas = OPERATIONS[operation]
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError:
        raise ValueError("the body must be JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be an object")  # noqa: TRY004 - one error for what cannot be
    if unknown := body.keys() - schemas.keys():
        raise ValueError(f"{operation} takes {', '.join(schemas) or 'no arguments'}, not {min(unknown)!a}")
    for name, schema in schemas.items():
        if name not in body and "default" not in schema:
            raise ValueError(f"{name} is required")
        if name in body and not _is_valid(body[name], schema):
            raise ValueError(f"{name} must be {orjson.dumps(schema).decode()}")
    arguments: dict[str, Any] = {
        name: body.get(name, schema.get("default")) for name, schema in schemas.items()
    }
    return {name: Fault(**value) if name == "fault" else value for name, value in arguments.items()}


def _is_valid(value: object, schema: _Schema) -> bool:
    if "enum" in schema:
        return isinstance(value, str) and value in schema["enum"]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        wanted = {"integer", "number"} if type(value) is int else {"number"}
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        return bool(wanted.intersection(kinds)) and low <= value <= high
    if isinstance(value, dict) and (members := schema.get("properties")):
        known = all(name in members and _is_valid(one, members[name]) for name, one in value.items())
        return known and value.keys() >= set(schema["required"])
    return any(isinstance(value, _TYPES[kind]) for kind in kinds if kind in _TYPES)


def _json_of(value: Any) -> object:
    """Return a result of Python's as JSON has it; of mappings of sales and forms, the sales and forms alone."""
    if hasattr(value, "as_json"):
        return value.as_json()
    if attrs.has(type(value)):
        return attrs.asdict(value)
    if isinstance(value, Mapping) and any(hasattr(one, "as_json") for one in value.values()):
        return [one.as_json() for one in value.values()]
    return [_json_of(one) for one in value] if isinstance(value, (list, tuple)) else value


def openapi(service: type) -> dict[str, object]:
    """Return the OpenAPI document of the control routes; summaries are those of the methods' docstrings."""
    paths: dict[str, object] = {}
    for name, schemas in OPERATIONS.items():
        says = inspect.getdoc(getattr(service, name)) or ""
        verbs = {"post": _operation(f"post_{name}", says, schemas)}
        if name in _READ:
            verbs["get"] = _operation(f"get_{name}", says, None)
        paths[f"/_simulator/{name}"] = verbs
    info = {
        "title": "Control of the payment simulator",
        "version": "1",
        "description": inspect.getdoc(service),
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _operation(identifier: str, says: str, schemas: Mapping[str, _Schema] | None) -> dict[str, object]:
    message = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    refused = {
        "400": "An argument is not valid; nothing was done.",
        "403": "A page of another site, or a host name that is not this machine's.",
        "404": "There is no such sale or form.",
        "409": "The state does not allow it.",
        "415": "The body is not application/json.",
    }
    responses: dict[str, object] = {
        "200": {"description": "The result.", "content": {"application/json": {}}}
    }
    for status, description in refused.items():
        responses[status] = {"description": description, "content": {"application/json": {"schema": message}}}
    operation: dict[str, object] = {"operationId": identifier, "description": says, "responses": responses}
    operation["summary"] = says.partition("\n")[0]
    if schemas is not None:
        required = [name for name, schema in schemas.items() if "default" not in schema]
        schema = {
            "type": "object",
            "properties": schemas,
            "required": required,
            "additionalProperties": False,
        }
        body = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
        operation["requestBody"] = body
    return operation
