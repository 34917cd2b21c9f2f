"""The life of one attempt: its states, and one table of which events each takes. Pure: no clock, no I/O.

Theory of operation
===================

A charge must not be made twice, and its outcome must not be guessed. Both follow from one record, the *attempt*: one
permitted send of one client transaction id. The ledger keeps it, with every event that it took. Attempt n + 1 exists
only if attempt n provably created nothing.

**Two writes.** The first is the *permit*: the INSERT of the attempt as SENDING, committed after the connection stands
and before the first byte leaves. Its unique key decides who may send. Whoever inserts it is the one writer of bytes;
everybody else gets what is there. Before the permit there is no row and nothing to recover. The second write is the
event of the answer: Created, Refused, NotSent, or Lost for anything that is none of these. A ledger that fails at the
second write is tried again for as long as it takes, and until then the attempt is called unknown: memory never says
more than the ledger.

**Who may send.** The sender checks its clocks between the permit and the bytes. A process that was stopped for longer
than the total time-out does not send, since others count on that time-out. Nothing that may exist is ever sent again:
a time-out, a cut answer or a redirect makes the attempt UNKNOWN, and only a query, a proof or a person ends that. A
refusal that says that something exists is believed only after a query by client transaction id that finds nothing.
Where the profile has no such query, 2061 is believed, and a duplicate is not.

**How a crash is found.** An attempt that is SENDING without a living sender was interrupted between the two writes.
With one process to a ledger that is every SENDING attempt at the start; with several it is one whose permit is older
than the total time-out and a grace. Such an attempt becomes UNKNOWN. Whatever else is open is followed on, at its age.

**What each state waits for.**

- SENDING: the answer, or its sender's death.
- UNKNOWN: a query that finds it, which binds its transaction id; or proof that it is absent: two queries by client
  transaction id, late enough and far enough apart, under the credentials that sent it, that find nothing. Ids that an
  answer or a notification named are *candidates*: each is queried before absence is proven.
- PENDING: the customer. Queries look for the answer; a notification only makes one query come sooner.
- EXPIRED: the service's last word. The window passed by our clock, which presumes that nobody paid and proves nothing.
- ACCEPTED, CANCELLED, REFUSED: nothing. These are decided, by the service's word, by proof, or by a named operator. A
  later word of the service may still correct CANCELLED and REFUSED to ACCEPTED, with an alarm. Where one of the two may
  exist all the same, and no query can tell, an operator decides once more.

`paid` is True or False of a decided attempt and None of all others: a clock, an unsigned notification or a guess never
decides.

**Two rules of the table.** A state that has no entry for an event raises `TransitionError`, and nothing changes.
Clocks and notifications are attributes of the record, not states: hints are taken by every state and change none.
"""

import enum
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import attrs

from payclient.errors import TransitionError
from payclient.events import (
    Abandoned,
    Conflicted,
    Created,
    DecidedAccepted,
    DecidedCancelled,
    DecidedRefused,
    Decision,
    Event,
    Evidence,
    Exhausted,
    Expired,
    Found,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    Listed,
    Lost,
    NothingPaid,
    Notified,
    NotSent,
    Overpaid,
    Prepared,
    ProvenAbsent,
    Recovered,
    Refused,
    Returned,
    ReversalNotSent,
    ReversalPermitted,
    ReversalRefused,
    Reversed,
    Suspected,
    Unqueried,
    Withdrawn,
)

__all__ = ["TRANSITIONS", "Record", "State", "advance"]

#: Candidate ids that one attempt keeps.
MOST_CANDIDATES = 16

#: Among the candidate ids, where more came than are kept: some were never queried. No transaction has this id.
DROPPED = 0


