"""What the document leaves "not shown" about a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from payclient.errors import ConfigurationError

__all__ = ["DOCUMENT", "ServiceProfile", "StatusProfile"]

#: The three states of a Sale (§3).
STATE_WORDS = ("Pendiente", "Aceptado", "Cancelado")

#: Seconds; more than any time of a payment, and few enough to count with.
LONGEST = 1e9

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_PATH = re.compile(r"/[A-Za-z0-9_./{}-]*")


# What is of the wrong kind passes the converters unchanged: `_check` names it.


def _mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def _set(value: Iterable[Any]) -> frozenset[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        with suppress(TypeError):  # entries that do not hash
            return frozenset(value)
    return value  # type: ignore[return-value]  # see above


@attrs.frozen(kw_only=True)
class StatusProfile:
    """How a transaction's status is asked for; the document shows no endpoint (§4.2)."""

    #: Path with `{transaction_id}`; answers an object.
    by_transaction_id: str | None = None
    #: Path with `{client_transaction_id}`; answers an object, or an array of them.
    by_client_transaction_id: str | None = None
    #: The field of the answer that holds the state.
    state_field: str
    #: The service's state words -> `Pendiente`, `Aceptado`, `Cancelado` (§3).
    states: Mapping[str, str] = attrs.field(
        converter=_mapping, factory=lambda: {word: word for word in STATE_WORDS}
    )


