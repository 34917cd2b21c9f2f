"""Rows of a CSV or JSONL file -> `SaleRequest`, streamed, with every fault named by line and column.

A fault never repeats a value: cells hold personal data. Nothing is coerced, rounded or guessed.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from cattrs import BaseValidationError, ClassValidationError, Converter, IterableValidationError
from cattrs.errors import IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from payclient.amounts import COMPONENTS
from payclient.errors import InvalidRequestError
from payclient.models import BillTo, LineItem, Order, SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.spelling import from_service, to_service
from payclient.wire import Encoder

__all__: list[str] = []

#: Faults kept of one file; all are counted.
MAX_FAULTS = 50

#: The default key column.
KEY = "client_transaction_id"

_FIELDS = {field.name for field in attrs.fields(SaleRequest)}
_CENTS = {"amount", *COMPONENTS}
_INTEGERS = {*_CENTS, "time_zone"}
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_SPREADSHEET = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?[eE]\+?[0-9]+")
_SHOWABLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@attrs.frozen
class Row:
    """One row of a file: a request, or the faults that forbid one."""

    #: Counted from 1, the header included.
    line: int
    #: What stands in the key column; None where it is missing or no text.
    key: str | None
    request: SaleRequest | None
    #: Each names line, column and what is wrong; none repeats a value.
    faults: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class FileCheck:
    """What a first pass over a file found. Nothing is sent unless it is `good`."""

    rows: int
    #: Rows and cents by currency.
    charges: Mapping[str, int]
    totals: Mapping[str, int]
    #: The first faults, and how many there are.
    faults: Sequence[str]
    fault_count: int
    #: The line of each key.
    lines: Mapping[str, int] = attrs.field(repr=False)

    @property
    def good(self) -> bool:
        """Whether every row can be sent."""
        return self.fault_count == 0


def read_rows(path: str | os.PathLike[str], *, key: str = KEY) -> Iterator[Row]:
    """Read the rows of a `.csv` or `.jsonl` file, one at a time; `key` names the client transaction id's column.

    `InvalidRequestError`: the file cannot be read, is empty, or its header is at fault.
    """
    path = Path(path)
    reader = {".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl}.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequestError(f"{path.name}: a file of rows ends in .csv or .jsonl")
    found = False
    try:
        with path.open("rb") as file:
            if not path.is_file():
                raise InvalidRequestError(f"{path.name}: is no regular file, and it is read twice")
            for row in reader(file, path.name, key):
                found = True
                yield row
    except OSError as error:
        raise InvalidRequestError(f"{path.name}: cannot be read: {error.strerror}") from None
    if not found:
        raise InvalidRequestError(f"{path.name}: has no rows")


def check_file(
    path: str | os.PathLike[str], *, key: str = KEY, profile: ServiceProfile = DOCUMENT
) -> FileCheck:
    """Read a whole file once: what it would charge, and every fault, equal keys among them."""
    encoder = Encoder(profile)
    charges: dict[str, int] = {}
    totals: dict[str, int] = {}
    lines: dict[str, int] = {}
    repeated: dict[str, list[int]] = {}
    faults: list[str] = []
    rows = count = 0
    for row in read_rows(path, key=key):
        rows += 1
        found = list(row.faults)
        if (request := row.request) is not None:
            charges[request.currency] = charges.get(request.currency, 0) + 1
            totals[request.currency] = totals.get(request.currency, 0) + request.amount
            try:
                encoder.sale(request)
            except InvalidRequestError as error:
                found += _faults_of(error, row.line, {})
        if row.key is not None and (first := lines.setdefault(row.key, row.line)) != row.line:
            repeated.setdefault(row.key, [first]).append(row.line)
        count += len(found)
        faults += found[: MAX_FAULTS - len(faults)]
    for same in repeated.values():
        count += 1
        if len(faults) < MAX_FAULTS:
            shown = ", ".join(map(str, same[:20])) + (", ..." if len(same) > 20 else "")
            faults.append(f"lines {shown}: the same {key}")
    return FileCheck(
        rows=rows, charges=charges, totals=totals, faults=tuple(faults), fault_count=count, lines=lines
    )


# --- CSV


def _read_csv(file: Iterable[bytes], name: str, key: str) -> Iterator[Row]:
    # A byte that is no UTF-8 becomes a lone surrogate, which is found again in its cell.
    texts = (raw.decode("utf-8", "surrogateescape") for raw in file)
    first = next(texts, "").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    if not first.strip():
        raise InvalidRequestError(f"{name}: is empty" if not first else f"{name}: line 1 is no header")
    columns, delimiter = _read_header(first, name, key)
    reader = csv.reader(_once(first, texts), delimiter=delimiter, strict=True)
    next(reader)
    line = 2
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            # What follows a quote that is not closed cannot be told apart.
            yield Row(line, None, None, (f"line {line}: a quote is not closed, or stands inside a cell",))
            return
        if any(cells):
            yield _csv_row(cells, columns, line, key)
        line = reader.line_num + 1


def _once(first: str, others: Iterable[str]) -> Iterator[str]:
    yield first
    yield from others


def _read_header(text: str, name: str, key: str) -> tuple[list[tuple[str, str]], str]:
    """The columns, each as the file and as the model spell it, and the delimiter. Raises for any fault."""

    def split(delimiter: str) -> list[tuple[str, str]]:
        try:
            spelled = next(csv.reader([text], delimiter=delimiter, strict=True))
        except csv.Error:
            raise InvalidRequestError(f"{name}: line 1 is no header") from None
        return [
            (each.strip(), each.strip() if each.strip() == key else _field(each.strip())) for each in spelled
        ]

    def known(column: tuple[str, str]) -> bool:
        return column[0] == key or (column[1] in _FIELDS and column[1] != "order")

    delimiter = max(",;", key=lambda each: sum(map(known, split(each))))
    columns = split(delimiter)
    if not any(map(known, columns)):
        raise InvalidRequestError(f"{name}: line 1 names no known column: is the header missing?")
    faults = []
    for number, column in enumerate(columns, 1):
        if column[1] == "order":
            faults.append("order is for JSONL files")
        elif not known(column):
            faults.append(_unknown(column[0], f"column {number}"))
    fields = [field for _, field in columns]
    faults += [
        f"{field} is there twice" for field in sorted({each for each in fields if fields.count(each) > 1})
    ]
    if _field(key) not in fields and key not in fields:
        faults.append(f"there is no column {key}")
    elif _field(key) != KEY and KEY in fields:
        faults.append(f"there is a column {KEY} beside the key column {key}")
    faults += [f"there is no column {each}" for each in ("country_code", "currency") if each not in fields]
    if "phone_number" not in fields and "nick_name" not in fields:
        faults.append("there is no column phone_number")
    if faults:
        raise InvalidRequestError(f"{name}: line 1: {'; '.join(faults)}")
    return columns, delimiter


def _field(name: str) -> str:
    """A column as the model spells it; only the two exact spellings count."""
    field = from_service(name)
    return field if field in _FIELDS and name in (field, to_service(field)) else name


def _unknown(name: str, place: str) -> str:
    if not _SHOWABLE.fullmatch(name):
        return f"{place} has no known name"
    near = difflib.get_close_matches(from_service(name), _FIELDS, 1)
    return f"unknown column {name}" + (f" (did you mean {near[0]}?)" if near else "")


def _csv_row(cells: list[str], columns: list[tuple[str, str]], line: int, key: str) -> Row:
    if len(cells) != len(columns):
        what = f"has {len(cells)} cells and the header {len(columns)}"
        return Row(
            line, None, None, (f"line {line}: {what}{': is it cut?' if len(cells) < len(columns) else ''}",)
        )
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    faults = []
    identifier = None
    for cell, (column, field) in zip(cells, columns, strict=True):
        if column == key or field == _field(key):
            identifier, spelled[KEY] = cell or None, column
        if cell == "" or (field not in _FIELDS and column != key):
            continue
        fault, value = _read_cell(cell, field)
        if fault is not None:
            faults.append(f"line {line}, {column}: {fault}")
        elif field in _FIELDS:
            values[field], spelled[field] = value, column
    if identifier is None:
        faults.append(f"line {line}, {key}: is required")
    if faults or identifier is None:
        return Row(line, identifier, None, tuple(faults))
    values[KEY] = identifier
    for field in ("country_code", "currency"):
        values.setdefault(field, None)
    return _make(lambda: SaleRequest(**values), line, identifier, spelled)


def _read_cell(cell: str, field: str) -> tuple[str | None, Any]:
    """What is wrong with a cell, or its value."""
    if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
        return "is not UTF-8: save the file as CSV UTF-8", None
    if field in _INTEGERS:
        if _INTEGER.fullmatch(cell):
            return None, int(cell)
        if field in _CENTS:
            return "is no whole number of cents: 10.50 is written 1050, without point, comma or sign", None
        return "is no whole number", None
    if field == "by_nick_name":
        return (None, cell == "true") if cell in ("true", "false") else ("is true or false", None)
    if field == "phone_number" and _SPREADSHEET.fullmatch(cell):
        return "is a number as a spreadsheet shortens it: format the column as text", None
    return None, cell


# --- JSONL


class _JsonError(ValueError):
    """One line's JSON cannot be taken; its text may be shown."""


