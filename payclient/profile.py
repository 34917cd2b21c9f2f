"""The settings for what the document leaves "not shown" of a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed. A preset is a file like the user's own, in `profiles/`, with its sources in comments.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from attrs.validators import optional
from cattrs import Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from payclient.errors import ConfigurationError
from payclient.models import PrepareRequest, SaleRequest
from payclient.validation import check_type, is_personal, is_positive, read_regular, rules_of, to_service

__all__ = [
    "DOCUMENT",
    "PAYPHONE",
    "ConfirmProfile",
    "ReturnProfile",
    "ServiceProfile",
    "StatusProfile",
    "UndoProfile",
]

#: HTTP statuses of something between us and the service that gave up: the service may have gone on.
GAVE_UP = frozenset({408, 425, 499})

#: The three states of a Sale (§3).
STATE_WORDS = ("Pendiente", "Aceptado", "Cancelado")

#: Seconds; more than any time of a payment, and few enough to count with.
LONGEST = 1e9

# --- What a setting must be

#: Raises `ConfigurationError` naming the setting.
Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _must(what: str, good: Callable[..., object], *beside: str) -> Validator:
    """Make a validator of a value, and of the settings of its table that `beside` names."""

    def validate(table: Any, setting: attrs.Attribute[Any], value: Any) -> None:
        if not good(value, *(getattr(table, name) for name in beside)):
            raise ConfigurationError(f"profile setting {setting.name}: must {what}")

    return validate


def _matches(expression: str) -> Callable[[object], bool]:
    match = re.compile(expression).fullmatch
    return lambda value: isinstance(value, str) and match(value) is not None


def _path_with(place: str) -> Validator:
    def good(value: object) -> bool:
        return isinstance(value, str) and place in value and _is_path(value.replace(place, "x"))

    return _must(f"be a path with {place}", good)


def _is_seconds(value: object) -> bool:
    return is_positive(value) and value <= LONGEST


def _is_int(value: object) -> bool:
    return type(value) is int


def _set_of(good: Callable[[Any], object]) -> Callable[[object], bool]:
    return lambda values: isinstance(values, frozenset) and all(map(good, values))


def _name_for(field: str) -> Validator:
    """Make the validator of the service's name of a request's field, which is not that of another field."""
    others = {to_service(name).lower() for name in _request_rules.keys() - {field}}
    what = "be the name of a field, and of no other field of a request"
    return _must(what, lambda name: _is_name(name) and name.lower() not in others)


def _map_of(key: Callable[[Any], object], value: Callable[[Any], object]) -> Callable[[object], bool]:
    return lambda pairs: isinstance(pairs, Mapping) and all(key(k) and value(v) for k, v in pairs.items())


_is_text = _matches("(?s).+")
_is_name = _matches(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_is_path = _matches(r"/[A-Za-z0-9_./-]*")
_states = _map_of(lambda word: isinstance(word, str), STATE_WORDS.__contains__)
_codes = _map_of(_is_int, STATE_WORDS.__contains__)
_request_rules = rules_of(SaleRequest) | rules_of(PrepareRequest)


def _is_field_of(kind: type) -> Callable[[object], bool]:
    return lambda name: name in _request_rules and _request_rules[name].kind is kind


LANGUAGE = _must(
    "be a language such as es, or a value of Accept-Language",
    _matches(r"[A-Za-z0-9*][A-Za-z0-9*,;=. -]{0,99}"),
)
BOOL = _must("be true or false", lambda value: type(value) is bool)
NAME = _must("be the name of a field", _is_name)
OTHER_NAME = _must(
    "be the name of a field other than transaction_id_field",
    lambda name, other: _is_name(name) and name.lower() != other.lower(),
    "transaction_id_field",
)
PARAMETER = _must("be the name of a parameter", _is_name)
WALLET_LINK = _must(
    "be the name of a link such as payWithBrand, and not payWithCard",
    _matches("payWith(?!Card$)[A-Za-z0-9_]{1,57}"),
)
PATH = _must("be a path", _is_path)
SECONDS = _must("be a positive number of seconds", _is_seconds)
CODES = _must("be a list of integers", _set_of(_is_int))
STATUSES = _must(
    "be a list of HTTP statuses without a success, 408, 425 and 499: after those the service may go on",
    _set_of(lambda it: _is_int(it) and 100 <= it <= 599 and it // 100 != 2 and it not in GAVE_UP),
)
FIELDS = _must(
    "list at most 20 fields of a status answer, none with a person's data: names, phones, e-mail addresses, documents, "
    "card holders and the first digits of cards are never kept",
    lambda names: (
        isinstance(names, tuple)
        and len(names) <= 20
        and all(_is_name(n) and not is_personal(n) for n in names)
    ),
)
HOSTS = _must(
    "be a list of host names, without https:// and port",
    _set_of(_matches(r"[\w.-]+|(?=.*:.*:)[0-9A-Fa-f:.]+")),
)
LENGTHS = _must(
    "map texts of requests to positive integers",
    _map_of(_is_field_of(str), lambda size: type(size) is int and size > 0),
)
RANGES = _must(
    "map numbers of requests to [smallest, largest]",
    _map_of(
        _is_field_of(int),
        lambda both: isinstance(both, tuple) and [*map(type, both)] == [int, int] and both[0] <= both[1],
    ),
)
SHAPES = _must(
    'map calling codes to phones as customers have them, with # for a digit, such as 593 = "0#########"',
    _map_of(_matches("[0-9]{1,4}"), _matches("[0-9]{0,3}#{4,14}")),
)
STATES = _must(
    f"map the service's words to {', '.join(STATE_WORDS)}", lambda states: states and _states(states)
)
CODE_FIELD = _must(
    "be the name of a field other than state_field, with its numbers in status.codes",
    lambda name, codes, state_field: _is_text(name) and codes != {} and name != state_field,
    "codes",
    "state_field",
)
STATE_CODES = _must(
    f"map the service's numbers to {', '.join(STATE_WORDS)}, beside status.code_field",
    lambda codes, code_field: _codes(codes) and (not codes or code_field is not None),
    "code_field",
)
ABSENCE = _must(
    'be at least sale_window: an earlier "not found" proves nothing',
    lambda seconds, sale_window: _is_seconds(seconds) and seconds >= sale_window,
    "sale_window",
)
HAS_PATH = _must(
    "have by_transaction_id or by_client_transaction_id",
    lambda table: table.by_transaction_id or table.by_client_transaction_id,
)
AFTER_STATUS = _must(
    "stand beside [status], whose words its answer has", lambda _, status: status is not None, "status"
)


def _name_beside(path_setting: str) -> Validator:
    """Make the validator of a field's name, which may be left out where its path is left out."""

    def good(name: object, path: object) -> bool:
        return _is_name(name) or (name is None and path is None)

    return _must("be the name of a field", good, path_setting)


