"""What the document leaves "not shown" about a concrete service: names, paths, states, codes, limits.

`DOCUMENT` holds only what the document shows. A call that needs a missing name raises `ConfigurationError` naming
the setting; nothing is guessed. A preset is a file like the user's own, in `profiles/`, with its sources in comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import optional

from payclient.errors import ConfigurationError
from payclient.models import PrepareRequest, SaleRequest

if TYPE_CHECKING:
    import cattrs

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

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_CODE = re.compile(r"-?[0-9]{1,9}")
_PATH = re.compile(r"/[A-Za-z0-9_./{}-]*")
_LANGUAGE = re.compile(r"[A-Za-z0-9*][A-Za-z0-9*,;=. -]{0,99}")

_REQUEST_FIELDS = {field.name for model in (SaleRequest, PrepareRequest) for field in attrs.fields(model)}


# --- What a setting must be

#: Raises `ConfigurationError` naming the setting.
Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _must(what: str, good: Callable[[Any], object]) -> Validator:
    """Make a validator of a value alone."""
    return _must_beside(what, lambda value, _: good(value))


def _must_beside(what: str, good: Callable[[Any, Any], object]) -> Validator:
    """Make a validator of a value and its table."""

    def validate(table: Any, setting: attrs.Attribute[Any], value: Any) -> None:
        if not good(value, table):
            raise ConfigurationError(f"profile setting {setting.name}: {what}")

    return validate


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_path(value: object) -> bool:
    return isinstance(value, str) and _PATH.fullmatch(value) is not None and "{" not in value


def _is_path_with(place: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and place in value and _is_path(value.replace(place, "x"))


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= LONGEST


def _is_limit(value: object) -> bool:
    return type(value) is int and value > 0


def _is_range(value: object) -> bool:
    if not isinstance(value, tuple) or [type(bound) for bound in value] != [int, int]:
        return False
    smallest, largest = value
    return bool(smallest <= largest)


def _maps(key: Callable[[Any], object], value: Callable[[Any], object]) -> Callable[[object], bool]:
    return lambda mapping: (
        isinstance(mapping, Mapping) and all(key(name) and value(each) for name, each in mapping.items())
    )


def _is_set_of(good: Callable[[Any], object]) -> Callable[[object], bool]:
    return lambda values: isinstance(values, frozenset) and all(map(good, values))


def _is_code(value: object) -> bool:
    return type(value) is int


def _is_refusing(status: object) -> bool:
    return type(status) is int and 100 <= status <= 599 and status // 100 != 2 and status not in GAVE_UP


NAME = _must("must be the name of a field", _is_name)
PARAMETER = _must("must be the name of a parameter", _is_name)
PATH = _must("must be a path", _is_path)
SECONDS = _must("must be a positive number of seconds", _is_seconds)
CODES = _must("must be a list of integers", _is_set_of(_is_code))


# What is of the wrong kind passes the converters unchanged: the validator names the setting.


def _to_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def _to_set(value: Iterable[Any]) -> frozenset[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        with suppress(TypeError):  # entries that do not hash
            return frozenset(value)
    return value  # type: ignore[return-value]  # see above


def _to_ranges(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """TOML has no tuples."""
    if not isinstance(value, Mapping):
        return value
    return _to_mapping(
        {name: tuple(pair) if isinstance(pair, list) else pair for name, pair in value.items()}
    )


def _to_codes(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """TOML's keys are texts."""
    if not isinstance(value, Mapping):
        return value
    return _to_mapping(
        {
            int(code) if isinstance(code, str) and _CODE.fullmatch(code) else code: state
            for code, state in value.items()
        }
    )


# --- The tables: operations that the document does not show


