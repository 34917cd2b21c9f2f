"""`PaySession`: the service's operations, stateless and raw. It judges what was sent, for any transport.

It has no memory: applications charge through the tracker, which keeps a durable record.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import attrs

from payclient.access import Authorization, authorization, check_base_url
from payclient.deadlines import Deadlines, Timeouts
from payclient.encoding import Encoder
from payclient.errors import (
    ConfigurationError,
    NotSentError,
    OutcomeUnknownError,
    PayError,
    TransportError,
    UnauthorizedError,
    UsageError,
)
from payclient.models import PrepareRequest, PrepareResult, SaleRequest, SaleResult, StatusReport
from payclient.operations import (
    confirm_request,
    decode_confirm,
    decode_undone,
    status_request,
    undo_request,
)
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.profiles import find_profile
from payclient.transport import AiohttpTransport
from payclient.wire import (
    BeforeSend,
    HttpRequest,
    HttpResponse,
    Transport,
    decode_prepare,
    decode_sale,
    decode_status,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Exchange", "PaySession"]

#: Seconds before a second and a third try of what provably was not sent; jittered.
RETRY_DELAYS = (0.1, 0.5)

#: Operations that may be sent again although the last try may have arrived.
REPEATABLE = frozenset({"status", "confirm"})

logger = logging.getLogger("payclient.session")

#: Forks of this process so far, counted in the child: cheaper than asking the system for the process id at each call.
_generation = 0


def _after_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork)

TokenSource = str | Callable[[], Awaitable[str]]

_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Exchange:
    """One exchange with the service, for metrics and traces. No personal data, no token."""

    #: `sale`, `prepare`, `status`, `confirm`, `cancel` or `reverse`.
    operation: str
    #: None where no answer came.
    http_status: int | None
    seconds: float
    #: False: proven that no byte of it reached the service.
    sent: bool
    #: The error's class name; None where the call succeeded.
    error: str | None
    client_transaction_id: str | None
    transaction_id: int | None = None


class _Gate:
    """The `before_send` handed to the transport: whether it was passed is the proof of what was sent."""

    entered = False
    passed = False
    error: BaseException | None = None
    trace: TracebackType | None = None

    def __init__(self, before_send: BeforeSend | None) -> None:
        self._before_send = before_send

    async def __call__(self) -> None:
        self.entered = True
        if self._before_send is not None:
            try:
                await self._before_send()
            except BaseException as error:
                # As it is here: on its way up it would gather the network library's frames, which hold the token.
                self.error, self.trace = error, error.__traceback__
                raise
        self.passed = True


class PaySession:
    """The service's operations over one pool of connections, for one event loop.

    `base_url` is https (http for loopback); None: the profile's. `token` is a string, or an async callable that gives
    one: asked at first and after a 401, once however many wait. `connector` borrows an aiohttp connector, which is
    never closed here. `transport` replaces the network by a function. `on_exchange` is told of each exchange.

    Raises `ConfigurationError` for a setting that cannot be.
    """

    def __init__(
        self,
        base_url: str | None,
        token: TokenSource,
        *,
        profile: ServiceProfile | str | os.PathLike[str] = DOCUMENT,
        timeouts: Timeouts | None = None,
        connector: aiohttp.BaseConnector | None = None,
        proxy: str | None = None,
        transport: Transport | None = None,
        on_exchange: Callable[[Exchange], object] | None = None,
    ) -> None:
        self.profile = find_profile(profile)
        self.base_url = check_base_url(self.profile.base_url if base_url is None else base_url)
        self.timeouts = timeouts if timeouts is not None else Timeouts()
        self._token_source = token
        self._authorization: Authorization | None = None
        self._refresh: asyncio.Task[Authorization] | None = None
        del token  # a frame that raises shows its local variables to error trackers
        if isinstance(self._token_source, str):
            self._authorization = authorization(self._token_source, self.profile)
        elif not callable(self._token_source):
            raise ConfigurationError("token: is a text or an async callable")
        self._encoder = Encoder(self.profile)
        self._own_transport: AiohttpTransport | None = None
        if transport is None:
            transport = self._own_transport = AiohttpTransport(
                self.base_url, connect_timeout=self.timeouts.connect, connector=connector, proxy=proxy
            )
        self._transport = transport
        self._on_exchange = on_exchange
        self._deadlines: Deadlines | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._generation = _generation
        self._closed = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **options: object) -> Self:
        """Open a session by `PAYCLIENT_TOKEN`, `PAYCLIENT_BASE_URL` and, where set, `PAYCLIENT_PROFILE`.

        A profile that names its service's address needs no `PAYCLIENT_BASE_URL`.
        """
        profile = find_profile(
            options.pop("profile", None) or environ.get("PAYCLIENT_PROFILE") or DOCUMENT  # type: ignore[arg-type]  # passed on as it came
        )
        base_url = environ.get("PAYCLIENT_BASE_URL") or profile.base_url
        for name, value in (
            ("PAYCLIENT_BASE_URL", base_url),
            ("PAYCLIENT_TOKEN", environ.get("PAYCLIENT_TOKEN")),
        ):
            if not value:
                raise ConfigurationError(f"{name} is not set")
        return cls(base_url, environ["PAYCLIENT_TOKEN"], profile=profile, **options)  # type: ignore[arg-type]  # passed on as they came

    @property
    def renews_token(self) -> bool:
        """Whether the token comes from a callable, which is asked again after a 401."""
        return not isinstance(self._token_source, str)

    def __repr__(self) -> str:
        return f"<PaySession {self.base_url} profile={self.profile.name}>"

    def __reduce__(self) -> str:
        raise TypeError("a session holds a token and connections; it does not pickle")

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are our own. Calls still running end as if cut. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._generation != _generation:
            return
        if self._refresh is not None:
            self._refresh.cancel()
        if self._deadlines is not None:
            self._deadlines.close()
        if self._own_transport is not None:
            await self._own_transport.aclose()

    # --- Operations

    async def sale(
        self, request: SaleRequest, *, before_send: BeforeSend | None = None, timeouts: Timeouts | None = None
    ) -> SaleResult:
        """Charge by a push request (§4: POST /api/Sale) and return when it is created; nothing is remembered.

        `NotSentError`, `InvalidRequestError`, `ConfigurationError`, `RefusedError`: nothing was created.
        `OutcomeUnknownError`: it may exist, never send it again by yourself. What `before_send` raises comes
        through unchanged, with nothing sent.
        """
        return await self._exchange(
            "sale", self.encode_sale(request), self._decode_sale, before_send, timeouts
        )

    def encode_sale(self, request: SaleRequest) -> HttpRequest:
        """The first half of `sale`: check by the profile and encode. No I/O."""
        return HttpRequest(
            "POST", "/api/Sale", self._encoder.sale(request), {}, request.client_transaction_id
        )

    async def send_sale(
        self, request: HttpRequest, before_send: BeforeSend | None = None, *, timeouts: Timeouts | None = None
    ) -> SaleResult:
        """The second half of `sale`: send what `encode_sale` made, and read the answer."""
        return await self._exchange("sale", request, self._decode_sale, before_send, timeouts)

    def _decode_sale(self, response: HttpResponse, request: HttpRequest) -> SaleResult:
        return decode_sale(response, self.profile, request.client_transaction_id)

    async def prepare(self, request: PrepareRequest, *, timeouts: Timeouts | None = None) -> PrepareResult:
        """Prepare a hosted payment form (§4: POST /api/button/Prepare). A form alone charges nobody.

        `NotSentError`, `InvalidRequestError`, `ConfigurationError`, `RefusedError`: nothing was prepared.
        `OutcomeUnknownError`: prepare another one, under a client transaction id of its own.
        """
        return await self._exchange(
            "prepare", self.encode_prepare(request), self._decode_prepare, None, timeouts
        )

    def encode_prepare(self, request: PrepareRequest) -> HttpRequest:
        """The first half of `prepare`: check by the profile and encode. No I/O."""
        body = self._encoder.prepare(request)
        return HttpRequest(
            "POST", "/api/button/Prepare", body, self._authorization, request.client_transaction_id
        )

    async def send_prepare(
        self, request: HttpRequest, before_send: BeforeSend | None = None, *, timeouts: Timeouts | None = None
    ) -> PrepareResult:
        """The second half of `prepare`: send what `encode_prepare` made, and read the answer."""
        return await self._exchange("prepare", request, self._decode_prepare, before_send, timeouts)

    def _decode_prepare(self, response: HttpResponse, request: HttpRequest) -> PrepareResult:
        return decode_prepare(response, self.profile, request.client_transaction_id)

    async def status(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> StatusReport | None:
        """Ask for a transaction's status by one of its ids, where the profile says how; None: not found.

        Raises `InvalidRequestError` for what is no id, `RefusedError` or a `TransportError`; none of them says
        anything about the transaction. Repeated by itself on resets and 5xx, and once with a fresh token after a 401.
        """
        request = status_request(self.profile, transaction_id, client_transaction_id)
        return await self._repeatable("status", request, self._decode_status)

    def _decode_status(self, response: HttpResponse, request: HttpRequest) -> StatusReport | None:
        return decode_status(response, self.profile)

    async def confirm(self, transaction_id: int, client_transaction_id: str) -> StatusReport:
        """Confirm a paid form, which the service reverses otherwise; the report is its word on the payment.

        Repeatable, and repeated by itself as a status query is. `RefusedError`: the service knows no such payment.
        `OutcomeUnknownError`: it may be confirmed; confirm it again.
        """
        request = confirm_request(self.profile, transaction_id, client_transaction_id)
        return await self._repeatable("confirm", request, self._decode_confirm)

    def _decode_confirm(self, response: HttpResponse, request: HttpRequest) -> StatusReport:
        return decode_confirm(response, self.profile, request.client_transaction_id)

    async def cancel(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        """Withdraw a push request that nobody answered, by one of its ids; returning means that it is withdrawn.

        `NotCancellableError`: it is not pending any more; ask for its status. `NotSentError` and any other
        `RefusedError`: nothing was withdrawn. `OutcomeUnknownError`: ask for its status.
        """
        request = undo_request(self.profile, "cancel", transaction_id, client_transaction_id)
        await self._exchange("cancel", request, self._decode_cancel, None, None)

    def _decode_cancel(self, response: HttpResponse, request: HttpRequest) -> None:
        decode_undone(response, self.profile, "cancel", request.client_transaction_id)

    async def reverse(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        """Give a payment back, whole, by one of its ids; returning means that it is reversed.

        Never sent again by itself unless proven not sent. `NotReversibleError`: too late, or no such payment.
        `NotSentError` and any other `RefusedError`: nothing was reversed. `OutcomeUnknownError`: it may be reversed.
        """
        request = undo_request(self.profile, "reverse", transaction_id, client_transaction_id)
        await self._exchange("reverse", request, self._decode_reverse, None, None)

    def _decode_reverse(self, response: HttpResponse, request: HttpRequest) -> None:
        decode_undone(response, self.profile, "reverse", request.client_transaction_id)

    async def _repeatable(
        self, operation: str, request: HttpRequest, decode: Callable[[HttpResponse, HttpRequest], _T]
    ) -> _T:
        """One exchange, and after a 401 once more with a fresh token where one can be asked for."""
        try:
            return await self._exchange(operation, request, decode, None, None)
        except UnauthorizedError:
            if isinstance(self._token_source, str):
                raise
        return await self._exchange(operation, request, decode, None, None)

    # --- One exchange

    async def _exchange(
        self,
        operation: str,
        request: HttpRequest,
        decode: Callable[[HttpResponse, HttpRequest], _T],
        before_send: BeforeSend | None,
        timeouts: Timeouts | None,
    ) -> _T:
        """Send within the total time-out and read the answer; repeat only what is safe to repeat."""
        deadline = self._enter().start(None if timeouts is None else timeouts.total)
        hook = self._on_exchange
        began = 0.0 if hook is None else time.perf_counter()
        tries = 0
        sent = False
        gate = _Gate(before_send)
        response: HttpResponse | None = None
        result: _T | None = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    response = None
                    response = await self._send(request, gate)
                    result = decode(response, request)
                except NotSentError:
                    # Once `before_send` was entered its permit may be spent.
                    if tries == len(RETRY_DELAYS) or (gate.entered and before_send is not None):
                        raise
                except OutcomeUnknownError as unknown:
                    if (
                        operation not in REPEATABLE
                        or tries == len(RETRY_DELAYS)
                        or (unknown.http_status or 500) < 500
                    ):
                        raise
                else:
                    return result
                sent = sent or gate.passed
                await self._sleep(RETRY_DELAYS[tries] * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                tries += 1
                gate = _Gate(before_send)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if not deadline.overran():
                cancelled.__traceback__ = None  # its frames are the network library's, which hold the token
                raise
            total = (timeouts or self.timeouts).total
            error = self._judge(gate, request, f"no answer within {total:g} s")
        except BaseException as raised:
            error = raised
            raise
        finally:
            deadline.end()
            if hook is not None:
                self._tell(hook, operation, request, response, result, error, sent or gate.passed, began)
        # Outside the `except`, so that no `__context__` keeps what aiohttp raised.
        raise error

    async def _send(self, request: HttpRequest, gate: _Gate) -> HttpResponse:
        """One try. Raises what `before_send` raised, or our own errors, never aiohttp's: those hold the token."""
        headers = self._authorization or await self._ask_token()
        if request.headers is not headers:
            request = HttpRequest(
                request.method, request.path, request.body, headers, request.client_transaction_id
            )
        try:
            response = await self._transport(request, gate)
        except NotSentError as error:
            failure = str(error)
            gate.passed = False
        except Exception as error:
            failure = _describe(error)
        else:
            if (
                response.status == 401
                and self._authorization is headers
                and not isinstance(self._token_source, str)
            ):
                self._authorization = None
            return response
        if gate.error is not None:
            raise gate.error.with_traceback(gate.trace)
        raise self._judge(gate, request, failure)

    def _tell(
        self,
        hook: Callable[[Exchange], object],
        operation: str,
        request: HttpRequest,
        response: HttpResponse | None,
        result: object,
        error: BaseException | None,
        sent: bool,
        began: float,
    ) -> None:
        try:
            hook(
                Exchange(
                    operation=operation,
                    http_status=None if response is None else response.status,
                    seconds=time.perf_counter() - began,
                    sent=sent,
                    error=None if error is None else type(error).__name__,
                    client_transaction_id=request.client_transaction_id,
                    transaction_id=getattr(result, "transaction_id", None),
                )
            )
        except Exception as raised:
            logger.error("on_exchange raised %s", type(raised).__name__)

    def _judge(self, gate: _Gate, request: HttpRequest, failure: str) -> TransportError:
        kind = OutcomeUnknownError if gate.passed else NotSentError
        return kind(failure, client_transaction_id=request.client_transaction_id)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _enter(self) -> Deadlines:
        """Bind to the running loop, or say clearly why this session cannot be used here."""
        if self._closed:
            raise UsageError("this session is closed")
        if self._generation != _generation:
            raise UsageError("this session was made before a fork; make one in each process")
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            assert self._deadlines is not None  # noqa: S101 - made with the loop
            return self._deadlines
        if self._loop is not None:
            raise UsageError("this session belongs to another event loop; make one in each")
        self._loop = loop
        self._deadlines = Deadlines(loop, self.timeouts.total)
        return self._deadlines

    # --- The token

    async def _ask_token(self) -> Authorization:
        """Ask the token callable, once however many wait."""
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._fetch_token())
            self._refresh.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._refresh)

    async def _fetch_token(self) -> Authorization:
        assert not isinstance(self._token_source, str)  # noqa: S101 - a string is never asked for
        try:
            async with asyncio.timeout(self.timeouts.total):
                self._authorization = authorization(await self._token_source(), self.profile)
        except (TimeoutError, asyncio.CancelledError):
            pass
        else:
            return self._authorization
        finally:
            self._refresh = None
        raise NotSentError("no token was given in time")


def _describe(error: Exception) -> str:
    """An exception in words that hold nothing of the request: its class, and the system's error name."""
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number) if isinstance(number, int) else None
    kind = type(error).__name__
    if isinstance(error, PayError):
        return kind
    return f"{kind} ({name})" if name else kind
