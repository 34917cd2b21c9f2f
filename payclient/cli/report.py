"""The outcome of each row, the sums over all rows, and the report file that is true after every row.

A run first writes the rows that the ledger has decided, then each other row once it has an outcome. When a run ends, or
is interrupted, the file has every row. No key is in it twice, even after a SIGKILL.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from payclient.batch import ChargeRow
from payclient.batch.lanes import is_refusal, passes
from payclient.cli import tables
from payclient.cli.files import atomic_write, write_file
from payclient.cli.terminal import iso
from payclient.errors import (
    AlreadyPaidError,
    ConfigurationError,
    DifferentRequestError,
    PayError,
    PurchaseOpenError,
    RefusedError,
)
from payclient.lifecycle import Record, State
from payclient.rows import ChargeFile
from payclient.rows.format import plain
from payclient.rows.records import Row
from payclient.tracking.outcomes import Outcome

#: The label of a row that was not sent, and that the ledger does not have: the same command sends it.
NOT_SENT_YET = "not sent yet"

#: The label of a row whose id the ledger has with other content: nothing was sent for it, and the id may be paid.
OTHER_CONTENT = "other content"

#: The labels of rows of which another charge of the same purchase is paid, or may be paid: nothing was sent for them.
ALREADY_PAID, PURCHASE_OPEN = "already paid", "purchase open"

_UNSENT = {
    AlreadyPaidError: ALREADY_PAID,
    PurchaseOpenError: PURCHASE_OPEN,
    DifferentRequestError: OTHER_CONTENT,
}

#: The value of `paid` for each label, in the order of tables.
_PAID: dict[str, bool | None] = {
    state: state.paid
    for state in (State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED, State.UNKNOWN, *State)
} | {ALREADY_PAID: False, PURCHASE_OPEN: None, OTHER_CONTENT: None, NOT_SENT_YET: None}
LABELS = tuple(_PAID)

#: The values of `paid`, in words.
PAID_WORDS: dict[bool | None, str] = {True: "yes", False: "no", None: "unknown"}


def paid_word(label: str) -> str:
    """Return the value of `paid` for a label, in words."""
    return "" if label == NOT_SENT_YET else PAID_WORDS[_PAID[label]]


@attrs.frozen(kw_only=True)
class Line:
    """One row of the report. `amount` is cents; `state` is empty where nothing was sent.

    Times are UTC seconds since the epoch. A refused row has none, because it may be of another run.
    """

    client_transaction_id: str
    transaction_id: int | None = None
    state: str = ""
    error_code: int | None = None
    message: str = ""
    amount: int
    currency: str
    evidence: str = ""
    created_at: float | None = None
    notified_at: float | None = None
    decided_at: float | None = None
    #: The fields of the approval that the profile keeps.
    receipt: Mapping[str, str] = attrs.field(factory=dict)
    #: The purchase as the row names it; empty: the client transaction id.
    purchase: str = ""
    #: Whether it was refused for what is about the moment, such as the token: the same command sends it again.
    passes: bool = False

    @property
    def label(self) -> str:
        """The state, or why there is none."""
        return self.state or self.evidence or NOT_SENT_YET

    @property
    def paid(self) -> bool | None:
        """Whether it is paid; None: not known."""
        return _PAID[self.label]

    def cells(self) -> dict[str, Any]:
        """Return the cells of a report's row; times are ISO 8601, in UTC."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        return cells | {name: iso(cells[name]) for name in TIMES}


#: The columns that hold times.
TIMES = ("created_at", "notified_at", "decided_at")

COLUMNS = (
    "client_transaction_id", "transaction_id", "state", "paid", "error_code", "message", "amount", "currency",
    "evidence", *TIMES, "receipt", "purchase",
)  # fmt: skip


