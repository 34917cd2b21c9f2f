"""What both databases keep of an attempt: the columns, rows <-> records, and the legal moves as SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from payclient.events import Evidence
from payclient.ledger import Change
from payclient.ledger.details import FEED
from payclient.lifecycle import TRANSITIONS, Record, State

__all__ = [
    "CHANGE",
    "NEWS",
    "RECORD",
    "change_of",
    "grouped",
    "legal_moves",
    "permit_row",
    "quoted",
    "record_of",
]

#: Of `record_of`.
RECORD = """
    client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency, state, evidence, version,
    transaction_id, candidate_ids, created_at, expires_at, notified_at, decided_at, error_code, error_type,
    messages
"""
#: Of `change_of`.
CHANGE = "cursor, client_transaction_id, attempt, at, event, before, after, evidence, detail"


def quoted(*states: State) -> str:
    return ", ".join(f"'{state}'" for state in states)


#: Which changes the feed tells of.
NEWS = f"after IN ({quoted(*sorted(FEED))}) AND after <> before"


def legal_moves(before: str, after: str, no: str = "0") -> str:
    """Whether that move is legal, as an expression; a state may always stay, as it does for a hint."""
    cases = []
    for state, table in TRANSITIONS.items():
        targets = sorted({target for target in table.values() if target is not None} | {state})
        # Not `IN`: for three and more SQLite would build a table each time the trigger fires.
        legal = " OR ".join(f"{after} = '{target}'" for target in targets)
        cases.append(f"WHEN '{state}' THEN {legal}")
    return f"CASE {before} {' '.join(cases)} ELSE {no} END"


def permit_row(record: Record) -> tuple[Any, ...]:
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


_STATES: dict[str | None, State] = {state.value: state for state in State}
_EVIDENCE = {evidence.value: evidence for evidence in Evidence}


def record_of(row: tuple[Any, ...]) -> Record:
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


def grouped(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Record]]:
    """The attempts of each client transaction id, from rows in their order."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(record_of(row))
    return found


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
