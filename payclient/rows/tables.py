"""Tables: CSV as spreadsheets and programs write it, and the spreadsheets' own files."""

from __future__ import annotations

import csv
import difflib
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
from python_calamine import CalamineError, CalamineWorkbook, SheetVisibleEnum

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows.cells import SHOWABLE, CellError, Cells, FileRow, RowError, errors_of
from payclient.rows.formats import AMOUNTS, FAULT, FIELDS, KEY, Format, field_of
from payclient.validation import from_service

__all__ = ["Record", "Table", "csv_records", "sheet_records"]

DELIMITERS = ",;\t|"

#: Excel's own way to name the delimiter, in a line before the header.
_SEP = re.compile(r"sep=(.)\s*", re.IGNORECASE)

#: The line of a row and its cells, or why it has none.
Record = tuple[int, list[Any] | RowError]


@attrs.frozen
class Column:
    """A column as the file spells it, and the fields that it holds: none, one, or the key beside another."""

    name: str
    fields: tuple[str, ...]


def csv_records(text: str, name: str, form: Format) -> tuple[str, int, list[str], Iterator[Record]]:
    """Return the delimiter, the header's line and names, and the records behind the header."""
    first, _, rest = text.partition("\n")
    begin, told = 1, form.delimiter
    if match := _SEP.fullmatch(first):
        told, begin, text = told or match[1], 2, rest
        first = rest.partition("\n")[0]
    if not first.strip():
        raise InvalidRequestError(
            f"{name}: is empty" if not text else f"{name}: line {begin} is not a header"
        )
    # The delimiter by which most columns are known.
    delimiter = max(
        DELIMITERS if told is None else told,
        key=lambda each: sum(bool(column.fields) for column in make_columns(_split(first, each), form)),
    )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names = _split(first, delimiter)
    if not names:
        raise InvalidRequestError(f"{name}: line {begin} is not a header")
    next(reader)
    return delimiter, begin, names, _records(reader, begin - 1)


def _split(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _records(reader: Any, before: int) -> Iterator[Record]:
    while True:
        line = reader.line_num + 1
        try:
            yield line + before, next(reader)
        except StopIteration:
            return
        except csv.Error:
            why = "a quote is not closed, or stands inside a cell"
            if reader.line_num > line:
                # What an open quote has swallowed cannot be told apart; a single line can.
                raise InvalidRequestError(
                    f"line {line + before}: {why}; what follows cannot be told apart"
                ) from None
            yield line + before, RowError(line + before, None, why)


def sheet_records(path: Path) -> tuple[int, list[str], Iterator[Record]]:
    """Return the header's line and names and the typed records behind the header, of the one sheet with content."""
    try:
        with CalamineWorkbook.from_path(str(path)) as book:
            shown = [each.name for each in book.sheets_metadata if each.visible == SheetVisibleEnum.Visible]
            sheets = {each: book.get_sheet_by_name(each) for each in shown}
            filled = {
                each: sheet.to_python(skip_empty_area=False) for each, sheet in sheets.items() if sheet.height
            }
    except (CalamineError, OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{path.name}: cannot be read as a spreadsheet ({type(error).__name__}): save it anew, or as CSV UTF-8"
        ) from None
    if len(filled) != 1:
        count = f"has {len(filled)} sheets with content" if filled else "is empty"
        raise InvalidRequestError(f"{path.name}: {count}; it must have one, the charges")
    ((sheet, rows),) = filled.items()
    broken = _broken_cells(path, sheet)
    begin = next((number for number, row in enumerate(rows) if any(cell != "" for cell in row)), 0)
    names = [str(cell) for cell in rows[begin]]
    while names and not names[-1].strip():
        names.pop()

    def records() -> Iterator[Record]:
        for number, row in enumerate(rows[begin + 1 :], begin + 2):
            cells: list[Any] = [broken.get((number, place), cell) for place, cell in enumerate(row)]
            yield (
                number,
                cells[: len(names)] if not any(cell != "" for cell in cells[len(names) :]) else cells,
            )

    return begin + 1, names, records()


def _broken_cells(path: Path, sheet: str) -> dict[tuple[int, int], CellError]:
    """Return the cells that hold an error, or a formula without its value: both would be read as empty."""
    broken: dict[tuple[int, int], CellError] = {}
    with zipfile.ZipFile(path) as archive:
        if "content.xml" in archive.namelist():  # .ods
            if b'calcext:value-type="error"' in archive.read("content.xml"):
                raise InvalidRequestError(
                    f"{path.name}: has cells that show an error of the spreadsheet: correct them"
                )
            return broken
        book = ElementTree.fromstring(archive.read("xl/workbook.xml"))  # noqa: S314 - expat bounds what entities become
        links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))  # noqa: S314 - likewise
        targets = {link.get("Id"): link.get("Target", "") for link in links}
        (found,) = [each for each in book.iterfind(".//{*}sheet") if each.get("name") == sheet]
        relation = next(value for name, value in found.items() if name.endswith("}id"))
        raw = archive.read(
            f"xl/{targets[relation]}" if targets[relation][:1] != "/" else targets[relation][1:]
        )
    if b"<f" not in raw and b't="e"' not in raw and b":f" not in raw:
        return broken
    for cell in ElementTree.fromstring(raw).iterfind(".//{*}sheetData/{*}row/{*}c"):  # noqa: S314 - likewise
        error = cell.get("t") == "e"
        if error or (cell.find("{*}f") is not None and not cell.findtext("{*}v") and cell.get("t") != "str"):
            letters, digits = re.fullmatch(r"([A-Z]+)([0-9]+)", cell.get("r", "A0")).groups()  # type: ignore[union-attr]  # the format's own form
            column = sum((ord(letter) - 64) * 26**power for power, letter in enumerate(reversed(letters)))
            what = (
                "is an error of the spreadsheet"
                if error
                else "is a formula without its value: open and save the file"
            )
            broken[int(digits), column - 1] = CellError(what)
    return broken


