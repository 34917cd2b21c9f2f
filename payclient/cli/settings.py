"""Options that several commands share, and what the commands make of them and of the environment."""

import datetime
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import attrs
from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number as Range

from payclient.auth import TokenFile, check_base_url, token_fault
from payclient.batch.retries import sends_per_second
from payclient.cli import terminal
from payclient.errors import ConfigurationError, LedgerMissingError
from payclient.profile import ServiceProfile, find_profile
from payclient.schedule import FINAL_QUERY_DELAYS, NORMAL_WINDOW
from payclient.session import Exchange, PaySession
from payclient.tracking.context import open_tracker
from payclient.tracking.tracker import Tracker
from payclient.validation import is_loopback


def _value(kind: Callable[[str], object], pattern: str, fault: str) -> Parameter:
    """Return an option of one value. By itself cyclopts would round "10.50" to 10, and take nan, inf and 1e9."""

    def read(_: object, tokens: Sequence[Token]) -> object:
        with suppress(ValueError):
            if re.fullmatch(pattern, tokens[0].value):
                return kind(tokens[0].value)
        raise ValueError(fault)

    return Parameter(converter=read)


_WHOLE = r"-?[0-9]{1,19}"
Whole: Parameter = _value(int, _WHOLE, "must be a whole number")
Cents: Parameter = _value(int, _WHOLE, "must be a whole number; amounts are cents, 1050 for 10.50")
Number: Parameter = _value(float, r"[0-9]{1,9}(\.[0-9]+)?", "must be a number, 0 or more")
Day = Annotated[
    datetime.date, _value(datetime.date.fromisoformat, r"[0-9-]{10}", "must be a day such as 2026-01-31")
]
Count = Annotated[int, Whole, Parameter(validator=Range(gte=1))]
Profile = Annotated[
    str | None,
    Parameter(
        env_var="PAYCLIENT_PROFILE",
        help="The service's profile: a preset (payphone), or a TOML file.",
    ),
]
LedgerUrl = Annotated[
    str | None,
    Parameter(
        env_var="PAYCLIENT_LEDGER",
        help="The durable record of what was sent: sqlite:charges.db, or postgresql://...",
    ),
]
Yes = Annotated[bool, Parameter(help="Do not ask.")]

#: Seconds of one exchange with the service; a generous estimate.
EXCHANGE = 1.0

NO_LEDGER = "give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER"
FORGETS = "a memory: ledger forgets what was charged, and the next run would charge it again: use sqlite:PATH"


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ServiceOptions:
    """Which service to call, and with which token."""

    base_url: Annotated[str | None, Parameter(env_var="PAYCLIENT_BASE_URL")] = None
    """The service's address; a preset has its own."""
    profile: Profile = None
    token_file: Annotated[Path | None, Parameter(env_var="PAYCLIENT_TOKEN_FILE")] = None
    """A file that holds the token, read again when the service refuses it; instead of PAYCLIENT_TOKEN."""

    @cached_property
    def loaded_profile(self) -> ServiceProfile:
        """The profile itself. Raises `ConfigurationError`."""
        return find_profile(self.profile)

    @property
    def url(self) -> str | None:
        """The service's address, or the profile's, as given; None: neither is."""
        return self.base_url or self.loaded_profile.base_url

    def address(self) -> str:
        """Return the checked address. Raises `ConfigurationError`."""
        if not self.url:
            raise ConfigurationError(
                "base_url: give --base-url or --profile payphone, which has its own, or set PAYCLIENT_BASE_URL"
            )
        return check_base_url(self.url)

    @property
    def has_token(self) -> bool:
        """Whether a token is given."""
        return self.token_file is not None or bool(os.environ.get("PAYCLIENT_TOKEN"))

    def token(self) -> str | TokenFile:
        """Return the token of the file, or of the environment. Raises `ConfigurationError`."""
        if self.token_file is not None:
            return TokenFile(self.token_file)
        token = os.environ.get("PAYCLIENT_TOKEN")
        if not token:
            raise ConfigurationError(
                "token: set PAYCLIENT_TOKEN or PAYCLIENT_TOKEN_FILE; it is never an argument"
            )
        if (fault := token_fault(token)) is not None:
            raise ConfigurationError(fault)
        return token

    def session(self) -> PaySession:
        """Return a session, its settings checked. Raises `ConfigurationError`."""
        return PaySession(self.address(), self.token(), profile=self.loaded_profile)


