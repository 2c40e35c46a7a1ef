-- Palisade's locks in MariaDB 10.6 and newer, and in MySQL 8. Run it in the database that is to have them, as often as
-- you like: nothing is lost, and clients that are connected go on. Needs the rights CREATE, CREATE VIEW, CREATE ROUTINE
-- and ALTER ROUTINE there, and ALTER if an older one is there; afterwards applications need only
--   GRANT EXECUTE ON `database`.* TO app;
--   GRANT SELECT ON `database`.palisade_state TO app;     -- and of _version, _session, _lock, _claim, _notice, _event,
--                                                         -- _watched, _locks
-- Whoever is trusted with the table of locks takes those that are free at about half the cost with
--   GRANT UPDATE ON `database`.palisade_lock TO app;
--
-- Names, labels and values are bytes. A list of locks is written as their names in hex, with commas in between.
DELIMITER $$

SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION' $$
SELECT GET_LOCK(CONCAT('palisade_', MD5(DATABASE())), 60) INTO @palisade_is_alone $$

-- Step 1 --------------------------------------------------------------------------------------------------------------

-- Which steps are done, and the oldest client that can use the result. Its row is written last.
CREATE TABLE IF NOT EXISTS palisade_version (
    only_one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    usable_from INT NOT NULL
) ENGINE = InnoDB $$

-- What all locks have in common. `cluster` tells one life of the data from another: a restored or emptied store has
-- another one, or none.
CREATE TABLE IF NOT EXISTS palisade_state (
    only_one TINYINT NOT NULL PRIMARY KEY,
    floor BIGINT NOT NULL,                  -- no lock whose row was removed has had a higher token
    swept VARBINARY(512) NOT NULL,          -- how far rows were removed, on this round
    watched_until DATETIME(6) NOT NULL,     -- as it was before there was palisade_watched
    events BIGINT NOT NULL,                 -- the last one in palisade_event
    cluster CHAR(36) NOT NULL
) ENGINE = InnoDB $$
INSERT INTO palisade_state VALUES (1, 0, '', '2000-01-01', 0, UUID()) ON DUPLICATE KEY UPDATE floor = floor $$

-- A client's liveness. It is dead when its deadline has passed; whoever finds that notes it here, for good.
CREATE TABLE IF NOT EXISTS palisade_session (
    id BIGINT NOT NULL PRIMARY KEY,
    ttl_ms BIGINT NOT NULL,
    deadline DATETIME(6) NOT NULL,          -- UTC, as all times here
    ended TINYINT NOT NULL DEFAULT 0,
    epoch INT NOT NULL DEFAULT 0,           -- requests of older connections are refused
    kept BIGINT NOT NULL DEFAULT 0,         -- how often it was kept alive
    is_lease TINYINT NOT NULL DEFAULT 0,    -- ends with what it holds
    label VARBINARY(256) NOT NULL,
    withdrawn VARBINARY(1400) NOT NULL DEFAULT '', -- requests that were cancelled before they came, the last few
    forgotten BIGINT NOT NULL DEFAULT 0,    -- the highest that is no longer there
    KEY palisade_deadline (deadline)
) ENGINE = InnoDB $$

-- A lock. A single exclusive holder is in its row, and nothing else is touched for it; everything else that is held,
-- and whatever waits, is in palisade_claim.
CREATE TABLE IF NOT EXISTS palisade_lock (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL,                  -- the last one given here
    session BIGINT,                         -- the holder, if it is a single exclusive one
    number BIGINT,                          -- its request
    since DATETIME(6),
    delay_ms BIGINT,
    withheld_until DATETIME(6),             -- the holder is dead, and its delay runs
    value VARBINARY(4096),
    permits BIGINT,                         -- of a semaphore in use
    taken BIGINT NOT NULL DEFAULT 0,        -- what holders in palisade_claim have
    waiting INT NOT NULL DEFAULT 0,         -- how many wait in palisade_claim
    arrivals BIGINT NOT NULL DEFAULT 0,     -- the last one in palisade_claim
    history BLOB,                           -- the last grants that ended while it was in use, a line each
    used_by BIGINT,                         -- the last one who was in `session`: what it holds is among these
    -- Not of `session`: whoever takes the same lock again changes nothing that is in an index, which costs far less.
    KEY palisade_used_by (used_by),
    KEY palisade_withheld (withheld_until)
) ENGINE = InnoDB $$

-- A request's place at a lock: in its queue, or among its holders. One for several locks has a row at each. Arrivals are
-- counted by lock, and a request has the same number at all of its locks, which is above all that were there: so any two
-- requests are in the same order wherever they meet.
CREATE TABLE IF NOT EXISTS palisade_claim (
    name VARBINARY(512) NOT NULL,
    waits TINYINT NOT NULL,
    arrival BIGINT NOT NULL,
    session BIGINT NOT NULL,
    number BIGINT NOT NULL,                 -- below 0 for one without a number
    part INT NOT NULL,
    parts INT NOT NULL,
    need BIGINT NOT NULL,
    token BIGINT,
    since DATETIME(6) NOT NULL,
    delay_ms BIGINT,
    withheld_until DATETIME(6),
    value VARBINARY(4096),
    PRIMARY KEY (name, waits, arrival),
    KEY palisade_request (session, number, part),
    KEY palisade_withheld (withheld_until)
) ENGINE = InnoDB $$

-- Where tokens come from, 256 at a time for each connection, so that no two locks have the same one at the same time: a
-- client knows its grants by them. That they rise is not left to it: each is above the last one of its lock. Its rows go
-- at once; the number of the next one stays.
CREATE TABLE IF NOT EXISTS palisade_block (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB $$

-- What a session has to be told, kept until it was, or until the session is gone.
CREATE TABLE IF NOT EXISTS palisade_notice (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    session BIGINT NOT NULL,
    said BLOB NOT NULL,
    KEY palisade_session (session)
) ENGINE = InnoDB $$

-- What happened, while somebody wants to know: a row for each transaction, a line for each event.
CREATE TABLE IF NOT EXISTS palisade_event (
    id BIGINT NOT NULL PRIMARY KEY,
    at DATETIME(6) NOT NULL,
    said MEDIUMBLOB NOT NULL,
    KEY palisade_at (at)
) ENGINE = InnoDB $$

-- Step 2 --------------------------------------------------------------------------------------------------------------

-- Until when somebody wants to know what happens. Clients that take a free lock by a statement of their own do so only
-- where nobody does, and have this row shared until they are done: a watch begins when they are.
CREATE TABLE IF NOT EXISTS palisade_watched (only_one TINYINT NOT NULL PRIMARY KEY, until DATETIME(6) NOT NULL) ENGINE = InnoDB $$
-- Who watched before says so again within this time.
INSERT INTO palisade_watched (only_one, until)
    SELECT 1, IF(s.watched_until > '2000-01-01', UTC_TIMESTAMP(6) + INTERVAL 15 SECOND, s.watched_until) FROM palisade_state s
    ON DUPLICATE KEY UPDATE until = palisade_watched.until $$

-- As it was before there was `used_by`.
DROP PROCEDURE IF EXISTS palisade_upgrade $$
CREATE PROCEDURE palisade_upgrade()
BEGIN
    SELECT NOT EXISTS (SELECT 1 FROM information_schema.columns c WHERE c.table_schema = DATABASE()
        AND c.table_name = 'palisade_lock' AND c.column_name = 'used_by') INTO @palisade_is;
    IF @palisade_is THEN
        ALTER TABLE palisade_lock ADD COLUMN used_by BIGINT, DROP KEY palisade_holder, ADD KEY palisade_used_by (used_by);
    END IF;
END $$
CALL palisade_upgrade() $$
DROP PROCEDURE palisade_upgrade $$

-- Procedures: always replaced by the newest ------------------------------------------------------------------------------
-- Those that begin a transaction are for clients; the others are parts of them. What is read without holding it is read by
-- a SELECT of its own: in SET, IF and DECLARE it would be locked. In one transaction @palisade_events are
-- the lines for palisade_event, and @palisade_granted who was granted what: SESSION:NUMBER:TOKEN, each with a comma.

-- Begins a transaction. In one of the caller's own this is an error, and nothing has happened: what others see of locks
-- cannot wait for the end of it.
DROP PROCEDURE IF EXISTS palisade_begin $$
CREATE PROCEDURE palisade_begin()
BEGIN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SET @palisade_events = '', @palisade_granted = '';
END $$

-- Ends a transaction. What happened in it is told if anybody watches; that nobody does stays so until the commit, or
-- whoever has begun to watch meanwhile would have looked at the locks before it, and would never hear of it. The events of
-- a transaction get their number last, and it is the row of all locks that they wait for each other at.
DROP PROCEDURE IF EXISTS palisade_finish $$
CREATE PROCEDURE palisade_finish()
BEGIN
    DECLARE v_is_watched TINYINT DEFAULT 0;
    IF @palisade_events <> '' THEN
        SELECT w.until > UTC_TIMESTAMP(6) INTO v_is_watched FROM palisade_watched w LOCK IN SHARE MODE;
        IF v_is_watched THEN
            UPDATE palisade_state s SET s.events = s.events + 1;
            INSERT INTO palisade_event (id, at, said) SELECT s.events, UTC_TIMESTAMP(6), @palisade_events FROM palisade_state s;
        END IF;
    END IF;
    COMMIT;
END $$
DROP PROCEDURE IF EXISTS palisade_announce $$

DROP PROCEDURE IF EXISTS palisade_report $$
CREATE PROCEDURE palisade_report(p_line MEDIUMBLOB)
BEGIN
    SET @palisade_events = CONCAT(@palisade_events, p_line, '\n');
END $$

-- Adds an ending to a lock's history. It is `released`, `closed`, `expired`, or `forced BY REASON TOKEN` in hex.
DROP PROCEDURE IF EXISTS palisade_remember $$
CREATE PROCEDURE palisade_remember(p_name VARBINARY(512), p_session BIGINT, p_token BIGINT, p_need BIGINT, p_how BLOB)
BEGIN
    DECLARE v_label VARBINARY(512);
    SELECT HEX(s.label) INTO v_label FROM palisade_session s WHERE s.id = p_session;
    UPDATE palisade_lock l SET l.history = CONCAT(COALESCE(CONCAT(SUBSTRING_INDEX(l.history, '\n', -7), '\n'), ''),
        CONCAT_WS(',', p_token, p_session, p_need, COALESCE(v_label, ''), p_how)) WHERE l.name = p_name;
END $$

-- Tells a session that a grant of it was taken away; first that there was one, as it may not know that yet.
DROP PROCEDURE IF EXISTS palisade_tell_lost $$
CREATE PROCEDURE palisade_tell_lost(p_session BIGINT, p_number BIGINT, p_token BIGINT, p_how BLOB)
BEGIN
    CALL palisade_tell(p_session, CONCAT_WS(' ', 'g', p_session, p_number, p_token));
    CALL palisade_tell(p_session, CONCAT_WS(' ', 'l', p_session, p_token, p_how));
END $$

-- Tells a session something that must not be lost.
DROP PROCEDURE IF EXISTS palisade_tell $$
CREATE PROCEDURE palisade_tell(p_session BIGINT, p_said BLOB)
BEGIN
    INSERT INTO palisade_notice (session, said) SELECT s.id, p_said FROM palisade_session s WHERE s.id = p_session;
END $$

-- The next token, above this one. A connection's block is behind when the lock was somebody else's meanwhile: then the
-- next block is above all that were given, unless tokens were raised by hand.
DROP PROCEDURE IF EXISTS palisade_next $$
CREATE PROCEDURE palisade_next(p_above BIGINT, OUT p_token BIGINT)
BEGIN
    DECLARE v_block, v_last BIGINT;
    SET @palisade_token = @palisade_token + 1;
    IF @palisade_token IS NULL OR @palisade_token <= p_above OR @palisade_token % 256 = 0
        OR @palisade_database <> DATABASE() THEN
        SET v_last = LAST_INSERT_ID();
        INSERT INTO palisade_block () VALUES ();
        SET v_block = LAST_INSERT_ID(), @palisade_token = v_block * 256 - 255, @palisade_database = DATABASE();
        DELETE FROM palisade_block WHERE id = v_block;
        -- It is the caller's.
        DO LAST_INSERT_ID(v_last);
    END IF;
    SET p_token = GREATEST(@palisade_token, p_above + 1);
END $$

-- The first of 255 tokens that nobody else has: for a client that takes locks by statements of its own.
DROP PROCEDURE IF EXISTS palisade_tokens $$
CREATE PROCEDURE palisade_tokens()
BEGIN
    DECLARE v_block BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    INSERT INTO palisade_block () VALUES ();
    SET v_block = LAST_INSERT_ID();
    DELETE FROM palisade_block WHERE id = v_block;
    COMMIT;
    SELECT v_block * 256 - 255 AS token;
END $$

-- Whether a session is dead; one whose deadline has passed is dead from now on, whatever the clock says later. One that
-- somebody else is busy with is not touched: who holds the row of a lock does not wait for that of a session.
DROP PROCEDURE IF EXISTS palisade_bury $$
CREATE PROCEDURE palisade_bury(p_session BIGINT, OUT p_is_dead TINYINT)
BEGIN
    DECLARE v_id BIGINT;
    SELECT NOT EXISTS (SELECT 1 FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) INTO p_is_dead;
    SELECT p_is_dead AND EXISTS (SELECT 1 FROM palisade_session s WHERE s.id = p_session AND s.ended = 0) INTO @palisade_is;
    IF @palisade_is THEN
        SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session FOR UPDATE SKIP LOCKED;
        SET p_is_dead = v_id IS NOT NULL;
        IF p_is_dead THEN
            UPDATE palisade_session s SET s.ended = 1 WHERE s.id = p_session AND s.deadline <= UTC_TIMESTAMP(6);
            SELECT NOT EXISTS (SELECT 1 FROM palisade_session s WHERE s.id = p_session AND s.ended = 0) INTO p_is_dead;
        END IF;
    END IF;
END $$

-- Removes rows of locks that nobody uses, a few at a time, once there are many rows. It goes from name to name, and looks
-- at so many each time, as most may be in use. The floor rises before they go.
DROP PROCEDURE IF EXISTS palisade_clean $$
CREATE PROCEDURE palisade_clean()
BEGIN
    DECLARE v_floor, v_token BIGINT;
    DECLARE v_swept, v_name, v_to VARBINARY(512);
    DECLARE i INT DEFAULT 0;
    SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM palisade_lock l LIMIT 1000) x) = 1000 INTO @palisade_is;
    IF @palisade_is THEN
        -- One at a time is enough.
        SELECT s.floor, s.swept INTO v_floor, v_swept FROM palisade_state s FOR UPDATE SKIP LOCKED;
    END IF;
    IF v_floor IS NOT NULL THEN
        SELECT MAX(x.name) INTO v_to FROM (SELECT l.name FROM palisade_lock l WHERE l.name > v_swept ORDER BY l.name LIMIT 256) x;
        WHILE i < 64 DO
            SET i = i + 1, v_name = NULL;
            SELECT l.name, l.token INTO v_name, v_token FROM palisade_lock l
                WHERE l.name > v_swept AND l.name <= v_to AND l.session IS NULL AND l.taken = 0 AND l.waiting = 0
                ORDER BY l.name LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF v_name IS NULL THEN
                -- After the last name comes the first.
                SET i = 64, v_swept = COALESCE(v_to, '');
            ELSE
                SET v_floor = GREATEST(v_floor, v_token), v_swept = v_name;
                DELETE FROM palisade_lock WHERE name = v_name;
            END IF;
        END WHILE;
        UPDATE palisade_state s SET s.floor = v_floor, s.swept = v_swept;
    END IF;
