"""What an operator may decide by hand, of what nobody else can."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from payclient.events import DecidedAccepted, DecidedCancelled, DecidedRefused, Decision
from payclient.lifecycle import TRANSITIONS, Record, State

__all__ = ["DECISIONS", "DecidedAs", "objection"]

#: What an operator says that an ask was.
DecidedAs = Literal["accepted", "cancelled", "refused"]

DECISIONS: Mapping[str, type[Decision]] = MappingProxyType(
    {"accepted": DecidedAccepted, "cancelled": DecidedCancelled, "refused": DecidedRefused}
)


def objection(record: Record, as_: str) -> str | None:
    """Return why the record is not decided so by hand; None if it may be."""
    kind = DECISIONS[as_]
    if kind in TRANSITIONS[record.state]:
        return None
    allowed = " or ".join(
        state for state, table in TRANSITIONS.items() if kind in table and not state.decided
    )
    running = record.state in (State.SENDING, State.PENDING)
    hint = "; run the charge again, which asks the service first" if running else ""
    return (
        f"{record.client_transaction_id} is {record.state}: only what is {allowed} is decided by hand{hint}; "
        "nothing was changed"
    )
