"""The report of a run: a CSV or JSONL file that is true after every row.

A run appends to what an earlier run left, so that the file never holds less than it did; one that ends, or is
interrupted, puts a file with its own rows alone in its place. After a crash the last row of a key counts.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import attrs

from payclient.cli.report_lines import Line
from payclient.cli.spreadsheet import csv_line, json_line
from payclient.errors import ConfigurationError
from payclient.rows.replacing import replacing

__all__: list[str] = []

COLUMNS = tuple(field.name for field in attrs.fields(Line))


class Report:
    """Open by `with`; `write` each line; `finish` at the end of a run that was not killed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `ConfigurationError` where this is no place for a report; nothing is written yet."""
        self.path = Path(path)
        self._is_csv = self.path.suffix.lower() == ".csv"
        if not self._is_csv and self.path.suffix.lower() != ".jsonl":
            raise ConfigurationError(f"--report {self.path.name}: ends in .csv or .jsonl")
        self._header = csv_line(COLUMNS) if self._is_csv else b""
        self._begin = 0
        try:
            with self.path.open("rb") as file:
                if not self._is_ours(file.readline()):
                    raise ConfigurationError(f"--report {self.path.name}: is there already and is no report")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"--report {self.path.name}: cannot be written: {error.strerror}")

    def _is_ours(self, first: bytes) -> bool:
        if not first:
            return True
        if self._is_csv:
            return first == self._header
        try:
            return {"client_transaction_id", "state", "paid"} <= set(json.loads(first))
        except (ValueError, TypeError):
            return False

    def __enter__(self) -> Report:
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise self._unwritable(error) from None
        # A row that a crash cut is dropped; every row is one line.
        self._file.seek(0)
        whole = last = 0
        for raw in self._file:
            last += len(raw)
            whole = last if raw.endswith(b"\n") else whole
        self._file.truncate(whole)
        if whole == 0 and self._header:
            self._file.write(self._header)
            self._file.flush()
            whole = len(self._header)
        self._begin = whole
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Line) -> None:
        """Add one line; it is with the operating system when this returns."""
        cells = line.cells()
        self._file.write(csv_line(cells.values()) if self._is_csv else json_line(cells))
        self._file.flush()

    def finish(self) -> None:
        """Leave only the lines of this run, in one step, on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._begin == len(self._header):
            return
        with replacing(self.path) as file:
            file.write(self._header)
            self._file.seek(self._begin)
            shutil.copyfileobj(self._file, file)
            shutil.copymode(self.path, file.name)
