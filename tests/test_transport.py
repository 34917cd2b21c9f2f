"""The network, against raw sockets: whatever a server does, no outcome is a lie and no charge is made twice."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import aiohttp
import attrs
import pytest

import required
from fake_service import PROFILE as QUERIES
from fake_service import Permit, sale
from jumping import in_jumping_time
from payclient.clock import Timeouts
from payclient.errors import (
    CustomerBusyError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.models import SaleRequest, SaleResult
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.session import RETRY_DELAYS, PaySession
from ports import kept_port
from raw_server import (
    ConnectProxy,
    CuttingProxy,
    RawServer,
    Step,
    answer,
    client_context,
    fin,
    hang,
    next_turns,
    pour,
    read,
    requests_in,
    reset,
    server_context,
    turns,
    write,
)

#: Private values that no error may hold.
TOKEN, PHONE, PERSON = "canary-token-5QdX", "0987654321", "Canary Person"
CANARIES = (TOKEN, PHONE, PERSON)

#: Never reached but where a server is silent, and there the clock jumps.
LONG = Timeouts(connect=30, total=30)
#: Real seconds of silence.
SILENCE = 0.05

TRIES = 1 + len(RETRY_DELAYS)

Outcome = SaleResult | BaseException


def sale_request(identifier: str = "order-1") -> SaleRequest:
    return sale(identifier, PHONE, reference=PERSON)


pytestmark = pytest.mark.usefixtures("delays")


trusting = cache(client_context)
serving = cache(server_context)


@pytest.fixture(params=["http", "tls"])
def context(request: pytest.FixtureRequest) -> ssl.SSLContext | None:
    """The server's TLS context, or None for http."""
    return serving() if request.param == "tls" else None


@contextlib.asynccontextmanager
async def session_to(
    url: str,
    timeouts: Timeouts = LONG,
    connector: aiohttp.BaseConnector | None = None,
    proxy: str | None = None,
    profile: ServiceProfile = DOCUMENT,
) -> AsyncIterator[PaySession]:
    """A session that trusts the test certificate; its connections are closed at the end."""
    if connector is None and url.startswith("https"):
        connector = aiohttp.TCPConnector(limit=0, ssl=trusting())
    session = PaySession(url, TOKEN, timeouts=timeouts, connector=connector, proxy=proxy, profile=profile)
    try:
        yield session
    finally:
        await session.aclose()
        if connector is not None:
            # aiohttp 3.14 stumbles over a TLS connection whose answer it could not parse.
            with contextlib.suppress(AttributeError):
                await connector.close()


@contextlib.asynccontextmanager
async def kept(
    context: ssl.SSLContext | None, *more: tuple[Step, ...]
) -> AsyncIterator[tuple[RawServer, PaySession]]:
    """A session whose connection has been used for one sale; the server has seen its end afterwards."""
    async with RawServer(KEPT, *more, context=context) as server:
        async with session_to(server.url) as session:
            await session.sale(sale_request("order-0"))
            yield server, session
        await server.settle()


def run_on(loop: str, work: Coroutine[Any, Any, None]) -> None:
    """Run it on an event loop of asyncio's or uvloop's."""
    factory = asyncio.new_event_loop if loop == "asyncio" else required.module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


async def outcome_of(call: Coroutine[Any, Any, SaleResult]) -> Outcome:
    try:
        return await call
    except (Exception, asyncio.CancelledError) as error:
        return error


async def sold(server: RawServer, before_send: Permit | None = None, **options: Any) -> Outcome:
    """What comes of one Sale over a session of its own, once the server has seen its end."""
    async with session_to(**{"url": server.url, **options}) as session:
        outcome = await outcome_of(session.sale(sale_request(), before_send=before_send))
    await server.settle()
    return outcome


def check_clean(error: BaseException) -> None:
    """Check that an error chains nothing of aiohttp's, which holds the token; tests/test_secrets.py looks further."""
    assert error.__cause__ is error.__context__ is None
    assert not any(canary in f"{error!r} {vars(error)}" for canary in CANARIES)


def check_no_lie(outcome: Outcome, data: bytes, *, refused: bool = False) -> None:
    """The invariant of every row: what the outcome says is true of the bytes that a server read."""
    complete = sum(1 for _ in requests_in(data))
    assert complete <= 1, "one call, one charge"
    assert isinstance(outcome, (SaleResult, PayError)), repr(outcome)
    if isinstance(outcome, SaleResult):
        assert complete == 1
        return
    if isinstance(outcome, NotSentError):
        assert not data
    if isinstance(outcome, RefusedError):
        assert refused, "only the service's own word is a refusal"
    check_clean(outcome)
    assert outcome.client_transaction_id == "order-1"


