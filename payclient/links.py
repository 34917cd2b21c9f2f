"""Which addresses may be handed out or talked to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__: list[str] = []


def is_safe_link(link: str, hosts: frozenset[str] | None) -> bool:
    """Whether a form link may be handed out: https (http for loopback), no tricks, one of the hosts where given."""
    if not link.isascii() or not link.isprintable() or " " in link or "\\" in link:
        return False
    try:
        parts = urlsplit(link)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or (hosts is not None and host not in hosts):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
