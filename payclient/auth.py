"""The service's address and the token that goes with every request (§5), checked."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from hashlib import blake2b
from inspect import isawaitable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from payclient.clock import SystemClock, outlive, start, within
from payclient.errors import ConfigurationError, NotSentError
from payclient.profile import ServiceProfile, find_profile
from payclient.secret import Secret
from payclient.validation import is_loopback, is_secure, parse_address, read_regular

_TOKEN = re.compile(r"[\x21-\x7e]+")

#: A token, or an async callable that returns one.
TokenSource = str | Callable[[], Awaitable[str]]

#: Digest of the token that this task's last request was signed with; empty: none was.
SIGNED_WITH: ContextVar[bytes] = ContextVar("payclient.signed_with", default=b"")


@attrs.frozen(eq=False)
class Authorization:
    """The headers of every request (§4, §5), and the digest of the token in them."""

    headers: Mapping[str, str] = attrs.field(repr=False)
    #: Unkeyed: it stays in memory.
    digest: bytes = attrs.field(repr=False)


def authorize(token: Secret[Any], language: str | None) -> Authorization:
    """Make the headers with a token, or raise a `ConfigurationError` that does not repeat the token."""
    if fault := token_fault(token.reveal()):
        raise ConfigurationError(fault)
    # Not formatted: a member of an enum may format as its name, and joins as its value.
    headers = {"Authorization": "Bearer " + token.reveal()}
    if language is not None:
        headers["Accept-Language"] = language
    return Authorization(headers, blake2b(token.reveal().encode(), digest_size=16).digest())


def token_fault(token: object) -> str | None:
    """Return why a token cannot stand behind `Bearer` (§5), without quoting the token; None: it can."""
    if not isinstance(token, str) or not token:
        return "token must be a text that is not empty"
    if token.lower().startswith("bearer "):
        return "token must be given without the word Bearer"
    if token.startswith("<") or token.endswith(">"):
        return "token must be your own, not the placeholder of the documentation"
    if not _TOKEN.fullmatch(token):
        return "token must have no blanks, no control characters, and nothing but ASCII"
    return None


#: The name of a file that is not there, and as long as this, may be the token itself: it is not shown.
_LONG_NAME = 32


class TokenFile:
    """The token of a file that another program writes anew from time to time; a session calls it for its token."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `ConfigurationError` where it cannot be read now."""
        self._path = Path(path)
        self.read()

    def read(self) -> str:
        """Return the token as it is now. Raises `ConfigurationError`."""
        try:
            token = Secret(read_regular(self._path).decode("utf-8-sig", "replace").strip())
        except OSError as error:
            # The token itself may have been given where its file is wanted: a name that may be one is not shown.
            is_named = len(self._path.name) < _LONG_NAME and os.path.isdir(self._path.parent)
            name = self._path if is_named or os.path.exists(self._path) else "***"
            raise ConfigurationError(f"the token file {name} cannot be read: {error.strerror}") from None
        if (fault := token_fault(token.reveal())) is not None:
            raise ConfigurationError(f"the token file {self._path}: {fault}")
        return token.reveal()

    async def __call__(self) -> str:
        """Return the token as it is now, for a session."""
        return await asyncio.to_thread(self.read)