class Table:
    """Rows behind a header. Raises `InvalidRequestError` with every fault of the header."""

    def __init__(self, name: str, line: int, names: Sequence[str], form: Format) -> None:
        columns = make_columns(names, form)
        if not any(column.fields for column in columns):
            raise InvalidRequestError(
                f"{name}: line {line} names no known column: is the header missing? Columns of other names are "
                "told by --map, such as --map phone_number=telefono"
            )
        if faults := _header_faults(columns, form):
            raise InvalidRequestError(f"{name}: line {line}: {'; '.join(faults)}")
        self.names = [column.name for column in columns]
        self.spelled = {field: column.name for column in columns for field in column.fields}
        self._key = form.key_column
        self._plan = [(number, field) for number, column in enumerate(columns) for field in column.fields]
        self._unnamed = [number for number, column in enumerate(columns) if not column.name]

    def amounts(self, records: Iterable[Record]) -> Iterator[str]:
        """Return every amount that is a text."""
        wanted = [number for number, field in self._plan if field in AMOUNTS]
        for _, cells in records:
            if isinstance(cells, list) and len(cells) == len(self.names):
                yield from (cells[number] for number in wanted if isinstance(cells[number], str))

    def row(self, record: Record, cells: Cells, constants: Mapping[str, Any]) -> FileRow | None:
        """Return one row; None where it is blank."""
        line, found = record
        if isinstance(found, RowError):
            return FileRow(line, None, None, (found,), ())
        if all(cell == "" for cell in found):
            return None
        if len(found) != len(self.names):
            cut = ": is it cut?" if len(found) < len(self.names) else ""
            why = f"has {len(found)} cells and the header {len(self.names)}{cut}"
            return FileRow(line, None, None, (RowError(line, None, why),), found)
        values = {"country_code": None, "currency": None, **constants}
        errors = []
        for number, field in self._plan:
            if (cell := found[number]) != "":
                try:
                    values[field] = cells.read(cell, field)
                except CellError as error:
                    errors.append(RowError(line, self.names[number], str(error)))
                    values[field] = cell
        for number in self._unnamed:
            if (cell := found[number]) != "":
                why = "stands in a column without a name"
                errors.append(RowError(line, f"column {number + 1}", why))
        key = values.get(KEY)
        if key is None:
            errors.append(RowError(line, self._key, "is required"))
        if not errors:
            try:
                return FileRow(line, key, SaleRequest(**values), (), found)
            except InvalidRequestError as error:
                errors = errors_of(error, line, self.spelled)
        return FileRow(line, key if isinstance(key, str) else None, None, tuple(errors), found)


def make_columns(names: Iterable[str], form: Format) -> list[Column]:
    """Return the columns of a header."""
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


def _header_faults(columns: Sequence[Column], form: Format) -> list[str]:
    """Return everything that is wrong with a header; a name that may be a person's data is not repeated."""
    faults = []
    names = {column.name for column in columns}
    fields = [field for column in columns for field in column.fields]
    given = {*fields, *form.constants, *form.columns}
    for number, column in enumerate(columns, 1):
        name = column.name
        if name == "order":
            faults.append("order is for JSONL files")
        elif not column.fields and name and name != FAULT and name not in form.ignored:
            faults.append(_unknown(name, f"column {number}"))
    faults += [f"there is no column {name}" for name in form.columns.values() if name.strip() not in names]
    for field in sorted({each for each in fields if fields.count(each) > 1}):
        beside = field == KEY and form.key_column != KEY
        faults.append(
            f"there is a column {KEY} beside the key column {form.key_column}"
            if beside
            else f"{field} is there twice"
        )
    faults += [
        f"{each} is a column, and --set gives it as well" for each in sorted(form.constants.keys() & fields)
    ]
    if KEY not in form.columns and not any(_is_key(column.name, form) for column in columns):
        faults.append(f"there is no column {form.key}")
    faults += [f"there is no column {each}" for each in ("country_code", "currency") if each not in given]
    if not {"phone_number", "nick_name"} & given:
        faults.append("there is no column phone_number")
    return faults


def _unknown(name: str, place: str) -> str:
    if not SHOWABLE.fullmatch(name):
        return f"{place} has no known name"
    near = difflib.get_close_matches(from_service(name), FIELDS, 1)
    return f"unknown column {name}" + (f" (did you mean {near[0]}?)" if near else "")
