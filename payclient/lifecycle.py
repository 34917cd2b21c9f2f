"""The life of one attempt: states, events and one table of what each state takes. Pure: no clock, no I/O.

Two rules. A state that has no entry for an event raises `TransitionError`, and nothing changes. Clocks and
notifications are attributes of the record, not states; EXPIRED is the one presumption, and the service's word
corrects it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar

import attrs

from payclient.errors import TransitionError

__all__ = ["TRANSITIONS", "Event", "Evidence", "Record", "State", "advance"]


class State(enum.StrEnum):
    """Where an attempt stands."""

    #: The permit is committed; no answer yet.
    SENDING = "sending"
    #: Sent, and no usable answer: it may exist.
    UNKNOWN = "unknown"
    #: Created; the customer has not answered yet (`Pendiente`).
    PENDING = "pending"
    #: Our clock says that the window passed unheard. Presumed `Cancelado`.
    EXPIRED = "expired"
    #: The service says `Aceptado`. Final.
    ACCEPTED = "accepted"
    #: The service says `Cancelado`.
    CANCELLED = "cancelled"
    #: This attempt created nothing.
    REFUSED = "refused"

    #: Accepted, cancelled or refused. No property: it is asked several times for every sale.
    decided: bool

    def __init__(self, value: str) -> None:
        self.decided = value in ("accepted", "cancelled", "refused")

    @property
    def paid(self) -> bool | None:
        """True or False on somebody's word or by proof, None where nobody knows."""
        if self is State.ACCEPTED:
            return True
        return False if self in (State.CANCELLED, State.REFUSED) else None


class Evidence(enum.StrEnum):
    """What a state rests on."""

    #: The commit of the permit.
    PERMIT = "permit"
    #: The service's answer to our own request.
    ANSWER = "answer"
    #: Proof that no byte reached the service.
    NOT_SENT = "not sent"
    #: No usable answer.
    NO_ANSWER = "no answer"
    #: The owner of a SENDING attempt is gone.
    RECOVERY = "recovery"
    #: A status query.
    QUERY = "query"
    #: Proof by queries that nothing was created.
    ABSENT = "absent"
    #: Our clock.
    CLOCK = "clock"
    #: A named person.
    OPERATOR = "operator"
    #: Two ids, unsigned.
    NOTIFICATION = "notification"
    #: The customer's browser came back: two ids, unsigned.
    RETURN = "return"
    #: The browser came back cancelled, and the service says that nothing was paid.
    UNPAID = "unpaid"
    #: The service took our withdrawal.
    WITHDRAWN = "withdrawn"
    #: A report about something that is not ours.
    CONFLICT = "conflict"
    #: Code 2061 of a later attempt in the same lane.
    LANE_BUSY = "lane busy"


