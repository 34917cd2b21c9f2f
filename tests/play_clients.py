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


async def play(url: str, client: dict[str, Any]) -> list[str]:
    """Send the requests of one client, and return what differs from the published answers."""
    kept: dict[str, Any] = {}
    different: list[str] = []
    async with aiohttp.ClientSession() as session:
        for step in client["steps"]:
            if "control" in step:
                async with session.post(
                    f"{url}/_simulator/{step['control']}", json=filled(step["arguments"], kept)
                ) as response:
                    answer = await response.json()
                    if isinstance(answer, str):  # the way back
                        answer = {
                            name: int(one[0])
                            for name, one in parse_qs(urlsplit(answer).query).items()
                            if name == "id"
                        }
            else:
                options: dict[str, Any] = {"headers": {**client["headers"], **step.get("headers", {})}}
                if "pairs" in step:
                    options["data"] = urlencode(filled(step["pairs"], kept))
                    options["headers"]["Content-Type"] = "application/x-www-form-urlencoded"
                elif "body" in step:
                    options["data"] = json.dumps(filled(step["body"], kept))
                path = filled(step["path"], kept)
                async with session.request(step["method"], url + path, **options) as response:
                    answer = await response.json()
                what = difference(SHAPES[step["shape"]], answer, REQUIRED.get(step["shape"], set()))
                if response.status != step["status"]:
                    what = f"HTTP {response.status} for {step['status']}; {what}"
                one = answer[0] if isinstance(answer, list) else answer
                wrong = {
                    name: one.get(name)
                    for name, value in step.get("values", {}).items()
                    if one.get(name) != value
                }
                if what or wrong:
                    different.append(f"{step['method']} {path}: {what} {wrong or ''}")
            kept |= {name: answer[field] for name, field in step.get("keep", {}).items()}
    return different


async def main(url: str) -> int:
    """Play all of them, and print what differs."""
    found = [f"{name}: {one}" for name, client in CLIENTS.items() for one in await play(url, client)]
    print("\n".join(found) or f"{len(CLIENTS)} clients are answered as published")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1].rstrip("/"))))