def _table(kind: type, *more: Validator) -> Any:
    """Declare a table that may be left out."""
    is_kind = _must(f"be a {kind.__name__}", lambda table: isinstance(table, kind))
    return attrs.field(default=None, validator=optional([is_kind, *more]), metadata={"table": kind})


def _setting(validator: Validator) -> Any:
    """Declare a setting that may be left out."""
    return attrs.field(default=None, validator=optional(validator))


# A value of the wrong kind passes the converters unchanged: the validator names the setting.


def _to_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a read-only copy of a table, with tuples in the place of lists."""
    if not isinstance(value, Mapping):
        return value
    return MappingProxyType(
        {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    )


def _to_codes(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Turn keys that are numbers into integers: TOML's keys are texts."""
    is_code = _matches("-?[0-9]{1,9}")
    if isinstance(value, Mapping):
        value = {int(code) if is_code(code) else code: state for code, state in value.items()}
    return _to_mapping(value)


def _to_set(value: Iterable[Any]) -> frozenset[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        with suppress(TypeError):  # entries that do not hash
            return frozenset(value)
    return value  # type: ignore[return-value]  # see above


def _to_tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else value  # type: ignore[return-value]  # see above


# --- The tables: operations that the document does not show


@attrs.frozen(kw_only=True)
class StatusProfile:
    """How a transaction's status is queried; the document shows no endpoint (§4.2)."""

    #: Path with `{transaction_id}`; answers an object.
    by_transaction_id: str | None = _setting(_path_with("{transaction_id}"))
    #: Path with `{client_transaction_id}`; answers an object, or an array of them.
    by_client_transaction_id: str | None = _setting(_path_with("{client_transaction_id}"))
    #: The field of the answer that holds the state.
    state_field: str = attrs.field(validator=_must("be the name of a field", _is_text))
    #: The service's state words -> `Pendiente`, `Aceptado`, `Cancelado` (§3).
    states: Mapping[str, str] = attrs.field(
        factory=lambda: {word: word for word in STATE_WORDS}, converter=_to_mapping, validator=STATES
    )
    #: The field of the answer that holds the state as a number, where there is one. An answer whose number contradicts
    #: its word decides nothing.
    code_field: str | None = _setting(CODE_FIELD)
    #: The service's numbers -> the three states (§3); in TOML the numbers are keys, such as `3 = "Aceptado"`.
    codes: Mapping[int, str] = attrs.field(factory=dict, converter=_to_codes, validator=STATE_CODES)


@attrs.frozen(kw_only=True)
class ConfirmProfile:
    """How a paid form is confirmed, where the service reverses it otherwise; the document shows no such endpoint."""

    #: Answers the object of a status query.
    path: str = attrs.field(validator=PATH)
    #: The fields of its body.
    transaction_id_field: str = attrs.field(validator=NAME)
    client_transaction_id_field: str = attrs.field(validator=OTHER_NAME)
    #: Seconds from the payment until it is reversed unless it was confirmed.
    window: float = attrs.field(validator=SECONDS)


@attrs.frozen(kw_only=True)
class UndoProfile:
    """How a push request is withdrawn, or a payment reversed; the document shows neither. `true` is the success."""

    #: A path, and the field of its body that holds the id.
    by_transaction_id: str | None = _setting(PATH)
    transaction_id_field: str | None = attrs.field(default=None, validator=_name_beside("by_transaction_id"))
    by_client_transaction_id: str | None = _setting(PATH)
    client_transaction_id_field: str | None = attrs.field(
        default=None, validator=_name_beside("by_client_transaction_id")
    )
    #: Codes, general or in `errors`, for "not any more": the transaction is decided, or too old.
    too_late_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)


