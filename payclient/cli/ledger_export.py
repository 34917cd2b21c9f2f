"""What `payclient ledger export` writes: every attempt as a row of CSV or JSONL."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from payclient.cli.report_lines import iso
from payclient.cli.spreadsheet import csv_line, json_line
from payclient.errors import ConfigurationError
from payclient.events import Evidence
from payclient.ledger import Ledger
from payclient.lifecycle import DROPPED, Record

__all__: list[str] = []

_RECORD_COLUMNS = (
    "client_transaction_id", "attempt", "kind", "state", "paid", "evidence", "transaction_id", "candidate_ids",
    "amount", "currency", "created_at", "expires_at", "notified_at", "decided_at", "error_code", "error_type",
)  # fmt: skip
COLUMNS = (*_RECORD_COLUMNS, "messages", "actor", "reason")


async def write_attempts(book: Ledger, file: BinaryIO, form: Literal["csv", "jsonl"]) -> int:
    """Write all attempts, and give their number."""
    count = 0
    if form == "csv":
        file.write(csv_line(COLUMNS))
    async for record in book.records():
        row = await _row(book, record)
        file.write(csv_line(row.values()) if form == "csv" else json_line(row))
        count += 1
    file.flush()
    return count


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A new file, on disk when this ends; none where it cannot be written whole."""
    try:
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
    except FileExistsError:
        raise ConfigurationError(f"--out {path.name}: is there already; nothing was written") from None
    except OSError as error:
        raise ConfigurationError(f"--out {path.name}: cannot be written: {error.strerror}") from None
    try:
        with file:
            yield file
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise ConfigurationError(f"--out {path.name}: cannot be written: {error.strerror}") from None
        raise


async def _row(book: Ledger, record: Record) -> dict[str, object]:
    row: dict[str, object] = {
        name: _iso(getattr(record, name)) if name.endswith("_at") else getattr(record, name, None)
        for name in _RECORD_COLUMNS
    }
    row |= {"candidate_ids": [each for each in record.candidate_ids if each != DROPPED]}
    row |= {"paid": record.state.paid, "messages": list(record.messages), "actor": None, "reason": None}
    if record.evidence is Evidence.OPERATOR:
        for change in await book.history(record.client_transaction_id):
            if change.attempt == record.attempt and change.evidence is Evidence.OPERATOR and change.detail:
                row |= {name: json.loads(change.detail).get(name) for name in ("actor", "reason")}
    return row


def _iso(when: float | None) -> str | None:
    return None if when is None else iso(when)
