"""The session: settings, tokens, time-outs, repeats and the hook, over transports that are functions."""

from __future__ import annotations

import asyncio
import copy
import enum
import os
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import aiohttp
import attrs
import orjson
import pytest

from crowd import in_virtual_time, now
from fake_service import PROFILE as QUERIES
from fake_service import Permit, Scripted, error_of, form, sale
from payclient.clock import Timeouts
from payclient.errors import (
    ConfigurationError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    RefusedError,
    UnauthorizedError,
    UsageError,
)
from payclient.profile import DOCUMENT, PAYPHONE
from payclient.session import RETRY_DELAYS, Exchange, PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport
from raw_server import RawServer, answer, hang, read, turns, write
from virtual_loop import VirtualLoop

TOKEN = "canary-token-5QdX"
BASE = "https://pay.example"
#: For what only a time-out ends.
SHORT, TEN = Timeouts(connect=0.2, total=0.2), Timeouts(total=10)

TRIES = 1 + len(RETRY_DELAYS)

SALE, PREPARE = sale("order-1"), form("form-1")
CREATED = HttpResponse(200, {}, b'{"transactionId": 12}')
PENDING = HttpResponse(200, {}, b'{"transactionId": 12, "state": "Pendiente"}')
CONFIRMED = HttpResponse(200, {}, b'{"transactionId": 12, "transactionStatus": "Pending"}')
FAILING = HttpResponse(503)
WHO = HttpResponse(401, {}, b'{"message": "who?"}')


