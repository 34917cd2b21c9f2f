"""What the document leaves "not shown" about a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from payclient.errors import ConfigurationError

__all__ = ["DOCUMENT", "ConfirmProfile", "ReturnProfile", "ServiceProfile", "StatusProfile", "UndoProfile"]

#: The three states of a Sale (§3).
STATE_WORDS = ("Pendiente", "Aceptado", "Cancelado")

#: Seconds; more than any time of a payment, and few enough to count with.
LONGEST = 1e9

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_PATH = re.compile(r"/[A-Za-z0-9_./{}-]*")
_LANGUAGE = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*,;=. -]{0,99}")


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
class ConfirmProfile:
    """How a paid form is confirmed, where the service reverses it otherwise; the document shows no such endpoint."""

    #: Answers the object of a status query.
    path: str
    #: The fields of its body.
    transaction_id_field: str
    client_transaction_id_field: str
    #: Seconds from the payment until it is reversed unless it was confirmed.
    window: float


@attrs.frozen(kw_only=True)
class UndoProfile:
    """How a push request is withdrawn, or a payment reversed; the document shows neither. `true` is the success."""

    #: A path, and the field of its body that holds the id.
    by_transaction_id: str | None = None
    transaction_id_field: str | None = None
    by_client_transaction_id: str | None = None
    client_transaction_id_field: str | None = None
    #: Codes, general or in `errors`, that say "not any more": it is decided, or too late.
    too_late_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_set)


@attrs.frozen(kw_only=True)
class ReturnProfile:
    """What a form's redirect brings to `response_url` (§6: its parameters are not shown). Any letter case."""

    #: 0, or left out: nothing was paid.
    transaction_id: str
    client_transaction_id: str
    #: In the place of the ids where the form could not be used.
    message: str | None = None


@attrs.frozen(kw_only=True)
class ServiceProfile:
    """The settings of one concrete service. Seconds for times; see `DOCUMENT` for what needs no setting."""

    name: str = "document"
    #: Where the service is, for sessions that are given no address.
    base_url: str | None = None
    #: The `Accept-Language` of every request, where messages follow it.
    message_language: str | None = None
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
    confirm: ConfirmProfile | None = None
    cancel: UndoProfile | None = None
    reverse: UndoProfile | None = None
    returned: ReturnProfile | None = None

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
        known = {field.name for field in attrs.fields(cls)}
        unknown = [name for name in settings if name not in known]
        tables: dict[str, Any] = {}
        for table, kind in _TABLES.items():
            values = settings.pop(table, None)
            if values is None:
                continue
            if not isinstance(values, Mapping):
                raise ConfigurationError(f"profile setting {table}: is a table")
            inner = attrs.fields_dict(kind)
            unknown += [f"{table}.{name}" for name in values if name not in inner]
            tables[table] = values
        if unknown:
            raise ConfigurationError(f"unknown profile setting {', '.join(sorted(unknown))}")
        for table, values in tables.items():
            for field in attrs.fields(_TABLES[table]):
                if field.default is attrs.NOTHING and field.name not in values:
                    raise ConfigurationError(
                        f"profile setting {table}.{field.name}: is required beside [{table}]"
                    )
            settings[table] = _TABLES[table](**values)
        ranges = settings.get("ranges")
        if isinstance(ranges, Mapping):  # TOML has no tuples
            settings["ranges"] = {
                name: tuple(pair) if isinstance(pair, list) else pair for name, pair in ranges.items()
            }
        return cls(**settings)


_TABLES: dict[str, type] = {
    "status": StatusProfile,
    "confirm": ConfirmProfile,
    "cancel": UndoProfile,
    "reverse": UndoProfile,
    "returned": ReturnProfile,
}


def _check(profile: ServiceProfile) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be."""

    def need(good: object, setting: str, what: str) -> None:
        if not good:
            raise ConfigurationError(f"profile setting {setting}: {what}")

    need(isinstance(profile.name, str) and profile.name, "name", "is a text")
    need(
        profile.base_url is None or (isinstance(profile.base_url, str) and profile.base_url),
        "base_url",
        "is an address",
    )
    language = profile.message_language
    need(
        language is None or (isinstance(language, str) and _LANGUAGE.fullmatch(language)),
        "message_language",
        "is a language such as es, or a value of Accept-Language",
    )
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
    for table, kind in _TABLES.items():
        value = getattr(profile, table)
        need(value is None or isinstance(value, kind), table, f"is a {kind.__name__}")
    _check_operations(profile, need)
    status = profile.status
    if status is None:
        return
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


def _check_operations(profile: ServiceProfile, need: Callable[[object, str, str], None]) -> None:
    """What stands in [confirm], [cancel], [reverse] and [returned]."""

    def is_name(value: object) -> bool:
        return isinstance(value, str) and _NAME.fullmatch(value) is not None

    def is_path(value: object) -> bool:
        return isinstance(value, str) and _PATH.fullmatch(value) is not None and "{" not in value

    if (confirm := profile.confirm) is not None:
        need(is_path(confirm.path), "confirm.path", "is a path")
        for name in ("transaction_id_field", "client_transaction_id_field"):
            need(is_name(getattr(confirm, name)), f"confirm.{name}", "is the name of a field")
        need(_seconds(confirm.window), "confirm.window", "is a positive number of seconds")
        need(profile.status is not None, "confirm", "needs [status], whose words its answer has")
    for table in ("cancel", "reverse"):
        undo: UndoProfile | None = getattr(profile, table)
        if undo is None:
            continue
        for name in ("transaction_id", "client_transaction_id"):
            path, field = getattr(undo, f"by_{name}"), getattr(undo, f"{name}_field")
            need(path is None or is_path(path), f"{table}.by_{name}", "is a path")
            need(
                is_name(field) or (field is None and path is None),
                f"{table}.{name}_field",
                "is the name of a field",
            )
        need(
            undo.by_transaction_id or undo.by_client_transaction_id,
            table,
            "needs by_transaction_id or by_client_transaction_id",
        )
        codes = undo.too_late_codes
        need(
            isinstance(codes, frozenset) and all(type(code) is int for code in codes),
            f"{table}.too_late_codes",
            "is a list of integers",
        )
    if (returned := profile.returned) is not None:
        for name in ("transaction_id", "client_transaction_id", "message"):
            value = getattr(returned, name)
            need(
                is_name(value) or (value is None and name == "message"),
                f"returned.{name}",
                "is the name of a parameter",
            )


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LONGEST


#: Only what the document shows.
DOCUMENT = ServiceProfile()
