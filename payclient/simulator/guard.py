"""Keeps foreign web pages away from the page and the control routes, which ask for no token.

A browser sends `Origin` with every POST, PUT and DELETE, so one of another site is refused, and what has a body must
be JSON, which no foreign page may send unasked. A name with dots that is not ours may have been pointed at this
machine by its owner ("DNS rebinding"), so it is refused as well.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from .routing import json_response

__all__ = ["guard", "is_loopback"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(bound_host: str) -> Any:
    """The middleware for a service that listens at this host."""

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path == "/" or request.path.startswith("/_simulator"):
            if (why := _refused(request, bound_host)) is not None:
                return json_response({"message": why}, 403)
            if request.can_read_body and request.content_type != "application/json":
                return json_response({"message": "the body must be application/json"}, 415)
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(request: web.Request, bound_host: str) -> str | None:
    host = request.headers.get("Host", "")
    name = _name_of(f"//{host}")
    if name is not None and not (_is_local_name(name) or name == bound_host.lower()):
        return "the control routes are not served under this host name"
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"http://{host}":
        return "the control routes are not for pages of other sites"
    if request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path != "/":
        return "the control routes are not for pages of other sites"
    return None


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return ""


def _is_local_name(name: str) -> bool:
    """An address, or a name without dots, such as "localhost" or a container's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and "." not in name.removesuffix(".localhost")
    return True
