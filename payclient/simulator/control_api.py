"""The control routes `POST /_simulator/{operation}`: what Python calls by the same names, and the page that uses them.

Arguments and their types are those of the methods of `Simulator`; the OpenAPI document is made from them.
"""

import inspect
import math
from collections.abc import Mapping
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin

import attrs
import orjson
from aiohttp import web

from .faults import KINDS, Fault
from .messages import RefusalError
from .replies import json_reply

#: The operations of `Simulator` that only read, and answer GET as well.
READ: Final = (
    "counts", "sales", "forms", "created_per_client_id", "collected_per_client_id", "log", "faults", "choices",
    "overview",
)  # fmt: skip
#: All operations that another process has.
OPERATIONS: Final = (
    *READ, "read_log", "notification_query", "notifications_done", "approve", "reject", "ignore", "forge", "open_form",
    "pay", "cancel_form", "create_sale", "create_form", "fail_next", "fail_by_chance", "clear_faults", "use_scenario",
    "advance", "restart",
)  # fmt: skip

_LONGEST_DOWN: Final = 3_600  # seconds
_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Mapping: "object",
}
_REFUSED: Final = {
    400: "An argument is missing, unknown or of another type; nothing was done.",
    403: "A page of another site, or a host name that is not this machine's.",
    404: "There is no such sale or form.",
    409: "The value or the state does not allow it; nothing was done.",
    415: "The body is not application/json.",
}
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
        self._schemas = {operation: arguments_of(type(service), operation) for operation in OPERATIONS}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for path in _PAGE_FILES:
            router.add_get(path, self._get_page)
        router.add_get("/_simulator/openapi.json", self._get_openapi)
        for operation in OPERATIONS:
            router.add_post(f"/_simulator/{operation}", self._call)
        for operation in READ:
            router.add_get(f"/_simulator/{operation}", self._call)

    async def _get_page(self, request: web.Request) -> web.Response:
        name, content_type = _PAGE_FILES[request.path]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=content_type, headers=_PAGE_HEADERS)

    async def _get_openapi(self, _: web.Request) -> web.Response:
        return json_reply(openapi(type(self._service)))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        operation = request.path.rpartition("/")[2]
        try:
            arguments = orjson.loads(await request.read() or b"{}")
            _check({"type": "object", **self._schemas[operation]}, arguments, operation)
        except ValueError as error:
            return json_reply({"message": str(error)}, 400)
        try:
            if "fault" in arguments:
                arguments["fault"] = Fault(**arguments["fault"])
            if operation == "restart":
                return await self._restart(request, **arguments)
            result = getattr(self._service, operation)
            if callable(result):
                result = result(**arguments)
            return json_reply(_json_of(await result if inspect.isawaitable(result) else result))
        except RefusalError as error:
            return json_reply(error.as_json("en"), 409)
        except LookupError as error:
            return json_reply({"message": str(error)}, 404)
        except (ValueError, RuntimeError) as error:
            return json_reply({"message": str(error)}, 409)

    async def _restart(self, request: web.Request, down: float = 0.0) -> web.StreamResponse:
        if not 0 <= down <= _LONGEST_DOWN:
            raise ValueError(f"down must be 0 to {_LONGEST_DOWN}")
        response = json_reply(None)
        response.force_close()
        await response.prepare(request)
        await response.write_eof()  # it is on its way before the connection breaks
        self._service.restart_soon(down)
        return response


def arguments_of(service: type, operation: str) -> dict[str, Any]:
    """Return the JSON schema of an operation's arguments, from the signature of its method."""
    method = inspect.getattr_static(service, operation)
    parameters = (
        [] if isinstance(method, property) else list(inspect.signature(method).parameters.values())[1:]
    )
    return _members({one.name: (one.annotation, one.default is one.empty) for one in parameters})


def _members(types: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    return {
        "properties": {name: _schema(hint) for name, (hint, _) in types.items()},
        "required": [name for name, (_, is_required) in types.items() if is_required],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    if hint is Fault:
        members = _members(
            {one.name: (one.type, one.default is attrs.NOTHING) for one in attrs.fields(Fault)}
        )
        members["properties"]["kind"] = {"enum": list(KINDS)}
        return {"type": "object", **members}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    hints = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return {"type": [_TYPES[get_origin(one) or one] for one in hints]}


def _check(schema: Mapping[str, Any], value: Any, name: str) -> None:
    """Raise ValueError unless the value is what the schema says; of numbers only finite ones are."""
    if "enum" in schema:
        if not isinstance(value, str) or value not in schema["enum"]:
            raise ValueError(f"{name} must be one of {', '.join(schema['enum'])}")
        return
    is_integer = type(value) is int
    is_number = is_integer or (type(value) is float and math.isfinite(value))
    names = {"integer": is_integer, "number": is_number, "object": isinstance(value, dict)}
    names |= {"string": isinstance(value, str), "boolean": isinstance(value, bool), "null": value is None}
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(names[kind] for kind in kinds):
        raise ValueError(f"{name} must be of type {' or '.join(kinds)}")
    if "properties" in schema:
        for member in (*schema["required"], *value):
            if member not in value or member not in schema["properties"]:
                raise ValueError(f"{member!a} is {'unknown' if member in value else 'required'} in {name}")
            _check(schema["properties"][member], value[member], member)


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
    """Return the OpenAPI document of the control routes; descriptions are the docstrings of the methods."""
    message = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    responses: dict[int, object] = {200: {"description": "The result.", "content": {"application/json": {}}}}
    for status, says in _REFUSED.items():
        responses[status] = {"description": says, "content": {"application/json": {"schema": message}}}
    paths: dict[str, object] = {}
    for name in OPERATIONS:
        says = inspect.getdoc(getattr(service, name)) or ""
        told = {"description": says, "summary": says.partition("\n")[0], "responses": responses}
        schema = {"type": "object", **arguments_of(service, name)}
        body = {"required": bool(schema["required"]), "content": {"application/json": {"schema": schema}}}
        verbs = {"post": {**told, "operationId": f"post_{name}", "requestBody": body}}
        if name in READ:
            verbs["get"] = {**told, "operationId": f"get_{name}"}
        paths[f"/_simulator/{name}"] = verbs
    info = {
        "title": "Control of the payment simulator",
        "version": "1",
        "description": inspect.getdoc(service),
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths}