@attrs.frozen(kw_only=True)
class StatusProfile:
    """How a transaction's status is queried; the document shows no endpoint (§4.2)."""

    #: Path with `{transaction_id}`; answers an object.
    by_transaction_id: str | None = attrs.field(
        default=None,
        validator=optional(_must("must be a path with {transaction_id}", _is_path_with("{transaction_id}"))),
    )
    #: Path with `{client_transaction_id}`; answers an object, or an array of them.
    by_client_transaction_id: str | None = attrs.field(
        default=None,
        validator=optional(
            _must("must be a path with {client_transaction_id}", _is_path_with("{client_transaction_id}"))
        ),
    )
    #: The field of the answer that holds the state.
    state_field: str = attrs.field(validator=_must("must be the name of a field", _is_text))
    #: The service's state words -> `Pendiente`, `Aceptado`, `Cancelado` (§3).
    states: Mapping[str, str] = attrs.field(
        converter=_to_mapping,
        factory=lambda: {word: word for word in STATE_WORDS},
        validator=_must(
            f"must map the service's words to {', '.join(STATE_WORDS)}",
            lambda states: (
                states and _maps(lambda word: isinstance(word, str), STATE_WORDS.__contains__)(states)
            ),
        ),
    )
    #: The field of the answer that holds the state as a number, where there is one. An answer whose number contradicts
    #: its word decides nothing.
    code_field: str | None = attrs.field(
        default=None,
        validator=optional(
            _must_beside(
                "must be the name of a field, with its numbers in status.codes",
                lambda name, status: _is_text(name) and status.codes != {},
            )
        ),
    )
    #: The service's numbers -> the three states (§3); in TOML the numbers are keys, such as `3 = "Aceptado"`.
    codes: Mapping[int, str] = attrs.field(
        converter=_to_codes,
        factory=dict,
        validator=_must_beside(
            f"must map the service's numbers to {', '.join(STATE_WORDS)}, beside status.code_field",
            lambda codes, status: (
                _maps(_is_code, STATE_WORDS.__contains__)(codes)
                and (not codes or status.code_field is not None)
            ),
        ),
    )


@attrs.frozen(kw_only=True)
class ConfirmProfile:
    """How a paid form is confirmed, where the service reverses it otherwise; the document shows no such endpoint."""

    #: Answers the object of a status query.
    path: str = attrs.field(validator=PATH)
    #: The fields of its body.
    transaction_id_field: str = attrs.field(validator=NAME)
    client_transaction_id_field: str = attrs.field(validator=NAME)
    #: Seconds from the payment until it is reversed unless it was confirmed.
    window: float = attrs.field(validator=SECONDS)


def _field_beside(path: str) -> Validator:
    """The name of a field, which may be left out where its path is."""
    return _must_beside(
        "must be the name of a field",
        lambda name, table: _is_name(name) or (name is None and getattr(table, path) is None),
    )


@attrs.frozen(kw_only=True)
class UndoProfile:
    """How a push request is withdrawn, or a payment reversed; the document shows neither. `true` is the success."""

    #: A path, and the field of its body that holds the id.
    by_transaction_id: str | None = attrs.field(default=None, validator=optional(PATH))
    transaction_id_field: str | None = attrs.field(default=None, validator=_field_beside("by_transaction_id"))
    by_client_transaction_id: str | None = attrs.field(default=None, validator=optional(PATH))
    client_transaction_id_field: str | None = attrs.field(
        default=None, validator=_field_beside("by_client_transaction_id")
    )
    #: Codes, general or in `errors`, that say "not any more": it is decided, or too late.
    too_late_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)


@attrs.frozen(kw_only=True)
class ReturnProfile:
    """What a form's redirect brings to `response_url` (§6: its parameters are not shown). Any letter case."""

    #: 0, or left out: nothing was paid.
    transaction_id: str = attrs.field(validator=PARAMETER)
    client_transaction_id: str = attrs.field(validator=PARAMETER)
    #: In the place of the ids where the form could not be used.
    message: str | None = attrs.field(default=None, validator=optional(PARAMETER))


# --- The profile