@attrs.frozen(kw_only=True)
class ServiceProfile:
    """The settings of one concrete service. Seconds for times; see `DOCUMENT` for what needs no setting."""

    name: str = "document"
    #: The boolean field that says "charge the nick name" (§2.2: its name is not shown).
    nick_name_flag: str | None = None
    #: Whether a Sale by nick name may leave the phone out.
    phone_optional_with_nick_name: bool = False
    #: The field of the form's language (§2.3: its name is not shown).
    language_field: str | None = None
    #: The field of the wallet form's link, which carries the service's brand (§2.6).
    wallet_link_field: str | None = None
    #: Samples spell it `responseUrl` and `ResponseUrl` (§2.3).
    response_url_field: str = "responseUrl"
    #: Error codes that mean "this client transaction id is already there".
    duplicate_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_set)
    #: Error codes of a status query that mean "no such transaction".
    not_found_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_set)
    #: Status queries allowed in a minute, over all transactions; None: no limit known.
    queries_per_minute: float | None = None
    #: HTTP statuses known to create nothing whatever their body.
    refusing_statuses: frozenset[int] = attrs.field(default=frozenset(), converter=_set)
    #: Seconds until a push request expires (§8).
    sale_window: float = 300.0
    #: Seconds that a form link lives (§8).
    form_window: float = 600.0
    #: Seconds after the permit from which "not found" may prove absence; twice the sale window unless given.
    absent_after: float = attrs.field()
    #: Hosts that a form link may name; None: not checked.
    link_hosts: frozenset[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_set))
    #: Longest text by our field name, in characters (§2.2: length limits are not shown).
    max_lengths: Mapping[str, int] = attrs.field(factory=dict, converter=_mapping)
    #: Smallest and largest number by our field name.
    ranges: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, converter=_mapping)
    status: StatusProfile | None = None

    @absent_after.default
    def _twice_the_sale_window(self) -> float:
        return 2 * self.sale_window if _seconds(self.sale_window) else 600.0

    def __attrs_post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(cls, path: str | Path) -> ServiceProfile:
        """Read a profile from a TOML file. Unknown or bad settings raise `ConfigurationError` naming them."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the profile {path} cannot be read: {type(error).__name__}") from None
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"the profile {path} is no TOML: {error}") from None
        return cls.parse(settings)

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ServiceProfile:
        """Make a profile from the tables of its TOML form."""
        settings = dict(settings)
        status = settings.pop("status", None)
        if status is not None and not isinstance(status, Mapping):
            raise ConfigurationError("profile setting status: is a table")
        known = {field.name for field in attrs.fields(cls)}
        known_status = {field.name for field in attrs.fields(StatusProfile)}
        unknown = [name for name in settings if name not in known]
        unknown += [f"status.{name}" for name in status or () if name not in known_status]
        if unknown:
            raise ConfigurationError(f"unknown profile setting {', '.join(sorted(unknown))}")
        if status is not None and "state_field" not in status:
            raise ConfigurationError("profile setting status.state_field: is required beside [status]")
        ranges = settings.get("ranges")
        if isinstance(ranges, Mapping):  # TOML has no tuples
            settings["ranges"] = {
                name: tuple(pair) if isinstance(pair, list) else pair for name, pair in ranges.items()
            }
        return cls(status=None if status is None else StatusProfile(**status), **settings)


def _check(profile: ServiceProfile) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be."""

    def need(good: object, setting: str, what: str) -> None:
        if not good:
            raise ConfigurationError(f"profile setting {setting}: {what}")

    need(isinstance(profile.name, str) and profile.name, "name", "is a text")
    for setting in ("nick_name_flag", "language_field", "wallet_link_field", "response_url_field"):
        value = getattr(profile, setting)
        optional = setting != "response_url_field"
        need(
            (value is None and optional) or (isinstance(value, str) and _NAME.fullmatch(value)),
            setting,
            "is the name of a field",
        )
    need(
        type(profile.phone_optional_with_nick_name) is bool,
        "phone_optional_with_nick_name",
        "is true or false",
    )
    for setting in ("sale_window", "form_window", "absent_after"):
        need(_seconds(getattr(profile, setting)), setting, "is a positive number of seconds")
    rate = profile.queries_per_minute
    need(rate is None or _seconds(rate), "queries_per_minute", "is a positive number")
    for setting in ("duplicate_codes", "not_found_codes", "refusing_statuses"):
        codes = getattr(profile, setting)
        good = isinstance(codes, frozenset) and all(type(code) is int for code in codes)
        need(good, setting, "is a list of integers")
    need(
        all(100 <= status <= 599 and status // 100 != 2 for status in profile.refusing_statuses),
        "refusing_statuses",
        "are HTTP statuses, none of them a success",
    )
    need(
        isinstance(profile.max_lengths, Mapping)
        and all(
            isinstance(name, str) and type(size) is int and size > 0
            for name, size in profile.max_lengths.items()
        ),
        "max_lengths",
        "maps field names to positive integers",
    )
    need(
        isinstance(profile.ranges, Mapping)
        and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and type(pair[0]) is type(pair[1]) is int
            and pair[0] <= pair[1]
            for pair in profile.ranges.values()
        ),
        "ranges",
        "maps field names to [smallest, largest]",
    )
    need(
        profile.link_hosts is None
        or (
            isinstance(profile.link_hosts, frozenset)
            and all(isinstance(host, str) and host for host in profile.link_hosts)
        ),
        "link_hosts",
        "is a list of host names",
    )
    status = profile.status
    if status is None:
        return
    need(isinstance(status, StatusProfile), "status", "is a StatusProfile")
    for key in ("transaction_id", "client_transaction_id"):
        path = getattr(status, f"by_{key}")
        need(
            path is None
            or (isinstance(path, str) and _PATH.fullmatch(path) and path.replace(f"{{{key}}}", "x").count("{") == 0
                and f"{{{key}}}" in path),
            f"status.by_{key}",
            f"is a path with {{{key}}}",
        )  # fmt: skip
    need(
        status.by_transaction_id or status.by_client_transaction_id,
        "status",
        "needs by_transaction_id or by_client_transaction_id",
    )
    need(
        isinstance(status.state_field, str) and status.state_field,
        "status.state_field",
        "is the name of a field",
    )
    need(
        isinstance(status.states, Mapping)
        and status.states
        and all(isinstance(word, str) and state in STATE_WORDS for word, state in status.states.items()),
        "status.states",
        f"maps the service's words to {', '.join(STATE_WORDS)}",
    )


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LONGEST


#: Only what the document shows.
DOCUMENT = ServiceProfile()


def find_profile(profile: ServiceProfile | str | os.PathLike[str]) -> ServiceProfile:
    """A profile itself, or the one of a TOML file's path."""
    if isinstance(profile, ServiceProfile):
        return profile
    if profile == DOCUMENT.name:
        return DOCUMENT
    return ServiceProfile.load(os.fspath(profile))
