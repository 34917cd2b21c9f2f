"""The tables of a profile: operations that the document does not show, each with its own settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import attrs

__all__ = ["ConfirmProfile", "ReturnProfile", "StatusProfile", "UndoProfile"]

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
