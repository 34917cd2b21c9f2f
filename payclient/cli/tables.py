"""Tables as CSV, JSONL and .xlsx, with no cell that a spreadsheet takes for a formula; and reading a report back."""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from payclient.cli.files import check_output, unfit
from payclient.cli.texts import language, reason
from payclient.errors import InvalidRequestError
from payclient.rows import ChargeFile
from payclient.rows.cells import CellError
from payclient.rows.format import FAULT, Format
from payclient.rows.records import SHEETS, Records, read_records
from payclient.validation import escape_text

#: Places where a spreadsheet would begin a formula; a comma, `;`, tab or line break separates cells in some locale.
_BEGIN, _BLANKS = r"(^|[,;\t\r\n])", r"[^\S\t\r\n]*"
_DANGEROUS = re.compile(rf"{_BEGIN}(?={_BLANKS}[=+@-]|[\t\r\n])")
#: Those of a file of commas, where a cell with a comma is quoted: none behind a comma.
_IN_COMMAS = re.compile(_DANGEROUS.pattern.replace(",", "", 1))
#: Those at which it calls a function or another program, for a file that is read again. A phone with its plus and a
#: name behind an @ do neither, and stay.
_CALLING = re.compile(rf"{_BEGIN}(?={_BLANKS}(=|[-+@]\s*+[^,;\t\r\n]*([A-Za-z.][0-9]*\(|\|)))")


def defuse(cell: str, places: re.Pattern[str] = _DANGEROUS) -> str:
    """Return a cell's text with an apostrophe wherever a spreadsheet would begin a formula."""
    return places.sub(r"\1'", cell)


@attrs.frozen(kw_only=True)
class Dialect:
    """How CSV is written: its delimiter, its decimal mark, and whether it begins with a byte order mark."""

    delimiter: str = ","
    mark: str = "."
    bom: bool = False


def dialect_of(
    path: Path, file: Records, mark: str | None, *, given_mark: str | None, given_delimiter: str | None = None
) -> Dialect:
    """Return how to write CSV for the people who wrote a file. `mark` is that of its amounts; None: they are cents.

    The file of a spreadsheet shows neither mark nor delimiter: they are those that a spreadsheet in the language reads.
    """
    delimiter = file.delimiter
    if path.suffix.lower() in SHEETS:
        mark = given_mark or ("," if mark == "," or language() == "es" else ".")
        delimiter = ";" if mark == "," else ","
    mark = given_mark or mark or ("," if delimiter == ";" else ".")
    return Dialect(delimiter=given_delimiter or delimiter or ",", mark=mark, bom=file.for_spreadsheets)


def csv_line(
    values: Iterable[object], dialect: Dialect = Dialect(), places: re.Pattern[str] | None = None
) -> bytes:
    """Return a line of CSV; None is empty, a list is one cell, and a `Decimal` is an amount in units.

    Texts are defused at `places`, by default those of the dialect. Numbers are not: no formula is one, and a
    spreadsheet would add up none behind an apostrophe.
    """
    places = places or (_IN_COMMAS if dialect.delimiter == "," else _DANGEROUS)
    line = io.StringIO()
    writer = csv.writer(line, delimiter=dialect.delimiter)
    texts = ((value, cell_text(value, dialect.mark)) for value in values)
    writer.writerow(
        [text if isinstance(value, int | float | Decimal) else defuse(text, places) for value, text in texts]
    )
    return line.getvalue().encode("utf-8", "replace")


def json_line(values: Mapping[str, object]) -> bytes:
    """Return a line of JSONL."""
    return json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def row_bytes(kind: str, row: Mapping[str, object], dialect: Dialect = Dialect()) -> bytes:
    """Return a row of a file that ends in `.csv` or `.jsonl`; its cells are in the order of the columns."""
    return csv_line(row.values(), dialect) if kind == ".csv" else json_line(row)


