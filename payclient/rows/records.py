"""Files -> records of cells: CSV as spreadsheets and programs write it, the spreadsheets' own files, and JSONL."""

import codecs
import csv
import io
import json
import re
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import attrs
from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, SheetVisibleEnum

from payclient.errors import InvalidRequestError
from payclient.rows.cells import CellError
from payclient.rows.format import Layout

#: All of a file is held in memory.
MAX_BYTES = 256 << 20

#: The header of a table is among this many first lines.
MAX_HEADER = 50

_CSV, SHEETS, _JSONL = (".csv", ".tsv", ".txt"), (".xlsx", ".ods"), (".jsonl", ".ndjson")

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

#: Bytes that no Windows-1252 text has between letters, but for the apostrophe, ordinals and the middle dot. Other code
#: pages have their accents there. A library that detects the likeliest code page would guess.
_FOREIGN = re.compile(
    rb"[\x81\x8D\x8F\x90\x9D]"
    rb"|[A-Za-z\xC0-\xFF][\x80-\x91\x93-\x9F\xA0-\xA9\xAB-\xB3\xB5\xB6\xB8\xB9\xBB-\xBF][A-Za-z\xC0-\xFF]"
)

#: The sign of a cell of an .ods file that spans several rows.
_SPANNED = re.compile(rb'number-rows-spanned="(?!1")')

#: The sign of a row of an .ods file that is not shown.
_UNSEEN = re.compile(rb'<table:table-row\b[^>]*table:visibility="(?!visible)')

_NAMES = {
    ",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars",
    "utf-8": "UTF-8", "utf-8-sig": "UTF-8", "utf-16": "UTF-16", "cp1252": "Windows-1252",
}  # fmt: skip


class FileRecord(NamedTuple):
    """One record of a file of charges."""

    line: int
    names: tuple[str, ...]
    #: The record's cells; where they could not be read, the error.
    cells: Sequence[Any] | CellError
    #: The line of JSONL as it stands.
    source: str = ""
    #: A spreadsheet does not show it.
    is_hidden: bool = False


@attrs.frozen(kw_only=True)
class Records:
    """The records of one file, all in memory."""

    #: How the file was read, such as "CSV with semicolons, Windows-1252".
    description: str
    #: The header's line and its names as they stand; none where each record is a JSON object.
    line: int = 0
    names: tuple[str, ...] = ()
    #: The character between the columns; empty for JSONL.
    delimiter: str = ""
    #: A spreadsheet wrote it: a CSV for the same reader begins with a byte order mark.
    for_spreadsheets: bool = False
    records: list[FileRecord] = attrs.field(repr=False)


def read_records(path: Path, form: Layout) -> Records:
    """Read a whole file. Raises `InvalidRequestError` for a file of an unknown form."""
    name, kind = path.name, path.suffix.lower()
    if kind not in (*_CSV, *SHEETS, *_JSONL):
        raise InvalidRequestError(
            f"{name}: a file of charges must end in .csv, .tsv, .txt, .xlsx, .ods or .jsonl"
        )
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequestError(f"{name}: must be a regular file, not a directory, a pipe or a device")
        if found.st_size > MAX_BYTES:
            raise InvalidRequestError(f"{name}: is larger than {MAX_BYTES >> 20} MB: split the file")
        raw = b"" if kind in SHEETS else path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{name}: cannot be read: {error.strerror}") from None
    if kind in SHEETS:
        return _read_sheet(path, form)
    encoding, text = _decode(raw, name, form.encoding)
    if kind in _CSV:
        read = _read_csv(text, name, form, encoding)
        sheet = encoding != "UTF-8" or raw.startswith(codecs.BOM_UTF8) or read.delimiter == ";"
        return attrs.evolve(read, for_spreadsheets=sheet)
    if form.amounts == "decimal":
        raise InvalidRequestError(f"{name}: the amounts of JSONL must be whole cents: leave --amounts out")
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    records = [FileRecord(number, *_parse(line), line) for number, line in lines]
    return Records(description=f"JSONL, {encoding}", records=records)


def _decode(raw: bytes, name: str, given: str | None) -> tuple[str, str]:
    """Return the encoding and the text. An invalid byte becomes a lone surrogate, which the check of its cell finds.

    The encoding is that of the byte order mark; else the one of the option; else UTF-8, if all bytes are valid; else
    Windows-1252, if no byte contradicts it.
    """
    codec = next((codec for mark, codec in _BOMS.items() if raw.startswith(mark)), given)
    if codec is None:
        codec = "utf-8"
        try:
            raw.decode()
        except UnicodeDecodeError:
            codec = "cp1252"
            if _FOREIGN.search(raw):
                raise InvalidRequestError(
                    f"{name}: is neither UTF-8 nor Windows-1252 (cp1252): give --encoding"
                ) from None
    codec = codecs.lookup(codec).name
    text = raw.decode(codec, "replace" if codec.startswith("utf-16") else "surrogateescape")
    return _NAMES.get(codec, codec), text


