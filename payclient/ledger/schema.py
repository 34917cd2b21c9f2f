"""The tables of the SQLite ledger, its SQL as named constants, and rows <-> records.

The database itself keeps the promises: triggers made from `TRANSITIONS` refuse every illegal move, a second
open attempt, and any change of the history, which they also write: no writer can forget it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from payclient.ledger import Change
from payclient.ledger.details import FEED, describe
from payclient.lifecycle import TRANSITIONS, Event, Evidence, Record, State

__all__ = [
    "APPLICATION_ID",
    "CHANGE",
    "CHANGING",
    "NEWS",
    "RECORD",
    "SCHEMA",
    "SELECT_ATTEMPT",
    "SELECT_CHANGES",
    "SELECT_ENVIRONMENT",
    "SELECT_HISTORY",
    "SELECT_KEY",
    "SELECT_RECORDS",
    "SELECT_UNFINISHED",
    "SET_ENVIRONMENT",
    "VERSION",
    "apply_row",
    "change_of",
    "insert_attempts",
    "legal_moves",
    "permit_row",
    "record_of",
    "select_newest",
    "update_attempts",
]

#: "PayL": what makes a SQLite file ours.
APPLICATION_ID = 0x5061794C
#: Of the tables and triggers below. Whoever changes them, or `TRANSITIONS`, raises it and converts old files.
VERSION = 3


def _quoted(*states: State) -> str:
    return ", ".join(f"'{state}'" for state in states)


def legal_moves(no: str = "0") -> str:
    """The legal (from, to) pairs as an expression; a state may always stay, as it does for a hint."""
    cases = []
    for before, table in TRANSITIONS.items():
        targets = sorted({target for target in table.values() if target is not None} | {before})
        # Not `IN`: for three and more SQLite would build a table each time the trigger fires.
        legal = " OR ".join(f"new.state = '{target}'" for target in targets)
        cases.append(f"WHEN '{before}' THEN {legal}")
    return f"CASE old.state {' '.join(cases)} ELSE {no} END"


NEWS = f"after <> before AND after IN ({_quoted(*sorted(FEED))})"

SCHEMA = (
    """
CREATE TABLE meta (
    digest_key BLOB NOT NULL,
    created_at REAL NOT NULL,
    schema_version INTEGER NOT NULL
) STRICT""",
    # The service that this ledger is used with; empty until then.
    """
CREATE TABLE environment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    digest BLOB NOT NULL
) STRICT""",
    """
CREATE TABLE attempts (
    seq INTEGER PRIMARY KEY,
    client_transaction_id TEXT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    kind TEXT NOT NULL,
    digest BLOB NOT NULL,
    lane BLOB NOT NULL,
    amount INTEGER NOT NULL,
    currency TEXT NOT NULL,
    created_at REAL NOT NULL,
    state TEXT NOT NULL,
    evidence TEXT NOT NULL,
    version INTEGER NOT NULL,
    transaction_id INTEGER,
    candidate_id INTEGER,
    expires_at REAL,
    notified_at REAL,
    decided_at REAL,
    error_code INTEGER,
    error_type TEXT,
    messages TEXT,
    -- The event that brought it here; the triggers copy it into the history.
    event TEXT NOT NULL,
    event_evidence TEXT NOT NULL,
    event_at REAL NOT NULL,
    event_detail TEXT,
    UNIQUE (client_transaction_id, attempt)
) STRICT""",
    "CREATE UNIQUE INDEX attempts_open ON attempts (client_transaction_id) WHERE state <> 'refused'",
    "CREATE INDEX attempts_unfinished ON attempts (created_at) WHERE decided_at IS NULL",
    """
CREATE TABLE changes (
    cursor INTEGER PRIMARY KEY,
    client_transaction_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    before TEXT,
    after TEXT NOT NULL,
    evidence TEXT NOT NULL,
    detail TEXT
) STRICT""",
    "CREATE INDEX changes_of ON changes (client_transaction_id)",
    # The EXISTS also stands against INSERT OR REPLACE, which deletes without asking a trigger.
    """
CREATE TRIGGER attempts_insert BEFORE INSERT ON attempts
WHEN new.state <> 'sending' OR new.version <> 0
OR EXISTS (
    SELECT 1 FROM attempts
    WHERE client_transaction_id = new.client_transaction_id AND (attempt >= new.attempt OR state <> 'refused')
)
OR (new.attempt > 1 AND NOT EXISTS (
    SELECT 1 FROM attempts
    WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1
))
BEGIN SELECT RAISE(ABORT, 'not a permit'); END""",
    f"""
CREATE TRIGGER attempts_move BEFORE UPDATE ON attempts
WHEN new.version <> old.version + 1 OR NOT ({legal_moves()})
BEGIN SELECT RAISE(ABORT, 'illegal move'); END""",
    """
CREATE TRIGGER attempts_identity BEFORE UPDATE OF
seq, client_transaction_id, attempt, kind, digest, lane, amount, currency, created_at ON attempts
BEGIN SELECT RAISE(ABORT, 'what an attempt is does not change'); END""",
    """
CREATE TRIGGER attempts_delete BEFORE DELETE ON attempts
BEGIN SELECT RAISE(ABORT, 'attempts stay'); END""",
    """
CREATE TRIGGER attempts_permitted AFTER INSERT ON attempts BEGIN
    INSERT INTO changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    VALUES (new.client_transaction_id, new.attempt, new.event_at, new.event, NULL, new.state,
        new.event_evidence, new.event_detail);
END""",
    """
CREATE TRIGGER attempts_moved AFTER UPDATE ON attempts BEGIN
    INSERT INTO changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    VALUES (new.client_transaction_id, new.attempt, new.event_at, new.event, old.state, new.state,
        new.event_evidence, new.event_detail);
