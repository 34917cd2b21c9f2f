"""What became of one row, and the sums over all rows."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from payclient.cli.terminal import iso
from payclient.errors import DifferentRequestError, PayError, RefusedError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.outcomes import Outcome

__all__: list[str] = []

#: Of a row that this run sent nothing for.
NEVER_SENT = "never sent"

#: Of a row whose id the ledger has with other content: nothing was sent for it, and the id may be paid.
OTHER_CONTENT = "other content"

#: What `paid` is, in words.
PAID_WORDS = {True: "yes", False: "no", None: "unknown"}

_FIRST = (State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED, State.UNKNOWN)

#: The order of tables.
LABELS = (*_FIRST, *(state for state in State if state not in _FIRST), OTHER_CONTENT, NEVER_SENT)


def paid_word(label: str) -> str:
    """Return what an outcome says of `paid`."""
    return PAID_WORDS[None if label in (NEVER_SENT, OTHER_CONTENT) else State(label).paid]


@attrs.frozen(kw_only=True)
class Line:
    """One row of the report. `amount` is cents; `state` is empty where nothing was sent.

    Times are UTC seconds since the epoch; a refused row has none, because it may be of another run.
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
    #: The state, or why there is none.
    label: str = attrs.field(init=False, default="", eq=False)

    def __attrs_post_init__(self) -> None:
        other = not self.state and self.evidence == OTHER_CONTENT
        object.__setattr__(self, "label", self.state or (OTHER_CONTENT if other else NEVER_SENT))

    def cells(self) -> dict[str, Any]:
        """Return what a report holds of the row: times are ISO 8601, in UTC."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        for name in ("created_at", "notified_at", "decided_at"):
            cells[name] = None if cells[name] is None else iso(cells[name])
        return cells


COLUMNS = tuple(field.name for field in attrs.fields(Line) if field.init)


def line_of(request: SaleRequest, outcome: Outcome | None, error: Exception | None = None) -> Line:
    """Return the line of a request whose outcome is known, or whose error says that this run created nothing."""
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
    # Any other error: this run sent nothing, which says nothing of what an earlier one did. `paid` stays open.
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
    """How many rows came to what, and how much money that is."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.counts: Counter[str] = Counter()
        #: Cents by (state, currency).
        self.money: Counter[tuple[str, str]] = Counter()
        #: Rows by what they mean: True, False, None.
        self.paid: Counter[bool | None] = Counter()
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Count a row."""
        self.counts[line.label] += 1
        self.money[line.label, line.currency] += line.amount
        self.paid[line.paid] += 1

    def remove(self, line: Line) -> None:
        """Count a row no more: the ledger has a newer word."""
        self.counts[line.label] -= 1
        self.money[line.label, line.currency] -= line.amount
        self.paid[line.paid] -= 1

    @property
    def done(self) -> int:
        """Rows counted so far."""
        return self.counts.total()

    def totals(self, label: str) -> Mapping[str, int]:
        """Return cents by currency."""
        return {
            currency: cents
            for (state, currency), cents in sorted(self.money.items())
            if state == label and cents
        }

    def sums(self) -> Mapping[str, int]:
        """Return cents of all rows by currency."""
        sums: Counter[str] = Counter()
        for (_, currency), cents in self.money.items():
            sums[currency] += cents
        return dict(sorted(sums.items()))

    def summary(self) -> dict[str, Any]:
        """Return rows and cents by outcome, for machines."""
        return {
            label: {"rows": self.counts[label], "cents": dict(self.totals(label))}
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
    """Return a line of CSV; None is empty, and what a list holds stands in one cell."""
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