# --- One table of everything a server may do


@attrs.frozen
class Row:
    """What a server does with a Sale, and what the call comes to."""

    name: str
    steps: tuple[Step, ...]
    #: A transaction id, or the exact class of the error; several where the kernel decides.
    expected: object
    candidate: int | None = None

    @property
    def allowed(self) -> tuple[object, ...]:
        return self.expected if isinstance(self.expected, tuple) else (self.expected,)


def answers(
    name: str, body: object, expected: object, status: int = 200, *extra: str, candidate: int | None = None
) -> Row:
    """A row whose server reads the request and answers in order."""
    return Row(name, (read, write(answer(body, status, *extra))), expected, candidate)


def sends(name: str, data: bytes, expected: object, *steps: Step) -> Row:
    """A row whose server reads the request, writes these bytes and does the steps."""
    return Row(name, (read, write(data), *steps), expected)


UNKNOWN = OutcomeUnknownError
CREATED = answer({"transactionId": 12})
HTML = b"<html><body>It works!</body></html>"
HALF = CREATED[: CREATED.index(b"\r\n\r\n") + 10]
DEEP = b'{"transactionId": 12, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


#: Two sales over one connection.
KEPT = (read, write(CREATED), read, write(CREATED))


def error_object(code: object, *entries: object, **more: object) -> dict[str, object]:
    """The service's error object (§7)."""
    return {"message": "no", "errorCode": code, "errors": list(entries), **more}


BUSY = error_object(22, {"message": "pending", "errorCode": 2061})

