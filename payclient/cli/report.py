"""What became of each row, the sums over all rows, and the report file that is true after every row.

A run begins with what the ledger holds as decided of an earlier report's rows, and adds each row once its outcome is
there. A run that ends, or is interrupted, leaves every row. No key ever stands twice, also after a SIGKILL.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import attrs

from payclient.cli.files import atomic_write, check_output
from payclient.cli.terminal import iso
from payclient.errors import ConfigurationError, DifferentRequestError, PayError, RefusedError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.tracking.outcomes import Outcome

__all__: list[str] = []

#: The label of a row that this run sent nothing for, and that the ledger does not have: the same command sends it.
NOT_SENT_YET = "not sent yet"

#: The label of a row whose id the ledger has with other content: nothing was sent for it, and the id may be paid.
OTHER_CONTENT = "other content"

#: What `paid` is, in words.
PAID_WORDS: dict[bool | None, str] = {True: "yes", False: "no", None: "unknown"}

_FIRST = (State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED, State.UNKNOWN)

#: The order of tables.
LABELS = (*_FIRST, *(state for state in State if state not in _FIRST), OTHER_CONTENT, NOT_SENT_YET)


def paid_word(label: str) -> str:
    """Return what `paid` is for a label, in words."""
    return "" if label == NOT_SENT_YET else PAID_WORDS[None if label == OTHER_CONTENT else State(label).paid]


@attrs.frozen(kw_only=True)
class Line:
    """One row of the report. `amount` is cents; `state` is empty where nothing was sent.

    Times are UTC seconds since the epoch. A refused row has none, because it may be of another run.
    """

    client_transaction_id: str
    transaction_id: int | None = None
    state: str = ""
    paid: bool | None = None
    error_code: int | None = None
    message: str = ""
    amount: int
    currency: str
    evidence: str = ""
    created_at: float | None = None
    notified_at: float | None = None
    decided_at: float | None = None

    @property
    def label(self) -> str:
        """The state, or why there is none."""
        return self.state or (OTHER_CONTENT if self.evidence == OTHER_CONTENT else NOT_SENT_YET)

    def cells(self) -> dict[str, Any]:
        """Return what a report holds of the row: times are ISO 8601, in UTC."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        for name in ("created_at", "notified_at", "decided_at"):
            cells[name] = None if cells[name] is None else iso(cells[name])
        return cells


COLUMNS = tuple(field.name for field in attrs.fields(Line))


def line_of(request: SaleRequest, outcome: Outcome | None, error: Exception | None = None) -> Line:
    """Return the line of a request whose outcome is known, or whose error proves that this run created nothing."""
    facts: dict[str, Any] = {}
    if outcome is not None:
        error = outcome.error
        facts = {"transaction_id": outcome.transaction_id, "state": str(outcome.state), "paid": outcome.paid}
        facts["evidence"] = str(outcome.evidence)
        if outcome.state is not State.REFUSED:
            facts |= {name: getattr(outcome, name) for name in ("created_at", "notified_at", "decided_at")}
    elif isinstance(error, RefusedError):
        facts = {"state": str(State.REFUSED), "paid": False, "evidence": "answer"}
    elif isinstance(error, DifferentRequestError):
        facts = {"evidence": OTHER_CONTENT}
    # After any other error this run sent nothing, but an earlier one may have: `paid` stays open.
    if isinstance(error, RefusedError):
        facts |= {"error_code": error.error_code, "message": "; ".join(error.user_messages)}
    elif error is not None:
        facts["message"] = str(error) if isinstance(error, PayError) else type(error).__name__
    return Line(
        client_transaction_id=request.client_transaction_id,
        amount=request.amount,
        currency=request.currency,
        **facts,
    )


