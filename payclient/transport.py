"""The network, by aiohttp, and only here: moves bytes, and proves the moment before the first one.

The proof rests on `ClientRequest.send(connection)`, which aiohttp awaits when the connection stands and before it
writes: awaiting `before_send` first in an override fixes the order of the two for good. The order is checked at import,
by a byte-level test, and by the bound `aiohttp < 4`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import platform
import select
import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ClientResponse
from aiohttp.payload import Payload
from yarl import URL

from payclient.errors import ConfigurationError, NotSentError
from payclient.secret import Secret
from payclient.validation import is_loopback
from payclient.wire import BeforeSend, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.connector import Connection

#: A pool of connections, which a session may borrow.
Connector = aiohttp.BaseConnector

#: Where a connection that carried a request keeps the poll of its socket.
_POLL = "_payclient_poll"

_DEAD = "the connection was dead before the first byte"

#: Bytes of an answer that are read; the service's are a few hundred.
MAX_ANSWER = 1 << 20


class _Call(Payload):
    """One request on its way: its body, what is awaited before its first byte, and the connection that carries it.

    aiohttp takes it as the body, and makes no headers for it, as it does for its own classes of bodies.
    """

    #: None before the first byte.
    transport: asyncio.Transport | None = None
    #: Whether the connection was closed by the time of the first byte.
    is_unwritten: bool = False

    def __init__(self, body: bytes, before_send: BeforeSend | None) -> None:
        self.body = body
        self.before_send = before_send

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self.body)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self.is_unwritten = self.transport is None or self.transport.is_closing()
        await writer.write(self.body)

    def reset(self) -> None:
        """Close the connection and let the kernel forget what it has not delivered yet.

        A plain close would deliver the request as soon as the network works again, up to two minutes later.
        """
        if self.transport is None:
            return
        # Over TLS a connection that is gone by now has no socket; the call was cancelled all the same.
        with contextlib.suppress(AttributeError, OSError):
            known = self.transport.get_extra_info("socket")
            # A copy, since the socket that the loop shows takes no options with uvloop.
            with socket.socket(fileno=os.dup(known.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


if not inspect.iscoroutinefunction(
    getattr(ClientRequest, "send", None)
):  # pragma: no cover - a foreign aiohttp
    raise ImportError("this aiohttp has no ClientRequest.send, without which nothing proves what was sent")


class AnswerTooLargeError(Exception):
    """The answer is longer than `MAX_ANSWER`; a connection with more of it is closed as it is given back."""


class _ProvingRequest(ClientRequest):
    """Awaits `before_send` between the connection and the first byte.

    Its headers are a copy of the session's and its body is a `_Call`: aiohttp's own steps for any others cost as much
    as the checks of a Sale.
    """

    _call: _Call

    def update_headers(self, headers: Any) -> None:
        self.headers = headers

    def update_auto_headers(self, skip_auto_headers: object) -> None:
        """Add none: the session's are whole."""

    def update_body_from_data(self, call: _Call, _stacklevel: int = 0) -> None:
        self._call = call
        if call.body:
            self._body = call
        if call.body or self.method not in self.GET_METHODS:
            self.headers["Content-Length"] = str(len(call.body))

    async def send(self, conn: Connection) -> ClientResponse:
        protocol, call = conn.protocol, self._call
        # Check a pooled connection before spending the permit: if it is closed or has unread bytes, the session retries
        # on another.
        if protocol is None or not _alive(protocol) or _is_readable(protocol):
            raise NotSentError(_DEAD)
        if call.before_send is not None:
            # Without a parser the protocol keeps bytes that come meanwhile, and `_alive` sees even half of a head.
            parser, protocol._parser = protocol._parser, None
            await call.before_send()
            protocol._parser = parser
            if not _alive(protocol):
                raise NotSentError(_DEAD)
        call.transport = protocol.transport
        # From here to the write nothing is awaited, but CPython 3.11 writes a body in the next turn of the loop.
        return await super().send(conn)


class _JudgedResponse(ClientResponse):
    """Keeps its connection until `release`, unless the whole answer came with its head.

    aiohttp gives it back with the last byte. Closed for an answer of no use, it may carry another's request.
    """

    def _response_eof(self) -> None:
        if self.content is None:
            super()._response_eof()


def _alive(protocol: ResponseHandler) -> bool:
    # `should_close` covers bytes that came unasked: they would be read as the answer to this request.
    return protocol.is_connected() and not protocol.should_close


def _is_readable(protocol: ResponseHandler) -> bool:
    """Return whether the loop has yet to read bytes of an idle connection, or its end.

    The first call returns False: a new connection may bring the session tickets of TLS.
    """
    poll = getattr(protocol, _POLL, None)
    if poll is not None:
        return bool(poll.poll(0))
    transport = protocol.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None and hasattr(select, "poll"):  # not on Windows
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        setattr(protocol, _POLL, poll)
    return False


