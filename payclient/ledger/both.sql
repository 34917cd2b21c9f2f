-- What both databases execute in the same words. For SQLite the schema's name is left out, and each parameter, which
-- stands here once and in its order, is a question mark.

-- Whether a record keeps another ask of its purchase, `new`, from its permit: what stands for {holds}, and the same rule
-- as `holds_purchase` in records.py.
-- name: holds
(state = 'accepted' OR state = 'reversing' OR (kind <> 'form' AND (
        state = 'pending' OR state = 'sending' OR state = 'unknown' OR (state = 'expired' AND evidence <> 'last query')
    )) OR (kind = 'form' AND NOT new.beside_open_form AND (
        (state = 'expired' AND evidence <> 'last query')
        OR (coalesce(links_dead_at > new.created_at, true) AND (
            state = 'expired' OR state = 'pending' OR state = 'sending'
            OR (state = 'unknown' AND (evidence <> 'no answer' OR candidate_ids IS NOT NULL))
            OR (state = 'cancelled' AND (evidence = 'unpaid' OR (
                evidence <> 'operator' AND candidate_ids IS NOT NULL
            )))
        ))
    )))

-- The views of a schema, what stands for {views}.
-- name: views
CREATE VIEW payclient.archived_records AS
SELECT id, client_transaction_id, attempt, kind, digest, substr(digest, 1, 0) AS lane, credentials, amount, currency,
    state, evidence, version, transaction_id, CAST(NULL AS text) AS candidate_ids, created_at,
    CAST(NULL AS double precision) AS expires_at, CAST(NULL AS double precision) AS notified_at, decided_at, error_code,
    error_type, CAST(NULL AS text) AS messages, purchase, links_dead_at, false AS beside_open_form,
    CAST(NULL AS text) AS reason, CAST(NULL AS text) AS receipt, true AS archived
FROM payclient.archived;

-- For look-ups by values. In PostgreSQL a join with it, to which `NOT EXISTS` is turned too, would read all of it.
CREATE VIEW payclient.records AS
SELECT * FROM payclient.live_records UNION ALL SELECT * FROM payclient.archived_records;

CREATE VIEW payclient.history AS
SELECT id AS cursor, client_transaction_id, attempt, created_at AS at, 'Permitted' AS event, NULL AS before,
    'sending' AS after, 'permit' AS evidence, NULL AS detail
FROM payclient.attempts
UNION ALL
SELECT cursor, client_transaction_id, attempt, at, event, before, after, evidence, detail
FROM payclient.changes JOIN payclient.attempts ON id = attempt_id
UNION ALL
SELECT id, client_transaction_id, attempt, archived_at, 'Archived', NULL, state, evidence, NULL
FROM payclient.archived;

CREATE VIEW payclient.transactions AS
SELECT transaction_id, credentials, client_transaction_id
FROM payclient.changes JOIN payclient.attempts ON id = attempt_id
UNION ALL
SELECT transaction_id, credentials, client_transaction_id FROM payclient.archived;

-- name: environment
SELECT environment FROM payclient.meta

-- name: set_environment
UPDATE payclient.meta SET environment = $1 WHERE environment IS NULL OR $2

-- Which other sale, sent under these credentials, has a transaction.
-- name: taken_by
SELECT client_transaction_id FROM payclient.transactions
WHERE transaction_id = $1 AND credentials = $2 AND client_transaction_id <> $3 LIMIT 1

-- name: unfinished
SELECT {record} FROM payclient.live_records WHERE id IN (SELECT attempt_id FROM payclient.open_attempts)
ORDER BY created_at, id

-- name: history
SELECT {change} FROM payclient.history WHERE client_transaction_id = $1 ORDER BY cursor

-- name: keep_links
INSERT INTO payclient.form_links (attempt_id, links, until)
SELECT id, $1, $2 FROM payclient.attempts WHERE client_transaction_id = $3 AND attempt = $4
ON CONFLICT (attempt_id) DO UPDATE SET links = excluded.links, until = excluded.until

-- name: links
SELECT client_transaction_id, links FROM payclient.form_links JOIN payclient.live_records ON id = attempt_id
WHERE purchase = $1 AND until > $2 AND NOT {links_are_dead}

-- name: drop_links
DELETE FROM payclient.form_links AS l WHERE until <= $1
OR EXISTS (SELECT 1 FROM payclient.live_records WHERE id = l.attempt_id AND {links_are_dead})
RETURNING attempt_id

-- name: links_until
SELECT min(until) FROM payclient.form_links

-- name: ids
SELECT (SELECT min(id) FROM payclient.attempts), (SELECT max(id) FROM payclient.attempts),
    (SELECT min(id) FROM payclient.archived), (SELECT max(id) FROM payclient.archived)

-- name: records
SELECT {record} FROM payclient.records WHERE id > $1 AND id <= $2 ORDER BY id

-- The attempts in a range of ids that may be archived: those of a client transaction id all of whose attempts were
-- decided before a time, and whose links, if they have any, were dead by then.
-- name: archivable
SELECT {whole_attempt} FROM payclient.attempts AS a WHERE id > $1 AND id <= $2 AND NOT EXISTS (
    SELECT 1 FROM payclient.live_records AS each WHERE each.client_transaction_id = a.client_transaction_id AND (
        coalesce(
            CASE WHEN each.links_dead_at > each.decided_at THEN each.links_dead_at ELSE each.decided_at END >= $3, true
        )
        OR EXISTS (SELECT 1 FROM payclient.form_links WHERE attempt_id = each.id)
    )
) ORDER BY id

-- name: archivable_changes
SELECT {whole_change} FROM payclient.changes WHERE attempt_id > $1 AND attempt_id <= $2 ORDER BY attempt_id, version

-- What was archived of a range of ids leaves. With IN or EXISTS a database may read all that ever was archived.
-- name: delete_archived_changes
DELETE FROM payclient.changes WHERE attempt_id > $1 AND attempt_id <= $2
    AND (SELECT true FROM payclient.archived AS a WHERE a.id = attempt_id)

-- name: delete_archived_attempts
DELETE FROM payclient.attempts WHERE id > $1 AND id <= $2
    AND (SELECT true FROM payclient.archived AS a WHERE a.id = attempts.id)
