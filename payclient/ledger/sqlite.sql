-- The SQLite ledger, beside both.sql. Words in braces are made from `lifecycle` by records.py.
--
-- Attempts and their changes are only inserted: the newest change says where an attempt stands. The database itself
-- keeps the promises: its unique keys and its guards refuse a second open attempt, every illegal move, and any change
-- of what was written. Of an archived attempt alone all changes but the last one, `Archived`, are deleted as that is
-- inserted, and none follows it. The PostgreSQL ledger has the same tables.

-- name: schema
CREATE TABLE meta (
    digest_key BLOB NOT NULL,
    environment BLOB
) STRICT;

-- The permits, and what an attempt is. A permit's id and a change's cursor are numbers of one order.
CREATE TABLE attempts (
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
    purchase TEXT NOT NULL,
    links_dead_at REAL,
    beside_open_form INTEGER NOT NULL,
    UNIQUE (client_transaction_id, attempt)
) STRICT;

CREATE INDEX attempts_of_purchase ON attempts (purchase);

-- The events that an attempt took since, each with all that is known from then on; `state_evidence` is what the state
-- `after` rests on.
CREATE TABLE changes (
    cursor INTEGER PRIMARY KEY,
    attempt_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    evidence TEXT NOT NULL,
    detail TEXT,
    before TEXT NOT NULL,
    after TEXT NOT NULL CHECK ({legal_moves}),
    state_evidence TEXT NOT NULL,
    transaction_id INTEGER,
    expires_at REAL,
    candidate_ids TEXT,
    notified_at REAL,
    decided_at REAL CHECK ((decided_at IS NOT NULL) = ({decided})),
    error_code INTEGER,
    error_type TEXT,
    messages TEXT,
    reason TEXT,
    receipt TEXT,
    UNIQUE (attempt_id, version)
) STRICT;

CREATE INDEX changes_of_transaction ON changes (transaction_id) WHERE transaction_id IS NOT NULL;

-- The attempts that are not decided, kept by the guards.
CREATE TABLE open_attempts (attempt_id INTEGER PRIMARY KEY) STRICT;

-- The links of forms, secrets, for as long as they are handed out.
CREATE TABLE form_links (
    attempt_id INTEGER PRIMARY KEY,
    links TEXT NOT NULL,
    until REAL NOT NULL
) STRICT;

CREATE VIEW records AS
SELECT {newest} FROM attempts LEFT JOIN changes ON cursor = (
    SELECT cursor FROM changes AS newest WHERE newest.attempt_id = id ORDER BY newest.version DESC LIMIT 1
);

{views}

-- These two also stand against INSERT OR REPLACE, which deletes without a trigger.
CREATE TRIGGER guard_permit BEFORE INSERT ON attempts
WHEN new.id <= (SELECT max(id) FROM attempts)
OR EXISTS (
    SELECT 1 FROM attempts WHERE client_transaction_id = new.client_transaction_id AND attempt >= new.attempt
)
OR (new.attempt > 1 AND 'refused' IS NOT (
    SELECT state FROM records
    WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1
))
OR EXISTS (
    SELECT 1 FROM records
    WHERE purchase = new.purchase AND client_transaction_id <> new.client_transaction_id AND {holds}
)
BEGIN SELECT RAISE(ABORT, 'not a permit'); END;