class Tally:
    """How many rows have which outcome, and how much money that is."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.counts: Counter[str] = Counter()
        #: Cents by (label, currency).
        self.money: Counter[tuple[str, str]] = Counter()
        #: Rows by what they mean: True, False, None.
        self.paid: Counter[bool | None] = Counter()
        for line in lines:
            self.add(line)

    def add(self, line: Line, times: int = 1) -> None:
        """Count a row; -1 times: no more, because the ledger has a newer word."""
        self.counts[line.label] += times
        self.money[line.label, line.currency] += times * line.amount
        self.paid[line.paid] += times

    @property
    def done(self) -> int:
        """Rows that were sent, now or before, or are refused; without those that are not sent yet."""
        return self.counts.total() - self.counts[NOT_SENT_YET]

    def totals(self, label: str | None = None) -> dict[str, int]:
        """Return cents by currency, of one label or of all rows."""
        sums: Counter[str] = Counter()
        for (each, currency), cents in sorted(self.money.items()):
            if label in (None, each) and cents:
                sums[currency] += cents
        return dict(sorted(sums.items()))

    def summary(self) -> dict[str, Any]:
        """Return rows and cents by outcome, for machines."""
        return {
            label: {"rows": self.counts[label], "cents": self.totals(label)}
            for label in LABELS
            if self.counts[label]
        }

    @property
    def exit_code(self) -> int:
        """0: all accepted; 4: some `paid` is not known; 3: some refused or cancelled."""
        return 4 if self.paid[None] else 3 if self.paid[False] else 0


# --- As bytes

#: Where a spreadsheet would begin a formula, or another cell: also after what parts cells in some locale.
_DANGEROUS = re.compile(r"(^|[;\t\r\n])(?=\s*[=+@-]|[\t\r\n])")


def defuse(cell: str) -> str:
    """Return a cell that no spreadsheet calculates, whatever its locale takes for the end of a cell."""
    return _DANGEROUS.sub(r"\1'", cell)


def csv_line(values: Iterable[object]) -> bytes:
    """Return a line of CSV; None is empty, and a list is one cell."""
    text = io.StringIO()
    csv.writer(text).writerow([defuse(_cell(value)) for value in values])
    return text.getvalue().encode("utf-8", "replace")


def json_line(values: Mapping[str, object]) -> bytes:
    """Return a line of JSONL."""
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _cell(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


# --- The file


class Report:
    """A CSV or JSONL file: `begin` with what is known, `write` each line, and at the end `rewrite` all of them."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` where the path is not a place for a report; nothing is written yet."""
        check_output("--report", path, ".csv", ".jsonl")
        self.path = path
        self._is_csv = path.suffix.lower() == ".csv"
        self._header = csv_line(COLUMNS) if self._is_csv else b""
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

    def earlier(self) -> dict[str, bool]:
        """Return the client transaction ids of an earlier run's report; True: it calls them paid, or not decided."""
        rows: Iterator[Mapping[str, Any]] = (
            csv.DictReader(io.StringIO(self._before.decode("utf-8", "replace"), newline=""))
            if self._is_csv
            else map(_object, self._before.splitlines())
        )
        found = {
            str(row.get("client_transaction_id")): bool(row.get("state"))
            and row.get("paid") not in (False, "false")
            for row in rows
        }
        return found | {key[1:]: sent for key, sent in found.items() if key[:1] == "'"}  # it was defused

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"--report {self.path.name}: cannot be written: {error.strerror}; nothing was sent"
        )

    @contextmanager
    def begin(self, lines: Iterable[Line] = ()) -> Iterator[Self]:
        """Replace an earlier report by these lines, and take more by `write` until this is left.

        Raises `ConfigurationError` where the file cannot be written.
        """
        try:
            self.rewrite(lines)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield self
        finally:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._file = None

    def write(self, line: Line) -> None:
        """Add one line, whole or not at all; the operating system has it when this returns. Raises `OSError`."""
        if self._file is None:
            raise OSError("the report is closed")
        content = self._bytes(line)
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(content)

    def rewrite(self, lines: Iterable[Line]) -> None:
        """Leave these lines only, in one step, on disk. Raises `OSError`, and leaves what was written."""
        with atomic_write(self.path) as file:
            file.write(self._header)
            file.writelines(map(self._bytes, lines))
        self._close()
        self._file = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self._size = os.fstat(self._file).st_size

    def _bytes(self, line: Line) -> bytes:
        cells = line.cells()
        return csv_line(cells.values()) if self._is_csv else json_line(cells)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}
