"""`PaySession`: the service's operations, stateless and raw.

It has no memory: applications charge through the tracker, which keeps a durable record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from payclient.access import Token, TokenSource, check_base_url
from payclient.deadlines import Timeouts
from payclient.encoding import Encoder
from payclient.errors import (
    ConfigurationError,
    UnauthorizedError,
)
from payclient.exchanging import Decode, Exchange, Exchanges
from payclient.models import PrepareRequest, SaleRequest
from payclient.operations import (
    confirm_request,
    decode_confirm,
    decode_undone,
    status_request,
    undo_request,
)
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.profiles import find_profile
from payclient.results import PrepareResult, SaleResult, StatusReport
from payclient.transport import AiohttpTransport
from payclient.wire import (
    BeforeSend,
    HttpRequest,
    Transport,
    decode_prepare,
    decode_sale,
    decode_status,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = ["PaySession"]

_T = TypeVar("_T")


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
        self._token = Token(token, self.profile, self.timeouts.total)
        del token  # a frame that raises shows its local variables to error trackers
        self._token.check()
        self._encoder = Encoder(self.profile)
        self._own_transport: AiohttpTransport | None = None
        if transport is None:
            transport = self._own_transport = AiohttpTransport(
                self.base_url, connect_timeout=self.timeouts.connect, connector=connector, proxy=proxy
            )
        self._exchanges = Exchanges(transport, self.profile, self._token, self.timeouts, on_exchange)

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
        return self._token.renews

    def __repr__(self) -> str:
        return f"<PaySession {self.base_url} profile={self.profile.name}>"

    def __reduce__(self) -> str:
        raise TypeError("a session holds a token and connections; it does not pickle")

    async def __aenter__(self) -> Self:
        self._exchanges.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are our own. Calls still running end as if cut. May be called twice."""
        if self._exchanges.close() and self._own_transport is not None:
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
        return await self._exchanges.make(
            "sale", self.encode_sale(request), decode_sale, before_send, timeouts
        )

    def encode_sale(self, request: SaleRequest) -> HttpRequest:
        """The first half of `sale`: check by the profile and encode. No I/O."""
        body = self._encoder.sale(request)
        return HttpRequest("POST", "/api/Sale", body, client_transaction_id=request.client_transaction_id)

    async def send_sale(
        self, request: HttpRequest, before_send: BeforeSend | None = None, *, timeouts: Timeouts | None = None
    ) -> SaleResult:
        """The second half of `sale`: send what `encode_sale` made, and read the answer."""
        return await self._exchanges.make("sale", request, decode_sale, before_send, timeouts)

    async def prepare(self, request: PrepareRequest, *, timeouts: Timeouts | None = None) -> PrepareResult:
        """Prepare a hosted payment form (§4: POST /api/button/Prepare). A form alone charges nobody.

        `NotSentError`, `InvalidRequestError`, `ConfigurationError`, `RefusedError`: nothing was prepared.
        `OutcomeUnknownError`: prepare another one, under a client transaction id of its own.
        """
        return await self._exchanges.make(
            "prepare", self.encode_prepare(request), decode_prepare, None, timeouts
        )

    def encode_prepare(self, request: PrepareRequest) -> HttpRequest:
        """The first half of `prepare`: check by the profile and encode. No I/O."""
        body = self._encoder.prepare(request)
        return HttpRequest(
            "POST", "/api/button/Prepare", body, client_transaction_id=request.client_transaction_id
        )

    async def send_prepare(
        self, request: HttpRequest, before_send: BeforeSend | None = None, *, timeouts: Timeouts | None = None
    ) -> PrepareResult:
        """The second half of `prepare`: send what `encode_prepare` made, and read the answer."""
        return await self._exchanges.make("prepare", request, decode_prepare, before_send, timeouts)

    async def status(
        self,
        *,
        transaction_id: int | None = None,
        client_transaction_id: str | None = None,
        repeat: bool = True,
    ) -> StatusReport | None:
        """Ask for a transaction's status by one of its ids, where the profile says how; None: not found.

        Raises `InvalidRequestError` for what is no id, `RefusedError` or a `TransportError`; none of them says
        anything about the transaction. Repeated by itself twice on resets and 5xx, and once with a fresh token after a
        401; with `repeat` False the service sees one request at most, for a caller that counts requests.
        """
        request = status_request(self.profile, transaction_id, client_transaction_id)
        return await self._ask("status", request, decode_status, repeat)

    async def confirm(
        self, transaction_id: int, client_transaction_id: str, *, repeat: bool = True
    ) -> StatusReport:
        """Confirm a paid form, which the service reverses otherwise; the report is its word on the payment.

        Repeatable, and repeated by itself as a status query is, unless `repeat` is False. `RefusedError`: the service
        knows no such payment. `OutcomeUnknownError`: it may be confirmed; confirm it again.
        """
        request = confirm_request(self.profile, transaction_id, client_transaction_id)
        return await self._ask("confirm", request, decode_confirm, repeat)

    async def cancel(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        """Withdraw a push request that nobody answered, by one of its ids; returning means that it is withdrawn.

        `NotCancellableError`: it is not pending any more; ask for its status. `NotSentError` and any other
        `RefusedError`: nothing was withdrawn. `OutcomeUnknownError`: ask for its status.
        """
        request = undo_request(self.profile, "cancel", transaction_id, client_transaction_id)
        await self._exchanges.make("cancel", request, partial(decode_undone, operation="cancel"))

    async def reverse(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        """Give a payment back, whole, by one of its ids; returning means that it is reversed.

        Never sent again by itself unless proven not sent. `NotReversibleError`: too late, or no such payment.
        `NotSentError` and any other `RefusedError`: nothing was reversed. `OutcomeUnknownError`: it may be reversed.
        """
        request = undo_request(self.profile, "reverse", transaction_id, client_transaction_id)
        await self._exchanges.make("reverse", request, partial(decode_undone, operation="reverse"))

    async def _ask(self, operation: str, request: HttpRequest, decode: Decode[_T], repeat: bool) -> _T:
        """Make one exchange; with `repeat` once more after a 401 where a fresh token can be asked for."""
        try:
            return await self._exchanges.make(operation, request, decode, repeat=repeat)
        except UnauthorizedError as error:
            if not (repeat and self.renews_token and error.http_status == 401):
                raise
        return await self._exchanges.make(operation, request, decode, repeat=repeat)
