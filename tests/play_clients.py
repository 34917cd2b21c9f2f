"""Requests of five clients that others wrote, as data, and whether a service answers them as the vendor publishes.

`python -m play_clients URL` plays them against a running `payclient simulate --profile payphone`, and prints what
differs. A published answer is the names and types of its fields; one in `REQUIRED` must be there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp

__all__ = ["CLIENTS", "play"]

WEB_FORM = "application/x-www-form-urlencoded"
_SAMPLES = Path(__file__).parent / "samples"
CLIENTS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "clients").glob("*.json"))
}


def _sample(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_SAMPLES / name).read_text(encoding="utf-8"))
    return found


#: A published answer of each kind; None where any JSON type is right.
SHAPES: dict[str, Any] = {
    "true": True,
    "message": _sample("error_401.json"),
    "error": _sample("sale_error_2061.json"),
    "sale": {"transactionId": 1},
    "prepare": dict.fromkeys(("paymentId", "payWithPayPhone", "payWithCard"), "text"),
    "regions": [{"name": "Ecuador", "prefixNumber": 593, "iso": "EC"}],
    "status": {
        **_sample("status_approved.json"), "message": "text", "taxes": [], "clientUserId": "text",
        "optionalParameter1": "text",
    },
}  # fmt: skip
SHAPES["error"]["errors"][0]["errorDescriptions"] = ["text"]  # §7.5
SHAPES["statuses"] = [SHAPES["status"]]
#: The fields that every answer of a kind has.
REQUIRED = {
    "message": {"message"},
    "error": {"message", "errorCode"},
    "sale": {"transactionId"},
    "prepare": set(SHAPES["prepare"]),
    "regions": {"name", "prefixNumber", "iso"},
    "status": {
        "transactionId", "clientTransactionId", "amount", "currency", "statusCode", "transactionStatus", "date",
        "storeName", "regionIso", "transactionType",
    },
}  # fmt: skip
REQUIRED["statuses"] = REQUIRED["status"]


def difference(shape: Any, answer: Any, required: set[str]) -> str:
    """What differs from a published shape; empty where nothing does."""
    if type(answer) is not type(shape):
        return f"{type(answer).__name__} for {type(shape).__name__}"
    if isinstance(shape, list):
        return "; ".join(filter(None, (difference(shape[0], one, required) for one in answer if shape)))
    if not isinstance(shape, dict):
        return ""
    missing = [f"{name} is missing" for name in sorted(required - answer.keys())]
    unknown = [f"{name} is not published" for name in sorted(answer.keys() - shape.keys())]
    members = {name: difference(shape[name], value, set()) for name, value in answer.items() if name in shape}
    return "; ".join([*missing, *unknown, *(f"{name}: {what}" for name, what in members.items() if what)])


def filled(value: Any, kept: dict[str, Any]) -> Any:
    """A value with what was kept of earlier answers."""
    if isinstance(value, dict):
        return {name: filled(one, kept) for name, one in value.items()}
    if not isinstance(value, str):
        return value
    return kept[value[1:-1]] if value[1:-1] in kept else value.format(**kept)


def wrong(step: dict[str, Any], status: int, answer: Any) -> str:
    """What differs from the status, the shape and the values of a step; empty where nothing does."""
    found = [difference(SHAPES[step["shape"]], answer, REQUIRED.get(step["shape"], set()))]
    if status != step["status"]:
        found.append(f"HTTP {status} for {step['status']}")
    one = answer[0] if isinstance(answer, list) else answer
    values = step.get("values", {}).items()
    found += [f"{name} is {one.get(name)!r}" for name, value in values if one.get(name) != value]
    return "; ".join(filter(None, found))


async def play(url: str, client: dict[str, Any]) -> list[str]:
    """Send the requests of one client, and return what differs from the published answers."""
    kept: dict[str, Any] = {}
    different: list[str] = []
    async with aiohttp.ClientSession() as session:
        for step in client["steps"]:
            headers = {**client["headers"], **step.get("headers", {})}
            if "control" in step:
                path, data = f"/_simulator/{step['control']}", json.dumps(filled(step["arguments"], kept))
                headers["Content-Type"] = "application/json"
            else:
                path, data = filled(step["path"], kept), json.dumps(filled(step.get("body"), kept))
            if "pairs" in step:
                data, headers["Content-Type"] = urlencode(filled(step["pairs"], kept)), WEB_FORM
            method = step.get("method", "POST")
            sent = data if method != "GET" else None
            async with session.request(method, url + path, data=sent, headers=headers) as response:
                answer = await response.json()
            if "shape" in step and (what := wrong(step, response.status, answer)):
                different.append(f"{method} {path}: {what}")
            if isinstance(answer, str):  # the way back
                answer = {"id": int(parse_qs(urlsplit(answer).query)["id"][0])}
            kept |= {name: answer[field] for name, field in step.get("keep", {}).items()}
    return different


async def main(url: str) -> int:
    """Play all of them, and print what differs."""
    found = [f"{name}: {one}" for name, client in CLIENTS.items() for one in await play(url, client)]
    print("\n".join(found) or f"{len(CLIENTS)} clients are answered as published")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1].rstrip("/"))))
