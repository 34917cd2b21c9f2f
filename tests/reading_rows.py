"""The rows of a file as it was read, good and bad, in the order of their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from payclient.models import SaleRequest
from payclient.rows import read_file
from payclient.rows.cells import RowError
from payclient.rows.formats import Format


@attrs.frozen
class Row:
    line: int
    request: SaleRequest | None
    errors: tuple[RowError, ...] = ()

    @property
    def key(self) -> str | None:
        return None if self.request is None else self.request.client_transaction_id


def read_rows(path: Path, form: Format | None = None, **options: Any) -> list[Row]:
    """Its rows; what `read_file` raises is raised."""
    file = read_file(path, form, **options)
    rows = [Row(line, request) for line, request in zip(file.lines, file.requests, strict=True)]
    rows += [Row(row.line, None, row.errors) for row in file.bad]
    return sorted(rows, key=lambda row: row.line)
