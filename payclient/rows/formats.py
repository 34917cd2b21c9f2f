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
from payclient.spelling import from_service, to_service

__all__ = ["AMOUNTS", "FAULT", "FIELDS", "INTEGERS", "KEY", "Format", "field_of"]

#: The default key column.
KEY = "client_transaction_id"

#: The column in which rows that were left out say why; a reader passes over it.
FAULT = "fault"

FIELDS = frozenset(field.name for field in attrs.fields(SaleRequest))
AMOUNTS = frozenset({"amount", *COMPONENTS})
INTEGERS = AMOUNTS | {"time_zone"}


def field_of(name: str) -> str | None:
    """The field that a name means in one of its two exact spellings; None for any other."""
    field = from_service(name)
    return field if field in FIELDS and name in (field, to_service(field)) else None


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    """The keys as the model spells them."""
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
    """What is known of a file before it is read. Raises `ConfigurationError` for what cannot be."""

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
        if not self.key.strip():
            raise ConfigurationError("the key column's name is empty")
        if KEY in self.columns and self.key != KEY:
            raise ConfigurationError(f"the key column is given twice: {self.key} and {self.columns[KEY]}")
        if KEY in self.constants:
            raise ConfigurationError(f"{KEY} is each row's own")
        if both := sorted(self.columns.keys() & self.constants.keys()):
            raise ConfigurationError(f"{both[0]} is a column and a constant at once")
        if both := sorted(self.ignored & {*self.columns.values(), self.key}):
            raise ConfigurationError(f"the column {both[0]} is used and ignored at once")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\0'):
            raise ConfigurationError("the delimiter is one character, such as ; or a tab")
        if self.amounts not in ("cents", "decimal"):
            raise ConfigurationError("amounts are cents or decimal")
        if self.decimal_mark is not None and self.amounts == "cents":
            raise ConfigurationError("a decimal mark is for decimal amounts")
        if self.decimal_mark not in (None, *MARKS):
            raise ConfigurationError("the decimal mark is , or .")
        if self.encoding is not None:
            _check_encoding(self.encoding)

    @property
    def key_column(self) -> str:
        """The key column's name in the file, as far as it was told."""
        return self.columns.get(KEY, self.key)


def _check_encoding(name: str) -> None:
    try:
        found = codecs.lookup(name)
        wide = found.name.startswith("utf-16")
        good = wide or '"\n\r,;\t'.encode(found.name) == b'"\n\r,;\t'
    except (LookupError, ValueError, TypeError):
        good = False
    if not good:
        raise ConfigurationError("the encoding is one such as utf-8, cp1252 or utf-16")