@attrs.frozen(kw_only=True)
class Record:
    """One attempt, as the ledger keeps it. No personal data. Times are UTC seconds since the epoch."""

    client_transaction_id: str
    attempt: int = 1
    kind: str = "sale"
    #: Keyed digest of the request's content.
    digest: bytes = attrs.field(default=b"", repr=False)
    #: Keyed digest of the customer at the store.
    lane: bytes = attrs.field(default=b"", repr=False)
    #: Cents.
    amount: int = 0
    currency: str = ""
    state: State = State.SENDING
    evidence: Evidence = Evidence.PERMIT
    #: Raised by one with each event: what a writer compares.
    version: int = 0
    transaction_id: int | None = None
    #: A transaction id heard of, not yet proven ours.
    candidate_id: int | None = None
    #: When the permit was asked for.
    created_at: float = 0.0
    #: When the customer can no longer approve; None until known.
    expires_at: float | None = None
    notified_at: float | None = None
    decided_at: float | None = None
    #: Of a refusal, as the service wrote it (bounded).
    error_code: int | None = None
    error_type: str | None = None
    messages: tuple[str, ...] = attrs.field(default=(), repr=False)


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened to an attempt, at a UTC time. What has no fields of its own is a plain subclass."""

    evidence: ClassVar[Evidence]
    at: float


@attrs.frozen(kw_only=True)
class Created(Event):
    """Our POST was answered with a transaction id."""

    evidence = Evidence.ANSWER
    transaction_id: int
    expires_at: float


@attrs.frozen(kw_only=True)
class Prepared(Event):
    """Our Prepare was answered with a payment id: the form is there to be paid."""

    evidence = Evidence.ANSWER
    expires_at: float


@attrs.frozen(kw_only=True)
class Refused(Event):
    """Our POST was answered with an error object."""

    evidence = Evidence.ANSWER
    error_type: str
    error_code: int | None = None
    messages: tuple[str, ...] = ()


class NotSent(Event):
    """Proven not to have reached the service, after its permit was committed."""

    evidence = Evidence.NOT_SENT


@attrs.frozen(kw_only=True)
class Lost(Event):
    """Sent, and no usable answer came."""

    evidence = Evidence.NO_ANSWER
    expires_at: float
    candidate_id: int | None = None


@attrs.frozen(kw_only=True)
class Recovered(Event):
    """Found SENDING with its owner gone."""

    evidence = Evidence.RECOVERY
    expires_at: float


@attrs.frozen(kw_only=True)
class Found(Event):
    """A status query was answered."""

    evidence = Evidence.QUERY
    transaction_id: int | None = None


class FoundPending(Found):
    """The service says `Pendiente` of this transaction."""


class FoundAccepted(Found):
    """The service says `Aceptado`."""


class FoundCancelled(Found):
    """The service says `Cancelado`."""


class ProvenAbsent(Event):
    """The service answered "not found" twice, late enough."""

    evidence = Evidence.ABSENT


class Expired(Event):
    """The window passed by our clock."""

    evidence = Evidence.CLOCK


@attrs.frozen(kw_only=True)
class Decision(Event):
    """An operator's word, with a name and a reason."""

    evidence = Evidence.OPERATOR
    actor: str
    reason: str


class DecidedAccepted(Decision):
    """An operator says that it was paid."""


class DecidedCancelled(Decision):
    """An operator says that it was not paid."""


class DecidedRefused(Decision):
    """An operator says that nothing was created, which allows another attempt."""


@attrs.frozen(kw_only=True)
class Notified(Event):
    """A notification came: a hint."""

    evidence = Evidence.NOTIFICATION
    transaction_id: int


@attrs.frozen(kw_only=True)
class Returned(Event):
    """The customer's browser came back from a form: a hint. No transaction id: it came back cancelled."""

    evidence = Evidence.RETURN
    transaction_id: int | None = None


class Abandoned(Event):
    """The browser came back cancelled, and the service, asked, knows of no payment."""

    evidence = Evidence.UNPAID


class Withdrawn(Event):
    """The service took our withdrawal of a request that nobody answered."""

    evidence = Evidence.WITHDRAWN


@attrs.frozen(kw_only=True)
class Conflicted(Event):
    """A report or notification speaks of something that is not ours; it decides nothing."""

    evidence = Evidence.CONFLICT
    what: str


class Suspected(Event):
    """A later attempt of the same lane got code 2061 while this one was unknown: it may have landed."""

    evidence = Evidence.LANE_BUSY


_S = State
_HINTS: dict[type[Event], State | None] = {
    Notified: None,
    Returned: None,
    Conflicted: None,
    Suspected: None,
    FoundPending: None,
}