END $$

-- A lock's row, made if there is none, is locked until the end of the transaction. Only then the floor is read: a row
-- that was removed while this one was made has raised it, and a token is above both.
DROP PROCEDURE IF EXISTS palisade_hold $$
CREATE PROCEDURE palisade_hold(p_name VARBINARY(512))
BEGIN
    DECLARE v_token, v_floor BIGINT;
    SELECT l.token INTO v_token FROM palisade_lock l WHERE l.name = p_name FOR UPDATE;
    IF v_token IS NULL THEN
        INSERT INTO palisade_lock (name, token) VALUES (p_name, 0) ON DUPLICATE KEY UPDATE token = palisade_lock.token;
        SELECT (SELECT s.floor FROM palisade_state s) INTO v_floor;
        UPDATE palisade_lock l SET l.token = v_floor WHERE l.name = p_name AND l.session IS NULL AND l.token < v_floor;
        IF RAND() < 0.03125 THEN
            CALL palisade_clean();
        END IF;
    END IF;
END $$

-- Locks the rows of these locks, as far as there are any. The list is in the order of names.
DROP PROCEDURE IF EXISTS palisade_hold_all $$
CREATE PROCEDURE palisade_hold_all(p_names MEDIUMBLOB)
BEGIN
    DECLARE v_rest MEDIUMBLOB DEFAULT p_names;
    DECLARE v_token BIGINT;
    WHILE v_rest <> '' DO
        SELECT l.token INTO v_token FROM palisade_lock l WHERE l.name = UNHEX(SUBSTRING_INDEX(v_rest, ',', 1)) FOR UPDATE;
        SET v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1)));
    END WHILE;
END $$

-- Ends one place of a grant; with a delay after an expiry it is withheld. Without `how` a delay is over. Told with these
-- names, or not at all.
DROP PROCEDURE IF EXISTS palisade_end_part $$
CREATE PROCEDURE palisade_end_part(p_name VARBINARY(512), p_arrival BIGINT, p_how BLOB, p_names MEDIUMBLOB, OUT p_freed TINYINT)
BEGIN
    DECLARE v_session, v_number, v_token, v_need, v_delay BIGINT;
    DECLARE v_withhold TINYINT;
    SELECT c.session, c.number, c.token, c.need, c.delay_ms INTO v_session, v_number, v_token, v_need, v_delay
        FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 0 AND c.arrival = p_arrival;
    SET v_withhold = COALESCE(p_how = 'expired' AND v_delay IS NOT NULL, 0);
    IF p_how IS NOT NULL THEN
        SELECT v_withhold OR (SELECT l.waiting > 0 OR l.taken > v_need FROM palisade_lock l WHERE l.name = p_name) INTO @palisade_is;
        IF @palisade_is THEN
            CALL palisade_remember(p_name, v_session, v_token, v_need, p_how);
        END IF;
        IF p_names IS NOT NULL THEN
            IF p_how LIKE 'forced%' THEN
                CALL palisade_tell_lost(v_session, v_number, v_token, p_how);
            END IF;
            CALL palisade_report(CONCAT_WS(' ', 'ended', p_names, v_session, v_token, p_how));
        END IF;
    ELSEIF p_names IS NOT NULL THEN
        CALL palisade_report(CONCAT_WS(' ', 'delay-ended', p_names, v_token));
    END IF;
    SET p_freed = NOT v_withhold;
    IF v_withhold THEN
        UPDATE palisade_claim c SET c.withheld_until = UTC_TIMESTAMP(6) + INTERVAL (c.delay_ms * 1000) MICROSECOND,
            c.value = NULL WHERE c.name = p_name AND c.waits = 0 AND c.arrival = p_arrival;
        IF p_names IS NOT NULL THEN
            CALL palisade_report(CONCAT_WS(' ', 'withheld', p_names, v_token, v_delay));
        END IF;
    ELSE
        DELETE FROM palisade_claim WHERE name = p_name AND waits = 0 AND arrival = p_arrival;
        UPDATE palisade_lock l SET l.taken = l.taken - v_need WHERE l.name = p_name;
    END IF;
END $$

-- Ends the single exclusive grant in a lock's row, which is held here; with a delay after an expiry it is withheld.
-- Without `how` a delay is over.
DROP PROCEDURE IF EXISTS palisade_end_inline $$
CREATE PROCEDURE palisade_end_inline(p_name VARBINARY(512), p_how BLOB)
BEGIN
    DECLARE v_session, v_number, v_token, v_delay BIGINT;
    DECLARE v_is_withheld, v_is_wanted, v_withhold TINYINT;
    SELECT l.session, l.number, l.token, l.delay_ms, l.withheld_until IS NOT NULL, l.waiting > 0
        INTO v_session, v_number, v_token, v_delay, v_is_withheld, v_is_wanted FROM palisade_lock l WHERE l.name = p_name;
    SET v_withhold = COALESCE(p_how = 'expired' AND v_delay IS NOT NULL AND NOT v_is_withheld, 0);
    IF v_is_withheld THEN
        CALL palisade_report(CONCAT_WS(' ', 'delay-ended', HEX(p_name), v_token, p_how));
    ELSE
        IF v_is_wanted OR v_withhold THEN
            CALL palisade_remember(p_name, v_session, v_token, 4294967295, p_how);
        END IF;
        IF p_how LIKE 'forced%' THEN
            CALL palisade_tell_lost(v_session, v_number, v_token, p_how);
        END IF;
        CALL palisade_report(CONCAT_WS(' ', 'ended', HEX(p_name), v_session, v_token, p_how));
    END IF;
    IF v_withhold THEN
        UPDATE palisade_lock l SET l.withheld_until = UTC_TIMESTAMP(6) + INTERVAL (l.delay_ms * 1000) MICROSECOND,
            l.value = NULL, l.number = NULL WHERE l.name = p_name;
        CALL palisade_report(CONCAT_WS(' ', 'withheld', HEX(p_name), v_token, v_delay));
    ELSE
        UPDATE palisade_lock l SET l.session = NULL, l.number = NULL, l.since = NULL, l.delay_ms = NULL,
            l.withheld_until = NULL, l.value = NULL WHERE l.name = p_name;
    END IF;
END $$

-- Ends what dead sessions hold at a lock whose row is held here, or withholds it for its delay; ends delays.
DROP PROCEDURE IF EXISTS palisade_reap $$
CREATE PROCEDURE palisade_reap(p_name VARBINARY(512), OUT p_freed TINYINT)
BEGIN
    DECLARE v_session, v_arrival, v_taken BIGINT;
    DECLARE v_is_withheld, v_is_over, v_is_dead, v_freed TINYINT;
    SET p_freed = 0;
    SELECT l.session, l.withheld_until IS NOT NULL, COALESCE(l.withheld_until <= UTC_TIMESTAMP(6), 0), l.taken
        INTO v_session, v_is_withheld, v_is_over, v_taken FROM palisade_lock l WHERE l.name = p_name;
    IF v_session IS NOT NULL THEN
        IF v_is_over THEN
            CALL palisade_end_inline(p_name, NULL);
        ELSEIF NOT v_is_withheld THEN
            CALL palisade_bury(v_session, v_is_dead);
            IF v_is_dead THEN
                CALL palisade_end_inline(p_name, 'expired');
            END IF;
        END IF;
        SELECT (SELECT l.session IS NULL FROM palisade_lock l WHERE l.name = p_name) INTO p_freed;
    ELSEIF v_taken > 0 THEN
        SELECT (SELECT MIN(c.arrival) FROM palisade_claim c WHERE c.name = p_name AND c.waits = 0) INTO v_arrival;
        WHILE v_arrival IS NOT NULL DO
            SELECT c.session, c.withheld_until IS NOT NULL, COALESCE(c.withheld_until <= UTC_TIMESTAMP(6), 0)
                INTO v_session, v_is_withheld, v_is_over FROM palisade_claim c
                WHERE c.name = p_name AND c.waits = 0 AND c.arrival = v_arrival;
            SET v_freed = 0;
            IF v_is_over THEN
                CALL palisade_end_part(p_name, v_arrival, NULL, HEX(p_name), v_freed);
            ELSEIF NOT v_is_withheld THEN
                CALL palisade_bury(v_session, v_is_dead);
                IF v_is_dead THEN
                    CALL palisade_end_part(p_name, v_arrival, 'expired', HEX(p_name), v_freed);
                END IF;
            END IF;
            SET p_freed = p_freed OR v_freed;
            SELECT (SELECT MIN(c.arrival) FROM palisade_claim c
                WHERE c.name = p_name AND c.waits = 0 AND c.arrival > v_arrival) INTO v_arrival;
        END WHILE;
    END IF;
