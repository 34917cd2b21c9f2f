"""The options that describe a file, and the meaning of the names of its columns."""

# No `from __future__ import annotations`: cyclopts could not look up the types of inherited options.
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Literal

import attrs

from payclient.amounts import COMPONENTS
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import SaleRequest
from payclient.validation import from_service, to_service

#: The field that is the key of a row.
KEY = "client_transaction_id"

#: The column in which `--skip-bad` gives the reason; a reader passes over it.
FAULT = "fault"

#: The purchase that a row is for: a column, but not a field of the request, and not sent.
PURCHASE = "purchase"

AMOUNTS = frozenset({"amount", *COMPONENTS})
INTEGERS = AMOUNTS | {"time_zone"}

#: A name that cannot be a person's data.
SHOWABLE = re.compile(r"[^\W\d_][\w.-]{0,63}")


@lru_cache(1000)
def plain(name: str) -> str:
    """Return the name of a column without its accents, capitals and line breaks: Teléfono is telefono."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return " ".join(bare.casefold().split())


def pair_of(option: str, text: str, rule: str) -> tuple[str, str]:
    """Return what stands before and behind the first `=`. Raises `ConfigurationError` where either is missing."""
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise ConfigurationError(f"{option}: {rule}")
    return name, value


def delimiter_of(given: str | None) -> str | None:
    """Return the character that an option means by its name, such as tab. Raises `ConfigurationError` for others."""
    found = "\t" if given == "tab" else given
    if found is not None and (len(found) != 1 or found in '"\r\n\0'):
        raise ConfigurationError("the delimiter must be one character, such as ; or a tab")
    return found


#: ASCII, and sequences that encodings such as utf-7 read as other characters.
_ASCII = bytes(range(128)) + b"\\u \x1b$B!!"


def _is_encoding(name: str) -> bool:
    """Return whether every character of ASCII stands for itself: then an invalid byte can be kept and named."""
    try:
        return _ASCII.decode(name, "surrogateescape") == _ASCII.decode()
    except (LookupError, ValueError, TypeError):
        return False


@attrs.frozen(kw_only=True)
class Layout:
    """How a table is written; what is left out is found in the file, never guessed.

    Raises `ConfigurationError` for a value that is not valid. The fields are options.
    """

    sheet: str | None = None
    """A spreadsheet's sheet, by name or number. Default: the one with content."""
    header_row: int | None = None
    """The line of the header. Default: found, also under a title."""
    delimiter: str | None = attrs.field(default=None, converter=delimiter_of)
    """Between columns: , ; tab or another character. Default: found."""
    encoding: str | None = None
    """Such as utf-8 or cp1252. Default: found."""
    amounts: Literal["cents", "decimal"] | None = None
    """Whole cents (1050), or units with decimals (10.50). Default: decimal where an amount has a mark."""
    decimal_mark: Literal[",", "."] | None = None
    """The decimal mark of the amounts. Default: found."""
    ignore_rest: bool = False
    """Pass over all columns of no known name."""
    map: tuple[str, ...] = ()
    """FIELD=COLUMN, where a column has another name: phone_number=telefono. Repeatable."""

    FIELDS: ClassVar[frozenset[str]]

    def __attrs_post_init__(self) -> None:
        if self.encoding is not None and not _is_encoding(self.encoding):
            raise ConfigurationError("the encoding must be one such as utf-8 or cp1252")
        _ = self.columns  # raises where `map` is wrong

    @cached_property
    def columns(self) -> dict[str, str]:
        """The column of each field whose column has another name."""
        return self.pairs("--map", "must be FIELD=COLUMN", self.map)

    def pairs(self, option: str, rule: str, given: Sequence[str]) -> dict[str, str]:
        """Return what an option gives by `FIELD=VALUE`. Raises `ConfigurationError`."""
        pairs: dict[str, str] = {}
        for each in given:
            name, value = pair_of(option, each, rule)
            if (field := self.field_of(name)) is None or field == "order":
                fields = ", ".join(sorted(self.FIELDS - {"order"}))
                raise ConfigurationError(f"{option} {name}: the field must be one of {fields}")
            if field in pairs:
                raise ConfigurationError(f"{option} {name}: is given twice")
            pairs[field] = value
        return pairs

    def field_of(self, name: str) -> str | None:
        """Return the field that a name means in one of its two exact spellings."""
        field = from_service(name)
        return field if field in self.FIELDS and name in (field, to_service(field)) else None

    def fields_of(self, name: str) -> list[str]:
        """Return the fields that a column of this name holds: none, one, or the key beside another."""
        name = name.strip()
        own = self.field_of(name)
        fields = [
            field
            for field, column in self.columns.items()
            if plain(name) == plain(column) or (own and own == self.field_of(column))
        ]
        if own and own not in self.columns and fields in ([], [KEY]):
            fields.append(own)
        return fields


