"""One cell -> one value, and why it is not one. Nothing is coerced, rounded or guessed, and no value is repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from typing import Any

import attrs
from cattrs import ClassValidationError, IterableValidationError
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationNote

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows.decimals import cents_of
from payclient.rows.formats import AMOUNTS, INTEGERS, KEY
from payclient.validation import from_service

__all__ = [
    "FORMULA",
    "SHOWABLE",
    "CellError",
    "Cells",
    "FileRow",
    "RowError",
    "check_text",
    "errors_of",
]

#: "5,93999E+11": what a spreadsheet leaves of a long number.
SHORTENED = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?[eE]\+?[0-9]+")

#: What a spreadsheet calculates, also hidden behind a sign: `=A1`, `+SUM(A1)`, `@SUM(A1)`.
FORMULA = re.compile(r"\s*(=|[-+@]\s*[A-Za-z.]+\()", re.ASCII)

#: A name that cannot be a person's data.
SHOWABLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

#: What a spreadsheet shows where it could not calculate: `#REF!`, `#N/A`, `#¿NOMBRE?`, or a number too wide.
_BROKEN = re.compile(r"#(N/A|[\w¡¿/ ]+[!?]|#{2,})")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
#: Only with both a fraction and a sign of the exponent: "12E5" may be somebody's order.
_SHORTENED_ID = re.compile(r"[0-9][.,][0-9]+E\+[0-9]+")
_IDS = frozenset({KEY, "store_id", "client_user_id"})


class CellError(ValueError):
    """One value cannot be taken; its text says why and may be shown."""


@attrs.frozen
class RowError:
    """Why a row cannot be sent; `str()` is one line."""

    #: Counted from 1, the header included.
    line: int
    #: As the file spells it; None where the reason is about the whole row.
    column: str | None
    reason: str

    @property
    def words(self) -> str:
        """The column and the reason."""
        return f"{self.column}: {self.reason}" if self.column else self.reason

    def __str__(self) -> str:
        return f"line {self.line}{', ' if self.column else ': '}{self.words}"


@attrs.define
class FileRow:
    """One row of a file: a request, or the errors that forbid one."""

    line: int
    #: What stands in the key column; None where that is missing or not a text.
    key: str | None
    request: SaleRequest | None
    errors: tuple[RowError, ...]
    #: The cells or the line as they were read, for `--skip-bad`.
    source: Any = attrs.field(eq=False, repr=False)


@attrs.frozen
class Cells:
    """How the cells of one file are read."""

    #: Amounts are units with decimals, not whole cents.
    decimal: bool = False
    #: The decimal mark; None: no amount has one.
    mark: str | None = None

    def read(self, cell: object, field: str) -> Any:
        """Return the value of a text, or of a typed cell of a spreadsheet. `CellError` says what is wrong with it."""
        if not isinstance(cell, str):
            return self._typed(cell, field)
        if any("\udc80" <= character <= "\udcff" for character in cell) if not cell.isascii() else False:
            raise CellError("is not of the file's encoding: give --encoding, or save it as CSV UTF-8")
        if field in INTEGERS:
            return self.cents(cell) if field in AMOUNTS else _whole(cell)
        if field == "by_nick_name":
            if cell not in ("true", "false"):
                raise CellError("must be true or false")
            return cell == "true"
        check_text(cell, field)
        return cell

    def cents(self, cell: str) -> int:
        """Return an amount in cents."""
        if self.decimal:
            try:
                return cents_of(cell, self.mark)
            except ValueError as error:
                raise CellError(str(error)) from None
        if _INTEGER.fullmatch(cell):
            return int(cell)
        raise CellError("must be whole cents (write 10.50 as 1050), or use --amounts decimal")

    def _typed(self, cell: object, field: str) -> Any:
        if isinstance(cell, CellError):
            raise cell
        if isinstance(cell, bool):
            if field == "by_nick_name":
                return cell
            raise CellError("must not be true or false")
        if isinstance(cell, (date, time, timedelta)):
            raise CellError("must not be a date or a time: format the column as text")
        # What a spreadsheet itself shows of a number: fifteen digits.
        text = f"{cell:.15g}" if isinstance(cell, float) else str(cell)
        if field in AMOUNTS and self.decimal:
            return attrs.evolve(self, mark=".").cents(text)
        if field in INTEGERS:
            return self.cents(text) if field in AMOUNTS else _whole(text)
        if field == "phone_number":
            raise CellError(
                "must be a text, since a number keeps no zero in front: format the column as text"
            )
        if not _INTEGER.fullmatch(text):
            raise CellError("must be a text, not a number: format the column as text")
        return text


def _whole(cell: str) -> int:
    if _INTEGER.fullmatch(cell):
        return int(cell)
    raise CellError("must be a whole number")


def check_text(text: str, field: str) -> None:
    """Raise `CellError` for what a spreadsheet made of a text."""
    if field == "phone_number" and re.fullmatch(r"[0-9]+\.0", text):
        raise CellError("is a number that ends in .0: write it as text")
    if (field == "phone_number" and SHORTENED.fullmatch(text)) or (
        field in _IDS and _SHORTENED_ID.fullmatch(text)
    ):
        raise CellError("is a number as a spreadsheet shortens it: format the column as text")
    if not text.isascii() and "\N{REPLACEMENT CHARACTER}" in text:
        raise CellError("has a character that was lost when the file was converted")
    if FORMULA.match(text):
        raise CellError("is a formula, where its value is meant")
    if text.startswith("#") and _BROKEN.fullmatch(text):
        raise CellError("is an error of the spreadsheet")


def errors_of(error: Exception, line: int, spelled: Mapping[str, str], path: str = "") -> list[RowError]:
    """Return every fault that an error of the model or of cattrs names, with the column as the file spells it."""
    if isinstance(error, InvalidRequestError):
        fields = [(from_service(each.message), "; ".join(each.error_descriptions)) for each in error.errors]
        return [RowError(line, f"{path}{spelled.get(field, field)}", reason) for field, reason in fields]
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        named, others = error.group_exceptions()
        found = [each for other in others for each in errors_of(other, line, spelled, path)]
        for inner, note in named:
            item = isinstance(note, IterableValidationNote)
            place = f"{path.removesuffix('.')}[{note.index}]." if item else f"{path}{note.name}."  # type: ignore[union-attr]  # by its class
            found += errors_of(inner, line, spelled, place)
        return found
    name = path.removesuffix(".") or None
    if isinstance(error, ForbiddenExtraKeysError):
        names = [f"{path}{each}" if SHOWABLE.fullmatch(each) else name for each in sorted(error.extra_fields)]
        return [RowError(line, each, "unknown name") for each in names]
    reason = "is required" if isinstance(error, KeyError) else "is not valid"
    return [RowError(line, name, str(error) if isinstance(error, CellError) else reason)]
