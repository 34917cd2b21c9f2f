"""`PaySession`: the service's operations, stateless and raw: signs each request, bounds its time, judges its answer.

The session has no memory: applications charge through the tracker, which keeps a durable record. A request is proven
not sent where the transport, whichever it is, never got past the `before_send` that it was given.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import attrs

from payclient import wire
from payclient.auth import SIGNED_WITH, Token, TokenSource, check_base_url, service_from_env
from payclient.clock import Deadline, Deadlines, Timeouts
from payclient.errors import (
    NotSentError,
    OutcomeUnknownError,
    TransportError,
    UnauthorizedError,
    UsageError,
)
from payclient.logs import Log
from payclient.models import PrepareRequest, PrepareResult, SaleRequest, SaleResult, StatusReport
from payclient.profile import DOCUMENT, ServiceProfile, find_profile
from payclient.secret import Secret
from payclient.transport import AiohttpTransport, Connector
from payclient.validation import check_setting, check_type
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport

__all__: list[str] = ["Exchange", "PaySession"]

#: Seconds before a second and a third try; jittered.
RETRY_DELAYS = (0.1, 0.5)

log: Log = Log("payclient.session")

_T = TypeVar("_T")

#: Reads an answer to a request with this client transaction id, by the profile, or raises.
Decode = Callable[[HttpResponse, ServiceProfile, str | None], _T]


@attrs.frozen(kw_only=True)
class Exchange:
    """One exchange with the service, for metrics and traces. No personal data, no token.

    - `operation`: `sale`, `prepare`, `status`, `confirm`, `cancel` or `reverse`.
    - `method`: The HTTP method.
    - `path`: Below the base address; that of a query holds the id.
    - `http_status`: None where no answer came.
    - `seconds`: How long it took.
    - `sent`: False: proven that no byte of it reached the service.
    - `error`: The error's class name; None where the call succeeded.
    - `client_transaction_id`: None where the request has none.
    - `transaction_id`: None where none is known.
    - `resends`: How often the request was sent again by itself.
    """

    operation: str
    method: str
    path: str
    http_status: int | None
    seconds: float
    sent: bool
    error: str | None
    client_transaction_id: str | None
    transaction_id: int | None = None
    resends: int = 0


class PaySession:
    """The service's operations over one pool of connections, for one event loop.

    `base_url` is https (http for loopback); None: the profile's. `token` is a string, or an async callable that gives
    one: called at first and after a 401, once however many wait. `connector` borrows an aiohttp connector, which is
    never closed here. `transport` replaces the network by a function. `on_exchange` is called with each exchange.

    Raises `ConfigurationError` for a setting that cannot be.
    """

    def __init__(
        self,
        base_url: str | None,
        token: TokenSource | Secret[TokenSource],
        *,
        profile: ServiceProfile | str | os.PathLike[str] | None = DOCUMENT,
        timeouts: Timeouts | None = None,
        connector: Connector | None = None,
        proxy: str | Secret[str] | None = None,
        transport: Transport | None = None,
        on_exchange: Callable[[Exchange], object] | None = None,
    ) -> None:
        token = Secret.of(token)  # error trackers record the local variables of a frame that raises
        proxy = None if proxy is None else Secret.of(proxy)
        self.profile: ServiceProfile = find_profile(profile)
        self.base_url: str = check_base_url(self.profile.base_url if base_url is None else base_url)
        check_setting("timeouts", timeouts, Timeouts, "Timeouts(connect=10, total=30)")
        check_setting("connector", connector, Connector, "an aiohttp connector")
        check_setting("transport", transport, Callable, "an async function")
        check_setting("on_exchange", on_exchange, Callable, "a function")
        self.timeouts: Timeouts = timeouts if timeouts is not None else Timeouts()
        self._token = Token(token, self.profile.message_language, self.timeouts.total)
        self._own_transport: AiohttpTransport | None = None
        if transport is None:
            transport = self._own_transport = AiohttpTransport(
                self.base_url, connect_timeout=self.timeouts.connect, connector=connector, proxy=proxy
            )
        self._transport = transport
        #: Called with each exchange, unless None.
        self.on_exchange: Callable[[Exchange], object] | None = on_exchange
        #: When the service last answered, in UTC seconds; a 5xx does not count, since it may be a proxy's.
        self.answered_at: float | None = None
        self._deadlines: Deadlines | None = None
        self._process = os.getpid()
        self._closed = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: object) -> Self:
        """Make a session by the settings that `open_tracker_from_env` reads; it needs no `PAYCLIENT_LEDGER`."""
        variables = Secret(os.environ if environ is None else environ)
        del environ  # error trackers record the local variables of a frame that raises
        if options.get("proxy") is not None:
            options["proxy"] = Secret.of(options["proxy"])
        given: Any = options.pop("profile", None)
        base_url, token, profile = service_from_env(variables, given)
        return cls(base_url, token, profile=profile, **options)  # type: ignore[arg-type]  # passed on as they came

    @property
    def renews_token(self) -> bool:
        """Whether the token comes from a callable, which is called again after a 401."""
        return self._token.renews

    def __repr__(self) -> str:
        return f"<PaySession {self.base_url} profile={self.profile.name}>"

    def __reduce__(self) -> str:
        raise TypeError("a session holds a token and connections; it does not pickle")

    async def __aenter__(self) -> Self:
        self._bind()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are our own. Calls still running end as if cut. May be called twice."""
        self._closed = True
        if self._process != os.getpid():
            return  # a fork: its parent has the connections
        self._token.close()
        if self._deadlines is not None:
            self._deadlines.close()
        if self._own_transport is not None:
            await self._own_transport.aclose()

    def _bind(self) -> Deadlines:
        """Bind to the running loop. Raises `UsageError` if this session cannot be used here."""
        if self._closed:
            raise UsageError("this session is closed")
        if self._process != os.getpid():
            raise UsageError("this session was made before a fork; make one in each process")
        loop = asyncio.get_running_loop()
        if self._deadlines is None:
            self._deadlines = Deadlines(loop)
        elif self._deadlines.loop is not loop:
            raise UsageError("this session belongs to another event loop; make one in each")
        return self._deadlines

    # --- Operations

    async def sale(
        self, request: SaleRequest, *, before_send: BeforeSend | None = None, timeouts: Timeouts | None = None
    ) -> SaleResult:
        """Charge by a push request (§4: POST /api/Sale) and return when it is created; nothing is remembered.

        `timeouts` sets this call's total; connecting keeps the session's time-out.
        `NotSentError`, `InvalidRequestError`, `ConfigurationError`, `RefusedError`: nothing was created.
        `OutcomeUnknownError`: it may exist, never send it again by yourself. Errors of `before_send`
        come through unchanged, with nothing sent.
        """
        return await self._send_in_time(
            "sale", self.encode_sale(request), wire.decode_sale, before_send, timeouts
        )

    def encode_sale(self, request: SaleRequest) -> HttpRequest:
        """Check a Sale by the profile and encode it: the first half of `sale`. No I/O."""
        check_type("request", request, SaleRequest)
        return wire.encode_sale(request, self.profile)

    async def send_sale(
        self,
        request: HttpRequest,
        before_send: BeforeSend | None = None,
        *,
        check: Callable[[SaleResult], object] | None = None,
    ) -> SaleResult:
        """Send what `encode_sale` made, and read the answer: the second half of `sale`.

        `check` is called with a result before its connection can serve another request, and may raise a `PayError`.
        """
        return await self._send_in_time("sale", request, wire.decode_sale, before_send, check=check)

    async def prepare(self, request: PrepareRequest, *, timeouts: Timeouts | None = None) -> PrepareResult:
        """Prepare a hosted payment form (§4: POST /api/button/Prepare). A form alone charges nobody.

        `NotSentError`, `InvalidRequestError`, `ConfigurationError`, `RefusedError`: nothing was prepared.
        `OutcomeUnknownError`: prepare another one, under a client transaction id of its own.
        """
        encoded = self.encode_prepare(request)
        return await self._send_in_time("prepare", encoded, wire.decode_prepare, timeouts=timeouts)

    def encode_prepare(self, request: PrepareRequest) -> HttpRequest:
        """Check a Prepare by the profile and encode it: the first half of `prepare`. No I/O."""
        check_type("request", request, PrepareRequest)
        return wire.encode_prepare(request, self.profile)

    async def send_prepare(
        self,
        request: HttpRequest,
        before_send: BeforeSend | None = None,
        *,
        check: Callable[[PrepareResult], object] | None = None,
    ) -> PrepareResult:
        """Send what `encode_prepare` made, and read the answer; `check` as in `send_sale`."""
        return await self._send_in_time("prepare", request, wire.decode_prepare, before_send, check=check)

    async def status(
        self,
        *,
        transaction_id: int | None = None,
        client_transaction_id: str | None = None,
        repeat: bool = True,
    ) -> StatusReport | None:
        """Query a transaction's status by one of its ids, where the profile has the path; None: not found.

        Raises `InvalidRequestError` for a bad id, `RefusedError` or a `TransportError`; none of them proves anything
        about the transaction. Repeated by itself twice on resets and 5xx, and once with a fresh token after a
        401; with `repeat` False the service sees one request at most, for a caller that counts requests.
        """
        request = wire.status_request(self.profile, transaction_id, client_transaction_id)
        return await self._send_renewing("status", request, wire.decode_status, repeat)

    async def confirm(
        self, transaction_id: int, client_transaction_id: str, *, repeat: bool = True
    ) -> StatusReport:
        """Confirm a paid form, which the service reverses otherwise; the report is its word on the payment.

        Repeatable, and repeated by itself as a status query is, unless `repeat` is False. `RefusedError`: the service
        knows no such payment. `OutcomeUnknownError`: it may be confirmed; confirm it again.
        """
        request = wire.confirm_request(self.profile, transaction_id, client_transaction_id)
        return await self._send_renewing("confirm", request, wire.decode_confirm, repeat)

    async def cancel(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        """Withdraw a push request that is still pending, by one of its ids; returning means that it is withdrawn.

        `NotCancellableError`: it is not pending any more; query its status. `NotSentError` and any other
        `RefusedError`: nothing was withdrawn. `OutcomeUnknownError`: query its status.
        """
        request = wire.undo_request(self.profile, "cancel", transaction_id, client_transaction_id)
        await self._send_in_time("cancel", request, partial(wire.decode_undone, operation="cancel"))

    async def reverse(
        self,
        *,
        transaction_id: int | None = None,
        client_transaction_id: str | None = None,
        before_send: BeforeSend | None = None,
    ) -> None:
        """Give a payment back, whole, by one of its ids; returning means that it is reversed.

        Never sent again by itself unless proven not sent. `NotReversibleError`: too late, or no such payment.
        `NotSentError` and any other `RefusedError`: nothing was reversed. `OutcomeUnknownError`: it may be reversed.
        Errors of `before_send` come through unchanged, with nothing sent.
        """
        request = wire.undo_request(self.profile, "reverse", transaction_id, client_transaction_id)
        decode = partial(wire.decode_undone, operation="reverse")
        await self._send_in_time("reverse", request, decode, before_send)

    async def ensure_token(self) -> None:
        """Fetch a token for the next request, unless there is one already.

        Raises what the callable raises, `NotSentError` where it gives nothing in time, `ConfigurationError`.
        """
        self._bind()
        if self._token.authorization is None:
            await self._token.fetch()

    # --- How each of them is sent

    async def _send_renewing(
        self, operation: str, request: HttpRequest, decode: Decode[_T], repeat: bool
    ) -> _T:
        """Send a status query or a confirmation. With `repeat`, send it again after failures, and after a 401 with a
        fresh token.
        """
        now = asyncio.get_running_loop().time
        begun = now()
        try:
            return await self._send_in_time(operation, request, decode, repeatable=repeat)
        except UnauthorizedError as error:
            left = self.timeouts.total - (now() - begun)
            if not (repeat and self.renews_token and error.http_status == 401 and left > 0):
                raise
        in_time = Timeouts(total=left)
        return await self._send_in_time(operation, request, decode, timeouts=in_time, repeatable=repeat)

    async def _send_in_time(
        self,
        operation: str,
        request: HttpRequest,
        decode: Decode[_T],
        before_send: BeforeSend | None = None,
        timeouts: Timeouts | None = None,
        *,
        check: Callable[[_T], object] | None = None,
        repeatable: bool = False,
    ) -> _T:
        """Send a request within the total time-out, again where `should_retry` says so, and read the answer."""
        check_setting("timeouts", timeouts, Timeouts, "Timeouts(total=30)")
        total = (timeouts or self.timeouts).total
        deadline = self._bind().start(total)
        call = Call(operation, request, SendProof(before_send, deadline))
        try:
            while True:
                try:
                    call.response = None
                    call.response = await self._send_once(call)
                    found = decode(call.response, self.profile, request.client_transaction_id)
                    if check is not None:
                        check(found)
                except TransportError as error:
                    spent = call.proof.permit_spent
                    if not should_retry(error, call.resends, repeatable=repeatable, permit_spent=spent):
                        raise
                else:
                    call.result = found
                    return found
                # Before the sleep, in which another request may take the connection.
                call.discard_connection()
                await asyncio.sleep(sleep_time_seconds(call.resends, random.random()))  # noqa: S311 - no secret
                call.begin_again()
        except asyncio.CancelledError as cancelled:
            call.error = cancelled
            if deadline.overran():
                failure = "the session was closed" if self._closed else f"no answer within {total:g} s"
            elif deadline.is_cancelled() or call.proof.error is cancelled:
                cancelled.__traceback__ = None  # its frames are the network library's, which hold the token
                raise
            else:
                failure = describe_failure(cancelled)  # a connector that was closed, for instance
            call.error = _classify_failure(call, failure)
        except BaseException as raised:
            call.error = raised
        finally:
            deadline.end()
            call.discard_connection()
            if self.on_exchange is not None:
                _report(self.on_exchange, call.exchange())
        # Outside the `except`, so that no `__context__` keeps what aiohttp raised.
        raise call.error

    async def _send_once(self, call: Call) -> HttpResponse:
        """Sign and send. Raises what `before_send` raised, or our own errors, never aiohttp's: those hold the token."""
        request, proof = call.request, call.proof
        authorization = self._token.authorization or await self._token.fetch()
        SIGNED_WITH.set(authorization.digest)
        signed = HttpRequest(
            request.method, request.path, request.body, authorization.headers, request.client_transaction_id
        )
        try:
            response = await self._transport(signed, proof)
        except NotSentError as error:
            failure = str(error)
            proof.may_have_sent = False
        except Exception as error:
            failure = describe_failure(error)
        else:
            if proof.before_send is not None and not proof.may_have_sent:
                raise UsageError("a transport awaits before_send before the first byte, and this one did not")
            if response.status < 500:
                self.answered_at = time.time()
            if response.status == 401:
                self._token.discard(authorization)
            return response
        finally:
            proof.is_over = True
        if proof.error is not None:
            raise proof.error.with_traceback(proof.trace)
        raise _classify_failure(call, failure)


class SendProof:
    """The `before_send` handed to the transport: a request that never got past it was not sent."""

    #: Whether the permit may be spent: `before_send` was begun.
    permit_spent: bool = False
    #: Whether the first byte may have left.
    may_have_sent: bool = False
    #: Whether the transport's call has ended: what goes on all the same, as behind a shield, may send nothing any more.
    is_over: bool = False
    #: The exception of `before_send`.
    error: BaseException | None = None
    trace: TracebackType | None = None

    def __init__(self, before_send: BeforeSend | None, deadline: Deadline) -> None:
        self.before_send = before_send
        self.deadline = deadline

    async def __call__(self) -> None:
        """Await `before_send`, once, and note that the first byte may leave from now on."""
        if self.permit_spent or self.may_have_sent or self.is_over:
            raise UsageError(
                "a transport calls before_send once, and before its own end; nothing more is sent"
            )
        if self.before_send is not None:
            self.permit_spent = True
            try:
                await self.before_send()
            except BaseException as error:
                # The traceback of now: further up it would gather the network library's frames, which hold the token.
                self.error, self.trace = error, error.__traceback__
                raise
            if self.deadline.fired or self.is_over:
                raise NotSentError("before_send took longer than the call")
        self.may_have_sent = True


class Call:
    """One call of an operation, however often its request is sent."""

    #: The answer to the last send; None: none came.
    response: HttpResponse | None = None
    #: The result that was read from it; None too where nothing was found.
    result: object = None
    error: BaseException | None = None
    #: How often the request was sent again.
    resends: int = 0
    _sent_before: bool = False

    def __init__(self, operation: str, request: HttpRequest, proof: SendProof) -> None:
        self.operation = operation
        self.request = request
        self.proof: SendProof = proof
        self._began = time.perf_counter()

    @property
    def sent(self) -> bool:
        """Whether the first byte may have left, at this send or at an earlier one: an answer came, for instance."""
        return self._sent_before or self.proof.may_have_sent or self.response is not None

    def begin_again(self) -> None:
        """Prepare to send the request again, with a proof of its own."""
        self._sent_before = self.sent
        self.resends += 1
        self.proof = SendProof(self.proof.before_send, self.proof.deadline)

    def discard_connection(self) -> None:
        """Close a connection that may bring a second copy of an error or of "not found": no other call may read it."""
        if self.result is None and self.response is not None and self.response.discard is not None:
            self.response.discard()

    def exchange(self) -> Exchange:
        """Return the call for metrics and traces."""
        return Exchange(
            operation=self.operation,
            method=self.request.method,
            path=self.request.path,
            http_status=None if self.response is None else self.response.status,
            seconds=time.perf_counter() - self._began,
            sent=self.sent,
            error=None if self.error is None else type(self.error).__name__,
            client_transaction_id=self.request.client_transaction_id,
            transaction_id=getattr(self.result, "transaction_id", None) or self.request.transaction_id,
            resends=self.resends,
        )


def should_retry(error: TransportError, tries: int, *, repeatable: bool, permit_spent: bool) -> bool:
    """Return whether a request may be sent again after an error, having been sent again `tries` times.

    Any request may after `NotSentError`, unless its permit may be spent. After `OutcomeUnknownError` only a repeatable
    one may, where no answer came or a 5xx.
    """
    if tries >= len(RETRY_DELAYS):
        return False
    if isinstance(error, OutcomeUnknownError):
        return repeatable and (error.http_status is None or error.http_status >= 500)
    return isinstance(error, NotSentError) and not permit_spent


def sleep_time_seconds(tries: int, chance: float) -> float:
    """Return the seconds before the next try: the delay, from half of it to one and a half by a chance of 0 to 1."""
    return RETRY_DELAYS[tries] * (0.5 + chance)


def _classify_failure(call: Call, failure: str) -> TransportError:
    """Make the error of a request without an answer, by its proofs alone and never by what was raised."""
    identifier = call.request.client_transaction_id
    if call.sent:
        return OutcomeUnknownError(failure, client_transaction_id=identifier)
    return NotSentError(f"{failure}; nothing was sent", client_transaction_id=identifier)


def _report(on_exchange: Callable[[Exchange], object], exchange: Exchange) -> None:
    """Call the hook with an exchange, and log what it raises."""
    try:
        on_exchange(exchange)
    # The call is not cancelled here, since nothing is awaited: the hook raised the `CancelledError` of something else.
    except (Exception, asyncio.CancelledError) as raised:
        identifier = exchange.client_transaction_id or ""
        log("error", "on_exchange_failed", identifier, "on_exchange raised %s", type(raised).__name__)


def describe_failure(error: BaseException) -> str:
    """Describe an exception by its class, and the system's or the TLS library's name of it: no data of the request."""
    causes = (error, getattr(error, "os_error", None), error.__cause__)
    if any(isinstance(each, socket.gaierror) for each in causes):
        return f"no address found for {getattr(error, 'host', 'the service')} (DNS)"
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number) if isinstance(number, int) else None
    for each in causes:
        if isinstance(each, ssl.SSLError):
            name = getattr(each, "reason", None)  # its number is the library's own, and not the system's
    kind = type(error).__name__
    return f"{kind} ({name})" if name else kind
