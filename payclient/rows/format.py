"""What is told of a file before its rows are read, and what the names of its columns mean."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal

import attrs

from payclient.amounts import COMPONENTS
from payclient.errors import ConfigurationError
from payclient.models import SaleRequest
from payclient.validation import from_service, to_service

__all__: list[str] = []

#: The field that is the key of a row.
KEY = "client_transaction_id"

#: The column in which `--skip-bad` gives the reason; a reader passes over it.
FAULT = "fault"

#: What the row is for: not a field of the request, and sent to nobody.
PURCHASE = "purchase"

_FIELDS = frozenset(field.name for field in attrs.fields(SaleRequest)) | {PURCHASE}
AMOUNTS = frozenset({"amount", *COMPONENTS})
INTEGERS = AMOUNTS | {"time_zone"}

#: A name that cannot be a person's data.
SHOWABLE = re.compile(r"[^\W\d_][\w.-]{0,63}")


def _field_of(name: str) -> str | None:
    """Return the field that a name means in one of its two exact spellings."""
    field = from_service(name)
    return field if field in _FIELDS and name in (field, to_service(field)) else None


def plain(name: str) -> str:
    """Return the name of a column without its accents and capitals: Teléfono is telefono."""
    return "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)).casefold()


def _plain_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(plain, names))


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    """Spell the keys as the model does."""
    fields: dict[str, str] = {}
    for name, value in given.items():
        field = _field_of(name)
        if field is None or field == "order":
            raise ConfigurationError(f"there is no field {name!r} of a row")
        if field in fields:
            raise ConfigurationError(f"{field} is given twice")
        fields[field] = value.strip()
    return fields


def _is_encoding(name: str) -> bool:
    try:
        found = codecs.lookup(name).name
        return found.startswith("utf-16") or '"\n\r,;\t'.encode(found) == b'"\n\r,;\t'
    except (LookupError, ValueError, TypeError):
        return False


@attrs.frozen(kw_only=True)
class Format:
    """What is known of a file before it is read. Raises `ConfigurationError` for a value that is not valid."""

    #: field -> the column that holds it, where that has another name; the key's column may be another field's, too.
    columns: Mapping[str, str] = attrs.field(factory=dict, converter=_fields)
    #: field -> its value in every row.
    constants: Mapping[str, str] = attrs.field(factory=dict, converter=_fields, repr=False)
    #: Columns to pass over, and whether all others of no known name are.
    ignored: frozenset[str] = frozenset()
    ignore_rest: bool = False
    #: A spreadsheet's sheet by its name, or its number from 1; None: the one with content.
    sheet: str | None = None
    #: The line of a table's header, from 1; None: the first of the lines that name most columns.
    header_row: int | None = None
    #: Columns to pass over that a report takes over, whatever their accents and capitals.
    kept: frozenset[str] = attrs.field(default=(), converter=_plain_names)
    #: None: found by the header.
    delimiter: str | None = None
    #: None: found by the bytes.
    encoding: str | None = None
    #: Whole cents, or units such as 10.50; a JSONL file has whole cents only.
    amounts: Literal["cents", "decimal"] = "cents"
    #: None: found by the decimal amounts.
    decimal_mark: Literal[",", "."] | None = None

    def __attrs_post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\0'):
            raise ConfigurationError("the delimiter must be one character, such as ; or a tab")
        if self.encoding is not None and not _is_encoding(self.encoding):
            raise ConfigurationError("the encoding must be one such as utf-8, cp1252 or utf-16")
        if self.decimal_mark is not None and self.amounts == "cents":
            raise ConfigurationError("a decimal mark needs --amounts decimal")

    @property
    def key(self) -> str:
        """The name of the key column."""
        return self.columns.get(KEY, KEY)

    def passes_over(self, name: str) -> bool:
        """Return whether a column of no known name may stand in the file."""
        wanted = name in ("", FAULT) or name in self.ignored or plain(name) in self.kept
        return wanted or self.ignore_rest

    def fields_of(self, name: str) -> list[str]:
        """Return the fields that a column of this name holds: none, one, or the key beside another."""
        own = _field_of(name)
        fields = [
            field
            for field, column in self.columns.items()
            if plain(name) == plain(column) or (own and own == _field_of(column))
        ]
        if own and own not in self.columns and name not in self.ignored and fields in ([], [KEY]):
            fields.append(own)
        return fields


def _unknown(name: str, number: int, form: Format) -> str:
    """Return what is wrong with a name that means no field; one that may be a person's data is not repeated."""
    elsewhere = form.columns.get(_field_of(name) or "")
    if elsewhere is not None:
        return f"{name} stands beside the column {elsewhere}, which is read instead"
    return f"unknown column {name}" if SHOWABLE.fullmatch(name) else f"column {number} has no known name"


class Columns:
    """What the names of a header, or of one JSON object, mean."""

    def __init__(self, names: Sequence[str], form: Format) -> None:
        self.names: list[str] = [name.strip() for name in names]
        self.fields: list[list[str]] = [form.fields_of(name) for name in self.names]
        pairs = list(zip(self.names, self.fields, strict=True))
        self.known: list[str] = [*chain.from_iterable(self.fields)]
        #: The name under which the file has each field.
        self.spelled: dict[str, str] = {KEY: form.key} | {field: n for n, fields in pairs for field in fields}
        #: Columns that nothing is read of, and that nobody keeps.
        self.unread: list[str] = [n for n, fields in pairs if n and not fields and plain(n) not in form.kept]
        #: What is wrong with the names.
        self.faults: list[str] = [
            _unknown(name, number, form)
            for number, (name, fields) in enumerate(pairs, 1)
            if not fields and not form.passes_over(name)
        ]
        for field in sorted({*self.known}):
            if self.known.count(field) > 1:
                self.faults.append(f"{field} is there twice")
            if field in form.constants:
                self.faults.append(f"{field} is a column, and --set gives it as well")

    def missing(self, form: Format) -> list[str]:
        """Return what else is wrong with the header of a table."""
        given, wanted = {*self.known, *form.constants}, [*form.columns, KEY, "country_code", "currency"]
        wanted += [] if {"phone_number", "nick_name"} & given else ["phone_number"]
        order = ["order must be in a JSONL file"] if "order" in given else []
        lacking = [field for field in dict.fromkeys(wanted) if field not in given]
        mapped = [
            f"{'--key' if field == KEY else f'--map {field}'} names the column {form.columns[field]}"
            for field in lacking
            if field in form.columns
        ]
        if mapped:
            names = [
                name if SHOWABLE.fullmatch(name) else f"(column {n})" for n, name in enumerate(self.names, 1)
            ]
            mapped[-1] += f", and the file has {', '.join(names)}"
        way = {KEY: "; name yours by --key"}
        lacking = [
            f"there is no column {name}{way.get(name, '')}" for name in lacking if name not in form.columns
        ]
        return order + mapped + lacking
