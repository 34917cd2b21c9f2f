"""`Outcome`: what is known of a sale, and how it is known."""

from __future__ import annotations

from typing import Self

import attrs

from payclient.errors import PayError, RefusedError
from payclient.events import Evidence
from payclient.ledger import Change
from payclient.lifecycle import Record, State
from payclient.results import StatusReport

__all__ = ["Outcome"]


@attrs.frozen(kw_only=True)
class Outcome:
    """What is known of a sale at this moment. Times are UTC seconds since the epoch."""

    client_transaction_id: str
    state: State
    evidence: Evidence
    transaction_id: int | None = None
    #: When the permit was asked for, right before the first byte.
    created_at: float | None = None
    #: When a notification came (§6). It says that the customer acted, not how.
    notified_at: float | None = None
    decided_at: float | None = None
    #: Of a refused attempt.
    error: PayError | None = None
    #: The service's last word, where this process heard it; it is not stored.
    report: StatusReport | None = None
    #: The place in the ledger's feed, for `tracker.outcomes(since=...)`.
    cursor: int | None = None

    @property
    def paid(self) -> bool | None:
        """True or False on the service's word, by proof or by an operator; None: nobody knows, so hold it."""
        return self.state.paid

    @classmethod
    def of(cls, record: Record, *, report: StatusReport | None = None) -> Self:
        """What a record says."""
        return cls(
            client_transaction_id=record.client_transaction_id,
            state=record.state,
            evidence=record.evidence,
            transaction_id=record.transaction_id,
            created_at=record.created_at,
            notified_at=record.notified_at,
            decided_at=record.decided_at,
            error=_error_of(record),
            report=report,
        )

    @classmethod
    def at(cls, change: Change, record: Record) -> Self:
        """What a record said after one of its changes."""
        return cls(
            client_transaction_id=change.client_transaction_id,
            state=change.after,
            evidence=change.evidence,
            transaction_id=record.transaction_id,
            created_at=record.created_at,
            notified_at=record.notified_at,
            decided_at=change.at if change.after.decided else None,
            error=_error_of(record) if change.after is State.REFUSED else None,
            cursor=change.cursor,
        )


def _error_of(record: Record) -> PayError | None:
    """The refusal as far as the ledger keeps it; the error's class is gone after a restart, its code is not."""
    if record.state is not State.REFUSED:
        return None
    return RefusedError(
        "; ".join(record.messages) or f"nothing was created ({record.evidence})",
        error_code=record.error_code,
        client_transaction_id=record.client_transaction_id,
    )