def _table(kind: type, *needed: str) -> Any:
    """Declare a table, of whose settings at least one of `needed` is given."""
    is_kind = _must(f"must be a {kind.__name__}", lambda table: isinstance(table, kind))
    has_one = _must(
        f"needs {' or '.join(needed)}",
        lambda table: not needed or any(getattr(table, name) is not None for name in needed),
    )
    return attrs.field(default=None, validator=optional([is_kind, has_one]))


_BY_IDS = ("by_transaction_id", "by_client_transaction_id")


@attrs.frozen(kw_only=True)
class ServiceProfile:
    """The settings of one concrete service. Seconds for times; see `DOCUMENT` for what needs no setting.

    Raises `ConfigurationError` naming the first setting that cannot be.
    """

    name: str = attrs.field(default="document", validator=_must("must be a text", _is_text))
    #: Where the service is, for sessions that are given no address.
    base_url: str | None = attrs.field(
        default=None, validator=optional(_must("must be an address", _is_text))
    )
    #: The `Accept-Language` of every request, where messages follow it.
    message_language: str | None = attrs.field(
        default=None,
        validator=optional(
            _must(
                "must be a language such as es, or a value of Accept-Language",
                lambda value: isinstance(value, str) and _LANGUAGE.fullmatch(value),
            )
        ),
    )
    #: The boolean field for "charge the nick name" (§2.2: its name is not shown).
    nick_name_flag: str | None = attrs.field(default=None, validator=optional(NAME))
    #: Whether a Sale by nick name may leave the phone out.
    phone_optional_with_nick_name: bool = attrs.field(
        default=False, validator=_must("must be true or false", lambda value: type(value) is bool)
    )
    #: The field of the form's language (§2.3: its name is not shown).
    language_field: str | None = attrs.field(default=None, validator=optional(NAME))
    #: The field of the wallet form's link, which carries the service's brand (§2.6).
    wallet_link_field: str | None = attrs.field(default=None, validator=optional(NAME))
    #: Samples spell it `responseUrl` and `ResponseUrl` (§2.3).
    response_url_field: str = attrs.field(default="responseUrl", validator=NAME)
    #: Error codes that mean "this client transaction id is there". Like 2061 they refuse only where one query by
    #: client transaction id finds nothing. An index that lags behind would hide what a repeated POST created, so the
    #: sale is queried again before each further attempt, and once in the background after `absent_after`, while its
    #: tracker is open: a sale that is found paid then becomes ACCEPTED, with a critical log line.
    duplicate_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    #: Error codes of a service that failed, and may have created something all the same.
    uncertain_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    #: Error codes of a status query that mean "no such transaction".
    not_found_codes: frozenset[int] = attrs.field(default=frozenset(), converter=_to_set, validator=CODES)
    #: Status queries allowed in a minute, over all transactions; None: no limit known.
    queries_per_minute: float | None = attrs.field(
        default=None, validator=optional(_must("must be a positive number", _is_seconds))
    )
    #: HTTP statuses known to create nothing whatever their body.
    refusing_statuses: frozenset[int] = attrs.field(
        default=frozenset(),
        converter=_to_set,
        validator=_must(
            "must be a list of HTTP statuses without a success, 408, 425 and 499: after those the service may go on",
            _is_set_of(_is_refusing),
        ),
    )
    #: Seconds until a push request expires (§8).
    sale_window: float = attrs.field(default=300.0, validator=SECONDS)
    #: Seconds that a form link lives (§8).
    form_window: float = attrs.field(default=600.0, validator=SECONDS)
    #: Seconds after the permit from which "not found" may prove absence; twice the sale window unless given.
    absent_after: float = attrs.field(
        validator=[
            SECONDS,
            _must_beside(
                'must be at least sale_window: an earlier "not found" proves nothing',
                lambda seconds, profile: seconds >= profile.sale_window,
            ),
        ]
    )
    #: Hosts that a form link may name; None: not checked.
    link_hosts: frozenset[str] | None = attrs.field(
        default=None,
        converter=_to_set,
        validator=optional(_must("must be a list of host names", _is_set_of(_is_text))),
    )
    #: Longest text by our field name, in characters (§2.2: length limits are not shown).
    max_lengths: Mapping[str, int] = attrs.field(
        factory=dict,
        converter=_to_mapping,
        validator=_must(
            "must map fields of requests to positive integers", _maps(_REQUEST_FIELDS.__contains__, _is_limit)
        ),
    )
    #: Smallest and largest number by our field name.
    ranges: Mapping[str, tuple[int, int]] = attrs.field(
        factory=dict,
        converter=_to_ranges,
        validator=_must(
            "must map fields of requests to [smallest, largest]",
            _maps(_REQUEST_FIELDS.__contains__, _is_range),
        ),
    )
    status: StatusProfile | None = _table(StatusProfile, *_BY_IDS)
    confirm: ConfirmProfile | None = _table(ConfirmProfile)
    cancel: UndoProfile | None = _table(UndoProfile, *_BY_IDS)
    reverse: UndoProfile | None = _table(UndoProfile, *_BY_IDS)
    returned: ReturnProfile | None = _table(ReturnProfile)

    @absent_after.default
    def _twice_the_sale_window(self) -> float:
        return 2 * self.sale_window if _is_seconds(self.sale_window) else 600.0

    @confirm.validator
    def _confirm_needs_status(self, setting: object, confirm: object) -> None:
        if confirm is not None and self.status is None:
            raise ConfigurationError("profile setting confirm: needs [status], whose words its answer has")

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
            raise ConfigurationError(f"the profile {path} must be TOML: {error}") from None
        return cls.parse(settings)

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ServiceProfile:
        """Make a profile from the tables of its TOML form."""
        from cattrs import ClassValidationError

        try:
            return _converter().structure(settings, cls)
        except ClassValidationError as error:
            faults = list(_faults(error))
        unknown = sorted(name for name, fault in faults if fault == "unknown")
        if unknown:
            raise ConfigurationError(f"unknown profile setting {', '.join(unknown)}")
        raise ConfigurationError("profile setting {}: {}".format(*faults[0]))


