"""The events that may happen to an attempt, and what each rests on. `lifecycle` has the states that follow.

Text that others wrote is bounded as an event is made, a receipt as its report is read: a hostile message must never
block the record of an answer.
"""

import enum
from collections.abc import Sequence
from typing import ClassVar

import attrs
from attrs.converters import optional

from payclient.validation import sanitize_text

__all__ = ["Event", "Evidence"]

_MESSAGES = 50
_INT64 = 2**63


def _texts(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(sanitize_text(text) for text in texts[:_MESSAGES])


def _code(code: int | None) -> int | None:
    return code if code is None or -_INT64 <= code < _INT64 else None


class Evidence(enum.StrEnum):
    """The evidence on which a state rests."""

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
    #: Our clock, and queries to the last one without a word.
    LAST_QUERY = "last query"
    #: Our clock, where no status can be queried.
    NO_QUERY = "no query"
    #: A named person.
    OPERATOR = "operator"
    #: A named person, who read it in a statement of the service or the bank.
    LISTED = "listed"
    #: Two ids, unsigned.
    NOTIFICATION = "notification"
    #: The customer's browser came back: two ids, unsigned.
    RETURN = "return"
    #: The browser came back cancelled, and the service's answer to a query is that nothing was paid.
    UNPAID = "unpaid"
    #: The service took our withdrawal.
    WITHDRAWN = "withdrawn"
    #: A report about something that is not ours.
    CONFLICT = "conflict"
    #: Code 2061 of a later attempt in the same lane.
    LANE_BUSY = "lane busy"


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened to an attempt, at a UTC time in seconds. A subclass without fields is a plain class."""

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
    error_type: str = attrs.field(converter=sanitize_text)
    error_code: int | None = attrs.field(default=None, converter=_code)
    messages: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    #: True where any of its codes says that something exists, though a query found nothing.
    exists: bool | None = None


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
    #: Why it was declined, as the service wrote it (bounded).
    reason: str | None = attrs.field(default=None, repr=False, converter=optional(sanitize_text))
    #: What is kept of the report (`wire.kept_fields`), as a JSON object in ASCII.
    receipt: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class FoundPending(Found):
    """The service says `Pendiente` of this transaction, or that a form is paid which waits for its confirmation."""

    #: When the customer can no longer approve, had it been created this moment; None of a form.
    expires_at: float | None = None


@attrs.frozen(kw_only=True)
class FoundAccepted(Found):
    """The service says `Aceptado`."""

    #: The transaction id of this attempt until now, where another one under its client transaction id is paid.
    instead_of: int | None = None


class FoundCancelled(Found):
    """The service says `Cancelado`: of an accepted one, that it was given back."""


class NothingPaid(Event):
    """Nothing of the attempt is paid, or will be."""


class ProvenAbsent(NothingPaid):
    """The service answered "not found" twice, late enough, and of each id that was named."""

    evidence = Evidence.ABSENT


class Expired(Event):
    """The window passed by our clock."""

    evidence = Evidence.CLOCK


class Exhausted(Event):
    """The last query was made and decided nothing: the ask no longer keeps others of its purchase from being sent."""

    evidence = Evidence.LAST_QUERY


class Unqueried(Event):
    """No status can be queried: the ask no longer keeps others of its purchase from being sent, until one can."""

    evidence = Evidence.NO_QUERY


@attrs.frozen(kw_only=True)
class Overpaid(Event):
    """Another ask of the same purchase is paid, too: somebody must give one back."""

    evidence = Evidence.CONFLICT
    #: The client transaction ids of the others that are paid.
    also: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ReversalPermitted(Event):
    """The permit to send one request that gives the payment back."""

    evidence = Evidence.PERMIT
    #: When that request can no longer be on its way, in UTC seconds.
    expires_at: float


class ReversalNotSent(Event):
    """The request to give it back is proven not to have reached the service."""

    evidence = Evidence.NOT_SENT


@attrs.frozen(kw_only=True)
class ReversalRefused(Event):
    """The request to give it back was answered with an error object."""

    evidence = Evidence.ANSWER
    error_code: int | None = None


class Reversed(Event):
    """The service took our request to give it back."""

    evidence = Evidence.ANSWER


@attrs.frozen(kw_only=True)
class Decision(Event):
    """An operator's word, with a name and a reason."""

    evidence = Evidence.OPERATOR
    actor: str = attrs.field(converter=sanitize_text)
    reason: str = attrs.field(converter=sanitize_text)


class DecidedAccepted(Decision):
    """An operator says that it was paid."""


class Listed(Decision):
    """A statement of the service or the bank lists it as paid."""

    evidence = Evidence.LISTED


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
    """The customer's browser came back from a form: a hint. Without a transaction id it came back cancelled."""

    evidence = Evidence.RETURN
    transaction_id: int | None = None


class Abandoned(NothingPaid):
    """The browser came back cancelled, and the service answers a query that it knows of no payment."""

    evidence = Evidence.UNPAID


class Withdrawn(NothingPaid):
    """The service took our withdrawal of a request that nobody answered."""

    evidence = Evidence.WITHDRAWN


@attrs.frozen(kw_only=True)
class Conflicted(Event):
    """A report or notification is about something that is not ours; it decides nothing."""

    evidence = Evidence.CONFLICT
    what: str = attrs.field(converter=sanitize_text)
    #: A candidate id that turned out to be another sale's, and is dropped.
    candidate_id: int | None = None
    #: The transaction that our own answer names of an attempt that was called unpaid before: a candidate.
    created_id: int | None = None


class Suspected(Event):
    """A later attempt of the same lane got code 2061 while this one was unknown: it may have landed."""

    evidence = Evidence.LANE_BUSY
