"""What the routes have in common."""

import re

import orjson
from aiohttp import web

__all__ = ["id_in_path", "json_response"]

_TRANSACTION_ID = re.compile(r"[1-9][0-9]{0,18}")


def id_in_path(request: web.Request) -> int | None:
    text = request.match_info["transaction_id"]
    return int(text) if _TRANSACTION_ID.fullmatch(text) else None


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
