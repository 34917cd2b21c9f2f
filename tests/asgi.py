"""One HTTP request to an ASGI app, without a server: `scope`, `receive` and `send` by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import attrs

__all__ = ["Answered", "ask", "lifespan"]

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


@attrs.define
class Answered:
    """The answer, and how many blocks of the body were asked for."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    blocks: int = 0


async def ask(
    app: App,
    method: str,
    target: str,
    body: Iterable[bytes] = (),
    content_type: str = "",
    state: dict[str, object] | None = None,
    block: Callable[[], Awaitable[None]] | None = None,
) -> Answered:
    """`block` is awaited before each block of the body."""
    path, _, query = target.partition("?")
    scope: Message = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"shop.example"), (b"content-type", content_type.encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": state or {},
    }  # fmt: skip
    answered, blocks = Answered(), itertools.chain(body, [b""])

    async def receive() -> Message:
        if block is not None:
            await block()
        answered.blocks += 1
        data = next(blocks, None)
        if data is None:
            await asyncio.Event().wait()  # a client that stays
        return {"type": "http.request", "body": data, "more_body": data != b""}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answered.body += message.get("body", b"")

    await app(scope, receive, send)
    return answered


@asynccontextmanager
async def lifespan(app: App, state: dict[str, object] | None = None) -> AsyncIterator[list[Message]]:
    """Start an app as a server does; what it sent, until it is stopped at the end of the block. `state` is filled."""
    sent: list[Message] = []
    heard, stop = asyncio.Event(), asyncio.Event()
    asked = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Message:
        kind = next(asked)
        if kind == "lifespan.shutdown":
            await stop.wait()
        return {"type": kind}

    async def send(message: Message) -> None:
        sent.append(message)
        heard.set()

    async def live() -> None:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}, receive, send)

    task = asyncio.create_task(live())
    await heard.wait()
    try:
        yield sent
    finally:
        stop.set()
        await task
