"""Files -> records of cells: CSV as spreadsheets and programs write it, the spreadsheets' own files, and JSONL."""

import codecs
import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
from python_calamine import CalamineError, CalamineWorkbook, SheetVisibleEnum

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows.cells import CellError, RowError
from payclient.rows.format import AMOUNTS, KEY, Layout, plain
from payclient.rows.sheets import check_size, check_tables, mark_faults
from payclient.validation import read_regular

#: All of a file is held in memory.
MAX_BYTES = 256 << 20

#: The header of a table is among this many first lines.
MAX_HEADER = 50

#: Lines over which the names of a header may be broken.
MAX_BROKEN = 5

SHEETS = (".xlsx", ".ods")

#: Bytes that no Windows-1252 text has between letters, but for the apostrophe, ordinals and the middle dot. Other code
#: pages have their accents there. A library that detects the likeliest code page would guess.
_FOREIGN = re.compile(
    rb"[\x00\x81\x8D\x8F\x90\x9D]"
    rb"|[A-Za-z\xC0-\xFF][\x80-\x91\x93-\x9F\xA0-\xA9\xAB-\xB3\xB5\xB6\xB8\xB9\xBB-\xBF][A-Za-z\xC0-\xFF]"
)

#: The errors of a spreadsheet that is damaged, or otherwise not as Excel writes it.
_UNREADABLE = (
    CalamineError, OSError, ValueError, LookupError, SyntaxError, StopIteration, RuntimeError, EOFError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

#: A quote opens in one row and closes in another. Each is right by itself, and the rows between would be lost.
_SWALLOWED = "has a cell that holds other lines: is a quote not closed?"

#: A number, perhaps with the sign of a currency.
_AMOUNT = re.compile(r"\D{0,4}[0-9][0-9.,]*\D{0,4}")

HIDDEN = "is hidden, by a filter perhaps: show it, or leave out what is hidden by --skip-bad"

_NAMES = {
    ",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars",
    "utf-8": "UTF-8", "utf-8-sig": "UTF-8", "cp1252": "Windows-1252",
}  # fmt: skip


@attrs.define
class Row:
    """One row of a file: its cells; then, of a charge, a request or the errors that forbid one."""

    #: Counted from 1.
    line: int
    names: tuple[str, ...] = attrs.field(repr=False)
    #: None where the row cannot be read; those of a hidden row are there.
    cells: Sequence[Any] = attrs.field(repr=False)
    #: Why the row as a whole cannot be charged.
    fault: str | None = None
    #: The line of JSONL as it stands.
    source: str = attrs.field(default="", repr=False)
    #: The name under which the file has each field.
    spelled: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    #: The value of the key column; None where that is missing or not a text.
    key: str | None = None
    #: The purchase that the row is for; None: the key.
    purchase: str | None = None
    #: The phone is charged in another spelling than the file's.
    respelled: bool = False
    request: SaleRequest | None = None
    errors: list[RowError] = attrs.field(factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no value. A row that cannot be read may hold some; a hidden one may hold none."""
        return (self.fault is None or bool(self.cells)) and all(cell in ("", None) for cell in self.cells)

    @property
    def by_name(self) -> dict[str, Any]:
        """The row's cells by the plain names of their columns; none where the line cannot be read."""
        return dict(zip((plain(name.strip()) for name in self.names), self.cells, strict=False))

    def add(self, field: str | None, why: str) -> None:
        """Add an error of a field, or (None) of the whole row, which then is not sent."""
        self.errors.append(RowError(self.line, self.spelled.get(field or "", field), why))
        self.request = None


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
    rows: list[Row] = attrs.field(repr=False)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the name of a file before what is wrong with it."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path.name}: {error}") from None


def read_records(path: Path, form: Layout) -> Records:
    """Read a whole file. Raises `InvalidRequestError` for one that cannot be read, without its name."""
    kind = path.suffix.lower()
    if kind not in (".csv", *SHEETS, ".jsonl"):
        raise InvalidRequestError("must end in .csv, .xlsx, .ods or .jsonl")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidRequestError(f"is larger than {MAX_BYTES >> 20} MB: split the file")
        raw = read_regular(path)
    except OSError as error:
        raise InvalidRequestError(f"cannot be read: {error.strerror}") from None
    if kind in SHEETS:
        try:
            return _read_sheet(raw, form)
        # Calamine reads some files that ElementTree cannot parse, or whose parts lie elsewhere than `sheets` looks.
        except _UNREADABLE as error:
            raise InvalidRequestError(
                f"cannot be read as a spreadsheet ({type(error).__name__}): save it anew, or as CSV UTF-8"
            ) from None
    codec, text = _decode(raw, form.encoding)
    if kind == ".csv":
        return _read_csv(text, form, codec)
    if form.amounts == "decimal":
        raise InvalidRequestError("the amounts of JSONL must be whole cents: leave --amounts out")
    rows = [_parse(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    return Records(description=f"JSONL, {_NAMES.get(codec, codec)}", rows=rows)


def _decode(raw: bytes, given: str | None) -> tuple[str, str]:
    """Return the encoding and the text. An invalid byte becomes a lone surrogate, which the check of its cell finds.

    The encoding is that of the byte order mark; else the one of the option; else UTF-8, if all bytes are valid; else
    Windows-1252, if no byte contradicts it.
    """
    codec = "utf-8-sig" if raw.startswith(codecs.BOM_UTF8) else given
    if codec is None:
        codec = "utf-8"
        try:
            raw.decode()
        except UnicodeDecodeError:
            codec = "cp1252"
            if _FOREIGN.search(raw):
                raise InvalidRequestError(
                    "is neither UTF-8 nor Windows-1252 (cp1252): save it as CSV UTF-8, or give --encoding"
                ) from None
    codec = codecs.lookup(codec).name
    return codec, raw.decode(codec, "surrogateescape")


def _find_header(table: Sequence[Sequence[Any]], form: Layout) -> tuple[int, tuple[int, int]]:
    """Return the index of the header in the first lines of a table, and how many known columns, and columns, it has.

    The header is the line of `form.header_row`; else the line with the most known names, and among equals the most
    cells. Raises `InvalidRequestError` where `form.header_row` is empty, or is not among the lines.
    """
    scores = [
        (sum(bool(form.fields_of(str(cell))) for cell in line), sum(cell != "" for cell in line))
        for line in table
    ]
    row = max(range(len(table)), key=scores.__getitem__)
    if form.header_row is not None:
        row = form.header_row - 1
        if not 0 <= row < len(table) or scores[row] == (0, 0):
            raise InvalidRequestError(
                f"--header-row {row + 1}: must be a line with names, of the first {MAX_HEADER}"
            )
    return row, scores[row]


def _places(names: Sequence[Any], form: Layout, fields: frozenset[str]) -> list[int]:
    """Return the places of the columns that have any of these fields."""
    return [place for place, name in enumerate(names) if fields.intersection(form.fields_of(str(name)))]


def _check_above(above: Sequence[Sequence[Any]], names: Sequence[Any], form: Layout) -> None:
    """Raise `InvalidRequestError` where a line above the header is a row: sorted with the rows, a header hides some.

    A row has digits in its ids and its phone, which a title or a total has not.
    """
    ids = _places(names, form, frozenset({KEY, "transaction_id", "phone_number"}))
    if form.header_row is not None or not ids:
        return
    amounts = _places(names, form, AMOUNTS)
    for line, cells in enumerate(above, 1):
        texts = [*map(str, cells), *[""] * len(names)]
        has_ids = all(re.search("[0-9]", texts[place]) for place in ids)
        if has_ids and any(_AMOUNT.fullmatch(texts[place]) for place in amounts):
            raise InvalidRequestError(
                f"line {line} is a row, and stands above the header: was the header sorted among the rows? Put it "
                "first, or name its line by --header-row"
            )


def _read_csv(text: str, form: Layout, codec: str) -> Records:
    """Read a CSV by the delimiter that gives the most known columns, and among equals the most columns."""
    lines = text.split("\n", MAX_HEADER)
    head = lines[:MAX_HEADER]
    tables = {
        each: [_header_cells(head[n : n + MAX_BROKEN], each) for n in range(len(head))]
        for each in form.delimiter or ",;\t|"
    }
    headers = {each: _find_header(table, form) for each, table in tables.items()}
    delimiter = max(headers, key=lambda each: headers[each][1])
    begin = headers[delimiter][0] + 1
    names = tuple(tables[delimiter][begin - 1])
    if not any(column.strip() for column in names):
        raise InvalidRequestError(f"line {begin} is not a header" if text else "is empty")
    _check_above(tables[delimiter][: begin - 1], names, form)
    table = io.StringIO("\n".join(lines[begin - 1 :]), newline="")
    reader = csv.reader(table, delimiter=delimiter, strict=True)
    next(reader)
    rows: list[Row] = []
    while True:
        line = reader.line_num + begin
        try:
            cells = next(reader)
            rows.append(Row(line, names, cells, _SWALLOWED if _has_swallowed(cells, delimiter) else None))
        except StopIteration:
            break
        except csv.Error:
            why = "a quote is not closed, or stands inside a cell"
            if reader.line_num + begin > line + 1:  # the cell took in whole lines
                raise InvalidRequestError(f"line {line}: {why}; the lines after it cannot be read") from None
            rows.append(Row(line, names, (), why))
    return Records(
        description=f"CSV with {_NAMES.get(delimiter, delimiter)}, {_NAMES.get(codec, codec)}",
        line=begin,
        names=names,
        delimiter=delimiter,
        for_spreadsheets=codec != "utf-8" or delimiter == ";",
        rows=rows,
    )


def _has_swallowed(cells: Sequence[str], delimiter: str) -> bool:
    """Return whether a cell over several lines has as many delimiters as its lines would have as rows."""
    return any(
        "\n" in each and each.count(delimiter) == each.count("\n") * (len(cells) - 1) for each in cells
    )


def _header_cells(lines: Sequence[str], delimiter: str) -> list[str]:
    """Return the cells of the record that begins these lines: of the first one, unless a name is broken over more."""
    for count in range(1, len(lines) + 1):
        with suppress(csv.Error):
            record = io.StringIO("\n".join(lines[:count]), newline="")
            return next(csv.reader(record, delimiter=delimiter, strict=True), [])
    return []


def _read_sheet(raw: bytes, form: Layout) -> Records:
    """Read the sheet that is named, or the only one with content. Cells keep their types."""
    check_size(raw, MAX_BYTES)
    with CalamineWorkbook.from_filelike(io.BytesIO(raw)) as book:
        shown = [each.name for each in book.sheets_metadata if each.visible == SheetVisibleEnum.Visible]
        check_tables(raw, shown)
        sheets = {each: book.get_sheet_by_name(each) for each in shown}
        filled: dict[str, list[list[Any]]] = {
            each: sheet.to_python(skip_empty_area=False) for each, sheet in sheets.items() if sheet.height
        }
    sheet = _choose_sheet(shown, list(filled), form.sheet)
    table = filled[sheet]
    begin = _find_header(table[:MAX_HEADER], form)[0] + 1
    _check_above(table[: begin - 1], table[begin - 1], form)
    header = [str(cell) for cell in table[begin - 1]]
    while header and not header[-1].strip():
        header.pop()
    keys, amounts = _places(header, form, frozenset({KEY})), _places(header, form, AMOUNTS)
    hidden = mark_faults(table, begin, sheets[sheet], raw, keys=keys, amounts=amounts)
    rows: list[Row] = []
    for line, cells in enumerate(table[begin:], begin + 1):
        if form.ignore_rest or not any(cell != "" for cell in cells[len(header) :]):
            del cells[len(header) :]
        rows.append(Row(line, tuple(header), cells, HIDDEN if line in hidden else None))
    return Records(
        description=f"spreadsheet, sheet {sheet}" if len(filled) > 1 else "spreadsheet",
        line=begin,
        names=tuple(header),
        delimiter=",",
        for_spreadsheets=True,
        rows=rows,
    )


def _choose_sheet(shown: Sequence[str], filled: Sequence[str], given: str | None) -> str:
    """Return the sheet given by name or number; by default the only one with content. Raises `InvalidRequestError`."""
    names = ", ".join(shown)
    if given is not None:
        sheet = given if given in shown else {str(n): each for n, each in enumerate(shown, 1)}.get(given, "")
        if sheet in filled:
            return sheet
        raise InvalidRequestError(f"--sheet {given}: has no such sheet with content; its sheets are {names}")
    if len(filled) == 1:
        return filled[0]
    why = f"has {len(filled)} sheets with content ({names}): give --sheet" if filled else "is empty"
    raise InvalidRequestError(why)


def _parse(line: int, text: str) -> Row:
    """Read one line of JSONL as a row, with a fault where it is not a JSON object."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        fault = None if isinstance(data, dict) else "is not a JSON object"
    except CellError as error:
        fault = str(error)
    except (ValueError, RecursionError):
        fault = "is not JSON: is it cut?"
    return Row(line, (), (), fault, text) if fault else Row(line, (*data,), (*data.values(),), source=text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CellError("has a name twice in one object")
    return result


def _no_constant(_: str) -> Any:
    raise CellError("has NaN or Infinity, which are not numbers of JSON")
