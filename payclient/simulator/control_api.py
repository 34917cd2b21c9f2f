"""The control routes `POST /_simulator/{operation}`: what Python calls by the same names, and the page that uses them.

Arguments and their types are those of the methods of `Simulator`; the OpenAPI document is made from them.

The routes take no token, so foreign web pages are kept away. A browser sends `Origin` with every POST, so one of
another site is refused. A body must be JSON, which no foreign page may send without permission. A name with
dots that is not ours may have been pointed at this machine by its owner ("DNS rebinding"), so it is refused as well.
"""

import inspect
import ipaddress
from collections.abc import Iterator, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

import attrs
import orjson
from aiohttp import web

from .faults import KINDS, Fault
from .messages import RefusalError
from .routes import Route, json_reply, package_file

#: Fields of `Simulator` that are operations. The others are described where they are defined.
_FIELDS: Final = {
    "sales": "Every created sale, oldest first.",
    "forms": "Every prepared payment, oldest first.",
    "faults": "The faults to come, and how often each kind of fault has happened.",
}
#: All operations that another process has.
OPERATIONS: Final = (
    *_FIELDS, "counts", "created_per_client_id", "collected_per_client_id", "log", "reasons", "overview", "read_log",
    "notifications_done", "approve", "reject", "ignore", "forge", "open_form", "pay", "cancel_form",
    "create_sale", "create_form", "fail_next", "fail_by_chance", "clear_faults", "use_scenario", "use_accounts",
    "change_settings", "set_time_of_day", "advance", "restart",
)  # fmt: skip

#: JSON's types, with Python's of a value that comes, and the last for an argument that is wanted.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (NoneType,),
    "object": (dict, Mapping),
}  # fmt: skip
_NAMES: Final = {types[-1]: name for name, types in _TYPES.items()}
_REFUSED: Final = {
    400: "An argument is missing, unknown or of another type; nothing was done.",
    403: "A page of another site, or a host name that is not this machine's.",
    404: "No sale or form has this id.",
    409: "The value or the state does not allow it; nothing was done.",
    415: "The body is not application/json.",
}
_PAGE_FILES: Final = {"/": ("page.html", "text/html"), "/_simulator/page.js": ("page.js", "text/javascript")}
_PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "origin",  # the forms open only from a page that sends its address (§4)
    "X-Content-Type-Options": "nosniff",
}


def control_routes(service: Any) -> Iterator[Route]:
    """Yield the routes of a `Simulator`, if it has any: its operations, the page, the OpenAPI document."""
    operations = "/_simulator/{operation}"
    if _is_loopback(service.host) if service.control is None else service.control:
        for verb, path in (("GET", operations), ("POST", operations), ("GET", "/")):
            yield Route(verb, path, partial(_answer, service))


async def _answer(service: Any, request: web.BaseRequest, match: Mapping[str, str]) -> web.Response:
    if (refused := _refused(service.host, request)) is not None:
        return refused
    if request.method == "GET" and request.path in _PAGE_FILES:
        return await package_file(*_PAGE_FILES[request.path], _PAGE_HEADERS)
    operation = match["operation"]
    if request.method == "GET" and operation == "openapi.json":
        return json_reply(openapi(type(service)))
    return await _operate(service, request, operation)


async def _operate(service: Any, request: web.BaseRequest, operation: str) -> web.Response:
    if operation not in OPERATIONS:
        raise web.HTTPNotFound
    if request.method == "GET":
        raise web.HTTPMethodNotAllowed("GET", ["POST"])
    try:
        arguments = orjson.loads(await request.read() or b"{}")
        _check(arguments_of(type(service), operation), arguments, operation)
    except ValueError as error:
        return json_reply({"message": str(error)}, 400)
    try:
        return json_reply(_json_of(await _call(service, operation, arguments)))
    except RefusalError as error:
        return json_reply(error.as_json("en"), 409)
    except (LookupError, ValueError, RuntimeError) as error:
        return json_reply({"message": str(error)}, 404 if isinstance(error, LookupError) else 409)


