"""The session: settings, tokens, time-outs, repeats and the hook, over transports that are functions."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import aiohttp
import attrs
import orjson
import pytest

import virtual_loop
from fake_service import PROFILE as QUERIES
from fake_service import Permit, Scripted
from payclient.clock import Timeouts
from payclient.errors import (
    ConfigurationError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    RefusedError,
    UnauthorizedError,
    UsageError,
)
from payclient.models import PrepareRequest, SaleRequest
from payclient.profile import DOCUMENT, PAYPHONE, ServiceProfile
from payclient.session import RETRY_DELAYS, Exchange, PaySession
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport
from raw_server import RawServer, answer, hang, read, turns, write

TOKEN = "canary-token-5QdX"
BASE = "https://pay.example"
#: For what only a time-out ends.
SHORT = Timeouts(connect=0.2, total=0.2)

TRIES = 1 + len(RETRY_DELAYS)

SALE = SaleRequest(
    phone_number="0987654321", country_code="593", currency="USD", client_transaction_id="order-1",
    amount_without_tax=100,
)  # fmt: skip

PREPARE = PrepareRequest(
    currency="USD", client_transaction_id="form-1", store_id="S1", response_url="https://shop.example/back",
    amount_without_tax=100,
)  # fmt: skip

CREATED = HttpResponse(200, {}, b'{"transactionId": 12}')
PENDING = HttpResponse(200, {}, b'{"transactionId": 12, "state": "Pendiente"}')
FAILING = HttpResponse(503)
WHO = HttpResponse(401, {}, b'{"message": "who?"}')

Said = HttpResponse | BaseException


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


pytestmark = pytest.mark.usefixtures("delays")


def session_over(transport: Transport | None, token: Any = TOKEN, **options: Any) -> PaySession:
    options.setdefault("profile", QUERIES)
    return PaySession(BASE, token, transport=transport, **options)


# --- Settings


@pytest.mark.parametrize(
    "base_url",
    [
        "", None, b"https://pay.example", "pay.example", "https://", "https:///api", "http://pay.example",
        "http://192.168.0.1", "http://localhost.evil.example", "http://[::2]", "ftp://pay.example",
        "file:///etc/passwd", "https://user:secret@pay.example", "https://secret@pay.example",
        "https://@pay.example", "https://pay.example?secret=1", "https://pay.example?",
        "https://pay.example/#secret", "https://pay.example#", "https://pay.example/\r\nX: secret",
        "https://pay.example/\x00", "https://pay.example/ ", " https://pay.example",
        "https://pay.example\\secret", "https://pagó.example", "https://pay.example:port",
        "https://pay.example:70000", "https://[::1",
    ],
)  # fmt: skip
def test_base_url_refused(base_url: Any) -> None:
    """A base address that is not plain https is refused by name, and not repeated."""
    with pytest.raises(ConfigurationError, match=r"^base_url must ") as caught:
        PaySession(base_url, TOKEN)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    [
        "https://pay.example", "https://pay.example:8443/v1/", "HTTPS://pay.example", "http://localhost:80",
        "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8080",
    ],
)  # fmt: skip
def test_base_url_accepted(base_url: str) -> None:
    """https is accepted, http for loopback only; a final slash is left out."""
    assert PaySession(base_url, TOKEN).base_url == base_url.rstrip("/")


BAD_TOKENS = [
    "", None, 7, b"secret", "Bearer secret", "bearer secret", "secret\r\nX-Other: 1", "secret\n",
    "secret\x00", "sec ret", " secret", "secret\t", "secretó", "<ACCESS_TOKEN>", "<secret>",
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


@pytest.mark.parametrize("value", [0, -1, 0.0, float("nan"), float("inf"), -float("inf"), True, "10", None])
@pytest.mark.parametrize("name", ["connect", "total"])
def test_timeouts_refused(name: str, value: Any) -> None:
    """A time-out that is no positive, finite number is refused by name."""
    with pytest.raises(ConfigurationError, match=f"^time-out {name} must be "):
        Timeouts(**{name: value})


@pytest.mark.parametrize(
    "proxy", ["", "proxy.example", "socks5://proxy.example", "http://", "http://[::1", "https:///x"]
)
def test_proxy_refused(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^proxy must be a URL"):
        PaySession(BASE, TOKEN, proxy=proxy)


def test_from_env() -> None:
    """The environment gives the base address, the token and the profile; options pass through."""
    environ = {"PAYCLIENT_BASE_URL": "https://pay.example/", "PAYCLIENT_TOKEN": TOKEN}
    session = PaySession.from_env(environ, timeouts=SHORT)
    assert (session.base_url, session.profile, session.timeouts) == (BASE, DOCUMENT, SHORT)
    assert PaySession.from_env({**environ, "PAYCLIENT_PROFILE": "document"}).profile is DOCUMENT
    assert PaySession.from_env({**environ, "PAYCLIENT_PROFILE": "x"}, profile=QUERIES).profile is QUERIES
    named = attrs.evolve(QUERIES, base_url="https://named.example")
    assert PaySession.from_env(environ, profile=named).base_url == BASE
    assert PaySession.from_env({"PAYCLIENT_TOKEN": TOKEN}, profile=named).base_url == "https://named.example"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"PAYCLIENT_BASE_URL": ""}, "^PAYCLIENT_BASE_URL is not set$"),
        ({"PAYCLIENT_TOKEN": ""}, "^PAYCLIENT_TOKEN is not set$"),
        ({"PAYCLIENT_PROFILE": "/no/such/file.toml"}, r"/no/such/file\.toml"),
    ],
)
def test_from_env_without(change: dict[str, str], words: str) -> None:
    """A missing or empty variable is named, and so is a profile that cannot be read."""
    environ = {"PAYCLIENT_BASE_URL": BASE, "PAYCLIENT_TOKEN": TOKEN} | change
    for given in (environ, {name: value for name, value in environ.items() if value}):
        with pytest.raises(ConfigurationError, match=words):
            PaySession.from_env(given)


# --- Where it may be used


async def test_closed() -> None:
    """A closed session says so, and may be closed again; it is never copied or pickled."""
    fake = Scripted(CREATED)
    async with session_over(fake) as session:
        await session.sale(SALE)
    await session.aclose()
    for call in (session.sale(SALE), session.status(transaction_id=12), session.__aenter__()):
        with pytest.raises(UsageError, match="closed"):
            await cast("Any", call)
    assert len(fake.requests) == 1
    assert repr(session) == f"<PaySession {BASE} profile=test>"
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="does not pickle"):
            way(session)


def test_another_event_loop() -> None:
    session = session_over(Scripted(CREATED))
    asyncio.run(cast("Any", session.sale(SALE)))
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(cast("Any", session.sale(SALE)))


FORKED = """
import asyncio, os
from payclient import PaySession, SaleRequest, Timeouts, UsageError
from payclient.wire import HttpResponse
from raw_server import RawServer, answer, read, write

