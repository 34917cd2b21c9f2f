"""`--skip-bad`: the rows that were left out, in a file of their own, to be corrected and charged later."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from payclient.errors import ConfigurationError
from payclient.rows import ChargeFile
from payclient.rows.cells import FORMULA, CellError, Row
from payclient.rows.formats import FAULT

__all__ = ["bad_rows"]


def bad_rows(file: ChargeFile, path: Path) -> bytes:
    """Return the bad rows as UTF-8, each with why in a last column `fault`: of a table as CSV, else as JSONL."""
    wanted = file.path.suffix.lower() if file.path.suffix.lower() not in (".xlsx", ".ods") else ".csv"
    if path.suffix.lower() != wanted:
        raise ConfigurationError(f"--skip-bad {path.name}: must end in {wanted}; nothing was sent")
    why = {
        row.line: "; ".join(_reason(error.column, error.reason) for error in row.errors) for row in file.bad
    }
    if not file.delimiter:
        return "".join(_json_line(row.source, why[row.line]) for row in file.bad).encode(
            "utf-8", "surrogateescape"
        )
    keep = [number for number, name in enumerate(file.names) if name.strip() != FAULT]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=file.delimiter)
    writer.writerow([*(file.names[number].strip() for number in keep), FAULT])
    for row in file.bad:
        writer.writerow([*(_cell(row, number) for number in keep), why[row.line]])
    return b"\xef\xbb\xbf" + text.getvalue().encode("utf-8", "replace")


def _reason(column: str | None, reason: str) -> str:
    return f"{column}: {reason}" if column else reason


def _cell(row: Row, number: int) -> str:
    cell = row.source[number] if number < len(row.source) else ""
    if not isinstance(cell, str):
        return "" if isinstance(cell, CellError) else f"{cell:.15g}" if isinstance(cell, float) else str(cell)
    return f"'{cell}" if FORMULA.match(cell) else cell


def _json_line(line: str, why: str) -> str:
    line = line.strip()
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and FAULT not in data:
        # Behind the rest as it stands: a number read and written again might be another one.
        fault = json.dumps({FAULT: why}, ensure_ascii=False)[1:]
        line = line[:-1].rstrip() + (", " if data else "") + fault
    return line + "\n"
