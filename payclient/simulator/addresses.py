"""Addresses: their hosts and their queries."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit


def is_address(text: str) -> bool:
    """Return whether the text is an absolute address, such as one that a browser can be sent to."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if the port is not a number
    except ValueError:
        return False
    return bool(parts.scheme and parts.hostname) and text.isprintable() and " " not in text


def host_of(address: str) -> str | None:
    """Return the host of a web address in small letters; None if it is not one."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return parts.hostname if parts.scheme in {"http", "https"} else None


def with_query(address: str, parameters: Mapping[str, str | int]) -> str:
    """Return the address with the parameters behind whatever query it has, fit for a header."""
    address, hash_sign, fragment = address.partition("#")
    if parameters:
        separator = "" if address.endswith(("?", "&")) else "&" if "?" in address else "?"
        address = f"{address}{separator}{urlencode(parameters)}"
    return quote(address + hash_sign + fragment, safe="%/:?#[]@!$&'()*+,;=~")