async def endless(_request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
    """A transport that sends and hears nothing."""
    assert before_send is not None
    await before_send()
    await asyncio.Event().wait()
    raise AssertionError


class Tokens:
    """A token callable that counts, and waits for `go` when it has one."""

    def __init__(self, *tokens: object, go: asyncio.Event | None = None) -> None:
        self.tokens = list(tokens)
        self.asked = 0
        self.go = go

    async def __call__(self) -> str:
        self.asked += 1
        if self.go is not None:
            await self.go.wait()
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        if isinstance(token, BaseException):
            raise token
        return cast("str", token)


async def ended(call: Awaitable[object]) -> tuple[type[BaseException] | None, float]:
    """How a call ended, and when."""
    try:
        await call
    except BaseException as error:
        return type(error), now()
    return None, now()


pytestmark = pytest.mark.usefixtures("delays")


def session_over(transport: Transport | None, token: Any = TOKEN, **options: Any) -> PaySession:
    options.setdefault("profile", QUERIES)
    return PaySession(BASE, token, transport=transport, **options)


# --- Settings


@pytest.mark.parametrize(
    "base_url",
    [
        "", None, b"https://pay.example", "pay.example", "https://", "https:///api", "http://pay.example",
        "http://192.168.0.1", "http://localhost.evil.example", "http://evil-localhost", "http://[::2]", "ftp://pay.example",
        "file:///etc/passwd", "https://user:secret@pay.example", "https://secret@pay.example",
        "https://@pay.example", "https://pay.example?secret=1", "https://pay.example?",
        "https://pay.example/#secret", "https://pay.example#", "https://pay.example/\r\nX: secret",
        "https://pay.example/\x00", "https://pay.example/ ", " https://pay.example",
        "https://pay.example\\secret", "https://pagó.example", "https://pay.example:port",
        "https://pay.example:70000", "https://[::1", "https://[::1]secret",
    ],
)  # fmt: skip
def test_base_url_refused(base_url: Any) -> None:
    """A base address that is not plain https, or http for loopback, is refused by name, and not repeated."""
    with pytest.raises(ConfigurationError, match=r"^base_url must ") as caught:
        PaySession(base_url, TOKEN)
    assert "secret" not in str(caught.value)


def test_an_empty_base_url_is_not_the_presets() -> None:
    """As of a variable that is not set: the preset's own address charges for real."""
    with pytest.raises(ConfigurationError, match=r"^base_url must "):
        PaySession("", TOKEN, profile=PAYPHONE)


def test_settings_accepted_and_refused() -> None:
    """A final slash of the address is left out; a time-out is a positive, finite number; a proxy is a URL."""
    for base_url in (
        "https://pay.example", "https://pay.example:8443/v1/", "HTTPS://pay.example", "http://localhost:80",
        "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8080",
    ):  # fmt: skip
        assert PaySession(base_url, TOKEN).base_url == base_url.rstrip("/")
    seconds: list[Any] = [0, -1, 0.0, float("nan"), float("inf"), -float("inf"), True, "10", None]
    for name in ("connect", "total"):
        for value in seconds:
            with pytest.raises(ConfigurationError, match=f"^time-out {name} must be "):
                Timeouts(**{name: value})
    for proxy in ("", "proxy.example", "socks5://proxy.example", "http://", "http://[::1", "https:///x"):
        with pytest.raises(ConfigurationError, match=r"^proxy must be a URL"):
            PaySession(BASE, TOKEN, proxy=proxy)


def test_http_goes_through_no_proxy_elsewhere() -> None:
    """It is for this machine, and a proxy on another one would read the token."""
    for proxy in ("http://proxy.example:3128", "https://192.168.0.1:3128"):
        with pytest.raises(ConfigurationError, match=r"^proxy must be on this machine"):
            PaySession("HTTP://127.0.0.1:8700", TOKEN, proxy=proxy)
        PaySession(BASE, TOKEN, proxy=proxy)
    PaySession("http://127.0.0.1:8700", TOKEN, proxy="http://localhost:3128")


BAD_TOKENS = [
    "", None, 7, b"secret", "Bearer secret", "bearer secret", "secret\r\nX-Other: 1", "secret\n",
    "secret\x00", "sec ret", " secret", "secret\t", "secretó", "<ACCESS_TOKEN>", "<secret>",
    "<secret", "secret>",
]  # fmt: skip


@pytest.mark.parametrize("token", BAD_TOKENS)
async def test_token_refused(token: Any) -> None:
    """One that cannot stand behind Bearer (§5) is refused by name and not repeated, given or from a callable."""
    fake, permit = Scripted(CREATED), Permit()
    with pytest.raises(ConfigurationError, match=r"^token must ") as given:
        PaySession(BASE, token)
    with pytest.raises(ConfigurationError, match=r"^token must ") as called:
        await session_over(fake, Tokens(token)).sale(SALE, before_send=permit)
    assert "secret" not in repr((given.value, called.value))
    assert given.value.__context__ is None
    assert (fake.requests, permit.entered) == ([], 0)


class Tenant(str, enum.Enum):  # noqa: UP042 - a StrEnum formats as its value
    """A text that formats as its name."""

    SHOP = TOKEN


async def test_a_token_of_another_class_of_texts_is_sent_by_its_value() -> None:
    """It was sent as `Tenant.SHOP`, given or from a callable."""
    for token in (Tenant.SHOP, Tokens(Tenant.SHOP)):
        fake = Scripted(CREATED)
        await session_over(fake, token).sale(SALE)
        assert fake.tokens == [f"Bearer {TOKEN}"]


def test_from_env() -> None:
    """The environment gives the base address, the token and the profile; what is missing or wrong is named."""
    environ = {"PAYCLIENT_BASE_URL": "https://pay.example/", "PAYCLIENT_TOKEN": TOKEN}
    session = PaySession.from_env(environ, timeouts=SHORT)
    assert (session.base_url, session.profile, session.timeouts) == (BASE, DOCUMENT, SHORT)
    assert PaySession.from_env({**environ, "PAYCLIENT_PROFILE": "document"}).profile is DOCUMENT
    assert PaySession.from_env({**environ, "PAYCLIENT_PROFILE": "x"}, profile=QUERIES).profile is QUERIES
    named = attrs.evolve(QUERIES, base_url="https://named.example")
    assert PaySession.from_env(environ, profile=named).base_url == BASE
    assert PaySession.from_env({"PAYCLIENT_TOKEN": TOKEN}, profile=named).base_url == "https://named.example"
    for name in environ:
        for wrong in (
            {**environ, name: ""},
            {other: value for other, value in environ.items() if other != name},
        ):
            with pytest.raises(ConfigurationError, match=f"^{name} is not set$"):
                PaySession.from_env(wrong)
    with pytest.raises(ConfigurationError, match=r"/no/such/file\.toml"):
        PaySession.from_env({**environ, "PAYCLIENT_PROFILE": "/no/such/file.toml"})


# --- Where it may be used


def test_where_a_session_may_be_used() -> None:
    """Until it is closed, which it may be twice; in one event loop; never copied or pickled."""
    fake = Scripted(CREATED)
    session = session_over(fake)

    async def main() -> None:
        async with session:
            await session.sale(SALE)
        await session.aclose()
        for call in (session.sale(SALE), session.status(transaction_id=12), session.__aenter__()):
            with pytest.raises(UsageError, match="closed"):
                await cast("Any", call)

    asyncio.run(main())
    assert len(fake.requests) == 1
    assert repr(session) == f"<PaySession {BASE} profile=test>"
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="does not pickle"):
            way(session)
    elsewhere = session_over(fake)
    asyncio.run(cast("Any", elsewhere.sale(SALE)))
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(cast("Any", elsewhere.sale(SALE)))


