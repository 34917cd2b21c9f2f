"""What the routes have in common: paths, and answers in JSON."""

import itertools
import re

import orjson
from aiohttp import web

__all__ = ["any_case", "id_in_path", "json_response"]

_VARIABLE_OR_WORD = re.compile(r"\{[^{}]*\}|[^/{}]+")
_TRANSACTION_ID = re.compile(r"[1-9][0-9]{0,18}")


def id_in_path(request: web.Request) -> int | None:
    text = request.match_info["transaction_id"]
    return int(text) if _TRANSACTION_ID.fullmatch(text) else None


def any_case(path: str) -> str:
    """The path for a router that takes its words in any letter case; variables stay as they are."""
    number = itertools.count()

    def either(found: re.Match[str]) -> str:
        word = found[0]
        return word if word.startswith("{") else f"{{_{next(number)}:(?i:{re.escape(word)})}}"

    return _VARIABLE_OR_WORD.sub(either, path)


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