@attrs.frozen(kw_only=True)
class ReturnProfile:
    """The parameters that a form's redirect adds to `response_url` (§6: not shown), in any letter case."""

    #: 0, or left out: nothing was paid.
    transaction_id: str = attrs.field(validator=PARAMETER)
    client_transaction_id: str = attrs.field(validator=PARAMETER)
    #: The parameter that comes instead of the ids where the form could not be used.
    message: str | None = _setting(PARAMETER)


# --- The profile


@attrs.frozen(kw_only=True)
class ServiceProfile:
    """The settings of one concrete service. Seconds for times; see `DOCUMENT` for what needs no setting.

    Raises `ConfigurationError` naming the first setting that cannot be.

    - `name`: Of the profile, for logs and `repr`.
    - `base_url`: Where the service is, for sessions that are given no address.
    - `message_language`: The `Accept-Language` of every request, where messages follow it.
    - `nick_name_flag`: The boolean field for "charge the nick name" (§2.2: its name is not shown).
    - `phone_optional_with_nick_name`: Whether a Sale by nick name may leave the phone out.
    - `language_field`: The field of the form's language (§2.3: its name is not shown).
    - `wallet_link_field`: The field of the wallet form's link, which carries the service's brand (§2.6).
    - `response_url_field`: Samples spell it `responseUrl` and `ResponseUrl` (§2.3).
    - `duplicate_codes`: Error codes that mean "this client transaction id is there". Like 2061 they refuse only where
      one query by client transaction id finds nothing. An index that lags behind would hide what a repeated POST
      created, so the sale is queried again before each further attempt, and once in the background after
      `absent_after`, while its tracker is open: a sale that is found paid then becomes ACCEPTED, with a critical log
      line.
    - `uncertain_codes`: Error codes of a service that failed, and may have created something all the same.
    - `not_found_codes`: Error codes of a status query that mean "no such transaction".
    - `receipt_fields`: Fields of a status answer that are kept of an approval, as `Outcome.receipt`, in the ledger; by
      their names in the answer, at most 20. Fields with a person's data are refused. `message` and `messageCode`, where
      they are among these, are kept of a decline, too, as `Outcome.reason`.
    - `queries_per_minute`: Status queries allowed in a minute, over all transactions; None: no limit known.
    - `refusing_statuses`: HTTP statuses known to create nothing whatever their body.
    - `sale_window`: Seconds until a push request expires (§8).
    - `form_window`: Seconds that a form link lives (§8).
    - `absent_after`: Seconds after the permit from which "not found" may prove absence; twice the sale window unless
      given.
    - `link_hosts`: Hosts that a form link may name; None: not checked.
    - `max_lengths`: Longest text by our field name, in characters (§2.2: length limits are not shown).
    - `ranges`: Smallest and largest number by our field name.
    - `phone_shapes`: By calling code, how the service's customers have their phone, `#` for a digit, such as
      `0#########`. Files of charges are brought to it where that is exact; a phone that is not is a bad row.
    - `status`: How to query a status; None: the profile names no query.
    - `confirm`: How to confirm a form that came back; None: it cannot be.
    - `cancel`: How to withdraw a push request; None: it cannot be.
    - `reverse`: How to give a payment back; None: it cannot be.
    - `returned`: What a browser brings back from a form; None: not known.
    """

    name: str = attrs.field(default="document", validator=_must("be a text", _is_text))
    base_url: str | None = _setting(_must("be an address", _is_text))
    message_language: str | None = _setting(LANGUAGE)
    nick_name_flag: str | None = _setting(_name_for("by_nick_name"))
    phone_optional_with_nick_name: bool = attrs.field(default=False, validator=BOOL)
    language_field: str | None = _setting(_name_for("language"))
    wallet_link_field: str | None = _setting(WALLET_LINK)
    response_url_field: str = attrs.field(default="responseUrl", validator=_name_for("response_url"))
    duplicate_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    uncertain_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    not_found_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    receipt_fields: tuple[str, ...] = attrs.field(default=(), converter=_to_tuple, validator=FIELDS)
    queries_per_minute: float | None = _setting(_must("be a positive number", _is_seconds))
    refusing_statuses: frozenset[int] = attrs.field(
        default=frozenset(), converter=_to_set, validator=STATUSES
    )
    sale_window: float = attrs.field(default=300.0, validator=SECONDS)
    form_window: float = attrs.field(default=600.0, validator=SECONDS)
    absent_after: float = attrs.field(validator=ABSENCE)
    link_hosts: frozenset[str] | None = attrs.field(
        default=None, converter=_to_set, validator=optional(HOSTS)
    )
    max_lengths: Mapping[str, int] = attrs.field(factory=dict, converter=_to_mapping, validator=LENGTHS)
    ranges: Mapping[str, tuple[int, int]] = attrs.field(factory=dict, converter=_to_mapping, validator=RANGES)
    phone_shapes: Mapping[str, str] = attrs.field(factory=dict, converter=_to_mapping, validator=SHAPES)
    status: StatusProfile | None = _table(StatusProfile, HAS_PATH)
    confirm: ConfirmProfile | None = _table(ConfirmProfile, AFTER_STATUS)
    cancel: UndoProfile | None = _table(UndoProfile, HAS_PATH)
    reverse: UndoProfile | None = _table(UndoProfile, HAS_PATH)
    returned: ReturnProfile | None = _table(ReturnProfile)

    @absent_after.default
    def _twice_the_sale_window(self) -> float:
        return 2 * self.sale_window if _is_seconds(self.sale_window) else 600.0

    @classmethod
    def load(cls, path: str | Path) -> ServiceProfile:
        """Read a profile from a TOML file. Unknown or bad settings raise `ConfigurationError` naming them."""
        try:
            settings = tomllib.loads(read_regular(path).decode())
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"the profile {path} must be TOML: {error}") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or type(error).__name__
            raise ConfigurationError(f"the profile {path} cannot be read: {why}") from None
        return cls.parse(settings)

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ServiceProfile:
        """Make a profile from the tables of its TOML form."""
        check_type("settings", settings, Mapping)
        return _structure(settings, cls, kind=cls)  # type: ignore[no-any-return]  # a profile


