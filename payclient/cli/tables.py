"""Tables as bytes: CSV, JSONL and .xlsx, which no spreadsheet calculates, and what is read back of them."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from payclient.cli.texts import language
from payclient.ledger.records import sanitize_text
from payclient.rows.records import SHEETS

__all__: list[str] = []

#: Where a spreadsheet would begin a formula, or another cell: also after what parts cells in some locale.
_DANGEROUS = re.compile(r"(^|[;\t\r\n])(?=\s*[=+@-]|[\t\r\n])")


def defuse(cell: str) -> str:
    """Return a cell that no spreadsheet calculates, whatever its locale takes for the end of a cell."""
    return _DANGEROUS.sub(r"\1'", cell)


@attrs.frozen(kw_only=True)
class Dialect:
    """How CSV is written for its reader: between cells, between units and cents, and whether a mark begins it."""

    delimiter: str = ","
    mark: str = "."
    bom: bool = False


def dialect_of(
    path: Path,
    delimiter: str,
    mark: str | None,
    *,
    told_mark: str | None,
    told_delimiter: str | None,
    bom: bool,
) -> Dialect:
    """Return how CSV is written for the reader of a file, whose own delimiter and decimal mark these are.

    A spreadsheet's file shows neither: they are those of the language, as a spreadsheet in it reads them.
    """
    if path.suffix.lower() in SHEETS:
        mark = told_mark or ("," if mark == "," or language() == "es" else ".")
        delimiter = ";" if mark == "," else ","
    mark = told_mark or mark or ("," if delimiter == ";" else ".")
    return Dialect(delimiter=told_delimiter or delimiter or ",", mark=mark, bom=bom)


def csv_line(values: Iterable[object], dialect: Dialect = Dialect()) -> bytes:
    """Return a line of CSV; None is empty, a list is one cell, and a `Decimal` is an amount in units."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=dialect.delimiter)
    writer.writerow([defuse(_cell(value, dialect.mark)) for value in values])
    return text.getvalue().encode("utf-8", "replace")


def json_line(values: Mapping[str, object]) -> bytes:
    """Return a line of JSONL."""
    return json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def table_bytes(
    kind: str, names: Sequence[str], rows: Iterable[Sequence[object]], dialect: Dialect = Dialect()
) -> bytes:
    """Return a whole file that ends in `.csv`, `.jsonl` or `.xlsx`."""
    if kind == ".jsonl":
        return b"".join(json_line(dict(zip(names, row, strict=True))) for row in rows)
    if kind == ".xlsx":
        return _workbook(names, rows)
    return codecs.BOM_UTF8 * dialect.bom + b"".join(csv_line(row, dialect) for row in (names, *rows))


def _workbook(names: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
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
        if isinstance(value, Decimal):
            made = WriteOnlyCell(sheet, value)
            made.number_format = "#,##0.00"
            return made
        text = sanitize_text(_cell(value, "."))
        if not text.startswith("="):
            return text
        made = WriteOnlyCell(sheet, text)
        made.data_type = "s"
        return made

    for row in (names, *rows):
        sheet.append([cell(value) for value in row])
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


def _cell(value: object, mark: str) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:.2f}".replace(".", mark)
    return "" if value is None else str(value)


def read_table(path: Path, known: Collection[str]) -> list[dict[str, Any]] | None:
    """Return the rows of a file that `table_bytes` may have made, of some known columns; None: it is another one."""
    if path.suffix.lower() == ".xlsx":
        from python_calamine import CalamineError, CalamineWorkbook

        try:
            names, *rows = CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python()
        except (CalamineError, ValueError):
            return None
        return [dict(zip(map(str, names), row, strict=True)) for row in rows] or [
            dict.fromkeys(map(str, names))
        ]
    raw = path.read_bytes()
    # A row that a crash cut is dropped; every row is one line.
    raw = raw[: raw.rfind(b"\n") + 1]
    if path.suffix.lower() == ".jsonl":
        return [_object(line) for line in raw.splitlines()]
    if not raw:
        return []
    text = raw.decode("utf-8-sig", "replace")
    first = text.partition("\n")[0]
    delimiter = max(",;\t|", key=lambda each: len({*first.split(each)} & {*known}))
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [*reader] or [dict.fromkeys(reader.fieldnames or ())]


def _object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}
