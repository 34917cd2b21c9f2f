"""No secret anywhere: canaries go through every success and failure, and nothing that is shown or kept has one.

Promised: no token, personal data or form link in logs (asyncio's debug mode and aiohttp's loggers included), warnings,
the `repr` of what payclient hands out, its errors with their chains, pickles and the local variables of every frame in
their tracebacks, the report of `payclient charge`, its output, and the ledger's file.

Not promised: the service's own messages are kept as they came, bounded, since a person is to read them (§7.1): a
service that repeats a phone number in a message has it in the error, the ledger and the report, though never in a log.
Nor the local variables of a frame that is handed secrets as bare texts and fails before it has an object to hide them
(a request that refuses itself, `open_tracker` given a bad setting, `parse_notification`),
those of a raising callable that is the caller's own, of what ends a program (`KeyboardInterrupt`, `SystemExit`), and
of asyncio's own frames in what its debug mode logs.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import gc
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import traceback
import warnings
from asyncio import constants
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import attrs
import pytest

import fake_service
import payclient
from fake_service import FakeService, Scripted
from fake_service import answer as json_answer
from manual_clock import ManualClock
from payclient import sync
from payclient.auth import service_fingerprint
from payclient.cli import main
from payclient.events import Prepared
from payclient.ledger import Ledger, archive_ledger, backup_ledger, open_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import Record
from payclient.models import BillTo, LineItem, Order, PrepareRequest, SaleRequest
from payclient.notifications import parse_return
from payclient.secret import Secret
from payclient.session import Exchange, PaySession
from payclient.simulator import PAYPHONE, Answers, Fault, Simulator, SimulatorThread
from payclient.tracking.tracker import Tracker
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport
from raw_server import (
    ConnectProxy,
    RawServer,
    Step,
    answer,
    client_context,
    fin,
    hang,
    next_turns,
    read,
    reset,
    server_context,
    turns,
    write,
)

#: One of each kind. All are module globals, so that no frame of a test has them among its local variables.
TOKEN = "canary-token-5QdX"
PHONE = "0987654321"
EMAIL = "canary.mail@shop.example"
DOCUMENT_ID = "1716151413"
FIRST_NAME = "Canaria"
LAST_NAME = "Canarez"
ADDRESS = "Canary Street 5"
POSTCODE = "EC-CANARY"
NICK_NAME = "canarito"
IP = "203.0.113.77"
LATITUDE = "-1.831239"
REFERENCE = "Canary Reference"
HOOK = "https://shop.example/canary-hook"
CARD = "https://pay.example/form/canary-card-link"
WALLET = "https://pay.example/form/canary-wallet-link"
PROXY_PASSWORD = "canary-proxy-password"
DATABASE_PASSWORD = "canary-database-password"

CANARIES = (
    TOKEN, PHONE[1:], "canary.mail", DOCUMENT_ID, FIRST_NAME, LAST_NAME, ADDRESS, POSTCODE, NICK_NAME, IP, LATITUDE,
    REFERENCE, "canary-hook", "canary-card-link", "canary-wallet-link", DATABASE_PASSWORD, PROXY_PASSWORD,
    base64.b64encode(f"user:{PROXY_PASSWORD}".encode()).decode(),
)  # fmt: skip

ORDER = Order(
    bill_to=BillTo(
        first_name=FIRST_NAME, last_name=LAST_NAME, address1=ADDRESS, address2=ADDRESS, state=ADDRESS, locality=ADDRESS,
        phone_number=f"+593{PHONE[1:]}", email=EMAIL, postal_code=POSTCODE, customer_id=DOCUMENT_ID, ip_address=IP,
    ),
    line_items=(LineItem(product_name="Producto", unit_price=100),),
)  # fmt: skip
SALE = SaleRequest(
    phone_number=PHONE, country_code="593", currency="USD", client_transaction_id="order-1", store_id="S1",
    amount_without_tax=100, reference=REFERENCE, response_url=HOOK, client_user_id=DOCUMENT_ID, lat=LATITUDE,
    lng=LATITUDE, optional_parameter1=LAST_NAME, optional_parameter2=EMAIL, optional_parameter3=ADDRESS, order=ORDER,
    nick_name=NICK_NAME,
)  # fmt: skip
PREPARE = PrepareRequest(
    currency="USD", client_transaction_id="order-1", store_id="S1", response_url=HOOK, cancellation_url=HOOK,
    amount_without_tax=100, reference=REFERENCE, phone_number=f"+593{PHONE[1:]}", email=EMAIL, document_id=DOCUMENT_ID,
    optional_parameter=ADDRESS, lat=LATITUDE, lng=LATITUDE, order=ORDER,
)  # fmt: skip

PROFILE = attrs.evolve(
    fake_service.PROFILE,
    nick_name_flag="byNickName",
    **{name: getattr(payclient.PAYPHONE, name) for name in ("confirm", "cancel", "reverse", "returned")},
)

#: Long enough never to be reached, and what only a time-out ends: whatever a slow machine does then, nothing shows.
LONG = payclient.Timeouts(connect=5, total=5)
SHORT = payclient.Timeouts(connect=0.2, total=0.1)


# --- What is looked at


def found_in(*texts: object) -> list[str]:
    """The canaries in the texts."""
    whole = "\n".join(text.decode("latin-1") if isinstance(text, bytes) else str(text) for text in texts)
    return [canary for canary in CANARIES if canary in whole]


def shown_by(error: BaseException, *, local: bool = True) -> list[str]:
    """Every text that a log, a debugger or an error tracker would make of an exception and of its chain."""
    texts, chain = list[str](), [error]
    for each in chain:  # which grows, by what is suppressed in what is printed too
        texts += traceback.TracebackException.from_exception(each, capture_locals=local).format()
        texts += [str(each), *map(repr, (each, each.args, vars(each), getattr(each, "__notes__", ())))]
        texts += getattr(each, "user_messages", ())
        linked = (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
        chain += [one for one in linked if one is not None and all(one is not other for other in chain)]
    return texts


def check_hidden(outcome: object) -> None:
    """Nothing that payclient gave or raised shows a canary."""
    if isinstance(outcome, BaseException):
        assert found_in(*shown_by(outcome)) == [], shown_by(outcome)
        if isinstance(outcome, payclient.PayError):
            assert found_in(pickle.dumps(outcome)) == []
            assert repr(pickle.loads(pickle.dumps(outcome))) == repr(outcome)  # noqa: S301 - our own bytes
    assert found_in(repr(outcome), str(outcome), repr([outcome])) == []


class Listener(logging.Handler):
    """Keeps all that a handler could make of every log record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [record.getMessage(), repr(record.args), repr(vars(record))]
        if record.exc_info and record.exc_info[1] is not None:
            # asyncio's own frames hold what it was writing; no formatter shows that unless it is made to.
            self.lines += shown_by(record.exc_info[1], local=record.name.startswith("payclient"))