# --- CSV


def _read_csv(text: str, name: str, form: Layout, encoding: str) -> Records:
    """Read a CSV by the delimiter that gives the most known columns, and among equals the most columns."""
    lines = text.split("\n", MAX_HEADER)
    tables = {
        each: [_header_cells(line, each) for line in lines[:MAX_HEADER]] for each in form.delimiter or ",;\t|"
    }
    headers = {each: _find_header(table, form, name) for each, table in tables.items()}
    delimiter = max(headers, key=lambda each: headers[each][1:])
    begin = headers[delimiter][0] + 1
    names = tuple(tables[delimiter][begin - 1])
    if not any(column.strip() for column in names):
        raise InvalidRequestError(f"{name}: line {begin} is not a header" if text else f"{name}: is empty")
    text = text if begin == 1 else "\n".join(lines[begin - 1 :])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    next(reader)
    records: list[FileRecord] = []
    while True:
        line = reader.line_num + begin
        try:
            cells = next(reader)
            records.append(FileRecord(line, names, cells))
        except StopIteration:
            break
        except csv.Error:
            why = "a quote is not closed, or stands inside a cell"
            if reader.line_num + begin > line + 1:  # the cell took in whole lines
                raise InvalidRequestError(
                    f"{name}: line {line}: {why}; the lines after it cannot be read"
                ) from None
            records.append(FileRecord(line, names, CellError(why)))
    words = f"CSV with {_NAMES.get(delimiter, delimiter)}, {encoding}" + f", header in line {begin}" * (
        begin > 1
    )
    return Records(description=words, line=begin, names=names, delimiter=delimiter, records=records)


def _find_header(table: Sequence[Sequence[Any]], form: Layout, name: str) -> tuple[int, int, int]:
    """Return the index of the header in the first lines of a table, the number of known columns, and of all columns.

    The header is the line with the most known names; where no name is known, the line with the most cells.
    """
    known = [sum(bool(form.fields_of(str(cell).strip())) for cell in line) for line in table]
    filled = {n: count for n, line in enumerate(table) if (count := sum(cell != "" for cell in line))}
    if form.header_row is not None:
        if (row := form.header_row - 1) not in filled:
            raise InvalidRequestError(
                f"{name}: --header-row {row + 1}: must be a line with names, of the first {MAX_HEADER}"
            )
        return row, known[row], filled[row]
    best = max(known, default=0)
    row = known.index(best) if best else max(filled, key=lambda n: filled[n], default=0)
    return row, best, filled.get(row, 0)


