"""One HTTP request to an app with a tracker: by hand where it is an ASGI app, over HTTP where it is of aiohttp."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager, nullcontext
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import aiohttp
import attrs
from aiohttp import web
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from starlette.applications import Starlette

import payclient
import payclient.web.aiohttp
import payclient.web.django
import payclient.web.starlette
from ports import served

__all__ = ["FRAMEWORKS", "Answered", "aiohttp_app", "ask", "asking_of", "lifespan"]

FRAMEWORKS = [payclient.web.aiohttp, payclient.web.starlette, payclient.web.django]


class SyncMiddleware:
    """As many still are: Django then runs all that is below it in a thread."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: object) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)  # type: ignore[operator]  # Django has no types


if not settings.configured:
    settings.configure(
        SECRET_KEY="test",
        ALLOWED_HOSTS=["*"],
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            f"{__name__}.SyncMiddleware",
        ],
    )

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
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode("latin-1"), "root_path": "",
        "headers": [(b"host", b"shop.example"), (b"content-type", content_type.encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": state or {},
    }  # fmt: skip
    answered, blocks = Answered(), itertools.chain(filter(None, body), [b""])

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
            answered.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            answered.body += message.get("body", b"")

    await app(scope, receive, send)
    return answered


Asking = Callable[..., Awaitable[Answered]]


@asynccontextmanager
async def aiohttp_app(tracker: payclient.Tracker, routes: Any, *middlewares: Any) -> AsyncIterator[str]:
    """The address of an aiohttp app with the tracker, whose routes are in an app below it."""
    app, below = web.Application(middlewares=middlewares), web.Application()
    app.cleanup_ctx.append(payclient.web.aiohttp.tracker_context(lambda: nullcontext(tracker)))
    below.add_routes(routes)
    app.add_subapp("/below", below)
    async with served(app) as url:
        yield f"{url}/below"


@asynccontextmanager
async def asking_of(framework: ModuleType, tracker: payclient.Tracker, routes: Any) -> AsyncIterator[Asking]:
    """A function that asks an app with these routes, of one of `FRAMEWORKS`; that of `.aiohttp` over HTTP."""
    if framework is payclient.web.starlette:
        app, state = Starlette(routes=routes), dict[str, object](tracker=tracker)
        yield lambda method, target, body=(), kind="": ask(app, method, target, body, kind, state)
        return
    if framework is payclient.web.django:
        urls = ModuleType("urls")
        vars(urls)["urlpatterns"] = routes
        site = payclient.web.django.TrackerApplication(get_asgi_application(), lambda: nullcontext(tracker))
        with override_settings(ROOT_URLCONF=urls):
            async with lifespan(site):
                yield lambda method, target, body=(), kind="": ask(site, method, target, body, kind)
        return
    async with aiohttp_app(tracker, routes) as url, aiohttp.ClientSession() as session:

        async def asking(method: str, target: str, body: Iterable[bytes] = (), kind: str = "") -> Answered:
            headers = {"Content-Type": kind} if kind else {}
            async with session.request(method, url + target, data=b"".join(body), headers=headers) as answer:
                names = {name.lower(): value for name, value in answer.headers.items() if name != "Date"}
                return Answered(answer.status, names, await answer.read())

        yield asking


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