def _read_jsonl(file: Iterable[bytes], name: str, key: str) -> Iterator[Row]:
    for line, raw in enumerate(file, 1):
        raw = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
        if raw.strip():
            yield _json_row(raw, line, key)


def _json_row(raw: bytes, line: int, key: str) -> Row:
    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except _JsonError as error:
        return Row(line, None, None, (f"line {line}: {error}",))
    except UnicodeDecodeError:
        return Row(line, None, None, (f"line {line}: is not UTF-8",))
    except (ValueError, RecursionError):
        return Row(line, None, None, (f"line {line}: is no JSON: is it cut?",))
    if not isinstance(data, dict):
        return Row(line, None, None, (f"line {line}: is no JSON object",))
    faults: list[str] = []
    own = {} if key in (KEY, to_service(KEY)) else {key: data.get(key)}
    if own and _field(key) == key and key not in _FIELDS:
        data.pop(key, None)
    values = _respell(data, SaleRequest, "", faults)
    if own:
        if KEY in values:
            faults.append(f"{KEY} stands beside the key {key}")
        values[KEY] = own[key]
    identifier = values.get(KEY)
    if not isinstance(identifier, str) or not identifier:
        faults.append(f"{key}: {'is required' if identifier in (None, '') else 'is a text'}")
        identifier = None
    phone = values.get("phone_number")
    if isinstance(phone, str) and _SPREADSHEET.fullmatch(phone):
        faults.append("phone_number: is a number as a spreadsheet shortens it")
    if faults or identifier is None:
        return Row(line, identifier, None, tuple(f"line {line}, {fault}" for fault in faults))
    return _make(lambda: _converter.structure(values, SaleRequest), line, identifier, {})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _JsonError("a name stands twice in one object")
    return result