FORKED = """
import asyncio, os
from payclient import PaySession, SaleRequest, Timeouts, UsageError
from raw_server import RawServer, answer, read, write

def sale(name):
    return SaleRequest(phone_number="0987654321", country_code="593", currency="USD", client_transaction_id=name, tip=1)

async def in_child(session):
    try:
        await session.sale(sale("child"))
    except UsageError as error:
        print("fork" in str(error), flush=True)
    await session.aclose()

async def main():
    async with RawServer((read, write(answer({"transactionId": 12}))) * 2) as server:
        async with PaySession(server.url, "token", timeouts=Timeouts(total=10)) as session:
            await session.sale(sale("a"))
            if os.fork() == 0:
                await in_child(session)
                os._exit(0)
            os.wait()
            await session.sale(sale("b"))
        print(len(server.connections), "connection for both")

unused = PaySession("https://pay.example", "token")
if os.fork() == 0:
    asyncio.run(in_child(unused))
    os._exit(0)
os.wait()
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked() -> None:
    """A session says so in a child, unused or used; a close there leaves the parent's connection."""
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, timeout=60, capture_output=True, env=os.environ | paths
    )
    assert (done.stdout, done.stderr) == (b"True\nTrue\n1 connection for both\n", b"")


@pytest.mark.parametrize("own", [None, TEN])
async def test_close_ends_calls_over_a_borrowed_connector(own: Timeouts | None) -> None:
    """Calls that still run end as if cut, also with a time-out of their own, and the connector stays open."""
    async with RawServer((read, write(answer({"transactionId": 12})), read, hang)) as server:
        connector = aiohttp.TCPConnector()
        session = PaySession(server.url, TOKEN, connector=connector)
        await session.sale(SALE)
        call = asyncio.create_task(cast("Any", session.sale(SALE, timeouts=own)))
        try:
            await server.charged(2)
            await session.aclose()
            done, _ = await asyncio.wait([call], timeout=5)
            assert done
            assert repr(call.exception()) == "OutcomeUnknownError('the session was closed')"
            assert not connector.closed
        finally:
            call.cancel()
            await asyncio.wait([call])
            await connector.close()


@in_virtual_time
async def test_nothing_is_sent_after_a_close() -> None:
    """Closing ends the call for a token, which a charge with a time-out of its own took for a reason to call again."""
    tokens, fake = Tokens(TOKEN, go=asyncio.Event()), Scripted(CREATED)
    session = session_over(fake, tokens)
    call = asyncio.create_task(cast("Any", session.sale(SALE, timeouts=TEN)))
    await turns()
    assert tokens.go is not None
    tokens.go.set()
    await session.aclose()
    assert (await ended(call))[0] is NotSentError
    assert (tokens.asked, fake.requests) == (1, [])


# --- What was sent decides

RAISED: list[Callable[[], BaseException]] = [
    lambda: RuntimeError(TOKEN), lambda: OSError(104, TOKEN), lambda: ConnectionRefusedError(111, TOKEN),
    lambda: TimeoutError(TOKEN), lambda: aiohttp.ClientError(TOKEN), lambda: ValueError(TOKEN),
    lambda: AssertionError(TOKEN), lambda: OutcomeUnknownError(TOKEN), lambda: RefusedError(TOKEN),
    lambda: RecursionError(TOKEN), lambda: MemoryError(TOKEN),
    # Something in the transport was cancelled, and not the call: its caller would end without a word.
    lambda: asyncio.CancelledError(TOKEN),
]  # fmt: skip


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("sends", [False, True], ids=["before", "after"])
async def test_the_gate_decides(make: Callable[[], BaseException], sends: bool) -> None:
    """Whatever a transport raises, it is not sent before `before_send` and unknown after it, and says no secret."""
    for permit in (Permit(), None):
        fake = Scripted(make(), sends=sends)
        with pytest.raises(PayError) as caught:
            await session_over(fake).sale(SALE, before_send=permit)
        error = caught.value
        assert type(error) is (OutcomeUnknownError if sends else NotSentError)
        assert len(fake.requests) == (1 if sends or isinstance(make(), asyncio.CancelledError) else TRIES)
        assert permit is None or permit.entered == int(sends)
        assert error.client_transaction_id == "order-1"
        assert error.__cause__ is error.__context__ is None
        assert TOKEN not in repr(error)


