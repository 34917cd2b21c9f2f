"""How a file of rows is written: what its reader is told, and what it finds out by itself."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Literal

import attrs

from payclient.amounts import COMPONENTS
from payclient.errors import ConfigurationError
from payclient.models import SaleRequest
from payclient.rows.decimals import MARKS
from payclient.validation import from_service, to_service

__all__ = ["AMOUNTS", "FAULT", "FIELDS", "INTEGERS", "KEY", "Format", "field_of"]

#: The default key column.
KEY = "client_transaction_id"

#: The column in which `--skip-bad` says why a row was left out; a reader passes over it.
FAULT = "fault"

FIELDS = frozenset(field.name for field in attrs.fields(SaleRequest))
AMOUNTS = frozenset({"amount", *COMPONENTS})
INTEGERS = AMOUNTS | {"time_zone"}


def field_of(name: str) -> str | None:
    """Return the field that a name means in one of its two exact spellings; None for any other."""
    field = from_service(name)
    return field if field in FIELDS and name in (field, to_service(field)) else None


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    """Spell the keys as the model does."""
    fields: dict[str, str] = {}
    for name, value in given.items():
        field = field_of(name)
        if field is None or field == "order":
            raise ConfigurationError(f"there is no field {name!r} of a row")
        if field in fields:
            raise ConfigurationError(f"{field} is given twice")
        fields[field] = value
    return fields


@attrs.frozen(kw_only=True)
class Format:
    """What is known of a file before it is read. Raises `ConfigurationError` for a value that is not valid."""

    #: The column that is the client transaction id; it may be another field's as well.
    key: str = KEY
    #: field -> the column that holds it, where that has another name.
    columns: Mapping[str, str] = attrs.field(factory=dict, converter=_fields)
    #: field -> its value in every row.
    constants: Mapping[str, str] = attrs.field(factory=dict, converter=_fields, repr=False)
    #: Columns to pass over.
    ignored: frozenset[str] = frozenset()
    #: None: found by the header.
    delimiter: str | None = None
    #: None: found by the bytes.
    encoding: str | None = None
    #: Whole cents, or units such as 10.50.
    amounts: Literal["cents", "decimal"] = "cents"
    #: `,` or `.`; None: found by the amounts, where they are decimal.
    decimal_mark: str | None = None

    def __attrs_post_init__(self) -> None:
        both = sorted(self.columns.keys() & self.constants.keys())
        used = sorted(self.ignored & {*self.columns.values(), self.key})
        for fault, words in (
            (not self.key.strip(), "the key column's name is empty"),
            (
                KEY in self.columns and self.key != KEY,
                f"the key column is given twice: {self.key} and {self.columns.get(KEY)}",
            ),
            (KEY in self.constants, f"{KEY} must be each row's own; --set gives every row the same"),
            (both, f"{''.join(both[:1])} is a column and a constant at once"),
            (used, f"the column {''.join(used[:1])} is used and ignored at once"),
            (
                self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\0'),
                "the delimiter must be one character, such as ; or a tab",
            ),
            (self.amounts not in ("cents", "decimal"), "amounts must be cents or decimal"),
            (
                self.decimal_mark is not None and self.amounts == "cents",
                "a decimal mark is for decimal amounts: give --amounts decimal",
            ),
            (self.decimal_mark not in (None, *MARKS), "the decimal mark must be , or ."),
            (
                self.encoding is not None and not _is_encoding(self.encoding),
                "the encoding must be one such as utf-8, cp1252 or utf-16",
            ),
        ):
            if fault:
                raise ConfigurationError(words)

    @property
    def key_column(self) -> str:
        """The key column's name in the file, as far as it was told."""
        return self.columns.get(KEY, self.key)


def _is_encoding(name: str) -> bool:
    try:
        found = codecs.lookup(name).name
        return found.startswith("utf-16") or '"\n\r,;\t'.encode(found) == b'"\n\r,;\t'
    except (LookupError, ValueError, TypeError):
        return False