def _header_cells(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


# --- Spreadsheets


def _read_sheet(path: Path, form: Layout) -> Records:
    """Read the sheet that is named, or the only one with content. Cells keep their types."""
    try:
        with CalamineWorkbook.from_path(str(path)) as book:
            shown = [each.name for each in book.sheets_metadata if each.visible == SheetVisibleEnum.Visible]
            sheets = {each: book.get_sheet_by_name(each) for each in shown}
            filled: dict[str, list[list[Any]]] = {
                each: sheet.to_python(skip_empty_area=False) for each, sheet in sheets.items() if sheet.height
            }
    except (CalamineError, OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{path.name}: cannot be read as a spreadsheet ({type(error).__name__}): save it anew, or as CSV UTF-8"
        ) from None
    sheet = _choose_sheet(path.name, shown, list(filled), form.sheet)
    rows = filled[sheet]
    begin = _find_header(rows[:MAX_HEADER], form, path.name)[0]
    header = [str(cell) for cell in rows[begin]]
    while header and not header[-1].strip():
        header.pop()
    names = tuple(header)
    _mark_merged(rows, begin, sheets[sheet])
    broken, hidden = _broken_and_hidden(path, sheet)
    for (line, place), fault in broken.items():
        rows[line - 1][place - 1] = fault
    records: list[FileRecord] = []
    for line, cells in enumerate(rows[begin + 1 :], begin + 2):
        if form.ignore_rest or not any(cell != "" for cell in cells[len(names) :]):
            del cells[len(names) :]
        records.append(FileRecord(line, names, cells, is_hidden=line in hidden))
    words = (
        "spreadsheet" + f", sheet {sheet}" * (len(filled) > 1) + f", header in line {begin + 1}" * (begin > 0)
    )
    return Records(
        description=words, line=begin + 1, names=names, delimiter=",", for_spreadsheets=True, records=records
    )


def _choose_sheet(file: str, shown: Sequence[str], filled: Sequence[str], given: str | None) -> str:
    """Return the sheet given by name or number; by default the only one with content. Raises `InvalidRequestError`."""
    named = ", ".join(shown)
    if given is None:
        if len(filled) == 1:
            return filled[0]
        count = f"has {len(filled)} sheets with content ({named}): give --sheet" if filled else "is empty"
        raise InvalidRequestError(f"{file}: {count}")
    numbered = given not in shown and given.isdecimal() and 0 < int(given) <= len(shown)
    sheet = shown[int(given) - 1] if numbered else given
    if sheet not in filled:
        raise InvalidRequestError(
            f"{file}: --sheet {given}: has no such sheet with content; its sheets are {named}"
        )
    return sheet


def _mark_merged(rows: Sequence[list[Any]], header: int, sheet: CalamineSheet) -> None:
    """Put an error into each cell below the header that is merged with one above, in rows that have other cells.

    It shows the value of the cell above, and holds none.
    """
    for (first, place), (last, _) in sheet.merged_cell_ranges or ():
        for cells in rows[max(first, header) + 1 : last + 1]:
            if place < len(cells) and any(cell != "" and not isinstance(cell, CellError) for cell in cells):
                cells[place] = CellError("is merged with the cell above: write the value into each row")


def _check_open_document(name: str, content: bytes) -> None:
    """Raise `InvalidRequestError` for what calamine would read as empty cells, and for rows that are not shown."""
    if b'calcext:value-type="error"' in content:
        raise InvalidRequestError(f"{name}: has cells that show an error: correct them")
    if _SPANNED.search(content):
        raise InvalidRequestError(f"{name}: has cells that are merged across rows: split them")
    if _UNSEEN.search(content):
        raise InvalidRequestError(f"{name}: has hidden rows: show or delete them")


def _broken_and_hidden(path: Path, sheet: str) -> tuple[dict[tuple[int, int], CellError], set[int]]:
    """Return cells with an error or a formula without its value, which calamine reads as empty, and hidden lines."""
    with zipfile.ZipFile(path) as archive:
        if "content.xml" in archive.namelist():  # .ods
            _check_open_document(path.name, archive.read("content.xml"))
            return {}, set()
        raw = _sheet_xml(archive, sheet)
    if not any(sign in raw for sign in (b"<f", b":f", b't="e"', b"hidden=")):
        return {}, set()
    from openpyxl.utils.cell import coordinate_to_tuple as place_of

    rows = ElementTree.fromstring(raw).findall(".//{*}sheetData/{*}row")  # noqa: S314 - likewise
    hidden = {int(row.get("r", n)) for n, row in enumerate(rows, 1) if row.get("hidden") in ("1", "true")}
    broken = {}
    for cell in (cell for row in rows for cell in row.iterfind("{*}c")):
        if cell.get("t") == "e":
            broken[place_of(cell.get("r", "A1"))] = CellError("is an error of the spreadsheet")
        elif cell.find("{*}f") is not None and not cell.findtext("{*}v") and cell.get("t") != "str":
            broken[place_of(cell.get("r", "A1"))] = CellError(
                "is a formula without its value: open and save the file"
            )
    return broken, hidden


def _sheet_xml(archive: zipfile.ZipFile, sheet: str) -> bytes:
    """Return the XML of a sheet of an .xlsx file."""
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))  # noqa: S314 - expat bounds what entities become
    links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))  # noqa: S314 - likewise
    (found,) = [each for each in book.iterfind(".//{*}sheet") if each.get("name") == sheet]
    relation = next(value for name, value in found.items() if name.endswith("}id"))
    (target,) = [link.get("Target", "") for link in links if link.get("Id") == relation]
    return archive.read(target[1:] if target.startswith("/") else f"xl/{target}")


# --- JSONL


def _parse(text: str) -> tuple[tuple[str, ...], Sequence[Any] | CellError]:
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except CellError as error:
        return (), error
    except (ValueError, RecursionError):
        return (), CellError("is not JSON: is it cut?")
    if not isinstance(data, dict):
        return (), CellError("is not a JSON object")
    return tuple(data), tuple(data.values())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CellError("has a name twice in one object")
    return result


def _no_constant(_: str) -> Any:
    raise CellError("has NaN or Infinity, which are not numbers of JSON")