@cache
def _converter() -> cattrs.Converter:
    """Make the converter of TOML's tables. Values pass as they are, and the validators look at them."""
    import cattrs

    converter = cattrs.Converter(forbid_extra_keys=True, prefer_attrib_converters=True)
    for kind in (str, int, float, bool):
        converter.register_structure_hook(kind, lambda value, _: value)
    for table in (StatusProfile, ConfirmProfile, UndoProfile, ReturnProfile):
        read = converter.get_structure_hook(table)
        converter.register_structure_hook(
            table, lambda value, kind, read=read: read(value, kind) if isinstance(value, Mapping) else value
        )
    return converter


def _faults(error: cattrs.ClassValidationError, table: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting at fault and what is wrong with it, from what cattrs gathered."""
    from cattrs import ClassValidationError, ForbiddenExtraKeysError

    noted, others = error.group_exceptions()
    for each, note in noted:
        if isinstance(each, ClassValidationError):
            yield from _faults(each, f"{table}{note.name}.")
        else:  # a KeyError
            yield f"{table}{note.name}", f"is required beside [{table[:-1]}]"
    for each in others:
        if isinstance(each, ForbiddenExtraKeysError):
            yield from ((f"{table}{name}", "unknown") for name in each.extra_fields)
        else:
            name, _, fault = str(each).removeprefix("profile setting ").partition(": ")
            yield f"{table}{name}", fault


# --- The presets

#: Only what the document shows.
DOCUMENT = ServiceProfile()

#: PayPhone (Ecuador): `profiles/payphone.toml`.
PAYPHONE = ServiceProfile.load(Path(__file__).with_name("profiles") / "payphone.toml")

#: By the name that stands for them wherever a profile is taken.
PRESETS = {profile.name: profile for profile in (DOCUMENT, PAYPHONE)}


def find_profile(profile: ServiceProfile | str | os.PathLike[str]) -> ServiceProfile:
    """Return a profile itself, a preset by its name, or the profile of a TOML file's path."""
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
