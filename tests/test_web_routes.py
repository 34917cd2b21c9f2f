"""The routes of each framework: the same 200 for whatever is received, and what the waiting page needs."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import traceback
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect

import payclient
import payclient.web.aiohttp
import payclient.web.starlette
from asgi import FRAMEWORKS, aiohttp_app, ask, asking_of, lifespan
from fake_ledgers import FailingLedger
from fake_service import FakeService, error_of, pending_of, sale, tracking
from payclient.notifications import notification_url
from payclient.web import routes as web_routes

SECRET = "sixteen bytes and more"
AIOHTTP, STARLETTE = payclient.web.aiohttp, payclient.web.starlette
HINT = "?id=1000&clientTransactionID=order-17"
Receipt = payclient.Receipt


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def tracker(service: FakeService) -> AsyncIterator[payclient.Tracker]:
    """With one sale, `order-17`, of transaction 1000."""
    async with tracking(service) as tracker:
        await tracker.sale(sale())
        yield tracker


class Heard:
    """What the app was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Receipt]] = []

    async def __call__(self, notification: payclient.Notification, receipt: Receipt) -> None:
        self.told.append((notification.client_transaction_id, receipt))


ANYTHING: list[tuple[str, str, bytes, str]] = [
    ("GET", HINT, b"", ""),
    ("POST", "", HINT[1:].encode(), "application/x-www-form-urlencoded"),
    ("PUT", "", b'{"ID": 1000, "clienttransactionid": "order-17"}', "application/json"),
    ("POST", HINT, b"id=7&clientTransactionID=order-17", "multipart/form-data; boundary=x"),
    ("GET", f"{HINT}&name=Jos\xe9", b"", ""),
    ("GET", "?id=7&clientTransactionID=order-17", b"", ""),
    ("GET", "?id=7&clientTransactionID=nobody", b"", ""),
    ("DELETE", "", b"", ""),
    ("PATCH", "", b"\xff\xfe", "text/plain"),
    ("POST", "", b"[1" * 5000, "application/json"),
    ("POST", "?" + "x" * 9000, b"", ""),
    ("POST", "", b"x" * 9000, ""),
]


RECEIPTS = [
    ("order-17", Receipt.MATCHED), *[("order-17", Receipt.DUPLICATE)] * 4, ("order-17", Receipt.CONFLICT),
    ("nobody", Receipt.UNMATCHED),
]  # fmt: skip


@pytest.mark.parametrize("framework", [AIOHTTP, STARLETTE])  # Django itself refuses some of it
async def test_the_answer_is_the_same_whatever_came(framework: Any, tracker: payclient.Tracker) -> None:
    """Any method, query, form or JSON; known, unknown, forged or garbage."""
    heard = Heard()
    async with asking_of(
        framework, tracker, [framework.notification_route("/notify", on_receipt=heard)]
    ) as asking:
        answers = [
            await asking(method, f"/notify{query}", [body], kind)
            for method, query, body, kind in ANYTHING
            # A longer request line is refused by aiohttp itself.
            if len(query) < 8000 or framework is not AIOHTTP
        ]
    assert len({(one.status, one.body, tuple(one.headers.items())) for one in answers}) == 1
    assert (answers[0].status, answers[0].body) == (200, b"OK")
    assert heard.told == RECEIPTS
    assert answers[0].headers["cache-control"] == "no-store"


async def test_a_body_without_end_is_not_read(tracker: payclient.Tracker) -> None:
    """No more than 8 KiB and a block are held, and the sender is answered while it still sends."""
    async with asking_of(STARLETTE, tracker, [STARLETTE.notification_route("/notify")]) as asking:
        answered = await asking("POST", "/notify", itertools.repeat(b"x" * 4096))
    assert (answered.status, answered.blocks) == (200, 3)
    async with aiohttp_app(tracker, [AIOHTTP.notification_route("/notify")]) as url:
        await sent(url, "Content-Length: 1000000000\r\n", b"x" * 20_000, whole=False)


