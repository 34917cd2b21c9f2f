"""Options that several commands share, and the environment that stands for them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import attrs
from cyclopts import Parameter, Token

from payclient.auth import TokenSource, check_base_url, token_fault
from payclient.cli import terminal
from payclient.cli.files import check_regular
from payclient.errors import ConfigurationError, LedgerMissingError
from payclient.profile import DOCUMENT, PRESETS, ServiceProfile, find_profile
from payclient.tracker import Tracker, open_tracker
from payclient.validation import is_loopback

__all__: list[str] = []

BaseUrl = Annotated[
    str | None,
    Parameter(env_var="PAYCLIENT_BASE_URL", help="The service's address; a preset has its own."),
]
Profile = Annotated[
    str | None,
    Parameter(
        env_var="PAYCLIENT_PROFILE",
        help="What the service's document leaves open: a preset (payphone), or a TOML file.",
    ),
]
LedgerUrl = Annotated[
    str | None,
    Parameter(
        env_var="PAYCLIENT_LEDGER",
        help="The durable record of what was sent: sqlite:charges.db, or postgresql://...",
    ),
]

TokenFile = Annotated[
    Path | None,
    Parameter(
        env_var="PAYCLIENT_TOKEN_FILE",
        help="A file that holds the token, read again when the service takes it no more; instead of PAYCLIENT_TOKEN.",
    ),
]


def _whole(_: object, tokens: Sequence[Token]) -> int:
    # The library's own reading of an int rounds "10.50" to 10.
    text = tokens[0].value
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise ValueError("must be a whole number; amounts are cents, 1050 for 10.50")
    return int(text)


def _seconds(_: object, tokens: Sequence[Token]) -> float:
    text = tokens[0].value
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        raise ValueError("must be a number, 0 or more")
    return float(text)


Whole = Parameter(converter=_whole)
Number = Parameter(converter=_seconds)
Cents = Annotated[int | None, Whole]
Wait = Annotated[
    float | None,
    Number,
    Parameter(
        help="Seconds to wait for each customer; 0: only until it is sent and recorded. Default: to the end."
    ),
]
Flag = Parameter(negative=(), show_default=False)
Yes = Annotated[bool, Flag, Parameter(help="Do not ask.")]
NewLedger = Annotated[
    bool,
    Flag,
    Parameter(help="Make the ledger where there is none yet; a new one knows no earlier charge."),
]


@attrs.frozen(kw_only=True)
class Amounts:
    """What `sale` and `prepare` charge (§2.1)."""

    amount: Annotated[Cents, Parameter(help="Cents; the sum of the parts, unless given.")] = None
    amount_without_tax: Annotated[Cents, Parameter(help="Cents that are not taxed.")] = None
    amount_with_tax: Annotated[Cents, Parameter(help="Cents that are taxed, without the tax.")] = None
    tax: Annotated[Cents, Parameter(help="Cents.")] = None
    service: Annotated[Cents, Parameter(help="Cents.")] = None
    tip: Annotated[Cents, Parameter(help="Cents.")] = None


NO_AMOUNTS = Amounts()

#: Its fields are options of their own: --amount, --tax ...
AmountOptions = Annotated[Amounts, Parameter(name="*")]


@attrs.frozen(kw_only=True)
class Service:
    """Where to send, and as whom."""

    base_url: str
    token: TokenSource = attrs.field(repr=False)
    profile: ServiceProfile
    ledger: str = attrs.field(repr=False)  # its address may hold a password
    #: Whether a ledger may be made where there is none.
    new_ledger: bool = False

    @asynccontextmanager
    async def tracker(self) -> AsyncIterator[Tracker]:
        """Open the tracker of this service. Raises `ConfigurationError` for a new ledger that nobody agreed to."""
        try:
            async with open_tracker(
                self.base_url,
                self.token,
                ledger=self.ledger,
                profile=self.profile,
                create=self.new_ledger or self.ledger == "memory:",
            ) as tracker:
                yield tracker
        except LedgerMissingError:
            raise ConfigurationError(
                f"the ledger {location_of(self.ledger)} is not there, and a new one knows no earlier charge: correct "
                "--ledger, or give --new-ledger the first time, or run `payclient ledger init`; nothing was sent"
            ) from None


def location_of(ledger: str) -> str:
    """Return a ledger's address for people: the whole path of a file, and no password."""
    kind, _, path = ledger.partition(":")
    return (
        f"sqlite:{os.path.abspath(path)}" if kind == "sqlite" and path else terminal.without_password(ledger)
    )


def profile_of(profile: str | None) -> ServiceProfile:
    """Return the profile of a preset's name or a path, or the document's."""
    if profile and profile not in PRESETS:
        check_regular("--profile", Path(profile))
    return DOCUMENT if not profile else find_profile(profile)


class RotatingToken:
    """The token of a file that somebody else writes anew from time to time."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` where it cannot be read now."""
        self._path = path
        self.read()

    def read(self) -> str:
        """The token as it is now."""
        check_regular("--token-file", self._path)
        try:
            token = self._path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError as error:
            raise ConfigurationError(
                f"the token file {self._path} cannot be read: {error.strerror}"
            ) from None
        if (fault := token_fault(token)) is not None:
            raise ConfigurationError(f"the token file {self._path}: {fault}")
        return token

    async def __call__(self) -> str:
        """The token as it is now, for a session."""
        return await asyncio.to_thread(self.read)


def token_of(file: Path | None = None) -> str | RotatingToken:
    """The token of a file, or of the environment. Raises `ConfigurationError` for one that is missing or cannot be."""
    if file is None and (named := os.environ.get("PAYCLIENT_TOKEN_FILE")):
        file = Path(named)
    if file is not None:
        return RotatingToken(file)
    token = os.environ.get("PAYCLIENT_TOKEN")
    if not token:
        raise ConfigurationError(
            "token: set PAYCLIENT_TOKEN or PAYCLIENT_TOKEN_FILE; it is never an argument"
        )
    if (fault := token_fault(token)) is not None:
        raise ConfigurationError(fault)
    return token


def session_settings(
    base_url: str | None, profile: ServiceProfile, token_file: Path | None = None
) -> tuple[str, TokenSource]:
    """The checked address and token. Raises `ConfigurationError` for one that is missing or cannot be."""
    base_url = base_url or profile.base_url
    if not base_url:
        raise ConfigurationError("give --base-url, or set PAYCLIENT_BASE_URL")
    token = token_of(token_file)
    return check_base_url(base_url), token


def service_of(
    base_url: str | None,
    profile: str | None,
    ledger: str | None,
    token_file: Path | None = None,
    *,
    new_ledger: bool = False,
) -> Service:
    """Return all that a charge needs, checked. Raises `ConfigurationError`."""
    settings = profile_of(profile)
    address, token = session_settings(base_url, settings, token_file)
    if not ledger:
        raise ConfigurationError("give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER")
    if ledger.startswith("memory:") and not is_loopback(urlsplit(address).hostname or ""):
        raise ConfigurationError(
            "a memory: ledger forgets what was charged, and the next run would charge it again: use sqlite:PATH"
        )
    return Service(base_url=address, token=token, profile=settings, ledger=ledger, new_ledger=new_ledger)
