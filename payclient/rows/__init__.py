"""Rows of a CSV or JSONL file -> `SaleRequest`, in two passes: check everything, then send what was checked.

Every fault is named by line and column, and never repeats a value: cells hold personal data. Nothing is coerced,
rounded or guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.rows.cells import Cells
from payclient.rows.csv_rows import CsvRows
from payclient.rows.decimals import AMBIGUOUS, mark_of
from payclient.rows.faults import CellError
from payclient.rows.formats import AMOUNTS, Format
from payclient.rows.jsonl_rows import JsonlRows
from payclient.rows.lines import Lines, Sniffed, sniff

__all__: list[str] = []

_FORMS: dict[str, type[CsvRows | JsonlRows]] = {
    ".csv": CsvRows,
    ".tsv": CsvRows,
    ".txt": CsvRows,
    ".jsonl": JsonlRows,
    ".ndjson": JsonlRows,
}


@contextmanager
def open_rows(path: Path, form: Format) -> Iterator[tuple[CsvRows | JsonlRows, Sniffed]]:
    """A file's reader, with what its bytes say, and its decimal mark found.

    `InvalidRequestError`: the file cannot be read, is empty, its header is at fault, or its amounts do not say what
    their decimal mark is.
    """
    kind = _FORMS.get(path.suffix.lower())
    if kind is None:
        raise InvalidRequestError(f"{path.name}: a file of rows ends in .csv, .tsv, .txt or .jsonl")
    try:
        with open_file(path) as file:
            seen = sniff(file, path.name, told=form.encoding, only_utf8=kind is JsonlRows)
            rows = kind(Lines(file, path.name, seen.encoding), path.name, form, {})
            if form.amounts == "decimal" and form.decimal_mark is None:
                rows.cells = Cells(True, _find_mark(rows, path.name))
            rows.constants = _constants(form, rows.cells)
            yield rows, seen
    except OSError as error:
        raise InvalidRequestError(f"{path.name}: cannot be read: {error.strerror}") from None


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A file that can be read twice."""
    with path.open("rb") as file:
        if not path.is_file():
            raise InvalidRequestError(f"{path.name}: is no regular file, and it is read twice")
        yield file


def _find_mark(rows: CsvRows | JsonlRows, name: str) -> str | None:
    """The first decimal mark that an amount proves; whether the others agree is for the first pass to see."""
    ambiguous = False
    for text in rows.amounts():
        mark = mark_of(text)
        if mark == AMBIGUOUS:
            ambiguous = True
        elif mark is not None:
            return mark
    if ambiguous:
        raise InvalidRequestError(
            f'{name}: amounts such as "1,000" or "1.000" may mean one or one thousand, and no other amount of the '
            "file tells which: give --decimal-mark , or --decimal-mark ."
        )
    return None


def _constants(form: Format, cells: Cells) -> dict[str, object]:
    """The values that every row has; decimal amounts are told with a mark of their own."""
    values: dict[str, object] = {}
    for field, text in form.constants.items():
        if cells.decimal and field in AMOUNTS and form.decimal_mark is None:
            mark = mark_of(text)
            if mark == AMBIGUOUS:
                raise ConfigurationError(f"--set {field}: give --decimal-mark, too")
            cells = Cells(True, mark)
        try:
            values[field] = cells.read(text, field)
        except CellError as error:
            raise ConfigurationError(f"--set {field}: {error}") from None
    return values