def line_of(row: ChargeRow, outcome: Outcome | None, error: Exception | None = None) -> Line:
    """Return the line of a row by its outcome, or by the error that proves that this run created nothing."""
    facts: dict[str, Any]
    if outcome is not None:
        error = outcome.error
        facts = {name: getattr(outcome, name) for name in ("transaction_id", "state", "evidence", "receipt")}
        if outcome.state is not State.REFUSED:
            facts |= {name: getattr(outcome, name) for name in TIMES} | {"message": outcome.reason or ""}
    elif is_refusal(error):
        facts = {"state": str(State.REFUSED), "evidence": "answer"}
    else:
        # After an error of no such kind this run sent nothing, but an earlier one may have: `paid` stays open.
        facts = {"evidence": next((label for kind, label in _UNSENT.items() if isinstance(error, kind)), "")}
    return Line(
        client_transaction_id=row.request.client_transaction_id,
        amount=row.request.amount,
        currency=row.request.currency,
        purchase=row.purchase or "",
        passes=facts.get("state") == State.REFUSED and passes(type(error).__name__, facts["evidence"]),
        **facts | error_facts(error),
    )


def ledger_line(row: ChargeRow, record: Record, digest: bytes) -> Line:
    """Return the line of a row by the attempt that has its id; `digest` is that of the row's content.

    What was refused created nothing: the id may be sent with other content.
    """
    is_same = record.digest == digest and row.purchase in (None, record.purchase)
    if is_same or record.state is State.REFUSED:
        return line_of(row, Outcome.of(record))
    words = f"this id is in the ledger with other content and {record.state}; nothing was sent"
    return line_of(row, None, DifferentRequestError(words))


def error_facts(error: Exception | None) -> dict[str, Any]:
    """Return the code and the message of an error, as far as there are any."""
    if isinstance(error, RefusedError):
        return {"error_code": error.error_code, "message": "; ".join(error.user_messages)}
    if error is None:
        return {}
    return {"message": str(error) if isinstance(error, PayError) else type(error).__name__}


class Tally:
    """The number of rows with each label, and their money."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.counts: Counter[str] = Counter()
        #: Cents by (label, currency).
        self.money: Counter[tuple[str, str]] = Counter()
        #: Rows that were refused, and that the same command sends again.
        self.passing: int = 0
        for line in lines:
            self.add(line)

    def add(self, line: Line, times: int = 1) -> None:
        """Count a row; -1 times: take it out again, because the row has a newer line."""
        self.counts[line.label] += times
        self.money[line.label, line.currency] += times * line.amount
        self.passing += times * line.passes

    @property
    def done(self) -> int:
        """The number of rows that have an outcome: all but those that are not sent yet."""
        return self.counts.total() - self.counts[NOT_SENT_YET]

    def totals(self, label: str | None = None) -> dict[str, int]:
        """Return cents by currency, of one label or of all rows."""
        sums: Counter[str] = Counter()
        for (each, currency), cents in self.money.items():
            if label in (None, each) and cents:
                sums[currency] += cents
        return dict(sorted(sums.items()))

    def summary(self) -> dict[str, Any]:
        """Return rows and cents by outcome, for machines."""
        found = (label for label in LABELS if self.counts[label])
        return {label: {"rows": self.counts[label], "cents": self.totals(label)} for label in found}

    @property
    def exit_code(self) -> int:
        """The exit code. 0: all accepted; 4: some `paid` is not known; 3: some are not paid."""
        paid = {_PAID[label] for label, count in self.counts.items() if count}
        return 4 if None in paid else 3 if False in paid else 0


# --- The file


@attrs.frozen(kw_only=True)
class Carried:
    """The parts of the file of charges that a report and a page take over."""

    #: The columns that the user asked to keep.
    names: tuple[str, ...] = ()
    #: The line of each row and its kept cells, by its client transaction id.
    rows: Mapping[str, tuple[int, Sequence[str]]] = attrs.field(factory=dict, repr=False)
    #: The rows that are left out: their lines, their kept cells, and why.
    left_out: Sequence[tuple[int, Sequence[str], str]] = attrs.field(default=(), repr=False)
    #: How the file itself is written.
    dialect: tables.Dialect = tables.Dialect()

    def of(self, key: str) -> tuple[int | None, Sequence[str]]:
        """Return a row's line and its kept cells."""
        return self.rows.get(key, (None, ("",) * len(self.names)))


