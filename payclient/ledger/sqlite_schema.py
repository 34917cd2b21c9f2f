"""The tables of the SQLite ledger and its SQL as named constants.

Nothing but INSERT is ever done to an attempt and to its changes; where an attempt stands is what its newest change
says. The database itself keeps the promises: its unique keys and its triggers, made from `TRANSITIONS`, refuse a second
open attempt, every illegal move, and any change of what was written.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from payclient.events import Event
from payclient.ledger.columns import CHANGE, NEWS, RECORD, legal_moves
from payclient.ledger.details import describe
from payclient.lifecycle import Record, State

__all__ = [
    "APPLICATION_ID",
    "LAST_CURSOR",
    "SCHEMA",
    "SELDOM",
    "SELECT_ATTEMPT",
    "SELECT_CHANGES",
    "SELECT_ENVIRONMENT",
    "SELECT_HISTORY",
    "SELECT_KEY",
    "SELECT_RECORDS",
    "SELECT_UNFINISHED",
    "SET_ENVIRONMENT",
    "VERSION",
    "change_row",
    "insert_attempts",
    "insert_changes",
    "select_newest",
]

#: "PayL": what makes a SQLite file ours.
APPLICATION_ID = 0x5061794C
#: The version of the tables and triggers below, which `TRANSITIONS` shapes too. A file of another version is refused.
VERSION = 1

# Not `IN`: for three and more SQLite would build a table each time.
_DECIDED = " OR ".join(f"after = '{state}'" for state in State if state.decided)
# Where the attempt of a new change stands, if the change is the next one.
_BEFORE = """coalesce(
    (SELECT CASE version WHEN new.version - 1 THEN after ELSE '' END FROM changes
        WHERE attempt_id = new.attempt_id ORDER BY version DESC LIMIT 1),
    (SELECT 'sending' FROM attempts WHERE id = new.attempt_id AND new.version = 1)
)"""

_TABLES = (
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
    # The permits, and what an attempt is.
    """
CREATE TABLE attempts (
    -- The permit's place in the ledger's order, which it shares with the cursors of the changes.
    id INTEGER PRIMARY KEY,
    client_transaction_id TEXT NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    kind TEXT NOT NULL,
    digest BLOB NOT NULL,
    lane BLOB NOT NULL,
    credentials BLOB NOT NULL,
    amount INTEGER NOT NULL,
    currency TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    UNIQUE (client_transaction_id, attempt)
) STRICT""",
    # The events that it took since, each with all that is known from then on.
    f"""
CREATE TABLE changes (
    cursor INTEGER PRIMARY KEY,
    attempt_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    evidence TEXT NOT NULL,
    detail TEXT,
    after TEXT NOT NULL,
    -- What that state rests on.
    state_evidence TEXT NOT NULL,
    transaction_id INTEGER,
    expires_at REAL,
    candidate_ids TEXT,
    notified_at REAL,
    decided_at REAL CHECK ((decided_at IS NOT NULL) = ({_DECIDED})),
    error_code INTEGER,
    error_type TEXT,
    messages TEXT,
    UNIQUE (attempt_id, version)
) STRICT""",
    # An index, kept by the triggers: the attempts that are not decided.
    "CREATE TABLE undecided (attempt_id INTEGER PRIMARY KEY) STRICT",
    """
CREATE VIEW records AS
SELECT id, client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency,
    coalesce(after, 'sending') AS state, coalesce(state_evidence, 'permit') AS evidence,
    coalesce(version, 0) AS version, transaction_id, candidate_ids, created_at,
    coalesce(changes.expires_at, attempts.expires_at) AS expires_at, notified_at, decided_at,
    error_code, error_type, messages
FROM attempts LEFT JOIN changes ON cursor = (
    SELECT cursor FROM changes AS newest WHERE newest.attempt_id = id ORDER BY newest.version DESC LIMIT 1
)""",
    """
CREATE VIEW moves AS
SELECT changes.cursor, client_transaction_id, attempt, changes.at, changes.event,
    coalesce(last.after, 'sending') AS before, changes.after, changes.evidence, changes.detail
FROM changes JOIN attempts ON id = changes.attempt_id
LEFT JOIN changes AS last ON last.attempt_id = changes.attempt_id AND last.version = changes.version - 1""",
    """
CREATE VIEW history AS
SELECT id AS cursor, client_transaction_id, attempt, created_at AS at, 'Permitted' AS event, NULL AS before,
    'sending' AS after, 'permit' AS evidence, NULL AS detail
FROM attempts UNION ALL SELECT * FROM moves""",
)

_TRIGGERS = (
    # These two also stand against INSERT OR REPLACE, which deletes without asking a trigger.
    """
CREATE TRIGGER attempts_insert BEFORE INSERT ON attempts
WHEN new.id <= (SELECT max(id) FROM attempts)
OR EXISTS (
    SELECT 1 FROM attempts WHERE client_transaction_id = new.client_transaction_id AND attempt >= new.attempt
)
OR (new.attempt > 1 AND 'refused' IS NOT (
    SELECT state FROM records
    WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1
))
BEGIN SELECT RAISE(ABORT, 'not a permit'); END""",
    f"""