def sale(name):
    return SaleRequest(phone_number="0987654321", country_code="593", currency="USD", client_transaction_id=name, tip=1)

async def transport(request, before_send):
    await before_send()
    return HttpResponse(200, {}, b'{"transactionId": 12}')

def session():
    return PaySession("https://pay.example", "token", transport=transport)

async def child(session):
    try:
        await session.sale(sale("a"))
    except UsageError as error:
        await session.aclose()
        return "a fork is told" if "fork" in str(error) else str(error)

def told(answer):
    print(answer, flush=True)
    os._exit(0)

async def running(session):
    await session.sale(sale("a"))
    if os.fork() == 0:
        told(await child(session))
    os.wait()

async def connected():
    async with RawServer((read, write(answer({"transactionId": 12}))) * 2) as server:
        async with PaySession(server.url, "token", timeouts=Timeouts(total=10)) as session:
            await session.sale(sale("a"))
            if os.fork() == 0:
                await session.aclose()
                told("closed by the child")
            os.wait()
            await session.sale(sale("b"))
        print(len(server.connections), "connection for both")

fresh, used = session(), session()
asyncio.run(used.sale(sale("a")))
for each in fresh, used:
    if os.fork() == 0:
        told(asyncio.run(child(each)))
    os.wait()
asyncio.run(running(session()))
asyncio.run(connected())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked() -> None:
    """A session says so in a child: unused, used, forked within the running loop; a close there leaves the parent's."""
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, timeout=60, capture_output=True, env=os.environ | paths
    )
    said = b"a fork is told\n" * 3 + b"closed by the child\n1 connection for both\n"
    assert (done.stdout, done.stderr) == (said, b"")


