"""What stands in an answer's body, whatever the answer is to: JSON, ids, messages. Total: rubbish is nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from payclient.errors import ErrorDetail

__all__: list[str] = []

#: §2.5: an integer; a 64-bit one, since no service counts further.
MAX_ID = 2**63 - 1

#: An error's texts are kept to this many characters each, and this many entries.
MAX_MESSAGE, MAX_ENTRIES = 500, 50


#: Bytes of a refusal that are searched for a transaction id; an error object is a hundredth of it.
MAX_SEARCHED = 1 << 18


def parse_json(body: bytes) -> Any:
    """The JSON value of a body, or None where there is none (a BOM is tolerated)."""
    try:
        return orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return None


def parse_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body, or None."""
    data = parse_json(body)
    return data if isinstance(data, dict) else None


def is_id(value: object) -> bool:
    """Strict: an integer from 1 to 2**63 - 1; `"12"`, `12.0` and `true` are no ids."""
    return type(value) is int and 1 <= value <= MAX_ID


def repeats(body: bytes, *names: str) -> bool:
    """Whether an object of the body names one of these fields more than once, and so says two things."""
    if b"\\" not in body and all(body.count(name.encode()) <= 1 for name in names):
        return False
    repeated = False

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        keys = [key for key, _ in pairs]
        repeated = repeated or any(keys.count(name) > 1 for name in names)
        return {}

    try:
        json.loads(body.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=keep, parse_int=float)
    except (ValueError, RecursionError):
        return True
    return repeated


def seen_ids(body: bytes) -> list[object] | None:
    """Return every value but null that a body gives to a field called transactionId, in any letter case, at any depth.

    None stands for a body that may name one and cannot be searched: too long, too deep, or cut.
    """
    lowered = body.lower()
    if b"transaction" not in lowered and b"\\" not in lowered:
        return []  # of nearly every error object
    found: list[object] = []

    def keep(pairs: list[tuple[str, Any]]) -> bool:
        for key, value in pairs:
            if value is not None and key.replace("_", "").replace("-", "").lower() == "transactionid":
                found.append(value)
        return True  # not null, whatever stands in it

    if len(body) > MAX_SEARCHED:
        return None
    try:
        json.loads(
            body.removeprefix(b"\xef\xbb\xbf"),
            object_pairs_hook=keep,
            parse_int=lambda digits: int(digits) if len(digits) < 20 else digits,
        )
    except RecursionError:
        return None
    except ValueError:  # not JSON
        return None if re.search(rb"transaction[_-]?id", lowered) else []
    return found


def read_message(data: dict[str, Any] | None) -> str:
    message = (data or {}).get("message")
    return _clean(message) if isinstance(message, str) else ""


def read_details(data: dict[str, Any] | None) -> tuple[ErrorDetail, ...]:
    """`errors` as far as it can be read; descriptions are absent but for field validation (§7)."""
    entries = (data or {}).get("errors")
    if not isinstance(entries, list):
        return ()
    details = []
    for entry in entries[:MAX_ENTRIES]:
        if not isinstance(entry, dict):
            continue
        message, code, descriptions = (
            entry.get(name) for name in ("message", "errorCode", "errorDescriptions")
        )
        details.append(
            ErrorDetail(
                _clean(message) if isinstance(message, str) else "",
                code if type(code) is int else 0,
                tuple(_clean(text) for text in descriptions[:MAX_ENTRIES] if isinstance(text, str))
                if isinstance(descriptions, list)
                else (),
            )
        )
    return tuple(details)


def _clean(text: str) -> str:
    """A text of the service, bounded, and without what could forge a line or block a record."""
    text = text[:MAX_MESSAGE]
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )
