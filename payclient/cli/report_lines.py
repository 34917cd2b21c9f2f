"""What became of one row, and the sums over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from payclient.errors import PayError, RefusedError
from payclient.lifecycle import State
from payclient.models import SaleRequest
from payclient.outcomes import Outcome

__all__: list[str] = []

NEVER_SENT = "never sent"

#: What `paid` is, in words.
PAID_WORDS = {True: "yes", False: "no", None: "unknown"}

#: The order of tables.
LABELS = (
    *(State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED),
    State.UNKNOWN,
    State.PENDING,
    State.SENDING,
    NEVER_SENT,
)


def paid_word(label: str) -> str:
    """What an outcome says of `paid`."""
    return PAID_WORDS[None if label == NEVER_SENT else State(label).paid]


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

    @property
    def label(self) -> str:
        """The state, or that it was never sent."""
        return self.state or NEVER_SENT

    def cells(self) -> dict[str, Any]:
        """What a report holds of it: times are ISO 8601, in UTC."""
        cells = attrs.asdict(self)
        for name in ("created_at", "notified_at", "decided_at"):
            cells[name] = None if cells[name] is None else iso(cells[name])
        return cells


def iso(when: float) -> str:
    """`2025-11-21T10:21:27.123Z`."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line_of(request: SaleRequest, outcome: Outcome | None, error: Exception | None = None) -> Line:
    """The line of a request whose outcome is known, or whose error says that this run created nothing."""
    line = Line(
        client_transaction_id=request.client_transaction_id, amount=request.amount, currency=request.currency
    )
    if outcome is not None:
        error = outcome.error
        line = attrs.evolve(
            line,
            transaction_id=outcome.transaction_id,
            state=str(outcome.state),
            paid=outcome.paid,
            evidence=str(outcome.evidence),
        )
        if outcome.state is not State.REFUSED:
            line = attrs.evolve(
                line,
                created_at=outcome.created_at,
                notified_at=outcome.notified_at,
                decided_at=outcome.decided_at,
            )
    elif isinstance(error, RefusedError):
        line = attrs.evolve(line, state=str(State.REFUSED), paid=False, evidence="answer")
    # Any other error: this run sent nothing, which says nothing of what an earlier one did. `paid` stays open.
    if isinstance(error, RefusedError):
        return attrs.evolve(line, error_code=error.error_code, message="; ".join(error.user_messages))
    if error is not None:
        return attrs.evolve(line, message=str(error) if isinstance(error, PayError) else type(error).__name__)
    return line


class Tally:
    """How many rows came to what, and how much money that is."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        #: Cents by (state, currency).
        self.money: Counter[tuple[str, str]] = Counter()
        #: Rows by what they mean: True, False, None.
        self.paid: Counter[bool | None] = Counter()

    def add(self, line: Line) -> None:
        self.counts[line.label] += 1
        self.money[line.label, line.currency] += line.amount
        self.paid[line.paid] += 1

    @property
    def done(self) -> int:
        """Rows counted so far."""
        return self.counts.total()

    def totals(self, label: str) -> Mapping[str, int]:
        """Cents by currency."""
        return {currency: cents for (state, currency), cents in sorted(self.money.items()) if state == label}

    def sums(self) -> Mapping[str, int]:
        """Cents of all rows by currency."""
        sums: Counter[str] = Counter()
        for (_, currency), cents in self.money.items():
            sums[currency] += cents
        return dict(sorted(sums.items()))

    def summary(self) -> dict[str, Any]:
        """Rows and cents by outcome, for machines."""
        return {
            label: {"rows": self.counts[label], "cents": dict(self.totals(label))}
            for label in LABELS
            if self.counts[label]
        }

    @property
    def exit_code(self) -> int:
        """0: all accepted; 4: some `paid` is not known; 3: some refused or cancelled."""
        if self.paid[None]:
            return 4
        return 3 if self.paid[False] else 0