class State(enum.StrEnum):
    """Where an attempt stands."""

    #: The permit is committed; no answer yet.
    SENDING = "sending"
    #: Sent, and no usable answer: it may exist.
    UNKNOWN = "unknown"
    #: Created; the customer has not answered yet (`Pendiente`).
    PENDING = "pending"
    #: The window has passed by our clock, and no answer was found. Presumed `Cancelado`.
    EXPIRED = "expired"
    #: Paid, on the word of the service or of a named operator. Final, unless it is given back.
    ACCEPTED = "accepted"
    #: Not paid: declined, closed, withdrawn, or not approved in time.
    CANCELLED = "cancelled"
    #: This attempt created nothing.
    REFUSED = "refused"
    #: Accepted; a request to give it back was permitted, and has no answer yet.
    REVERSING = "reversing"
    #: Accepted, and given back since.
    REVERSED = "reversed"

    #: Accepted, cancelled, refused or reversed. No property: every sale reads it several times.
    decided: bool

    def __init__(self, value: str) -> None:
        self.decided = value in ("accepted", "cancelled", "refused", "reversed")

    @property
    def paid(self) -> bool | None:
        """True or False on somebody's word or by proof, None while it is not known."""
        if self is State.ACCEPTED:
            return True
        return False if self.decided else None


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
    #: Keyed digest of the token that it was sent under.
    credentials: bytes = attrs.field(default=b"", repr=False)
    #: Cents.
    amount: int = 0
    currency: str = ""
    state: State = State.SENDING
    evidence: Evidence = Evidence.PERMIT
    #: Raised by one with each event: what a writer compares.
    version: int = 0
    transaction_id: int | None = None
    #: Transaction ids that an answer or notifications named while none was ours, less those that proved to be
    #: another's; that of an answer is the first. With `DROPPED` among them there were more.
    candidate_ids: tuple[int, ...] = ()
    #: When the permit was requested.
    created_at: float = 0.0
    #: When the customer can no longer approve; None until known.
    expires_at: float | None = None
    notified_at: float | None = None
    decided_at: float | None = None
    #: The messages of a refusal, as the service wrote them (bounded).
    error_code: int | None = None
    error_type: str | None = None
    messages: tuple[str, ...] = attrs.field(default=(), repr=False)
    #: The key of what the customer owes once, however many asks; without one, the client transaction id.
    purchase: str = attrs.field(
        default=attrs.Factory(lambda self: self.client_transaction_id, takes_self=True)
    )
    #: When the links of a form are dead; None for a sale.
    links_dead_at: float | None = None
    #: The caller allowed it beside an open form of its purchase.
    beside_open_form: bool = False
    #: Why it was declined, as the service wrote it (bounded).
    reason: str | None = attrs.field(default=None, repr=False)
    #: The fields that the profile keeps of the deciding report, as a JSON object (bounded).
    receipt: str | None = attrs.field(default=None, repr=False)
    #: Whether the attempt was moved to a file. Then it takes no more events: the ledger keeps what a permit must know.
    archived: bool = False


#: The states of what is paid, or may still be.
PAID = (State.ACCEPTED, State.REVERSING)
#: The states of what was paid once.
APPROVED = (*PAID, State.REVERSED)

_HINTS: dict[type[Event], State | None] = dict.fromkeys(
    (Notified, Returned, Conflicted, Suspected, FoundPending)
)

#: The events of a query, or of proof that nothing is paid.
_VERDICTS: dict[type[Event], State | None] = {
    FoundAccepted: State.ACCEPTED,
    FoundCancelled: State.CANCELLED,
    Abandoned: State.CANCELLED,
    Withdrawn: State.CANCELLED,
}

#: The events of an operator about an ask that no query has decided.
_DECISIONS: dict[type[Event], State | None] = {
    DecidedAccepted: State.ACCEPTED,
    Listed: State.ACCEPTED,
    DecidedCancelled: State.CANCELLED,
    DecidedRefused: State.REFUSED,
}