def carried_from(
    file: ChargeFile, keep: Sequence[str], *, delimiter: str | None = None, mark: str | None = None
) -> Carried:
    """Return what a report takes over of a file: lines, columns to keep, and the rows that are left out.

    Raises `ConfigurationError` if the file lacks a column to keep.
    """
    dialect = tables.dialect_of(
        file.path, file.records, file.mark, given_mark=mark, given_delimiter=delimiter
    )
    header = [plain(name.strip()) for name in file.records.names]
    if lacking := [name for name in keep if header and plain(name) not in header]:
        raise ConfigurationError(
            f"--keep {lacking[0]}: {file.path.name} has no such column; nothing was sent"
        )

    def kept(row: Row) -> list[str]:
        cells = row.by_name if keep else {}
        return [tables.cell_text(cells.get(plain(name)), dialect.mark) for name in keep]

    return Carried(
        names=tuple(keep),
        rows={row.key: (row.line, kept(row)) for row in file.rows if row.key and row.request},
        left_out=[(row.line, kept(row), "; ".join(e.words for e in row.errors)) for row in file.bad],
        dialect=dialect,
    )


def _whole(cell: object) -> object:
    """Return the number of a report's cell: a text in a CSV, and in a spreadsheet a float."""
    return int(text) if (text := str(cell).removesuffix(".0")).isdecimal() else cell


#: A line of the file of charges, with its cents and their currency.
Place = tuple[object, object, object]


class Report:
    """A CSV, JSONL or .xlsx file: `begin` with what is known, `write` each line, and at the end `rewrite` all of them.

    A spreadsheet cannot grow line by line: it is written at the end, and until then an earlier one stays.
    """

    def __init__(self, path: Path, carried: Carried = Carried()) -> None:
        """Raises `ConfigurationError` where the path is not a place for a report; nothing is written yet."""
        self.path = path
        self._kind, self._carried = path.suffix.lower(), carried
        ours, (first, *others) = {*COLUMNS, "line", "amount_units"}, COLUMNS
        self._kept = [name if name not in ours else f"{name} (file)" for name in carried.names]
        others.insert(others.index("amount") + 1, "amount_units")
        self._names = (first, "line", *dict.fromkeys(self._kept), *others)
        #: The rows of an earlier run's report, by their client transaction ids as `defuse` writes them: the line, the
        #: cents and the currency of what was paid or is not decided; None of the others.
        self.earlier: dict[str, Place | None] = {}
        for row in tables.read_report(path, first, "state", "paid"):
            # A spreadsheet saves it in capitals, or in its own language.
            sent = row["state"] and str(row["paid"]).casefold() not in ("false", "falso")
            place = _whole(row.get("line")), _whole(row.get("amount")), row.get("currency")
            self.earlier[tables.defuse(str(row[first]))] = place if sent else None

    def begin(self, lines: Iterable[Line] = ()) -> None:
        """Replace an earlier report by these lines. Raises `ConfigurationError` where the file cannot be written."""
        if self._kind != ".xlsx" or not self.earlier:
            write_file("--report", self.path, self._content(lines))

    def write(self, line: Line) -> None:
        """Add one line, whole or not at all; a spreadsheet is written by `rewrite` alone. Raises `OSError`."""
        if self._kind == ".xlsx":
            return
        row = tables.row_bytes(self._kind, self._row(line), self._carried.dialect)
        with open(self.path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
            size = file.tell()
            # The file may have been deleted: without a header the next run would not take it for a report.
            rest = memoryview(row if size else self._content([line]))
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)
                raise

    def rewrite(self, lines: Iterable[Line]) -> None:
        """Replace the file by these lines, in one step. After an `OSError` the file is as before."""
        with atomic_write(self.path) as file:
            file.write(self._content(lines))

    def _content(self, lines: Iterable[Line]) -> bytes:
        return tables.table_bytes(self._kind, self._names, map(self._row, lines), self._carried.dialect)

    def _row(self, line: Line) -> Mapping[str, object]:
        number, kept = self._carried.of(line.client_transaction_id)
        cells = dict(zip(self._kept, kept, strict=True)) | line.cells()
        cells |= {"line": number, "amount_units": Decimal(line.amount).scaleb(-2)}
        return {name: cells[name] for name in self._names}
