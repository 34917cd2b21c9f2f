"""What an open PostgreSQL ledger asks and writes: its SQL as named constants."""

from __future__ import annotations

import json
from typing import Any

from payclient.events import Event
from payclient.ledger.columns import CHANGE, NEWS, RECORD
from payclient.ledger.details import describe
from payclient.ledger.postgres_schema import ARRAYS
from payclient.lifecycle import Record

__all__ = [
    "CLAIM",
    "DROP_LANES",
    "HELD",
    "INSERT_ENVIRONMENT",
    "LEAVE",
    "MOVE_ENVIRONMENT",
    "PAUSE",
    "RELEASE",
    "RENEW",
    "RESERVE",
    "SELECT_ATTEMPTS",
    "SELECT_CHANGES",
    "SELECT_ENVIRONMENT",
    "SELECT_HISTORY",
    "SELECT_RECORDS",
    "SELECT_UNFINISHED",
    "TAKE_LANES",
    "WRITE",
    "apply_row",
]

SELECT_ENVIRONMENT = "SELECT digest FROM payclient.environment"
#: Of two that are first, one is.
INSERT_ENVIRONMENT = "INSERT INTO payclient.environment (digest) VALUES ($1) ON CONFLICT DO NOTHING"
MOVE_ENVIRONMENT = """
INSERT INTO payclient.environment (digest) VALUES ($1) ON CONFLICT (one) DO UPDATE SET digest = excluded.digest"""

WRITE = f"SELECT payclient.write({', '.join(f'${place + 1}' for place in range(len(ARRAYS)))})"
#: All attempts of some ids, the newest last.
SELECT_ATTEMPTS = f"""
SELECT {RECORD} FROM payclient.attempts WHERE client_transaction_id = ANY($1)
ORDER BY client_transaction_id, attempt"""  # noqa: S608 - our own column names
SELECT_UNFINISHED = (
    f"SELECT {RECORD} FROM payclient.attempts WHERE decided_at IS NULL ORDER BY created_at, seq"  # noqa: S608 - our own column names
)
SELECT_RECORDS = f"SELECT {RECORD}, seq FROM payclient.attempts WHERE seq > $1 ORDER BY seq LIMIT $2"  # noqa: S608 - our own column names
SELECT_HISTORY = f"SELECT {CHANGE} FROM payclient.changes WHERE client_transaction_id = $1 ORDER BY cursor"  # noqa: S608 - our own column names
SELECT_CHANGES = (
    f"SELECT {CHANGE} FROM payclient.changes WHERE cursor > $1 AND {NEWS} ORDER BY cursor LIMIT $2"  # noqa: S608 - our own column names
)

# Who follows what. All times are the database's own.

#: Whether this process had lived on without a gap.
RENEW = """
WITH before AS (SELECT until FROM payclient.followers WHERE follower = $1)
INSERT INTO payclient.followers (follower, until) VALUES ($1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (follower) DO UPDATE SET until = excluded.until
RETURNING coalesce((SELECT until >= clock_timestamp() FROM before), false)"""
LEAVE = "UPDATE payclient.followers SET until = '-infinity' WHERE follower = $1"
#: The names of all who follow something are few: they are read by hopping over the index, not by reading it.
CLAIM = f"""
WITH RECURSIVE names (follower) AS (
    (SELECT follower FROM payclient.attempts WHERE decided_at IS NULL ORDER BY follower LIMIT 1)
    UNION ALL SELECT (
        SELECT a.follower FROM payclient.attempts AS a
        WHERE a.decided_at IS NULL AND a.follower > names.follower ORDER BY a.follower LIMIT 1
    ) FROM names WHERE names.follower IS NOT NULL
)
UPDATE payclient.attempts SET follower = $1 WHERE seq IN (
    SELECT seq FROM payclient.attempts
    WHERE decided_at IS NULL
        AND follower = ANY (ARRAY(
            SELECT follower FROM names WHERE follower IS NOT NULL
            EXCEPT SELECT follower FROM payclient.followers WHERE until > clock_timestamp()
        ))
        AND (state <> 'sending' OR permitted_at <= clock_timestamp() - make_interval(secs => $3))
    ORDER BY created_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
) RETURNING {RECORD}"""  # noqa: S608 - our own column names
HELD = "SELECT client_transaction_id FROM payclient.attempts WHERE decided_at IS NULL AND follower = $1"
RELEASE = """
UPDATE payclient.attempts SET follower = '' WHERE client_transaction_id = ANY($2) AND follower = $1
    AND decided_at IS NULL"""
#: Seconds until the first of so many queries, each of which takes so many seconds of the budget.
_TAKEN = "make_interval(secs => $2::integer * $3::float8)"
RESERVE = f"""
INSERT INTO payclient.budgets AS b (name, next_at) VALUES ($1, clock_timestamp() + {_TAKEN})
ON CONFLICT (name) DO UPDATE
SET next_at = greatest(b.next_at, clock_timestamp()) + {_TAKEN}
RETURNING greatest(extract(epoch FROM next_at - {_TAKEN} - clock_timestamp()), 0)::float8"""  # noqa: S608 - our own words
PAUSE = """
INSERT INTO payclient.budgets AS b (name, next_at) VALUES ($1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET next_at = greatest(b.next_at, excluded.next_at)"""

#: Those of so many lanes that this process holds from now on: nobody held them, or nobody living.
TAKE_LANES = """
INSERT INTO payclient.lanes AS l (lane, holder)
SELECT DISTINCT v.lane, $1::bytea FROM unnest($2::bytea[]) AS v (lane) ORDER BY v.lane
ON CONFLICT (lane) DO UPDATE SET holder = excluded.holder WHERE l.holder = excluded.holder OR NOT EXISTS (
    SELECT FROM payclient.followers AS f WHERE f.follower = l.holder AND f.until > clock_timestamp()
) RETURNING l.lane"""
DROP_LANES = "UPDATE payclient.lanes SET holder = '' WHERE lane = ANY($2) AND holder = $1"


def apply_row(before: Record, event: Event, after: Record) -> tuple[Any, ...]:
    return (
        before.client_transaction_id,
        before.attempt,
        before.version,
        after.state._value_,
        after.evidence._value_,
        after.transaction_id,
        json.dumps(after.candidate_ids) if after.candidate_ids else None,
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
