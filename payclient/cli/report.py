"""The report of a run: a CSV or JSONL file that is true after every row.

A run appends to what an earlier run left, so that the file never holds less than it did; one that ends, or is
interrupted, puts a file with its own rows alone in its place. After a crash the last row of a key counts.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from payclient.cli.files import atomic_write, check_output
from payclient.cli.lines import COLUMNS, Line, csv_line, json_line
from payclient.errors import ConfigurationError

__all__: list[str] = []


class Report:
    """Open by `with`; `write` each line; `finish` with all lines at the end of a run that was not killed."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` where the path is not a place for a report; nothing is written yet."""
        check_output("--report", path, ".csv", ".jsonl")
        self.path = path
        self._is_csv = path.suffix.lower() == ".csv"
        self._header = csv_line(COLUMNS) if self._is_csv else b""
        #: The file, once it is open; None again where it takes nothing more.
        self._file: int | None = None
        self._size = 0
        try:
            self._before = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise self._unwritable(error) from None
        # A row that a crash cut is dropped; every row is one line.
        self._before = self._before[: self._before.rfind(b"\n") + 1]
        first = self._before.partition(b"\n")[0]
        ours = first + b"\n" == self._header if self._is_csv else {"state", "paid"} <= _object(first).keys()
        if first and not ours:
            raise ConfigurationError(
                f"--report {path.name}: is there already and is not a report; nothing was sent"
            )

    def sent(self) -> set[str]:
        """Return the client transaction ids that an earlier run's report calls paid, or sent and not decided."""
        rows: Iterator[Mapping[str, Any]] = (
            csv.DictReader(io.StringIO(self._before.decode("utf-8", "replace"), newline=""))
            if self._is_csv
            else map(_object, self._before.splitlines())
        )
        # After a crash the last row of a key counts.
        last = {row.get("client_transaction_id"): row for row in rows}
        sent = [
            str(key)
            for key, row in last.items()
            if row.get("state") and row.get("paid") not in (False, "false")
        ]
        return {*sent, *(key[1:] for key in sent if key[:1] == "'")}  # a key that was defused

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"--report {self.path.name}: cannot be written: {error.strerror}; nothing was sent"
        )

    def __enter__(self) -> Report:
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            with suppress(OSError, AttributeError):
                os.fchmod(self._file, 0o600)
            self._size = len(self._before)
            self._write(b"" if self._before else self._header)
        except OSError as error:
            self.__exit__()
            raise self._unwritable(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._file = None

    def write(self, line: Line) -> None:
        """Add one line, whole or not at all; the operating system has it when this returns. Raises `OSError`."""
        self._write(self._bytes(line))

    def _write(self, content: bytes) -> None:
        if self._file is None:
            raise OSError("the report is closed")
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(content)

    def finish(self, lines: Iterable[Line]) -> None:
        """Leave these lines only, in one step, on disk. Raises `OSError`, and leaves what was written."""
        with atomic_write(self.path) as file:
            file.write(self._header)
            for line in lines:
                file.write(self._bytes(line))

    def _bytes(self, line: Line) -> bytes:
        cells = line.cells()
        return csv_line(cells.values()) if self._is_csv else json_line(cells)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}