END $$

-- Takes a waiter out of one queue.
DROP PROCEDURE IF EXISTS palisade_leave $$
CREATE PROCEDURE palisade_leave(p_name VARBINARY(512), p_arrival BIGINT, p_why BLOB, p_names MEDIUMBLOB)
BEGIN
    DECLARE v_session, v_number BIGINT;
    SELECT c.session, c.number INTO v_session, v_number FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 1 AND c.arrival = p_arrival;
    DELETE FROM palisade_claim WHERE name = p_name AND waits = 1 AND arrival = p_arrival;
    UPDATE palisade_lock l SET l.waiting = l.waiting - 1 WHERE l.name = p_name;
    IF p_names IS NOT NULL THEN
        CALL palisade_report(CONCAT_WS(' ', 'left', p_names, v_session, v_number, p_why));
    END IF;
END $$

-- The arrival of the first of a queue who lives. Those before it are taken out.
DROP PROCEDURE IF EXISTS palisade_front $$
CREATE PROCEDURE palisade_front(p_name VARBINARY(512), OUT p_arrival BIGINT)
BEGIN
    DECLARE v_is_dead TINYINT DEFAULT 1;
    WHILE v_is_dead DO
        SELECT (SELECT MIN(c.arrival) FROM palisade_claim c WHERE c.name = p_name AND c.waits = 1) INTO p_arrival;
        SELECT p_arrival IS NOT NULL AND NOT EXISTS (SELECT 1 FROM palisade_claim c, palisade_session s
            WHERE c.name = p_name AND c.waits = 1 AND c.arrival = p_arrival AND s.id = c.session AND s.ended = 0
                AND s.deadline > UTC_TIMESTAMP(6)) INTO v_is_dead;
        IF v_is_dead THEN
            CALL palisade_leave(p_name, p_arrival, 'expired', HEX(p_name));
        END IF;
    END WHILE;
END $$

-- The names of all locks of a request, in the order of names, or in that of the request.
DROP PROCEDURE IF EXISTS palisade_names $$
CREATE PROCEDURE palisade_names(p_session BIGINT, p_number BIGINT, p_by_part TINYINT, OUT p_names MEDIUMBLOB)
BEGIN
    DECLARE v_last VARBINARY(512) DEFAULT '';
    DECLARE v_part INT DEFAULT 0;
    SET p_names = NULL;
    WHILE v_last IS NOT NULL DO
        IF p_by_part THEN
            SET v_part = v_part + 1;
            SELECT (SELECT MIN(c.name) FROM palisade_claim c
                WHERE c.session = p_session AND c.number = p_number AND c.part = v_part) INTO v_last;
        ELSE
            SELECT (SELECT MIN(c.name) FROM palisade_claim c
                WHERE c.session = p_session AND c.number = p_number AND c.name > v_last) INTO v_last;
        END IF;
        SET p_names = CONCAT_WS(',', p_names, HEX(v_last));
    END WHILE;
END $$

-- Grants a set that is at the front of one queue, if it is at the front of all and enough is left everywhere; NULL if it
-- is not. The other rows are not waited for, as that could be for ever: whoever has one is busy, and the waiter looks
-- itself before long.
DROP PROCEDURE IF EXISTS palisade_grant_set $$
CREATE PROCEDURE palisade_grant_set(p_session BIGINT, p_number BIGINT, OUT p_token BIGINT)
BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_mine, v_front, v_found, v_floor BIGINT;
    DECLARE v_freed, v_is_ready TINYINT DEFAULT 1;
    SET p_token = 0;
    CALL palisade_names(p_session, p_number, 0, v_names);
    SET v_rest = v_names;
    WHILE v_rest <> '' AND v_is_ready DO
        SET v_name = UNHEX(SUBSTRING_INDEX(v_rest, ',', 1)), v_found = NULL,
            v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1)));
        SELECT l.token INTO v_found FROM palisade_lock l WHERE l.name = v_name FOR UPDATE SKIP LOCKED;
        IF v_found IS NULL THEN
            SET v_is_ready = 0;
        ELSE
            CALL palisade_reap(v_name, v_freed);
            CALL palisade_front(v_name, v_front);
            SELECT (SELECT c.arrival FROM palisade_claim c
                WHERE c.session = p_session AND c.number = p_number AND c.name = v_name AND c.waits = 1) INTO v_mine;
            SELECT v_mine <=> v_front AND v_mine IS NOT NULL AND (SELECT l.session IS NULL
                AND l.taken + c.need <= COALESCE(l.permits, 4294967295) FROM palisade_lock l, palisade_claim c
                WHERE l.name = v_name AND c.name = v_name AND c.waits = 1 AND c.arrival = v_mine) INTO v_is_ready;
            SET p_token = GREATEST(p_token, v_found);
        END IF;
    END WHILE;
    IF v_is_ready AND p_token < 9007199254740991 THEN
        CALL palisade_next(p_token, p_token);
        UPDATE palisade_lock l, palisade_claim c SET l.token = p_token, l.taken = l.taken + c.need,
            l.waiting = l.waiting - 1 WHERE c.session = p_session AND c.number = p_number AND l.name = c.name;
        UPDATE palisade_claim c SET c.waits = 0, c.token = p_token, c.since = UTC_TIMESTAMP(6)
            WHERE c.session = p_session AND c.number = p_number;
    ELSE
        SET p_token = NULL;
    END IF;
END $$

-- Grants whatever can be granted now at these locks, whose rows are held here, front of the queue first.
DROP PROCEDURE IF EXISTS palisade_settle $$
CREATE PROCEDURE palisade_settle(p_names MEDIUMBLOB)
BEGIN
    DECLARE v_rest MEDIUMBLOB DEFAULT p_names;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_arrival, v_token, v_session, v_number, v_need BIGINT;
    DECLARE v_parts, v_waiting INT;
    DECLARE v_goes_on TINYINT;
    DECLARE v_value VARBINARY(4096);
    WHILE v_rest <> '' DO
        SET v_name = UNHEX(SUBSTRING_INDEX(v_rest, ',', 1)),
            v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1))), v_goes_on = 1;
        WHILE v_goes_on DO
            SET v_arrival = NULL;
            SELECT (SELECT l.waiting FROM palisade_lock l WHERE l.name = v_name) INTO v_waiting;
            IF v_waiting > 0 THEN
                CALL palisade_front(v_name, v_arrival);
            END IF;
            SET v_token = NULL;
            SELECT c.session, c.number, c.parts, c.need, c.value, l.token
                INTO v_session, v_number, v_parts, v_need, v_value, v_token
                FROM palisade_claim c, palisade_lock l WHERE c.name = v_name AND c.waits = 1 AND c.arrival = v_arrival
                    AND l.name = v_name AND l.session IS NULL AND l.taken + c.need <= COALESCE(l.permits, 4294967295)
                    AND l.token < 9007199254740991;
            SET v_names = HEX(v_name), v_goes_on = v_token IS NOT NULL;
            IF v_goes_on AND v_parts = 1 THEN
                CALL palisade_next(v_token, v_token);
            END IF;
            IF v_goes_on AND v_parts = 1 AND v_need = 4294967295 THEN
                UPDATE palisade_lock l, palisade_claim c SET l.token = v_token, l.session = c.session, l.used_by = c.session,
                    l.number = c.number, l.since = UTC_TIMESTAMP(6), l.delay_ms = c.delay_ms, l.value = c.value, l.waiting = l.waiting - 1
                    WHERE l.name = v_name AND c.name = v_name AND c.waits = 1 AND c.arrival = v_arrival;
                DELETE FROM palisade_claim WHERE name = v_name AND waits = 1 AND arrival = v_arrival;
            ELSEIF v_goes_on AND v_parts = 1 THEN
                UPDATE palisade_lock l SET l.token = v_token, l.taken = l.taken + v_need, l.waiting = l.waiting - 1
                    WHERE l.name = v_name;
                UPDATE palisade_claim c SET c.waits = 0, c.token = v_token, c.since = UTC_TIMESTAMP(6)
                    WHERE c.name = v_name AND c.waits = 1 AND c.arrival = v_arrival;
            ELSEIF v_goes_on THEN
                CALL palisade_grant_set(v_session, v_number, v_token);
                SET v_goes_on = v_token IS NOT NULL;
                IF v_goes_on THEN
                    CALL palisade_names(v_session, v_number, 1, v_names);
                    SET v_rest = CONCAT_WS(',', NULLIF(v_rest, ''), v_names);
                END IF;
            END IF;
            IF v_goes_on THEN
                SET @palisade_granted = CONCAT(@palisade_granted, v_session, ':', v_number, ':', v_token, ',');
                CALL palisade_report(CONCAT_WS(' ', 'granted', v_names, v_session, v_token, v_number, 1));
                IF v_value IS NOT NULL THEN
                    CALL palisade_report(CONCAT_WS(' ', 'published', v_names, v_token, HEX(v_value)));
                END IF;
            END IF;
        END WHILE;
        -- A lock that nobody holds or wants is nothing but a token.
        UPDATE palisade_lock l SET l.permits = NULL, l.history = NULL WHERE l.name = v_name AND l.session IS NULL
            AND l.taken = 0 AND l.waiting = 0 AND (l.permits IS NOT NULL OR l.history IS NOT NULL);
    END WHILE;
END $$

-- Ends a claim whose locks' rows are all held here: a wait, or a grant.
DROP PROCEDURE IF EXISTS palisade_end_claim $$
CREATE PROCEDURE palisade_end_claim(p_session BIGINT, p_number BIGINT, p_how BLOB)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_part, v_parts INT;
    DECLARE v_arrival BIGINT;
    DECLARE v_waits, v_freed TINYINT;
    SELECT MIN(c.part), MAX(c.part) INTO v_part, v_parts FROM palisade_claim c
        WHERE c.session = p_session AND c.number = p_number;
    CALL palisade_names(p_session, p_number, 1, v_names);
    WHILE v_part <= v_parts DO
        SET v_name = NULL;
        SELECT c.name, c.arrival, c.waits INTO v_name, v_arrival, v_waits FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number AND c.part = v_part;
        IF v_name IS NULL THEN
            SET v_freed = 0;
        ELSEIF v_waits THEN
            CALL palisade_leave(v_name, v_arrival, p_how, IF(v_part = v_parts, v_names, NULL));
        ELSE
            CALL palisade_end_part(v_name, v_arrival, p_how, IF(v_part = v_parts, v_names, NULL), v_freed);
        END IF;
        SET v_part = v_part + 1;
    END WHILE;
END $$

-- All locks that a session holds or waits for, in the order of names.
DROP PROCEDURE IF EXISTS palisade_names_of $$
CREATE PROCEDURE palisade_names_of(p_session BIGINT, OUT p_names MEDIUMBLOB)
BEGIN
    DECLARE v_last VARBINARY(512) DEFAULT '';
    SET p_names = NULL;
    WHILE v_last IS NOT NULL DO
        SELECT (SELECT MIN(x.name) FROM (
            (SELECT l.name FROM palisade_lock l WHERE l.used_by = p_session AND l.session = p_session
                AND l.withheld_until IS NULL AND l.name > v_last ORDER BY l.name LIMIT 1)
            UNION ALL SELECT MIN(c.name) FROM palisade_claim c
                WHERE c.session = p_session AND c.withheld_until IS NULL AND c.name > v_last) x) INTO v_last;
        SET p_names = CONCAT_WS(',', p_names, HEX(v_last));
    END WHILE;
