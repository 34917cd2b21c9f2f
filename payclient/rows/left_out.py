"""The rows that were left out, in a file of their own: to be corrected, and charged by the same command."""

from __future__ import annotations

import csv
import filecmp
import io
import json
from collections.abc import Iterator
from pathlib import Path

from payclient.errors import ConfigurationError
from payclient.rows.check import FileCheck
from payclient.rows.csv_rows import CsvRows
from payclient.rows.faults import FORMULA, Fault
from payclient.rows.formats import FAULT
from payclient.rows.jsonl_rows import JsonlRows
from payclient.rows.replacing import replacing

__all__ = ["write_left_out"]


def write_left_out(check: FileCheck, path: Path) -> None:
    """Write the bad rows, each with why in a last column `fault`, in the form of the file itself, as UTF-8, mode 0600.

    A formula is written as text. `ConfigurationError`: the file is there with other content, or cannot be written.
    """
    if path.suffix.lower() != check.path.suffix.lower():
        raise ConfigurationError(f"{path.name}: ends in {check.path.suffix}, as the file of the charges does")
    try:
        with replacing(path, 0o600) as file:
            with check.reopened() as reader:
                for line in _csv(check, reader) if isinstance(reader, CsvRows) else _jsonl(check, reader):
                    file.write(line)
            file.flush()
            if path.exists() and not filecmp.cmp(path, file.name, shallow=False):
                # Perhaps somebody has corrected it there.
                raise ConfigurationError(f"{path.name}: is there already, with other rows; nothing was sent")
    except OSError as error:
        raise ConfigurationError(f"{path.name}: cannot be written: {error.strerror}") from None


def _csv(check: FileCheck, reader: CsvRows) -> Iterator[bytes]:
    names = [name for name in reader.names if name != FAULT]
    keep = [number for number, name in enumerate(reader.names) if name != FAULT]
    yield "\N{ZERO WIDTH NO-BREAK SPACE}".encode() + _csv_line([*names, FAULT], reader.delimiter)
    for place in check.index.places(bad=True):
        for _, _, _, cells in reader.records(place.offset):
            texts = [] if isinstance(cells, Fault) else cells
            row = [_defused(texts[number]) if number < len(texts) else "" for number in keep]
            yield _csv_line([*row, check.index.reasons(place.line)], reader.delimiter)
            break


def _defused(cell: str) -> str:
    cell = cell.encode("utf-8", "replace").decode()
    return f"'{cell}" if FORMULA.match(cell) else cell


def _csv_line(cells: list[str], delimiter: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerow(cells)
    return text.getvalue().encode()


def _jsonl(check: FileCheck, reader: JsonlRows) -> Iterator[bytes]:
    for place in check.index.places(bad=True):
        for _, _, raw, _ in reader.records(place.offset):
            try:
                data = json.loads(raw)
            except (ValueError, RecursionError):
                data = None
            if isinstance(data, dict) and FAULT not in data:
                # Behind the rest as it stands: a number read and written again might be another one.
                why = json.dumps({FAULT: check.index.reasons(place.line)}, ensure_ascii=False)
                raw = raw.strip()[:-1].rstrip() + (b", " if data else b"") + why[1:].encode()
            yield raw.strip() + b"\n"
            break
