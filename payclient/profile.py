"""What the document leaves "not shown" about a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from payclient.errors import ConfigurationError
from payclient.models import PrepareRequest, SaleRequest

__all__: list[str] = [
    "DOCUMENT",
    "PAYPHONE",
    "ConfirmProfile",
    "ReturnProfile",
    "ServiceProfile",
    "StatusProfile",
    "UndoProfile",
]

#: The three states of a Sale (§3).
STATE_WORDS = ("Pendiente", "Aceptado", "Cancelado")

#: Seconds; more than any time of a payment, and few enough to count with.
LONGEST = 1e9

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_CODE = re.compile(r"-?[0-9]{1,9}")
_PATH = re.compile(r"/[A-Za-z0-9_./{}-]*")


# What is of the wrong kind passes the converters unchanged: the check names it.


def to_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def to_set(value: Iterable[Any]) -> frozenset[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        with suppress(TypeError):  # entries that do not hash
            return frozenset(value)
    return value  # type: ignore[return-value]  # see above


def _to_codes(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """TOML's keys are texts."""
    if not isinstance(value, Mapping):
        return value
    return to_mapping(
        {
            int(code) if isinstance(code, str) and _CODE.fullmatch(code) else code: state
            for code, state in value.items()
        }
    )


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
        converter=to_mapping, factory=lambda: {word: word for word in STATE_WORDS}
    )
    #: The field of the answer that holds the state as a number, where there is one. An answer whose number contradicts
    #: its word decides nothing.
    code_field: str | None = None
    #: The service's numbers -> the three states (§3); in TOML the numbers are keys, such as `3 = "Aceptado"`.
    codes: Mapping[int, str] = attrs.field(converter=_to_codes, factory=dict)


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
    too_late_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)


@attrs.frozen(kw_only=True)
class ReturnProfile:
    """What a form's redirect brings to `response_url` (§6: its parameters are not shown). Any letter case."""

    #: 0, or left out: nothing was paid.
    transaction_id: str
    client_transaction_id: str
    #: In the place of the ids where the form could not be used.
    message: str | None = None


TABLES: dict[str, type] = {
    "status": StatusProfile,
    "confirm": ConfirmProfile,
    "cancel": UndoProfile,
    "reverse": UndoProfile,
    "returned": ReturnProfile,
}


#: Raises where the first is false: a setting, and what it must be.
Need = Callable[[object, str, str], None]


def check_tables(profile: Mapping[str, Any], need: Need) -> None:
    """What stands in each table of a profile, given by its name."""
    for name, kind in TABLES.items():
        need(profile[name] is None or isinstance(profile[name], kind), name, f"is a {kind.__name__}")
    if profile["confirm"] is not None:
        _check_confirm(profile["confirm"], need)
        need(profile["status"] is not None, "confirm", "needs [status], whose words its answer has")
    for name in ("cancel", "reverse"):
        if profile[name] is not None:
            _check_undo(name, profile[name], need)
    if profile["returned"] is not None:
        _check_returned(profile["returned"], need)
    if profile["status"] is not None:
        _check_status(profile["status"], need)


def _check_status(status: StatusProfile, need: Need) -> None:
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
    codes = status.codes
    need(
        isinstance(codes, Mapping)
        and all(type(code) is int and state in STATE_WORDS for code, state in codes.items()),
        "status.codes",
        f"must map the service's numbers to {', '.join(STATE_WORDS)}",
    )
    need(
        status.code_field is None or (isinstance(status.code_field, str) and status.code_field and codes),
        "status.code_field",
        "must be the name of a field, with its numbers in status.codes",
    )
    need(status.code_field is not None or not codes, "status.codes", "must stand beside status.code_field")


def _check_confirm(confirm: ConfirmProfile, need: Need) -> None:
    need(_is_path(confirm.path), "confirm.path", "is a path")
    for name in ("transaction_id_field", "client_transaction_id_field"):
        need(_is_name(getattr(confirm, name)), f"confirm.{name}", "is the name of a field")
    need(is_seconds(confirm.window), "confirm.window", "is a positive number of seconds")


