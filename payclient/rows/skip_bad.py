"""`--skip-bad`: the rows that were left out, in a file of their own, to be corrected and charged later."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from payclient.errors import ConfigurationError
from payclient.rows import ChargeFile
from payclient.rows.cells import FORMULA, CellError
from payclient.rows.formats import FAULT

__all__: list[str] = []


def bad_rows(file: ChargeFile, path: Path) -> bytes:
    """Return the bad rows as UTF-8, each with why in a last column `fault`: of a table as CSV, else as JSONL."""
    wanted = {".xlsx": ".csv", ".ods": ".csv"}.get(suffix := file.path.suffix.lower(), suffix)
    if path.suffix.lower() != wanted:
        raise ConfigurationError(f"--skip-bad {path.name}: must end in {wanted}; nothing was sent")
    why = ["; ".join(error.words for error in row.errors) for row in file.bad]
    if not file.delimiter:
        lines = (_json_line(row.source.strip(), said) for row, said in zip(file.bad, why, strict=True))
        return "".join(lines).encode("utf-8", "surrogateescape")
    keep = [number for number, name in enumerate(file.names) if name.strip() != FAULT]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=file.delimiter)
    writer.writerow([*(file.names[number].strip() for number in keep), FAULT])
    for row, said in zip(file.bad, why, strict=True):
        writer.writerow([*(_cell(row.source[n]) if n < len(row.source) else "" for n in keep), said])
    return b"\xef\xbb\xbf" + text.getvalue().encode("utf-8", "replace")


def _cell(cell: Any) -> str:
    text = "" if isinstance(cell, CellError) else f"{cell:.15g}" if isinstance(cell, float) else str(cell)
    return f"'{text}" if FORMULA.match(text) else text


def _json_line(line: str, why: str) -> str:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict) and FAULT not in data:
        # Behind the rest as it stands: a number read and written again might be another one.
        line = line[:-1].rstrip() + ", " * bool(data) + json.dumps({FAULT: why}, ensure_ascii=False)[1:]
    return line + "\n"