async def _call(service: Any, operation: str, arguments: dict[str, Any]) -> Any:
    """Call the method of an operation, or read its attribute, and return the result."""
    if "fault" in arguments:
        arguments["fault"] = Fault(**arguments["fault"])
    # `restart_soon` lets the answer leave before the connection breaks.
    result = getattr(service, "restart_soon" if operation == "restart" else operation)
    if callable(result):
        result = result(**arguments)
    result = await result if inspect.isawaitable(result) else result
    if operation.startswith("create_"):  # the merchant's own requests are logged as such
        service.log_entry("service", operation, result.client_transaction_id, result.transaction_id)
    return list(result.values()) if operation in ("sales", "forms") else result


def _refused(bound_host: str, request: web.BaseRequest) -> web.Response | None:
    """Return the refusal of a request that a foreign page may have sent; None for any other."""
    host = request.headers.get("Host", "")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = ""
    if name is not None and not (_is_local_name(name) or name == bound_host.lower()):
        return json_reply({"message": "the control routes are not served under this host name"}, 403)
    is_foreign = request.headers.get("Origin", f"http://{host}") != f"http://{host}"
    if is_foreign or (request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path != "/"):
        return json_reply({"message": "the control routes are not for pages of other sites"}, 403)
    if request.can_read_body and request.content_type != "application/json":
        return json_reply({"message": "the body must be application/json"}, 415)
    return None


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens at this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_name(name: str) -> bool:
    """Return whether this is an address, or a name without dots, such as "localhost" or a container's."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return bool(name) and "." not in name.removesuffix(".localhost")


def arguments_of(service: type, operation: str) -> dict[str, Any]:
    """Return the JSON schema of an operation's arguments, from the signature of its method."""
    method = inspect.getattr_static(service, operation, None)
    return _parameters(method if inspect.isfunction(method) else object)  # an attribute has none


def _parameters(function: Any) -> dict[str, Any]:
    found = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    return {
        "type": ["object"],
        "properties": {one.name: _schema(one.annotation) for one in found},
        "required": [one.name for one in found if one.default is one.empty],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of an argument's type."""
    if hint is Fault:
        schema = _parameters(Fault)
        schema["properties"]["kind"] = {"enum": list(KINDS)}
        return schema
    hints = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    if get_origin(hints[0]) is Literal:
        return {"enum": [*get_args(hints[0]), *([None] if NoneType in hints else [])]}
    return {"type": [_NAMES[get_origin(one) or one] for one in hints]}


def _check(schema: Mapping[str, Any], value: Any, name: str) -> None:
    """Raise ValueError for a value that the schema does not allow."""
    if "enum" in schema:
        if not isinstance(value, str | None) or value not in schema["enum"]:
            raise ValueError(f"{name} must be one of {', '.join(filter(None, schema['enum']))}")
        return
    if not any(type(value) in _TYPES[kind] for kind in schema["type"]):
        raise ValueError(f"{name} must be of type {' or '.join(schema['type'])}")
    if "properties" in schema:
        for member in (*schema["required"], *value):
            if member not in value or member not in schema["properties"]:
                raise ValueError(f"{member!a} is {'unknown' if member in value else 'required'} in {name}")
            _check(schema["properties"][member], value[member], member)


def _json_of(value: Any) -> object:
    """Return the result of a `Simulator`'s method in types that JSON has."""
    if hasattr(value, "as_json"):
        return value.as_json()
    if attrs.has(type(value)):
        return attrs.asdict(value)
    return [_json_of(one) for one in value] if isinstance(value, (list, tuple)) else value


def openapi(service: type) -> dict[str, object]:
    """Return the OpenAPI document of the control routes; descriptions are the docstrings of the methods."""
    message = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    refused = {"content": {"application/json": {"schema": message}}}
    responses: dict[str, object] = {
        "200": {"description": "The result.", "content": {"application/json": {}}},
        **{str(status): {"description": words, **refused} for status, words in _REFUSED.items()},
    }
    paths: dict[str, object] = {}
    for name in OPERATIONS:
        description = _FIELDS.get(name) or inspect.getdoc(getattr(service, name)) or ""
        summary = description.partition("\n")[0]
        common = {"description": description, "summary": summary, "responses": responses}
        schema = arguments_of(service, name)
        body = {"required": bool(schema["required"]), "content": {"application/json": {"schema": schema}}}
        paths[f"/_simulator/{name}"] = {"post": {**common, "operationId": name, "requestBody": body}}
    title = {"title": "Control of the payment simulator", "version": "1"}
    info = {**title, "description": inspect.getdoc(service)}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
