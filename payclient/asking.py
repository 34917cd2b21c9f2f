"""Asking for a sale's status: by whom, by which id, and whether the answer is ours."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

import attrs

from payclient.clock import Clock, within
from payclient.events import Conflicted, Event, FoundAccepted, FoundCancelled, FoundPending
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.session import PaySession

__all__ = ["StatusSource", "TransactionRef"]


@attrs.frozen(kw_only=True)
class TransactionRef:
    """What a status query may go by."""

    client_transaction_id: str
    #: None while only the client transaction id is known.
    transaction_id: int | None
    #: A transaction id that a notification or a broken answer named, not yet proven ours; of several each has its turn.
    candidate_id: int | None = None
    #: `sale` or `form`.
    kind: str = "sale"


#: Another way to ask for a status: None is "not found". Whatever it raises, the sale is asked for again later.
StatusSource = Callable[[TransactionRef], Awaitable[StatusReport | None]]


def session_status(session: PaySession) -> StatusSource | None:
    """The session's query, by the id that says most; None where its profile names none. One request for each call."""
    status = session.profile.status
    if status is None:
        return None

    async def ask(reference: TransactionRef) -> StatusReport | None:
        transaction_id = reference.transaction_id or reference.candidate_id
        by_client = status.by_client_transaction_id is not None
        if by_client and (transaction_id is None or status.by_transaction_id is None):
            return await session.status(client_transaction_id=reference.client_transaction_id, repeat=False)
        return await session.status(transaction_id=transaction_id, repeat=False)

    return ask


def bounded_status(source: StatusSource, clock: Clock, seconds: float) -> StatusSource:
    """A user's own source, which raises `TimeoutError` where it gives no answer within so many seconds."""

    async def ask(reference: TransactionRef) -> StatusReport | None:
        return await within(clock, seconds, source(reference))

    return ask


def conflict_of(
    record: Record, report: StatusReport, *, by_candidate: bool = False, candidate_id: int | None = None
) -> str | None:
    """Say what in a report is not ours, or None. A conflict decides nothing.

    Asked by a candidate id, only a report that names our client transaction id is ours.
    """
    if report.unreadable:
        return f"{' and '.join(report.unreadable)} cannot be read"
    known = record.transaction_id if record.transaction_id is not None else candidate_id
    if known is not None and report.transaction_id not in (None, known) and known not in report.others:
        return f"transaction id {report.transaction_id}"
    if _differs(report.client_transaction_id, record.client_transaction_id):
        return "another client transaction id"
    if by_candidate and record.transaction_id is None and report.client_transaction_id is None:
        return f"transaction id {report.transaction_id} without a client transaction id"
    if _differs(report.amount, record.amount):
        return f"amount {report.amount}"
    if _differs(report.currency, record.currency):
        return "another currency"
    return None


def verdict(
    record: Record, report: StatusReport, transaction_id: int | None, at: float
) -> tuple[list[Event], list[str]]:
    """Return the events of a report that is ours, and what somebody must be alarmed of."""
    events: list[Event] = []
    alarms: list[str] = []
    if report.also_accepted:
        others = ", ".join(map(str, report.also_accepted))
        alarms.append(f"accepted more than once: also {others}")
        events.append(Conflicted(at=at, what=f"also accepted: {others}"))
    state = record.state
    if report.state == "Aceptado":
        if state in (State.CANCELLED, State.REFUSED):
            alarms.append(f"{state}, and yet accepted")
        mine = record.transaction_id
        instead_of = mine if transaction_id not in (None, mine) else None
        events.append(FoundAccepted(at=at, transaction_id=transaction_id, instead_of=instead_of))
    elif state is State.REFUSED:
        if report.state == "Pendiente":
            alarms.append("refused, and yet the customer may approve it")
            events.append(Conflicted(at=at, what="pending, though it was refused"))
    elif report.state == "Cancelado":
        events.append(FoundCancelled(at=at, transaction_id=transaction_id))
    elif report.state == "Pendiente" and state is State.UNKNOWN:
        events.append(FoundPending(at=at, transaction_id=transaction_id))
    return events, alarms


async def is_noted(ledger: Ledger, record: Record, events: Sequence[Event]) -> bool:
    """Return whether these are one conflict that the attempt's history has already: its alarm was raised then."""
    if len(events) != 1 or not isinstance(events[0], Conflicted):
        return False
    what = events[0].what
    return any(
        change.attempt == record.attempt
        and change.event == Conflicted.__name__
        and json.loads(change.detail or "{}").get("what") == what
        for change in await ledger.history(record.client_transaction_id)
    )


def _differs(said: object, ours: object) -> bool:
    """Return whether something else than ours was said, strictly: a user's own source may say 1150.0 or True."""
    return said is not None and (type(said) is not type(ours) or said != ours)