END""",
    """
CREATE TRIGGER changes_insert BEFORE INSERT ON changes
WHEN EXISTS (SELECT 1 FROM changes WHERE cursor = new.cursor)
BEGIN SELECT RAISE(ABORT, 'the history stays'); END""",
    """
CREATE TRIGGER changes_update BEFORE UPDATE ON changes
BEGIN SELECT RAISE(ABORT, 'the history stays'); END""",
    """
CREATE TRIGGER changes_delete BEFORE DELETE ON changes
BEGIN SELECT RAISE(ABORT, 'the history stays'); END""",
)

SELECT_KEY = "SELECT digest_key FROM meta"
SELECT_ENVIRONMENT = "SELECT digest FROM environment"
SET_ENVIRONMENT = (
    "INSERT INTO environment (one, digest) VALUES (1, ?) ON CONFLICT DO UPDATE SET digest = excluded.digest"
)

RECORD = """
    client_transaction_id, attempt, kind, digest, lane, amount, currency, state, evidence, version,
    transaction_id, candidate_id, created_at, expires_at, notified_at, decided_at, error_code, error_type,
    messages
"""
CHANGE = "cursor, client_transaction_id, attempt, at, event, before, after, evidence, detail"

SELECT_ATTEMPT = f"SELECT {RECORD} FROM attempts WHERE client_transaction_id = ? AND attempt = ?"  # noqa: S608 - our own column names
SELECT_UNFINISHED = f"""
SELECT {RECORD} FROM attempts WHERE decided_at IS NULL ORDER BY created_at, seq"""  # noqa: S608 - our own column names
#: A page of them, each with its `seq` behind it, from which the next page goes on.
SELECT_RECORDS = f"SELECT {RECORD}, seq FROM attempts WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608 - our own column names
SELECT_HISTORY = f"SELECT {CHANGE} FROM changes WHERE client_transaction_id = ? ORDER BY cursor"  # noqa: S608 - our own column names
SELECT_CHANGES = f"SELECT {CHANGE} FROM changes WHERE cursor > ? AND {NEWS} ORDER BY cursor LIMIT ?"  # noqa: S608 - our own column names

# What changes with an event, in the order of `apply_row`; its first three say which row.
CHANGING = (
    "state", "evidence", "transaction_id", "candidate_id", "expires_at", "notified_at", "decided_at",
    "error_code", "error_type", "messages", "event", "event_evidence", "event_at", "event_detail",
)  # fmt: skip


# One statement for many rows, not `executemany`: the interpreter's lock is let go once for all of them, and
# not taken back row by row from a busy event loop.


@cache
def insert_attempts(rows: int) -> str:
    row = "(?, ?, ?, ?, ?, ?, ?, ?, ?, 'sending', 'permit', 0, 'Permitted', 'permit', ?)"
    return f"""
INSERT INTO attempts (client_transaction_id, attempt, kind, digest, lane, amount, currency, created_at,
    expires_at, state, evidence, version, event, event_evidence, event_at)
VALUES {", ".join([row] * rows)}"""  # noqa: S608 - only the number of rows varies


@cache
def update_attempts(rows: int) -> str:
    row = f"({', '.join('?' * (len(CHANGING) + 3))})"
    changing = ", ".join(f"{name} = v.column{place}" for place, name in enumerate(CHANGING, 4))
    return f"""
UPDATE attempts SET version = v.column3 + 1, {changing}
FROM (VALUES {", ".join([row] * rows)}) AS v
WHERE attempts.client_transaction_id = v.column1 AND attempts.attempt = v.column2
    AND attempts.version = v.column3"""  # noqa: S608 - only the number of rows varies


@cache
def select_newest(ids: int) -> str:
    """All attempts of so many ids, the newest last."""
    return f"""
SELECT {RECORD} FROM attempts WHERE client_transaction_id IN ({", ".join("?" * ids)})
ORDER BY client_transaction_id, attempt"""  # noqa: S608 - only the number of ids varies


def permit_row(record: Record) -> tuple[Any, ...]:
    return (
        record.client_transaction_id,
        record.attempt,
        record.kind,
        record.digest,
        record.lane,
        record.amount,
        record.currency,
        record.created_at,
        record.expires_at,
        record.created_at,
    )


def apply_row(before: Record, event: Event, after: Record) -> tuple[Any, ...]:
    # `_value_`, since sqlite3 takes a plain str by a shorter way than an enum's member.
    return (
        before.client_transaction_id,
        before.attempt,
        before.version,
        after.state._value_,
        after.evidence._value_,
        after.transaction_id,
        after.candidate_id,
        after.expires_at,
        after.notified_at,
        after.decided_at,
        after.error_code,
        after.error_type,
        json.dumps(after.messages) if after.messages else None,
        type(event).__name__,
        event.evidence._value_,
        event.at,
        describe(event),
    )


_STATES: dict[str | None, State] = {state.value: state for state in State}
_EVIDENCE = {evidence.value: evidence for evidence in Evidence}


def record_of(row: tuple[Any, ...]) -> Record:
    return Record(
        client_transaction_id=row[0],
        attempt=row[1],
        kind=row[2],
        digest=row[3],
        lane=row[4],
        amount=row[5],
        currency=row[6],
        state=_STATES[row[7]],
        evidence=_EVIDENCE[row[8]],
        version=row[9],
        transaction_id=row[10],
        candidate_id=row[11],
        created_at=row[12],
        expires_at=row[13],
        notified_at=row[14],
        decided_at=row[15],
        error_code=row[16],
        error_type=row[17],
        messages=tuple(json.loads(row[18])) if row[18] else (),
    )


def change_of(row: tuple[Any, ...]) -> Change:
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
