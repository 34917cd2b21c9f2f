"""The faults of a sheet, which calamine does not show.

They are errors, formulas without a value, percentages as amounts, merged cells and hidden rows.
"""

import io
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import Any
from xml.etree import ElementTree

from python_calamine import CalamineSheet

from payclient.errors import InvalidRequestError
from payclient.rows.cells import CellError

#: Functions that have another value when the file is opened again.
_VOLATILE = r"\b(NOW|RAND|RANDARRAY|RANDBETWEEN|TODAY)\("

_PERCENTAGE = "is a percentage: write the amount itself"

_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_VALUE_TYPE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}value-type"

#: Signs in an .ods file of what calamine reads as empty cells, of rows that are not shown, and of ids that may change.
_OPEN_DOCUMENT = {
    r'calcext:value-type="error"': "has cells that show an error: correct them",
    r'number-rows-spanned="(?!1")': "has cells that are merged across rows: split them",
    r'<table:table-row\b[^>]*table:visibility="(?!visible)': "has hidden rows: show or delete them",
    r"<table:table-cell(?![^<]*office:value-type)[^<]*table:formula=": "has formulas without a value: open and save it",
    r'table:formula="[^"]*' + _VOLATILE: "has formulas of chance or of the date: write the values themselves",
}

#: The most cells of a table: calamine holds all up to the last line and the last column in memory.
MAX_CELLS = 20_000_000

#: The column and the line of a cell with content, in a sheet of an .xlsx file.
_PLACE = re.compile(rb'\sr="([A-Z]+)([0-9]+)"[^<>]*+(?<!/)>')


def check_size(raw: bytes, most: int) -> None:
    """Raise `InvalidRequestError` for a spreadsheet that unpacks to more bytes than `most`."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if sum(each.file_size for each in archive.infolist()) > most:
            raise InvalidRequestError(
                f"unpacks to more than {most >> 20} MB: copy the rows alone to a new file"
            )


def check_tables(raw: bytes, sheets: Iterable[str]) -> None:
    """Raise `InvalidRequestError` for an .xlsx file with too large a table in one of the sheets.

    One blank in the last cell of a sheet makes a table of 400 GB, by which the program would be killed.
    """
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for name in () if "content.xml" in archive.namelist() else sheets:
            places = _PLACE.findall(_sheet_xml(archive, name)) or [(b"A", b"1")]
            columns, lines = map(set, zip(*places, strict=True))
            column, line = max(columns, key=lambda each: (len(each), each)), max(map(int, lines))
            width = sum((letter - 64) * 26**place for place, letter in enumerate(reversed(column)))
            if line * width > MAX_CELLS:
                raise InvalidRequestError(
                    f"has cells up to column {column.decode()} and line {line}: delete those that are far from the rows"
                )


def mark_faults(
    table: list[list[Any]],
    begin: int,
    sheet: CalamineSheet,
    raw: bytes,
    *,
    keys: Collection[int],
    amounts: Collection[int],
) -> set[int]:
    """Put a `CellError` into each cell that has a fault, and return the numbers of the lines that are hidden.

    The rows of `table`, the cells of a sheet of the file `raw`, come after `begin` lines. `keys` are the places of ids:
    one by a formula that has another value later is a fault, too. So is a percentage in the place of an amount: 15% of
    tax is the number 0.15. Raises `InvalidRequestError` for an .ods file with hidden rows or other faults.
    """
    _mark_merged(table, begin, sheet)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if "content.xml" in archive.namelist():
            content = archive.read("content.xml")
            _check_open_document(content)
            if b'"percentage"' in content:
                _mark_open_percentages(table, content, sheet.name, amounts)
            return set()
        content, percentages = _sheet_xml(archive, sheet.name), _percentages(archive)
    if not (percentages or re.search(rb'<f|:f|t=["\']e|hidden=', content)):
        return set()
    rows = ElementTree.fromstring(content).findall(".//{*}sheetData/{*}row")  # noqa: S314 - likewise
    formulas: dict[object, str] = {}
    for line, place, cell in _cells(rows):
        found = _fault_of(cell, formulas, is_key=place - 1 in keys)
        is_number = cell.get("t", "n") == "n" and cell.find("{*}v") is not None
        if is_number and place - 1 in amounts and cell.get("s") in percentages:
            found = _PERCENTAGE
        if found is not None:
            # Such a cell may lie outside of what calamine takes for the filled part.
            table.extend([""] * len(table[0]) for _ in range(len(table), line))
            table[line - 1] += [""] * (place - len(table[line - 1]))
            table[line - 1][place - 1] = CellError(found)
    return {int(row.get("r", n)) for n, row in enumerate(rows, 1) if row.get("hidden") in ("1", "true")}


def _mark_merged(table: Sequence[list[Any]], begin: int, sheet: CalamineSheet) -> None:
    """Mark each cell that is merged with one above, in rows with other cells: it holds no value itself."""
    for (first, place), (last, _) in sheet.merged_cell_ranges or ():
        for cells in table[max(first + 1, begin) : last + 1]:
            if place < len(cells) and any(cell != "" and not isinstance(cell, CellError) for cell in cells):
                cells[place] = CellError("is merged with the cell above: write the value into each row")


def _check_open_document(content: bytes) -> None:
    for sign, fault in _OPEN_DOCUMENT.items():
        if re.search(sign.encode(), content):
            raise InvalidRequestError(fault)


def _mark_open_percentages(
    table: Sequence[list[Any]], content: bytes, sheet: str, places: Collection[int]
) -> None:
    """Mark the percentages of an .ods file's sheet in these places. A row or a cell may stand for several."""
    tables = ElementTree.fromstring(content).iterfind(".//{*}spreadsheet/{*}table")  # noqa: S314 - likewise
    (found,) = [each for each in tables if each.get(f"{_TABLE}name") == sheet]
    end = 0
    for row in found.iterfind(".//{*}table-row"):
        begin, end, right = end, end + int(row.get(f"{_TABLE}number-rows-repeated", "1")), 0
        for cell in row:
            left, right = right, right + int(cell.get(f"{_TABLE}number-columns-repeated", "1"))
            if cell.get(_VALUE_TYPE) == "percentage":
                for cells, place in product(table[begin:end], places):
                    if left <= place < right:
                        cells[place] = CellError(_PERCENTAGE)