async def test_a_transport_that_repeats_by_itself_sends_once() -> None:
    """A sale or a reversal, with no permit that could be spent: nobody knows what came of the first."""
    sent = []

    async def repeating(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        for _ in range(2):
            await before_send()
            sent.append(request.path)
        return CREATED

    session = session_over(repeating, profile=PAYPHONE)
    await error_of(OutcomeUnknownError, session.sale(SALE))
    await error_of(OutcomeUnknownError, session.reverse(transaction_id=12))
    assert sent == ["/api/Sale", "/api/Reverse"]


async def test_what_is_cancelled_within_a_task_that_cleans_up_is_an_error() -> None:
    """The task was cancelled before: that it ends at once, as if it were again, would leave its charge unrecorded."""

    outcome = list[type[BaseException] | None]()

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            outcome.append((await ended(session_over(Scripted(asyncio.CancelledError())).sale(SALE)))[0])

    task = asyncio.create_task(clean_up())
    await turns()
    task.cancel()
    await error_of(asyncio.CancelledError, task)
    assert outcome == [OutcomeUnknownError]


async def test_a_connection_that_may_bring_a_second_answer_is_closed() -> None:
    """That of an answer without a result, before anything else is sent; that of a result is kept."""
    happened = list[str]()

    def said(name: str, response: HttpResponse) -> HttpResponse:
        return attrs.evolve(response, discard=lambda: happened.append(name))

    answers = [said("failing closed", FAILING), said("pending closed", PENDING), said("refused closed", WHO)]

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        happened.append("sent")
        return answers.pop(0)

    session = session_over(transport)
    await session.status(transaction_id=12)
    await error_of(UnauthorizedError, session.status(transaction_id=12))
    assert happened == ["sent", "failing closed", "sent", "sent", "refused closed"]


async def test_a_transport_that_sends_without_a_permit_is_named() -> None:
    """As a fake of one's own does that forgets its second argument."""

    async def hasty(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        return CREATED

    told: list[Exchange] = []
    session = session_over(hasty, on_exchange=told.append)
    await error_of(UsageError, session.sale(SALE, before_send=Permit()), "awaits before_send")
    await session.sale(SALE)
    assert told[1].sent, "an answer came"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("sends", [False, True], ids=["before", "after"])
def test_what_ends_a_program_comes_through(kind: type[BaseException], sends: bool) -> None:
    error = kind("mine")
    fake = Scripted(error, sends=sends)
    call = session_over(fake).sale(SALE)

    async def main() -> object:
        # Looked at within the loop, which would let the first two through its tasks.
        try:
            return await call
        except BaseException as raised:
            return raised

    assert asyncio.run(main()) is error
    assert len(fake.requests) == 1


async def test_repeats_what_was_not_sent(delays: list[float]) -> None:
    """At most twice, after growing jittered delays; but where a permit was spent, seen dead is not repeated."""
    fake, permit = Scripted(NotSentError(), OSError(111, "refused"), CREATED), Permit()

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        fake.sends = len(fake.requests) == 2
        return await fake(request, before_send)

    result = await session_over(transport).sale(SALE, before_send=permit)
    assert result.transaction_id == 12
    assert permit.entered == 1
    assert len({request.body for request in fake.requests}) == 1
    assert all(0.5 <= delay / base <= 1.5 for delay, base in zip(delays, RETRY_DELAYS, strict=True))
    for spent, tries in ((permit, 1), (None, TRIES)):
        fake = Scripted(NotSentError("seen dead"))
        with pytest.raises(NotSentError, match="seen dead"):
            await session_over(fake).sale(SALE, before_send=spent)
        assert len(fake.requests) == tries
    assert permit.entered == 2


# --- Time-outs


@in_virtual_time
async def test_what_was_not_sent_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delays are real, the total time-out covers them too, and what was not sent stays not sent."""
    monkeypatch.undo()  # the fixture that repeats without waiting

    fake = Scripted(OSError(111, "refused"), sends=False)
    error, when = await ended(session_over(fake).sale(SALE))
    assert (error, len(fake.requests)) == (NotSentError, TRIES)
    assert sum(RETRY_DELAYS) / 2 <= when <= sum(RETRY_DELAYS) * 1.5
    error, later = await ended(session_over(fake, timeouts=Timeouts(total=0.01)).sale(SALE))
    assert (error, round(later - when, 6)) == (NotSentError, 0.01)


# --- The token


async def test_token_callable_is_asked_once() -> None:
    """However many calls wait for the token; a caller that is cancelled meanwhile removes only itself."""
    go = asyncio.Event()
    tokens, fake = Tokens("first", go=go), Scripted(CREATED)
    session = session_over(fake, tokens)
    gone, *calls = [asyncio.create_task(cast("Any", session.sale(SALE))) for _ in range(5)]
    await turns()
    assert fake.requests == []
    gone.cancel()
    go.set()
    await asyncio.gather(*calls)
    assert gone.cancelled()
    await session.sale(SALE)
    assert tokens.asked == 1, "nor is it called again while the token is good"
    assert fake.tokens == ["Bearer first"] * 5


async def test_token_callable_whose_task_others_cancel_is_asked_again() -> None:
    """A process cancels all tasks but two as the callable is called: nothing is sent, and the next call asks again."""
    tokens, fake = Tokens("first"), Scripted(CREATED)
    session, before = session_over(fake, tokens), asyncio.all_tasks()
    call = asyncio.create_task(cast("Any", session.sale(SALE)))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before - {call}:
        task.cancel()
    await error_of(NotSentError, call)
    assert (fake.requests, tokens.asked) == ([], 0)
    await session.sale(SALE)
    assert fake.tokens == ["Bearer first"]


async def test_a_token_callable_that_others_cancel_gives_nothing_in_time() -> None:
    """And not a `CancelledError`, which would end its caller's task without a word."""
    session, before = (
        session_over(Scripted(CREATED), Tokens("first", go=asyncio.Event())),
        asyncio.all_tasks(),
    )
    call = asyncio.create_task(session.ensure_token())
    await turns()
    for task in asyncio.all_tasks() - before - {call}:
        task.cancel()
    await error_of(NotSentError, call, "no token was given in time")


@pytest.mark.parametrize("query", [True, False], ids=["status", "confirm"])
@pytest.mark.parametrize("who", [WHO, HttpResponse(401)], ids=["", "without a body"])
async def test_status_after_a_401(query: bool, who: HttpResponse) -> None:
    """A query or a confirmation is repeated once with a fresh token; a second 401 is the answer."""
    fake = Scripted(who, PENDING if query else CONFIRMED, who)
    session = session_over(
        fake, Tokens("old", "new", "newer", "never"), profile=QUERIES if query else PAYPHONE
    )
    call = partial(session.status, transaction_id=12) if query else partial(session.confirm, 12, "form-1")
    report = await call()
    assert report is not None
    assert report.state == "Pendiente"
    assert fake.tokens == ["Bearer old", "Bearer new"]
    await error_of(UnauthorizedError, call())
    assert fake.tokens[2:] == ["Bearer new", "Bearer newer"]


async def test_a_query_with_a_fresh_token_is_repeated_after_a_server_error() -> None:
    """As one with the first token is."""
    fake = Scripted(WHO, FAILING, PENDING)
    report = await session_over(fake, Tokens("old", "new")).status(transaction_id=12)
    assert report is not None
    assert fake.tokens == ["Bearer old", "Bearer new", "Bearer new"]


def test_a_401_that_comes_at_the_end_of_the_time_is_the_answer() -> None:
    """As where the loop was busy meanwhile: nothing is left for a second query."""
    at = [0.0]

    async def late(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        at[0] = 10.0
        return WHO

    async def main() -> None:
        session = session_over(late, Tokens("old", "new"), timeouts=TEN)
        await error_of(UnauthorizedError, session.status(transaction_id=12))

    loop = partial(VirtualLoop, lambda: at[0])  # type: ignore[abstract]  # no I/O
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@in_virtual_time
async def test_a_query_after_a_401_has_what_is_left_of_the_time() -> None:
    """The total time-out is for the whole call."""

    async def slow(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        await asyncio.sleep(7)
        return WHO

    session = session_over(slow, Tokens("old", "new"), timeouts=TEN)
    assert await ended(session.status(transaction_id=12)) == (OutcomeUnknownError, 10)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_token_that_no_other_replaces(status: int) -> None:
    """Nothing is repeated with a fixed token, nor where the token is good and may not do this; it goes on as before."""
    fake = Scripted(HttpResponse(status, {}, b'{"message": "no"}'))
    session = session_over(fake, TOKEN if status == 401 else Tokens("old", "new"))
    for calls in (1, 2):
        await error_of(UnauthorizedError, session.status(transaction_id=12))
        assert fake.tokens == fake.tokens[:1] * calls


#: All that is never sent again by itself, but for what was not sent.
ONCE: dict[str, Callable[..., Awaitable[object]]] = {
    "sale": lambda session, **options: session.sale(SALE, **options),
    "send_sale": lambda session: session.send_sale(session.encode_sale(SALE)),
    "prepare": lambda session, **options: session.prepare(PREPARE, **options),
    "send_prepare": lambda session: session.send_prepare(session.encode_prepare(PREPARE)),
    "cancel": lambda session: session.cancel(transaction_id=12),
    "reverse": lambda session: session.reverse(transaction_id=12),
}


@pytest.mark.parametrize("call", ONCE.values(), ids=list(ONCE))
async def test_nothing_but_questions_is_repeated_after_a_401(call: Callable[..., Awaitable[object]]) -> None:
    """A fresh token repeats no request that does something; the halves of a call send what the whole does."""
    tokens, fake = Tokens("old", "new"), Scripted(WHO)
    session = session_over(fake, tokens, profile=PAYPHONE)
    await error_of(UnauthorizedError, call(session))
    assert len(fake.requests) == 1
    (request,) = fake.requests
    halves = {"/api/Sale": session.encode_sale(SALE), "/api/button/Prepare": session.encode_prepare(PREPARE)}
    if request.path in halves:
        assert (request.method, request.body) == ("POST", halves[request.path].body)
        assert orjson.loads(request.body)["clientTransactionId"] in ("order-1", "form-1")


async def test_a_late_401_keeps_a_fresh_token() -> None:
    """A 401 to a request with an older token does not throw away the newer one."""
    go = asyncio.Event()
    tokens, seen = Tokens("old", "new", "never"), list[str]()

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        seen.append((request.headers or {})["Authorization"])
        if len(seen) == 1:
            await go.wait()
            return WHO
        return WHO if seen[-1] == "Bearer old" else CREATED

    session = session_over(transport, tokens)
    late = asyncio.create_task(cast("Any", session.sale(SALE)))
    await turns()
    await error_of(UnauthorizedError, session.sale(SALE))
    await session.sale(SALE)
    go.set()
    await error_of(UnauthorizedError, late)
    await session.sale(SALE)
    assert tokens.asked == 2


async def test_raising_token_callable() -> None:
    """What the token callable raises reaches all who wait, nothing is sent, and the next call asks again."""
    go = asyncio.Event()
    tokens, fake = Tokens(LookupError("no token"), TOKEN, go=go), Scripted(CREATED)
    session = session_over(fake, tokens)
    calls = [asyncio.create_task(cast("Any", session.sale(SALE))) for _ in range(2)]
    await turns()
    go.set()
    for call in calls:
        with pytest.raises(LookupError, match="no token"):
            await call
    assert fake.requests == []
    assert (await session.sale(SALE)).transaction_id == 12
    assert tokens.asked == 2


async def test_token_callable_that_is_not_async() -> None:
    """The setting is named, and the token that came is not repeated."""
    fake = Scripted(CREATED)
    with pytest.raises(ConfigurationError, match=r"^token must be a text or an async callable; ") as caught:
        await session_over(fake, lambda: TOKEN).sale(SALE)
    assert TOKEN not in repr(caught.value)
    assert fake.requests == []


@in_virtual_time
async def test_token_callable_that_cannot_be_cancelled() -> None:
    """It hangs for ever, and the calls after it call for a token of their own."""
    never, asked = asyncio.Event(), 0

    async def token() -> str:
        nonlocal asked
        asked += 1
        while asked == 1:
            with suppress(asyncio.CancelledError):
                await never.wait()
        return TOKEN

    fake = Scripted(CREATED)
    async with session_over(fake, token, timeouts=TEN) as session:
        assert (await ended(session.sale(SALE)))[0] is NotSentError
        await asyncio.sleep(1)
        assert (await session.sale(SALE)).transaction_id == 12
        assert len(fake.requests) == 1
        asked = 2
        never.set()
        await turns()


@in_virtual_time
async def test_hanging_token_callable() -> None:
    """It is not sent, be the call's time longer or not; the next call asks again, and closing ends the asking."""
    tokens, fake = Tokens(TOKEN, go=asyncio.Event()), Scripted(CREATED)
    async with session_over(fake, tokens, timeouts=TEN) as session:
        for own, seconds in ((None, 10), (Timeouts(total=60), TRIES * 10), (None, 10)):
            began = now()
            error, when = await ended(session.sale(SALE, timeouts=own))
            assert (error, when - began) == (NotSentError, seconds)
            await asyncio.sleep(1)
        assert await ended(session.sale(SALE, timeouts=Timeouts(total=0.5))) == (NotSentError, now())
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "closing leaves no task behind"
    assert fake.requests == []
    assert tokens.asked == 3 + TRIES


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_query_is_repeated_after_any_server_error(delays: list[float], status: int) -> None:
    """500 as well as a proxy's: a query changes nothing. Its errors say of which id, as those of all calls do."""
    fake = Scripted(HttpResponse(status), PENDING)
    report = await session_over(fake).status(transaction_id=12)
    assert report is not None
    assert (report.state, len(fake.requests), len(delays)) == ("Pendiente", 2, 1)
    for said in (HttpResponse(200), HttpResponse(429), WHO, HttpResponse(status)):
        fake = Scripted(said)
        error = await error_of(PayError, session_over(fake).status(client_transaction_id="order-1"))
        assert error.client_transaction_id == "order-1"
        assert len(fake.requests) == (TRIES if said.status == status else 1), (
            "what is no server error is an answer"
        )


# --- `on_exchange`


#: What a service or a network does with a Sale, and what the hook is told of it.
EXCHANGES: dict[str, tuple[HttpResponse | BaseException, dict[str, object]]] = {
    "created": (CREATED, {"http_status": 200, "sent": True, "error": None, "transaction_id": 12}),
    "unknown": (FAILING, {"http_status": 503, "sent": True, "error": "OutcomeUnknownError"}),
    "refused": (WHO, {"http_status": 401, "sent": True, "error": "UnauthorizedError"}),
    "cut": (OSError(104, ""), {"http_status": None, "sent": True, "error": "OutcomeUnknownError"}),
    "not sent": (OSError(111, ""), {"http_status": None, "sent": False, "error": "NotSentError"}),
    "seen dead": (NotSentError(""), {"http_status": None, "sent": False, "error": "NotSentError"}),
}


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("raising", [None, LookupError, asyncio.CancelledError])
async def test_on_exchange(
    name: str, raising: type[BaseException] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The hook is told once of each call; that it raises changes nothing and is logged without its words."""
    said, expected = EXCHANGES[name]
    told: list[Exchange] = []

    def hook(exchange: Exchange) -> None:
        told.append(exchange)
        if raising is not None:
            raise raising(TOKEN)

    outcomes: list[object] = []
    for option in (hook, None):
        fake = Scripted(said, sends=name != "not sent")
        try:
            outcomes.append(await session_over(fake, on_exchange=option).sale(SALE))
        except PayError as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    (exchange,) = told
    assert {name: getattr(exchange, name) for name in expected} == expected
    assert (exchange.operation, exchange.client_transaction_id) == ("sale", "order-1")
    assert 0 <= exchange.seconds < 5
    assert TOKEN not in repr(exchange) + caplog.text
    assert [name for name in ("LookupError", "CancelledError") if name in caplog.text] == (
        [] if raising is None else [raising.__name__]
    )


async def test_on_exchange_of_a_transaction() -> None:
    """Its id is told though the answer has none: of a reversal by it nothing else said which payment it was."""
    told: list[Exchange] = []
    session = session_over(Scripted(FAILING), profile=PAYPHONE, on_exchange=told.append)
    await error_of(OutcomeUnknownError, session.reverse(transaction_id=12))
    await error_of(OutcomeUnknownError, session.reverse(client_transaction_id="order-1"))
    assert [(one.transaction_id, one.client_transaction_id) for one in told] == [
        (12, None),
        (None, "order-1"),
    ]


async def test_on_exchange_of_what_was_sent_and_not_answered() -> None:
    """Of a cancelled call and of a time-out; a query or a confirmation was sent, though its last try alone was not."""
    told: list[Exchange] = []
    session = session_over(endless, on_exchange=told.append)
    call = asyncio.create_task(cast("Any", session.sale(SALE)))
    await turns()
    call.cancel()
    await error_of(asyncio.CancelledError, call)
    await error_of(OutcomeUnknownError, session.sale(SALE, timeouts=Timeouts(total=0.01)))

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if fake.requests:
            fake.sends = False
        return await fake(request, before_send)

    fake = Scripted(FAILING, OSError(111, "refused"))
    session = session_over(transport, profile=PAYPHONE, on_exchange=told.append)
    await error_of(OutcomeUnknownError, session.status(transaction_id=12))
    fake = Scripted(FAILING, OSError(111, "refused"))
    await error_of(OutcomeUnknownError, session.confirm(12, "form-1"))
    assert [(one.sent, one.error, one.http_status) for one in told] == [
        (True, "CancelledError", None), *[(True, "OutcomeUnknownError", None)] * 3,
    ]  # fmt: skip


# --- The total time-out


@in_virtual_time
async def test_each_call_ends_at_its_own_time() -> None:
    """Calls of one length, a shorter and a longer one, begun one after another; the error says which time it was."""
    session, calls = session_over(endless, timeouts=TEN), []
    for own in (None, None, Timeouts(total=3), Timeouts(total=60), Timeouts(total=10), None):
        calls.append(asyncio.create_task(ended(session.sale(SALE, timeouts=own))))
        await asyncio.sleep(1)
    ends = [await call for call in calls]
    assert [when for _, when in ends] == [10, 11, 5, 63, 14, 15]
    assert {error for error, _ in ends} == {OutcomeUnknownError}
    for name in ("sale", "prepare"):
        with pytest.raises(OutcomeUnknownError, match=r"no answer within 0\.01 s"):
            await ONCE[name](session, timeouts=Timeouts(total=0.01))


@in_virtual_time
async def test_a_call_that_ended_is_not_cancelled_later() -> None:
    """Its task lives on beyond its time, and a thousand calls leave nothing behind."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    session = session_over(Scripted(CREATED), timeouts=TEN)
    for own in [None] * 500 + [Timeouts(total=20)] * 500:
        await session.sale(SALE, timeouts=own)
    await asyncio.sleep(30)
    assert loop.next_timer() is None, "nor is there a timer without a call"
    assert loop.tasks == [asyncio.current_task()]
    await session.sale(SALE, timeouts=Timeouts(total=20))
    await session.sale(SALE)
    await session.aclose()
    assert loop.next_timer() is None


@pytest.mark.parametrize("at", [5.0, 10.0], ids=["alone", "in the very turn of the time-out"])
@in_virtual_time
async def test_cancelled_by_somebody_else(at: float) -> None:
    """A cancellation from outside is not the time-out's, alone or together with it."""
    loop = asyncio.get_running_loop()
    call = asyncio.create_task(cast("Any", session_over(endless, timeouts=TEN).sale(SALE)))
    loop.call_at(at, lambda: call.cancel())  # made before the call's own timer, and so rung before it
    await asyncio.sleep(0)
    await asyncio.wait([call])
    assert (call.cancelled(), now()) == (True, at)


@in_virtual_time
async def test_a_time_out_in_a_task_that_is_being_cancelled() -> None:
    """An earlier cancellation that the task outlived is not mistaken for a new one; the time-out leaves none behind."""

    async def charge() -> tuple[type[BaseException] | None, float]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await ended(session_over(endless, timeouts=TEN).sale(SALE))
        raise AssertionError

    async def ledger() -> None:
        """Turn the time-out's cancellation into an error of its own."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LookupError from None

    call = asyncio.create_task(charge())
    await asyncio.sleep(1)
    call.cancel()
    assert await call == (OutcomeUnknownError, 11)
    assert call.cancelling() == 1
    session, task = session_over(Scripted(CREATED), timeouts=TEN), asyncio.current_task()
    assert task is not None
    assert await ended(session.sale(SALE, before_send=ledger)) == (LookupError, 21)
    assert task.cancelling() == 0


@in_virtual_time
async def test_a_before_send_that_swallows_the_time_out_sends_nothing() -> None:
    """It would be sent late, and waited for without an end."""
    fake = Scripted(CREATED)

    async def swallowing() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(5)

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        response = await fake(request, before_send)
        await asyncio.sleep(3600)
        return response

    call = session_over(transport, timeouts=TEN).sale(SALE, before_send=swallowing)
    assert await ended(call) == (NotSentError, 15)


@in_virtual_time
@pytest.mark.parametrize("waits_in_permit", [False, True])
async def test_a_transport_that_goes_on_after_the_time_out_sends_nothing(waits_in_permit: bool) -> None:
    """As one behind a shield, or in a thread: what was called not sent is not sent later."""
    fake, later = Scripted(CREATED), set[asyncio.Task[HttpResponse]]()

    async def permit() -> None:
        await asyncio.sleep(15 * waits_in_permit)

    async def send(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        await asyncio.sleep(0 if waits_in_permit else 15)
        return await fake(request, before_send)

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        later.add(asyncio.create_task(send(request, before_send)))
        return await asyncio.shield(*later)

    call = session_over(transport, timeouts=TEN).sale(SALE, before_send=permit)
    assert await ended(call) == (NotSentError, 10)
    assert await ended(later.pop()) == (NotSentError if waits_in_permit else UsageError, 15)