END $$

-- Ends a session and everything it has; its row is held here.
DROP PROCEDURE IF EXISTS palisade_end_session $$
CREATE PROCEDURE palisade_end_session(p_session BIGINT, p_how BLOB)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_number BIGINT;
    DECLARE v_name VARBINARY(512) DEFAULT '';
    CALL palisade_names_of(p_session, v_names);
    CALL palisade_hold_all(v_names);
    SELECT (SELECT MIN(c.number) FROM palisade_claim c WHERE c.session = p_session AND c.withheld_until IS NULL) INTO v_number;
    WHILE v_number IS NOT NULL DO
        CALL palisade_end_claim(p_session, v_number, p_how);
        SELECT (SELECT MIN(c.number) FROM palisade_claim c
            WHERE c.session = p_session AND c.withheld_until IS NULL AND c.number > v_number) INTO v_number;
    END WHILE;
    WHILE v_name IS NOT NULL DO
        SELECT (SELECT l.name FROM palisade_lock l WHERE l.used_by = p_session AND l.session = p_session
            AND l.withheld_until IS NULL AND l.name > v_name ORDER BY l.name LIMIT 1) INTO v_name;
        IF v_name IS NOT NULL THEN
            CALL palisade_end_inline(v_name, p_how);
        END IF;
    END WHILE;
    DELETE FROM palisade_notice WHERE session = p_session;
    DELETE FROM palisade_session WHERE id = p_session;
    CALL palisade_settle(v_names);
END $$

-- Clients of every kind --------------------------------------------------------------------------------------------------
-- Each answers with one row, unless it says otherwise. A refusal is JSON, as palisade_core::Refusal is written; without the
-- `+ 0` MariaDB would write a variable as text.

-- Begins a session.
DROP PROCEDURE IF EXISTS palisade_enter $$
CREATE PROCEDURE palisade_enter(p_ttl_ms BIGINT, p_label MEDIUMBLOB, p_is_lease TINYINT, OUT p_session BIGINT, OUT p_refusal BLOB)
BEGIN
    SET p_session = NULL, p_refusal = NULL;
    IF p_ttl_ms < 100 THEN
        SET p_refusal = JSON_OBJECT('UnderLimit', JSON_OBJECT('limit', 'TtlMinMs', 'min', 100, 'value', GREATEST(p_ttl_ms, 0)));
    ELSEIF p_ttl_ms > 3888000000 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'TtlMaxMs', 'max', 3888000000, 'value', p_ttl_ms + 0));
    ELSEIF LENGTH(p_label) > 256 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'LabelBytes', 'max', 256, 'value', LENGTH(p_label)));
    ELSE
        -- From chance, so that no number comes twice, also not in a store that was restored.
        SET p_session = 1 + CAST(CONV(SUBSTRING(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256), 1, 12), 16, 10) AS SIGNED);
        INSERT INTO palisade_session (id, ttl_ms, deadline, is_lease, label) VALUES (p_session, p_ttl_ms,
            UTC_TIMESTAMP(6) + INTERVAL (p_ttl_ms * 1000) MICROSECOND, p_is_lease, p_label);
    END IF;
END $$

DROP PROCEDURE IF EXISTS palisade_open $$
CREATE PROCEDURE palisade_open(p_ttl_ms BIGINT, p_label MEDIUMBLOB)
BEGIN
    DECLARE v_session BIGINT;
    DECLARE v_refusal BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_enter(p_ttl_ms, p_label, 0, v_session, v_refusal);
    CALL palisade_finish();
    SELECT v_session AS session, v_refusal AS refusal;
END $$

-- Another TTL for a session. `kept` is how often that was done; NULL if it has ended.
DROP PROCEDURE IF EXISTS palisade_keep_alive $$
CREATE PROCEDURE palisade_keep_alive(p_session BIGINT)
BEGIN
    DECLARE v_kept BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL palisade_prolong(p_session, v_kept);
    COMMIT;
    SELECT v_kept AS kept;
END $$

DROP PROCEDURE IF EXISTS palisade_prolong $$
CREATE PROCEDURE palisade_prolong(p_session BIGINT, OUT p_kept BIGINT)
BEGIN
    -- A statement's time is when it began: what waits for the row must not count.
    SET p_kept = NULL;
    SELECT s.kept + 1 INTO p_kept FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    SELECT NOT EXISTS (SELECT 1 FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) INTO @palisade_is;
    IF @palisade_is THEN
        SET p_kept = NULL;
    END IF;
    UPDATE palisade_session s SET s.deadline = UTC_TIMESTAMP(6) + INTERVAL (s.ttl_ms * 1000) MICROSECOND, s.kept = p_kept
        WHERE s.id = p_session AND p_kept IS NOT NULL;
END $$

-- Ends a session on its own wish. Ending one that has ended is no error.
DROP PROCEDURE IF EXISTS palisade_close $$
CREATE PROCEDURE palisade_close(p_session BIGINT)
BEGIN
    DECLARE v_id BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session AND s.ended = 0 FOR UPDATE;
    IF v_id IS NOT NULL THEN
        CALL palisade_end_session(p_session, 'closed');
    END IF;
    CALL palisade_finish();
    SELECT v_id IS NOT NULL AS closed, @palisade_granted AS granted;
END $$

-- Ends something that is overdue: a session, or else a delay of which nobody asks. `ended` says whether there was any.
DROP PROCEDURE IF EXISTS palisade_sweep $$
CREATE PROCEDURE palisade_sweep()
BEGIN
    DECLARE v_session BIGINT;
    DECLARE v_name VARBINARY(512);
    DECLARE v_ended TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    SELECT s.id INTO v_session FROM palisade_session s WHERE s.deadline <= UTC_TIMESTAMP(6)
        ORDER BY s.deadline LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF v_session IS NOT NULL THEN
        CALL palisade_end_session(v_session, 'expired');
        SET v_ended = 1;
    ELSE
        SELECT COALESCE((SELECT l.name FROM palisade_lock l WHERE l.withheld_until <= UTC_TIMESTAMP(6) LIMIT 1),
            (SELECT c.name FROM palisade_claim c WHERE c.withheld_until <= UTC_TIMESTAMP(6) LIMIT 1)) INTO v_name;
        IF v_name IS NOT NULL THEN
            CALL palisade_hold_all(HEX(v_name));
            CALL palisade_reap(v_name, v_ended);
            CALL palisade_settle(HEX(v_name));
        END IF;
        DELETE FROM palisade_event WHERE at < UTC_TIMESTAMP(6) - INTERVAL 30 SECOND LIMIT 1000;
    END IF;
    CALL palisade_finish();
    SELECT v_ended AS ended;
END $$

-- One part of a request: NAME:NEED:PERMITS, the name in hex, nothing for the permits of what is no semaphore.
DROP PROCEDURE IF EXISTS palisade_want $$
CREATE PROCEDURE palisade_want(p_wants MEDIUMBLOB, p_part INT, OUT p_name VARBINARY(512), OUT p_need BIGINT, OUT p_permits BIGINT)
BEGIN
    DECLARE v_want BLOB DEFAULT SUBSTRING_INDEX(SUBSTRING_INDEX(p_wants, ',', p_part), ',', -1);
    SET p_name = UNHEX(SUBSTRING_INDEX(v_want, ':', 1)),
        p_need = CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(v_want, ':', 2), ':', -1) AS SIGNED),
        p_permits = CAST(NULLIF(SUBSTRING_INDEX(v_want, ':', -1), '') AS SIGNED);
END $$

-- What is wrong with a request whatever the state of the locks; NULL if nothing is.
DROP PROCEDURE IF EXISTS palisade_fault $$
CREATE PROCEDURE palisade_fault(p_wants MEDIUMBLOB, p_parts INT, p_delay_ms BIGINT, p_value MEDIUMBLOB, OUT p_refusal BLOB)
BEGIN
    DECLARE v_name VARBINARY(512);
    DECLARE v_need, v_permits BIGINT;
    DECLARE v_seen MEDIUMBLOB DEFAULT '';
    DECLARE i INT DEFAULT 0;
    SET p_refusal = NULL;
    IF p_wants = '' THEN
        SET p_refusal = '"NoLocks"';
    ELSEIF p_parts > 64 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'LocksPerRequest', 'max', 64, 'value', p_parts + 0));
    END IF;
    WHILE i < p_parts AND p_refusal IS NULL DO
        SET i = i + 1;
        CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
        IF v_permits IS NOT NULL AND v_permits NOT BETWEEN 1 AND 4294967294 THEN
            SET p_refusal = JSON_OBJECT('BadLimit', JSON_OBJECT('limit', v_permits + 0));
        ELSEIF v_permits IS NOT NULL AND v_need NOT BETWEEN 1 AND v_permits THEN
            SET p_refusal = JSON_OBJECT('BadPermits', JSON_OBJECT('count', v_need + 0, 'of', v_permits + 0));
        ELSEIF FIND_IN_SET(HEX(v_name), v_seen) THEN
            SET p_refusal = JSON_OBJECT('NamedTwice', JSON_OBJECT('lock', CONVERT(v_name USING utf8mb4)));
        END IF;
        SET v_seen = CONCAT_WS(',', NULLIF(v_seen, ''), HEX(v_name));
    END WHILE;
    IF p_refusal IS NULL AND p_delay_ms > 3600000 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'DelayMaxMs', 'max', 3600000, 'value', p_delay_ms + 0));
    ELSEIF p_refusal IS NULL AND LENGTH(p_value) > 4096 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'ValueBytes', 'max', 4096, 'value', LENGTH(p_value)));
    ELSEIF p_refusal IS NULL AND p_value IS NOT NULL AND (p_parts > 1 OR v_need <> 4294967295) THEN
        SET p_refusal = '"ValueNotPossible"';
    END IF;
END $$

-- What is wrong with one lock of a request, given how it is used; NULL if nothing is.
DROP PROCEDURE IF EXISTS palisade_conflict $$
CREATE PROCEDURE palisade_conflict(
    p_name VARBINARY(512), p_session BIGINT, p_permits BIGINT, p_waits TINYINT, p_may_queue TINYINT, OUT p_refusal BLOB
)
BEGIN
    DECLARE v_permits, v_token BIGINT;
    DECLARE v_waiting INT;
    DECLARE v_is_used TINYINT;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    SET p_refusal = NULL;
    SELECT l.permits, l.waiting, l.session IS NOT NULL OR l.taken > 0 OR l.waiting > 0
        INTO v_permits, v_waiting, v_is_used FROM palisade_lock l WHERE l.name = p_name;
    IF v_is_used AND v_permits IS NOT NULL AND p_permits IS NOT NULL AND v_permits <> p_permits THEN
        SET p_refusal = JSON_OBJECT('LimitDiffers', JSON_OBJECT('lock', v_text, 'limit', v_permits + 0, 'asked', p_permits + 0));
    ELSEIF v_is_used AND v_permits IS NULL AND p_permits IS NOT NULL THEN
        SET p_refusal = JSON_OBJECT('WrongKind', JSON_OBJECT('lock', v_text, 'is', 'Lock',
            'asked', JSON_OBJECT('Semaphore', JSON_OBJECT('limit', p_permits + 0))));
    ELSEIF v_is_used AND v_permits IS NOT NULL AND p_permits IS NULL THEN
        SET p_refusal = JSON_OBJECT('WrongKind', JSON_OBJECT('lock', v_text,
            'is', JSON_OBJECT('Semaphore', JSON_OBJECT('limit', v_permits + 0)), 'asked', 'Lock'));
    ELSEIF v_is_used AND NOT p_may_queue THEN
        SELECT COALESCE(
            (SELECT l.token FROM palisade_lock l
                WHERE l.name = p_name AND l.session = p_session AND l.withheld_until IS NULL),
            (SELECT c.token FROM palisade_claim c WHERE c.session = p_session AND c.name = p_name AND c.waits = 0
                AND c.withheld_until IS NULL ORDER BY c.arrival LIMIT 1)) INTO v_token;
        IF v_token IS NOT NULL THEN
            SET p_refusal = JSON_OBJECT('AlreadyHeld', JSON_OBJECT('lock', v_text, 'token', v_token + 0));
        END IF;
    END IF;
    IF p_refusal IS NULL AND p_waits AND v_waiting >= 100000 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'WaitersPerLock', 'max', 100000, 'value', v_waiting + 1));
    END IF;