ROWS = [
    # The connection.
    Row("reset before reading", (reset,), (NotSentError, UNKNOWN)),
    Row("closed before reading", (fin,), (NotSentError, UNKNOWN)),
    Row("reset after reading", (read, reset), UNKNOWN),
    Row("closed without an answer", (read, fin), UNKNOWN),
    sends("reset in the head", CREATED[:20], UNKNOWN, next_turns, reset),
    sends("closed in the head", CREATED[:20], UNKNOWN, fin),
    sends("reset in the body", HALF, UNKNOWN, next_turns, reset),
    sends("closed in the body", HALF, UNKNOWN, fin),
    Row("stalled before the answer", (read, hang), UNKNOWN),
    sends("stalled in the head", CREATED[:20], UNKNOWN),
    sends("stalled in the body", HALF, UNKNOWN),
    Row("one byte after the other", (read, pour([bytes([one]) for one in CREATED * 9], pause=10.0)), UNKNOWN),
    Row("100 without end", (read, pour(repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), pause=10.0)), UNKNOWN),
    Row("102 without end", (read, pour(repeat(b"HTTP/1.1 102 Wait\r\n\r\n"), pause=10.0)), UNKNOWN),
    sends("100, then the answer", b"HTTP/1.1 100 Continue\r\n\r\n" + CREATED, 12),
    sends("103, then the answer", b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n" + CREATED, 12),
    sends("101", b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + CREATED, UNKNOWN, fin),
    # The framing.
    sends("created", CREATED, 12),
    sends("created, then reset", CREATED, (12, UNKNOWN), next_turns, reset),
    sends("created, ended by the close", b'HTTP/1.0 200 OK\r\n\r\n{"transactionId": 12}', 12, fin),
    sends("cut, ended by the close", b'HTTP/1.0 200 OK\r\n\r\n{"transactionId": 12', UNKNOWN, fin),
    sends("length too large, closed", answer({"transactionId": 12}, length=99), UNKNOWN, fin),
    sends("length too large, stalled", answer({"transactionId": 12}, length=99), UNKNOWN),
    sends("length too small", answer({"transactionId": 12}, length=8), UNKNOWN),
    sends("length before the last digit", answer(b'{"transactionId": 12}', length=20), UNKNOWN),
    sends("length no number", b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n{}", UNKNOWN, fin),
    sends("two lengths", CREATED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"), UNKNOWN, fin),
    sends("garbage", b"\x00\xff\x16\x03 no http\r\n\r\n" * 9, UNKNOWN, fin),
    sends("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n", UNKNOWN, fin),
    sends("no status line", b'{"transactionId": 12}', UNKNOWN, fin),
    sends("chunked", CHUNKED + b'15\r\n{"transactionId": 12}\r\n0\r\n\r\n', 12),
    sends("wrong chunk size", CHUNKED + b'zz\r\n{"transactionId": 12}\r\n0\r\n\r\n', UNKNOWN, fin),
    sends("chunk too short", CHUNKED + b'5\r\n{"transactionId": 12}\r\n0\r\n\r\n', UNKNOWN, fin),
    sends("no last chunk, closed", CHUNKED + b'15\r\n{"transactionId": 12}\r\n', UNKNOWN, fin),
    sends("no last chunk, stalled", CHUNKED + b'15\r\n{"transactionId": 12}\r\n', UNKNOWN),
    Row("headers without end", (read, write(b"HTTP/1.1 200 OK\r\n"), pour(repeat(b"X-A: b\r\n" * 500))), UNKNOWN),
    sends("a header of 1 MB", b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * (1 << 20) + b"\r\n\r\n", UNKNOWN, fin),
    # Statuses and bodies, one of a kind: what each of them is stands in the tables of the pure readers.
    answers("HTML 200", HTML, UNKNOWN, 200),
    answers("empty 200", b"", UNKNOWN, 200),
    sends("204", b"HTTP/1.1 204 No Content\r\n\r\n", UNKNOWN),
    answers("HTML 502", HTML, UNKNOWN, 502),
    answers("id on 302", {"transactionId": 12}, UNKNOWN, 302, candidate=12),
    answers("deep nesting", DEEP, UNKNOWN, candidate=12),
    answers("wrong charset", {"transactionId": 12}, 12, 201, "Content-Type: application/json; charset=utf-16"),
    answers("said to be text", {"transactionId": 12}, 12, 200, "Content-Type: text/plain"),
    answers("gzip", gzip.compress(b'{"transactionId": 12}'), UNKNOWN, 200, "Content-Encoding: gzip"),
    answers("2061 on 200", BUSY, CustomerBusyError),
    answers("another code on 400", error_object(23), RefusedError, 400),
    answers("another code on 500", error_object(23), UNKNOWN, 500),
    answers("401 with a message", {"message": "who?"}, UnauthorizedError, 401),
    answers("429 with the object", error_object(5), RateLimitedError, 429, "Retry-After: 7"),
    answers("429 without", b"", UNKNOWN, 429, "Retry-After: 7"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@in_jumping_time(SILENCE)
async def test_any_server(row: Row, context: ssl.SSLContext | None, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a server does, the outcome is the right one, nothing was sent twice and no error holds a secret."""
    permit = Permit()
    async with RawServer(row.steps, context=context) as server:
        outcome = await sold(server, permit)
        refuses = any(isinstance(kind, type) and issubclass(kind, RefusedError) for kind in row.allowed)
        check_no_lie(outcome, server.data, refused=refuses)
    said = outcome.transaction_id if isinstance(outcome, SaleResult) else type(outcome)
    assert said in row.allowed, repr(outcome)
    assert permit.entered == permit.completed
    if not isinstance(outcome, NotSentError):
        assert permit.completed == 1
    if isinstance(outcome, OutcomeUnknownError):
        assert outcome.candidate_id == row.candidate
    if isinstance(outcome, RateLimitedError):
        assert outcome.retry_after == 7
    assert not any(canary in caplog.text for canary in CANARIES)


# --- A status query


def state(word: object, identifier: object = 12) -> dict[str, object]:
    return {"transactionId": identifier, "state": word, "phoneNumber": PHONE, "email": PERSON}


@pytest.mark.parametrize("step", [reset, fin], ids=["reset", "closed"])
async def test_a_query_that_is_cut_is_repeated(step: Step, delays: list[float]) -> None:
    """Cut anywhere, on a new connection; one that its caller counts is sent once, also where a kept one breaks."""
    half, pending = answer(state("Aceptado")), answer(state("Pendiente"))
    scripts = [(read, step), (read, write(half[:-3]), next_turns, step), (read, write(half))]
    async with RawServer(*scripts) as server, session_to(server.url, profile=QUERIES) as session:
        report = await session.status(transaction_id=12)
        assert report is not None
        assert report.state == "Aceptado"
        assert len(server.connections) == 3
        assert len(delays) == 2
    async with RawServer((read, write(pending), read, step), (read, write(pending))) as server:
        async with session_to(server.url, profile=QUERIES) as session:
            await session.status(transaction_id=12)
            outcome: Any = await outcome_of(cast("Any", session.status(transaction_id=13, repeat=False)))
        assert type(outcome) is OutcomeUnknownError
        assert ("ServerDisconnectedError" if step is fin else "ECONNRESET") in str(outcome), (
            "aiohttp tries once"
        )
        assert (server.complete, len(server.connections)) == (2, 1)
        assert len(delays) == 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_nothing_is_delivered_after_the_time_out(loop: str) -> None:
    """The connection of a request that was given up is reset: the kernel forgets what it could not deliver."""

    # Not by TLS, whose good-bye comes first where the network works.
    async def main() -> None:
        began, ended = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.read(1000):
                    began.set()
            except ConnectionResetError:
                ended.set_result("reset")
            else:
                ended.set_result("closed")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with session_to(url) as session:
            call = asyncio.create_task(session.sale(sale_request()))
            await began.wait()
            call.cancel()  # as the time-out does
            assert await asyncio.wait_for(ended, 60) == "reset"
        server.close()

    run_on(loop, main())


async def test_redirects_are_not_followed() -> None:
    """A redirect is an unknown outcome, and where it points to sees neither the token nor the charge."""
    async with RawServer((read, write(CREATED))) as other:
        for status in (301, 302, 303, 307, 308):
            script = (read, write(answer(BUSY, status, f"Location: {other.url}/api/Sale")))
            async with RawServer(script) as server:
                outcome = await sold(server)
                check_no_lie(outcome, server.data)
            assert type(outcome) is OutcomeUnknownError
            assert outcome.http_status == status
        assert other.connections == []


@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_a_huge_answer_is_bounded(coding: str) -> None:
    """A gzip bomb and a body of 20 MB are unknown outcomes, and cost the client little memory."""
    bomb = gzip.compress(b'{"transactionId": 12, "a": "' + b"0" * (1 << 25) + b'"}')
    steps = {
        "gzip": (read, write(answer(bomb, 200, "Content-Encoding: gzip"))),
        "identity": (read, write(answer(b"", length=20_000_000)), pour(repeat(b"0" * (1 << 16)))),
    }
    async with RawServer(steps[coding]) as server, session_to(server.url) as session:
        tracemalloc.start()
        try:
            outcome = await outcome_of(session.sale(sale_request()))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        check_no_lie(outcome, server.data)
        assert type(outcome) is OutcomeUnknownError
        assert peak < 8_000_000


@pytest.mark.parametrize(("idle", "connections"), [(1.5, 1), (2.5, 2)])
async def test_an_idle_connection_is_kept_for_two_seconds(
    monkeypatch: pytest.MonkeyPatch, idle: float, connections: int
) -> None:
    """A stale one makes an outcome unknown."""
    now = 100.0
    monkeypatch.setattr("aiohttp.connector.monotonic", lambda: now)
    async with RawServer((read, write(CREATED), read, write(CREATED)), OTHER) as server:
        async with session_to(server.url) as session:
            await session.sale(sale_request())
            now += idle
            await session.sale(sale_request("order-2"))
        assert len(server.connections) == connections


# --- Never connected


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """A port where no connection is ever completed: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.asynccontextmanager
async def nowhere(how: str) -> AsyncIterator[str]:
    """The address of one with whom no connection ever stands."""
    if "black hole" in how:
        with black_hole() as url:
            yield url
    elif "refused" in how or "no proxy" in how:
        with kept_port() as port:
            yield f"http://127.0.0.1:{port}"
    else:
        plain = (next_turns, write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), fin)
        async with RawServer(plain if "plain" in how else (hang,)) as server:
            yield server.url
            assert TOKEN.encode() not in server.data


@pytest.mark.parametrize(
    "how",
    [
        "refused", "refused by TLS", "black hole: total", "black hole: connect", "TLS without end: total",
        "TLS without end: connect", "TLS to a plain port", "no proxy", "a silent proxy",
    ],
)  # fmt: skip
@in_jumping_time(SILENCE)
async def test_never_connected(how: str, delays: list[float]) -> None:
    """Not sent, whichever time-out ends it, no permit is spent, and it is tried again; a plain port sees no request."""
    permit = Permit()
    timeouts = Timeouts(connect=30, total=600) if "connect" in how else Timeouts(connect=600, total=30)
    async with nowhere(how) as there, asyncio.timeout(900):
        proxy, url = (there, "https://pay.example") if "proxy" in how else (None, there)
        if "TLS" in how:
            url = url.replace("http:", "https:")
        for before_send in (permit, None):
            async with session_to(url, timeouts, proxy=proxy) as session:
                outcome = await outcome_of(session.sale(sale_request(), before_send=before_send))
            check_no_lie(outcome, b"")
            assert type(outcome) is NotSentError
    assert permit.entered == 0
    if "refused" in how:
        assert "ECONNREFUSED" in str(outcome)
        assert len(delays) == 2 * (TRIES - 1)


async def test_plain_to_a_tls_port() -> None:
    """Plain http to a TLS port is written, so it is unknown, though the server understood none of it."""
    async with RawServer((read, write(CREATED)), context=serving()) as server:
        outcome = await sold(server, url=server.url.replace("https", "http"))
        assert isinstance(outcome, (OutcomeUnknownError, NotSentError))
        check_clean(outcome)
        assert server.complete == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_certificate_not_trusted(host: str) -> None:
    async with RawServer((read, write(CREATED)), context=serving()) as server:
        url = server.url.replace("127.0.0.1", host)
        permit = Permit()
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(), family=socket.AF_INET)
        outcome = await sold(server, permit, url=url, connector=connector)
        check_no_lie(outcome, server.data)
        assert type(outcome) is NotSentError
        assert "(CERTIFICATE_VERIFY_FAILED)" in str(outcome), "and not EPERM, which has the same number"
        assert permit.entered == 0
        assert server.data == b""


# --- `before_send`

RAISED = [
    RuntimeError("mine"), asyncio.CancelledError("mine"), TimeoutError("mine"), ConnectionResetError(104, "mine"),
    aiohttp.ClientError("mine"), NotSentError("mine"), OutcomeUnknownError("mine"),
]  # fmt: skip


@pytest.mark.parametrize(
    "error", [*RAISED, None], ids=lambda error: type(error).__name__ if error else "endless"
)
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
@in_jumping_time(SILENCE)
async def test_failing_in_before_send(
    error: BaseException | None, kept: bool, context: ssl.SSLContext | None
) -> None:
    """Nothing is written: what `before_send` raises is what the caller gets, the very object; without end, not sent."""

    async def refuse() -> None:
        if error is None:
            await asyncio.Event().wait()
        else:
            raise error

    permit = Permit(refuse)
    async with RawServer(KEPT, context=context) as server:
        async with session_to(server.url) as session:
            if kept:
                await session.sale(sale_request("order-0"))
            read_before = len(server.data)
            outcome = await outcome_of(session.sale(sale_request(), before_send=permit))
        await server.settle()
        assert permit.entered == 1
        assert len(server.connections) == 1
        assert len(server.data) == read_before
    if error is None:
        assert type(outcome) is NotSentError
        check_clean(outcome)
    else:
        assert outcome is error
        error.__traceback__ = None


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_before_send_precedes_the_first_byte(loop: str, context: ssl.SSLContext | None) -> None:
    """`before_send` runs after the connection stands and before its first byte, on a new and on a kept one."""

    async def main() -> None:
        async with RawServer(KEPT, context=context) as server:

            async def look() -> None:
                await server.accepted.wait()
                before = len(server.data)
                await turns(50)
                assert server.complete == permit.completed
                assert len(server.data) == before

            permit = Permit(look)
            async with session_to(server.url) as session:
                for number in (1, 2):
                    await session.sale(sale_request(f"order-{number}"), before_send=permit)
                    assert permit.completed == server.complete == number
            assert len(server.connections) == 1

    run_on(loop, main())


# --- A kept connection

#: An answer that nobody asked for; and the script of another connection.
BOGUS, OTHER = answer({"transactionId": 9}), (read, write(answer({"transactionId": 13})))


def act(server: RawServer, event: str) -> None:
    """Let something happen to an idle connection that nobody asked for."""
    connection = server.connections[0]
    data = {
        "an answer": BOGUS, "an answer and the close": BOGUS, "an answer's head": BOGUS[: BOGUS.index(b"{")],
        "half a head": b"HTTP/1.1 400 Bad Request\r\nX-A: ", "garbage": b"\x00garbage\r\n\r\n",
    }  # fmt: skip
    if event in data:
        connection.writer.write(data[event])
    if event.endswith("close"):
        connection.close("fin")
    elif event == "reset":
        connection.close("reset")


unasked = pytest.mark.parametrize(
    "event", ["close", "reset", "an answer", "an answer's head", "garbage", "an answer and the close"]
)


@unasked
@pytest.mark.parametrize("seen", ["at once", "in before_send"])
async def test_idle_connection_seen_dead(event: str, seen: str, context: ssl.SSLContext | None) -> None:
    """Closed, or with bytes unasked, it is left for a new one; while `before_send` runs its permit is not reused."""

    async def happen() -> None:
        act(server, event)
        await turns()

    permit = Permit(happen if seen == "in before_send" else None)
    async with kept(context, OTHER) as (server, session):
        if seen == "at once":
            await happen()
        outcome = await outcome_of(session.sale(sale_request(), before_send=permit))
    assert permit.entered == 1
    if seen == "at once":
        assert isinstance(outcome, SaleResult)
        assert outcome.transaction_id == 13
        assert [connection.complete for connection in server.connections] == [1, 1]
        assert permit.completed == 1
    else:
        assert type(outcome) is NotSentError
        check_clean(outcome)
        assert server.complete == 1


@unasked
async def test_idle_connection_dies_unseen(event: str, context: ssl.SSLContext | None) -> None:
    """What happened to a kept connection that the loop has not seen yet makes no lie."""
    async with kept(context, OTHER) as (server, session):
        act(server, event)
        outcome = await outcome_of(session.sale(sale_request()))
    charged = sum(b"order-1" in body for body in server.bodies())
    if isinstance(outcome, SaleResult):
        assert charged == 1
        assert outcome.transaction_id != 9
    elif type(outcome) is NotSentError:
        assert charged == 0
    else:
        assert type(outcome) is OutcomeUnknownError
        assert charged <= 1


@pytest.mark.parametrize("seen", ["idle", "in before_send"])
async def test_half_a_head_that_nobody_asked_for(seen: str, context: ssl.SSLContext | None) -> None:
    """The beginning of an answer that nobody asked for does not become part of the next one."""
    refusal = answer(error_object(23), 500)  # unknown, but a refusal with the status of the other's head
    async with RawServer((read, write(CREATED), read, write(refusal)), context=context) as server:

        async def happen() -> None:
            act(server, "half a head")
            await turns()

        async with session_to(server.url) as session:
            await session.sale(sale_request("order-0"))
            if seen == "idle":
                await happen()
            permit = Permit(happen) if seen == "in before_send" else None
            outcome = await outcome_of(session.sale(sale_request(), before_send=permit))
        await server.settle()
        assert type(outcome) is OutcomeUnknownError or not any(b"order-1" in one for one in server.bodies())


async def test_closed_between_before_send_and_the_first_byte() -> None:
    """Not sent where the server has read nothing: some versions of Python write in the next turn of the loop."""
    async with RawServer((read, write(CREATED))) as server:
        connector, closing = aiohttp.TCPConnector(), set[asyncio.Future[None]]()

        async def close() -> None:
            await connector.close()

        async def permit() -> None:
            closing.add(asyncio.ensure_future(close()))

        async with session_to(server.url, connector=connector) as session:
            outcome = await outcome_of(session.sale(sale_request(), before_send=permit))
        await server.settle()
        await asyncio.gather(*closing)
        assert type(outcome) is (OutcomeUnknownError if server.data else NotSentError)


async def test_close_after_an_answer_out_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing raises nothing, though a TLS connection had bytes that could not be parsed."""
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting())
    async with RawServer(KEPT, context=serving()) as server:
        session = PaySession(server.url, TOKEN, timeouts=LONG)
        await session.sale(sale_request("order-0"))
        act(server, "an answer's head")
        outcome = await outcome_of(session.sale(sale_request()))
        assert isinstance(outcome, (SaleResult, OutcomeUnknownError))
        await session.aclose()


@pytest.mark.parametrize("status", [503, 200])
@pytest.mark.parametrize("permit", [None, Permit()], ids=["", "permit"])
async def test_a_connection_whose_answer_is_not_read_yet(permit: Permit | None, status: int) -> None:
    """aiohttp gives it back with the answer's last byte. The query fails and closes it: under another's charge."""
    head, connector = write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n" % status), aiohttp.TCPConnector()
    async with (
        RawServer((read, head, next_turns, write(b"{}"), *OTHER), OTHER) as server,
        session_to(server.url, connector=connector, profile=QUERIES) as session,
    ):
        query = asyncio.ensure_future(session.status(transaction_id=12, repeat=False))
        while not (connector._conns or query.done()):  # noqa: ASYNC110, SLF001 - nobody is told
            await asyncio.sleep(0)
        assert (await session.sale(sale_request(), before_send=permit)).transaction_id == 13
        assert type((await asyncio.gather(query, return_exceptions=True))[0]) is OutcomeUnknownError


async def test_a_connection_whose_answer_changes_the_protocol(caplog: pytest.LogCaptureFixture) -> None:
    """It was given back by the garbage collector alone, which the loop's debug mode calls an error."""
    asyncio.get_running_loop().set_debug(True)
    go = write(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    async with RawServer((read, go, fin)) as server:
        assert type(await sold(server, Permit())) is OutcomeUnknownError
    assert "Unclosed" not in caplog.text


@pytest.mark.parametrize("excess", [b"xx", b"\r\n", BOGUS], ids=["garbage", "line", "answer"])
async def test_excess_after_an_answer(excess: bytes, context: ssl.SSLContext | None) -> None:
    """Bytes after an answer's end are no part of it, and none of the next one's."""
    async with RawServer((read, write(CREATED + excess), *OTHER), OTHER, context=context) as server:
        async with session_to(server.url) as session:
            first = await outcome_of(session.sale(sale_request()))
            second = await outcome_of(session.sale(sale_request("order-2")))
        for outcome, true in ((first, 12), (second, 13)):
            assert type(outcome) is OutcomeUnknownError or (
                isinstance(outcome, SaleResult) and outcome.transaction_id == true
            )
        assert server.complete <= 2


# --- Cut at every byte


async def cut(server: RawServer, identifier: str, how: str, limits: dict[str, int]) -> tuple[Outcome, bytes]:
    async with CuttingProxy(server.port, how=how, **limits) as proxy:
        async with session_to(proxy.url) as session:
            outcome = await outcome_of(session.sale(sale_request(identifier)))
        await proxy.settle()
        return outcome, bytes(proxy.forwarded)


@pytest.mark.parametrize(
    ("side", "ways"), [("request", ["reset", "fin"]), ("answer", ["reset"]), ("answer", ["fin"])]
)
async def test_cut_at_every_byte(side: str, ways: list[str]) -> None:
    """Cut after any number of bytes of the request or of the answer, no outcome is a lie and nothing is sent twice."""
    async with RawServer(KEPT) as server:
        outcome, request = await cut(server, "order-whole", ways[0], {})
        assert isinstance(outcome, SaleResult)
        size = len(request) if side == "request" else len(CREATED)

        async def one(offset: int) -> tuple[int, Outcome, bytes]:
            how = ways[offset % len(ways)]
            return offset, *await cut(server, f"order-{offset:05}", how, {side: offset})

        outcomes: list[tuple[int, Outcome, bytes]] = []
        for first in range(0, size + 1, 40):
            outcomes += await asyncio.gather(*map(one, range(first, min(first + 40, size + 1))))
        await server.settle()
        charged = [json.loads(body)["clientTransactionId"] for body in server.bodies()]
    assert len(outcomes) == size + 1
    assert len(set(charged)) == len(charged), "one call, one charge"
    for offset, outcome, forwarded in outcomes:
        if isinstance(outcome, SaleResult):
            assert (side, offset, outcome.transaction_id) == ("answer", size, 12)
            continue
        assert type(outcome) in (OutcomeUnknownError, NotSentError)
        if type(outcome) is NotSentError:
            assert forwarded == b""
            assert f"order-{offset:05}" not in charged
        check_clean(outcome)


# --- Cancelled at every step


@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
async def test_cancelled_at_every_step(kept: bool, context: ssl.SSLContext | None) -> None:
    """Cancelled after any number of turns of the loop: while the permit is not given, the server reads nothing."""
    refused = completed = 0
    for count in range(2000):
        permit = Permit(partial(turns, 3))
        async with RawServer(KEPT, context=context) as server:
            async with session_to(server.url) as session:
                if kept:
                    await session.sale(sale_request("order-0"))
                read_before = len(server.data)
                call = asyncio.create_task(session.sale(sale_request(), before_send=permit))
                await turns(count)
                cancelled = call.cancel()
                outcome = await outcome_of(wait(call))
            await server.settle()
            read_after = len(server.data) - read_before
        if permit.completed == 0:
            assert read_after == 0
            refused += 1
        if cancelled:
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert isinstance(outcome, SaleResult)
            completed += 1
            break
    assert refused > 3
    assert completed == 1


async def test_cancelling_as_the_connection_ends(context: ssl.SSLContext | None) -> None:
    """Whoever is cancelled as the server closes the connection is cancelled, and is told of no other failure."""
    cancelled = 0
    async with RawServer((read, reset), context=context) as server, session_to(server.url) as session:
        for count in range(40):
            call = asyncio.create_task(session.sale(sale_request()))
            await server.charged(count + 1)
            await turns(count % 8)
            asked = call.cancel()
            outcome = await outcome_of(wait(call))
            assert isinstance(outcome, asyncio.CancelledError if asked else OutcomeUnknownError)
            cancelled += asked
    assert cancelled > 3


async def wait(call: asyncio.Task[SaleResult]) -> SaleResult:
    return await call


# --- Through a proxy


@pytest.mark.parametrize(
    "refusal",
    [
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
        answer({"transactionId": 9}, 502),
        answer(BUSY, 400),
        b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
    ids=["502", "502 with an id", "400 with an error object", "407", "garbage", "closed"],
)
async def test_proxy_refuses(refusal: bytes, delays: list[float]) -> None:
    """What goes wrong at the proxy is not sent: no permit is spent, and it is tried again."""
    async with RawServer((read, write(CREATED)), context=serving()) as server, ConnectProxy(refusal) as proxy:
        permit = Permit()
        outcome = await sold(server, permit, proxy=proxy.url)
        check_no_lie(outcome, server.data)
        assert type(outcome) is NotSentError
        assert permit.entered == 0
        assert len(delays) == TRIES - 1
        assert [head.split()[0] for head in proxy.heads] == [b"CONNECT"] * TRIES
        assert server.connections == []


async def test_proxy_works() -> None:
    """Through a tunnel, the permit is asked for once, behind the tunnel's own handshake, and for each request."""
    async with RawServer(KEPT, context=serving()) as server, ConnectProxy() as proxy:

        async def look() -> None:
            before = len(server.data)
            await turns(50)
            assert len(proxy.heads) == 1
            assert len(server.data) == before

        permit = Permit(look)
        async with session_to(server.url, proxy=proxy.url) as session:
            for number in (1, 2):
                result = await session.sale(sale_request(f"order-{number}"), before_send=permit)
                assert result.transaction_id == 12
                assert permit.completed == server.complete == number
        assert len(proxy.connections) == 1


# --- What is written


async def test_the_request_on_the_wire(context: ssl.SSLContext | None) -> None:
    """A POST to /api/Sale with the document's two headers (§4, §5), and a query without the cookie of its answer."""
    first = answer({"transactionId": 12}, 200, "Set-Cookie: a=b")
    script = (read, write(first), read, write(answer(state("Pendiente"))))
    async with RawServer(script, context=context) as server:
        # A name, since aiohttp's own cookie jar keeps nothing of an address.
        url = f"{server.url}/".replace("127.0.0.1", "localhost")
        async with session_to(url, profile=attrs.evolve(QUERIES, message_language="es")) as session:
            await session.sale(sale_request("order-1"))
            await session.status(client_transaction_id="a/b ../%2e?ñ")
        await server.settle()
        lines = [first for each in server.connections for first, _ in requests_in(bytes(each.data))]
        quoted = "a%2Fb%20..%2F%252e%3F%C3%B1"  # neither decoded nor quoted twice
        assert lines == ["POST /api/Sale HTTP/1.1", f"GET /api/Sale/client/{quoted} HTTP/1.1"]
        data = server.data.lower()
        assert data.count(b"\r\nauthorization: bearer " + TOKEN.lower().encode() + b"\r\n") == 2
        assert data.count(b"\r\ncontent-type: application/json\r\n") == 2
        assert data.count(b"\r\naccept-encoding: identity\r\n") == 2
        assert data.count(b"\r\ncache-control: no-cache\r\n") == 2
        assert data.count(b"\r\naccept-language: es\r\n") == 2
        assert b"cookie" not in data
        assert b"expect" not in data
        host = b"HTTP/1.1\r\nHost: " + url.removesuffix("/").split("//")[1].encode() + b"\r\n"
        assert (
            server.data.count(host) == data.count(b"\r\nhost:") == 2
        )  # the first field of each (RFC 9110, 7.2)
        length = len(server.bodies()[0])
        assert data.count(b"\r\ncontent-length: %d\r\n" % length) == data.count(b"\r\ncontent-length:") == 1
        assert b"transfer-encoding" not in data
        assert len(server.connections) == 1
        assert json.loads(server.bodies()[0])["phoneNumber"] == PHONE


async def test_the_environment_takes_no_request_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proxies and passwords of the environment are for other programs: the token goes to the service alone."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login canary password canary\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with RawServer((read, write(answer({"transactionId": 12})))) as server, ConnectProxy() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        async with session_to(server.url) as session:
            assert (await session.sale(sale_request())).transaction_id == 12
        assert f"Authorization: Bearer {TOKEN}".encode() in server.data
        assert proxy.connections == []


async def test_as_many_connections_as_calls() -> None:
    """No limit of the network library holds back what a batch may have in flight."""
    async with RawServer((read, hang)) as server:
        session = PaySession(server.url, TOKEN)
        calls = [asyncio.ensure_future(session.sale(sale_request(f"order-{n}"))) for n in range(110)]
        async with asyncio.timeout(60):
            await server.charged(110)
        await session.aclose()
        assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {
            OutcomeUnknownError
        }
