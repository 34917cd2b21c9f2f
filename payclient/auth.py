"""The service's address and the token that goes with every request (§5), checked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from hashlib import blake2b
from urllib.parse import urlsplit

from payclient.clock import start
from payclient.errors import ConfigurationError, NotSentError
from payclient.profile import ServiceProfile
from payclient.validation import is_loopback

__all__: list[str] = []

TokenSource = str | Callable[[], Awaitable[str]]

_TOKEN = re.compile(r"[\x21-\x7e]+")


#: Digest of the token that this task's last request was signed with; empty: none was.
SIGNED_WITH: ContextVar[bytes] = ContextVar("payclient.signed_with", default=b"")


class Authorization(dict[str, str]):
    """The headers that hold the token. They stand among the local variables that error trackers show."""

    __slots__ = ("digest",)

    #: Of the token, unkeyed: it stays in memory.
    digest: bytes

    def __repr__(self) -> str:
        return "<authorization>"


def authorization(token: object, profile: ServiceProfile) -> Authorization:
    """The headers of every request (§4, §5), or a `ConfigurationError` that does not repeat the token."""
    fault = token_fault(token)
    if fault is None:
        headers = Authorization(Authorization=f"Bearer {token}")
        headers.digest = blake2b(str(token).encode(), digest_size=16).digest()
        if profile.message_language is not None:
            headers["Accept-Language"] = profile.message_language
        return headers
    del token
    raise ConfigurationError(fault)


def token_fault(token: object) -> str | None:
    """Say why a token cannot go behind `Bearer` (§5), without repeating it, or None."""
    if not isinstance(token, str) or not token:
        return "token: is empty or no text"
    if token.lower().startswith("bearer "):
        return "token: give it without the word Bearer"
    if token.startswith("<") or token.endswith(">"):
        return "token: is still the placeholder of the documentation"
    if not _TOKEN.fullmatch(token):
        return "token: has blanks, control characters or other than ASCII"
    return None


class Token:
    """A session's token: a text, or asked of a callable at first and after a 401, once however many wait."""

    def __init__(self, source: TokenSource, profile: ServiceProfile, seconds: float) -> None:
        self._source = source
        self._profile = profile
        #: Within which the callable gives one.
        self._seconds = seconds
        #: None while there is none.
        self.headers: Authorization | None = None
        self._asking: asyncio.Task[Authorization] | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` for what is no token and gives none."""
        if isinstance(self._source, str):
            self.headers = authorization(self._source, self._profile)
        elif not callable(self._source):
            raise ConfigurationError("token: is a text or an async callable")

    @property
    def renews(self) -> bool:
        """Whether another one can be asked for."""
        return not isinstance(self._source, str)

    def refused(self, headers: Authorization) -> None:
        """The service answered 401 to these: another one is asked for, unless that was done meanwhile."""
        if self.renews and self.headers is headers:
            self.headers = None

    async def ask(self) -> Authorization:
        """Ask the callable. `NotSentError` where it gives none in time; what it raises comes through."""
        if self._asking is None:
            self._asking = start(self._fetch())
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._asking)

    async def _fetch(self) -> Authorization:
        assert not isinstance(self._source, str)  # noqa: S101 - a text is never asked for
        try:
            async with asyncio.timeout(self._seconds):
                self.headers = authorization(await self._source(), self._profile)
        except (TimeoutError, asyncio.CancelledError):
            pass
        else:
            return self.headers
        finally:
            self._asking = None
        raise NotSentError("no token was given in time")

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()


def check_base_url(base_url: object) -> str:
    """The base address without a final slash, or a `ConfigurationError` that names what is wrong."""
    if not isinstance(base_url, str) or not base_url:
        raise ConfigurationError("base_url: is empty or no text")
    if not _TOKEN.fullmatch(base_url) or "\\" in base_url:
        raise ConfigurationError("base_url: has blanks, control characters, backslashes or other than ASCII")
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise ConfigurationError("base_url: is an address such as https://pay.example")
    if "@" in parts.netloc:
        raise ConfigurationError("base_url: has user information in it")
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError("base_url: has a query or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ConfigurationError("base_url: is not https (http is for loopback only)")
    return base_url.rstrip("/")


def service_fingerprint(base_url: str, key: bytes) -> bytes:
    """What a ledger remembers of the service that it is used with: a digest keyed by its own key.

    Every service on loopback is one: a simulator has another port each time.
    """
    parts = urlsplit(check_base_url(base_url))
    host = parts.hostname or ""
    where = "loopback" if is_loopback(host) else f"{host}:{parts.port or 443}{parts.path}"
    return blake2b(b"environment\0" + where.encode(), digest_size=16, key=key).digest()
