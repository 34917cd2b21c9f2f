-- The PostgreSQL ledger, beside both.sql, in a schema of its own: `payclient`, or the one that the ledger's address
-- names. Words in braces are made from `lifecycle` by records.py.
--
-- The tables and guards are SQLite's. Added is what several processes need: who was granted a permit, who follows what
-- is open and until when, and that no attempt is written under settings that could lose its commit. Writers do not wait
-- for each other, unless they write about one client transaction id or one purchase; how the feed misses nothing all
-- the same says `news`.

-- What stands for {by_index}. Every look-up uses an index, also by a plan that was made over an empty table. One plan
-- serves all calls: planning `write` takes three times as long as the work.
-- name: by_index
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off

-- name: schema
CREATE SEQUENCE payclient.cursors;

CREATE TABLE payclient.meta (
    schema_version integer NOT NULL,
    digest_key bytea NOT NULL,
    environment bytea,
    -- When any process may make the next query, where the service limits their rate.
    next_query_at timestamptz NOT NULL DEFAULT '-infinity'
);
-- Without a key, the server would refuse its updates in a database that publishes all of its tables.
ALTER TABLE payclient.meta REPLICA IDENTITY FULL;

-- Columns of fixed width stand first, so that none is padded. `owner` is the opening of the ledger that inserted the
-- attempt, which alone may say that it was not sent. `ask` numbers the permits of a purchase: of two that saw the same
-- ones before them, its unique key refuses one. Keys sort by their bytes: a new version of the system's C library may
-- sort words otherwise, and then an index no longer finds what it has.
CREATE TABLE payclient.attempts (
    id bigint PRIMARY KEY DEFAULT nextval('payclient.cursors'),
    owner bigint NOT NULL,
    amount bigint NOT NULL,
    created_at double precision NOT NULL,
    links_dead_at double precision,
    attempt integer NOT NULL CHECK (attempt >= 1),
    ask integer NOT NULL,
    beside_open_form boolean NOT NULL,
    client_transaction_id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    digest bytea NOT NULL,
    lane bytea NOT NULL,
    credentials bytea NOT NULL,
    currency text NOT NULL,
    purchase text COLLATE "C" NOT NULL,
    UNIQUE (client_transaction_id, attempt),
    UNIQUE (purchase, ask)
);

CREATE TABLE payclient.changes (
    cursor bigint PRIMARY KEY DEFAULT nextval('payclient.cursors'),
    attempt_id bigint NOT NULL,
    at double precision NOT NULL,
    transaction_id bigint,
    expires_at double precision,
    notified_at double precision,
    decided_at double precision CHECK ((decided_at IS NOT NULL) = ({decided})),
    error_code bigint,
    version integer NOT NULL,
    event text NOT NULL,
    evidence text NOT NULL,
    detail text,
    before text NOT NULL,
    after text NOT NULL CHECK ({legal_moves}),
    state_evidence text NOT NULL,
    candidate_ids text,
    error_type text,
    messages text,
    reason text,
    receipt text,
    UNIQUE (attempt_id, version)
);

CREATE INDEX changes_of_transaction ON payclient.changes (transaction_id) WHERE transaction_id IS NOT NULL;

-- The links of forms, secrets, for as long as they are handed out.
CREATE TABLE payclient.form_links (
    attempt_id bigint PRIMARY KEY,
    links text NOT NULL,
    until double precision NOT NULL
);

