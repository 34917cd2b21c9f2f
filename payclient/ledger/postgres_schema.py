"""The tables of the PostgreSQL ledger, in a schema of their own, and how that is made and looked at.

As in SQLite the database itself keeps the promises. Two are added: whoever writes attempts does so alone, from the
first row to the end of the commit, so that cursors rise in the order in which they can be seen; and no attempt is
written under settings that could lose its commit.
"""

from __future__ import annotations

import re

from payclient.ledger.columns import legal_moves, quoted
from payclient.ledger.details import FEED

__all__ = [
    "APPLICATION",
    "ARRAYS",
    "BARRIER",
    "CHANGING",
    "CHANNEL",
    "EXISTING",
    "INSERT_META",
    "NAMES",
    "SCHEMA",
    "SELECT_META",
    "SELECT_NAMES",
    "SETTINGS",
    "VERSION",
]

#: What makes a schema called `payclient` ours.
APPLICATION = "payclient ledger"
#: The version of the tables, triggers and functions below. A schema of another version is refused.
VERSION = 1
#: Of LISTEN and NOTIFY.
CHANNEL = "payclient"

#: Waits until all that was being written is committed or undone. "PayL", and one for the ledger as a whole.
BARRIER = "SELECT pg_advisory_xact_lock(1348565324, 1)"

_NOTIFIED = quoted(*sorted(FEED))
#: What changes with an event. `apply_row` has them in this order, behind the three that say which row.
CHANGING = (
    "state", "evidence", "transaction_id", "candidate_ids", "expires_at", "notified_at", "decided_at",
    "error_code", "error_type", "messages", "event", "event_evidence", "event_at", "event_detail",
)  # fmt: skip
#: What `payclient.write` takes.
ARRAYS = (
    # Of `permit_row`.
    *("text[]", "integer[]", "text[]", *["bytea[]"] * 3, "bigint[]", "text[]", *["double precision[]"] * 2),
    # Of `apply_row`.
    *("text[]", "integer[]", "integer[]", "text[]", "text[]", "bigint[]", "text[]", *["double precision[]"] * 3),
    *("bigint[]", "text[]", "text[]", "text[]", "text[]", "double precision[]", "text[]"),
    # Who writes, and who follows what is permitted.
    *("bytea", "bytea"),
)  # fmt: skip
_SET = ", ".join(f"{name} = v.{name}" for name in CHANGING)


def _same() -> str:
    """Only who follows the attempt is another."""
    names = ("state", "evidence", *CHANGING[2:])
    new, old = (", ".join(f"{row}.{name}" for name in names) for row in ("new", "old"))
    return f"({new}) IS NOT DISTINCT FROM ({old})"


