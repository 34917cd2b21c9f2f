-- What both databases execute in the same words. For SQLite the schema's name is left out, and each parameter, which
-- stands here once and in its order, is a question mark.

-- Whether a record keeps another ask of its purchase, `new`, from its permit: what stands for {holds}, and the same rule
-- as `holds_purchase` in records.py.
-- name: holds
(state = 'accepted' OR state = 'reversing' OR (kind <> 'form' AND (
        state = 'pending' OR state = 'sending' OR state = 'unknown' OR (state = 'expired' AND evidence = 'clock')
    )) OR (kind = 'form' AND NOT new.beside_open_form AND (
        (state = 'expired' AND evidence = 'clock')
        OR (coalesce(links_dead_at > new.created_at, true) AND (
            state = 'expired' OR state = 'pending' OR state = 'sending'
            OR (state = 'unknown' AND (evidence <> 'no answer' OR candidate_ids IS NOT NULL))
            OR (state = 'cancelled' AND (evidence = 'unpaid' OR candidate_ids IS NOT NULL))
        ))
    )))

-- A record's columns, from an attempt and its newest change: what stands for {newest}.
-- name: newest
id, client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency,
    coalesce(after, 'sending') AS state, coalesce(state_evidence, 'permit') AS evidence,
    coalesce(version, 0) AS version, transaction_id, candidate_ids, created_at,
    expires_at, notified_at, decided_at, error_code, error_type, messages, purchase, links_dead_at, beside_open_form,
    reason, receipt, coalesce(event = 'Archived', false) AS archived

-- The other views of a schema, what stands for {views}.
-- name: views
CREATE VIEW payclient.history AS
SELECT id AS cursor, client_transaction_id, attempt, created_at AS at, 'Permitted' AS event, NULL AS before,
    'sending' AS after, 'permit' AS evidence, NULL AS detail
FROM payclient.attempts
UNION ALL
SELECT cursor, client_transaction_id, attempt, at, event, before, after, evidence, detail
FROM payclient.changes JOIN payclient.attempts ON id = attempt_id;

CREATE VIEW payclient.transactions AS
SELECT transaction_id, credentials, client_transaction_id
FROM payclient.changes JOIN payclient.attempts ON id = attempt_id;

-- name: environment
SELECT environment FROM payclient.meta

-- name: set_environment
UPDATE payclient.meta SET environment = $1 WHERE environment IS NULL OR $2

-- Which other sale, sent under these credentials, has a transaction.
-- name: taken_by
SELECT client_transaction_id FROM payclient.transactions
WHERE transaction_id = $1 AND credentials = $2 AND client_transaction_id <> $3 LIMIT 1

-- name: unfinished
SELECT {record} FROM payclient.records WHERE id IN (SELECT attempt_id FROM payclient.open_attempts)
ORDER BY created_at, id

-- name: history
SELECT {change} FROM payclient.history WHERE client_transaction_id = $1 ORDER BY cursor

-- name: keep_links
INSERT INTO payclient.form_links (attempt_id, links, until)
SELECT id, $1, $2 FROM payclient.attempts WHERE client_transaction_id = $3 AND attempt = $4
ON CONFLICT (attempt_id) DO UPDATE SET links = excluded.links, until = excluded.until

-- name: links
SELECT client_transaction_id, links FROM payclient.form_links JOIN payclient.records ON id = attempt_id
WHERE purchase = $1 AND until > $2 AND NOT {links_are_dead}

-- name: drop_links
DELETE FROM payclient.form_links AS l WHERE until <= $1
OR EXISTS (SELECT 1 FROM payclient.records WHERE id = l.attempt_id AND {links_are_dead})
RETURNING attempt_id

-- name: links_until
SELECT min(until) FROM payclient.form_links

-- name: ids
SELECT (SELECT min(id) FROM payclient.attempts), (SELECT max(id) FROM payclient.attempts)

-- name: records
SELECT {record} FROM payclient.records WHERE id > $1 AND id <= $2 ORDER BY id

-- The attempts in a range of ids that may be archived: those of a client transaction id all of whose attempts were
-- decided before a time, and whose links, if they have any, were dead by then.
-- name: archivable
SELECT {whole_attempt} FROM payclient.attempts AS a WHERE id > $1 AND id <= $2 AND NOT EXISTS (
    SELECT 1 FROM payclient.records AS each WHERE each.client_transaction_id = a.client_transaction_id AND (
        coalesce(
            CASE WHEN each.links_dead_at > each.decided_at THEN each.links_dead_at ELSE each.decided_at END >= $3, true
        )
        OR EXISTS (SELECT 1 FROM payclient.form_links WHERE attempt_id = each.id)
    )
) AND NOT (SELECT archived FROM payclient.records AS r WHERE r.id = a.id) ORDER BY id

-- name: archivable_changes
SELECT {whole_change} FROM payclient.changes
WHERE attempt_id > $1 AND attempt_id <= $2 AND event <> 'Archived' ORDER BY attempt_id, version