-- The queue: the attempts that are not decided. Until `due` its holder follows an attempt, who puts that off as long as
-- it lives; then any process may claim it, one that is SENDING too. A claim is a lease, for efficiency only: two that
-- follow one attempt query twice, and write nothing wrong.
CREATE TABLE payclient.open_attempts (
    attempt_id bigint PRIMARY KEY,
    holder bigint NOT NULL,
    due timestamptz NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX open_attempts_due ON payclient.open_attempts (due);
CREATE INDEX open_attempts_held ON payclient.open_attempts (holder);

CREATE VIEW payclient.records AS
SELECT {newest} FROM payclient.attempts AS a LEFT JOIN LATERAL (
    SELECT * FROM payclient.changes WHERE attempt_id = a.id ORDER BY version DESC LIMIT 1
) AS c ON true;

{views}

-- Insert permits and changes, and return the client transaction ids of those that were inserted: the others are
-- forbidden by what the database holds. One statement, so that a process that stops amid it holds nothing that others
-- wait for. By the lock, a process that lost its connection waits for its last statement. Rows are inserted in one
-- order, lest two processes wait for each other.
CREATE FUNCTION payclient.write(
    bigint, bigint, double precision,
    text[], integer[], text[], bytea[], bytea[], bytea[], bigint[], text[], double precision[], text[],
    double precision[], boolean[],
    text[], integer[], integer[], double precision[], text[], text[], text[], text[], text[], text[], bigint[],
    double precision[], text[], double precision[], double precision[], bigint[], text[], text[], text[], text[]
) RETURNS SETOF text LANGUAGE plpgsql
{by_index} AS $$
BEGIN
    -- Behind a pooler the session may be another one at each call, as another program left it.
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off'
        OR (current_setting('synchronous_standby_names') <> '' AND (current_setting('synchronous_commit') = 'local'
            OR current_setting('client_min_messages') = 'error'))
    THEN
        RAISE EXCEPTION 'the session could lose this';
    END IF;
    PERFORM pg_advisory_xact_lock($1);
    IF cardinality($4) > 0 THEN
        -- A change that may forbid the permit of another ask locks its attempt, too: what is seen from here on is newer.
        -- By `+ 0` no plan reads all attempts in the order of their ids; nor does the next one, where NOT EXISTS would be
        -- a join.
        PERFORM FROM payclient.attempts WHERE purchase = ANY($13) ORDER BY id + 0 FOR NO KEY UPDATE;
        RETURN QUERY WITH permitted AS (
            INSERT INTO payclient.attempts AS a (id, {permit}, owner, ask)
            SELECT new.*, $1,
                1 + (SELECT coalesce(max(ask), 0) FROM payclient.attempts WHERE purchase = new.purchase)
            FROM (
                SELECT nextval('payclient.cursors'), u.*
                FROM unnest($4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS u ({permit})
            ) AS new
            WHERE (new.attempt = 1 OR EXISTS (
                SELECT FROM payclient.records AS r WHERE r.client_transaction_id = new.client_transaction_id
                    AND r.attempt = new.attempt - 1 AND r.state = 'refused'
            )) AND (
                SELECT true FROM payclient.records
                WHERE purchase = new.purchase AND client_transaction_id <> new.client_transaction_id AND {holds} LIMIT 1
            ) IS NULL
            ORDER BY new.purchase, new.client_transaction_id
            ON CONFLICT DO NOTHING RETURNING a.id, a.client_transaction_id
        ), opened AS (
            INSERT INTO payclient.open_attempts (attempt_id, holder, due)
            SELECT id, $2, clock_timestamp() + make_interval(secs => $3) FROM permitted
        )
        SELECT client_transaction_id FROM permitted;
    END IF;
    IF cardinality($16) > 0 THEN
        RETURN QUERY WITH changed AS (
            INSERT INTO payclient.changes AS c (attempt_id, {facts})
            SELECT id, {facts}
            FROM unnest($16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34,
                $35) AS v (client_transaction_id, attempt, {facts})
            JOIN payclient.attempts USING (client_transaction_id, attempt)
            WHERE event <> 'NotSent' OR owner = $1
            ORDER BY id
            ON CONFLICT DO NOTHING RETURNING c.attempt_id, c.event, c.before, c.after
        ), opened AS (
            INSERT INTO payclient.open_attempts (attempt_id, holder, due)
            SELECT attempt_id, $2, clock_timestamp() + make_interval(secs => $3) FROM changed
            WHERE after = 'reversing' AND before <> after
        ), hastened AS (
            UPDATE payclient.open_attempts SET due = CASE WHEN holder = 0 THEN clock_timestamp()
                ELSE least(due, clock_timestamp() + interval '30 seconds') END
            WHERE attempt_id IN (
                SELECT o.attempt_id FROM payclient.open_attempts AS o JOIN changed USING (attempt_id)
                WHERE event IN ('Notified', 'Returned') FOR NO KEY UPDATE OF o SKIP LOCKED
            )
        )
        SELECT a.client_transaction_id FROM changed JOIN payclient.attempts AS a ON a.id = changed.attempt_id;
    END IF;
END $$;

CREATE FUNCTION payclient.asks(text[]) RETURNS SETOF payclient.records LANGUAGE plpgsql STABLE
{by_index} AS $$
BEGIN
    RETURN QUERY SELECT * FROM payclient.records WHERE purchase = ANY($1) ORDER BY id;
END $$;

CREATE FUNCTION payclient.find(text[]) RETURNS SETOF payclient.records LANGUAGE plpgsql STABLE
{by_index} AS $$
BEGIN
    RETURN QUERY SELECT * FROM payclient.records WHERE client_transaction_id = ANY($1)
    ORDER BY client_transaction_id, attempt;
END $$;

-- Changes are numbered before their commits, so that one may come into sight later than one of a higher number. The
-- highest number in sight is read first. Every transaction that may have drawn a lower one locks the table until it
-- ends, and is waited for. It fails while one of them is stuck.
CREATE FUNCTION payclient.news(since bigint, page integer) RETURNS SETOF payclient.history LANGUAGE plpgsql AS $$
DECLARE
    last bigint;
    writers text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'what is waited for would stay out of sight';
    END IF;
    SELECT max(cursor) INTO last FROM payclient.changes;
    IF last IS NULL OR last <= since THEN
        RETURN;
    END IF;
    FOR round IN 0..500 LOOP
        writers := ARRAY(
            SELECT virtualtransaction FROM pg_locks
            WHERE locktype = 'relation' AND relation = 'payclient.changes'::regclass AND mode = 'RowExclusiveLock'
                AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (round = 0 OR virtualtransaction = ANY (writers))
        );
        EXIT WHEN cardinality(writers) = 0;
        PERFORM pg_sleep(0.002);
    END LOOP;
    IF cardinality(writers) > 0 THEN
        RAISE EXCEPTION 'a writer is stuck';
    END IF;
    RETURN QUERY SELECT {change} FROM payclient.changes JOIN payclient.attempts ON id = attempt_id
    WHERE cursor > since AND cursor <= last AND {news} ORDER BY cursor LIMIT page;
END $$;

CREATE FUNCTION payclient.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what is written stays';
END $$;

-- Locks the attempt before it. So does the check of a change of what was refused: one of the two comes first.
CREATE FUNCTION payclient.check_permit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM payclient.attempts
    WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1 FOR NO KEY UPDATE;
    IF 'refused' IS DISTINCT FROM (
        SELECT state FROM payclient.records
        WHERE client_transaction_id = new.client_transaction_id AND attempt = new.attempt - 1
    ) THEN
        RAISE EXCEPTION 'not a permit';
    END IF;
    RETURN new;
END $$;

CREATE FUNCTION payclient.check_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM payclient.changes
        WHERE attempt_id = old.attempt_id AND version > old.version AND event = 'Archived'
    ) THEN
        RAISE EXCEPTION 'what is written stays';
    END IF;
    RETURN old;
END $$;

CREATE FUNCTION payclient.check_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- After it an attempt may forbid the next one, or another ask of its purchase, whose permit locks it, too.
    IF new.before IN ('refused', 'cancelled', 'unknown', 'expired') THEN
        PERFORM FROM payclient.attempts WHERE id = new.attempt_id FOR NO KEY UPDATE;
    END IF;
    IF new.attempt_id >= new.cursor
    OR new.before IS DISTINCT FROM coalesce(
        (SELECT after FROM payclient.changes
            WHERE attempt_id = new.attempt_id AND version = new.version - 1 AND event <> 'Archived'),
        (SELECT 'sending' FROM payclient.records WHERE id = new.attempt_id AND new.version = 1 AND NOT archived)
    )
    OR (new.event = 'Archived' AND (
        ({new_kept}) IS DISTINCT FROM (
            SELECT ({kept}) FROM payclient.changes
            WHERE attempt_id = new.attempt_id AND version = new.version - 1 AND decided_at IS NOT NULL
        )
        OR EXISTS (SELECT FROM payclient.form_links WHERE attempt_id = new.attempt_id)
    ))
    OR (new.before = 'refused' AND new.after <> 'refused' AND EXISTS (
        SELECT FROM payclient.attempts AS mine JOIN payclient.attempts AS newer USING (client_transaction_id)
        WHERE mine.id = new.attempt_id AND newer.attempt > mine.attempt
    ))
    OR (new.event = 'Created' AND EXISTS (
        SELECT FROM payclient.transactions
        WHERE transaction_id = new.transaction_id AND credentials <> ''
            AND credentials = (SELECT credentials FROM payclient.attempts WHERE id = new.attempt_id)
            AND client_transaction_id <> (SELECT client_transaction_id FROM payclient.attempts WHERE id = new.attempt_id)
    )) THEN
        RAISE EXCEPTION 'illegal move';
    END IF;
    RETURN new;
END $$;

CREATE FUNCTION payclient.close() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM payclient.open_attempts WHERE attempt_id = new.attempt_id;
    RETURN NULL;
END $$;

CREATE FUNCTION payclient.drop_older() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM payclient.changes WHERE attempt_id = new.attempt_id AND version < new.version;
    RETURN NULL;
END $$;

CREATE TRIGGER guard_permit BEFORE INSERT ON payclient.attempts FOR EACH ROW
WHEN (new.attempt > 1) EXECUTE FUNCTION payclient.check_permit();

CREATE TRIGGER guard_change BEFORE INSERT ON payclient.changes FOR EACH ROW
EXECUTE FUNCTION payclient.check_change();

CREATE TRIGGER keep_attempts BEFORE UPDATE OR DELETE OR TRUNCATE ON payclient.attempts
EXECUTE FUNCTION payclient.refuse();

CREATE TRIGGER keep_changes BEFORE UPDATE OR TRUNCATE ON payclient.changes
EXECUTE FUNCTION payclient.refuse();

CREATE TRIGGER keep_live_changes BEFORE DELETE ON payclient.changes FOR EACH ROW
EXECUTE FUNCTION payclient.check_deleted();

CREATE TRIGGER drop_archived AFTER INSERT ON payclient.changes FOR EACH ROW
WHEN (new.event = 'Archived') EXECUTE FUNCTION payclient.drop_older();

CREATE TRIGGER close_decided AFTER INSERT ON payclient.changes FOR EACH ROW
WHEN (new.decided_at IS NOT NULL) EXECUTE FUNCTION payclient.close();

-- Which settings, standby or not, the server's version, and its time.
-- name: settings
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('default_transaction_read_only'),
    current_setting('default_transaction_isolation'), current_setting('server_encoding'),
    current_setting('client_min_messages'), pg_is_in_recovery(),
    current_setting('server_version_num')::integer, extract(epoch FROM clock_timestamp())::float8

-- Whether there is a schema of that name, a table `meta` in it, and anything else.
-- name: existing
SELECT count(n.oid) > 0, count(c.oid) FILTER (WHERE relname = 'meta') > 0, count(c.oid) > 0
FROM pg_namespace AS n LEFT JOIN pg_class AS c ON relnamespace = n.oid WHERE nspname = $1

-- Tables, views, indices, functions, and guards that fire. What a crash of the server empties does not count, nor a
-- sequence whose numbers a session keeps for later, nor a function with another text, but for its line ends: it decides by
-- the rules of another release, or names the schema as it was before that was renamed.
-- name: names
SELECT relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = $1
    AND relpersistence = 'p' AND NOT EXISTS (SELECT FROM pg_sequence WHERE seqrelid = c.oid AND seqcache > 1)
UNION ALL SELECT proname FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace WHERE nspname = $1
    AND replace(prosrc, chr(13), '') = ANY($2::text[])
UNION ALL SELECT tgname FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid
    JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = $1
    AND tgenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)