END $$

-- What a repeat of a request is told that waits or is held: NULL if there is no such request.
DROP PROCEDURE IF EXISTS palisade_standing $$
CREATE PROCEDURE palisade_standing(
    p_session BIGINT, p_number BIGINT, p_wants MEDIUMBLOB, p_parts INT,
    OUT p_said VARCHAR(16), OUT p_token BIGINT, OUT p_detail BLOB
)
BEGIN
    DECLARE v_name, v_held VARBINARY(512);
    DECLARE v_need, v_permits BIGINT;
    DECLARE v_parts, i INT;
    DECLARE v_waits TINYINT;
    SET p_said = NULL, p_token = NULL, p_detail = NULL;
    SELECT l.name, l.token INTO v_held, p_token FROM palisade_lock l
        WHERE l.used_by = p_session AND l.session = p_session AND l.number = p_number LIMIT 1;
    IF v_held IS NOT NULL THEN
        CALL palisade_want(p_wants, 1, v_name, v_need, v_permits);
        SET p_said = IF(p_parts = 1 AND v_name = v_held AND v_need = 4294967295, 'granted', 'refused');
    ELSE
        SELECT c.parts, c.waits, c.token INTO v_parts, v_waits, p_token FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number LIMIT 1;
        IF v_parts IS NOT NULL THEN
            SET p_said = CASE WHEN v_parts <> p_parts THEN 'refused' WHEN v_waits THEN 'queued' ELSE 'granted' END, i = 0;
            WHILE i < p_parts DO
                SET i = i + 1;
                CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
                SELECT NOT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = p_session AND c.number = p_number
                    AND c.part = i AND c.name = v_name AND c.need = v_need) INTO @palisade_is;
                IF @palisade_is THEN
                    SET p_said = 'refused';
                END IF;
            END WHILE;
        END IF;
    END IF;
    IF p_said = 'refused' THEN
        SET p_token = NULL, p_detail = JSON_OBJECT('NumberReused', JSON_OBJECT('number', p_number + 0));
    END IF;
END $$

-- Asks for one lock or several, in a transaction that has begun. A lock is a semaphore: exclusive needs 4294967295,
-- shared 1, both without permits. `order` are the parts in the order of their names. `said` is granted, queued, busy,
-- refused with the refusal as detail, or outdated.
DROP PROCEDURE IF EXISTS palisade_ask $$
CREATE PROCEDURE palisade_ask(
    p_session BIGINT, p_epoch INT, p_number BIGINT, p_wants MEDIUMBLOB, p_order BLOB, p_waits TINYINT, p_may_queue TINYINT,
    p_delay_ms BIGINT, p_value MEDIUMBLOB, OUT p_said VARCHAR(16), OUT p_token BIGINT, OUT p_detail BLOB
)
ask: BEGIN
    DECLARE v_epoch INT;
    DECLARE v_forgotten, v_need, v_permits, v_token, v_arrival, v_front, v_highest, v_arrivals BIGINT DEFAULT 0;
    DECLARE v_name VARBINARY(512);
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_withdrawn, v_freed, v_is_free TINYINT DEFAULT 1;
    DECLARE v_parts INT DEFAULT IF(p_wants = '', 0, 1 + LENGTH(p_wants) - LENGTH(REPLACE(p_wants, ',', '')));
    DECLARE i INT DEFAULT 0;
    SET p_said = 'refused', p_token = NULL, p_detail = NULL;
    SELECT s.epoch, s.forgotten, FIND_IN_SET(p_number, s.withdrawn) > 0 INTO v_epoch, v_forgotten, v_withdrawn
        FROM palisade_session s WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6) LOCK IN SHARE MODE;
    IF v_epoch IS NULL THEN
        SET p_detail = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
        LEAVE ask;
    ELSEIF p_epoch < v_epoch THEN
        SET p_said = 'outdated';
        LEAVE ask;
    ELSEIF v_withdrawn THEN
        SET p_detail = JSON_OBJECT('Withdrawn', JSON_OBJECT('number', p_number + 0));
        LEAVE ask;
    ELSEIF p_number > 0 AND p_number <= v_forgotten THEN
        CALL palisade_standing(p_session, p_number, p_wants, v_parts, p_said, p_token, p_detail);
        IF p_said IS NULL THEN
            SET p_said = 'refused', p_detail = JSON_OBJECT('NumberForgotten', JSON_OBJECT('number', p_number + 0));
        END IF;
        LEAVE ask;
    END IF;
    CALL palisade_fault(p_wants, v_parts, p_delay_ms, p_value, p_detail);
    IF p_detail IS NOT NULL THEN
        LEAVE ask;
    END IF;
    WHILE i < v_parts DO
        SET i = i + 1;
        CALL palisade_want(p_wants, CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(p_order, ',', i), ',', -1) AS SIGNED),
            v_name, v_need, v_permits);
        CALL palisade_hold(v_name);
        CALL palisade_reap(v_name, v_freed);
        IF v_freed THEN
            CALL palisade_settle(HEX(v_name));
        END IF;
    END WHILE;
    CALL palisade_standing(p_session, p_number, p_wants, v_parts, p_said, p_token, p_detail);
    IF p_said IS NOT NULL THEN
        LEAVE ask;
    END IF;
    SET p_said = 'refused', i = 0;
    WHILE i < v_parts DO
        SET i = i + 1;
        CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
        SET v_names = CONCAT_WS(',', v_names, HEX(v_name));
        CALL palisade_conflict(v_name, p_session, v_permits, p_waits, p_may_queue, p_detail);
        IF p_detail IS NOT NULL THEN
            LEAVE ask;
        END IF;
        -- Those who are dead do not wait.
        CALL palisade_front(v_name, v_front);
        SELECT l.token, l.arrivals, v_is_free AND v_front IS NULL AND l.session IS NULL
                AND l.taken + v_need <= COALESCE(v_permits, 4294967295)
            INTO v_highest, v_arrivals, v_is_free FROM palisade_lock l WHERE l.name = v_name;
        SET v_token = GREATEST(v_token, v_highest), v_arrival = GREATEST(v_arrival, v_arrivals + 1);
    END WHILE;
    IF NOT v_is_free AND NOT p_waits THEN
        SET p_said = 'busy';
        LEAVE ask;
    END IF;
    IF v_is_free AND v_token >= 9007199254740991 THEN
        SET p_detail = '{"TokensExhausted":{"max":9007199254740991}}';
        LEAVE ask;
    END IF;
    IF v_is_free THEN
        CALL palisade_next(v_token, v_token);
    END IF;
    IF v_is_free AND v_parts = 1 AND v_need = 4294967295 AND v_permits IS NULL THEN
        UPDATE palisade_lock l SET l.token = v_token, l.session = p_session, l.used_by = p_session, l.number = p_number,
            l.since = UTC_TIMESTAMP(6), l.delay_ms = p_delay_ms, l.value = p_value WHERE l.name = v_name;
    ELSE
        SET i = 0;
        WHILE i < v_parts DO
            SET i = i + 1;
            CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
            INSERT INTO palisade_claim (name, waits, arrival, session, number, part, parts, need, token, since, delay_ms, value)
                VALUES (v_name, NOT v_is_free, v_arrival, p_session, p_number, i, v_parts, v_need,
                    IF(v_is_free, v_token, NULL), UTC_TIMESTAMP(6), p_delay_ms, p_value);
            UPDATE palisade_lock l SET l.permits = v_permits, l.token = IF(v_is_free, v_token, l.token),
                l.taken = l.taken + IF(v_is_free, v_need, 0), l.waiting = l.waiting + IF(v_is_free, 0, 1),
                l.arrivals = v_arrival WHERE l.name = v_name;
        END WHILE;
    END IF;
    IF v_is_free THEN
        SET p_said = 'granted', p_token = v_token;
        CALL palisade_report(CONCAT_WS(' ', 'granted', v_names, p_session, v_token, p_number, 0));
        IF p_value IS NOT NULL THEN
            CALL palisade_report(CONCAT_WS(' ', 'published', v_names, v_token, HEX(p_value)));
        END IF;
    ELSE
        SET p_said = 'queued', p_detail = NULL;
        CALL palisade_report(CONCAT_WS(' ', 'queued', v_names, p_session, p_number));
    END IF;
END $$

DROP PROCEDURE IF EXISTS palisade_request $$
CREATE PROCEDURE palisade_request(
    p_session BIGINT, p_epoch INT, p_number BIGINT, p_wants MEDIUMBLOB, p_order BLOB, p_waits TINYINT, p_may_queue TINYINT,
    p_delay_ms BIGINT, p_value MEDIUMBLOB
)
BEGIN
    DECLARE v_said VARCHAR(16);
    DECLARE v_token BIGINT;
    DECLARE v_detail BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_ask(p_session, p_epoch, p_number, p_wants, p_order, p_waits, p_may_queue, p_delay_ms, p_value,
        v_said, v_token, v_detail);
    CALL palisade_finish();
    SELECT v_said AS said, v_token AS token, v_detail AS detail;
END $$

-- The same for one exclusive lock, in few steps where it is usual: if nobody else uses it, and if one who lives has it. Who
-- is queued may be told in `detail` how many are before it.
DROP PROCEDURE IF EXISTS palisade_take $$
CREATE PROCEDURE palisade_take(
    p_session BIGINT, p_epoch INT, p_number BIGINT, p_name VARBINARY(512), p_waits TINYINT, p_may_queue TINYINT
)
BEGIN
    DECLARE v_id, v_token, v_arrival BIGINT;
    DECLARE v_is_granted, v_is_queued TINYINT DEFAULT 0;
    DECLARE v_said VARCHAR(16);
    DECLARE v_detail BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SET @palisade_events = '', @palisade_granted = '';
    SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)
        AND s.epoch <= p_epoch AND s.forgotten < p_number AND NOT FIND_IN_SET(p_number, s.withdrawn) LOCK IN SHARE MODE;
    IF v_id IS NOT NULL AND p_waits THEN
        -- If one who lives has it, there is nothing to do but to wait; the row is held then, so this is the last of the queue.
        UPDATE palisade_lock l SET l.waiting = l.waiting + 1, l.arrivals = l.arrivals + 1
            WHERE l.name = p_name AND l.withheld_until IS NULL AND l.waiting < 100000
                AND (l.session <> p_session OR (p_may_queue AND l.number <> p_number))
                AND (SELECT h.ended = 0 AND h.deadline > UTC_TIMESTAMP(6) FROM palisade_session h WHERE h.id = l.session)
                AND NOT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = p_session AND c.number = p_number);
        SET v_is_queued = ROW_COUNT() > 0;
    END IF;
    IF v_id IS NOT NULL AND NOT v_is_queued THEN
        CALL palisade_next(0, v_token);
        CALL palisade_put(p_session, p_number, p_name, v_token, v_is_granted);
        IF NOT v_is_granted THEN
            SELECT NOT EXISTS (SELECT 1 FROM palisade_lock l WHERE l.name = p_name) INTO @palisade_is;
            IF @palisade_is THEN
                CALL palisade_hold(p_name);
                CALL palisade_put(p_session, p_number, p_name, v_token, v_is_granted);
            END IF;
        END IF;
    END IF;
    IF v_is_queued THEN
        SELECT l.arrivals, l.waiting - 1 INTO v_arrival, v_detail FROM palisade_lock l WHERE l.name = p_name;
        INSERT INTO palisade_claim (name, waits, arrival, session, number, part, parts, need, since)
            VALUES (p_name, 1, v_arrival, p_session, p_number, 1, 1, 4294967295, UTC_TIMESTAMP(6));
        SET v_said = 'queued',
            @palisade_events = CONCAT(CONCAT_WS(' ', 'queued', HEX(p_name), p_session, p_number), '\n');
    ELSEIF v_is_granted THEN
        -- (As palisade_report would, which takes longer than the rest.)
        SET v_said = 'granted', @palisade_events = CONCAT(CONCAT_WS(' ', 'granted', HEX(p_name), p_session, v_token, p_number, 0), '\n');
    ELSE
        CALL palisade_ask(p_session, p_epoch, p_number, CONCAT(HEX(p_name), ':4294967295:'), '1', p_waits, p_may_queue,
            NULL, NULL, v_said, v_token, v_detail);
    END IF;
    CALL palisade_finish();
    SELECT v_said AS said, v_token AS token, v_detail AS detail;
