"""Keeps foreign web pages away from the page and the control routes, which take no token.

A browser sends `Origin` with every POST, so one of another site is refused, and what has a body must be JSON, which no
foreign page may send without permission. A name with dots that is not ours may have been pointed at this machine by its
owner ("DNS rebinding"), so it is refused as well.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from .replies import json_reply

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def origin_guard(bound_host: str) -> Any:
    """Return the middleware for a service that listens at this host."""

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path == "/" or request.path.startswith("/_simulator"):
            if (why := _refused(request, bound_host)) is not None:
                return json_reply({"message": why}, status=403)
            if request.can_read_body and request.content_type != "application/json":
                return json_reply({"message": "the body must be application/json"}, status=415)
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens at this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(request: web.Request, bound_host: str) -> str | None:
    host = request.headers.get("Host", "")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = ""
    if name is not None and not (_is_local_name(name) or name == bound_host.lower()):
        return "the control routes are not served under this host name"
    is_foreign = request.headers.get("Origin", f"http://{host}") != f"http://{host}"
    if is_foreign or (request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path != "/"):
        return "the control routes are not for pages of other sites"
    return None


def _is_local_name(name: str) -> bool:
    """Return whether this is an address, or a name without dots, such as "localhost" or a container's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and "." not in name.removesuffix(".localhost")
    return True