CREATE TRIGGER changes_insert BEFORE INSERT ON changes
WHEN new.cursor <= (SELECT max(cursor) FROM changes) OR new.attempt_id >= new.cursor
OR NOT {legal_moves(_BEFORE, "new.after")}
OR (new.after = 'accepted' AND EXISTS (
    SELECT 1 FROM attempts AS mine JOIN attempts AS newer USING (client_transaction_id)
    WHERE mine.id = new.attempt_id AND newer.attempt > mine.attempt
))
BEGIN SELECT RAISE(ABORT, 'illegal move'); END""",  # noqa: S608 - our own words
    *(
        f"""
CREATE TRIGGER {table}_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, 'what is written stays'); END"""
        for table in ("attempts", "changes")
        for verb in ("update", "delete")
    ),
    """
CREATE TRIGGER attempts_permitted AFTER INSERT ON attempts BEGIN
    INSERT INTO undecided (attempt_id) VALUES (new.id);
END""",
    """
CREATE TRIGGER changes_decided AFTER INSERT ON changes WHEN new.decided_at IS NOT NULL BEGIN
    DELETE FROM undecided WHERE attempt_id = new.attempt_id;
END""",
    """
CREATE TRIGGER undecided_delete BEFORE DELETE ON undecided
WHEN NOT EXISTS (SELECT 1 FROM changes WHERE attempt_id = old.attempt_id AND decided_at IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'it is not decided'); END""",
    """
CREATE TRIGGER undecided_update BEFORE UPDATE ON undecided
BEGIN SELECT RAISE(ABORT, 'it is not decided'); END""",
)

SCHEMA = (*_TABLES, *_TRIGGERS)

SELECT_KEY = "SELECT digest_key FROM meta"
SELECT_ENVIRONMENT = "SELECT digest FROM environment"
SET_ENVIRONMENT = (
    "INSERT INTO environment (one, digest) VALUES (1, ?) ON CONFLICT DO UPDATE SET digest = excluded.digest"
)
LAST_CURSOR = """
SELECT max(coalesce((SELECT max(id) FROM attempts), 0), coalesce((SELECT max(cursor) FROM changes), 0))"""

SELECT_ATTEMPT = f"SELECT {RECORD} FROM records WHERE client_transaction_id = ? AND attempt = ?"  # noqa: S608 - our own column names
SELECT_UNFINISHED = f"""
SELECT {RECORD} FROM records WHERE id IN (SELECT attempt_id FROM undecided) ORDER BY created_at, id"""  # noqa: S608 - our own column names
#: A page of them, each with its `id` behind it, from which the next page goes on.
SELECT_RECORDS = f"SELECT {RECORD}, id FROM records WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 - our own column names
SELECT_HISTORY = f"SELECT {CHANGE} FROM history WHERE client_transaction_id = ? ORDER BY cursor"  # noqa: S608 - our own column names
SELECT_CHANGES = f"SELECT {CHANGE} FROM moves WHERE cursor > ? AND {NEWS} ORDER BY cursor LIMIT ?"  # noqa: S608 - our own column names

# One statement for many rows, not `executemany`: the interpreter's lock is let go once for all of them, and
# not taken back row by row from a busy event loop.


@cache
def insert_attempts(rows: int) -> str:
    """Each row is a cursor and a `permit_row`."""
    row = f"({', '.join('?' * 11)})"
    return f"INSERT INTO attempts VALUES {', '.join([row] * rows)}"  # noqa: S608 - only the number of rows varies


# What `change_row` has, behind the two that say which attempt. Most changes leave the last six None.
_CHANGE = (
    "version", "at", "event", "evidence", "detail", "after", "state_evidence", "transaction_id", "expires_at",
    "candidate_ids", "notified_at", "decided_at", "error_code", "error_type", "messages",
)  # fmt: skip
SELDOM = 6


@cache
def insert_changes(rows: int, whole: bool) -> str:
    """Each row is a cursor and a `change_row`, without its last six values unless it is `whole`."""
    columns = _CHANGE if whole else _CHANGE[:-SELDOM]
    row = f"""(?, (SELECT id FROM attempts WHERE client_transaction_id = ? AND attempt = ?),
    {", ".join("?" * len(columns))})"""  # noqa: S608 - our own column names
    return f"""
INSERT INTO changes (cursor, attempt_id, {", ".join(columns)})
VALUES {", ".join([row] * rows)}"""  # noqa: S608 - only the number of rows varies


def change_row(event: Event, after: Record) -> tuple[Any, ...]:
    # `_value_`, since sqlite3 takes a plain str by a shorter way than an enum's member.
    return (
        after.client_transaction_id,
        after.attempt,
        after.version,
        event.at,
        type(event).__name__,
        event.evidence._value_,
        describe(event),
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


@cache
def select_newest(ids: int) -> str:
    """All attempts of so many ids, the newest last."""
    return f"""
SELECT {RECORD} FROM records WHERE client_transaction_id IN ({", ".join("?" * ids)})
ORDER BY client_transaction_id, attempt"""  # noqa: S608 - only the number of ids varies