class AiohttpTransport:
    """A `Transport` over one aiohttp session, made at the first call, in that call's event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout: float,
        connector: Connector | None = None,
        proxy: Secret[str] | None = None,
    ) -> None:
        # Parsing an address takes longer than encoding a small Sale.
        self._url = lru_cache(maxsize=64)(lambda path: URL(base_url + path, encoded=True))
        try:
            is_http = self._url("").scheme == "http"
        except ValueError:  # of a host such as `[::1]x`
            raise ConfigurationError("base_url must be an address such as https://pay.example") from None
        self._connect_timeout = connect_timeout
        self._connector = connector
        #: The proxy's address, without the name and password that it may want; and the header with these.
        self._proxy: Secret[URL] | None = None
        self._proxy_headers: Secret[dict[str, str]] | None = None
        if proxy is not None:
            self._proxy, self._proxy_headers = _read_proxy(proxy)
            if is_http and not is_loopback(self._proxy.reveal().host or ""):
                raise ConfigurationError(
                    "proxy must be on this machine where base_url is http: the token would be sent in the clear"
                )
        self._session: aiohttp.ClientSession | None = None
        self._headers: Mapping[str, str] | None = None

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        """Send one request and read its answer whole."""
        session = self._session or self._start()
        direct = self._proxy is None
        # Given to the session once, headers cost half as much as with each request. A proxy would be sent them, too.
        if direct and request.headers is not None and request.headers is not self._headers:
            self._headers = request.headers
            session.headers.update(request.headers)
        call = _Call(request.body, before_send)
        try:
            response = await session.request(
                request.method,
                self._url(request.path),
                data=call,
                headers=None if direct else request.headers,
                allow_redirects=False,
                proxy_headers=None if self._proxy_headers is None else self._proxy_headers.reveal(),
            )
            try:
                body = await response.content.readany()
                if not response.content.at_eof():
                    body = await self._read_on(response, body)
            except BaseException:
                response.release()
                raise
            if not response.closed:  # once who waits for the answer has judged it, without waiting again
                asyncio.get_running_loop().call_soon(response.release)
            discard = None if call.transport is None else call.transport.abort
            return HttpResponse(response.status, response.headers, body, discard)
        except asyncio.CancelledError:
            call.reset()
            raise
        except Exception:
            if call.is_unwritten:
                raise NotSentError(_DEAD) from None
            raise

    async def _read_on(self, response: ClientResponse, block: bytes) -> bytes:
        blocks, size = [block], len(block)
        while size <= MAX_ANSWER and not response.content.at_eof():
            block = await response.content.readany()
            blocks.append(block)
            size += len(block)
        if size > MAX_ANSWER:
            raise AnswerTooLargeError
        return b"".join(blocks)

    def _start(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=self._connector
            # Idle connections are kept for 2 s only: writing into a stale one makes an outcome unknown.
            or aiohttp.TCPConnector(limit=0, keepalive_timeout=2),
            connector_owner=self._connector is None,
            request_class=_ProvingRequest,
            response_class=_JudgedResponse,
            cookie_jar=aiohttp.DummyCookieJar(),
            # The session's own deadlines cover the whole call at a fraction of the cost.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            headers={
                "Host": self._url("").host_port_subcomponent or "",
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Cache-Control": "no-cache",  # an answer that a proxy stored is old
                "User-Agent": f"payclient (aiohttp {aiohttp.__version__}; Python {platform.python_version()})",
            },
            trust_env=False,
            auto_decompress=False,
            raise_for_status=False,
            proxy=None if self._proxy is None else self._proxy.reveal(),
        )
        # aiohttp sends a GET again by itself where a kept connection broke: callers count their requests.
        self._session._retry_connection = False
        return self._session

    async def aclose(self) -> None:
        """Close the connections that are our own."""
        if self._session is not None:
            # aiohttp 3.14 raises one for a TLS connection that was closed twice, after an answer it could not parse.
            with contextlib.suppress(AttributeError):
                await self._session.close()


def _read_proxy(proxy: Secret[str]) -> tuple[Secret[URL], Secret[dict[str, str]] | None]:
    """Return the address of a proxy, and the header with its name and password, if it has them.

    Both are kept apart, since aiohttp shows the address in its warnings, but no headers. Raises `ConfigurationError`
    that does not repeat it.
    """
    with contextlib.suppress(ValueError, TypeError):
        url = Secret(URL(proxy.reveal()))
        if url.reveal().scheme in ("http", "https") and url.reveal().host:
            if url.reveal().raw_user is None and url.reveal().raw_password is None:
                return url, None
            said = aiohttp.encode_basic_auth(url.reveal().user or "", url.reveal().password or "")
            return Secret(url.reveal().with_user(None)), Secret({"Proxy-Authorization": said})
    raise ConfigurationError("proxy must be a URL such as http://proxy.example:3128")