-- Which rights the user lacks to write a permit, and how its charge ends. What is missing altogether is in `names`.
-- name: missing_rights
SELECT privilege, relation FROM (VALUES
    ('attempts', ARRAY['SELECT', 'INSERT', 'UPDATE']), ('changes', ARRAY['SELECT', 'INSERT']),
    ('open_attempts', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('form_links', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('meta', ARRAY['SELECT', 'UPDATE']), ('records', ARRAY['SELECT']), ('history', ARRAY['SELECT']),
    ('transactions', ARRAY['SELECT']), ('cursors', ARRAY['USAGE'])
) AS needs (relation, privileges), unnest(privileges) AS privilege, to_regclass(format('%I.%I', $1::text, relation)) AS r
WHERE NOT CASE privilege WHEN 'USAGE' THEN has_sequence_privilege(r, 'USAGE')
    ELSE has_table_privilege(r, privilege) AND NOT row_security_active(r) END
UNION ALL SELECT 'EXECUTE', proname::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
WHERE nspname = $1 AND proname IN ('write', 'find', 'asks', 'news') AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY relation, privilege

-- Whether a number that was given is given again, as where rows were copied without their sequence: readers of
-- the feed have passed those.
-- After `setval(..., false)` or RESTART none was given since: then one is taken, and skipped.
-- name: is_behind
SELECT coalesce(pg_sequence_last_value('payclient.cursors'), nextval('payclient.cursors') - 1) < newest
FROM (SELECT max(cursor) AS newest FROM payclient.changes) AS written WHERE newest IS NOT NULL

-- So that one process makes the schema.
-- name: lock_creation
SELECT pg_advisory_xact_lock(1348565324, 1)

-- name: meta
SELECT schema_version, digest_key FROM payclient.meta

-- name: insert_meta
INSERT INTO payclient.meta (schema_version, digest_key) VALUES ($1, $2)

-- name: write
SELECT payclient.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)

-- name: look_up
SELECT {record}, false AS is_ask FROM payclient.find($1)
UNION ALL SELECT {record}, true FROM payclient.asks($2)

-- Writes no row, and yet its commit waits as a permit's does: for the disk, and for a standby that must have it.
-- name: probe
SELECT pg_logical_emit_message(true, 'payclient', '')

-- name: news
SELECT {change} FROM payclient.news($1, $2)

-- Once this is answered, all that an opening of the ledger sent before it lost its connection is done or undone.
-- name: wait_for_own
SELECT pg_advisory_xact_lock($1::bigint)

-- name: notify
SELECT pg_notify($1, id) FROM unnest($2::text[]) AS id

-- Open asks that were notified, as far as that is in the newest changes: for a listener that missed the news.
-- name: hinted
SELECT cursor, client_transaction_id FROM (SELECT * FROM payclient.changes ORDER BY cursor DESC LIMIT 2000) AS newest
JOIN payclient.open_attempts USING (attempt_id) JOIN payclient.attempts ON id = attempt_id
WHERE event IN ('Notified', 'Returned')

-- Payments beside another one of their purchase, as far as they are in the newest changes, after which no ask of it was
-- said to be paid twice, or archived as paid: that is said before. The newest last. CASE fixes the order: what costs
-- more is looked up for fewer.
-- name: unsaid
SELECT purchase, client_transaction_id, (SELECT max(version) FROM payclient.changes WHERE attempt_id = a.id)
FROM (SELECT * FROM payclient.changes ORDER BY cursor DESC LIMIT 20000) AS c, LATERAL (
    SELECT * FROM payclient.attempts WHERE id = attempt_id OFFSET 0  -- by its id alone: a join may read all attempts
) AS a
WHERE after = 'accepted' AND before <> 'accepted' AND before <> 'reversing' AND CASE
    WHEN (SELECT max(ask) FROM payclient.attempts WHERE purchase = a.purchase) = 1 THEN false
    WHEN (SELECT count(*) FROM payclient.records
        WHERE purchase = a.purchase AND (state = 'accepted' OR state = 'reversing')) < 2 THEN false
    ELSE (SELECT count(*) FROM payclient.attempts AS ask, LATERAL (
            SELECT FROM payclient.changes
            WHERE attempt_id = ask.id AND cursor > c.cursor
                AND (event = 'Overpaid' OR (event = 'Archived' AND after = 'accepted'))
            OFFSET 0  -- by the attempt alone
        ) AS said WHERE purchase = a.purchase) = 0 END
ORDER BY cursor

-- Who follows what. All times are the database's own.

-- name: claim_due
WITH found AS MATERIALIZED (  -- once: a subquery under UPDATE may run again, and lock other rows beyond the limit
    SELECT attempt_id FROM payclient.open_attempts WHERE due <= (SELECT clock_timestamp())
    ORDER BY due LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE payclient.open_attempts SET holder = $1, due = clock_timestamp() + make_interval(secs => $3)
    WHERE attempt_id IN (SELECT attempt_id FROM found) RETURNING attempt_id
)
SELECT {record} FROM payclient.records WHERE id IN (SELECT attempt_id FROM claimed)

-- Puts off what is due within two thirds of the time, and counts what is held; what somebody writes at this moment is
-- put off next time.
-- name: renew
WITH renewed AS (
    UPDATE payclient.open_attempts SET due = clock_timestamp() + make_interval(secs => $2)
    WHERE attempt_id IN (
        SELECT attempt_id FROM payclient.open_attempts
        WHERE holder = $1 AND due < (SELECT clock_timestamp() + make_interval(secs => $2 * 2 / 3))
        FOR NO KEY UPDATE SKIP LOCKED
    )
)
SELECT count(*) FROM payclient.open_attempts WHERE holder = $1

-- name: held
SELECT client_transaction_id FROM payclient.open_attempts JOIN payclient.attempts ON id = attempt_id
WHERE holder = $1

-- Who claims what was put off for more than a day may be able to do more about it.
-- name: defer
UPDATE payclient.open_attempts AS o SET due = clock_timestamp() + make_interval(secs => v.seconds),
    holder = CASE WHEN v.seconds > 86400 THEN 0 ELSE holder END
FROM unnest($2::text[], $3::float8[]) AS v (id, seconds) JOIN payclient.attempts AS a ON a.client_transaction_id = v.id
WHERE o.attempt_id = a.id AND o.holder = $1

-- A lease that is put off for longer stays put off.
-- name: leave
UPDATE payclient.open_attempts SET holder = 0, due = CASE
    WHEN due <= clock_timestamp() + make_interval(secs => $2) THEN clock_timestamp() ELSE due END
WHERE holder = $1

-- Seconds until a query, which takes so many seconds of the rate. A hundred processes and the longest pause come before
-- it at most: what lies further off was written before the server's clock was set back.
-- name: reserve
UPDATE payclient.meta
SET next_query_at = least(greatest(next_query_at, clock_timestamp()),
    clock_timestamp() + make_interval(secs => 60 + 100 * $1)) + make_interval(secs => $1)
RETURNING greatest(
    extract(epoch FROM next_query_at - make_interval(secs => $1) - clock_timestamp()), 0)::float8

-- name: pause
UPDATE payclient.meta SET next_query_at = greatest(next_query_at, clock_timestamp() + make_interval(secs => $1))