END $$

-- Puts a holder into a lock's row, if nobody uses the lock and its tokens are below this one.
DROP PROCEDURE IF EXISTS palisade_put $$
CREATE PROCEDURE palisade_put(p_session BIGINT, p_number BIGINT, p_name VARBINARY(512), p_token BIGINT, OUT p_is_put TINYINT)
BEGIN
    UPDATE palisade_lock l SET l.token = p_token, l.session = p_session, l.used_by = p_session, l.number = p_number,
        l.since = UTC_TIMESTAMP(6) WHERE l.name = p_name AND l.session IS NULL AND l.taken = 0 AND l.waiting = 0 AND l.token < p_token
            AND p_token <= 9007199254740991;
    SET p_is_put = ROW_COUNT() > 0;
END $$

-- Gives back a grant, whole, and grants to those whose turn it is.
DROP PROCEDURE IF EXISTS palisade_return $$
CREATE PROCEDURE palisade_return(p_session BIGINT, p_name VARBINARY(512), p_token BIGINT, OUT p_said VARCHAR(16), OUT p_detail BLOB)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_holder, v_session, v_number BIGINT;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    SET p_said = 'refused', p_detail = NULL, v_names = HEX(p_name);
    SELECT c.session, c.number INTO v_session, v_number FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 0 AND c.token = p_token;
    IF v_session IS NOT NULL THEN
        CALL palisade_names(v_session, v_number, 0, v_names);
    END IF;
    CALL palisade_hold_all(v_names);
    SET v_session = NULL;
    SELECT l.session INTO v_holder FROM palisade_lock l
        WHERE l.name = p_name AND l.session IS NOT NULL AND l.token = p_token AND l.withheld_until IS NULL;
    SELECT c.session, c.number INTO v_session, v_number FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 0 AND c.token = p_token AND c.withheld_until IS NULL;
    SELECT NOT EXISTS (SELECT 1 FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) INTO @palisade_is;
    IF @palisade_is THEN
        SET p_detail = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
    ELSEIF v_holder IS NULL AND v_session IS NULL THEN
        SET p_detail = JSON_OBJECT('NotHeld', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    ELSEIF COALESCE(v_holder, v_session) <> p_session THEN
        SET p_detail = JSON_OBJECT('OtherSession', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    ELSE
        IF v_holder IS NOT NULL THEN
            CALL palisade_end_inline(p_name, 'released');
        ELSE
            CALL palisade_end_claim(v_session, v_number, 'released');
        END IF;
        CALL palisade_settle(v_names);
        SET p_said = 'released';
    END IF;
END $$

-- `said` is released or refused. In few steps where it is usual: if nobody waits, and if who is next wants it alone, too.
DROP PROCEDURE IF EXISTS palisade_give_back $$
CREATE PROCEDURE palisade_give_back(p_session BIGINT, p_name VARBINARY(512), p_token BIGINT)
BEGIN
    DECLARE v_is_plain, v_is_next TINYINT;
    DECLARE v_token, v_arrival, v_session, v_number BIGINT;
    DECLARE v_label, v_said VARCHAR(512);
    DECLARE v_value VARBINARY(4096);
    DECLARE v_detail BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SET @palisade_events = '', @palisade_granted = '';
    UPDATE palisade_lock l SET l.session = NULL, l.number = NULL, l.since = NULL, l.delay_ms = NULL, l.value = NULL,
        l.history = NULL WHERE l.name = p_name AND l.session = p_session AND l.token = p_token AND l.waiting = 0
            AND l.withheld_until IS NULL;
    SET v_is_plain = ROW_COUNT() > 0;
    IF v_is_plain THEN
        SET v_said = 'released', @palisade_events = CONCAT(CONCAT_WS(' ', 'ended', HEX(p_name), p_session, p_token, 'released'), '\n');
    ELSE
        SELECT l.token INTO v_token FROM palisade_lock l WHERE l.name = p_name AND l.session = p_session AND l.token = p_token
            AND l.withheld_until IS NULL AND l.token < 9007199254740991 FOR UPDATE;
        IF v_token IS NOT NULL THEN
            SELECT c.arrival, c.session, c.number, c.value, HEX(s.label), c.parts = 1 AND c.need = 4294967295
                    AND n.ended = 0 AND n.deadline > UTC_TIMESTAMP(6) AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)
                INTO v_arrival, v_session, v_number, v_value, v_label, v_is_next FROM palisade_claim c
                LEFT JOIN palisade_session n ON n.id = c.session LEFT JOIN palisade_session s ON s.id = p_session
                WHERE c.name = p_name AND c.waits = 1 ORDER BY c.arrival LIMIT 1;
        END IF;
    END IF;
    IF v_is_next THEN
        CALL palisade_next(v_token, v_token);
        UPDATE palisade_lock l, palisade_claim c SET l.token = v_token, l.session = v_session, l.used_by = v_session,
            l.number = v_number, l.since = UTC_TIMESTAMP(6), l.delay_ms = c.delay_ms, l.value = v_value, l.waiting = l.waiting - 1,
            l.history = CONCAT(COALESCE(CONCAT(SUBSTRING_INDEX(l.history, '\n', -7), '\n'), ''),
                CONCAT_WS(',', p_token, p_session, 4294967295, v_label, 'released'))
            WHERE l.name = p_name AND c.name = p_name AND c.waits = 1 AND c.arrival = v_arrival;
        DELETE FROM palisade_claim WHERE name = p_name AND waits = 1 AND arrival = v_arrival;
        SET v_said = 'released', @palisade_granted = CONCAT(v_session, ':', v_number, ':', v_token, ','),
            @palisade_events = CONCAT(CONCAT_WS(' ', 'ended', HEX(p_name), p_session, p_token, 'released'), '\n',
                CONCAT_WS(' ', 'granted', HEX(p_name), v_session, v_token, v_number, 1), '\n');
        IF v_value IS NOT NULL THEN
            CALL palisade_report(CONCAT_WS(' ', 'published', HEX(p_name), v_token, HEX(v_value)));
        END IF;
    ELSEIF NOT v_is_plain THEN
        CALL palisade_return(p_session, p_name, p_token, v_said, v_detail);
    END IF;
    CALL palisade_finish();
    SELECT v_said AS said, v_detail AS detail, @palisade_granted AS granted;
END $$

-- Gives up a request that waits, or that has not come yet. `said` is gone, or granted with token and lock, or refused.
DROP PROCEDURE IF EXISTS palisade_cancel $$
CREATE PROCEDURE palisade_cancel(p_session BIGINT, p_number BIGINT)
BEGIN
    DECLARE v_id, v_token BIGINT;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_said VARCHAR(16) DEFAULT 'gone';
    DECLARE v_detail BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    SELECT NOT EXISTS (SELECT 1 FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) INTO @palisade_is;
    IF @palisade_is THEN
        SET v_said = 'refused', v_detail = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
    ELSE
        CALL palisade_names(p_session, p_number, 0, v_names);
        CALL palisade_hold_all(v_names);
        SELECT c.token, c.name INTO v_token, v_name FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number AND c.waits = 0 ORDER BY c.part LIMIT 1;
        SELECT l.token, l.name INTO v_token, v_name FROM palisade_lock l
            WHERE l.used_by = p_session AND l.session = p_session AND l.number = p_number LIMIT 1;
        IF v_token IS NOT NULL THEN
            SET v_said = 'granted';
        ELSE
            CALL palisade_end_claim(p_session, p_number, 'cancelled');
            -- What does not fit any more is forgotten.
            UPDATE palisade_session s SET
                s.forgotten = IF(s.withdrawn <> SUBSTRING_INDEX(s.withdrawn, ',', -63),
                    GREATEST(s.forgotten, CAST(SUBSTRING_INDEX(s.withdrawn, ',', 1) AS SIGNED)), s.forgotten),
                s.withdrawn = CONCAT_WS(',', NULLIF(SUBSTRING_INDEX(s.withdrawn, ',', -63), ''), p_number)
                WHERE s.id = p_session AND NOT FIND_IN_SET(p_number, s.withdrawn);
            CALL palisade_settle(v_names);
        END IF;
    END IF;
    CALL palisade_finish();
    SELECT v_said AS said, v_token AS token, v_detail AS detail, v_name AS name, @palisade_granted AS granted;
END $$

-- What observers read of a lock from now on. `refusal` is NULL if that was done.
DROP PROCEDURE IF EXISTS palisade_publish $$
CREATE PROCEDURE palisade_publish(p_session BIGINT, p_name VARBINARY(512), p_token BIGINT, p_value MEDIUMBLOB)
BEGIN
    DECLARE v_holder, v_session BIGINT;
    DECLARE v_refusal BLOB;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_hold_all(HEX(p_name));
    SELECT l.session INTO v_holder FROM palisade_lock l
        WHERE l.name = p_name AND l.session IS NOT NULL AND l.token = p_token AND l.withheld_until IS NULL;
    SELECT c.session INTO v_session FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 0 AND c.token = p_token AND c.withheld_until IS NULL;
    SELECT NOT EXISTS (SELECT 1 FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) INTO @palisade_is;
    IF @palisade_is THEN
        SET v_refusal = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
    ELSEIF v_holder IS NULL AND v_session IS NULL THEN
        SET v_refusal = JSON_OBJECT('NotHeld', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    ELSEIF COALESCE(v_holder, v_session) <> p_session THEN
        SET v_refusal = JSON_OBJECT('OtherSession', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    ELSEIF LENGTH(p_value) > 4096 THEN
        SET v_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'ValueBytes', 'max', 4096, 'value', LENGTH(p_value)));
    ELSEIF v_holder IS NULL THEN
        SET v_refusal = '"ValueNotPossible"';
    ELSE
        UPDATE palisade_lock l SET l.value = p_value WHERE l.name = p_name;
        CALL palisade_report(CONCAT_WS(' ', 'published', HEX(p_name), p_token, HEX(p_value)));
    END IF;
    CALL palisade_finish();
    SELECT v_refusal AS refusal;
END $$

-- All locks that are held together with this one, and this one, in the order of names; or those that are wanted together
-- with it by requests that need more than so much.
DROP PROCEDURE IF EXISTS palisade_names_with $$
CREATE PROCEDURE palisade_names_with(p_name VARBINARY(512), p_waits TINYINT, p_above BIGINT, OUT p_names MEDIUMBLOB)
BEGIN
    DECLARE v_last VARBINARY(512) DEFAULT '';
    SET p_names = NULL;
    WHILE v_last IS NOT NULL DO
        SELECT (SELECT MIN(x.name) FROM (
            SELECT p_name AS name FROM palisade_state
            UNION ALL SELECT y.name FROM palisade_claim c, palisade_claim y WHERE c.name = p_name AND c.waits = p_waits
                AND c.need > p_above AND y.session = c.session AND y.number = c.number) x WHERE x.name > v_last) INTO v_last;
        SET p_names = CONCAT_WS(',', p_names, HEX(v_last));
    END WHILE;
END $$

-- Takes a lock away from whoever holds it, or from one grant only. The token moves on.
DROP PROCEDURE IF EXISTS palisade_take_away $$
CREATE PROCEDURE palisade_take_away(
    p_name VARBINARY(512), p_only BIGINT, p_by MEDIUMBLOB, p_reason MEDIUMBLOB, OUT p_grants INT, OUT p_moved_to BIGINT, OUT p_refusal BLOB
)
away: BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_how BLOB;
    DECLARE v_session, v_number, v_token, v_taken, v_arrival BIGINT;
    DECLARE v_freed, v_is_withheld TINYINT;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    SET p_grants = 0, p_moved_to = 0, p_refusal = NULL;
    IF GREATEST(LENGTH(p_by), LENGTH(p_reason)) > 256 THEN
        SET p_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'LabelBytes', 'max', 256,
            'value', GREATEST(LENGTH(p_by), LENGTH(p_reason))));
        LEAVE away;
    END IF;
    CALL palisade_names_with(p_name, 0, -1, v_names);
    CALL palisade_hold_all(v_names);
    CALL palisade_reap(p_name, v_freed);
    IF v_freed THEN
        CALL palisade_settle(HEX(p_name));
    END IF;
    SELECT l.session, l.token, l.taken INTO v_session, v_token, v_taken FROM palisade_lock l WHERE l.name = p_name;
    SELECT p_only IS NOT NULL AND NOT EXISTS (SELECT 1 FROM palisade_claim c
        WHERE c.name = p_name AND c.waits = 0 AND c.token = p_only) AND (v_session IS NULL OR v_token <> p_only) INTO @palisade_is;
    IF @palisade_is THEN
        SET p_refusal = JSON_OBJECT('NotHeld', JSON_OBJECT('lock', v_text, 'token', p_only + 0));
        LEAVE away;
    ELSEIF p_only IS NULL AND v_session IS NULL AND COALESCE(v_taken, 0) = 0 THEN
        SET p_refusal = JSON_OBJECT('NobodyHolds', JSON_OBJECT('lock', v_text));
        LEAVE away;
    END IF;
    SET v_rest = v_names;
    WHILE v_rest <> '' DO
        SELECT GREATEST(p_moved_to, (SELECT l.token FROM palisade_lock l
                WHERE l.name = UNHEX(SUBSTRING_INDEX(v_rest, ',', 1)))) INTO p_moved_to;
        SET v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1)));
    END WHILE;
    CALL palisade_next(p_moved_to, p_moved_to);
    SET v_how = CONCAT_WS(' ', 'forced', HEX(p_by), HEX(p_reason), p_moved_to);
    IF v_session IS NOT NULL THEN
        CALL palisade_end_inline(p_name, v_how);
        SET p_grants = 1;
    END IF;
    SET v_arrival = -1;
    WHILE v_arrival IS NOT NULL DO
        SELECT (SELECT MIN(c.arrival) FROM palisade_claim c WHERE c.name = p_name AND c.waits = 0
            AND c.arrival > v_arrival AND (p_only IS NULL OR c.token = p_only)) INTO v_arrival;
        IF v_arrival IS NOT NULL THEN
            SELECT c.session, c.number, c.withheld_until IS NOT NULL INTO v_session, v_number, v_is_withheld
                FROM palisade_claim c WHERE c.name = p_name AND c.waits = 0 AND c.arrival = v_arrival;
            CALL palisade_end_claim(v_session, v_number, IF(v_is_withheld, NULL, v_how));
            SET p_grants = p_grants + 1;
        END IF;
    END WHILE;
    SET v_rest = v_names;
    WHILE v_rest <> '' DO
        UPDATE palisade_lock l SET l.token = p_moved_to WHERE l.name = UNHEX(SUBSTRING_INDEX(v_rest, ',', 1))
            AND l.token < p_moved_to AND l.session IS NULL;
        SET v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1)));
    END WHILE;
    CALL palisade_settle(v_names);
