"""One cell of text -> one value. Nothing is coerced, rounded or guessed."""

from __future__ import annotations

import re
from typing import Any

import attrs

from payclient.rows.decimals import cents_of
from payclient.rows.faults import FORMULA, SHORTENED, CellError, shown_as_error
from payclient.rows.formats import AMOUNTS, INTEGERS, KEY

__all__ = ["Cells"]

_INTEGER = re.compile(r"-?[0-9]{1,19}")
#: Only with both a fraction and a sign of the exponent: "12E5" may be somebody's order.
_SHORTENED_ID = re.compile(r"[0-9][.,][0-9]+E\+[0-9]+")
_FLOAT = re.compile(r"[0-9]+\.0")
_IDS = frozenset({KEY, "store_id", "client_user_id"})


@attrs.frozen
class Cells:
    """How the cells of one file are read."""

    #: Amounts are units with decimals, not whole cents.
    decimal: bool = False
    #: The decimal mark; None: no amount has one.
    mark: str | None = None

    def read(self, cell: str, field: str) -> Any:
        """The value of a cell. `CellError` says what is wrong with it."""
        if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
            raise CellError("is not of the file's encoding: give --encoding, or save it as CSV UTF-8")
        if field in INTEGERS:
            return self.cents(cell) if field in AMOUNTS else _whole(cell)
        if field == "by_nick_name":
            if cell not in ("true", "false"):
                raise CellError("is true or false")
            return cell == "true"
        check_text(cell, field)
        return cell

    def cents(self, cell: str) -> int:
        """An amount in cents."""
        if self.decimal:
            try:
                return cents_of(cell, self.mark)
            except ValueError as error:
                raise CellError(str(error)) from None
        if _INTEGER.fullmatch(cell):
            return int(cell)
        raise CellError(
            "is no whole number of cents: 10.50 is written 1050, without point, comma or sign, "
            "or give --amounts decimal"
        )


def _whole(cell: str) -> int:
    if _INTEGER.fullmatch(cell):
        return int(cell)
    raise CellError("is no whole number")


def check_text(text: str, field: str) -> None:
    """Raise `CellError` for what a spreadsheet made of a text."""
    if field == "phone_number":
        if SHORTENED.fullmatch(text):
            raise CellError("is a number as a spreadsheet shortens it: format the column as text")
        if _FLOAT.fullmatch(text):
            raise CellError("is a number that ends in .0: write it as text")
    elif field in _IDS and _SHORTENED_ID.fullmatch(text):
        raise CellError("is a number as a spreadsheet shortens it: format the column as text")
    if not text.isascii() and "\N{REPLACEMENT CHARACTER}" in text:
        raise CellError("has a character that was lost when the file was converted")
    if FORMULA.match(text):
        raise CellError("is a formula, where its value is meant")
    if text.startswith("#") and shown_as_error(text):
        raise CellError("is an error of the spreadsheet")