class Token:
    """A session's token: a text; or a callable, called at first and after a 401, once however many calls wait."""

    def __init__(self, source: Secret[TokenSource], language: str | None, timeout: float) -> None:
        """Raises `ConfigurationError` for what is not a token and cannot be called. `timeout` is in seconds."""
        self._source = source
        self._language = language
        self._timeout = timeout
        self._fetching: asyncio.Task[Authorization] | None = None
        #: The headers with the current token; None until the callable has returned one.
        self.authorization: Authorization | None = None
        if isinstance(source.reveal(), str):
            self.authorization = authorize(source, language)
        elif not callable(source.reveal()):
            given = type(source.reveal()).__name__
            raise ConfigurationError(f"token must be a text or an async callable; {given} was given")

    @property
    def renews(self) -> bool:
        """Whether the token comes from a callable."""
        return callable(self._source.reveal())

    def discard(self, authorization: Authorization) -> None:
        """Drop a token to which the service answered 401, unless another came: the next request calls for one."""
        if self.renews and self.authorization is authorization:
            self.authorization = None

    async def fetch(self) -> Authorization:
        """Call the callable. Raises `NotSentError` if it returns nothing in time, and what it raises itself."""
        if self._fetching is None or self._fetching.done():
            self._fetching = start(self._fetch())
        return await outlive(self._fetching)

    async def _fetch(self) -> Authorization:
        # Not by `asyncio.timeout`: a callable that does not end when it is cancelled would hold up every later call.
        try:
            given = await within(SystemClock(), self._timeout, self._call())
        except (TimeoutError, asyncio.CancelledError):
            given = None
        if given is None:
            raise NotSentError("no token was given in time")
        self.authorization = authorize(given, self._language)
        return self.authorization

    async def _call(self) -> Secret[str]:
        source = self._source.reveal()
        assert callable(source)  # noqa: S101 - a text is kept from the start
        called = Secret(source())
        if not isawaitable(called.reveal()):
            raise ConfigurationError(
                "token must be a text or an async callable; the given callable is not async"
            )
        return Secret(await called.reveal())

    def close(self) -> None:
        """Cancel a running call of the callable."""
        if self._fetching is not None:
            self._fetching.cancel()


def check_base_url(base_url: object) -> str:
    """Return the base address without a final slash. Raises `ConfigurationError`, naming what is wrong."""
    if base_url is None:
        raise ConfigurationError("base_url must be given, because the profile names no address")
    if not isinstance(base_url, str) or not base_url:
        raise ConfigurationError("base_url must be an address such as https://pay.example")
    if not _TOKEN.fullmatch(base_url) or "\\" in base_url:
        raise ConfigurationError("base_url must be ASCII without blanks, control characters or backslashes")
    parts = parse_address(base_url)
    if parts is None:
        raise ConfigurationError("base_url must be an address such as https://pay.example")
    if "@" in parts.netloc:
        raise ConfigurationError("base_url must have no user information in it")
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError("base_url must have no query and no fragment")
    if not is_secure(parts):
        raise ConfigurationError("base_url must be https (http is for loopback only)")
    return base_url.rstrip("/")


def service_from_env(
    environ: Secret[Mapping[str, str]], profile: ServiceProfile | str | os.PathLike[str] | None
) -> tuple[str, Secret[TokenSource], ServiceProfile]:
    """Return the service's address, the token and the profile. Raises `ConfigurationError` naming what is not set."""
    found = find_profile(profile or environ.reveal().get("PAYCLIENT_PROFILE") or None)
    base_url = environ.reveal().get("PAYCLIENT_BASE_URL") or found.base_url
    if not base_url:
        raise ConfigurationError("PAYCLIENT_BASE_URL is not set")
    if path := environ.reveal().get("PAYCLIENT_TOKEN_FILE"):
        return base_url, Secret(TokenFile(path)), found
    if not environ.reveal().get("PAYCLIENT_TOKEN"):
        raise ConfigurationError("PAYCLIENT_TOKEN is not set")
    return base_url, Secret(environ.reveal()["PAYCLIENT_TOKEN"]), found


def service_fingerprint(base_url: str, key: bytes) -> bytes:
    """Return a digest of the service's address, by which a ledger recognizes it; `key` is the ledger's own.

    All services on loopback have one digest: a simulator has another port each time.
    """
    parts = urlsplit(check_base_url(base_url))
    host = parts.hostname or ""
    where = "loopback" if is_loopback(host) else f"{host}:{parts.port or 443}{parts.path}"
    return blake2b(b"environment\0" + where.encode(), digest_size=16, key=key).digest()