#: What each state takes, and what it becomes; None: it stays.
TRANSITIONS: Mapping[State, Mapping[type[Event], State | None]] = MappingProxyType(
    {
        _S.SENDING: {
            **_HINTS,
            Created: _S.PENDING,
            Prepared: _S.PENDING,
            Refused: _S.REFUSED,
            NotSent: _S.REFUSED,
            Lost: _S.UNKNOWN,
            Recovered: _S.UNKNOWN,
        },
        _S.UNKNOWN: {
            **_HINTS,
            Created: _S.PENDING,  # our own late answer
            Refused: _S.REFUSED,
            NotSent: _S.REFUSED,
            FoundPending: _S.PENDING,
            FoundAccepted: _S.ACCEPTED,
            FoundCancelled: _S.CANCELLED,
            Abandoned: _S.CANCELLED,
            Withdrawn: _S.CANCELLED,
            ProvenAbsent: _S.REFUSED,
            DecidedAccepted: _S.ACCEPTED,
            DecidedCancelled: _S.CANCELLED,
            DecidedRefused: _S.REFUSED,
        },
        _S.PENDING: {
            **_HINTS,
            FoundAccepted: _S.ACCEPTED,
            FoundCancelled: _S.CANCELLED,
            Abandoned: _S.CANCELLED,
            Withdrawn: _S.CANCELLED,
            Expired: _S.EXPIRED,
        },
        _S.EXPIRED: {
            **_HINTS,
            FoundAccepted: _S.ACCEPTED,
            FoundCancelled: _S.CANCELLED,
            Abandoned: _S.CANCELLED,
            Withdrawn: _S.CANCELLED,
            DecidedAccepted: _S.ACCEPTED,
            DecidedCancelled: _S.CANCELLED,
            DecidedRefused: _S.REFUSED,
        },
        _S.CANCELLED: {
            **_HINTS,
            FoundCancelled: None,
            Abandoned: None,
            Withdrawn: None,
            FoundAccepted: _S.ACCEPTED,  # a correction
        },
        _S.ACCEPTED: {**_HINTS, FoundAccepted: None},
        _S.REFUSED: {**_HINTS},
    }
)


def advance(record: Record, event: Event) -> Record:
    """The record after the event. Raises `TransitionError`, changing nothing, if its state does not take it."""
    table = TRANSITIONS[record.state]
    try:
        target = table[type(event)]
    except KeyError:
        raise TransitionError(
            f"{record.state} does not take {type(event).__name__}",
            client_transaction_id=record.client_transaction_id,
        ) from None
    changes: dict[str, Any] = {"version": record.version + 1}
    match event:
        case Created(transaction_id=transaction_id, expires_at=expires_at):
            changes |= {"transaction_id": transaction_id, "expires_at": expires_at}
        case Refused(error_type=error_type, error_code=error_code, messages=messages):
            changes |= {"error_type": error_type, "error_code": error_code, "messages": messages}
        case Lost(expires_at=expires_at, candidate_id=candidate_id):
            changes["expires_at"] = expires_at
            if candidate_id is not None:
                changes["candidate_id"] = candidate_id
        case Prepared(expires_at=expires_at) | Recovered(expires_at=expires_at):
            changes["expires_at"] = expires_at
        case Found():
            if record.transaction_id is None:
                # A form whose card was declined may yet be paid by another, which is another transaction.
                if record.kind == "sale" or not isinstance(event, FoundCancelled):
                    changes["transaction_id"] = event.transaction_id
            elif event.transaction_id not in (None, record.transaction_id):
                raise TransitionError(
                    f"a report of transaction {event.transaction_id} is not this one's",
                    client_transaction_id=record.client_transaction_id,
                )
        case Notified(at=at, transaction_id=transaction_id) | Returned(at=at, transaction_id=transaction_id):
            changes["notified_at"] = record.notified_at if record.notified_at is not None else at
            if record.transaction_id is None and record.candidate_id is None:
                changes["candidate_id"] = transaction_id
        case Conflicted() if record.transaction_id is None:
            changes["candidate_id"] = None  # it was asked for, and is not ours: room for another
    if target is not None:
        changes |= {"state": target, "evidence": event.evidence}
        if target.decided:
            changes["decided_at"] = event.at
    return _changed(record, changes)


_NAMES = tuple(field.name for field in attrs.fields(Record))
_VALUES = attrgetter(*_NAMES)
_SETTERS: dict[str, Callable[[Record, Any], None]] = {name: getattr(Record, name).__set__ for name in _NAMES}


def _changed(record: Record, changes: dict[str, Any]) -> Record:
    """What `attrs.evolve` does, in half its time: it is done for every write of every sale."""
    copy = object.__new__(Record)
    for put, value in zip(_SETTERS.values(), _VALUES(record), strict=True):
        put(copy, value)
    for name, value in changes.items():
        _SETTERS[name](copy, value)
    return copy