END away $$

DROP PROCEDURE IF EXISTS palisade_force $$
CREATE PROCEDURE palisade_force(p_name VARBINARY(512), p_only BIGINT, p_by MEDIUMBLOB, p_reason MEDIUMBLOB)
BEGIN
    DECLARE v_grants INT;
    DECLARE v_moved_to BIGINT;
    DECLARE v_refusal BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_take_away(p_name, p_only, p_by, p_reason, v_grants, v_moved_to, v_refusal);
    CALL palisade_finish();
    SELECT v_grants AS grants, v_moved_to AS moved_to, v_refusal AS refusal;
END $$

-- Changes the permits of a semaphore in use. `refusal` is NULL if that was done.
DROP PROCEDURE IF EXISTS palisade_resize $$
CREATE PROCEDURE palisade_resize(p_name VARBINARY(512), p_permits BIGINT)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_permits, v_arrival, v_session, v_number BIGINT;
    DECLARE v_is_used TINYINT DEFAULT 0;
    DECLARE v_refusal, v_below BLOB;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_names_with(p_name, 1, p_permits, v_names);
    CALL palisade_hold_all(v_names);
    SELECT l.permits, l.session IS NOT NULL OR l.taken > 0 OR l.waiting > 0 INTO v_permits, v_is_used
        FROM palisade_lock l WHERE l.name = p_name;
    IF NOT v_is_used THEN
        SET v_refusal = JSON_OBJECT('NoSuchLock', JSON_OBJECT('lock', v_text));
    ELSEIF v_permits IS NULL THEN
        SET v_refusal = JSON_OBJECT('WrongKind', JSON_OBJECT('lock', v_text, 'is', 'Lock',
            'asked', JSON_OBJECT('Semaphore', JSON_OBJECT('limit', p_permits + 0))));
    ELSEIF p_permits NOT BETWEEN 1 AND 4294967294 THEN
        SET v_refusal = JSON_OBJECT('BadLimit', JSON_OBJECT('limit', p_permits + 0));
    ELSE
        UPDATE palisade_lock l SET l.permits = p_permits WHERE l.name = p_name;
        CALL palisade_report(CONCAT_WS(' ', 'resized', HEX(p_name), p_permits));
        SET v_below = CONCAT_WS(' ', 'resized', HEX(p_name), p_permits), v_arrival = -1;
        WHILE v_arrival IS NOT NULL DO
            SELECT (SELECT MIN(c.arrival) FROM palisade_claim c
                WHERE c.name = p_name AND c.waits = 1 AND c.need > p_permits AND c.arrival > v_arrival) INTO v_arrival;
            IF v_arrival IS NOT NULL THEN
                SELECT c.session, c.number INTO v_session, v_number FROM palisade_claim c
                    WHERE c.name = p_name AND c.waits = 1 AND c.arrival = v_arrival;
                CALL palisade_end_claim(v_session, v_number, v_below);
                CALL palisade_tell(v_session, CONCAT_WS(' ', 'r', v_session, v_number, v_below));
            END IF;
        END WHILE;
        CALL palisade_settle(v_names);
    END IF;
    CALL palisade_finish();
    SELECT v_refusal AS refusal;
END $$

-- New connections of a session's client: requests of older ones that come late are refused. Says how often the session
-- was kept alive, and what it holds under which number, a row each; no row if it has ended.
DROP PROCEDURE IF EXISTS palisade_attach $$
CREATE PROCEDURE palisade_attach(p_session BIGINT, p_epoch INT)
BEGIN
    DECLARE v_kept BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    SELECT s.kept INTO v_kept FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    UPDATE palisade_session s SET s.epoch = GREATEST(s.epoch, p_epoch) WHERE s.id = p_session;
    SELECT v_kept AS kept, NULL AS name, NULL AS number, NULL AS token FROM palisade_session s
        WHERE s.id = p_session AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)
    UNION ALL SELECT v_kept, l.name, l.number, l.token FROM palisade_lock l
        WHERE l.used_by = p_session AND l.session = p_session AND l.withheld_until IS NULL AND v_kept IS NOT NULL
    UNION ALL SELECT v_kept, c.name, c.number, c.token FROM palisade_claim c WHERE c.session = p_session AND c.waits = 0
        AND c.withheld_until IS NULL AND c.part = 1 AND v_kept IS NOT NULL;
    CALL palisade_finish();
END $$

-- Looks at the locks of a request that waits, and ends whatever is overdue there: a holder or a waiter that is dead, a
-- delay. It is settled then. Who waits calls it every now and then; that it may be necessary is seen without holding
-- anything.
DROP PROCEDURE IF EXISTS palisade_nudge $$
CREATE PROCEDURE palisade_nudge(p_session BIGINT, p_number BIGINT)
BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_is_stuck, v_freed TINYINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    SELECT EXISTS (SELECT 1 FROM palisade_claim c, palisade_lock l LEFT JOIN palisade_session s ON s.id = l.session
            WHERE c.session = p_session AND c.number = p_number AND c.waits = 1 AND l.name = c.name AND (
                (l.session IS NOT NULL AND IF(l.withheld_until IS NULL,
                    s.id IS NULL OR s.ended = 1 OR s.deadline <= UTC_TIMESTAMP(6), l.withheld_until <= UTC_TIMESTAMP(6)))
                OR (l.session IS NULL AND l.taken + c.need <= COALESCE(l.permits, 4294967295)
                    AND c.arrival = (SELECT y.arrival FROM palisade_claim y
                        WHERE y.name = c.name AND y.waits = 1 ORDER BY y.arrival LIMIT 1))))
        OR EXISTS (SELECT 1 FROM palisade_claim c JOIN palisade_claim y ON y.name = c.name
            LEFT JOIN palisade_session s ON s.id = y.session
            WHERE c.session = p_session AND c.number = p_number AND c.waits = 1 AND IF(y.withheld_until IS NULL,
                s.id IS NULL OR s.ended = 1 OR s.deadline <= UTC_TIMESTAMP(6), y.withheld_until <= UTC_TIMESTAMP(6))) INTO v_is_stuck;
    IF v_is_stuck THEN
        CALL palisade_names(p_session, p_number, 0, v_names);
        CALL palisade_hold_all(v_names);
        SET v_rest = v_names;
        WHILE v_rest <> '' DO
            CALL palisade_reap(UNHEX(SUBSTRING_INDEX(v_rest, ',', 1)), v_freed);
            SET v_rest = SUBSTRING(v_rest, 2 + LENGTH(SUBSTRING_INDEX(v_rest, ',', 1)));
        END WHILE;
        CALL palisade_settle(v_names);
    END IF;
    CALL palisade_finish();
    SELECT v_is_stuck AS stuck, @palisade_granted AS granted;
END $$

-- What was told is gone: notices of a session up to this one.
DROP PROCEDURE IF EXISTS palisade_heard $$
CREATE PROCEDURE palisade_heard(p_session BIGINT, p_id BIGINT)
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    DELETE FROM palisade_notice WHERE session = p_session AND id <= p_id;
    CALL palisade_finish();
END $$