#: The events that each state takes, and the state after each; None: the state stays.
TRANSITIONS: Mapping[State, Mapping[type[Event], State | None]] = MappingProxyType(
    {
        State.SENDING: {
            **_HINTS,
            Created: State.PENDING,
            Prepared: State.PENDING,
            Refused: State.REFUSED,
            NotSent: State.REFUSED,
            Lost: State.UNKNOWN,
            Recovered: State.UNKNOWN,
        },
        State.UNKNOWN: {
            **_HINTS,
            Created: State.PENDING,  # our own late answer
            Refused: State.REFUSED,
            NotSent: State.REFUSED,
            FoundPending: State.PENDING,
            **_VERDICTS,
            ProvenAbsent: State.REFUSED,
            **_DECISIONS,
        },
        State.PENDING: {**_HINTS, **_VERDICTS, Expired: State.EXPIRED},
        State.EXPIRED: {
            **_HINTS,
            Exhausted: State.EXPIRED,
            Unqueried: State.EXPIRED,
            **_VERDICTS,
            **_DECISIONS,
        },
        State.CANCELLED: {
            **_HINTS,
            **dict.fromkeys(_VERDICTS),  # once more
            FoundAccepted: State.ACCEPTED,  # a correction
            # About a form to which a payment was named, where no query can tell.
            DecidedAccepted: State.ACCEPTED,
            DecidedCancelled: State.CANCELLED,
        },
        State.ACCEPTED: {
            **_HINTS,
            FoundAccepted: None,
            FoundCancelled: State.REVERSED,  # a correction: a query finds it given back
            Overpaid: None,
            Reversed: State.REVERSED,  # a clock jumped: a query was believed while the reversal was on its way
            ReversalPermitted: State.REVERSING,
        },
        State.REVERSING: {
            **_HINTS,
            FoundAccepted: State.ACCEPTED,
            FoundCancelled: State.REVERSED,
            ReversalNotSent: State.ACCEPTED,
            ReversalRefused: State.ACCEPTED,
            Reversed: State.REVERSED,
            DecidedAccepted: State.ACCEPTED,
            DecidedCancelled: State.REVERSED,
        },
        State.REVERSED: {**_HINTS, FoundCancelled: None},
        State.REFUSED: {
            **_HINTS,
            FoundAccepted: State.ACCEPTED,  # a correction: the refusal was not the answer to our POST
            # About what may exist all the same, where no query can tell.
            DecidedAccepted: State.ACCEPTED,
            DecidedRefused: State.REFUSED,
        },
    }
)


def advance(record: Record, event: Event, seen: Record | None = None) -> Record:
    """Return the record after the event. Raises `TransitionError`, changing nothing, if its state does not take it.

    `seen` is the attempt as it was known when the event was made, None: as it is. Later events may overtake it.
    """
    if record.archived:
        raise transition_error(
            record, f"the attempt was archived as {record.state}, and takes no more events"
        )
    table = TRANSITIONS[record.state]
    try:
        target = table[type(event)]
    except KeyError:
        raise transition_error(record, f"{record.state} does not take {type(event).__name__}") from None
    if words := _overtaken(record, event, record if seen is None else seen):
        raise transition_error(record, words)
    changes = _changes(record, event)
    changes["version"] = record.version + 1
    if target is not None:
        decided_at = event.at if target.decided else None
        changes |= {"state": target, "evidence": event.evidence, "decided_at": decided_at}
        if isinstance(event, Found):
            changes["reason"] = event.reason
            is_another = isinstance(event, FoundAccepted) and event.instead_of is not None
            # A payment that is given back keeps its receipt, unless another transaction is paid in its place.
            if is_another or record.state not in PAID:
                changes["receipt"] = event.receipt
    elif isinstance(event, FoundAccepted):  # another transaction is paid in the place of the one before
        changes["receipt"] = event.receipt
    return _changed(record, changes)


def transition_error(record: Record, words: str) -> TransitionError:
    """Return the error of an event, or of a permit, that the record of its attempt does not take."""
    return TransitionError(words, client_transaction_id=record.client_transaction_id)


def _changes(record: Record, event: Event) -> dict[str, Any]:
    """Return what the event changes, the state aside. Raises `TransitionError` for another transaction."""
    match event:
        case Created():
            return {"transaction_id": event.transaction_id, "expires_at": event.expires_at}
        case Refused():
            return {
                "error_type": event.error_type,
                "error_code": event.error_code,
                "messages": event.messages,
            }
        case Lost():
            candidate_ids = _with_first_candidate(record.candidate_ids, event.candidate_id)
            return {"expires_at": event.expires_at, "candidate_ids": candidate_ids}
        case Prepared() | Recovered() | ReversalPermitted():
            return {"expires_at": event.expires_at}
        case FoundPending(expires_at=float(ends)) if record.state is State.UNKNOWN:
            # The POST may have arrived late: the sale may be as new as this report.
            return _id_changes(record, event) | {"expires_at": max(record.expires_at or 0.0, ends)}
        case Found():
            return _id_changes(record, event)
        case Notified() | Returned():
            changes: dict[str, Any] = {}
            if record.notified_at is None:
                changes["notified_at"] = event.at
            if record.transaction_id is None and event.transaction_id is not None:
                changes["candidate_ids"] = _with_candidate(record.candidate_ids, event.transaction_id)
            return changes
        case Conflicted():
            rest = _without(record.candidate_ids, event.candidate_id)
            return {"candidate_ids": _with_first_candidate(rest, event.created_id)}
        case DecidedCancelled():
            return {"candidate_ids": ()}  # the person has settled what was named so far
    return {}