async def sent(url: str, head: str, body: bytes, *, whole: bool = True, query: str = HINT) -> None:
    """Send a notification over a connection of its own; the answer is 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    writer.write(f"POST /below/notify{query} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    with suppress(ConnectionError):
        await reader.read() if whole else None
    writer.close()


def compressed(size: int) -> bytes:
    """A gzip of so many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(size // 2**20)) + packer.flush()


async def test_a_bomb_is_not_inflated_by_aiohttp(tracker: payclient.Tracker) -> None:
    """A notification that would be 60 MB is answered; no more than a little of it is ever inflated."""
    contents: list[aiohttp.StreamReader] = []

    @web.middleware
    async def watch(request: web.Request, handler: Any) -> web.StreamResponse:
        contents.append(request.content)
        response: web.StreamResponse = await handler(request)
        return response

    bomb = compressed(60 * 2**20)
    head = f"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: {len(bomb)}\r\n"
    async with aiohttp_app(tracker, [AIOHTTP.notification_route("/notify")], watch) as url:
        for _ in range(3):
            await sent(url, head, bomb)
    assert len(contents) == 3
    assert sum(content.total_bytes for content in contents) < 3 * 2**22


async def test_a_small_compressed_notification_is_read_by_aiohttp(tracker: payclient.Tracker) -> None:
    """Whoever compresses two ids is understood, and may use the connection again."""
    heard, body = Heard(), gzip.compress(HINT[1:].encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/x-www-form-urlencoded"}
    routes = [AIOHTTP.notification_route("/notify", on_receipt=heard)]
    async with aiohttp_app(tracker, routes) as url, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(f"{url}/notify", data=body, headers=headers) as response:
                assert response.status == 200
    assert [receipt for _, receipt in heard.told] == [Receipt.MATCHED, Receipt.DUPLICATE]


async def test_a_middleware_may_read_the_body_first(tracker: payclient.Tracker) -> None:
    """As one that logs requests does. With aiohttp the notification was answered, and dropped."""

    @web.middleware
    async def read(request: web.Request, handler: Any) -> web.StreamResponse:
        await request.text()
        response: web.StreamResponse = await handler(request)
        return response

    heard, body = Heard(), HINT[1:].encode()
    routes = [AIOHTTP.notification_route("/notify", on_receipt=heard)]
    async with aiohttp_app(tracker, routes, read) as url:
        await sent(url, f"Connection: close\r\nContent-Length: {len(body)}\r\n", body, query="")
    assert heard.told == [("order-17", Receipt.MATCHED)]


async def test_a_slow_sender_is_answered(tracker: payclient.Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where the query has all; a body that does not come ends with the time-out, not the sender's patience."""
    heard = Heard()
    app = Starlette(routes=[STARLETTE.notification_route("/notify", on_receipt=heard)])

    async def never() -> None:
        await asyncio.Event().wait()

    for query, timeout in ((HINT, web_routes.TIMEOUT), ("", 0.01)):
        monkeypatch.setattr(web_routes, "TIMEOUT", timeout)
        answer = await ask(app, "POST", f"/notify{query}", state={"tracker": tracker}, block=never)
        assert answer.status == 200
    assert heard.told == RECEIPTS[:1]


async def test_a_sender_who_hangs_up_at_once_is_heard(
    tracker: payclient.Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    """By its query: a middleware that waited let the server see the end of the connection before the body was read."""
    heard = Heard()
    app = Starlette(routes=[STARLETTE.notification_route("/notify", on_receipt=heard)])

    async def hang_up() -> None:
        raise ClientDisconnect

    for query in (HINT, ""):
        answered = await ask(app, "GET", f"/notify{query}", state={"tracker": tracker}, block=hang_up)
        assert answered.status == 200
    assert heard.told == RECEIPTS[:1]
    assert caplog.messages == ["a notification was not taken: ClientDisconnect"]


async def test_with_a_secret_only_its_own_address_is_listened_to(tracker: payclient.Tracker) -> None:
    """Another's key, a wrong one and none are answered alike, and nobody is told; a secret must be long."""
    heard = Heard()
    own, other = (
        urlsplit(notification_url("https://shop.example/notify", identifier, SECRET)).path
        for identifier in ("order-17", "order-18")
    )
    routes = [STARLETTE.notification_route("/notify", secret=SECRET, on_receipt=heard)]
    async with asking_of(STARLETTE, tracker, routes) as asking:
        wrong = [
            await asking("GET", f"{at}{HINT}")
            for at in (other, f"/notify/{'A' * 32}", "/notify/ñ".encode().decode("latin-1"))
        ]
        assert heard.told == []
        right = await asking("GET", own + HINT)
    assert heard.told == [("order-17", Receipt.MATCHED)]
    assert {(one.status, one.body) for one in wrong} == {(right.status, right.body)} == {(200, b"OK")}
    for framework, guessable in ((STARLETTE, "short"), (AIOHTTP, "")):
        with pytest.raises(payclient.ConfigurationError, match="secret"):
            framework.notification_route("/notify", secret=guessable)


async def test_a_fault_of_the_ledger_is_answered_like_all_else(
    tracker: payclient.Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged by its class, without what it says, in one line. A receiver needs no function of the app's."""

    def failing(*_: object) -> None:
        raise payclient.LedgerUnavailableError("0984111222")

    async with asking_of(STARLETTE, tracker, [STARLETTE.notification_route("/notify")]) as asking:
        await asking("GET", f"/notify{HINT}")
        pending = await pending_of(tracker, "order-17")
        assert pending.notified_at is not None
        monkeypatch.setattr(type(tracker), "notify", failing)
        answered = await asking("GET", f"/notify{HINT}")
        await asking("GET", "/notify?id=7&clientTransactionID=x%E2%80%A8CRITICAL%E2%80%AE")
    assert (answered.status, answered.body) == (200, b"OK")
    assert "LedgerUnavailableError" in caplog.text
    assert caplog.messages[-1].startswith("x\\u2028CRITICAL\\u202e: a notification was not taken")
    assert vars(caplog.records[-1])["client_transaction_id"] == "x\\u2028CRITICAL\\u202e"
    assert "0984111222" not in caplog.text


async def test_fastapi_is_a_starlette(service: FakeService) -> None:
    """The same route and the same lifespan; the tracker is closed at the end."""
    from fastapi import FastAPI  # slowly, and here alone

    @asynccontextmanager
    async def opening() -> AsyncIterator[payclient.Tracker]:
        async with tracking(service) as tracker:
            await tracker.sale(sale())
            yield tracker

    heard, state = Heard(), dict[str, object]()
    route = payclient.web.starlette.notification_route("/notify", on_receipt=heard)
    app = FastAPI(routes=[route], lifespan=payclient.web.starlette.tracker_lifespan(opening))
    async with lifespan(app, state) as sent:
        answered = await ask(app, "PUT", f"/notify{HINT}", state=state)
    assert (answered.status, answered.body) == (200, b"OK")
    assert heard.told == [("order-17", Receipt.MATCHED)]
    assert [one["type"] for one in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    tracker = state["tracker"]
    assert isinstance(tracker, payclient.Tracker)
    await error_of(payclient.TrackerClosedError, tracker.sale(sale("order-18")))


async def test_without_a_tracker_it_says_what_is_missing() -> None:
    """A mistake of the app's is no secret; its secret is, also to an error tracker, which shows local variables."""
    route = payclient.web.starlette.notification_route("/notify", secret=SECRET)
    with pytest.raises(payclient.UsageError, match="tracker_lifespan") as caught:
        await ask(Starlette(routes=[route]), "GET", "/notify/key")
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)]
    assert {"own", "key"} <= set().union(*frames)
    assert SECRET not in repr(frames)


async def test_a_slow_or_failing_on_receipt_holds_nobody(
    tracker: payclient.Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts inside the receiver's time; its failure is logged by place and id, without its text."""
    monkeypatch.setattr(web_routes, "TIMEOUT", 0.05)

    async def slow(notification: payclient.Notification, receipt: payclient.Receipt) -> None:
        await asyncio.Event().wait()

    def failing(notification: payclient.Notification, receipt: payclient.Receipt) -> None:
        raise ValueError("secret text")

    async def disturbed(notification: payclient.Notification, receipt: payclient.Receipt) -> None:
        asked = asyncio.create_task(slow(notification, receipt))
        asyncio.get_running_loop().call_soon(asked.cancel)
        await asked

    for on_receipt in (slow, failing, disturbed):
        routes = [STARLETTE.notification_route("/notify", on_receipt=on_receipt)]
        async with asyncio.timeout(60), asking_of(STARLETTE, tracker, routes) as asking:
            answered = await asking("GET", f"/notify{HINT}")
        assert (answered.status, answered.body) == (200, b"OK")
    assert "order-17: on_receipt took longer than 0.05 s" in caplog.text
    assert {vars(each)["client_transaction_id"] for each in caplog.records} == {"order-17"}
    assert "on_receipt raised ValueError at " in caplog.text
    assert "on_receipt raised CancelledError at " in caplog.text
    assert "test_web_routes.py:" in caplog.text
    assert "secret text" not in caplog.text


# --- What the waiting page needs


async def may_see(request: object, client_transaction_id: str) -> bool:
    """Order 17 only; a shop looks at its session."""
    await asyncio.sleep(0)
    return client_transaction_id == "order-17"


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_the_state_and_the_files(framework: Any) -> None:
    """What may not be seen is what does not exist; other files are not served."""
    routes = framework.order_routes("/shop/orders/", may_see=may_see)
    async with tracking(FakeService()) as tracker, asking_of(framework, tracker, routes) as asking:
        await tracker.sale(sale())
        await tracker.sale(sale("order-18", phone="0984111333"))
        paths = (
            "order-17/status", "order-18/status", "assets/style.css", "assets/waiting.js",
            "assets/other.js",
        )  # fmt: skip
        state, hidden, style, script, none = [await asking("GET", f"/shop/orders/{path}") for path in paths]
    assert (state.status, json.loads(state.body)["waiting"]) == (200, True)
    assert state.headers["content-type"].startswith("application/json")
    assert (hidden.status, hidden.body) == (404, b"{}")
    assert hidden.headers["content-type"] == state.headers["content-type"]
    assert (style.status, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert (script.status, b"fetch(" in script.body) == (200, True)
    assert none.status == 404


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_ledger_that_is_away_is_no_fault_of_the_route(framework: Any) -> None:
    """The page says "no connection" and queries again; a traceback for each query of each page says nothing more."""
    away = FailingLedger(lambda name: name == "get")
    async with (
        tracking(FakeService(), ledger=away) as tracker,
        asking_of(framework, tracker, framework.order_routes()) as asking,
    ):
        answered = await asking("GET", "/orders/order-17/status")
    assert (answered.status, answered.body) == (503, b"{}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_id_may_have_a_slash_in_it(framework: Any) -> None:
    """A customer was shown "no connection" for as long as the push lasted; a proxy may have decoded the slash."""
    async with tracking(FakeService()) as tracker:
        await tracker.sale(sale("2026/17"))
        async with asking_of(framework, tracker, framework.order_routes()) as asking:
            for identifier in ("2026%2F17", "2026/17"):
                assert (await asking("GET", f"/orders/{identifier}/status")).status == 200


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_receiver_hides_no_route_below_its_own(framework: Any) -> None:
    """Its addresses have one more part. Beside orders of the same prefix it answered 200 "OK" for each state."""
    routes = [framework.notification_route("/orders", secret=SECRET), *framework.order_routes()]
    async with tracking(FakeService()) as tracker, asking_of(framework, tracker, routes) as asking:
        await tracker.sale(sale())
        state = await asking("GET", "/orders/order-17/status")
        assert json.loads(state.body)["state"] == "pending"
        assert (await asking("GET", "/orders/key")).body == b"OK"


@pytest.mark.parametrize("framework", [AIOHTTP, STARLETTE])
async def test_a_prefix_may_vary(framework: Any) -> None:
    """The last part that varies is the id, whatever the names of those before it."""
    async with tracking(FakeService()) as tracker:
        await tracker.sale(sale())
        async with asking_of(framework, tracker, framework.order_routes("/{key}/orders")) as asking:
            assert (await asking("GET", "/7/orders/order-17/status")).status == 200


def test_what_is_no_function_is_refused_where_the_routes_are_made() -> None:
    """And not at the first notification, whose failure would be logged only, or the first customer's request."""
    with pytest.raises(payclient.ConfigurationError, match=r"^on_receipt must be a function; int was given$"):
        STARLETTE.notification_route("/notify", on_receipt=5)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(payclient.ConfigurationError, match=r"^may_see must be a function; bool was given$"):
        STARLETTE.order_routes(may_see=True)  # type: ignore[arg-type]  # that is the test