def _fault_of(cell: ElementTree.Element, formulas: dict[object, str], *, is_key: bool) -> str | None:
    """Return what is wrong with a cell that has an error or a formula. `formulas`: those that cells share."""
    if cell.get("t") == "e":
        return "is an error of the spreadsheet"
    if (formula := cell.find("{*}f")) is None:
        return None
    if not cell.findtext("{*}v") and cell.get("t") != "str":
        return "is a formula without its value: open and save the file"
    # Only the first of the cells that share a formula has it.
    if is_key and re.search(_VOLATILE, formulas.setdefault(formula.get("si", cell), formula.text or "")):
        return "is a formula of chance or of the date, and has another value later: write the value itself"
    return None


def _cells(rows: Iterable[ElementTree.Element]) -> Iterator[tuple[int, int, ElementTree.Element]]:
    """Yield the line and the place of each cell; of one without its address, those after the one before."""
    from openpyxl.utils.cell import coordinate_to_tuple

    line = 0
    for row in rows:
        line, place = int(row.get("r", line + 1)), 0
        for cell in row.iterfind("{*}c"):
            address = cell.get("r")
            line, place = (line, place + 1) if address is None else coordinate_to_tuple(address)
            yield line, place, cell


def _percentages(archive: zipfile.ZipFile) -> set[str]:
    """Return the numbers of the styles that show a number as a percentage."""
    if "xl/styles.xml" not in archive.namelist():
        return set()
    styles = ElementTree.fromstring(archive.read("xl/styles.xml"))  # noqa: S314 - likewise
    codes = {
        each.get("numFmtId")
        for each in styles.iterfind(
            "{*}numFmts/{*}numFmt"
        )  # those of conditional formats have numbers of their own
        if "%" in each.get("formatCode", "")
    }
    formats = enumerate(styles.iterfind("{*}cellXfs/{*}xf"))
    return {str(number) for number, each in formats if each.get("numFmtId") in {"9", "10", *codes}}


def _sheet_xml(archive: zipfile.ZipFile, sheet: str) -> bytes:
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))  # noqa: S314 - expat bounds what entities become
    links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))  # noqa: S314 - likewise
    (found,) = [each for each in book.iterfind(".//{*}sheet") if each.get("name") == sheet]
    relation = next(value for name, value in found.items() if name.endswith("}id"))
    (target,) = [link.get("Target", "") for link in links if link.get("Id") == relation]
    return archive.read(target[1:] if target.startswith("/") else f"xl/{target}")