-- Events are kept from now on, for so long. `events` is the last one before.
DROP PROCEDURE IF EXISTS palisade_watch $$
CREATE PROCEDURE palisade_watch(p_ms BIGINT)
BEGIN
    DECLARE v_events BIGINT;
    DECLARE v_until DATETIME(6);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    -- It waits for those who have seen whether anybody watches; what is done by them is there to be seen.
    SELECT w.until INTO v_until FROM palisade_watched w FOR UPDATE;
    SELECT (SELECT s.events FROM palisade_state s) INTO v_events;
    UPDATE palisade_watched w SET w.until = GREATEST(w.until, UTC_TIMESTAMP(6) + INTERVAL (p_ms * 1000) MICROSECOND);
    COMMIT;
    SELECT v_events AS events;
END $$

-- For people and for other languages -------------------------------------------------------------------------------------

-- Who holds what and who waits, one row each; times are UTC.
DROP VIEW IF EXISTS palisade_locks $$
CREATE VIEW palisade_locks AS
    SELECT CONVERT(l.name USING utf8mb4) AS name, IF(l.withheld_until IS NULL, 'held', 'withheld') AS state,
        4294967295 AS need, l.permits, l.token, l.session, CONVERT(s.label USING utf8mb4) AS label, l.since,
        COALESCE(l.withheld_until, s.deadline) AS until, l.value, 0 AS arrival
    FROM palisade_lock l LEFT JOIN palisade_session s ON s.id = l.session
    WHERE l.session IS NOT NULL AND (l.withheld_until > UTC_TIMESTAMP(6)
        OR (l.withheld_until IS NULL AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)))
    UNION ALL
    SELECT CONVERT(c.name USING utf8mb4), IF(c.waits, 'waiting', IF(c.withheld_until IS NULL, 'held', 'withheld')),
        c.need, l.permits, c.token, c.session, CONVERT(s.label USING utf8mb4), c.since,
        COALESCE(c.withheld_until, s.deadline), c.value, c.arrival
    FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name LEFT JOIN palisade_session s ON s.id = c.session
    WHERE c.withheld_until > UTC_TIMESTAMP(6)
        OR (c.withheld_until IS NULL AND s.ended = 0 AND s.deadline > UTC_TIMESTAMP(6)) $$

-- A refusal, as an error.
DROP PROCEDURE IF EXISTS palisade_refuse $$
CREATE PROCEDURE palisade_refuse(p_refusal BLOB)
BEGIN
    DECLARE v_said VARCHAR(120) CHARACTER SET utf8mb4 DEFAULT CONCAT('refused: ', LEFT(CONVERT(p_refusal USING utf8mb4), 110));
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_said;
END $$

-- What is wrong with a name is an error.
DROP PROCEDURE IF EXISTS palisade_check_name $$
CREATE PROCEDURE palisade_check_name(p_name VARCHAR(4096) CHARACTER SET utf8mb4)
BEGIN
    IF COALESCE(LENGTH(p_name), 0) NOT BETWEEN 1 AND 512 OR LEFT(p_name, 1) = '$' OR p_name REGEXP '[[:cntrl:]]' THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'a lock''s name has 1 to 512 bytes, no control characters, and does not begin with $';
    END IF;
END $$

-- What a lock is asked for: mode is exclusive, shared, or permits with how many to take of how many.
DROP PROCEDURE IF EXISTS palisade_want_of $$
CREATE PROCEDURE palisade_want_of(
    p_name VARCHAR(4096) CHARACTER SET utf8mb4, p_mode VARCHAR(16), p_take BIGINT, p_of BIGINT, OUT p_want BLOB
)
BEGIN
    CALL palisade_check_name(p_name);
    IF p_mode = 'exclusive' THEN
        SET p_want = CONCAT(HEX(p_name), ':4294967295:');
    ELSEIF p_mode = 'shared' THEN
        SET p_want = CONCAT(HEX(p_name), ':1:');
    ELSEIF p_mode = 'permits' AND p_take IS NOT NULL AND p_of IS NOT NULL THEN
        SET p_want = CONCAT(HEX(p_name), ':', p_take, ':', p_of);
    ELSE
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'mode is exclusive, shared, or permits with how many to take and how many there are';
    END IF;
END $$

-- Takes a lock if it is free, for so long; renew it before that. One row if it is had, no row if somebody else has it.
DROP PROCEDURE IF EXISTS palisade_acquire $$
CREATE PROCEDURE palisade_acquire(name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4)
BEGIN
    CALL palisade_acquire_as(name, ttl_ms, label, 'exclusive', NULL, NULL);
END $$

-- The same as `shared`, or as `permits`, so many of so many.
DROP PROCEDURE IF EXISTS palisade_acquire_as $$
CREATE PROCEDURE palisade_acquire_as(
    name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4, mode VARCHAR(16),
    permits BIGINT, permits_of BIGINT
)
BEGIN
    DECLARE v_want, v_refusal BLOB;
    DECLARE v_session, v_token BIGINT;
    DECLARE v_said VARCHAR(16);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_want_of(name, mode, permits, permits_of, v_want);
    CALL palisade_enter(ttl_ms, COALESCE(label, CURRENT_USER()), 1, v_session, v_refusal);
    IF v_refusal IS NULL THEN
        CALL palisade_ask(v_session, 0, 1, v_want, '1', 0, 1, NULL, NULL, v_said, v_token, v_refusal);
    END IF;
    IF v_refusal IS NOT NULL THEN
        CALL palisade_refuse(v_refusal);
    END IF;
    DELETE FROM palisade_session WHERE id = v_session AND v_token IS NULL;
    CALL palisade_finish();
    SELECT v_token AS token, s.id AS session, s.deadline AS until FROM palisade_session s WHERE s.id = v_session;
END $$

-- Waits for a lock in its queue, for so long at most. One row if it is had, no row if it is not.
DROP PROCEDURE IF EXISTS palisade_acquire_within $$
CREATE PROCEDURE palisade_acquire_within(
    name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4, patience_ms BIGINT
)
BEGIN
    DECLARE v_want, v_refusal BLOB;
    DECLARE v_session, v_token, v_kept BIGINT;
    DECLARE v_said VARCHAR(16);
    DECLARE v_until DATETIME(6) DEFAULT UTC_TIMESTAMP(6) + INTERVAL (patience_ms * 1000) MICROSECOND;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_want_of(name, 'exclusive', NULL, NULL, v_want);
    CALL palisade_enter(ttl_ms, COALESCE(label, CURRENT_USER()), 1, v_session, v_refusal);
    IF v_refusal IS NULL THEN
        CALL palisade_ask(v_session, 0, 1, v_want, '1', 1, 1, NULL, NULL, v_said, v_token, v_refusal);
    END IF;
    IF v_refusal IS NOT NULL THEN
        CALL palisade_refuse(v_refusal);
    END IF;
    CALL palisade_finish();
    WHILE v_said = 'queued' DO
        DO SLEEP(0.02);
        -- The same question again is a look at the queue, and at those who are dead in it.
        CALL palisade_begin();
        CALL palisade_prolong(v_session, v_kept);
        CALL palisade_ask(v_session, 0, 1, v_want, '1', 1, 1, NULL, NULL, v_said, v_token, v_refusal);
        IF v_said = 'queued' AND UTC_TIMESTAMP(6) >= v_until THEN
            CALL palisade_end_session(v_session, 'closed');
            SET v_said = 'gone';
        END IF;
        CALL palisade_finish();
    END WHILE;
    IF v_said = 'refused' THEN
        CALL palisade_refuse(v_refusal);
    END IF;
    SELECT v_token AS token, s.id AS session, s.deadline AS until FROM palisade_session s WHERE s.id = v_session;
END $$

-- Who holds a lock with this token; NULL if nobody does.
DROP PROCEDURE IF EXISTS palisade_holder_of $$
CREATE PROCEDURE palisade_holder_of(p_name VARBINARY(4096), p_token BIGINT, OUT p_session BIGINT)
BEGIN
    SELECT COALESCE(
        (SELECT l.session FROM palisade_lock l WHERE l.name = p_name AND l.token = p_token AND l.withheld_until IS NULL),
        (SELECT c.session FROM palisade_claim c
            WHERE c.name = p_name AND c.waits = 0 AND c.token = p_token AND c.withheld_until IS NULL)) INTO p_session;
END $$

-- Gives a lock back. `released` is 0 if this token does not hold it any more, or never did: then nothing has changed.
DROP PROCEDURE IF EXISTS palisade_release $$
CREATE PROCEDURE palisade_release(name VARCHAR(4096) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    DECLARE v_session BIGINT;
    DECLARE v_said VARCHAR(16);
    DECLARE v_detail BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_check_name(name);
    CALL palisade_holder_of(name, token, v_session);
    IF v_session IS NOT NULL THEN
        CALL palisade_return(v_session, name, token, v_said, v_detail);
        DELETE FROM palisade_session WHERE id = v_session AND is_lease = 1 AND v_said = 'released';
    END IF;
    CALL palisade_finish();
    SELECT COALESCE(v_said = 'released', 0) AS released;
END $$

-- Another ttl for the holder of a lock. `renewed` is 0 if this token does not hold it any more.
DROP PROCEDURE IF EXISTS palisade_renew $$
CREATE PROCEDURE palisade_renew(name VARCHAR(4096) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    DECLARE v_session, v_kept BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_check_name(name);
    CALL palisade_holder_of(name, token, v_session);
    CALL palisade_prolong(v_session, v_kept);
    CALL palisade_finish();
    SELECT v_kept IS NOT NULL AS renewed;
END $$

-- Takes a lock away from whoever holds it, or from the grant of one token only. Resources are sealed with `moved_to`.
DROP PROCEDURE IF EXISTS palisade_break $$
CREATE PROCEDURE palisade_break(name VARCHAR(4096) CHARACTER SET utf8mb4, reason VARCHAR(256) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    DECLARE v_grants INT;
    DECLARE v_moved_to BIGINT;
    DECLARE v_refusal BLOB;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    CALL palisade_check_name(name);
    CALL palisade_take_away(name, token, SESSION_USER(), reason, v_grants, v_moved_to, v_refusal);
    IF v_refusal IS NOT NULL THEN
        CALL palisade_refuse(v_refusal);
    END IF;
    CALL palisade_finish();
    SELECT v_grants AS grants, v_moved_to AS moved_to;
END $$

-- Gives no token up to and including this one any more, as when the store has lost some, or locks come from elsewhere.
DROP PROCEDURE IF EXISTS palisade_raise_tokens $$
CREATE PROCEDURE palisade_raise_tokens(above BIGINT)
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    CALL palisade_begin();
    IF above IS NULL OR above NOT BETWEEN 1 AND 9007199254740991 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a token is a number from 1 to 9007199254740991';
    END IF;
    UPDATE palisade_lock l SET l.token = above WHERE l.token < above AND l.session IS NULL AND l.taken = 0;
    SELECT EXISTS (SELECT 1 FROM palisade_lock l WHERE l.token < above) INTO @palisade_is;
    IF @palisade_is THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'some locks are held with lower tokens; end their sessions or break them first';
    END IF;
    UPDATE palisade_state s SET s.floor = above WHERE s.floor < above;
    -- The next block is above it, too.
    INSERT INTO palisade_block (id) VALUES (above DIV 256 + 1) ON DUPLICATE KEY UPDATE id = palisade_block.id;
    DELETE FROM palisade_block WHERE id = above DIV 256 + 1;
    CALL palisade_finish();
END $$

-- Calls that were under way with the procedures as they were before knew nothing of `used_by`.
UPDATE palisade_lock l SET l.used_by = l.session WHERE l.session IS NOT NULL AND NOT (l.used_by <=> l.session) $$
INSERT INTO palisade_version (only_one, version, usable_from) VALUES (1, 2, 1)
    ON DUPLICATE KEY UPDATE version = GREATEST(palisade_version.version, 2) $$
SELECT RELEASE_LOCK(CONCAT('palisade_', MD5(DATABASE()))) INTO @palisade_is_alone $$
DELIMITER ;