CREATE TRIGGER guard_change BEFORE INSERT ON changes
WHEN new.cursor <= (SELECT max(cursor) FROM changes) OR new.attempt_id >= new.cursor
OR new.before IS NOT coalesce(
    (SELECT CASE WHEN version = new.version - 1 AND event <> 'Archived' THEN after ELSE '' END FROM changes
        WHERE attempt_id = new.attempt_id ORDER BY version DESC LIMIT 1),
    (SELECT 'sending' FROM attempts WHERE id = new.attempt_id AND new.version = 1)
)
OR (new.event = 'Archived' AND (
    ({new_kept}) IS NOT (
        SELECT {kept} FROM changes
        WHERE attempt_id = new.attempt_id AND version = new.version - 1 AND decided_at IS NOT NULL
    )
    OR EXISTS (SELECT 1 FROM form_links WHERE attempt_id = new.attempt_id)
))
OR (new.before = 'refused' AND new.after <> 'refused' AND EXISTS (
    SELECT 1 FROM attempts AS mine JOIN attempts AS newer USING (client_transaction_id)
    WHERE mine.id = new.attempt_id AND newer.attempt > mine.attempt
))
OR (new.event = 'Created' AND EXISTS (
    SELECT 1 FROM transactions
    WHERE transaction_id = new.transaction_id AND credentials <> x''
        AND credentials = (SELECT credentials FROM attempts WHERE id = new.attempt_id)
        AND client_transaction_id <> (SELECT client_transaction_id FROM attempts WHERE id = new.attempt_id)
))
BEGIN SELECT RAISE(ABORT, 'illegal move'); END;

CREATE TRIGGER keep_attempts BEFORE DELETE ON attempts
BEGIN SELECT RAISE(ABORT, 'what is written stays'); END;

CREATE TRIGGER keep_attempts_as_they_are BEFORE UPDATE ON attempts
BEGIN SELECT RAISE(ABORT, 'what is written stays'); END;

CREATE TRIGGER keep_changes BEFORE DELETE ON changes
WHEN NOT EXISTS (
    SELECT 1 FROM changes WHERE attempt_id = old.attempt_id AND version > old.version AND event = 'Archived'
)
BEGIN SELECT RAISE(ABORT, 'what is written stays'); END;

CREATE TRIGGER keep_changes_as_they_are BEFORE UPDATE ON changes
BEGIN SELECT RAISE(ABORT, 'what is written stays'); END;

CREATE TRIGGER open_permitted AFTER INSERT ON attempts BEGIN
    INSERT INTO open_attempts (attempt_id) VALUES (new.id);
END;

CREATE TRIGGER close_decided AFTER INSERT ON changes WHEN new.decided_at IS NOT NULL BEGIN
    DELETE FROM open_attempts WHERE attempt_id = new.attempt_id;
END;

CREATE TRIGGER open_reversing AFTER INSERT ON changes WHEN new.after = 'reversing' AND new.before <> 'reversing' BEGIN
    INSERT INTO open_attempts (attempt_id) VALUES (new.attempt_id);
END;

CREATE TRIGGER drop_archived AFTER INSERT ON changes WHEN new.event = 'Archived' BEGIN
    DELETE FROM changes WHERE attempt_id = new.attempt_id AND version < new.version;
END;

-- name: insert_meta
INSERT INTO meta (digest_key) VALUES (?)

-- name: digest_key
SELECT digest_key FROM meta

-- name: last_cursor
SELECT max(coalesce((SELECT max(id) FROM attempts), 0), coalesce((SELECT max(cursor) FROM changes), 0))

-- A statement for many rows repeats what follows VALUES, or the one question mark of IN.
-- name: permit
INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- Most changes leave the last eight columns NULL.
-- name: change
INSERT INTO changes (cursor, attempt_id, version, at, event, evidence, detail, before, after, state_evidence,
    transaction_id, expires_at)
VALUES (?, (SELECT id FROM attempts WHERE client_transaction_id = ? AND attempt = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: whole_change
INSERT INTO changes ({whole_change})
VALUES (?, (SELECT id FROM attempts WHERE client_transaction_id = ? AND attempt = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?)

-- name: attempts
SELECT {record} FROM records WHERE client_transaction_id IN (?)
ORDER BY client_transaction_id, attempt

-- name: asks
SELECT {record} FROM records WHERE purchase IN (?) ORDER BY id

-- name: news
SELECT {change} FROM changes JOIN attempts ON id = attempt_id
WHERE cursor > ? AND {news} ORDER BY cursor LIMIT ?
