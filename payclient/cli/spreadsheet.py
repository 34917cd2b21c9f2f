"""Values as a line of CSV that no spreadsheet calculates, or of JSONL."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping

__all__: list[str] = []

#: With these a spreadsheet would take a cell for a formula, or for more than one cell.
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n")


def defuse(cell: str) -> str:
    """A cell that no spreadsheet calculates."""
    return f"'{cell}" if cell.startswith(_DANGEROUS) else cell


def csv_line(values: Iterable[object]) -> bytes:
    """A line of CSV; None is empty, and what a list holds stands in one cell."""
    text = io.StringIO()
    csv.writer(text).writerow([defuse(_cell(value)) for value in values])
    return text.getvalue().encode()


def json_line(values: Mapping[str, object]) -> bytes:
    """A line of JSONL."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
