"""A request's body in the names and types of the document, as far as the settings let a client differ."""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

import orjson

from .refusals import FieldFault, Refusal, validation_refusal
from .rules import NESTED_FIELDS

__all__ = ["canonical", "read_body"]

_WHOLE = re.compile(r"\s*-?[0-9]{1,18}\s*", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def read_body(
    content_type: str, raw: bytes, fields: Mapping[str, type], *, tolerant: bool
) -> dict[str, object] | Refusal:
    """The members of a body, or the refusal of one that is none."""
    if tolerant and content_type == "application/x-www-form-urlencoded":
        try:
            body: object = dict(parse_qsl(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=500))
        except ValueError:
            return validation_refusal([FieldFault("body", "El cuerpo no es un formulario")])
    elif content_type != "application/json":  # §5.2
        return validation_refusal([FieldFault("Content-Type", "Debe ser application/json")])
    else:
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return validation_refusal([FieldFault("body", "El cuerpo no es JSON")])
    if not isinstance(body, dict):
        return validation_refusal([FieldFault("body", "El cuerpo debe ser un objeto")])
    return canonical(body, fields) if tolerant else body


def canonical(members: Mapping[str, object], fields: Mapping[str, type]) -> dict[str, object]:
    """The members by the names in `fields`, whatever the case of their letters, and of those types where possible.

    What is null or unknown says nothing; of a name that comes twice the last one counts.
    """
    names = {name.lower(): name for name in fields}
    read: dict[str, object] = {}
    for spelled, value in members.items():
        name = names.get(spelled.lower())
        if name is not None and value is not None:
            read[name] = _converted(name, value, fields[name])
    return read


def _converted(name: str, value: object, kind: type) -> object:
    nested = NESTED_FIELDS.get(name, {})
    match value:
        case str() if kind is int and _WHOLE.fullmatch(value):
            return int(value)
        case str() if kind is bool and value.strip().lower() in _BOOLEANS:
            return _BOOLEANS[value.strip().lower()]
        case str() if kind is not str and not value.strip():
            return None
        case int() | float() if kind is str and not isinstance(value, bool):
            return str(value)
        case dict() if kind is dict:
            return canonical(value, nested)
        case list() if kind is list:
            return [canonical(one, nested) if isinstance(one, dict) else one for one in value]
        case _:
            return value
