"""What `payclient ledger` says of a record: why it is where it is, what that rests on, and when."""

from __future__ import annotations

import datetime
import json

from payclient.events import Evidence
from payclient.ledger import Change
from payclient.lifecycle import DROPPED, TRANSITIONS, Record, State
from payclient.schedule import LAST_QUERIES, NORMAL_WINDOW

__all__: list[str] = []

#: Seconds after its permit from which nobody can be sending a sale any more: the total time-out and 30 s.
SENDER_GONE = 60.0

#: What a record rests on, in words.
RESTS_ON = {
    Evidence.PERMIT: "it was allowed to be sent; nothing else is known",
    Evidence.ANSWER: "the service answered our request",
    Evidence.NOT_SENT: "it is proven that no byte reached the service",
    Evidence.NO_ANSWER: "it was sent, and no usable answer came: it may exist",
    Evidence.RECOVERY: "its process ended while it was being sent: it may exist",
    Evidence.QUERY: "the service said so when asked",
    Evidence.ABSENT: "the service did not find it, twice and late enough: nothing was created",
    Evidence.CLOCK: "nobody heard of an answer in time: presumed cancelled, not proven",
    Evidence.LAST_QUERY: "nobody heard of an answer, to the last query: presumed cancelled, not proven",
    Evidence.OPERATOR: "a person said so",
    Evidence.NOTIFICATION: "a notification came, which proves nothing",
    Evidence.RETURN: "the customer's browser came back, which proves nothing",
    Evidence.UNPAID: "the customer came back without paying, and the service knows of no payment",
    Evidence.WITHDRAWN: "the service took our withdrawal",
    Evidence.CONFLICT: "something that is not ours was reported",
    Evidence.LANE_BUSY: "a later charge of this customer was refused because of a pending one: it may exist",
}

#: Each event's own sentence.
SENTENCES = {
    kind.__name__: (kind.__doc__ or "").strip() for table in TRANSITIONS.values() for kind in table
} | {"Permitted": "The permit was committed, before the first byte."}


def is_unresolved(record: Record, now: float, window: float) -> bool:
    """Return whether nothing that runs by itself is likely to settle the record any more."""
    if record.state is State.SENDING:
        return now > record.created_at + SENDER_GONE
    if record.state in (State.EXPIRED, State.REVERSING):
        return record.evidence is Evidence.LAST_QUERY or now > last_query(record, window)
    return record.state is State.UNKNOWN


def last_query(record: Record, window: float) -> float:
    """Return when a tracker makes the last query that a wait hopes for."""
    expires_at = record.created_at + window if record.expires_at is None else record.expires_at
    return expires_at + sum(LAST_QUERIES) * window / NORMAL_WINDOW


def heard_of(record: Record) -> str:
    """The candidate ids, in words."""
    return ", ".join("others" if each == DROPPED else str(each) for each in record.candidate_ids)


def why(record: Record, now: float, window: float) -> str:
    """Return why a sale is where it is, in words."""
    word = RESTS_ON[record.evidence]
    match record.state:
        case State.SENDING if now > record.created_at + SENDER_GONE:
            word = "its process ended while it was being sent; the next run calls it unknown, and asks"
        case State.SENDING:
            word = "being sent, or its process has just ended"
        case State.UNKNOWN if record.candidate_ids:
            word += f"; transaction {heard_of(record)} was heard of, unproven"
        case State.PENDING if record.expires_at is not None and now < record.expires_at:
            word = f"the customer has not answered; can until {utc(record.expires_at)}"
        case State.PENDING:
            word = "the customer's time is over; the next run asks for the last word"
        case State.REVERSING:
            word = "a request to give it back was sent, or was about to be, and has no answer"
        case State.EXPIRED if record.evidence is Evidence.CLOCK and now <= last_query(record, window):
            word += f"; a run that is open asks until {utc(last_query(record, window))}"
        case State.REFUSED if record.evidence is Evidence.ANSWER:
            word = f"the service refused it: {refusal(record)}"
    if record.notified_at is not None and not record.state.decided:
        word += "; a notification came"
    return word


def refusal(record: Record) -> str:
    """Return a refusal's code and messages."""
    said = "; ".join(record.messages) or record.error_type or ""
    return said if record.error_code is None else f"{said} (code {record.error_code})"


def move(change: Change) -> str:
    """Return what happened, and between which states."""
    between = f": {change.before or 'nothing'} → {change.after}" if change.before is not change.after else ""
    return f"{change.event}{between}"


def what(change: Change) -> str:
    """Return an event's own sentence, with its details."""
    details = []
    for name, value in (json.loads(change.detail) if change.detail else {}).items():
        text = f"{utc(value)} UTC" if name.endswith("_at") else str(value)
        details.append(f"{name.replace('_', ' ')}: {text}")
    return " ".join([SENTENCES.get(change.event, ""), "; ".join(details)]).strip()


def utc(when: float) -> str:
    """Return `2026-03-01 17:04:59`."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def local(when: float) -> str:
    """Return the same moment on this machine's clock, with its distance from UTC."""
    return datetime.datetime.fromtimestamp(when, datetime.UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