def _no_constant(_: str) -> Any:
    raise _JsonError("has a number that is none (NaN or Infinity)")


_INNER: dict[str, type] = {"order": Order, "bill_to": BillTo}


def _respell(data: Mapping[str, Any], model: type, path: str, faults: list[str]) -> dict[str, Any]:
    """Names as the model spells them, null left out; names that are not the model's are faults."""
    fields = {field.name for field in attrs.fields(model)}
    result: dict[str, Any] = {}
    for name, value in data.items():
        field = from_service(name)
        if field not in fields or name not in (field, to_service(field)):
            faults.append(
                f"{path}{name}: unknown name" if _SHOWABLE.fullmatch(name) else f"{path}: unknown name"
            )
        elif field in result:
            faults.append(f"{path}{field}: is there twice")
        elif value is not None:
            if field in _INNER and isinstance(value, dict):
                value = _respell(value, _INNER[field], f"{path}{field}.", faults)
            elif field == "line_items" and isinstance(value, list):
                value = [
                    _respell(item, LineItem, f"{path}{field}[{number}].", faults)
                    if isinstance(item, dict)
                    else item
                    for number, item in enumerate(value)
                ]
            result[field] = value
    return result


def _strict(kind: type, what: str) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise _JsonError(f"must be {what}")
        return value

    return structure


def _make_converter() -> Converter:
    """A converter that coerces nothing and knows no other names."""
    converter = Converter()
    for kind, what in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        converter.register_structure_hook(kind, _strict(kind, what))

    def items(value: Any, _: Any) -> tuple[LineItem, ...]:
        if not isinstance(value, list):
            raise _JsonError("must be an array")
        return tuple(converter.structure(value, list[LineItem]))

    converter.register_structure_hook_func(lambda kind: kind == tuple[LineItem, ...], items)
    for model in (BillTo, LineItem, Order, SaleRequest):
        inner = make_dict_structure_fn(model, converter, _cattrs_forbid_extra_keys=True)
        converter.register_structure_hook(model, partial(_structure_object, inner))
    return converter


def _structure_object(inner: Callable[[Any, Any], Any], value: Any, kind: Any) -> Any:
    if not isinstance(value, dict):
        raise _JsonError("must be an object")
    return inner(value, kind)


_converter = _make_converter()


# --- Both


def _make(make: Callable[[], SaleRequest], line: int, key: str, spelled: Mapping[str, str]) -> Row:
    try:
        return Row(line, key, make())
    except (InvalidRequestError, BaseValidationError) as error:
        return Row(line, key, None, tuple(_faults_of(error, line, spelled)))


def _faults_of(error: Exception, line: int, spelled: Mapping[str, str], path: str = "") -> list[str]:
    """Every fault that an error of the model or of cattrs names, with the column as the file spells it."""
    if isinstance(error, InvalidRequestError):
        fields = [
            (from_service(detail.message), "; ".join(detail.error_descriptions)) for detail in error.errors
        ]
        return [f"line {line}, {path}{spelled.get(field, field)}: {what}" for field, what in fields]
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        named, others = error.group_exceptions()
        faults = [fault for other in others for fault in _faults_of(other, line, spelled, path)]
        for inner, note in named:
            place = (
                f"{path.removesuffix('.')}[{note.index}]."
                if isinstance(note, IterableValidationNote)
                else (f"{path}{note.name}.")
            )
            faults += _faults_of(inner, line, spelled, place)
        return faults
    what = (
        str(error)
        if isinstance(error, _JsonError)
        else "is required"
        if isinstance(error, KeyError)
        else "is wrong"
    )
    name = path.removesuffix(".")
    return [f"line {line}, {name}: {what}"]
