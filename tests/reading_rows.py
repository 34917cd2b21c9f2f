"""The rows of a file one at a time, each judged by itself, as the first pass reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from payclient.rows import open_rows
from payclient.rows.formats import Format
from payclient.rows.row import Row


def read_rows(path: Path, form: Format | None = None) -> Iterator[Row]:
    """Its rows; what `open_rows` raises is raised."""
    with open_rows(path, form if form is not None else Format()) as (rows, _):
        yield from rows
