"""One layout for every ledger: rows <-> records, what the history keeps of an event, and the statements as files."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from payclient.errors import TransitionError
from payclient.events import Created, Event, Evidence, Refused
from payclient.ledger import Change
from payclient.lifecycle import TRANSITIONS, Record, State, advance, check_newest

__all__ = [
    "FEED",
    "change_of",
    "change_row",
    "describe",
    "grouped",
    "may_permit",
    "moved",
    "permit_row",
    "read_statements",
    "record_of",
    "sanitize_event",
    "sanitize_text",
]

#: The states whose arrival is news to a reader of the feed.
FEED = frozenset({State.ACCEPTED, State.CANCELLED, State.REFUSED, State.EXPIRED})

_TEXT = 500
_MESSAGES = 50
_INT64 = 2**63


# Statements


def _any_of(name: str, states: Iterable[State]) -> str:
    # Not `IN`: for three and more SQLite would build a table each time.
    return " OR ".join(f"{name} = '{state}'" for state in sorted(states))


def _legal_moves() -> str:
    """Return SQL that is true where `TRANSITIONS` has an event that leads from `before` to `after`."""
    cases = (
        f"WHEN '{state}' THEN {_any_of('after', {state if target is None else target for target in table.values()})}"
        for state, table in TRANSITIONS.items()
    )
    return f"CASE before {' '.join(cases)} ELSE false END"


#: What stands in braces in a file of statements. The lists of columns are those of `record_of` and `change_of`.
_MADE = {
    "record": """client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency, state, evidence,
    version, transaction_id, candidate_ids, created_at, expires_at, notified_at, decided_at, error_code, error_type,
    messages""",
    "change": "cursor, client_transaction_id, attempt, at, event, before, after, evidence, detail",
    "legal_moves": _legal_moves(),
    "decided": _any_of("after", [state for state in State if state.decided]),
    "news": f"({_any_of('after', FEED)}) AND after <> before",
}


def read_statements(file: str) -> dict[str, str]:
    """Return the statements of a `.sql` file of this package by name, in their order; each follows `-- name: NAME`."""
    text = (pkgutil.get_data(__package__, file) or b"").decode()
    for name, sql in _MADE.items():
        text = text.replace(f"{{{name}}}", sql)
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return {
        name: re.sub(r"^ *--.*\n", "", sql, flags=re.MULTILINE).strip()
        for name, sql in zip(parts[::2], parts[1::2], strict=True)
    }


# Rows


def permit_row(record: Record) -> tuple[Any, ...]:
    """Return the values of a permit, as the statements `permit` and `write` take them."""
    return (
        record.client_transaction_id,
        record.attempt,
        record.kind,
        # sqlite3 takes a bytearray by a shorter way than bytes.
        bytearray(record.digest),
        bytearray(record.lane),
        bytearray(record.credentials),
        record.amount,
        record.currency,
        record.created_at,
        record.expires_at,
    )


def change_row(before: Record, event: Event, after: Record) -> tuple[Any, ...]:
    """Return the values of a change, as the statements `change` and `write` take them; the last six are mostly None."""
    # `_value_`, since sqlite3 takes a plain str by a shorter way than an enum's member.
    return (
        after.client_transaction_id,
        after.attempt,
        after.version,
        event.at,
        type(event).__name__,
        event.evidence._value_,
        describe(event),
        before.state._value_,
        after.state._value_,
        after.evidence._value_,
        after.transaction_id,
        after.expires_at,
        json.dumps(after.candidate_ids) if after.candidate_ids else None,
        after.notified_at,
        after.decided_at,
        after.error_code,
        after.error_type,
        json.dumps(after.messages) if after.messages else None,
    )


_STATES: dict[str | None, State] = {state.value: state for state in State}
_EVIDENCE = {evidence.value: evidence for evidence in Evidence}


def record_of(row: Sequence[Any]) -> Record:
    """Return the record of a row; columns behind those of a record are left out."""
    return Record(
        client_transaction_id=row[0],
        attempt=row[1],
        kind=row[2],
        digest=row[3],
        lane=row[4],
        credentials=row[5],
        amount=row[6],
        currency=row[7],
        state=_STATES[row[8]],
        evidence=_EVIDENCE[row[9]],
        version=row[10],
        transaction_id=row[11],
        candidate_ids=tuple(json.loads(row[12])) if row[12] else (),
        created_at=row[13],
        expires_at=row[14],
        notified_at=row[15],
        decided_at=row[16],
        error_code=row[17],
        error_type=row[18],
        messages=tuple(json.loads(row[19])) if row[19] else (),
    )


def grouped(rows: Iterable[Sequence[Any]]) -> dict[str, list[Record]]:
    """Return the attempts of each client transaction id, from rows in their order."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(record_of(row))
    return found


def change_of(row: Sequence[Any]) -> Change:
    """Return the change of a row."""
    return Change(
        cursor=row[0],
        client_transaction_id=row[1],
        attempt=row[2],
        at=row[3],
        event=row[4],
        before=_STATES.get(row[5]),
        after=_STATES[row[6]],
        evidence=_EVIDENCE[row[7]],
        detail=row[8],
    )


# Text that others wrote


def sanitize_text(text: str) -> str:
    """Return at most 500 characters that every database and terminal takes: what is not printable is escaped."""
    text = text[:_TEXT]
    if text.isprintable():
        return text
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return escaped[:_TEXT]


def sanitize_event(event: Event) -> Event:
    """Return the event with its free text bounded: a hostile message must never block the record of an answer."""
    if type(event) is not Refused:
        return event
    code = event.error_code
    return Refused(
        at=event.at,
        error_type=sanitize_text(event.error_type),
        error_code=code if code is None or -_INT64 <= code < _INT64 else None,
        messages=tuple(sanitize_text(message) for message in event.messages[:_MESSAGES]),
    )


def describe(event: Event) -> str | None:
    """Return the event's own fields as JSON; None where it has none."""
    if type(event) is Created:  # by far the most frequent: each sale has one
        return f'{{"transaction_id": {event.transaction_id}, "expires_at": {event.expires_at}}}'
    own = {}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        # The messages of a refusal stand in its record, once.
        if value is not None and field.name not in ("at", "messages"):
            own[field.name] = sanitize_text(value) if isinstance(value, str) else value
    return json.dumps(own) if own else None


# What the attempts of one client transaction id allow; number n stands at n - 1


def may_permit(attempts: Sequence[Record], record: Record) -> bool:
    """Return whether those attempts allow this one. Raises `TransitionError` where the one before it is missing."""
    if attempts and (len(attempts) >= record.attempt or attempts[-1].state is not State.REFUSED):
        return False
    if len(attempts) != record.attempt - 1:
        raise TransitionError(
            "the attempt before it is missing", client_transaction_id=record.client_transaction_id
        )
    return True


def moved(attempts: Sequence[Record], record: Record, event: Event) -> tuple[Record, Record]:
    """Return the attempt as it is and as the event leaves it. Raises `TransitionError`, as `advance` does."""
    if not 1 <= record.attempt <= len(attempts):
        raise TransitionError("no such attempt", client_transaction_id=record.client_transaction_id)
    before = attempts[record.attempt - 1]
    after = advance(before, event)
    check_newest(before, after, len(attempts))
    return before, after
