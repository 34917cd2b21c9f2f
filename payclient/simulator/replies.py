"""Answers in JSON, written as compactly as services write it."""

from collections.abc import Mapping

import orjson
from aiohttp import web


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
