"""What the history says of an event beside its name, and the bounds of text that others wrote."""

from __future__ import annotations

import json

import attrs

from payclient.events import Created, Event, Refused
from payclient.lifecycle import State

__all__ = ["FEED", "bounded", "describe", "tame"]

#: The states whose arrival is news to whoever reads the feed.
FEED = frozenset({State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED})

_TEXT = 500
_MESSAGES = 50
_INT64 = 2**63


def bounded(text: str) -> str:
    """At most 500 characters that every database and terminal takes: what is not printable is escaped."""
    text = text[:_TEXT]
    if text.isprintable():
        return text
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return escaped[:_TEXT]


def tame(event: Event) -> Event:
    """The event with its free text bounded: a hostile message must never block the record of an answer."""
    if type(event) is not Refused:
        return event
    code = event.error_code
    return Refused(
        at=event.at,
        error_type=bounded(event.error_type),
        error_code=code if code is None or -_INT64 <= code < _INT64 else None,
        messages=tuple(bounded(message) for message in event.messages[:_MESSAGES]),
    )


def describe(event: Event) -> str | None:
    """The event's own fields as JSON; None where it has none."""
    if type(event) is Created:  # by far the most frequent: each sale has one
        return f'{{"transaction_id": {event.transaction_id}, "expires_at": {event.expires_at}}}'
    own = {}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        # The messages of a refusal stand in its record, once.
        if value is not None and field.name not in ("at", "messages"):
            own[field.name] = bounded(value) if isinstance(value, str) else value
    return json.dumps(own) if own else None