@attrs.frozen(kw_only=True)
class ChargeOptions(ServiceOptions):
    """The options that every charge needs."""

    ledger: LedgerUrl = attrs.field(default=None, repr=False)  # its address may hold a password
    new_ledger: bool = False
    """Make the ledger where there is none yet; a new one knows no earlier charge."""

    def check(self, *, dry_run: bool = False) -> None:
        """Raise `ConfigurationError` for a bad setting, or a missing one; a dry run may lack them."""
        if self.url or not dry_run:
            host = urlsplit(self.address()).hostname
            if (self.ledger or "").startswith("memory:") and not is_loopback(host or ""):
                raise ConfigurationError(FORGETS)
        if self.has_token or not dry_run:
            self.token()
        if not (self.ledger or dry_run):
            raise ConfigurationError(NO_LEDGER)

    @asynccontextmanager
    async def tracker(
        self, on_exchange: Callable[[Exchange], object] | None = None, *, create: bool | None = None
    ) -> AsyncIterator[Tracker]:
        """Open the tracker. Raises `ConfigurationError` if the ledger does not exist and may not be made.

        `create` is whether it may; None: as the options say.
        """
        try:
            async with open_tracker(
                self.address(),
                self.token(),
                ledger=self.ledger or "",
                profile=self.loaded_profile,
                create=self.may_make if create is None else create,
                on_exchange=on_exchange,
            ) as tracker:
                yield tracker
        except LedgerMissingError:
            raise self.missing() from None

    def missing(self) -> ConfigurationError:
        """Return the error of a ledger that does not exist and may not be made."""
        return ConfigurationError(
            f"the ledger {location_of(self.ledger)} is not there, and a new one knows no earlier charge: correct "
            "--ledger, or give --new-ledger the first time, or run `payclient ledger init`; nothing was sent"
        )

    @property
    def may_make(self) -> bool:
        """Whether a ledger that does not exist is made."""
        return self.new_ledger or self.ledger == "memory:"


@Parameter(name="*", group=Group("How fast, and how long", sort_key=2))
@attrs.frozen(kw_only=True)
class Limits:
    """How a run is paced; see `charge_all`."""

    max_in_flight: Count = 50
    """Requests at once."""
    max_pending: Count = 1000
    """Prompts on people's phones that are waited for at once."""
    rate: Annotated[float | None, Number, Parameter(validator=Range(gte=0.001))] = None
    """Sends a second, at most; 0.001 or more."""
    wait: Annotated[float | None, Number] = None
    """Seconds to wait for each customer; 0: only until it is sent and recorded. Default: to the end."""
    retry: tuple[Literal["refused"], ...] = ()
    """Try again what the service refused before."""

    def longest(self, profile: ServiceProfile, rows: int, longest_lane: int) -> float:
        """Return the seconds that a run takes at most, where no customer answers; the busiest has `longest_lane` rows.

        A run can take longer if the service is down or slows the sending.
        """
        window = waited = profile.sale_window
        if profile.status is not None:
            waited += final_queries(window)
        if self.wait is not None:
            waited = min(waited, self.wait)
        lane = max(waited, window) * (longest_lane - 1) + waited if longest_lane else 0.0
        sends = sends_per_second(profile, self.rate, self.wait)
        sending = rows * EXCHANGE / self.max_in_flight + (0.0 if sends is None else rows / sends)
        return sending + waited * rows / self.max_pending + lane


def final_queries(window: float) -> float:
    """Return the seconds from the end of a sale's window to its last scheduled query."""
    return sum(FINAL_QUERY_DELAYS) * window / NORMAL_WINDOW


def location_of(ledger: str | None) -> str:
    """Return a ledger's address as people may read it: with the whole path of a file, and without a password."""
    kind, _, path = (ledger or "").partition(":")
    if kind == "sqlite" and path:
        return f"sqlite:{os.path.abspath(path)}"
    if not path.startswith("//"):  # misspelt: a password may stand anywhere before the host
        ledger = re.sub("(?s).*@", "***@", ledger or "")
    return terminal.without_password(ledger or "")
