"""What forbids a row: line, column, reason and the value's class. Never the value: cells hold personal data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import attrs
from cattrs import ClassValidationError, IterableValidationError
from cattrs.errors import IterableValidationNote

from payclient.errors import InvalidRequestError
from payclient.spelling import from_service

__all__ = ["FORMULA", "SHORTENED", "CellError", "Fault", "faults_of", "kind_of"]

#: "5,93999E+11": what a spreadsheet leaves of a long number.
SHORTENED = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?[eE]\+?[0-9]+")

#: What a spreadsheet calculates, also hidden behind a sign: `=A1`, `+SUM(A1)`, `@SUM(A1)`.
FORMULA = re.compile(r"\s*(=|[-+@]\s*[A-Za-z.]+\()", re.ASCII)

#: What it shows where it could not: `#REF!`, `#N/A`, `#¿NOMBRE?`, or a number wider than its column.
_BROKEN = re.compile(r"#(N/A|[\w¡¿/ ]+[!?]|#{2,})")

_DATE = re.compile(r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,' \N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}]*")


class CellError(ValueError):
    """One value cannot be taken; its text says why and may be shown."""


@attrs.frozen
class Fault:
    """Why a row cannot be sent; `str()` is one line."""

    #: Counted from 1, the header included.
    line: int
    #: As the file spells it; None where it is about the whole row.
    column: str | None
    reason: str
    #: The class of the value, such as "9 digits"; None where there is none.
    kind: str | None = None
    #: Nothing after it can be told apart, so the row cannot be left out either.
    fatal: bool = False

    def __str__(self) -> str:
        place = f"line {self.line}" + (f", {self.column}" if self.column else "")
        return f"{place}: {self.reason}" + (f" (it is {self.kind})" if self.kind else "")


def kind_of(value: Any) -> str:
    """The class of a value, which says nothing of a person."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, (float, Decimal)):
        return "a number with a fraction"
    if isinstance(value, (list, tuple)):
        return "an array"
    if not isinstance(value, str):
        return "empty" if value is None else "an object"
    if not value.strip():
        return "blank" if value else "empty"
    if FORMULA.match(value):
        return "a formula"
    if _BROKEN.fullmatch(value):
        return "a spreadsheet's error"
    if value.isascii() and value.isdigit():
        return f"{len(value)} digits" if len(value) > 1 else "1 digit"
    if SHORTENED.fullmatch(value):
        return "a number with an exponent"
    if _DATE.fullmatch(value):
        return "a date"
    if _NUMBER.fullmatch(value):
        marks = [
            word for mark, word in ((",", "a comma"), (".", "a point"), ("-", "a sign")) if mark in value
        ]
        return f"a number with {' and '.join(marks)}" if marks else "a number with a blank or a sign"
    return f"a text of {len(value)} characters" if len(value) > 1 else "one character"


def shown_as_error(cell: str) -> bool:
    """Whether a spreadsheet wrote that it could not calculate."""
    return _BROKEN.fullmatch(cell) is not None


def faults_of(
    error: Exception, line: int, spelled: Mapping[str, str], values: Mapping[str, Any], path: str = ""
) -> list[Fault]:
    """Every fault that an error of the model or of cattrs names, with the column as the file spells it."""
    if isinstance(error, InvalidRequestError):
        return [
            Fault(
                line,
                f"{path}{spelled.get(field, field)}",
                "; ".join(detail.error_descriptions),
                kind_of(values[field]) if not path and field in values else None,
            )
            for detail in error.errors
            if (field := from_service(detail.message))
        ]
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        named, others = error.group_exceptions()
        faults = [fault for other in others for fault in faults_of(other, line, spelled, values, path)]
        for inner, note in named:
            place = (
                f"{path.removesuffix('.')}[{note.index}]."
                if isinstance(note, IterableValidationNote)
                else f"{path}{note.name}."
            )
            faults += faults_of(inner, line, spelled, values, place)
        return faults
    name = path.removesuffix(".")
    if isinstance(error, KeyError):
        return [Fault(line, name, "is required")]
    kind = kind_of(values[name]) if name in values else None
    return [Fault(line, name, str(error) if isinstance(error, CellError) else "is wrong", kind)]
