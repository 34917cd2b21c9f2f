BEGIN TRANSACTION;
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
) STRICT;
INSERT INTO "attempts" VALUES(1,'sending',1,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'sending','permit',0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'Permitted','permit',1700000001.0,NULL);
INSERT INTO "attempts" VALUES(2,'pending',1,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'pending','answer',1,1,NULL,1700000300.0,NULL,NULL,NULL,NULL,NULL,'Created','answer',1700000002.0,'{"transaction_id": 1, "expires_at": 1700000300.0}');
INSERT INTO "attempts" VALUES(3,'noted',1,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'pending','answer',3,2,2,1700000300.0,1700000001.0,NULL,NULL,NULL,NULL,'Notified','notification',1700000009.0,'{"transaction_id": 2}');
INSERT INTO "attempts" VALUES(4,'corrected',1,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'accepted','query',5,3,NULL,1700000300.0,1700000500.0,1700000400.0,NULL,NULL,NULL,'Notified','notification',1700000500.0,'{"transaction_id": 3}');
INSERT INTO "attempts" VALUES(5,'again',1,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'refused','answer',1,NULL,NULL,NULL,NULL,1700000002.0,2061,'CustomerBusyError','["Ya tiene", "a \"b\" \u00e9"]','Refused','answer',1700000002.0,'{"error_type": "CustomerBusyError", "error_code": 2061}');
INSERT INTO "attempts" VALUES(6,'form',1,'form',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000001.0,'unknown','no answer',1,NULL,NULL,1700000900.0,NULL,NULL,NULL,NULL,NULL,'Lost','no answer',1700000003.0,'{"expires_at": 1700000900.0}');
INSERT INTO "attempts" VALUES(7,'again',2,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000002.0,'refused','not sent',1,NULL,NULL,NULL,NULL,1700000004.0,NULL,NULL,NULL,'NotSent','not sent',1700000004.0,NULL);
INSERT INTO "attempts" VALUES(8,'again',3,'sale',X'64646464646464646464646464646464',X'6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C6C',1150,'USD',1700000003.0,'accepted','query',2,5,NULL,1700000300.0,NULL,1700000050.0,NULL,NULL,NULL,'FoundAccepted','query',1700000050.0,NULL);
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
) STRICT;
INSERT INTO "changes" VALUES(1,'sending',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(2,'pending',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(3,'pending',1,1700000002.0,'Created','sending','pending','answer','{"transaction_id": 1, "expires_at": 1700000300.0}');
INSERT INTO "changes" VALUES(4,'noted',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(5,'noted',1,1700000001.0,'Notified','sending','sending','notification','{"transaction_id": 2}');
INSERT INTO "changes" VALUES(6,'noted',1,1700000002.0,'Created','sending','pending','answer','{"transaction_id": 2, "expires_at": 1700000300.0}');
INSERT INTO "changes" VALUES(7,'noted',1,1700000009.0,'Notified','pending','pending','notification','{"transaction_id": 2}');
INSERT INTO "changes" VALUES(8,'corrected',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(9,'corrected',1,1700000002.0,'Created','sending','pending','answer','{"transaction_id": 3, "expires_at": 1700000300.0}');
INSERT INTO "changes" VALUES(10,'corrected',1,1700000300.0,'Expired','pending','expired','clock',NULL);
INSERT INTO "changes" VALUES(11,'corrected',1,1700000301.0,'FoundCancelled','expired','cancelled','query',NULL);
INSERT INTO "changes" VALUES(12,'corrected',1,1700000400.0,'FoundAccepted','cancelled','accepted','query',NULL);
INSERT INTO "changes" VALUES(13,'corrected',1,1700000500.0,'Notified','accepted','accepted','notification','{"transaction_id": 3}');
INSERT INTO "changes" VALUES(14,'again',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(15,'again',1,1700000002.0,'Refused','sending','refused','answer','{"error_type": "CustomerBusyError", "error_code": 2061}');
INSERT INTO "changes" VALUES(16,'form',1,1700000001.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(17,'form',1,1700000003.0,'Lost','sending','unknown','no answer','{"expires_at": 1700000900.0}');
INSERT INTO "changes" VALUES(18,'again',2,1700000002.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(19,'again',2,1700000004.0,'NotSent','sending','refused','not sent',NULL);
INSERT INTO "changes" VALUES(20,'again',3,1700000003.0,'Permitted',NULL,'sending','permit',NULL);
INSERT INTO "changes" VALUES(21,'again',3,1700000002.0,'Created','sending','pending','answer','{"transaction_id": 5, "expires_at": 1700000300.0}');
INSERT INTO "changes" VALUES(22,'again',3,1700000050.0,'FoundAccepted','pending','accepted','query',NULL);
CREATE TABLE environment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    digest BLOB NOT NULL
) STRICT;
INSERT INTO "environment" VALUES(1,X'6565656565656565656565656565656565656565656565656565656565656565');
CREATE TABLE meta (
    digest_key BLOB NOT NULL,
    created_at REAL NOT NULL,
    schema_version INTEGER NOT NULL
) STRICT;
INSERT INTO "meta" VALUES(X'2D224D6B71CC241F871418CFE03654831B8B1258F7286B8CF54901CBE06C4444',1.79530722588150238984e+09,3);
CREATE UNIQUE INDEX attempts_open ON attempts (client_transaction_id) WHERE state <> 'refused';
CREATE INDEX attempts_unfinished ON attempts (created_at) WHERE decided_at IS NULL;
CREATE INDEX changes_of ON changes (client_transaction_id);
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
BEGIN SELECT RAISE(ABORT, 'not a permit'); END;
CREATE TRIGGER attempts_move BEFORE UPDATE ON attempts
WHEN new.version <> old.version + 1 OR NOT (CASE old.state WHEN 'sending' THEN new.state = 'pending' OR new.state = 'refused' OR new.state = 'sending' OR new.state = 'unknown' WHEN 'unknown' THEN new.state = 'accepted' OR new.state = 'cancelled' OR new.state = 'pending' OR new.state = 'refused' OR new.state = 'unknown' WHEN 'pending' THEN new.state = 'accepted' OR new.state = 'cancelled' OR new.state = 'expired' OR new.state = 'pending' WHEN 'expired' THEN new.state = 'accepted' OR new.state = 'cancelled' OR new.state = 'expired' OR new.state = 'refused' WHEN 'cancelled' THEN new.state = 'accepted' OR new.state = 'cancelled' WHEN 'accepted' THEN new.state = 'accepted' WHEN 'refused' THEN new.state = 'refused' ELSE 0 END)
BEGIN SELECT RAISE(ABORT, 'illegal move'); END;
CREATE TRIGGER attempts_identity BEFORE UPDATE OF
seq, client_transaction_id, attempt, kind, digest, lane, amount, currency, created_at ON attempts
BEGIN SELECT RAISE(ABORT, 'what an attempt is does not change'); END;
CREATE TRIGGER attempts_delete BEFORE DELETE ON attempts
BEGIN SELECT RAISE(ABORT, 'attempts stay'); END;
CREATE TRIGGER attempts_permitted AFTER INSERT ON attempts BEGIN
    INSERT INTO changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    VALUES (new.client_transaction_id, new.attempt, new.event_at, new.event, NULL, new.state,
        new.event_evidence, new.event_detail);
END;
CREATE TRIGGER attempts_moved AFTER UPDATE ON attempts BEGIN
    INSERT INTO changes (client_transaction_id, attempt, at, event, before, after, evidence, detail)
    VALUES (new.client_transaction_id, new.attempt, new.event_at, new.event, old.state, new.state,
        new.event_evidence, new.event_detail);
END;
CREATE TRIGGER changes_insert BEFORE INSERT ON changes
WHEN EXISTS (SELECT 1 FROM changes WHERE cursor = new.cursor)
BEGIN SELECT RAISE(ABORT, 'the history stays'); END;
CREATE TRIGGER changes_update BEFORE UPDATE ON changes
BEGIN SELECT RAISE(ABORT, 'the history stays'); END;
CREATE TRIGGER changes_delete BEFORE DELETE ON changes
BEGIN SELECT RAISE(ABORT, 'the history stays'); END;
PRAGMA application_id = 1348565324;
PRAGMA user_version = 3;
COMMIT;