def _check_undo(table: str, undo: UndoProfile, need: Need) -> None:
    for name in ("transaction_id", "client_transaction_id"):
        path, field = getattr(undo, f"by_{name}"), getattr(undo, f"{name}_field")
        need(path is None or _is_path(path), f"{table}.by_{name}", "is a path")
        need(
            _is_name(field) or (field is None and path is None),
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


def _check_returned(returned: ReturnProfile, need: Need) -> None:
    for name in ("transaction_id", "client_transaction_id", "message"):
        value = getattr(returned, name)
        need(
            _is_name(value) or (value is None and name == "message"),
            f"returned.{name}",
            "is the name of a parameter",
        )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _is_path(value: object) -> bool:
    return isinstance(value, str) and _PATH.fullmatch(value) is not None and "{" not in value


def is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LONGEST


_REQUEST_FIELDS = {field.name for model in (SaleRequest, PrepareRequest) for field in attrs.fields(model)}

#: HTTP statuses of something between us and the service that gave up: the service may have gone on.
GAVE_UP = frozenset({408, 425, 499})

_LANGUAGE = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*,;=. -]{0,99}")


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
    #: Error codes that mean "this client transaction id is there". Like 2061 they refuse only where one query by
    #: client transaction id finds nothing. An index that lags behind would hide what a repeated POST created, so the
    #: sale is queried again before each further attempt, and once in the background after `absent_after`, while its
    #: tracker is open: a sale that is found paid then becomes ACCEPTED, with a critical log line.
    duplicate_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Error codes of a service that failed, and may have created something all the same.
    uncertain_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Error codes of a status query that mean "no such transaction".
    not_found_codes: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Status queries allowed in a minute, over all transactions; None: no limit known.
    queries_per_minute: float | None = None
    #: HTTP statuses known to create nothing whatever their body.
    refusing_statuses: frozenset[int] = attrs.field(default=frozenset(), converter=to_set)
    #: Seconds until a push request expires (§8).
    sale_window: float = 300.0
    #: Seconds that a form link lives (§8).
    form_window: float = 600.0
    #: Seconds after the permit from which "not found" may prove absence; twice the sale window unless given.
    absent_after: float = attrs.field()
    #: Hosts that a form link may name; None: not checked.
    link_hosts: frozenset[str] | None = attrs.field(default=None, converter=to_set)
    #: Longest text by our field name, in characters (§2.2: length limits are not shown).
    max_lengths: Mapping[str, int] = attrs.field(factory=dict, converter=to_mapping)
    #: Smallest and largest number by our field name.
    ranges: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, converter=to_mapping)
    status: StatusProfile | None = None
    confirm: ConfirmProfile | None = None
    cancel: UndoProfile | None = None
    reverse: UndoProfile | None = None
    returned: ReturnProfile | None = None

    @absent_after.default
    def _twice_the_sale_window(self) -> float:
        return 2 * self.sale_window if is_seconds(self.sale_window) else 600.0

    def __attrs_post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(cls, path: str | Path) -> ServiceProfile:
        """Read a profile from a TOML file. Unknown or bad settings raise `ConfigurationError` naming them."""
        import tomllib  # here: most programs load one profile at the most

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
        for table, kind in TABLES.items():
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
            for field in attrs.fields(TABLES[table]):
                if field.default is attrs.NOTHING and field.name not in values:
                    raise ConfigurationError(
                        f"profile setting {table}.{field.name}: is required beside [{table}]"
                    )
            settings[table] = TABLES[table](**values)
        ranges = settings.get("ranges")
        if isinstance(ranges, Mapping):  # TOML has no tuples
            settings["ranges"] = {
                name: tuple(pair) if isinstance(pair, list) else pair for name, pair in ranges.items()
            }
        return cls(**settings)


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
            (value is None and optional) or (isinstance(value, str) and NAME.fullmatch(value)),
            setting,
            "is the name of a field",
        )
    need(
        type(profile.phone_optional_with_nick_name) is bool,
        "phone_optional_with_nick_name",
        "is true or false",
    )
    for setting in ("sale_window", "form_window", "absent_after"):
        need(is_seconds(getattr(profile, setting)), setting, "is a positive number of seconds")
    need(
        profile.absent_after >= profile.sale_window,
        "absent_after",
        f'must be at least sale_window ({profile.sale_window:g} s): an earlier "not found" proves nothing',
    )
    rate = profile.queries_per_minute
    need(rate is None or is_seconds(rate), "queries_per_minute", "is a positive number")
    for setting in ("duplicate_codes", "uncertain_codes", "not_found_codes", "refusing_statuses"):
        codes = getattr(profile, setting)
        good = isinstance(codes, frozenset) and all(type(code) is int for code in codes)
        need(good, setting, "is a list of integers")
    need(
        all(
            100 <= status <= 599 and status // 100 != 2 and status not in GAVE_UP
            for status in profile.refusing_statuses
        ),
        "refusing_statuses",
        "are HTTP statuses, none of them a success, nor 408, 425 or 499: after those the service may go on",
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
    for setting in ("max_lengths", "ranges"):
        for name in getattr(profile, setting):
            need(name in _REQUEST_FIELDS, setting, f"no request has a field {name}")
    need(
        profile.link_hosts is None
        or (
            isinstance(profile.link_hosts, frozenset)
            and all(isinstance(host, str) and host for host in profile.link_hosts)
        ),
        "link_hosts",
        "is a list of host names",
    )
    check_tables({name: getattr(profile, name) for name in TABLES}, need)


#: Only what the document shows.
DOCUMENT = ServiceProfile()


#: PayPhone (Ecuador).
PAYPHONE = ServiceProfile(
    name="payphone",
    # V api-implementacion: one address for test and production; which of them it is, is the application's setting.
    base_url="https://pay.payphonetodoesposible.com",
    # V codigos-de-error: messages follow Accept-Language.
    message_language="es",
    # V api-implementacion: with it, the phone may be left out.
    nick_name_flag="chargeByNickName",
    phone_optional_with_nick_name=True,
    # V boton-de-pago-por-redireccion: `es` or `en`.
    language_field="lang",
    # V boton-de-pago-por-redireccion. A fourth link, payWithPaymentCode, stands in `PrepareResult.links`.
    wallet_link_field="payWithPayPhone",
    # V C: names are case-insensitive there; this is the one of the field tables.
    response_url_field="responseUrl",
    # V codigos-de-error: "duplicate clientTransactionId"; after a time-out it means that it exists.
    duplicate_codes=frozenset({23}),
    # V codigos-de-error: the service failed, which does not say that it did nothing.
    uncertain_codes=frozenset({500, 501}),
    # V codigos-de-error, L: "no such transaction"; with HTTP 404 for a form that nobody has paid.
    not_found_codes=frozenset({20}),
    # V api-implementacion. What is answered past it is not published.
    queries_per_minute=30,
    # V api-implementacion: 5 minutes to approve a push; V boton-de-pago-por-redireccion: 10 minutes for a form.
    sale_window=300,
    form_window=600,
    max_lengths={
        # V L boton-de-pago-por-redireccion; for a Sale none is published.
        "client_transaction_id": 50,
        # V L boton-de-pago-por-redireccion
        "reference": 100,
    },
    ranges={
        # V api-implementacion: hours from UTC.
        "time_zone": (-12, 14),
        # V api-implementacion: cents.
        "amount": (1, 99_999_999),
        "amount_without_tax": (0, 99_999_999),
        "amount_with_tax": (0, 99_999_999),
        "tax": (0, 99_999_999),
        "service": (0, 99_999_999),
        "tip": (0, 99_999_999),
    },
    status=StatusProfile(
        # V C api-implementacion: an object.
        by_transaction_id="/api/Sale/{transaction_id}",
        # V C api-implementacion: an array; L: 404 with code 20 for a form that nobody has paid.
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        # V api-implementacion: beside `statusCode` 2, 1 and 3. The Spanish words stand in its prose only.
        state_field="transactionStatus",
        states={"Pending": "Pendiente", "Canceled": "Cancelado", "Approved": "Aceptado"},
        code_field="statusCode",
        codes={1: "Pendiente", 2: "Cancelado", 3: "Aceptado"},
    ),
    # V boton-de-pago-por-redireccion: repeatable; a paid form that is not confirmed within 5 minutes is reversed.
    confirm=ConfirmProfile(
        path="/api/button/V2/Confirm",
        transaction_id_field="id",
        client_transaction_id_field="clientTxId",
        window=300,
    ),
    # V C boton-de-pago-por-redireccion: appended to an existing query; `id=0` when cancelled, `msg` without an id when
    # the domain is not the registered one.
    returned=ReturnProfile(transaction_id="id", client_transaction_id="clientTransactionId", message="msg"),
    # V cancelar-solicitud: only while pending; else 25 with 2029 inside.
    cancel=UndoProfile(
        by_transaction_id="/api/Cancel",
        transaction_id_field="id",
        by_client_transaction_id="/api/Cancel/Client",
        client_transaction_id_field="clientId",
        too_late_codes=frozenset({25, 2029}),
    ),
    # V reversar-pago: on the same day until 20:00 (UTC-5); else 20, which also says "no such transaction".
    reverse=UndoProfile(
        by_transaction_id="/api/Reverse",
        transaction_id_field="id",
        by_client_transaction_id="/api/Reverse/Client",
        client_transaction_id_field="clientId",
        too_late_codes=frozenset({20}),
    ),
    # Not set: `link_hosts`, since the hosts of the forms rest on clients alone (C); `refusing_statuses`, since no HTTP
    # status is published that creates nothing whatever its body (L C: 400 for 800 and 23, 404 for 20, 100 and 120).
)

#: By the name that stands for them wherever a profile is taken.
PRESETS = {profile.name: profile for profile in (DOCUMENT, PAYPHONE)}


def find_profile(profile: ServiceProfile | str | os.PathLike[str]) -> ServiceProfile:
    """A profile itself, a preset by its name, or the profile of a TOML file's path."""
    if isinstance(profile, ServiceProfile):
        return profile
    preset = PRESETS.get(profile) if isinstance(profile, str) else None
    if preset is not None:
        return preset
    try:
        return ServiceProfile.load(os.fspath(profile))
    except ConfigurationError as error:
        fault = str(error)
    if not os.path.exists(profile):
        fault += f"; the presets are {', '.join(PRESETS)}"
    raise ConfigurationError(fault)