@attrs.frozen(kw_only=True)
class Format(Layout):
    """The format of a file of charges; the fields are options of `payclient charge`."""

    key: str = KEY
    """The column that is the client transaction id."""
    set: tuple[str, ...] = attrs.field(default=(), repr=False)
    """FIELD=VALUE, the same in every row: currency=USD. Repeatable."""
    keep: tuple[str, ...] = ()
    """A column that the report and the page take over, such as a name, and nothing else uses. Repeatable."""
    amounts: Literal["cents", "decimal"] | None = None
    """Whole cents (1050), or units with decimals (10.50). Default: cents; asked for where all are small."""

    FIELDS = frozenset(field.name for field in attrs.fields(SaleRequest)) | {PURCHASE}

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.decimal_mark is not None and self.amounts != "decimal":
            raise ConfigurationError("a decimal mark needs --amounts decimal")
        if self.key not in (KEY, self.columns[KEY]):
            raise ConfigurationError(
                "--key and --map client_transaction_id name two columns: give one of them"
            )
        _ = self.constants  # raises where `set` is wrong

    @cached_property
    def columns(self) -> dict[str, str]:
        """The column of the key, which may be another field's, too, and of each field whose column has another name."""
        return {KEY: self.key, **self.pairs("--map", "must be FIELD=COLUMN", self.map)}

    @cached_property
    def constants(self) -> dict[str, str]:
        """The value of each field that is the same in every row."""
        return self.pairs("--set", "must be FIELD=VALUE", self.set)


class Columns:
    """The meaning of the names in a header, or in one JSON object."""

    def __init__(self, names: Sequence[str], form: Format) -> None:
        self.names: list[str] = [name.strip() for name in names]
        self.fields: list[list[str]] = [form.fields_of(name) for name in self.names]
        self.known: Counter[str] = Counter(chain.from_iterable(self.fields))
        #: The name under which the file has each field.
        self.spelled: dict[str, str] = {KEY: form.columns[KEY]} | self.by_field(self.names)
        others = [(n, name) for n, name in enumerate(self.names, 1) if not self.fields[n - 1]]
        kept = {*map(plain, form.keep)}
        #: Columns that are neither read nor kept.
        self.unread: list[str] = [name for _, name in others if name and plain(name) not in kept]
        #: Faults of the names.
        self.faults: list[str] = [
            _unknown(name, n, form)
            for n, name in others
            if not (form.ignore_rest or name in ("", FAULT) or plain(name) in kept)
        ]
        for field, count in sorted(self.known.items()):
            if count > 1:
                self.faults.append(f"{field} is there twice")
            if field in form.constants:
                self.faults.append(f"{field} is a column, and --set gives it as well")

    def by_field(self, cells: Sequence[Any]) -> dict[str, Any]:
        """Return the cells of a record by their fields."""
        return {field: cell for fields, cell in zip(self.fields, cells, strict=True) for field in fields}

    def check(self, line: int, form: Format) -> None:
        """Raise `InvalidRequestError` for what is wrong with the header of a table, and for what it lacks."""
        if not self.known:
            raise InvalidRequestError(
                f"line {line} names no known column: is the header missing? Give columns of other names by --map, "
                "such as --map phone_number=telefono"
            )
        given = {*self.known, *form.constants}
        mapped = [
            f"{'--key' if field == KEY else f'--map {field}'} names the column {column}"
            for field, column in form.columns.items()
            if field not in given and field != column
        ]
        if mapped:
            mapped[-1] += f", and the file has {', '.join(self._shown_names())}"
        customer = () if {"phone_number", "nick_name"} & given else ("phone_number",)
        own = {KEY: "name yours by --key"}
        lacking = [
            f"there is no column {field}; {own.get(field, f'give --map {field}=COLUMN, or --set {field}=VALUE')}"
            for field in dict.fromkeys((*form.columns, "country_code", "currency", *customer))
            if field not in given and field == form.columns.get(field, field)
        ]
        order = ["order must be in a JSONL file"] if "order" in given else []
        if faults := [*self.faults, *mapped, *order, *lacking]:
            what = "; ".join(faults).replace("; unknown column ", ", ")
            if faults[-1].startswith("unknown column"):
                what += " (leave all such columns out by --ignore-rest)"
            raise InvalidRequestError(f"line {line}: {what}")

    def _shown_names(self) -> Iterator[str]:
        """Yield the names of the columns, but the number of one whose name may be a person's data."""
        for number, name in enumerate(self.names, 1):
            yield name if SHOWABLE.fullmatch(name) else f"(column {number})"


def _unknown(name: str, number: int, form: Format) -> str:
    """Return what is wrong with a name that means no field; one that may be a person's data is not repeated."""
    elsewhere = form.columns.get(form.field_of(name) or "")
    if elsewhere is not None:
        return f"{name} stands beside the column {elsewhere}, which is read instead"
    return f"unknown column {name}" if SHOWABLE.fullmatch(name) else f"column {number} has no known name"
