"""CSV, as spreadsheets and programs write it: a header, a delimiter, and a request in each row."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows.cells import Cells
from payclient.rows.faults import CellError, Fault, kind_of
from payclient.rows.formats import AMOUNTS, FAULT, FIELDS, KEY, Format, field_of
from payclient.rows.lines import Lines
from payclient.rows.row import Row, make_row, short_digest
from payclient.spelling import from_service

__all__ = ["CsvRows"]

DELIMITERS = ",;\t|"

_SHOWABLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

#: Excel's own way to name the delimiter, in a line before the header.
_SEP = re.compile(r"sep=(.)\s*", re.IGNORECASE)


@attrs.frozen
class Column:
    """A column as the file spells it, and the fields that it holds: none, one, or the key beside another."""

    name: str
    fields: tuple[str, ...]


class CsvRows:
    """The rows behind a header; raises `InvalidRequestError` for any fault of the header."""

    def __init__(self, lines: Lines, name: str, form: Format, constants: Mapping[str, Any]) -> None:
        self._lines = lines
        self.constants: Mapping[str, Any] = dict(constants)
        self._key = form.key_column
        self.cells = Cells(form.amounts == "decimal", form.decimal_mark)
        first = next(lines, "")
        if not first.strip():
            raise InvalidRequestError(f"{name}: is empty" if not first else f"{name}: line 1 is no header")
        told = form.delimiter
        if match := _SEP.fullmatch(first):
            told, first = told or match[1], next(lines, "")
        place = f"{name}: line {lines.number}"
        delimiters = DELIMITERS if told is None else told
        self.delimiter = max(delimiters, key=lambda each: _known(_columns(first, each, form)))
        if not (columns := _columns(first, self.delimiter, form)):
            raise InvalidRequestError(f"{place} is no header")
        if not _known(columns):
            raise InvalidRequestError(
                f"{place} names no known column: is the header missing? Columns of other names are "
                "told by --map, such as --map phone_number=telefono"
            )
        if faults := _header_faults(columns, form):
            raise InvalidRequestError(f"{place}: {'; '.join(faults)}")
        self.names = tuple(column.name for column in columns)
        self._begin, self._begin_line = lines.offset, lines.number
        self.spelled = {field: column.name for column in columns for field in column.fields}
        self._plan = [(number, field) for number, column in enumerate(columns) for field in column.fields]
        self._unnamed = [number for number, column in enumerate(columns) if not column.name]

    def __iter__(self) -> Iterator[Row]:
        for line, offset, raw, cells in self.records():
            if isinstance(cells, Fault):
                yield Row(line, None, None, (cells,), offset, short_digest(raw))
            elif any(cells):
                yield self._row(cells, line, offset, raw)

    def at(self, offset: int, line: int) -> Row | None:
        """The row that begins at a byte."""
        for _, _, raw, cells in self.records(offset):
            return self._row(cells, line, offset, raw) if isinstance(cells, list) and any(cells) else None
        return None

    def amounts(self) -> Iterator[str]:
        """Every amount as it is written."""
        wanted = [number for number, field in self._plan if field in AMOUNTS]
        for _, _, _, cells in self.records():
            if isinstance(cells, list) and len(cells) == len(self.names):
                yield from (cells[number] for number in wanted)

    def records(self, offset: int | None = None) -> Iterator[tuple[int, int, bytes, list[str] | Fault]]:
        """Line, offset, bytes and cells of each record; the fault of one whose quotes do not match."""
        lines = self._lines
        lines.seek(self._begin if offset is None else offset)
        lines.number = self._begin_line
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        while True:
            line, begin = lines.number + 1, lines.offset
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error:
                # What an open quote has swallowed cannot be told apart; a single line can.
                fatal = lines.number > line
                why = "a quote is not closed, or stands inside a cell"
                yield line, begin, lines.take(), Fault(line, None, why, fatal=fatal)
                if fatal:
                    return
                continue
            yield line, begin, lines.take(), cells

    def _row(self, cells: list[str], line: int, offset: int, raw: bytes) -> Row:
        digest = short_digest(raw)
        if len(cells) != len(self.names):
            cut = ": is it cut?" if len(cells) < len(self.names) else ""
            fault = Fault(line, None, f"has {len(cells)} cells and the header {len(self.names)}{cut}")
            return Row(line, None, None, (fault,), offset, digest)
        values = dict(self.constants)
        read = self.cells.read
        faults = []
        for number, field in self._plan:
            if cell := cells[number]:
                try:
                    values[field] = read(cell, field)
                except CellError as error:
                    faults.append(Fault(line, self.names[number], str(error), kind_of(cell)))
                    values[field] = cell
        for number in self._unnamed:
            if cell := cells[number]:
                why = "stands in a column without a name"
                faults.append(Fault(line, f"column {number + 1}", why, kind_of(cell)))
        key = values.get(KEY)
        if key is None:
            faults.append(Fault(line, self._key, "is required", "empty"))
        if faults or key is None:
            return Row(line, key, None, tuple(faults), offset, digest)
        values.setdefault("country_code", None)
        values.setdefault("currency", None)
        row = make_row(lambda: SaleRequest(**values), line, key, self.spelled, values, offset, digest)
        if row.request is None:  # named by what stands in the file, not by what was made of it
            texts = {field: cells[number] for number, field in self._plan}
            return make_row(lambda: SaleRequest(**values), line, key, self.spelled, texts, offset, digest)
        return row


def _columns(header: str, delimiter: str, form: Format) -> list[Column]:
    try:
        names = next(csv.reader([header], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []
    mapped: dict[str, list[str]] = {}
    for field, column in form.columns.items():
        mapped.setdefault(column.strip(), []).append(field)
    return [Column(name := each.strip(), _fields_of(name, mapped, form)) for each in names]


def _fields_of(name: str, mapped: Mapping[str, Sequence[str]], form: Format) -> tuple[str, ...]:
    if name in mapped:
        return tuple(mapped[name])
    if name in form.ignored:
        return ()
    own = field_of(name)
    fields = () if own is None or own == "order" else (own,)
    return (*fields, KEY) if KEY not in form.columns and own != KEY and _is_key(name, form) else fields


def _is_key(name: str, form: Format) -> bool:
    own = field_of(name)
    return name == form.key or (own is not None and own == field_of(form.key))


def _known(columns: Sequence[Column]) -> int:
    return sum(bool(column.fields) for column in columns)


def _header_faults(columns: Sequence[Column], form: Format) -> list[str]:
    """Everything that is wrong with a header; a name that may be a person's data is not repeated."""
    faults = []
    names = {column.name for column in columns}
    for number, column in enumerate(columns, 1):
        name = column.name
        if name == "order":
            faults.append("order is for JSONL files")
        elif not column.fields and name and name != FAULT and name not in form.ignored:
            faults.append(_unknown(name, f"column {number}"))
    faults += [f"there is no column {name}" for name in form.columns.values() if name.strip() not in names]
    fields = [field for column in columns for field in column.fields]
    for field in sorted({each for each in fields if fields.count(each) > 1}):
        beside = field == KEY and form.key_column != KEY
        faults.append(
            f"there is a column {KEY} beside the key column {form.key_column}"
            if beside
            else f"{field} is there twice"
        )
    for field in sorted(form.constants.keys() & fields):
        faults.append(f"{field} is a column, and --set gives it as well")
    if KEY not in form.columns and not any(_is_key(column.name, form) for column in columns):
        faults.append(f"there is no column {form.key}")
    given = {*fields, *form.constants, *form.columns}
    faults += [f"there is no column {each}" for each in ("country_code", "currency") if each not in given]
    if "phone_number" not in given and "nick_name" not in given:
        faults.append("there is no column phone_number")
    return faults


def _unknown(name: str, place: str) -> str:
    if not _SHOWABLE.fullmatch(name):
        return f"{place} has no known name"
    near = difflib.get_close_matches(from_service(name), FIELDS, 1)
    return f"unknown column {name}" + (f" (did you mean {near[0]}?)" if near else "")
