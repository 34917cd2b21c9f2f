"""What each log record has beside its message, under `extra`: a stable event name, and the id of the charge."""

from __future__ import annotations

__all__ = ["details"]


def details(event: str, client_transaction_id: str = "") -> dict[str, str]:
    """Return the `extra` of a record. The guide `logs` lists the events; both attributes are always there."""
    return {"event": event, "client_transaction_id": client_transaction_id}