@cache
def _reader(kind: type) -> Callable[[Any, Any], Any]:
    """Make the reader of a table. Each value passes as it is, and the validators judge it."""
    hooks: dict[str, Any] = {
        field.name: override(
            struct_hook=partial(_structure, kind=field.metadata.get("table"), table=f"{field.name}.")
        )
        for field in attrs.fields(kind)
    }
    return make_dict_structure_fn(
        kind, Converter(), _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=False, **hooks
    )


def _structure(value: Any, _: object, *, kind: type | None, table: str = "") -> Any:
    """Read a table; any other value stays as it is. Raises `ConfigurationError` naming a setting and its table."""
    if kind is None or not isinstance(value, Mapping):
        return value
    try:
        return _reader(kind)(value, kind)
    except ForbiddenExtraKeysError as error:
        unknown = ", ".join(sorted(f"{table}{name}" for name in error.extra_fields))
        names = ", ".join(field.name for field in attrs.fields(kind))
        known = f"; [{table[:-1]}] takes {names}" if table else ""
        raise ConfigurationError(f"unknown profile setting {unknown}{known}") from None
    except KeyError as error:
        (name,) = error.args
        raise ConfigurationError(
            f"profile setting {table}{name}: is required beside [{table[:-1]}]"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(
            str(error).replace("profile setting ", f"profile setting {table}", 1)
        ) from None


# --- The presets

#: Only what the document shows.
DOCUMENT = ServiceProfile()

#: PayPhone (Ecuador): `profiles/payphone.toml`.
PAYPHONE = ServiceProfile.load(Path(__file__).with_name("profiles") / "payphone.toml")

#: By the name that stands for them wherever a profile is taken.
PRESETS = {profile.name: profile for profile in (DOCUMENT, PAYPHONE)}


def find_profile(profile: ServiceProfile | str | os.PathLike[str] | None) -> ServiceProfile:
    """Return a profile itself, a preset by its name, or the profile of a TOML file's path; `DOCUMENT` for None."""
    if profile is None:
        return DOCUMENT
    if isinstance(profile, ServiceProfile):
        return profile
    if not isinstance(profile, (str, os.PathLike)):
        raise ConfigurationError(
            f"profile must be a ServiceProfile, a preset's name or a file's path; {type(profile).__name__} was given"
        )
    if isinstance(profile, str) and profile in PRESETS:
        return PRESETS[profile]
    try:
        return ServiceProfile.load(os.fspath(profile))
    except ConfigurationError as error:
        presets = "" if os.path.exists(profile) else f"; the presets are {', '.join(PRESETS)}"
        raise ConfigurationError(f"{error}{presets}") from None
