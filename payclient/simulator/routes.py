"""Routes: which part of the service answers a request, and answers in JSON."""

import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from urllib.parse import unquote

import orjson
from aiohttp import web
from attrs import frozen

#: Answers a request; the strings are the variables of its path.
Answer = Callable[[web.BaseRequest, Mapping[str, str]], Awaitable[web.StreamResponse]]


@frozen
class Route:
    """One method and path, before which later ones come; `{name}` stands for anything between two slashes."""

    method: str
    path: str
    answer: Answer
    any_case: bool = False

    def match(self, raw_path: str) -> dict[str, str] | None:
        """Return the variables of a path; None if it is another path."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        found = re.fullmatch(pattern, raw_path, re.IGNORECASE if self.any_case else 0)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}


async def package_file(name: str, content_type: str, headers: Mapping[str, str], *_: object) -> web.Response:
    """Answer by a file of this package."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=content_type, headers=headers)


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in JSON, written as compactly as services write it."""
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")