async def test_close_ends_calls_over_a_borrowed_connector() -> None:
    """Calls that still run end as if cut, and the connector stays open."""
    async with RawServer((read, write(answer({"transactionId": 12})), read, hang)) as server:
        connector = aiohttp.TCPConnector()
        session = PaySession(server.url, TOKEN, connector=connector)
        await session.sale(SALE)
        call = asyncio.create_task(cast("Any", session.sale(SALE)))
        try:
            await server.charged(2)
            await session.aclose()
            done, _ = await asyncio.wait([call], timeout=60)
            assert done
            assert type(call.exception()) is OutcomeUnknownError
            assert not connector.closed
        finally:
            call.cancel()
            await asyncio.wait([call])
            await connector.close()


# --- What was sent decides

RAISED: list[Callable[[], BaseException]] = [
    lambda: RuntimeError(TOKEN), lambda: OSError(104, TOKEN), lambda: ConnectionRefusedError(111, TOKEN),
    lambda: TimeoutError(TOKEN), lambda: aiohttp.ClientError(TOKEN), lambda: ValueError(TOKEN),
    lambda: AssertionError(TOKEN), lambda: OutcomeUnknownError(TOKEN), lambda: RefusedError(TOKEN),
    lambda: RecursionError(TOKEN), lambda: MemoryError(TOKEN),
]  # fmt: skip


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("sends", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("permitted", [False, True], ids=["plain", "permit"])
async def test_the_gate_decides(make: Callable[[], BaseException], sends: bool, permitted: bool) -> None:
    """Whatever a transport raises, it is not sent before `before_send` and unknown after it, and says no secret."""
    fake, permit = Scripted(make(), sends=sends), Permit()
    with pytest.raises(PayError) as caught:
        await session_over(fake).sale(SALE, before_send=permit if permitted else None)
    error = caught.value
    assert type(error) is (OutcomeUnknownError if sends else NotSentError)
    assert len(fake.requests) == (1 if sends else TRIES)
    assert permit.entered == int(sends and permitted)
    assert error.client_transaction_id == "order-1"
    assert error.__cause__ is error.__context__ is None
    assert TOKEN not in repr(error)


@pytest.mark.parametrize("sends", [False, True], ids=["before", "after"])
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(sends: bool) -> None:
    """Something in the transport was cancelled, and not the call: its caller would end without a word."""
    fake = Scripted(asyncio.CancelledError("mine"), sends=sends)
    with pytest.raises(OutcomeUnknownError if sends else NotSentError) as caught:
        await session_over(fake).sale(SALE)
    assert len(fake.requests) == 1
    assert caught.value.__cause__ is caught.value.__context__ is None


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
    """What was not sent is sent again, at most twice, after growing jittered delays."""
    fake, permit = Scripted(NotSentError(), OSError(111, "refused"), CREATED), Permit()

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        fake.sends = len(fake.requests) == 2
        return await fake(request, before_send)

    result = await session_over(transport).sale(SALE, before_send=permit)
    assert result.transaction_id == 12
    assert permit.entered == 1
    assert len({request.body for request in fake.requests}) == 1
    assert [0.5 <= delay / base <= 1.5 for delay, base in zip(delays, RETRY_DELAYS, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(("permitted", "tries"), [(True, 1), (False, TRIES)])
async def test_a_spent_permit_is_not_used_again(permitted: bool, tries: int) -> None:
    """Seen dead after `before_send` is not sent, and repeated only where no permit was spent."""
    fake, permit = Scripted(NotSentError("seen dead")), Permit()
    with pytest.raises(NotSentError, match="seen dead"):
        await session_over(fake).sale(SALE, before_send=permit if permitted else None)
    assert len(fake.requests) == tries
    assert permit.entered == int(permitted)


@pytest.mark.parametrize(
    ("request_", "profile", "kind", "words"),
    [
        (attrs.evolve(SALE, by_nick_name=True, nick_name="ana"), DOCUMENT, ConfigurationError, "nick_name_flag"),
        (attrs.evolve(PREPARE, language="es"), DOCUMENT, ConfigurationError, "language_field"),
        (SALE, ServiceProfile(max_lengths={"client_transaction_id": 3}), InvalidRequestError, "clientTransactionId"),
    ],
)  # fmt: skip
async def test_what_only_a_profile_knows_is_refused_before_any_bytes(
    request_: Any, profile: ServiceProfile, kind: type[PayError], words: str
) -> None:
    fake = Scripted(CREATED)
    session = session_over(fake, profile=profile)
    with pytest.raises(kind, match=words):
        await (session.sale if isinstance(request_, SaleRequest) else session.prepare)(request_)
    assert fake.requests == []


async def test_the_two_halves() -> None:
    """`encode_sale` and `send_sale` are `sale`."""
    fake = Scripted(CREATED)
    session = session_over(fake)
    whole = await session.sale(SALE)
    halves = await session.send_sale(session.encode_sale(SALE))
    assert whole == halves
    assert fake.requests[0] == fake.requests[1]
    assert (fake.requests[0].method, fake.requests[0].path) == ("POST", "/api/Sale")
    assert orjson.loads(fake.requests[0].body)["clientTransactionId"] == "order-1"


# --- Time-outs


def test_what_was_not_sent_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delays are real, the total time-out covers them too, and what was not sent stays not sent."""
    monkeypatch.undo()  # the fixture that repeats without waiting

    async def main() -> None:
        fake = Scripted(OSError(111, "refused"), sends=False)
        error, when = await ended(session_over(fake).sale(SALE))
        assert (error, len(fake.requests)) == (NotSentError, TRIES)
        assert sum(RETRY_DELAYS) / 2 <= when <= sum(RETRY_DELAYS) * 1.5
        error, later = await ended(session_over(fake, timeouts=Timeouts(total=0.01)).sale(SALE))
        assert (error, round(later - when, 6)) == (NotSentError, 0.01)

    virtually(main)


# --- The token


async def test_token_callable_is_asked_once() -> None:
    """However many calls wait for the token, the callable is asked once, and not again while it is good."""
    go = asyncio.Event()
    tokens, fake = Tokens("first", go=go), Scripted(CREATED)
    session = session_over(fake, tokens)
    calls = [asyncio.create_task(cast("Any", session.sale(SALE))) for _ in range(5)]
    await turns()
    assert fake.requests == []
    go.set()
    await asyncio.gather(*calls)
    await session.sale(SALE)
    assert tokens.asked == 1
    assert fake.tokens == ["Bearer first"] * 6


async def test_a_cancelled_caller_leaves_the_token_to_others() -> None:
    """A caller that is cancelled while the token is asked for removes only itself."""
    go = asyncio.Event()
    tokens, fake = Tokens("first", go=go), Scripted(CREATED)
    session = session_over(fake, tokens)
    first, second = (asyncio.create_task(cast("Any", session.sale(SALE))) for _ in range(2))
    await turns()
    first.cancel()
    go.set()
    assert (await second).transaction_id == 12
    assert first.cancelled()
    assert tokens.asked == 1


NO = HttpResponse(403, {}, b'{"message": "no"}')


async def test_status_after_a_401() -> None:
    """A query is repeated once with a fresh token; a second 401 is the answer."""
    fake = Scripted(WHO, PENDING, WHO)
    session = session_over(fake, Tokens("old", "new", "newer", "never"))
    report = await session.status(transaction_id=12)
    assert report is not None
    assert report.state == "Pendiente"
    assert fake.tokens == ["Bearer old", "Bearer new"]
    with pytest.raises(UnauthorizedError):
        await session.status(transaction_id=12)
    assert fake.tokens[2:] == ["Bearer new", "Bearer newer"]


@pytest.mark.parametrize(("source", "said"), [(TOKEN, WHO), (Tokens("old", "new"), NO)], ids=["fixed", "403"])
async def test_a_token_that_no_other_replaces(source: Any, said: HttpResponse) -> None:
    """Nothing is repeated with a fixed token, nor where the token is good and may not do this; it goes on as before."""
    fake = Scripted(said)
    session = session_over(fake, source)
    for calls in (1, 2):
        with pytest.raises(UnauthorizedError):
            await session.status(transaction_id=12)
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
    """A fresh token repeats what can be repeated, and no request that does something."""
    tokens, fake = Tokens("old", "new"), Scripted(WHO)
    with pytest.raises(UnauthorizedError):
        await call(session_over(fake, tokens, profile=PAYPHONE))
    assert len(fake.requests) == 1


@pytest.mark.parametrize("name", ["sale", "prepare"])
def test_each_call_may_have_a_time_of_its_own(name: str) -> None:
    """Shorter than the session's, and the error says which it was."""

    async def main() -> None:
        session = session_over(endless, timeouts=Timeouts(total=60))
        with pytest.raises(OutcomeUnknownError, match=r"no answer within 0\.01 s"):
            await ONCE[name](session, timeouts=Timeouts(total=0.01))

    virtually(main)


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
    with pytest.raises(UnauthorizedError):
        await session.sale(SALE)
    await session.sale(SALE)
    go.set()
    with pytest.raises(UnauthorizedError):
        await late
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


def test_hanging_token_callable() -> None:
    """A token callable without end is not sent, be the call's time longer or not, and the next call asks again."""

    async def main() -> None:
        tokens, fake = Tokens(TOKEN, go=asyncio.Event()), Scripted(CREATED)
        async with session_over(fake, tokens, timeouts=TEN) as session:
            for own, seconds in ((None, 10), (Timeouts(total=60), TRIES * 10), (None, 10)):
                began = now()
                error, when = await ended(session.sale(SALE, timeouts=own))
                assert (error, when - began) == (NotSentError, seconds)
                await asyncio.sleep(1)
        assert fake.requests == []
        assert tokens.asked == 2 + TRIES

    virtually(main)


async def test_close_ends_the_asking_for_a_token() -> None:
    """Closing leaves no task behind."""
    session = session_over(Scripted(CREATED), Tokens(TOKEN, go=asyncio.Event()))
    before = asyncio.all_tasks()
    with pytest.raises(NotSentError):
        await session.sale(SALE, timeouts=Timeouts(total=0.01))
    await session.aclose()
    await turns()
    left = asyncio.all_tasks() - before
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert left == set()


# --- Status


@pytest.mark.parametrize("said", [HttpResponse(200), HttpResponse(429), WHO])
async def test_an_error_of_a_status_query_says_of_which_id(said: HttpResponse) -> None:
    """As those of every other call do."""
    with pytest.raises(PayError) as caught:
        await session_over(Scripted(said)).status(client_transaction_id="order-1")
    assert caught.value.client_transaction_id == "order-1"


async def test_quoted_ids_reach_the_wire_as_they_are() -> None:
    """A quoted id is neither decoded nor quoted twice on its way."""
    async with RawServer((read, write(answer({"state": "Pendiente"})))) as server:
        async with PaySession(server.url, TOKEN, profile=QUERIES) as session:
            await session.status(client_transaction_id="a/b ../%2e?ñ")
        assert server.data.startswith(b"GET /api/Sale/client/a%2Fb%20..%2F%252e%3F%C3%B1 HTTP/1.1\r\n")


@pytest.mark.parametrize("arguments", [{}, {"transaction_id": 12}, {"client_transaction_id": "a"}])
async def test_status_without_a_profile(arguments: dict[str, Any]) -> None:
    """A query that the profile does not know is refused, naming the setting."""
    with pytest.raises(ConfigurationError, match=r"status\.by_"):
        await session_over(Scripted(PENDING), profile=DOCUMENT).status(**arguments)


# --- `on_exchange`


@attrs.define
class Case:
    """One call and what the hook is told of it."""

    said: Said
    told: dict[str, object]
    sends: bool = True


CASES = {
    "created": Case(CREATED, {"http_status": 200, "sent": True, "error": None, "transaction_id": 12}),
    "unknown": Case(FAILING, {"http_status": 503, "sent": True, "error": "OutcomeUnknownError"}),
    "refused": Case(WHO, {"http_status": 401, "sent": True, "error": "UnauthorizedError"}),
    "cut": Case(OSError(104, ""), {"http_status": None, "sent": True, "error": "OutcomeUnknownError"}),
    "not sent": Case(
        OSError(111, ""), {"http_status": None, "sent": False, "error": "NotSentError"}, sends=False
    ),
    "seen dead": Case(NotSentError(""), {"http_status": None, "sent": False, "error": "NotSentError"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("raising", [False, True], ids=["told", "raising"])
async def test_on_exchange(case: Case, raising: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The hook is told once of each call; that it raises changes nothing and is logged without its words."""
    told: list[Exchange] = []

    def hook(exchange: Exchange) -> None:
        told.append(exchange)
        if raising:
            raise LookupError(TOKEN)

    outcomes: list[object] = []
    for option in (hook, None):
        try:
            outcomes.append(
                await session_over(Scripted(case.said, sends=case.sends), on_exchange=option).sale(SALE)
            )
        except PayError as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    (exchange,) = told
    assert {name: getattr(exchange, name) for name in case.told} == case.told
    assert (exchange.operation, exchange.client_transaction_id) == ("sale", "order-1")
    assert 0 <= exchange.seconds < 5
    assert TOKEN not in repr(exchange) + caplog.text
    assert ("LookupError" in caplog.text) == raising


async def test_on_exchange_of_a_cancelled_call_and_of_a_time_out() -> None:
    """The hook is told that they were sent, and of the error that the caller gets."""
    told: list[Exchange] = []
    session = session_over(endless, on_exchange=told.append)
    call = asyncio.create_task(cast("Any", session.sale(SALE)))
    await turns()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(OutcomeUnknownError):
        await session.sale(SALE, timeouts=Timeouts(total=0.01))
    assert [(one.sent, one.error) for one in told] == [
        (True, "CancelledError"),
        (True, "OutcomeUnknownError"),
    ]


async def test_on_exchange_of_a_query_sent_before_its_last_try() -> None:
    """A query of which an earlier try was sent is not said to be unsent."""
    told: list[Exchange] = []

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        if fake.requests:
            fake.sends = False
        return await fake(request, before_send)

    fake = Scripted(FAILING, OSError(111, "refused"))
    with pytest.raises(NotSentError):
        await session_over(transport, on_exchange=told.append).status(transaction_id=12)
    assert [(one.sent, one.http_status) for one in told] == [(True, None)]


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_query_is_repeated_after_any_server_error(delays: list[float], status: int) -> None:
    """500 as well as a proxy's: a query changes nothing."""
    fake = Scripted(HttpResponse(status), PENDING)
    report = await session_over(fake).status(transaction_id=12)
    assert report is not None
    assert (report.state, len(fake.requests), len(delays)) == ("Pendiente", 2, 1)


# --- The total time-out, in virtual time


def virtually(main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run it on a loop whose seconds cost nothing."""
    virtual_loop.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def ended(call: Awaitable[object]) -> tuple[type[BaseException] | None, float]:
    """How a call ended, and when."""
    try:
        await call
    except BaseException as error:
        return type(error), now()
    return None, now()


TEN = Timeouts(total=10)


def test_each_call_ends_at_its_own_time() -> None:
    """Calls of one length, a shorter and a longer one, begun one after another."""

    async def main() -> None:
        session, calls = session_over(endless, timeouts=TEN), []
        for own in (None, None, Timeouts(total=3), Timeouts(total=60), Timeouts(total=10), None):
            calls.append(asyncio.create_task(ended(session.sale(SALE, timeouts=own))))
            await asyncio.sleep(1)
        ends = [await call for call in calls]
        assert [when for _, when in ends] == [10, 11, 5, 63, 14, 15]
        assert {error for error, _ in ends} == {OutcomeUnknownError}

    virtually(main)


def test_a_call_that_ended_is_not_cancelled_later() -> None:
    """Its task lives on beyond its time, and a thousand calls leave nothing behind."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)
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

    virtually(main)


@pytest.mark.parametrize("at", [5.0, 10.0], ids=["alone", "in the very turn of the time-out"])
def test_cancelled_by_somebody_else(at: float) -> None:
    """A cancellation from outside is not the time-out's, alone or together with it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call = asyncio.create_task(cast("Any", session_over(endless, timeouts=TEN).sale(SALE)))
        loop.call_at(at, lambda: call.cancel())  # made before the call's own timer, and so rung before it
        await asyncio.sleep(0)
        await asyncio.wait([call])
        assert (call.cancelled(), now()) == (True, at)

    virtually(main)


def test_a_time_out_in_a_task_that_is_being_cancelled() -> None:
    """An earlier cancellation that the task outlived is not mistaken for a new one."""

    async def charge() -> tuple[type[BaseException] | None, float]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await ended(session_over(endless, timeouts=TEN).sale(SALE))
        raise AssertionError

    async def main() -> None:
        call = asyncio.create_task(charge())
        await asyncio.sleep(1)
        call.cancel()
        assert await call == (OutcomeUnknownError, 11)
        assert call.cancelling() == 1

    virtually(main)


def test_a_time_out_leaves_no_cancellation_behind() -> None:
    """A `before_send` that turns the time-out's cancellation into its own error leaves the task as it was."""

    async def ledger() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LookupError from None

    async def main() -> None:
        session, task = session_over(Scripted(CREATED), timeouts=TEN), asyncio.current_task()
        assert task is not None
        assert await ended(session.sale(SALE, before_send=ledger)) == (LookupError, 10)
        assert task.cancelling() == 0

    virtually(main)