LOGGERS = (
    "", "payclient", "asyncio", "concurrent.futures", "aiohttp.client", "aiohttp.internal",
    "aiohttp.server",
)  # fmt: skip


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """All logs of a test at DEBUG, looked through at its end."""
    listener, loggers = Listener(), [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        caplog.set_level(logging.DEBUG, logger.name)
        monkeypatch.setattr(logger, "disabled", False)
        logger.addHandler(listener)
    yield listener
    for logger in loggers:
        logger.removeHandler(listener)
    assert found_in(*listener.lines) == [], [line for line in listener.lines if found_in(line)]


pytestmark = pytest.mark.usefixtures("delays")


def debug() -> None:
    """asyncio's debug mode, in which every step of the loop is logged with its arguments and results."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
    # Of each step's stack, which names lines of code alone, the last: ten take as long as all the rest.
    constants.DEBUG_STACK_DEPTH = 1  # type: ignore[misc]  # typeshed's is final


async def outcome_of(call: Awaitable[object]) -> object:
    try:
        return await call
    except (Exception, asyncio.CancelledError) as error:
        return error


# --- The operations

Operation = Callable[[PaySession], Awaitable[object]]


@asynccontextmanager
async def tracking(
    session: PaySession, ledger: Ledger | None = None, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Tracker]:
    async with Tracker(session, ledger or MemoryLedger(), clock=clock or ManualClock(), **options) as tracker:
        yield tracker


def form_of(client_transaction_id: str) -> PrepareRequest:
    return attrs.evolve(PREPARE, client_transaction_id=client_transaction_id)


def tracked(call: Callable[[Tracker], Awaitable[object]]) -> Operation:
    """What a tracker of its own does, with the parts of what it hands out."""

    async def operation(session: PaySession) -> object:
        async with tracking(session) as tracker:
            found = await call(tracker)
            check_hidden(
                [getattr(found, name, None) for name in ("outcome", "links", "card", "wallet", "result")]
            )
            return found

    return operation


async def batch(session: PaySession) -> object:
    clock = ManualClock()
    async with tracking(session, clock=clock) as tracker:
        async with payclient.charge_all(tracker, [SALE], wait=0) as results:
            following = asyncio.ensure_future(anext(results))
            while not following.done():
                await clock.advance(1.0)  # a busy customer is tried again for minutes
            result = await following
        check_hidden(result)
        if result.error is not None:
            raise result.error
        return result.outcome


async def returned(session: PaySession) -> object:
    """A form comes back, with all that a browser could add."""
    ledger = MemoryLedger()
    record = Record(client_transaction_id="form-1", kind="form", amount=100, currency="USD", created_at=1.0)
    await ledger.permit(record)
    await ledger.apply(record, Prepared(at=1.0, expires_at=601.0))
    async with Tracker(session, ledger, clock=ManualClock()) as tracker:
        outcome = await tracker.returned(f"id=12&clientTransactionId=form-1&msg={PHONE}&email={EMAIL}")
    return outcome, [attrs.asdict(change) for change in await ledger.history("form-1")]


OPERATIONS: dict[str, Operation] = {
    "sale": lambda session: session.sale(SALE),
    "prepare": lambda session: session.prepare(PREPARE),
    "status": lambda session: cast("Awaitable[object]", session.status(transaction_id=12)),
    "confirm": lambda session: session.confirm(12, "order-1"),
    "tracker.sale": tracked(lambda tracker: tracker.sale(SALE)),
    "tracker.prepare": tracked(lambda tracker: tracker.prepare(PREPARE)),
    "tracker.live_form": tracked(lambda tracker: tracker.live_form("cart-1", form_of)),
    "charge_all": batch,
}
#: What withdraws and gives back, and a form that comes back: no answer below is a success of theirs.
UNDOING: dict[str, Operation] = {
    "cancel": lambda session: session.cancel(transaction_id=12),
    "reverse": lambda session: session.reverse(transaction_id=12),
    "returned": returned,
}
#: One of each way to the network: once, repeated, and with a tracker.
NETWORK = {name: OPERATIONS[name] for name in ("sale", "status", "tracker.sale")}

#: What the tracker does not raise: the sale may exist, and a handle is given.
HANDLES = ("tracker.sale", "charge_all")


def check_outcome(operation: str, outcome: object, kind: type) -> None:
    """It shows nothing, and is of the class that the case asks for; where it may exist, a handle."""
    check_hidden(outcome)
    if kind is object or (kind is payclient.OutcomeUnknownError and operation in HANDLES):
        assert not isinstance(outcome, BaseException), repr(outcome)
    else:
        assert type(outcome) is kind, repr(outcome)


# --- Whatever the service answers

#: What a service may repeat of a request in an answer, all but its messages.
ECHO: dict[str, object] = {
    "phoneNumber": PHONE, "email": EMAIL, "document": DOCUMENT_ID, "name": f"{FIRST_NAME} {LAST_NAME}",
    "address": ADDRESS, "token": TOKEN, "nickName": NICK_NAME, "reference": REFERENCE, "url": HOOK,
}  # fmt: skip
#: One body that is a success for each of the operations.
GOOD: dict[str, object] = {
    "transactionId": 12, "paymentId": "p-1", "payWithCard": CARD, "payWithWallet": WALLET, "state": "Pendiente", **ECHO,
}  # fmt: skip
PAGE = f"<html><body>{TOKEN} {PHONE} {EMAIL} {CARD}</body></html>".encode()
#: Lines of a head that repeat the request, as proxies do that add headers of their own.
HEADERS = (f"X-Echo: Bearer {TOKEN}", f"X-Phone: {PHONE}", f"Set-Cookie: a={TOKEN}", f"Location: {CARD}")


def error_object(code: object, *entries: object) -> dict[str, object]:
    return {"message": "no", "errorCode": code, "errors": list(entries), **ECHO}


@attrs.frozen
class Answer:
    """One answer, and the class that it is for every operation; `object` is a success."""

    name: str
    body: object
    kind: type
    http_status: int = 200

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


ANSWERS = [
    Answer("success", GOOD, object),
    Answer("22", error_object(22), payclient.NotCreatedError, 400),
    Answer("2061", error_object(22, {"errorCode": 2061, **ECHO}), payclient.CustomerBusyError, 400),
    Answer("800", error_object(800, {"message": "Amount", **ECHO}), payclient.ValidationFailedError, 422),
    Answer("another code", error_object(21), payclient.RefusedError, 409),
    Answer("401", {"message": "who?", **ECHO}, payclient.UnauthorizedError, 401),
    Answer("403", error_object(5), payclient.UnauthorizedError, 403),
    Answer("429", error_object(5), payclient.RateLimitedError, 429),
    Answer("HTML 200", PAGE, payclient.OutcomeUnknownError),
    Answer("HTML 502", PAGE, payclient.OutcomeUnknownError, 502),
    Answer("empty", b"", payclient.OutcomeUnknownError),
    Answer("no id", {"ok": True, **ECHO}, payclient.OutcomeUnknownError),
    Answer("a text", json.dumps(TOKEN).encode(), payclient.OutcomeUnknownError),
    Answer("an array", [list(ECHO.values())], payclient.OutcomeUnknownError),
    Answer("a redirect", PAGE, payclient.OutcomeUnknownError, 307),
    Answer("cut JSON", json.dumps(GOOD).encode()[:-9], payclient.OutcomeUnknownError),
    Answer("an error on 500", error_object(21), payclient.OutcomeUnknownError, 500),
]
#: Not of one class for every operation.
MIXED = [
    Answer("the id as a text", GOOD | {"transactionId": PHONE}, object),
    Answer("both at once", GOOD | {"errorCode": 22, "message": "no"}, object),
    Answer("an id on 400", GOOD, object, 400),
    Answer("an unsafe link", GOOD | {"payWithCard": f"{CARD} {PHONE}"}, object),
    Answer("an unmapped state", GOOD | {"state": PHONE}, object),
]

answers = pytest.mark.parametrize("case", ANSWERS + MIXED, ids=lambda case: case.name)


def function_of(case: Answer) -> Scripted:
    headers = dict(line.split(": ", 1) for line in HEADERS)
    return Scripted(HttpResponse(case.http_status, headers, case.content))


@answers
async def test_answers(case: Answer) -> None:
    """Whatever a service answers to whatever operation, no canary shows, in asyncio's debug mode too."""
    debug()
    for operation, call in (OPERATIONS | UNDOING).items():
        told: list[Exchange] = []
        async with session_over(function_of(case), on_exchange=told.append) as session:
            outcome = await outcome_of(call(session))
        check_hidden([told, session])
        assert told
        unsure = (operation, case.name) == ("tracker.prepare", "another code")
        if case in MIXED or operation in UNDOING or unsure:
            check_hidden(outcome)
        else:
            # A query that "not found" does not answer proves no refusal as busy: the sale may exist (a repeated POST).
            busy = case.name == "2061" and operation in HANDLES
            check_outcome(operation, outcome, payclient.OutcomeUnknownError if busy else case.kind)


# --- Whatever the network does

#: A status query is repeated, and a busy customer is tried again, on the connection that there is.
TRIES = 16


ECHOED = f"Bearer {TOKEN} {PHONE} {EMAIL}".encode()
OK = b"HTTP/1.1 200 OK\r\n"

#: What a server does, and the class that it is for every operation: answers, of which aiohttp holds the head and the
#: body, and broken ones, of which its errors hold the bytes.
SERVERS: dict[str, tuple[tuple[Step, ...], type | None]] = {
    **{
        case.name: ((read, write(answer(case.content, case.http_status, *HEADERS))) * TRIES, case.kind)
        for case in ANSWERS
        if case.name in ("success", "22", "401", "HTML 502", "a redirect")
    },
    **{
        name: (steps, payclient.OutcomeUnknownError)
        for name, steps in {
            "reset": (read, reset),
            "closed": (read, fin),
            "reset in the body": (read, write(answer(GOOD, length=9999)), next_turns, reset),
            "closed in the body": (read, write(answer(GOOD, length=9999)), fin),
            "no status line": (read, write(ECHOED + b"\r\n\r\n"), fin),
            "a bad status line": (read, write(b"HTTP/1.1 " + ECHOED + b"\r\n\r\n"), fin),
            "a bad header": (read, write(OK + ECHOED + b"\r\n\r\n"), fin),
            "a bad length": (read, write(OK + b"Content-Length: " + ECHOED + b"\r\n\r\n"), fin),
            "a bad chunk": (read, write(OK + b"Transfer-Encoding: chunked\r\n\r\n" + ECHOED + b"\r\n"), fin),
            "a long header": (read, write(OK + b"X-A: " + ECHOED * 9000 + b"\r\n\r\n"), fin),
            "too long an answer": (read, write(answer(ECHOED * 40_000))),
        }.items()
    },
    "no answer": ((read, hang), None),  # on a slow machine its time-out may come before the first byte
}


async def check_all(url: str, kind: type | None, timeouts: payclient.Timeouts = LONG, **options: Any) -> None:
    """Each way to the network comes to this class of outcome, if any is meant, and shows nothing."""
    for operation, call in NETWORK.items():
        connector = aiohttp.TCPConnector(ssl=client_context()) if url.startswith("https") else None
        async with PaySession(
            url, TOKEN, profile=PROFILE, timeouts=timeouts, connector=connector, **options
        ) as session:
            outcome = await outcome_of(call(session))
        if connector is not None:
            await connector.close()
        check_hidden(session)
        if kind is None:
            check_hidden(outcome)
        else:
            check_outcome(operation, outcome, kind)


@pytest.mark.parametrize("name", SERVERS)
async def test_any_server(name: str) -> None:
    """Nothing of what the network library holds, logs or raises comes through."""
    debug()
    steps, kind = SERVERS[name]
    async with RawServer(steps) as server:
        await check_all(server.url, kind, SHORT if hang in steps else LONG)
        assert found_in(server.data), "the canaries went out"


# --- Whatever happens before the first byte


class LoudError(Exception):
    """What a network library raises: it holds the request, in its words, its arguments and its attributes."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(
            f"{request.headers and dict(request.headers)} {request.body!r}", dict(request.headers or {})
        )
        self.request = attrs.asdict(request)


@pytest.mark.parametrize("sent", [False, True], ids=["not sent", "unknown"])
async def test_what_a_transport_raises(sent: bool) -> None:
    """However loud a transport's exception is, payclient's own says its class only, and chains nothing."""
    debug()

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        if sent:
            await before_send()
        raise LoudError(request) from OSError(104, TOKEN)

    kind = payclient.OutcomeUnknownError if sent else payclient.NotSentError
    async with PaySession("https://pay.example", TOKEN, profile=PROFILE, transport=transport) as session:
        for operation, call in OPERATIONS.items():
            outcome = await outcome_of(call(session))
            check_outcome(operation, outcome, kind)
            if isinstance(outcome, payclient.PayError):
                assert "LoudError" in str(outcome)
                assert outcome.__context__ is outcome.__cause__ is None


PROXIES: dict[str, bytes | None] = {
    "works": None,
    "502": answer(PAGE, 502, *HEADERS),
    "407": b"HTTP/1.1 407 " + ECHOED + b"\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
    "garbage": ECHOED + b"\r\n\r\n",
    "closed": b"",
}


@pytest.mark.parametrize("refusal", list(PROXIES.values()), ids=list(PROXIES))
async def test_proxies(refusal: bytes | None) -> None:
    """A proxy's password goes to the proxy and nowhere else, whatever the proxy says."""
    debug()
    good = (read, write(answer(GOOD))) * TRIES
    async with RawServer(good, context=server_context()) as server, ConnectProxy(refusal) as proxy:
        address = proxy.url.replace("//", f"//user:{PROXY_PASSWORD}@")
        await check_all(server.url, object if refusal is None else payclient.NotSentError, proxy=address)
        seen = [canary for connection in proxy.connections for canary in found_in(bytes(connection.data))]
        assert set(seen) == {CANARIES[-1]}, "the password, in the head of the CONNECT"


#: A loop that is closed while a request through a proxy is on its way, with every warning and asyncio's debug mode.
CLOSES_ITS_LOOP = """
import asyncio, sys, payclient

async def query():
    connected = loop.create_future()
    server = await asyncio.start_server(lambda *streams: connected.set_result(streams), "127.0.0.1", 0)
    proxy = f"http://user:{sys.argv[1]}@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session = payclient.PaySession("https://127.0.0.1:9", "token", proxy=proxy, profile=payclient.PAYPHONE)
    querying = asyncio.ensure_future(session.status(transaction_id=5))
    reader, writer = await connected
    print(await reader.readuntil(b"\\r\\n\\r\\n"))
    return server, session, querying, writer

loop = asyncio.new_event_loop()
left = loop.run_until_complete(query())
loop.close()
"""


def test_a_loop_that_is_closed_with_a_request_through_a_proxy_in_flight() -> None:
    """aiohttp then warns of the connection, and shows the proxy's address; the proxy itself was told the password."""
    options = ("-X", "dev", "-W", "always")
    done = subprocess.run(
        [sys.executable, *options, "-c", CLOSES_ITS_LOOP, PROXY_PASSWORD],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found_in(done.stdout) == [CANARIES[-1]], "in the head of the request"
    assert "Unclosed connection" in done.stderr
    assert found_in(done.stderr) == []


@pytest.mark.parametrize(
    "raised", [ValueError, payclient.LedgerUnavailableError, payclient.NotSentError, asyncio.CancelledError]
)
async def test_what_before_send_raises(raised: type[BaseException]) -> None:
    """It comes through unchanged, without the frames that it crossed: aiohttp's hold the token."""
    debug()

    async def before_send() -> None:
        raise raised("no")

    async with (
        RawServer((hang,)) as server,
        PaySession(server.url, TOKEN, profile=PROFILE, timeouts=LONG) as session,
    ):
        outcome = await outcome_of(session.sale(SALE, before_send=before_send))
    assert type(outcome) is raised
    check_hidden(outcome)
    names = [frame.name for frame in traceback.extract_tb(outcome.__traceback__)]
    assert "_request" not in names
    if raised is not asyncio.CancelledError:
        assert names[-1] == "before_send", "whoever wrote it finds the line"


async def test_cancelled_and_timed_out() -> None:
    """A caller that is cancelled, or that has a time-out of its own, gets no frame of aiohttp's."""
    debug()
    async with RawServer((read, hang)) as server:
        for operation, call in OPERATIONS.items():
            async with PaySession(server.url, TOKEN, profile=PROFILE, timeouts=LONG) as session:
                charged = server.complete
                task = asyncio.ensure_future(outcome_of(call(session)))
                await server.charged(charged + 1)
                task.cancel()
                await turns(3)
                await session.aclose()
                outcome = await task
            check_hidden(outcome)
            if operation in ("sale", "prepare", "status"):
                assert isinstance(outcome, asyncio.CancelledError)
        async with PaySession(server.url, TOKEN, profile=PROFILE, timeouts=LONG) as session:

            async def hurried() -> object:
                async with asyncio.timeout(0.05):
                    return await session.sale(SALE)

            outcome = await outcome_of(hurried())
        assert isinstance(outcome, TimeoutError)
        check_hidden(outcome)


async def test_a_session_that_is_forgotten(heard: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp's warnings about a session that nobody closed show nothing."""
    debug()
    said: list[str] = []

    def keep(message: Warning | str, *_: object, **__: object) -> None:
        said.append(f"{message!r} {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # Not `record=True`: it would keep the session alive, and so its connector's warning for later.
        monkeypatch.setattr(warnings, "showwarning", keep)
        async with RawServer((read, write(answer(GOOD)))) as server:
            session = PaySession(server.url, TOKEN, profile=PROFILE)
            await session.sale(SALE)
            del session
            gc.collect()
        await turns()
        gc.collect()
    assert any("Unclosed client session" in line for line in heard.lines)
    assert any("Unclosed connector" in text for text in said)
    assert found_in(*said) == []


# --- Used wrongly


def session_over(transport: Transport | None = None, token: Any = TOKEN, **options: Any) -> PaySession:
    options.setdefault("profile", PROFILE)
    return PaySession("https://pay.example", token, transport=transport or function_of(ANSWERS[0]), **options)


#: What is refused before there is an object to hide it in: the frames show it, and the error must not.
REFUSED: dict[str, Callable[[], object]] = {
    "base_url": lambda: PaySession(f"https://user:{PROXY_PASSWORD}@pay.example", TOKEN),
    "proxy": lambda: PaySession("https://pay.example", TOKEN, proxy=f"socks5://u:{PROXY_PASSWORD}@p"),
    "a notification": lambda: payclient.parse_notification(query=f"id={TOKEN}", body=ECHOED),
    "ids in JSON": lambda: payclient.parse_notification(
        body=json.dumps({"id": PHONE, "clientTransactionId": EMAIL}).encode()
    ),
    "a return": lambda: parse_return(
        f"id={PHONE}&clientTransactionId={EMAIL}", cast("Any", PROFILE.returned)
    ),
    "a message": lambda: parse_return(f"msg={TOKEN}", cast("Any", PROFILE.returned)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_not_repeated(call: Callable[[], object]) -> None:
    """An address with a password in it, and what arrives from anybody."""
    with pytest.raises((payclient.ConfigurationError, payclient.InvalidNotificationError)) as caught:
        call()
    error = caught.value
    assert found_in(repr(error), vars(error), repr(error.__context__), pickle.dumps(error)) == []


#: A good proxy, and the settings of an environment.
PROXY = f"http://user:{PROXY_PASSWORD}@proxy.example"
ENVIRON = {"PAYCLIENT_BASE_URL": "https://pay.example", "PAYCLIENT_TOKEN": TOKEN}


def test_a_bad_setting_beside_a_proxy() -> None:
    """No frame on the way shows the proxy's password or the token."""
    bad: Any = 5
    for make in (
        partial(PaySession, "https://pay.example", Secret(TOKEN)),
        partial(PaySession.from_env, ENVIRON),
    ):
        with pytest.raises(payclient.ConfigurationError) as caught:
            make(proxy=PROXY, timeouts=bad)
        del make
        check_hidden(caught.value)


#: The address of a ledger that no server has, and a setting that cannot be.
LEDGER, BAD = f"postgresql://user:{DATABASE_PASSWORD}@127.0.0.1:1/shop", cast("Any", 5)
WITHOUT_ADDRESS = ENVIRON | {"PAYCLIENT_BASE_URL": "", "PAYCLIENT_LEDGER": LEDGER}


async def enter(opening: AbstractAsyncContextManager[object]) -> None:
    async with opening:
        pass


#: What is given the address with its password, beside the token and a proxy with one, and fails.
NOT_OPENED: dict[str, Callable[[], object]] = {
    "archive_ledger": lambda: asyncio.run(archive_ledger(LEDGER, 5.0, "archive")),
    "archive_ledger, in the future": lambda: asyncio.run(archive_ledger(LEDGER, 1e12, "archive")),
    "backup_ledger": lambda: asyncio.run(backup_ledger(LEDGER, "backup")),
    "open_tracker": lambda: asyncio.run(
        enter(payclient.open_tracker("https://pay.example", TOKEN, ledger=LEDGER, proxy=PROXY))
    ),
    "open_tracker, badly": lambda: asyncio.run(
        enter(payclient.open_tracker(None, TOKEN, ledger=LEDGER, proxy=PROXY, create=BAD))
    ),
    "open_tracker_from_env": lambda: payclient.open_tracker_from_env(WITHOUT_ADDRESS, proxy=PROXY),
    "sync.open_tracker": lambda: sync.open_tracker("https://pay.example", TOKEN, ledger=LEDGER).open(),
    "sync.open_tracker_from_env": lambda: sync.open_tracker_from_env(WITHOUT_ADDRESS, proxy=PROXY).open(),
}


@pytest.mark.parametrize("call", NOT_OPENED.values(), ids=NOT_OPENED)
def test_what_is_not_opened(call: Callable[[], object]) -> None:
    """No frame on the way shows the ledger's password, the token or the proxy's password."""
    with pytest.raises(payclient.PayError) as caught:
        call()
    check_hidden(caught.value)


async def test_a_database_that_does_not_answer_in_the_callers_time() -> None:
    """The frames of asyncpg, which hold the address and the password, do not come with the cancellation."""
    async with RawServer((hang,)) as server:
        address = Secret(LEDGER.replace(":1/", f":{server.port}/"))
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.05):
                await open_ledger(address)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    check_hidden(caught.value)


async def test_a_profile_refuses_a_request() -> None:
    """What the profile's limits refuse, and what it has no name for, is not repeated, and nothing is sent."""
    lengths = {"reference": 3, "phone_number": 3, "email": 3, "document_id": 3}
    profile = attrs.evolve(PROFILE, nick_name_flag=None, max_lengths=lengths)
    service = function_of(ANSWERS[0])
    async with session_over(service, profile=profile) as session, tracking(session) as tracker:
        for call, kind in (
            (session.sale(SALE), payclient.InvalidRequestError),
            (tracker.sale(SALE), payclient.InvalidRequestError),
            (session.prepare(PREPARE), payclient.InvalidRequestError),
            (tracker.prepare(PREPARE), payclient.InvalidRequestError),
            (tracker.live_form("cart", form_of), payclient.InvalidRequestError),
            (tracker.live_form("cart", lambda _: PREPARE), payclient.ConfigurationError),
            (tracker.live_form("cart", lambda _: PREPARE, margin=-1), payclient.ConfigurationError),
            (session.sale(attrs.evolve(SALE, by_nick_name=True)), payclient.ConfigurationError),
            (session.prepare(attrs.evolve(PREPARE, language="es")), payclient.ConfigurationError),
        ):  # fmt: skip
            outcome = await outcome_of(cast("Awaitable[object]", call))
            assert type(outcome) is kind
            check_hidden(outcome)
    assert service.requests == []


#: Not in a frame of the tests, each of which is looked at.
BAD_TOKENS: dict[str, Any] = {"Bearer": f"Bearer {TOKEN}", "two lines": f"{TOKEN}\r\nX: 1", "a list": [TOKEN]}


async def make_session(how: str) -> object:
    return PaySession("https://pay.example", BAD_TOKENS[how])


@pytest.mark.parametrize("how", ["raises", "hangs", "again after a 401", *BAD_TOKENS])
async def test_token_callables(how: str) -> None:
    """One that raises or hangs, or is called again: what it says is the caller's own, and the request shows nowhere.

    A token that cannot be is not shown by the error that says so, given or called for; nor does one stand in a task's
    `repr`, which asyncio's debug mode logs.
    """
    debug()

    async def token() -> Any:
        if how == "raises":
            raise RuntimeError("the vault is closed")
        if how == "hangs":
            await asyncio.Event().wait()
        return BAD_TOKENS.get(how, TOKEN)

    service = Scripted(json_answer(401, error_object(5)), json_answer(200, GOOD))
    async with session_over(service, token, timeouts=SHORT if how == "hangs" else LONG) as session:
        if how == "again after a 401":
            tasks = [asyncio.create_task(cast("Any", session.status(transaction_id=12)))]
            check_hidden([await tasks[0], tasks])
            assert len(service.requests) == 2
            return
        for operation, call in NETWORK.items():
            kinds = {"raises": RuntimeError, "hangs": payclient.NotSentError}
            outcome = await outcome_of(call(session))
            check_outcome(operation, outcome, kinds.get(how, payclient.ConfigurationError))
    if how in BAD_TOKENS:
        given = await outcome_of(make_session(how))
        assert type(given) is payclient.ConfigurationError
        check_hidden(given)


# --- The tracker follows


def report(state: str, **changes: object) -> dict[str, object]:
    fields = {
        "transactionId": 12, "clientTransactionId": "order-1", "amount": 100, "currency": "USD",
        "state": state,
    }  # fmt: skip
    return fields | ECHO | changes


#: The answers to status queries, the last one for ever.
SAID: dict[str, list[HttpResponse | LoudError]] = {
    "accepted twice": [json_answer(200, [report("Aceptado"), report("Aceptado", transactionId=13)])],
    "cancelled, then accepted": [json_answer(200, report(state)) for state in ("Cancelado", "Aceptado")],
    "an unmapped state": [json_answer(200, report(PHONE))],
    "another id": [json_answer(200, report("Aceptado", transactionId=99))],
    "not found": [json_answer(404, error_object(20))],
    "401": [json_answer(401, error_object(5))],
    "HTML": [HttpResponse(502, {}, PAGE)],
    "a loud exception": [LoudError(HttpRequest("GET", "/", ECHOED, {"Authorization": f"Bearer {TOKEN}"}))],
}


def give(said: HttpResponse | LoudError) -> HttpResponse:
    if isinstance(said, LoudError):
        raise said
    return said


@pytest.mark.parametrize("said", list(SAID.values()), ids=list(SAID))
async def test_following(said: list[HttpResponse | LoudError], heard: Listener) -> None:
    """Waits, checks, notifications and the feed show nothing of what status answers hold."""
    debug()
    service = FakeService()
    service.scripts = [fake_service.answers(200, {"transactionId": 12, **ECHO})] * 9
    service.status_scripts = [partial(give, one) for one in said + said[-1:] * 5000]
    ledger = MemoryLedger()
    async with session_over(service) as session, tracking(session, ledger, service.clock) as tracker:
        pending = await tracker.sale(SALE)
        shown: list[object] = [pending, await pending.check()]
        for _ in range(2):
            wait = asyncio.ensure_future(outcome_of(pending.wait(timeout=1.0)))
            for _ in range(3):
                await service.clock.advance(1.0)
            shown += [wait, await wait]
            assert not isinstance(shown[-1], BaseException) or isinstance(
                shown[-1], payclient.StillPendingError
            )
        for number in (12, 12, 77):
            notice = payclient.Notification(transaction_id=number, client_transaction_id="order-1")
            shown.append(await tracker.notify(notice))
            await service.clock.advance(2.0)
        shown.append(await outcome_of(tracker.sale(attrs.evolve(SALE, tax=1, amount=101))))
        assert type(shown[-1]) is payclient.DifferentRequestError
        await service.clock.advance(600.0)
        last = asyncio.ensure_future(outcome_of(pending.wait()))
        await turns()
        shown += [pending, pending.outcome, pending.outcome.report, tracker.open_sales()]
        shown += [await tracker.find("order-1"), await ledger.history("order-1"), await ledger.changes()]
        shown += [[one async for one in ledger.records()]]
        shown.append(await outcome_of(tracker.sale(attrs.evolve(SALE, client_transaction_id="order-2"))))
    for each in [*shown, await last]:
        check_hidden(each)
    assert heard.lines


# --- Ledgers


def files_of(path: Path) -> bytes:
    """The ledger's bytes, by another process: closing a handle of this one would drop its locks."""
    names = sorted(str(one) for one in path.parent.glob(f"{path.name}*"))
    return subprocess.run(["cat", *names], check=True, capture_output=True, timeout=60).stdout


async def test_the_ledgers_file(tmp_path: Path) -> None:
    """No canary in the bytes of the SQLite file and its log, open or closed; links are kept where `keep_links` says."""
    path = tmp_path / "charges.db"
    ledger = await SqliteLedger.open(str(path))
    check_hidden(ledger)
    clock = ManualClock()
    for number, case in enumerate([*ANSWERS, *MIXED]):
        async with (
            session_over(function_of(case)) as session,
            tracking(session, ledger, clock, keep_links=False) as tracker,
        ):
            name = f"order-{number}"
            check_hidden(await outcome_of(tracker.sale(attrs.evolve(SALE, client_transaction_id=name))))
            form = attrs.evolve(PREPARE, client_transaction_id=f"form-{number}")
            check_hidden(await outcome_of(tracker.prepare(form)))
            await tracker.notify(payclient.Notification(transaction_id=12, client_transaction_id=name))
            await clock.advance(5.0)
    second = await outcome_of(SqliteLedger.open(str(path)))
    assert type(second) is payclient.LedgerInUseError
    check_hidden(second)
    assert (tmp_path / "charges.db-wal").exists()
    raw = await asyncio.to_thread(files_of, path)
    assert b"order-1" in raw
    assert found_in(raw) == []
    await ledger.aclose()
    assert b"order-1" in path.read_bytes()
    assert found_in(await asyncio.to_thread(files_of, path)) == []


@pytest.mark.parametrize("how", ["memory:", "sqlite"])
async def test_links_that_a_closed_ledger_does_not_keep(how: str, tmp_path: Path) -> None:
    """The form is handed out all the same, as where the ledger fails, and no frame shows its links."""
    ledger = await open_ledger(how if how == "memory:" else f"sqlite:{tmp_path / 'charges.db'}")

    async def transport(request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        assert before_send is not None
        await before_send()
        await ledger.aclose()
        return json_answer(200, GOOD)

    async with session_over(transport) as session, tracking(session, ledger) as tracker:
        form = await outcome_of(tracker.prepare(PREPARE))
    check_hidden(form)
    assert isinstance(form, payclient.PaymentForm)
    assert found_in(form.card.url) == ["canary-card-link"]


async def test_links_that_the_ledger_kept(tmp_path: Path, heard: Listener) -> None:
    """asyncio's debug mode logs what a slow callback was called with, of which it shows the begin and the end."""
    debug()
    prepared = Answer("form", {"paymentId": "P1", "payWithCard": "https://pay.example/form/k9Qx"}, object)
    options: Any = {"ledger": f"sqlite:{tmp_path / 'charges.db'}", "transport": function_of(prepared)}
    for _ in range(2):  # the second reads them
        async with payclient.open_tracker("https://pay.example", TOKEN, **options) as tracker:
            check_hidden(await tracker.live_form("cart-1", form_of))
    assert [line for line in heard.lines if "k9Qx" in line] == []


# --- What hides a value, and what a ledger remembers of the service's address


def test_a_secret_shows_nothing() -> None:
    """Neither printed nor inside of something, and no pickle takes it away."""
    secret = Secret("canary")
    assert (repr(secret), str(secret), f"{secret}", f"{[secret]}") == ("***", "***", "***", "[***]")
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(secret)
    assert secret.reveal() == Secret[str].of(secret).reveal() == Secret.of("canary").reveal() == "canary"


def test_another_host_port_or_path_is_another_service() -> None:
    """However its address is spelled; the digest is keyed, so that no ledger tells another where it was used."""
    key, url = b"k" * 32, "https://pay.example"
    for one, others, same in (
        (url, ["https://PAY.example", f"{url}/", f"{url}:443", f"{url}:443/"], True),
        ("http://127.0.0.1:4711", ["http://localhost:8080"], True),  # a simulator that starts again
        (url, ["https://sandbox.pay.example", f"{url}:8443", f"{url}/sandbox", "http://127.0.0.1:80"], False),
    ):
        for other in others:
            assert (service_fingerprint(other, key) == service_fingerprint(one, key)) is same
            assert service_fingerprint(other, b"l" * 32) != service_fingerprint(one, key)


# --- The service's own messages


async def test_the_services_messages_are_kept_and_bounded(tmp_path: Path, heard: Listener) -> None:
    """A service that repeats a phone in its message has it in the error and the ledger, 500 characters, and no log."""
    debug()
    message = f"{PHONE} is busy\n" + "x" * 2000
    body = {"message": "no", "errorCode": 22, "errors": [{"message": message, "errorCode": 5}] * 99, **ECHO}
    path = tmp_path / "charges.db"
    ledger = await SqliteLedger.open(str(path))
    async with (
        session_over(function_of(Answer("loud", body, object, 400))) as session,
        tracking(session, ledger) as tracker,
    ):
        outcome = await outcome_of(tracker.sale(SALE))
        found = await tracker.find("order-1")
    raw = await asyncio.to_thread(files_of, path)
    await ledger.aclose()
    assert isinstance(outcome, payclient.NotCreatedError)
    assert found is not None
    assert isinstance(found.outcome.error, payclient.RefusedError)
    for error in (outcome, found.outcome.error):
        assert PHONE in str(error)
        assert set(found_in(*shown_by(error), pickle.dumps(error))) == {PHONE[1:]}, "and nothing else"
        assert len(str(error)) < 50 * 520
        assert "\n" not in str(error)
    assert len(outcome.errors) == 50
    assert all(len(detail.message) == 500 for detail in outcome.errors)
    assert found_in(raw) == [PHONE[1:]]
    assert found_in(*heard.lines) == [], "never in a log"


# --- `payclient charge`

ROOT = Path(__file__).parents[1]

#: The command, with every logger at DEBUG on stderr.
PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("payclient").addHandler(logging.StreamHandler())
from payclient.cli import main
sys.exit(main())
"""

TOML = """
name = "secrets"
sale_window = 3
queries_per_minute = 60000
[status]
by_transaction_id = "/api/Sale/{transaction_id}"
by_client_transaction_id = "/api/Sale/client/{client_transaction_id}"
state_field = "transactionStatus"
states = { Pending = "Pendiente", Approved = "Aceptado", Canceled = "Cancelado" }
"""

#: A service whose reports have every field of the real one's: the phone, an e-mail, a document, what the request gave.
SERVICE = attrs.evolve(PAYPHONE, queries_per_minute=None)

#: What befalls a row of this id, and the state that it comes to.
ROWS: dict[str, tuple[Fault | None, str]] = {
    "good": (None, "accepted"),
    "refused": (Fault("refuse", error_code=22, client_transaction_id="refused"), "refused"),
    "invalid": (Fault("refuse", error_code=800, client_transaction_id="invalid"), "refused"),
    "html": (Fault("html", when="after", client_transaction_id="html"), "accepted"),
    "cut": (Fault("cut", client_transaction_id="cut"), "accepted"),
    "closed": (Fault("reset", when="after", client_transaction_id="closed"), "accepted"),
}


def command(folder: Path, rows: list[dict[str, Any]], url: str) -> list[str]:
    (folder / "charges.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "profile.toml").write_text(TOML)
    return [
        "charge", str(folder / "charges.jsonl"), "--report", str(folder / "report.csv"), "--base-url", url,
        "--profile", str(folder / "profile.toml"), "--ledger", f"sqlite:{folder}/charges.db", "--new-ledger", "--yes",
    ]  # fmt: skip


def left_in(folder: Path) -> list[bytes]:
    """The files that the command wrote."""
    return [path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"]


def row(name: str, number: int) -> dict[str, Any]:
    request = attrs.evolve(
        SALE, client_transaction_id=name, store_id=f"S{number}", response_url="http://127.0.0.1:1/canary-hook"
    )
    body: dict[str, Any] = json.loads(session_over().encode_sale(request).body)
    return body


def test_charge(tmp_path: Path) -> None:
    """All outcomes of a file of charges: output, log, report and ledger show none of what the file holds."""
    answers = Answers.parse("approve=1", delay=(0.1, 0.1))
    with SimulatorThread(Simulator(settings=SERVICE, answers=answers)) as service:
        for fault, _ in ROWS.values():
            if fault is not None:
                service.fail_next(fault)
        rows = [row(name, number) for number, name in enumerate(ROWS)]
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", PROGRAM, *command(tmp_path, rows, service.url)], cwd=ROOT,
            env=os.environ | {"PAYCLIENT_TOKEN": TOKEN}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        with (tmp_path / "report.csv").open(newline="") as file:
            states = {line["client_transaction_id"]: line["state"] for line in csv.DictReader(file)}
        assert states == {name: state for name, (_, state) in ROWS.items()}
        assert set(service.created_per_client_id) == {name for name in ROWS if states[name] == "accepted"}
    assert b"DEBUG" in done.stderr
    assert found_in(done.stdout, done.stderr, *left_in(tmp_path)) == []


def test_charge_of_what_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Faults name the line and the field, the setting or the answer, never what stands there."""
    good = row("good", 1)
    bad: list[dict[str, Any]] = [
        {"phoneNumber": f"{PHONE}\x00"}, {"phoneNumber": [PHONE]}, {"amount": EMAIL}, {"currency": PHONE},
        {"countryCode": ADDRESS}, {"lat": f"{LATITUDE}x"}, {"responseUrl": REFERENCE}, {"order": NICK_NAME},
        {"order": {"billTo": {"phoneNumber": PHONE, "email": [EMAIL]}}}, {"order": {"billTo": ADDRESS}},
        {"order": {"lineItems": [ADDRESS]}}, {"timeZone": DOCUMENT_ID},
    ]  # fmt: skip
    rows = [good | change | {"clientTransactionId": f"bad-{number}"} for number, change in enumerate(bad)]
    lines = [rf"lines? (\d+, )*{number + 1}\b" for number in range(len(bad))]
    with SimulatorThread(Simulator(token="another")) as service:
        for token, wanted, charges, expected in (
            (TOKEN, lines, rows, 2),
            (f"Bearer {TOKEN}", ["token must "], [good], 2),
            (TOKEN, ["401"], [good], 4),  # that the row was never sent is said, and no more
        ):
            monkeypatch.setenv("PAYCLIENT_TOKEN", token)
            code = main(command(tmp_path, charges, service.url))
            said = "".join(capfd.readouterr())
            assert (code, [one for one in wanted if not re.search(one, said)]) == (expected, []), said
            assert found_in(said, *left_in(tmp_path)) == []