def table_bytes(
    kind: str, names: Sequence[str], rows: Iterable[Mapping[str, object]], dialect: Dialect = Dialect()
) -> bytes:
    """Return a whole file that ends in `.csv`, `.jsonl` or `.xlsx`."""
    if kind == ".xlsx":
        return _workbook(names, rows)
    bom = codecs.BOM_UTF8 if dialect.bom else b""
    head = bom + csv_line(names, dialect) if kind == ".csv" else b""
    return head + b"".join(row_bytes(kind, row, dialect) for row in rows)


def _workbook(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    """Return a spreadsheet of one sheet; each text is a text, also one that begins with `=`."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.utils import get_column_letter

    book = Workbook(write_only=True)
    sheet = book.create_sheet("report")
    sheet.freeze_panes = "B2"
    for number, name in enumerate(names, 1):
        sheet.column_dimensions[get_column_letter(number)].width = max(len(name) + 3, 14)

    def cell(value: object) -> object:
        if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**15):
            return value
        shown: Any = value if isinstance(value, Decimal) else escape_text(cell_text(value, "."))
        made = WriteOnlyCell(sheet, shown)
        if isinstance(value, Decimal):
            made.number_format = "#,##0.00"
        else:
            made.data_type = "s"
        return made

    for row in (names, *(row.values() for row in rows)):
        sheet.append([cell(value) for value in row])
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


def cell_text(value: object, mark: str) -> str:
    """Return a value as the text of a CSV cell, with this decimal mark; a float as a spreadsheet shows it."""
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal):
        number = f"{value:{'.15g' if isinstance(value, float) else '.2f'}}"
        # A reader with the other decimal mark takes three digits behind this one for thousands.
        has_three_decimals = number[-4:-3] == "."
        return number.replace(".", mark) + ("0" if has_three_decimals else "")
    return "" if value is None or isinstance(value, CellError) else str(value)


def bad_rows(file: ChargeFile, path: Path, dialect: Dialect) -> bytes:
    """Return the bad rows in UTF-8: JSONL unchanged; a table as CSV, with the reasons in a last column `fault`.

    Raises `ConfigurationError` where they cannot be written to this path.
    """
    kind = file.path.suffix.lower()
    check_output("--skip-bad", path, ".csv" if kind in SHEETS else kind)
    if not file.records.names:
        lines = (f"{row.source.strip()}\n" for row in file.bad)
        return "".join(lines).encode("utf-8", "surrogateescape")
    names = [name.strip() for name in file.records.names]
    faults = ("; ".join(reason(error.words) for error in row.errors) for row in file.bad)
    rows = [(names, FAULT), *zip(([*row.cells] for row in file.bad), faults, strict=True)]
    places = [number for number, name in enumerate(names) if name != FAULT]
    return codecs.BOM_UTF8 + b"".join(
        csv_line([*(cells[n] if n < len(cells) else "" for n in places), why], dialect, _CALLING)
        for cells, why in rows
    )


def read_report(path: Path, *wanted: str) -> list[dict[str, Any]]:
    """Return the complete rows of an earlier report, none without a file. A crash may have cut its last row.

    Raises `ConfigurationError` where a report cannot be written, or where the file lacks one of the wanted columns: it
    is not a report then, and stays as it is.
    """
    check_output("--report", path, ".csv", ".jsonl", ".xlsx")
    if not path.exists() or not path.stat().st_size:
        return []
    with suppress(InvalidRequestError):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            # A CSV may have any delimiter: the one behind its first name.
            found = re.match(rf'"?{wanted[0]}"?([^"\r\n\0])', file.readline())
        table = read_records(path, Format(ignore_rest=True, delimiter=found and found[1]))
        rows = [
            dict(zip(each.names, each.cells, strict=True))
            for each in table.rows
            if each.names and len(each.names) == len(each.cells)
        ]
        if {*wanted} <= {*table.names, *(rows[0] if rows else ())}:
            return rows
    raise unfit("--report", path, "is there already and is not a report")