def _refused(name: str, when: str, words: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {when} EXECUTE FUNCTION payclient.refuse('{words}')"


SCHEMA = (
    """
CREATE TABLE payclient.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    application text NOT NULL,
    schema_version integer NOT NULL,
    digest_key bytea NOT NULL CHECK (length(digest_key) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
)""",
    # The service that this ledger is used with; empty until then.
    """
CREATE TABLE payclient.environment (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    digest bytea NOT NULL
)""",
    # What the partial indices ask for seldom changes, so that an update needs no entry in any of them.
    """
CREATE TABLE payclient.attempts (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_transaction_id text NOT NULL,
    attempt integer NOT NULL CHECK (attempt >= 1),
    kind text NOT NULL,
    digest bytea NOT NULL,
    lane bytea NOT NULL,
    credentials bytea NOT NULL,
    amount bigint NOT NULL,
    currency text NOT NULL,
    created_at double precision NOT NULL,
    state text NOT NULL,
    refused boolean GENERATED ALWAYS AS (state = 'refused') STORED,
    evidence text NOT NULL,
    version integer NOT NULL,
    transaction_id bigint,
    candidate_ids text,
    expires_at double precision,
    notified_at double precision,
    decided_at double precision,
    error_code bigint,
    error_type text,
    messages text,
    event text NOT NULL,
    event_evidence text NOT NULL,
    event_at double precision NOT NULL,
    event_detail text,
    permitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The process that inserted it, which alone may say that it was not sent.
    owner bytea NOT NULL,
    -- The process that follows it; empty: none.
    follower bytea NOT NULL,
    UNIQUE (client_transaction_id, attempt)
) WITH (fillfactor = 70)""",
    "CREATE UNIQUE INDEX attempts_open ON payclient.attempts (client_transaction_id) WHERE NOT refused",
    "CREATE INDEX attempts_unfinished ON payclient.attempts (created_at) WHERE decided_at IS NULL",
    "CREATE INDEX attempts_followed ON payclient.attempts (follower, created_at) WHERE decided_at IS NULL",
    """
CREATE TABLE payclient.changes (
    cursor bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    client_transaction_id text NOT NULL,
    attempt integer NOT NULL,
    at double precision NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    evidence text NOT NULL,
    detail text
)""",
    "CREATE INDEX changes_of ON payclient.changes (client_transaction_id)",
    # One row for each process: to live on costs one update, however much it follows.
    """
CREATE TABLE payclient.followers (
    follower bytea PRIMARY KEY,
    until timestamptz NOT NULL
)""",
    """
CREATE UNLOGGED TABLE payclient.budgets (
    name text PRIMARY KEY,
    next_at timestamptz NOT NULL
)""",
    # Who charges a customer: a courtesy between batches, which a crash of the server may forget.
    """
CREATE UNLOGGED TABLE payclient.lanes (
    lane bytea PRIMARY KEY,
    holder bytea NOT NULL
)""",
    """
CREATE FUNCTION payclient.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0];
END $$""",
    f"""
CREATE FUNCTION payclient.alone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' OR (current_setting('synchronous_commit') = 'local'
        AND current_setting('synchronous_standby_names') <> '')
    THEN
        RAISE EXCEPTION 'synchronous_commit could lose this';
    END IF;
    PERFORM {BARRIER.removeprefix("SELECT ")};
    RETURN NULL;
END $$""",
    """
CREATE FUNCTION payclient.check_permit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.state <> 'sending' OR new.version <> 0 OR NOT EXISTS (
        SELECT FROM payclient.attempts
        WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1
    ) THEN
        RAISE EXCEPTION 'not a permit';
    END IF;
    RETURN new;
END $$""",
    """
CREATE FUNCTION payclient.note_permits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO payclient.changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    SELECT client_transaction_id, attempt, event_at, event, NULL, state, event_evidence, event_detail
    FROM added ORDER BY seq;
    RETURN NULL;
END $$""",
    # No more than ids; one of thousands of letters is "look at everything", for NOTIFY takes none.
    f"""
CREATE FUNCTION payclient.note_moves() RETURNS trigger LANGUAGE plpgsql SET enable_hashjoin = on AS $$
BEGIN
    INSERT INTO payclient.changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    SELECT n.client_transaction_id, n.attempt, n.event_at, n.event, o.state, n.state, n.event_evidence, n.event_detail
    FROM changed AS n JOIN former AS o ON n.seq = o.seq WHERE n.version <> o.version ORDER BY n.seq;
    PERFORM pg_notify('{CHANNEL}', CASE WHEN octet_length(n.client_transaction_id) < 1000
        THEN n.client_transaction_id ELSE '' END)
    FROM changed AS n JOIN former AS o ON n.seq = o.seq
    WHERE n.notified_at IS DISTINCT FROM o.notified_at OR n.candidate_ids IS DISTINCT FROM o.candidate_ids
        OR (n.state <> o.state AND n.state IN ({_NOTIFIED}));
    RETURN NULL;
END $$""",  # noqa: S608 - our own names
    # An index each time, whatever a plan made over an empty table would rather do.
    f"""
CREATE FUNCTION payclient.write({", ".join(ARRAYS)}) RETURNS SETOF text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM {BARRIER.removeprefix("SELECT ")};
    IF cardinality($1) > 0 THEN
        RETURN QUERY INSERT INTO payclient.attempts AS a (client_transaction_id, attempt, kind, digest, lane,
            credentials, amount, currency, created_at, expires_at, state, evidence, version, event, event_evidence,
            event_at, owner, follower)
        SELECT v.id, v.attempt, v.kind, v.digest, v.lane, v.credentials, v.amount, v.currency, v.created_at,
            v.expires_at,
            'sending', 'permit', 0, 'Permitted', 'permit', v.created_at, $28, $29
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY
            AS v (id, attempt, kind, digest, lane, credentials, amount, currency, created_at, expires_at, place)
        WHERE v.attempt = 1 OR EXISTS (
            SELECT FROM payclient.attempts AS p WHERE p.client_transaction_id = v.id AND p.attempt = v.attempt - 1
        )
        ORDER BY v.place
        ON CONFLICT DO NOTHING RETURNING a.client_transaction_id;
    END IF;
    IF cardinality($11) > 0 THEN
        RETURN QUERY UPDATE payclient.attempts AS a SET version = v.version + 1, {_SET}
        FROM unnest({", ".join(f"${place}" for place in range(11, 28))})
            AS v (id, attempt, version, {", ".join(CHANGING)})
        WHERE a.client_transaction_id = v.id AND a.attempt = v.attempt AND a.version = v.version
            AND (v.event <> 'NotSent' OR a.owner = $28)
            AND (v.state <> 'accepted' OR NOT EXISTS (
                SELECT FROM payclient.attempts AS n WHERE n.client_transaction_id = v.id AND n.attempt > v.attempt
            ))
        RETURNING a.client_transaction_id;
    END IF;
END $$""",  # noqa: S608 - our own column names
    """
CREATE TRIGGER attempts_alone BEFORE INSERT OR UPDATE ON payclient.attempts
FOR EACH STATEMENT EXECUTE FUNCTION payclient.alone()""",
    """
CREATE TRIGGER attempts_insert BEFORE INSERT ON payclient.attempts FOR EACH ROW
WHEN (new.attempt > 1 OR new.state <> 'sending' OR new.version <> 0) EXECUTE FUNCTION payclient.check_permit()""",
    _refused(
        "attempts_move",
        f"""UPDATE ON payclient.attempts FOR EACH ROW
WHEN (NOT (CASE WHEN new.version = old.version THEN {_same()}
    ELSE new.version = old.version + 1 AND {legal_moves("old.state", "new.state", "false")} END))""",
        "illegal move",
    ),
    _refused(
        "attempts_identity",
        """UPDATE OF seq, client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency, created_at,
    permitted_at, owner ON payclient.attempts""",
        "what an attempt is does not change",
    ),
    _refused("attempts_delete", "DELETE OR TRUNCATE ON payclient.attempts", "attempts stay"),
    """
CREATE TRIGGER attempts_permitted AFTER INSERT ON payclient.attempts
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION payclient.note_permits()""",
    """
CREATE TRIGGER attempts_moved AFTER UPDATE ON payclient.attempts
REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION payclient.note_moves()""",
    # Only the triggers above write it.
    _refused(
        "changes_insert",
        "INSERT ON payclient.changes FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)",
        "the history stays",
    ),
    _refused("changes_change", "UPDATE OR DELETE OR TRUNCATE ON payclient.changes", "the history stays"),
    _refused(
        "meta_change", "UPDATE OR DELETE OR TRUNCATE ON payclient.meta", "what a ledger is does not change"
    ),
)

#: The tables, indices, functions and triggers that a ledger must have.
NAMES = frozenset(
    match[1]
    for each in SCHEMA
    if (match := re.search(r"CREATE [A-Z ]*(?:TABLE|INDEX|FUNCTION|TRIGGER) ([\w.]+)", each))
)
SELECT_NAMES = """
SELECT 'payclient.' || relname FROM pg_class WHERE relnamespace = 'payclient'::regnamespace AND relkind = 'r'
UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'payclient'::regnamespace AND relkind = 'i'
UNION ALL SELECT 'payclient.' || proname FROM pg_proc WHERE pronamespace = 'payclient'::regnamespace
UNION ALL SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE relnamespace = 'payclient'::regnamespace AND tgenabled IN ('O', 'A')"""

#: In this order: which settings, standby or not, and the server's version.
SETTINGS = """
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('default_transaction_read_only'),
    current_setting('default_transaction_isolation'), current_setting('server_encoding'), pg_is_in_recovery(),
    current_setting('server_version_num')::integer"""

#: Whether there is a schema of that name, a table `meta` in it, and anything else.
EXISTING = """
SELECT to_regnamespace('payclient') IS NOT NULL, to_regclass('payclient.meta') IS NOT NULL,
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('payclient'))"""
SELECT_META = "SELECT application, schema_version, digest_key FROM payclient.meta"
INSERT_META = "INSERT INTO payclient.meta (application, schema_version, digest_key) VALUES ($1, $2, $3)"