def _overtaken(record: Record, event: Event, seen: Record) -> str | None:
    """Return why an event, though its state takes it, may be older than what is known by now; None where it is not."""
    match event:
        case FoundAccepted() if record.state is State.REVERSING:
            # No wall clock says when it has ended: `Policy.reversal_may_be_on_its_way` does.
            if seen.state is not State.REVERSING or seen.expires_at != record.expires_at:
                return "the request to give it back may be on its way"
        case FoundCancelled() if record.state in PAID and seen.state not in PAID:
            return "the report may be older than the payment"
        case Decision() if record.state in (State.CANCELLED, State.REFUSED):
            return _unready(record, event, seen)
        case ReversalNotSent() | ReversalRefused() if seen.expires_at != record.expires_at:
            return "this was the end of an earlier request to give it back"
        case Reversed() if seen.transaction_id not in (None, record.transaction_id):
            return "another transaction is paid in the place of the one that was given back"
        case NothingPaid() | FoundCancelled() if not record.state.decided:
            if record.transaction_id is None and not set(record.candidate_ids) <= set(seen.candidate_ids):
                return "a transaction was named meanwhile, and not queried"
    return None


def _unready(record: Record, event: Decision, seen: Record) -> str | None:
    """Return why a person may not decide once more what ended unpaid; None: a person may."""
    if seen.version != record.version:
        return "it has changed meanwhile"
    is_live = record.links_dead_at is not None and event.at < record.links_dead_at
    return "its links may still be paid" if is_live and isinstance(event, DecidedCancelled) else None


def _id_changes(record: Record, event: Found) -> dict[str, Any]:
    """Return what a report changes of the transaction id. Raises `TransitionError` for one of another transaction."""
    if record.transaction_id is None:
        # Only what is paid binds a form: after a declined card, another one pays by another transaction.
        if record.kind == "sale" or isinstance(event, FoundAccepted):
            return {"transaction_id": event.transaction_id}
        if isinstance(event, FoundPending) and event.transaction_id is not None:
            return {"candidate_ids": _with_candidate(record.candidate_ids, event.transaction_id)}
        if isinstance(event, FoundCancelled):
            return {"candidate_ids": _without(record.candidate_ids, event.transaction_id)}
    elif isinstance(event, FoundAccepted) and event.instead_of == record.transaction_id:
        return {"transaction_id": event.transaction_id}
    elif event.transaction_id not in (None, record.transaction_id):
        raise transition_error(record, f"a report of transaction {event.transaction_id} is not this one's")
    return {}


def _without(known: tuple[int, ...], candidate_id: int | None) -> tuple[int, ...]:
    return tuple(each for each in known if each != candidate_id)


def _with_first_candidate(known: tuple[int, ...], candidate_id: int | None) -> tuple[int, ...]:
    """Put the candidate that the service's own answer named, if it named one, before those of notifications."""
    if candidate_id is None:
        return known
    rest = _without(known, candidate_id)
    if len(rest) == MOST_CANDIDATES:
        rest = (DROPPED, *rest[2:])  # the oldest two make room: for this one, and for the mark
    return (candidate_id, *rest)


def _with_candidate(known: tuple[int, ...], candidate_id: int) -> tuple[int, ...]:
    """Add a candidate. The first stays, since the service's own answer may have named it; the oldest others go."""
    if candidate_id in known:
        return known
    if len(known) < MOST_CANDIDATES:
        return (*known, candidate_id)
    # The next two make room, for this one and for the mark; the mark is the first of them from the second time on.
    return tuple(dict.fromkeys((known[0], DROPPED, *known[3:], candidate_id)))


_NAMES = tuple(field.name for field in attrs.fields(Record))
_VALUES = attrgetter(*_NAMES)
_SETTERS: dict[str, Callable[[Record, Any], None]] = {name: getattr(Record, name).__set__ for name in _NAMES}


def _changed(record: Record, changes: dict[str, Any]) -> Record:
    """Evolve a record as `attrs.evolve` does, in half its time: every write of every sale does it."""
    copy = object.__new__(Record)
    for put, value in zip(_SETTERS.values(), _VALUES(record), strict=True):
        put(copy, value)
    for name, value in changes.items():
        _SETTERS[name](copy, value)
    return copy
