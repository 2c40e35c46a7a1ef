-- Palisade's locks in MariaDB 10.6 and newer, and in MySQL 8. Run this in the database that shall have them. Running it again
-- loses nothing, also while clients are connected. It needs the rights CREATE, CREATE VIEW, CREATE ROUTINE
-- and ALTER ROUTINE there; afterwards applications need only
--   GRANT EXECUTE ON `database`.* TO app;
--   GRANT SELECT ON `database`.palisade_state TO app;     -- and of _version, _session, _lock, _claim, _notice, _event,
--                                                         -- _watched, _locks
-- An application with this right acquires free locks at about half the cost:
--   GRANT UPDATE ON `database`.palisade_lock TO app;
--
-- Names, labels and values are bytes. A list of locks is their names in hex, separated by commas.
DELIMITER $$

-- Procedures keep the settings under which they were created, whatever the caller's settings are.
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION' $$
SET NAMES utf8mb4 COLLATE utf8mb4_bin $$
DO GET_LOCK(CONCAT('palisade_', MD5(DATABASE())), 60) $$

-- The version of what is installed, and the oldest client that can use it. Its row is written last.
CREATE TABLE IF NOT EXISTS palisade_version (
    only_one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    usable_from INT NOT NULL
) ENGINE = InnoDB $$

DROP PROCEDURE IF EXISTS palisade_install $$
CREATE PROCEDURE palisade_install()
BEGIN
    IF EXISTS (SELECT 1 FROM palisade_version v WHERE v.version < 4) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the tables palisade_... are of an unreleased version; drop those of the locks, then install again';
    END IF;
END $$
CALL palisade_install() $$
DROP PROCEDURE palisade_install $$

-- The state that all locks share. `cluster` identifies the data: after a new installation it is different. Tokens and notices
-- are counted here and not by AUTO_INCREMENT, because a caller can set that with `SET insert_id`, and a rollback does not undo it.
CREATE TABLE IF NOT EXISTS palisade_state (
    only_one TINYINT NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL CHECK (token BETWEEN 0 AND 9007199254740991), -- the highest that any lock may have issued
    notices BIGINT NOT NULL,                -- the last one in palisade_notice
    events BIGINT NOT NULL,                 -- the last one in palisade_event
    swept VARBINARY(512) NOT NULL,          -- the name at which palisade_clean continues
    cluster CHAR(36) CHARACTER SET ascii NOT NULL
) ENGINE = InnoDB $$
INSERT INTO palisade_state VALUES (1, 0, 0, 0, '', UUID()) ON DUPLICATE KEY UPDATE token = palisade_state.token $$

-- The sessions. A session whose deadline has passed is alive until a transaction writes `ended`. That decision is never undone:
-- from then on its grants and waits are void.
CREATE TABLE IF NOT EXISTS palisade_session (
    id BIGINT NOT NULL PRIMARY KEY,
    ttl_ms BIGINT NOT NULL,
    deadline DATETIME(6) NOT NULL,          -- UTC, as all times here
    ended VARBINARY(8),                     -- expired or closed; the row is deleted with its last claim
    epoch INT NOT NULL DEFAULT 0,           -- requests of older connections are refused
    kept BIGINT NOT NULL DEFAULT 0,         -- the number of keep-alives
    is_lease TINYINT NOT NULL DEFAULT 0,    -- opened by palisade_acquire; ends when its lock is released
    label VARBINARY(256) NOT NULL,
    withdrawn VARBINARY(1400) NOT NULL DEFAULT '', -- the last requests that were cancelled before they arrived
    forgotten BIGINT NOT NULL DEFAULT 0,    -- the highest request number that `withdrawn` no longer has
    KEY palisade_deadline (ended, deadline)
) ENGINE = InnoDB $$

-- The locks. The exclusive holder of a single lock is stored in the lock's row, so that a grant changes one row only. All other
-- holders, and all waiters, are in palisade_claim.
CREATE TABLE IF NOT EXISTS palisade_lock (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL CHECK (token BETWEEN 0 AND 9007199254740991), -- the last one that was granted here
    session BIGINT,                         -- the exclusive holder of this single lock
    number BIGINT,                          -- its request
    since DATETIME(6),
    delay_ms BIGINT,
    withheld_until DATETIME(6),             -- the holder has expired, and its lock-delay runs until then
    value VARBINARY(4096),
    permits BIGINT,                         -- of a semaphore that is in use
    taken BIGINT NOT NULL DEFAULT 0 CHECK (taken >= 0), -- the permits of holders in palisade_claim
    waiting INT NOT NULL DEFAULT 0 CHECK (waiting >= 0), -- the number of waiters in palisade_claim
    arrivals BIGINT NOT NULL DEFAULT 0,     -- the highest arrival in palisade_claim
    passed BIGINT NOT NULL DEFAULT 0,       -- every waiter has a higher arrival than this
    history BLOB,                           -- the last grants that ended while it was in use, a line each
    used_by BIGINT,                         -- the last value of `session`, kept after a release
    -- Not on `session`: a client that acquires the same lock again then changes no index, which is much cheaper.
    KEY palisade_used_by (used_by),
    KEY palisade_withheld (withheld_until)
) ENGINE = InnoDB $$

-- The claims: a request in the queue of a lock, or among its holders. A request for several locks has a row (a part) for each.
-- Arrivals are counted by lock, but a request has the same arrival at all of its locks, above all earlier ones there. So any two
-- requests are in the same order at every lock that both want.
CREATE TABLE IF NOT EXISTS palisade_claim (
    name VARBINARY(512) NOT NULL,
    waits TINYINT NOT NULL,
    arrival BIGINT NOT NULL,
    session BIGINT NOT NULL,
    number BIGINT NOT NULL,                 -- negative for a request without a number
    part INT NOT NULL,
    parts INT NOT NULL,
    need BIGINT NOT NULL CHECK (need > 0),
    token BIGINT,
    since DATETIME(6) NOT NULL,
    delay_ms BIGINT,
    withheld_until DATETIME(6),
    value VARBINARY(4096),
    PRIMARY KEY (name, waits, arrival),
    KEY palisade_request (session, number, part),
    KEY palisade_withheld (withheld_until)
) ENGINE = InnoDB $$

-- Notices for sessions, each kept until the client has read it, or the session has ended.
CREATE TABLE IF NOT EXISTS palisade_notice (
    id BIGINT NOT NULL PRIMARY KEY,
    session BIGINT NOT NULL,
    said BLOB NOT NULL,
    KEY palisade_session (session)
) ENGINE = InnoDB $$

-- The events, kept while a client watches: a row for each transaction, with a line for each event.
CREATE TABLE IF NOT EXISTS palisade_event (
    id BIGINT NOT NULL PRIMARY KEY,
    at DATETIME(6) NOT NULL,
    said MEDIUMBLOB NOT NULL,
    KEY palisade_at (at)
) ENGINE = InnoDB $$

-- The time until which a client watches. A client acquires by a plain UPDATE (the fast path) only while no client watches, and
-- has a shared lock on this row until its commit. So a watch begins only after such transactions have ended.
CREATE TABLE IF NOT EXISTS palisade_watched (only_one TINYINT NOT NULL PRIMARY KEY, until DATETIME(6) NOT NULL) ENGINE = InnoDB $$
INSERT INTO palisade_watched VALUES (1, '2000-01-01') ON DUPLICATE KEY UPDATE only_one = only_one $$

-- Procedures: always replaced by the newest ------------------------------------------------------------------------------
-- Procedures that begin a transaction are called by clients; the others are called by them. Conventions:
-- - A read that must not lock rows is a separate SELECT: a subquery in SET, IF or DECLARE would lock them.
-- - The order of row locks: sessions, then locks by name, then the row of palisade_state. A row out of this order is skipped if
--   another transaction has it locked.
-- - ROW_COUNT() is checked after each statement that must change one row.
-- - `p_log` has the events of the transaction, a line each. `p_budget` is how many more expired waiters, expired holders and
--   grants the transaction may handle. At 0 something is left over, and the caller calls again.
-- - `p_names` is a list of locks whose rows this transaction has locked.

-- Begins a transaction. If the caller has one open, this is an error and changes nothing: a grant must be visible to others at
-- once. `p_began` tells the error handler of the caller that there is a transaction of ours to roll back.
DROP PROCEDURE IF EXISTS palisade_begin $$
CREATE PROCEDURE palisade_begin(OUT p_began TINYINT)
BEGIN
    IF ABS(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))) > 1000000 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this connection has another clock than the server; SET timestamp = DEFAULT first';
    END IF;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    SET p_began = 1;
END $$

-- Commits a transaction, and stores its events if a client watches. The shared lock keeps a new watch from beginning before the
-- commit: such a watcher could have read the locks before this transaction, and would then miss its events. The number of the
-- events is taken last, so that transactions wait for each other at that row as shortly as possible.
DROP PROCEDURE IF EXISTS palisade_finish $$
CREATE PROCEDURE palisade_finish(p_log MEDIUMBLOB)
BEGIN
    DECLARE v_is_watched TINYINT DEFAULT 0;
    IF p_log <> '' THEN
        SELECT w.until > UTC_TIMESTAMP(6) INTO v_is_watched FROM palisade_watched w WHERE w.only_one = 1 LOCK IN SHARE MODE;
        IF v_is_watched THEN
            UPDATE palisade_state s SET s.events = s.events + 1 WHERE s.only_one = 1;
            INSERT INTO palisade_event (id, at, said) SELECT s.events, UTC_TIMESTAMP(6), p_log FROM palisade_state s;
        END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
END $$

-- Fails because a row that must exist is missing. The transaction is rolled back.
DROP PROCEDURE IF EXISTS palisade_broken $$
CREATE PROCEDURE palisade_broken(p_what VARCHAR(64) CHARACTER SET utf8mb4)
BEGIN
    DECLARE v_message VARCHAR(128) CHARACTER SET utf8mb4 DEFAULT CONCAT('the tables palisade_... contradict each other (', p_what, '); CALL palisade_check()');
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_message;
END $$

-- Removes the first name from a list of locks, and returns it.
DROP PROCEDURE IF EXISTS palisade_pop $$
CREATE PROCEDURE palisade_pop(INOUT p_names MEDIUMBLOB, OUT p_name VARBINARY(512))
BEGIN
    DECLARE v_hex VARBINARY(1024) DEFAULT SUBSTRING_INDEX(p_names, ',', 1);
    SET p_name = UNHEX(v_hex), p_names = SUBSTRING(p_names, 2 + LENGTH(v_hex));
END $$

-- Stores a notice for a session.
DROP PROCEDURE IF EXISTS palisade_tell $$
CREATE PROCEDURE palisade_tell(p_session BIGINT, p_payload BLOB)
BEGIN
    UPDATE palisade_state s SET s.notices = s.notices + 1 WHERE s.only_one = 1;
    INSERT INTO palisade_notice (id, session, said)
        SELECT t.notices, s.id, p_payload FROM palisade_session s, palisade_state t WHERE s.id = p_session;
END $$

-- Returns the token after a lock's last token, or NULL when the tokens are used up. No two locks ever have the same token,
-- because a client identifies its grants by token: each lock takes a block of 256 tokens, and counts through it in its row.
-- A new row begins with 0, so its first grant takes a block above all tokens ever issued. A grant of several locks takes the last
-- token of a block, so that each of these locks takes a new block next. Its token is above the last tokens of all of them.
DROP PROCEDURE IF EXISTS palisade_next $$
CREATE PROCEDURE palisade_next(p_last BIGINT, p_locks INT, OUT p_token BIGINT)
BEGIN
    DECLARE v_end BIGINT;
    SET p_token = p_last + 1;
    IF p_locks > 1 OR p_last % 256 = 0 THEN
        SELECT (GREATEST(s.token, p_last) + 255) DIV 256 * 256 + 256 INTO v_end FROM palisade_state s WHERE s.only_one = 1 FOR UPDATE;
        IF v_end IS NULL THEN
            CALL palisade_broken('no count of tokens');
        END IF;
        SET p_token = NULL;
        IF v_end <= 9007199254740991 THEN
            UPDATE palisade_state s SET s.token = v_end WHERE s.only_one = 1;
            SET p_token = IF(p_locks > 1, v_end, v_end - 255);
        END IF;
    END IF;
END $$

-- Returns whether a session has ended. Ends it if its deadline has passed. A session whose row another transaction has locked
-- counts as alive for now: a transaction that has locked the row of a lock must not wait for the row of a session.
DROP PROCEDURE IF EXISTS palisade_expire $$
CREATE PROCEDURE palisade_expire(p_session BIGINT, OUT p_is_dead TINYINT)
BEGIN
    DECLARE v_id BIGINT;
    DECLARE v_is_overdue TINYINT;
    SET p_is_dead = 1;
    SELECT s.ended IS NOT NULL, s.deadline <= UTC_TIMESTAMP(6) INTO p_is_dead, v_is_overdue
        FROM palisade_session s WHERE s.id = p_session;
    IF v_is_overdue AND NOT p_is_dead THEN
        SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session FOR UPDATE SKIP LOCKED;
        IF v_id IS NOT NULL THEN
            UPDATE palisade_session s SET s.ended = 'expired'
                WHERE s.id = p_session AND s.ended IS NULL AND s.deadline <= UTC_TIMESTAMP(6);
            SET p_is_dead = ROW_COUNT() = 1;
        END IF;
    END IF;
END $$

-- Returns whether the session of a call is alive. A shared lock keeps it so until the end of the transaction. Ends the session if
-- its deadline has passed.
DROP PROCEDURE IF EXISTS palisade_lives $$
CREATE PROCEDURE palisade_lives(p_session BIGINT, OUT p_lives TINYINT)
BEGIN
    DECLARE v_is_overdue TINYINT;
    SELECT s.deadline <= UTC_TIMESTAMP(6) INTO v_is_overdue
        FROM palisade_session s WHERE s.id = p_session AND s.ended IS NULL LOCK IN SHARE MODE;
    IF v_is_overdue THEN
        UPDATE palisade_session s SET s.ended = 'expired' WHERE s.id = p_session AND s.ended IS NULL;
    END IF;
    SET p_lives = COALESCE(NOT v_is_overdue, 0);
END $$

-- Fails if a name is invalid. The library refuses the same names.
DROP PROCEDURE IF EXISTS palisade_check_name $$
CREATE PROCEDURE palisade_check_name(p_name VARBINARY(4096))
BEGIN
    DECLARE v_text VARCHAR(4096) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    IF COALESCE(LENGTH(p_name), 0) NOT BETWEEN 1 AND 512 OR LEFT(p_name, 1) = '$' OR NOT (CAST(v_text AS BINARY) <=> p_name)
        OR v_text REGEXP '[\\x{00}-\\x{1F}\\x{7F}-\\x{9F}\\x{061C}\\x{200E}\\x{200F}\\x{2028}-\\x{202E}\\x{2066}-\\x{2069}]' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a lock''s name has 1 to 512 bytes of UTF-8, no control characters, and does not begin with $';
    END IF;
END $$

-- Locks the row of a lock until the end of the transaction. Inserts the row if it is missing.
DROP PROCEDURE IF EXISTS palisade_hold $$
CREATE PROCEDURE palisade_hold(p_name VARBINARY(512))
BEGIN
    DECLARE v_token BIGINT;
    SELECT l.token INTO v_token FROM palisade_lock l WHERE l.name = p_name FOR UPDATE;
    IF v_token IS NULL THEN
        CALL palisade_check_name(p_name);
        INSERT INTO palisade_lock (name, token) VALUES (p_name, 0) ON DUPLICATE KEY UPDATE token = palisade_lock.token;
    END IF;
END $$

-- Locks the rows of these locks, if they exist. The list is sorted by name.
DROP PROCEDURE IF EXISTS palisade_hold_all $$
CREATE PROCEDURE palisade_hold_all(p_names MEDIUMBLOB)
BEGIN
    DECLARE v_name VARBINARY(512);
    DECLARE v_token BIGINT;
    WHILE p_names <> '' DO
        CALL palisade_pop(p_names, v_name);
        SELECT l.token INTO v_token FROM palisade_lock l WHERE l.name = v_name FOR UPDATE;
    END WHILE;
END $$

-- Ends one claim row of a lock, waiting or holding; with `arrival` NULL, the grant in the lock's row. `how` is cancelled, released,
-- closed, expired, `forced BY REASON TOKEN` in hex, or `resized LOCK PERMITS`. It is added to the lock's history if the lock stays in
-- use. A grant with a lock-delay that expires becomes withheld. A withheld grant ends by force, or with `how` NULL when its
-- lock-delay is over. `p_names` are the locks for the event; NULL for no event.
DROP PROCEDURE IF EXISTS palisade_end_place $$
CREATE PROCEDURE palisade_end_place(
    p_name VARBINARY(512), p_waits TINYINT, p_arrival BIGINT, p_how BLOB, p_names MEDIUMBLOB, INOUT p_log MEDIUMBLOB
)
place: BEGIN
    DECLARE v_session, v_number, v_token, v_need, v_delay BIGINT;
    DECLARE v_is_withheld, v_stays_in_use, v_withhold TINYINT;
    DECLARE v_label VARBINARY(512);
    IF p_arrival IS NULL THEN
        SELECT l.session, l.number, l.token, 4294967295, l.delay_ms, l.withheld_until IS NOT NULL, l.waiting > 0
            INTO v_session, v_number, v_token, v_need, v_delay, v_is_withheld, v_stays_in_use
            FROM palisade_lock l WHERE l.name = p_name;
    ELSE
        SELECT c.session, c.number, c.token, c.need, c.delay_ms, c.withheld_until IS NOT NULL, l.waiting > 0 OR l.taken > c.need
            INTO v_session, v_number, v_token, v_need, v_delay, v_is_withheld, v_stays_in_use
            FROM palisade_claim c, palisade_lock l
            WHERE c.name = p_name AND c.waits = p_waits AND c.arrival = p_arrival AND l.name = p_name;
    END IF;
    SET v_withhold = COALESCE(p_how = 'expired' AND v_delay IS NOT NULL AND NOT p_waits, 0);
    IF v_is_withheld AND p_how NOT LIKE 'forced%' THEN
        LEAVE place;
    END IF;
    IF p_waits THEN
        SET p_log = CONCAT(p_log, IF(p_names IS NULL, '', CONCAT_WS(' ', 'left', p_names, v_session, v_number, CONCAT(p_how, '\n'))));
    ELSEIF v_is_withheld THEN
        SET p_log = CONCAT(p_log, IF(p_names IS NULL, '', CONCAT(CONCAT_WS(' ', 'delay-ended', p_names, v_token, p_how), '\n')));
    ELSE
        IF v_stays_in_use OR v_withhold THEN
            SELECT HEX(s.label) INTO v_label FROM palisade_session s WHERE s.id = v_session;
            UPDATE palisade_lock l SET l.history = CONCAT(COALESCE(CONCAT(SUBSTRING_INDEX(l.history, '\n', -7), '\n'), ''),
                CONCAT_WS(',', v_token, v_session, v_need, COALESCE(v_label, ''), p_how)) WHERE l.name = p_name;
        END IF;
        IF p_names IS NOT NULL THEN
            IF p_how LIKE 'forced%' THEN
                -- The client may not have heard of the grant yet, so a notice of the grant comes first.
                CALL palisade_tell(v_session, CONCAT_WS(' ', 'g', v_session, v_number, v_token));
                CALL palisade_tell(v_session, CONCAT_WS(' ', 'l', v_session, v_token, p_how));
            END IF;
            SET p_log = CONCAT(p_log, CONCAT_WS(' ', 'ended', p_names, v_session, v_token, p_how), '\n',
                IF(v_withhold, CONCAT(CONCAT_WS(' ', 'withheld', p_names, v_token, v_delay), '\n'), ''));
        END IF;
    END IF;
    IF p_arrival IS NULL THEN
        UPDATE palisade_lock l SET l.session = IF(v_withhold, l.session, NULL), l.number = NULL, l.value = NULL,
            l.withheld_until = IF(v_withhold, UTC_TIMESTAMP(6) + INTERVAL (v_delay * 1000) MICROSECOND, NULL),
            l.since = IF(v_withhold, l.since, NULL), l.delay_ms = IF(v_withhold, v_delay, NULL)
            WHERE l.name = p_name AND l.session = v_session;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no grant to end');
        END IF;
    ELSEIF v_withhold THEN
        UPDATE palisade_claim c SET c.withheld_until = UTC_TIMESTAMP(6) + INTERVAL (v_delay * 1000) MICROSECOND, c.value = NULL
            WHERE c.name = p_name AND c.waits = 0 AND c.arrival = p_arrival;
    ELSE
        DELETE FROM palisade_claim WHERE name = p_name AND waits = p_waits AND arrival = p_arrival;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no claim to end');
        END IF;
        UPDATE palisade_lock l SET l.taken = l.taken - IF(p_waits, 0, v_need), l.waiting = l.waiting - p_waits,
            l.passed = IF(p_waits AND p_arrival = l.passed + 1, p_arrival, l.passed) WHERE l.name = p_name;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('a claim without a lock');
        END IF;
    END IF;
END $$

-- Ends, or withholds for their lock-delay, the grants of ended sessions at a lock. Ends lock-delays that are over.
DROP PROCEDURE IF EXISTS palisade_reap $$
CREATE PROCEDURE palisade_reap(p_name VARBINARY(512), INOUT p_budget INT, INOUT p_log MEDIUMBLOB)
BEGIN
    DECLARE v_session, v_arrival BIGINT;
    DECLARE v_is_withheld, v_is_over, v_ends, v_is_taken TINYINT;
    SELECT l.session, l.withheld_until IS NOT NULL, l.withheld_until <= UTC_TIMESTAMP(6), l.taken > 0
        INTO v_session, v_is_withheld, v_is_over, v_is_taken FROM palisade_lock l WHERE l.name = p_name;
    WHILE v_session IS NOT NULL OR v_is_taken DO
        IF v_session IS NOT NULL THEN
            SET v_ends = v_is_over;
            IF NOT v_is_withheld THEN
                CALL palisade_expire(v_session, v_ends);
            END IF;
            IF v_ends THEN
                CALL palisade_end_place(p_name, 0, v_arrival, IF(v_is_withheld, NULL, 'expired'), HEX(p_name), p_log);
                SET p_budget = p_budget - 1;
            END IF;
        END IF;
        SET v_session = NULL;
        IF v_is_taken AND p_budget > 0 THEN
            SELECT c.arrival, c.session, c.withheld_until IS NOT NULL, c.withheld_until <= UTC_TIMESTAMP(6)
                INTO v_arrival, v_session, v_is_withheld, v_is_over FROM palisade_claim c
                WHERE c.name = p_name AND c.waits = 0 AND c.arrival > COALESCE(v_arrival, 0) ORDER BY c.arrival LIMIT 1;
        END IF;
        SET v_is_taken = v_session IS NOT NULL;
    END WHILE;
END $$

-- Returns the arrival of the first waiter whose session lives, and removes the waiters before it. Returns NULL if the queue
-- has no such waiter, or if the budget is used up first.
DROP PROCEDURE IF EXISTS palisade_front $$
CREATE PROCEDURE palisade_front(p_name VARBINARY(512), INOUT p_budget INT, INOUT p_log MEDIUMBLOB, OUT p_arrival BIGINT)
BEGIN
    DECLARE v_session, v_number, v_passed BIGINT;
    DECLARE v_gone INT DEFAULT 0;
    DECLARE v_is_dead TINYINT DEFAULT 1;
    SELECT l.passed INTO v_passed FROM palisade_lock l WHERE l.name = p_name;
    WHILE v_is_dead AND p_budget > 0 DO
        SET p_arrival = NULL, v_is_dead = 0;
        -- InnoDB scans over deleted rows until they are purged. So each search begins after the last deleted row.
        SELECT c.arrival, c.session, c.number INTO p_arrival, v_session, v_number FROM palisade_claim c
            WHERE c.name = p_name AND c.waits = 1 AND c.arrival > v_passed ORDER BY c.arrival LIMIT 1;
        IF p_arrival IS NOT NULL THEN
            CALL palisade_expire(v_session, v_is_dead);
        END IF;
        IF v_is_dead THEN
            DELETE FROM palisade_claim WHERE name = p_name AND waits = 1 AND arrival = p_arrival;
            SET v_gone = v_gone + 1, v_passed = p_arrival, p_budget = p_budget - 1, p_arrival = NULL,
                p_log = CONCAT(p_log, CONCAT_WS(' ', 'left', HEX(p_name), v_session, v_number, 'expired'), '\n');
        END IF;
    END WHILE;
    IF v_gone > 0 THEN
        UPDATE palisade_lock l SET l.waiting = l.waiting - v_gone, l.passed = v_passed WHERE l.name = p_name;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('a queue without a lock');
        END IF;
    END IF;
END $$

-- Returns the locks of a request, sorted by name or, with `by_part`, in the order of the request.
DROP PROCEDURE IF EXISTS palisade_names $$
CREATE PROCEDURE palisade_names(p_session BIGINT, p_number BIGINT, p_by_part TINYINT, OUT p_names MEDIUMBLOB)
BEGIN
    DECLARE v_name VARBINARY(512) DEFAULT '';
    DECLARE v_part INT DEFAULT 0;
    SET p_names = NULL;
    WHILE v_name IS NOT NULL DO
        IF p_by_part THEN
            SET v_name = NULL;
            SELECT c.name, c.part INTO v_name, v_part FROM palisade_claim c
                WHERE c.session = p_session AND c.number = p_number AND c.part > v_part ORDER BY c.part LIMIT 1;
        ELSE
            SELECT (SELECT MIN(c.name) FROM palisade_claim c
                WHERE c.session = p_session AND c.number = p_number AND c.name > v_name) INTO v_name;
        END IF;
        SET p_names = CONCAT_WS(',', p_names, HEX(v_name));
    END WHILE;
END $$

-- Grants a waiting request for several locks, or for a part of the permits of one, if it is at the front of all its queues and
-- enough permits are free everywhere; otherwise the token is NULL. Rows that another transaction has locked are skipped, since
-- waiting for them could deadlock. The waiter's next poll tries again.
DROP PROCEDURE IF EXISTS palisade_grant_claim $$
CREATE PROCEDURE palisade_grant_claim(
    p_session BIGINT, p_number BIGINT, INOUT p_budget INT, INOUT p_log MEDIUMBLOB, OUT p_token BIGINT
)
BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_front, v_found, v_need BIGINT;
    DECLARE v_locks INT DEFAULT 0;
    DECLARE v_is_ready TINYINT DEFAULT 1;
    SET p_token = NULL;
    CALL palisade_names(p_session, p_number, 0, v_names);
    SET v_rest = v_names;
    WHILE v_rest <> '' AND v_is_ready DO
        CALL palisade_pop(v_rest, v_name);
        SET v_found = NULL, v_is_ready = 0, v_locks = v_locks + 1;
        SELECT l.token INTO v_found FROM palisade_lock l WHERE l.name = v_name FOR UPDATE SKIP LOCKED;
        IF v_found IS NOT NULL THEN
            CALL palisade_reap(v_name, p_budget, p_log);
            CALL palisade_front(v_name, p_budget, p_log, v_front);
            SELECT c.session = p_session AND c.number = p_number AND l.session IS NULL
                    AND l.taken + c.need <= COALESCE(l.permits, 4294967295) INTO v_is_ready FROM palisade_lock l, palisade_claim c
                WHERE l.name = v_name AND c.name = v_name AND c.waits = 1 AND c.arrival = v_front;
        END IF;
    END WHILE;
    IF v_is_ready THEN
        CALL palisade_next(v_found, v_locks, p_token);
    END IF;
    WHILE v_names <> '' AND p_token IS NOT NULL DO
        CALL palisade_pop(v_names, v_name);
        SELECT c.arrival, c.need INTO v_front, v_need FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number AND c.name = v_name;
        UPDATE palisade_claim c SET c.waits = 0, c.token = p_token, c.since = UTC_TIMESTAMP(6)
            WHERE c.name = v_name AND c.waits = 1 AND c.arrival = v_front;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no wait to grant');
        END IF;
        UPDATE palisade_lock l SET l.token = p_token, l.taken = l.taken + v_need, l.waiting = l.waiting - 1, l.passed = v_front
            WHERE l.name = v_name AND l.token < p_token;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no lock to grant');
        END IF;
    END WHILE;
END $$

-- Passes a lock from the session `p_from` (NULL if the lock is free) to the waiter with this arrival, which wants this lock alone,
-- exclusively. Adds `p_line` to the lock's history.
DROP PROCEDURE IF EXISTS palisade_hand_over $$
CREATE PROCEDURE palisade_hand_over(
    p_name VARBINARY(512), p_from BIGINT, p_last BIGINT, p_line BLOB, p_arrival BIGINT, INOUT p_log MEDIUMBLOB, OUT p_token BIGINT
)
BEGIN
    DECLARE v_session, v_number, v_delay BIGINT;
    DECLARE v_value VARBINARY(4096);
    CALL palisade_next(p_last, 1, p_token);
    IF p_token IS NOT NULL THEN
        SELECT c.session, c.number, c.delay_ms, c.value INTO v_session, v_number, v_delay, v_value FROM palisade_claim c
            WHERE c.name = p_name AND c.waits = 1 AND c.arrival = p_arrival;
        DELETE FROM palisade_claim WHERE name = p_name AND waits = 1 AND arrival = p_arrival;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no wait to grant');
        END IF;
        UPDATE palisade_lock l SET l.token = p_token, l.session = v_session, l.used_by = v_session, l.number = v_number,
            l.since = UTC_TIMESTAMP(6), l.delay_ms = v_delay, l.value = v_value, l.waiting = l.waiting - 1, l.passed = p_arrival,
            l.history = IF(p_line IS NULL, l.history, CONCAT(COALESCE(CONCAT(SUBSTRING_INDEX(l.history, '\n', -7), '\n'), ''), p_line))
            WHERE l.name = p_name AND l.session <=> p_from AND l.taken = 0 AND l.token < p_token;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no lock to grant');
        END IF;
        SET p_log = CONCAT(p_log, CONCAT_WS(' ', 'granted', HEX(p_name), v_session, p_token, v_number, 1), '\n',
            IF(v_value IS NULL, '', CONCAT(CONCAT_WS(' ', 'published', HEX(p_name), p_token, HEX(v_value)), '\n')));
    END IF;
END $$

-- Grants these locks to waiters, from the front of each queue, until no further waiter can be granted.
DROP PROCEDURE IF EXISTS palisade_settle $$
CREATE PROCEDURE palisade_settle(p_names MEDIUMBLOB, INOUT p_budget INT, INOUT p_log MEDIUMBLOB)
BEGIN
    DECLARE v_rest MEDIUMBLOB DEFAULT p_names;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_arrival, v_above, v_token, v_session, v_number, v_need BIGINT;
    DECLARE v_parts INT;
    DECLARE v_has_more TINYINT;
    WHILE v_rest <> '' DO
        CALL palisade_pop(v_rest, v_name);
        SET v_has_more = 1;
        WHILE v_has_more DO
            SET v_arrival = NULL, v_token = NULL, v_above = NULL;
            SELECT (SELECT l.waiting > 0 AND l.session IS NULL FROM palisade_lock l WHERE l.name = v_name) INTO v_has_more;
            IF v_has_more THEN
                CALL palisade_front(v_name, p_budget, p_log, v_arrival);
                SELECT c.session, c.number, c.parts, c.need, l.token INTO v_session, v_number, v_parts, v_need, v_above
                    FROM palisade_claim c, palisade_lock l WHERE c.name = v_name AND c.waits = 1 AND c.arrival = v_arrival
                        AND l.name = v_name AND l.taken + c.need <= COALESCE(l.permits, 4294967295);
            END IF;
            IF v_above IS NOT NULL AND v_parts = 1 AND v_need = 4294967295 THEN
                CALL palisade_hand_over(v_name, NULL, v_above, NULL, v_arrival, p_log, v_token);
            ELSEIF v_above IS NOT NULL THEN
                CALL palisade_grant_claim(v_session, v_number, p_budget, p_log, v_token);
                IF v_token IS NOT NULL THEN
                    CALL palisade_names(v_session, v_number, 1, v_names);
                    SET v_rest = IF(v_parts = 1, v_rest, CONCAT_WS(',', NULLIF(v_rest, ''), v_names)),
                        p_log = CONCAT(p_log, CONCAT_WS(' ', 'granted', v_names, v_session, v_token, v_number, 1), '\n');
                END IF;
            END IF;
            SET v_has_more = v_token IS NOT NULL, p_budget = p_budget - v_has_more;
        END WHILE;
        -- Of a lock without holders and waiters, only the token is kept.
        UPDATE palisade_lock l SET l.permits = NULL, l.history = NULL WHERE l.name = v_name AND l.session IS NULL
            AND l.taken = 0 AND l.waiting = 0 AND (l.permits IS NOT NULL OR l.history IS NOT NULL);
    END WHILE;
END $$

-- Ends expired holders and lock-delays at these locks, and grants the locks to waiters.
DROP PROCEDURE IF EXISTS palisade_tend $$
CREATE PROCEDURE palisade_tend(p_names MEDIUMBLOB, INOUT p_budget INT, INOUT p_log MEDIUMBLOB)
BEGIN
    DECLARE v_rest MEDIUMBLOB DEFAULT p_names;
    DECLARE v_name VARBINARY(512);
    WHILE v_rest <> '' DO
        CALL palisade_pop(v_rest, v_name);
        CALL palisade_reap(v_name, p_budget, p_log);
    END WHILE;
    CALL palisade_settle(p_names, p_budget, p_log);
END $$

-- Ends all parts of a request, waiting or holding. The rows of all its locks are locked here.
DROP PROCEDURE IF EXISTS palisade_end_claim $$
CREATE PROCEDURE palisade_end_claim(p_session BIGINT, p_number BIGINT, p_how BLOB, INOUT p_log MEDIUMBLOB)
BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_arrival BIGINT;
    DECLARE v_waits TINYINT;
    CALL palisade_names(p_session, p_number, 1, v_names);
    SET v_rest = v_names;
    WHILE v_rest <> '' DO
        CALL palisade_pop(v_rest, v_name);
        SELECT c.arrival, c.waits INTO v_arrival, v_waits FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number AND c.name = v_name;
        CALL palisade_end_place(v_name, v_waits, v_arrival, p_how, IF(v_rest = '', v_names, NULL), p_log);
    END WHILE;
END $$

-- Ends the claims of a session that has ended, as far as the budget allows. Deletes the session with its last claim. The row of
-- the session is locked here.
DROP PROCEDURE IF EXISTS palisade_end_session $$
CREATE PROCEDURE palisade_end_session(p_session BIGINT, INOUT p_budget INT, INOUT p_log MEDIUMBLOB)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_last, v_how VARBINARY(512) DEFAULT '';
    DECLARE v_number BIGINT DEFAULT -9223372036854775808;
    DECLARE v_parts, v_done INT DEFAULT 0;
    DECLARE v_is_left TINYINT;
    SELECT s.ended INTO v_how FROM palisade_session s WHERE s.id = p_session;
    -- The locks of the first 64 claims, sorted by name.
    WHILE v_last IS NOT NULL DO
        SELECT (SELECT MIN(x.name) FROM (
            (SELECT l.name FROM palisade_lock l WHERE l.used_by = p_session AND l.session = p_session
                AND l.withheld_until IS NULL ORDER BY l.name LIMIT 64)
            UNION ALL (SELECT c.name FROM palisade_claim c WHERE c.session = p_session AND c.withheld_until IS NULL
                ORDER BY c.number, c.part LIMIT 64)) x WHERE x.name > v_last) INTO v_last;
        SET v_names = CONCAT_WS(',', v_names, HEX(v_last));
    END WHILE;
    CALL palisade_hold_all(v_names);
    WHILE v_number IS NOT NULL DO
        SELECT (SELECT MIN(c.number) FROM palisade_claim c
            WHERE c.session = p_session AND c.withheld_until IS NULL AND c.number > v_number) INTO v_number;
        SELECT COUNT(*) INTO v_parts FROM palisade_claim c WHERE c.session = p_session AND c.number = v_number;
        SET v_done = v_done + v_parts, v_number = IF(v_done > 64, NULL, v_number);
        IF v_number IS NOT NULL THEN
            CALL palisade_end_claim(p_session, v_number, v_how, p_log);
        END IF;
    END WHILE;
    SET v_last = '', v_done = 0;
    WHILE v_last IS NOT NULL AND v_done < 64 DO
        SELECT (SELECT l.name FROM palisade_lock l WHERE l.used_by = p_session AND l.session = p_session
            AND l.withheld_until IS NULL AND l.name > v_last ORDER BY l.name LIMIT 1) INTO v_last;
        IF v_last IS NOT NULL THEN
            CALL palisade_end_place(v_last, 0, NULL, v_how, HEX(v_last), p_log);
            SET v_done = v_done + 1;
        END IF;
    END WHILE;
    CALL palisade_settle(v_names, p_budget, p_log);
    SELECT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = p_session AND c.withheld_until IS NULL)
        OR EXISTS (SELECT 1 FROM palisade_lock l WHERE l.used_by = p_session AND l.session = p_session AND l.withheld_until IS NULL)
        INTO v_is_left;
    IF v_is_left THEN
        SET p_budget = 0;
    ELSE
        DELETE FROM palisade_notice WHERE session = p_session;
        DELETE FROM palisade_session WHERE id = p_session;
    END IF;
END $$

-- Deletes unused rows of locks, if there are at least `p_keep` rows. Each call examines the next 256 rows by name, since most may
-- be in use. It is a separate transaction: one that grants could delete the row that it has just inserted.
DROP PROCEDURE IF EXISTS palisade_clean $$
CREATE PROCEDURE palisade_clean(p_keep INT, OUT p_removed INT)
BEGIN
    DECLARE v_swept, v_name, v_to VARBINARY(512);
    DECLARE v_is_many TINYINT;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    SET p_removed = 0;
    CALL palisade_begin(v_began);
    SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM palisade_lock l LIMIT p_keep) x) = p_keep INTO v_is_many;
    IF v_is_many THEN
        -- If another client is doing this, skip it.
        SELECT s.swept INTO v_swept FROM palisade_state s WHERE s.only_one = 1 FOR UPDATE SKIP LOCKED;
        IF v_swept IS NOT NULL THEN
            SELECT MAX(x.name) INTO v_to FROM (SELECT l.name FROM palisade_lock l WHERE l.name > v_swept ORDER BY l.name LIMIT 256) x;
            REPEAT
                SET v_name = NULL;
                SELECT l.name INTO v_name FROM palisade_lock l
                    WHERE l.name > v_swept AND l.name <= v_to AND l.session IS NULL AND l.taken = 0 AND l.waiting = 0
                    ORDER BY l.name LIMIT 1 FOR UPDATE SKIP LOCKED;
                IF v_name IS NOT NULL THEN
                    SET v_swept = v_name, p_removed = p_removed + 1;
                    DELETE FROM palisade_lock WHERE name = v_name;
                END IF;
            UNTIL v_name IS NULL OR p_removed >= 100 END REPEAT;
            -- After the last name, continue with the first.
            UPDATE palisade_state s SET s.swept = IF(v_name IS NULL, COALESCE(v_to, ''), v_swept) WHERE s.only_one = 1;
        END IF;
    END IF;
    CALL palisade_finish('');
END $$

-- Ends expired sessions; if there are none, lock-delays at locks without waiters, in one transaction. Then deletes unused rows, in
-- another one. `did` is whether there was anything to do.
DROP PROCEDURE IF EXISTS palisade_tidy $$
CREATE PROCEDURE palisade_tidy(p_keep INT, OUT p_did TINYINT)
BEGIN
    DECLARE v_session BIGINT;
    DECLARE v_name VARBINARY(512);
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_removed INT;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_is_left TINYINT DEFAULT 0;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    -- A session's row comes before its locks' rows here and after them in a release, so two calls can deadlock. MySQL has
    -- rolled the sweep back: nothing is lost, and the next call goes on.
    DECLARE EXIT HANDLER FOR 1213 BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; SET p_did = 1; END;
    SET p_did = 0;
    CALL palisade_begin(v_began);
    -- Most ended sessions have no claims, so one transaction ends many. It stops after the first session that had claims.
    REPEAT
        SET v_session = NULL;
        SELECT s.id INTO v_session FROM palisade_session s WHERE s.ended IS NOT NULL LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF v_session IS NULL THEN
            SELECT s.id INTO v_session FROM palisade_session s WHERE s.ended IS NULL AND s.deadline <= UTC_TIMESTAMP(6)
                ORDER BY s.deadline LIMIT 1 FOR UPDATE SKIP LOCKED;
            UPDATE palisade_session s SET s.ended = 'expired' WHERE s.id = v_session;
        END IF;
        IF v_session IS NOT NULL THEN
            SELECT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = v_session AND c.withheld_until IS NULL)
                OR EXISTS (SELECT 1 FROM palisade_lock l WHERE l.used_by = v_session AND l.session = v_session
                    AND l.withheld_until IS NULL) INTO v_is_left;
            CALL palisade_end_session(v_session, v_budget, v_log);
            SET p_did = 1, v_budget = v_budget - 1;
        END IF;
    UNTIL v_session IS NULL OR v_is_left OR v_budget <= 0 END REPEAT;
    IF NOT p_did THEN
        SELECT COALESCE((SELECT l.name FROM palisade_lock l WHERE l.withheld_until <= UTC_TIMESTAMP(6) LIMIT 1),
            (SELECT c.name FROM palisade_claim c WHERE c.withheld_until <= UTC_TIMESTAMP(6) LIMIT 1)) INTO v_name;
        IF v_name IS NOT NULL THEN
            CALL palisade_hold_all(HEX(v_name));
            CALL palisade_tend(HEX(v_name), v_budget, v_log);
            SET p_did = v_budget < 100;
        END IF;
        DELETE FROM palisade_event WHERE at < UTC_TIMESTAMP(6) - INTERVAL 30 SECOND LIMIT 1000;
    END IF;
    CALL palisade_finish(v_log);
    CALL palisade_clean(p_keep, v_removed);
    SET p_did = p_did OR v_removed >= 100;
END $$

-- Clients of every kind --------------------------------------------------------------------------------------------------
-- Each procedure returns one row, unless its comment says otherwise. `events` are the events of the call. A refusal is a
-- palisade_core::Refusal as JSON. The `+ 0` keeps MariaDB from writing a variable as text there.

-- One step of the regular cleaning. `did` is whether there was anything to do; then call it again. Unused rows of locks are
-- deleted while there are more than `keep` rows.
DROP PROCEDURE IF EXISTS palisade_sweep $$
CREATE PROCEDURE palisade_sweep(keep INT)
BEGIN
    DECLARE v_did TINYINT;
    CALL palisade_tidy(keep, v_did);
    SELECT v_did AS did;
END $$

-- Opens a session.
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
        -- A random number, so that no session gets the number of another one, even in a restored database.
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
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_enter(p_ttl_ms, p_label, 0, v_session, v_refusal);
    CALL palisade_finish('');
    SELECT v_session AS session, v_refusal AS refusal;
END $$

-- Renews a session. `kept` is the number of its keep-alives; NULL if the session has ended.
DROP PROCEDURE IF EXISTS palisade_prolong $$
CREATE PROCEDURE palisade_prolong(p_session BIGINT, OUT p_kept BIGINT)
BEGIN
    DECLARE v_lives TINYINT;
    SET p_kept = NULL;
    -- UTC_TIMESTAMP is the time at which the statement began. So wait for the row lock here, and read the clock in the next one.
    SELECT s.kept + 1 INTO p_kept FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    CALL palisade_lives(p_session, v_lives);
    IF v_lives THEN
        UPDATE palisade_session s SET s.deadline = UTC_TIMESTAMP(6) + INTERVAL (s.ttl_ms * 1000) MICROSECOND, s.kept = p_kept
            WHERE s.id = p_session;
    ELSE
        SET p_kept = NULL;
    END IF;
END $$

DROP PROCEDURE IF EXISTS palisade_keep_alive $$
CREATE PROCEDURE palisade_keep_alive(p_session BIGINT)
BEGIN
    DECLARE v_kept BIGINT;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_prolong(p_session, v_kept);
    CALL palisade_finish('');
    SELECT v_kept AS kept;
END $$

-- Closes a session. Closing a session that has ended is not an error. If `more` is 1, call it again.
DROP PROCEDURE IF EXISTS palisade_close $$
CREATE PROCEDURE palisade_close(p_session BIGINT)
BEGIN
    DECLARE v_id BIGINT;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    IF v_id IS NOT NULL THEN
        UPDATE palisade_session s SET s.ended = 'closed' WHERE s.id = p_session AND s.ended IS NULL;
        CALL palisade_end_session(p_session, v_budget, v_log);
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_id IS NOT NULL AS closed, v_log AS events, v_budget <= 0 AS more;
END $$

-- Parses one part of a request, NAME:NEED:PERMITS. The name is in hex. PERMITS is empty unless the lock is a semaphore.
DROP PROCEDURE IF EXISTS palisade_want $$
CREATE PROCEDURE palisade_want(p_wants MEDIUMBLOB, p_part INT, OUT p_name VARBINARY(512), OUT p_need BIGINT, OUT p_permits BIGINT)
BEGIN
    DECLARE v_want BLOB DEFAULT SUBSTRING_INDEX(SUBSTRING_INDEX(p_wants, ',', p_part), ',', -1);
    SET p_name = UNHEX(SUBSTRING_INDEX(v_want, ':', 1)),
        p_need = CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(v_want, ':', 2), ':', -1) AS SIGNED),
        p_permits = CAST(NULLIF(SUBSTRING_INDEX(v_want, ':', -1), '') AS SIGNED);
END $$

-- Returns a refusal if a request is invalid whatever the state of the locks; otherwise NULL. Fails for a request that no version of
-- the library sends.
DROP PROCEDURE IF EXISTS palisade_fault $$
CREATE PROCEDURE palisade_fault(p_wants MEDIUMBLOB, p_parts INT, p_order BLOB, p_delay_ms BIGINT, p_value MEDIUMBLOB, OUT p_refusal BLOB)
BEGIN
    DECLARE v_name VARBINARY(512);
    DECLARE v_last VARBINARY(512) DEFAULT '';
    DECLARE v_need, v_permits BIGINT;
    DECLARE v_seen MEDIUMBLOB DEFAULT '';
    DECLARE i INT DEFAULT 0;
    SET p_refusal = NULL;
    IF p_wants = '' THEN
        SET p_refusal = '"NoLocks"';
    ELSEIF CONVERT(p_wants USING utf8mb4) NOT REGEXP '^([0-9A-F]+:[0-9]+:[0-9]*,)*[0-9A-F]+:[0-9]+:[0-9]*$' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a request is NAME:NEED:PERMITS for each lock, the name in hex, with commas in between';
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
        ELSEIF v_permits IS NULL AND NOT COALESCE(v_need IN (1, 4294967295), 0) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a request needs 4294967295 of a lock for all of it, 1 to share it, or permits';
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
    SET i = IF(p_refusal IS NULL, 0, p_parts);
    WHILE i < p_parts DO
        SET i = i + 1;
        CALL palisade_want(p_wants, CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(p_order, ',', i), ',', -1) AS SIGNED), v_name, v_need, v_permits);
        IF NOT COALESCE(v_name > v_last, 0) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the order of a request is that of the names of its locks';
        END IF;
        SET v_last = v_name;
    END WHILE;
END $$

-- Returns a refusal if the current use of one lock does not allow the request; otherwise NULL.
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

-- Returns the outcome for a repeated request that waits or holds already; NULL if there is no such request.
DROP PROCEDURE IF EXISTS palisade_standing $$
CREATE PROCEDURE palisade_standing(
    p_session BIGINT, p_number BIGINT, p_wants MEDIUMBLOB, p_parts INT,
    OUT p_outcome VARBINARY(16), OUT p_token BIGINT, OUT p_detail BLOB
)
BEGIN
    DECLARE v_name, v_held VARBINARY(512);
    DECLARE v_need, v_permits BIGINT;
    DECLARE v_parts INT;
    DECLARE i INT DEFAULT 0;
    DECLARE v_waits, v_is_same TINYINT;
    SET p_outcome = NULL, p_token = NULL, p_detail = NULL;
    SELECT l.name, l.token INTO v_held, p_token FROM palisade_lock l
        WHERE l.used_by = p_session AND l.session = p_session AND l.number = p_number LIMIT 1;
    IF v_held IS NOT NULL THEN
        CALL palisade_want(p_wants, 1, v_name, v_need, v_permits);
        SET p_outcome = IF(p_parts = 1 AND v_name = v_held AND v_need = 4294967295, 'granted', 'refused');
    ELSE
        SELECT c.parts, c.waits, c.token INTO v_parts, v_waits, p_token FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number LIMIT 1;
        IF v_parts IS NOT NULL THEN
            SET p_outcome = CASE WHEN v_parts <> p_parts THEN 'refused' WHEN v_waits THEN 'queued' ELSE 'granted' END;
            WHILE i < p_parts DO
                SET i = i + 1;
                CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
                SELECT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = p_session AND c.number = p_number
                    AND c.part = i AND c.name = v_name AND c.need = v_need) INTO v_is_same;
                SET p_outcome = IF(v_is_same, p_outcome, 'refused');
            END WHILE;
        END IF;
    END IF;
    IF p_outcome = 'refused' THEN
        SET p_token = NULL, p_detail = JSON_OBJECT('NumberReused', JSON_OBJECT('number', p_number + 0));
    END IF;
END $$

-- Requests one lock or several, within a transaction. A lock is a semaphore: an exclusive holder needs 4294967295 permits, a shared
-- one needs 1, both with PERMITS empty. `order` lists the parts sorted by name. The outcome is granted, queued, busy, refused (with
-- the refusal as detail), outdated (a newer connection has attached the session), or again (the budget is used up: call again).
DROP PROCEDURE IF EXISTS palisade_ask $$
CREATE PROCEDURE palisade_ask(
    p_session BIGINT, p_epoch INT, p_number BIGINT, p_wants MEDIUMBLOB, p_order BLOB, p_waits TINYINT, p_may_queue TINYINT,
    p_delay_ms BIGINT, p_value MEDIUMBLOB, INOUT p_log MEDIUMBLOB, OUT p_outcome VARBINARY(16), OUT p_token BIGINT, OUT p_detail BLOB
)
ask: BEGIN
    DECLARE v_epoch INT;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_forgotten, v_need, v_permits, v_last, v_arrival, v_arrivals BIGINT DEFAULT 0;
    DECLARE v_name VARBINARY(512);
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_lives, v_withdrawn, v_fits TINYINT;
    DECLARE v_is_free TINYINT DEFAULT 1;
    DECLARE v_parts INT DEFAULT IF(p_wants = '', 0, 1 + LENGTH(p_wants) - LENGTH(REPLACE(p_wants, ',', '')));
    DECLARE i INT DEFAULT 0;
    SET p_outcome = 'refused', p_token = NULL, p_detail = NULL;
    CALL palisade_lives(p_session, v_lives);
    IF NOT v_lives THEN
        SET p_detail = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
        LEAVE ask;
    END IF;
    SELECT s.epoch, s.forgotten, FIND_IN_SET(p_number, s.withdrawn) > 0 INTO v_epoch, v_forgotten, v_withdrawn
        FROM palisade_session s WHERE s.id = p_session;
    IF p_epoch < v_epoch THEN
        SET p_outcome = 'outdated';
        LEAVE ask;
    ELSEIF v_withdrawn THEN
        SET p_detail = JSON_OBJECT('Withdrawn', JSON_OBJECT('number', p_number + 0));
        LEAVE ask;
    ELSEIF p_number > 0 AND p_number <= v_forgotten THEN
        CALL palisade_standing(p_session, p_number, p_wants, v_parts, p_outcome, p_token, p_detail);
        IF p_outcome IS NULL THEN
            SET p_outcome = 'refused', p_detail = JSON_OBJECT('NumberForgotten', JSON_OBJECT('number', p_number + 0));
        END IF;
        LEAVE ask;
    END IF;
    CALL palisade_fault(p_wants, v_parts, p_order, p_delay_ms, p_value, p_detail);
    IF p_detail IS NOT NULL THEN
        LEAVE ask;
    END IF;
    -- Lock all rows first: a transaction that has locked palisade_state must not wait for other rows.
    WHILE i < v_parts DO
        SET i = i + 1;
        CALL palisade_want(p_wants, CAST(SUBSTRING_INDEX(SUBSTRING_INDEX(p_order, ',', i), ',', -1) AS SIGNED),
            v_name, v_need, v_permits);
        CALL palisade_hold(v_name);
        SET v_names = CONCAT_WS(',', v_names, HEX(v_name));
    END WHILE;
    CALL palisade_tend(v_names, v_budget, p_log);
    CALL palisade_standing(p_session, p_number, p_wants, v_parts, p_outcome, p_token, p_detail);
    IF p_outcome IS NOT NULL THEN
        LEAVE ask;
    ELSEIF v_budget <= 0 THEN
        SET p_outcome = 'again';
        LEAVE ask;
    END IF;
    SET p_outcome = 'refused', i = 0, v_names = NULL;
    WHILE i < v_parts DO
        SET i = i + 1;
        CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
        SET v_names = CONCAT_WS(',', v_names, HEX(v_name));
        CALL palisade_conflict(v_name, p_session, v_permits, p_waits, p_may_queue, p_detail);
        IF p_detail IS NOT NULL THEN
            LEAVE ask;
        END IF;
        -- All expired claims have been ended above, so each waiter here is alive and comes before this request.
        SET v_fits = NULL;
        SELECT l.token, l.arrivals, l.session IS NULL AND l.waiting = 0 AND l.taken + v_need <= COALESCE(v_permits, 4294967295)
            INTO v_last, v_arrivals, v_fits FROM palisade_lock l WHERE l.name = v_name;
        IF v_fits IS NULL THEN
            CALL palisade_broken('no lock to ask for');
        END IF;
        SET v_is_free = v_is_free AND v_fits, v_arrival = GREATEST(v_arrival, v_arrivals + 1);
    END WHILE;
    IF v_is_free THEN
        CALL palisade_next(v_last, v_parts, p_token);
        IF p_token IS NULL THEN
            SET p_detail = '{"TokensExhausted":{"max":9007199254740991}}';
            LEAVE ask;
        END IF;
    ELSEIF NOT p_waits THEN
        SET p_outcome = 'busy';
        LEAVE ask;
    END IF;
    IF v_is_free AND v_parts = 1 AND v_need = 4294967295 THEN
        UPDATE palisade_lock l SET l.token = p_token, l.session = p_session, l.used_by = p_session, l.number = p_number,
            l.since = UTC_TIMESTAMP(6), l.delay_ms = p_delay_ms, l.value = p_value
            WHERE l.name = v_name AND l.session IS NULL AND l.taken = 0 AND l.token < p_token;
        IF ROW_COUNT() <> 1 THEN
            CALL palisade_broken('no lock to grant');
        END IF;
    ELSE
        SET i = 0;
        WHILE i < v_parts DO
            SET i = i + 1;
            CALL palisade_want(p_wants, i, v_name, v_need, v_permits);
            INSERT INTO palisade_claim (name, waits, arrival, session, number, part, parts, need, token, since, delay_ms, value)
                VALUES (v_name, NOT v_is_free, v_arrival, p_session, p_number, i, v_parts, v_need, p_token, UTC_TIMESTAMP(6),
                    p_delay_ms, p_value);
            UPDATE palisade_lock l SET l.permits = v_permits, l.token = COALESCE(p_token, l.token), l.arrivals = v_arrival,
                l.passed = IF(l.waiting = 0, v_arrival - (NOT v_is_free), l.passed),
                l.taken = l.taken + IF(v_is_free, v_need, 0), l.waiting = l.waiting + (NOT v_is_free)
                WHERE l.name = v_name AND (p_token IS NULL OR l.token < p_token);
            IF ROW_COUNT() <> 1 THEN
                CALL palisade_broken('no lock to ask for');
            END IF;
        END WHILE;
    END IF;
    IF v_is_free THEN
        SET p_outcome = 'granted', p_log = CONCAT(p_log, CONCAT_WS(' ', 'granted', v_names, p_session, p_token, p_number, 0), '\n',
            IF(p_value IS NULL, '', CONCAT(CONCAT_WS(' ', 'published', v_names, p_token, HEX(p_value)), '\n')));
    ELSE
        SET p_outcome = 'queued', p_log = CONCAT(p_log, CONCAT_WS(' ', 'queued', v_names, p_session, p_number), '\n');
    END IF;
END $$

-- Requests locks, in a transaction of this call. There are shortcuts for a single exclusive lock without lock-delay and value:
-- if it is free, and if a live session holds it. For a queued request, `detail` may have the number of waiters ahead.
DROP PROCEDURE IF EXISTS palisade_request $$
CREATE PROCEDURE palisade_request(
    p_session BIGINT, p_epoch INT, p_number BIGINT, p_wants MEDIUMTEXT CHARACTER SET ascii, p_order TEXT CHARACTER SET ascii,
    p_waits TINYINT, p_may_queue TINYINT, p_delay_ms BIGINT, p_value MEDIUMBLOB
)
BEGIN
    DECLARE v_id, v_token, v_above, v_arrival BIGINT;
    DECLARE v_outcome VARBINARY(16);
    DECLARE v_detail BLOB;
    DECLARE v_name VARBINARY(512) DEFAULT IF(SUBSTRING_INDEX(p_wants, ':', -2) = '4294967295:' AND LOCATE(',', p_wants) = 0
        AND p_delay_ms IS NULL AND p_value IS NULL, UNHEX(SUBSTRING_INDEX(p_wants, ':', 1)), NULL);
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    IF v_name IS NOT NULL THEN
        SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session AND s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)
            AND s.epoch <= p_epoch AND s.forgotten < p_number AND NOT FIND_IN_SET(p_number, s.withdrawn) LOCK IN SHARE MODE;
    END IF;
    IF v_id IS NOT NULL AND p_waits THEN
        -- A live session holds it, so the request joins the queue. The row is locked, so this is the highest arrival.
        UPDATE palisade_lock l SET l.passed = IF(l.waiting = 0, l.arrivals, l.passed), l.waiting = l.waiting + 1,
            l.arrivals = l.arrivals + 1
            WHERE l.name = v_name AND l.withheld_until IS NULL AND l.waiting < 100000
                AND (l.session <> p_session OR (p_may_queue AND l.number <> p_number))
                AND (SELECT h.ended IS NULL AND h.deadline > UTC_TIMESTAMP(6) FROM palisade_session h WHERE h.id = l.session)
                AND NOT EXISTS (SELECT 1 FROM palisade_claim c WHERE c.session = p_session AND c.number = p_number);
        IF ROW_COUNT() = 1 THEN
            SELECT l.arrivals, l.waiting - 1 INTO v_arrival, v_detail FROM palisade_lock l WHERE l.name = v_name;
            INSERT INTO palisade_claim (name, waits, arrival, session, number, part, parts, need, since)
                VALUES (v_name, 1, v_arrival, p_session, p_number, 1, 1, 4294967295, UTC_TIMESTAMP(6));
            SET v_outcome = 'queued', v_log = CONCAT(CONCAT_WS(' ', 'queued', HEX(v_name), p_session, p_number), '\n');
        END IF;
    END IF;
    IF v_id IS NOT NULL AND v_outcome IS NULL THEN
        SELECT l.token INTO v_above FROM palisade_lock l
            WHERE l.name = v_name AND l.session IS NULL AND l.taken = 0 AND l.waiting = 0 FOR UPDATE;
        IF v_above IS NOT NULL THEN
            CALL palisade_next(v_above, 1, v_token);
            UPDATE palisade_lock l SET l.token = v_token, l.session = p_session, l.used_by = p_session, l.number = p_number,
                l.since = UTC_TIMESTAMP(6) WHERE l.name = v_name AND l.session IS NULL AND l.token < v_token;
            IF ROW_COUNT() = 1 THEN
                SET v_outcome = 'granted',
                    v_log = CONCAT(CONCAT_WS(' ', 'granted', HEX(v_name), p_session, v_token, p_number, 0), '\n');
            END IF;
        END IF;
    END IF;
    IF v_outcome IS NULL THEN
        CALL palisade_ask(p_session, p_epoch, p_number, p_wants, p_order, p_waits, p_may_queue, p_delay_ms, p_value,
            v_log, v_outcome, v_token, v_detail);
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_outcome AS said, v_token AS token, v_detail AS detail;
END $$

-- Returns the request that holds a lock with this token; NULL if none does. The number is NULL if the lock's row has the grant.
DROP PROCEDURE IF EXISTS palisade_holder_of $$
CREATE PROCEDURE palisade_holder_of(p_name VARBINARY(4096), p_token BIGINT, OUT p_session BIGINT, OUT p_number BIGINT)
BEGIN
    SET p_session = NULL, p_number = NULL;
    SELECT l.session INTO p_session FROM palisade_lock l
        WHERE l.name = p_name AND l.session IS NOT NULL AND l.token = p_token AND l.withheld_until IS NULL;
    IF p_session IS NULL THEN
        SELECT c.session, c.number INTO p_session, p_number FROM palisade_claim c
            WHERE c.name = p_name AND c.waits = 0 AND c.token = p_token AND c.withheld_until IS NULL LIMIT 1;
    END IF;
END $$

-- Finds the request that holds a lock with this token, of one session or of any. The rows of its locks are then
-- locked. Returns a refusal if no request holds it.
DROP PROCEDURE IF EXISTS palisade_own $$
CREATE PROCEDURE palisade_own(
    INOUT p_session BIGINT, p_name VARBINARY(512), p_token BIGINT, OUT p_names MEDIUMBLOB, OUT p_number BIGINT, OUT p_refusal BLOB
)
BEGIN
    DECLARE v_holder BIGINT;
    DECLARE v_lives TINYINT;
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    CALL palisade_holder_of(p_name, p_token, v_holder, p_number);
    SET p_session = COALESCE(p_session, v_holder);
    CALL palisade_lives(p_session, v_lives);
    CALL palisade_names(v_holder, p_number, 0, p_names);
    SET p_names = IF(p_names <> '', p_names, HEX(p_name)), p_refusal = NULL;
    CALL palisade_hold_all(p_names);
    CALL palisade_holder_of(p_name, p_token, v_holder, p_number);
    IF NOT v_lives THEN
        SET p_refusal = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
    ELSEIF v_holder IS NULL THEN
        SET p_refusal = JSON_OBJECT('NotHeld', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    ELSEIF v_holder <> p_session THEN
        SET p_refusal = JSON_OBJECT('OtherSession', JSON_OBJECT('lock', v_text, 'token', p_token + 0));
    END IF;
END $$

-- Releases a grant with all its locks, and grants them to the next waiters. There are shortcuts for a lock without waiters, and for a
-- first waiter that wants this lock alone, exclusively. If the session is NULL, any session's grant with this token is released.
DROP PROCEDURE IF EXISTS palisade_give_back $$
CREATE PROCEDURE palisade_give_back(p_session BIGINT, p_name VARBINARY(4096), p_token BIGINT)
BEGIN
    DECLARE v_passed, v_arrival, v_token, v_number BIGINT;
    DECLARE v_is_done, v_is_next TINYINT;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_refusal, v_line BLOB;
    DECLARE v_log MEDIUMBLOB DEFAULT CONCAT(CONCAT_WS(' ', 'ended', HEX(p_name), p_session, p_token, 'released'), '\n');
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    UPDATE palisade_lock l SET l.session = NULL, l.number = NULL, l.since = NULL, l.delay_ms = NULL, l.value = NULL,
        l.history = NULL WHERE l.name = p_name AND l.session = p_session AND l.token = p_token AND l.waiting = 0
            AND l.withheld_until IS NULL;
    SET v_is_done = ROW_COUNT() = 1;
    IF NOT v_is_done THEN
        SELECT l.passed INTO v_passed FROM palisade_lock l WHERE l.name = p_name AND l.session = p_session
            AND l.token = p_token AND l.withheld_until IS NULL FOR UPDATE;
        SELECT c.arrival, CONCAT_WS(',', p_token, p_session, 4294967295, HEX(s.label), 'released'), c.parts = 1
                AND c.need = 4294967295 AND n.ended IS NULL AND n.deadline > UTC_TIMESTAMP(6)
                AND s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)
            INTO v_arrival, v_line, v_is_next FROM palisade_claim c
            LEFT JOIN palisade_session n ON n.id = c.session LEFT JOIN palisade_session s ON s.id = p_session
            WHERE c.name = p_name AND c.waits = 1 AND c.arrival > v_passed ORDER BY c.arrival LIMIT 1;
        IF v_is_next THEN
            CALL palisade_hand_over(p_name, p_session, p_token, v_line, v_arrival, v_log, v_token);
            SET v_is_done = v_token IS NOT NULL;
        END IF;
    END IF;
    IF NOT v_is_done THEN
        SET v_log = '';
        CALL palisade_own(p_session, p_name, p_token, v_names, v_number, v_refusal);
        IF v_refusal IS NULL THEN
            IF v_number IS NULL THEN
                CALL palisade_end_place(p_name, 0, NULL, 'released', HEX(p_name), v_log);
            ELSE
                CALL palisade_end_claim(p_session, v_number, 'released', v_log);
            END IF;
            CALL palisade_settle(v_names, v_budget, v_log);
            DELETE FROM palisade_session WHERE id = p_session AND is_lease = 1;
        END IF;
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_refusal IS NULL AS released, v_refusal AS refusal, v_log AS events;
END $$

-- Cancels a request that waits, or that has not arrived yet. `said` is gone, or granted with token and lock, or refused.
DROP PROCEDURE IF EXISTS palisade_cancel $$
CREATE PROCEDURE palisade_cancel(p_session BIGINT, p_number BIGINT)
BEGIN
    DECLARE v_id, v_token BIGINT;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_outcome VARBINARY(16) DEFAULT 'gone';
    DECLARE v_detail BLOB;
    DECLARE v_lives TINYINT;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    SELECT s.id INTO v_id FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    CALL palisade_lives(p_session, v_lives);
    IF NOT v_lives THEN
        SET v_outcome = 'refused', v_detail = JSON_OBJECT('NoSuchSession', JSON_OBJECT('session', p_session + 0));
    ELSE
        CALL palisade_names(p_session, p_number, 0, v_names);
        CALL palisade_hold_all(v_names);
        SELECT c.token, c.name INTO v_token, v_name FROM palisade_claim c
            WHERE c.session = p_session AND c.number = p_number AND c.waits = 0 ORDER BY c.part LIMIT 1;
        SELECT l.token, l.name INTO v_token, v_name FROM palisade_lock l
            WHERE l.used_by = p_session AND l.session = p_session AND l.number = p_number LIMIT 1;
        IF v_token IS NOT NULL THEN
            SET v_outcome = 'granted';
        ELSE
            CALL palisade_end_claim(p_session, p_number, 'cancelled', v_log);
            -- Only the last 64 are listed. `forgotten` covers the older ones.
            UPDATE palisade_session s SET
                s.forgotten = IF(s.withdrawn <> SUBSTRING_INDEX(s.withdrawn, ',', -63),
                    GREATEST(s.forgotten, CAST(SUBSTRING_INDEX(s.withdrawn, ',', 1) AS SIGNED)), s.forgotten),
                s.withdrawn = CONCAT_WS(',', NULLIF(SUBSTRING_INDEX(s.withdrawn, ',', -63), ''), p_number)
                WHERE s.id = p_session AND NOT FIND_IN_SET(p_number, s.withdrawn);
            CALL palisade_settle(v_names, v_budget, v_log);
        END IF;
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_outcome AS said, v_token AS token, v_detail AS detail, v_name AS name, v_log AS events;
END $$

-- Replaces the value that observers of a lock read. `refusal` is NULL on success.
DROP PROCEDURE IF EXISTS palisade_publish $$
CREATE PROCEDURE palisade_publish(p_session BIGINT, p_name VARBINARY(512), p_token BIGINT, p_value MEDIUMBLOB)
BEGIN
    DECLARE v_number BIGINT;
    DECLARE v_refusal BLOB;
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_own(p_session, p_name, p_token, v_names, v_number, v_refusal);
    IF v_refusal IS NULL AND LENGTH(p_value) > 4096 THEN
        SET v_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'ValueBytes', 'max', 4096, 'value', LENGTH(p_value)));
    ELSEIF v_refusal IS NULL AND v_number IS NOT NULL THEN
        SET v_refusal = '"ValueNotPossible"';
    ELSEIF v_refusal IS NULL THEN
        UPDATE palisade_lock l SET l.value = p_value WHERE l.name = p_name;
        SET v_log = CONCAT(CONCAT_WS(' ', 'published', HEX(p_name), p_token, HEX(p_value)), '\n');
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_refusal AS refusal;
END $$

-- Returns this lock and all locks of the requests that hold it, or with `waits` 1 of those that wait for it, and need more than
-- `p_above` permits of it. Sorted by name.
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

-- Ends all requests that hold a lock, or with `waits` 1 wait for it, and need more than `p_above` permits. With `p_only`, ends only
-- the holder with that token. The rows of all their locks are locked here.
DROP PROCEDURE IF EXISTS palisade_end_claims $$
CREATE PROCEDURE palisade_end_claims(
    p_name VARBINARY(512), p_waits TINYINT, p_above BIGINT, p_only BIGINT, p_how BLOB, INOUT p_log MEDIUMBLOB, OUT p_count INT
)
BEGIN
    DECLARE v_arrival BIGINT DEFAULT 0;
    DECLARE v_session, v_number BIGINT;
    SET p_count = -1;
    WHILE v_arrival IS NOT NULL DO
        SET p_count = p_count + 1, v_session = NULL;
        SELECT c.arrival, c.session, c.number INTO v_arrival, v_session, v_number FROM palisade_claim c
            WHERE c.name = p_name AND c.waits = p_waits AND c.arrival > v_arrival AND c.need > p_above
                AND (p_only IS NULL OR c.token = p_only) ORDER BY c.arrival LIMIT 1;
        IF v_session IS NULL THEN
            SET v_arrival = NULL;
        ELSE
            CALL palisade_end_claim(v_session, v_number, p_how, p_log);
            IF p_waits THEN
                CALL palisade_tell(v_session, CONCAT_WS(' ', 'r', v_session, v_number, p_how));
            END IF;
        END IF;
    END WHILE;
END $$

-- Releases a lock by force: all its grants, or only the one with this token. `moved_to` is a new token, above those of the ended
-- grants: seal resources with it.
DROP PROCEDURE IF EXISTS palisade_force $$
CREATE PROCEDURE palisade_force(p_name VARBINARY(4096), p_only BIGINT, p_by MEDIUMBLOB, p_reason MEDIUMBLOB)
BEGIN
    DECLARE v_names, v_rest MEDIUMBLOB;
    DECLARE v_refusal, v_how BLOB;
    DECLARE v_name VARBINARY(512);
    DECLARE v_session, v_taken, v_last, v_moved_to BIGINT;
    DECLARE v_grants INT DEFAULT 0;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_is_held TINYINT;
    DECLARE v_text VARCHAR(4096) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_names_with(p_name, 0, -1, v_names);
    CALL palisade_hold_all(v_names);
    CALL palisade_tend(HEX(p_name), v_budget, v_log);
    SELECT l.session, l.token, l.taken INTO v_session, v_last, v_taken FROM palisade_lock l WHERE l.name = p_name;
    SELECT p_only IS NULL OR (v_session IS NOT NULL AND v_last = p_only)
        OR EXISTS (SELECT 1 FROM palisade_claim c WHERE c.name = p_name AND c.waits = 0 AND c.token = p_only) INTO v_is_held;
    IF GREATEST(LENGTH(p_by), LENGTH(p_reason)) > 256 THEN
        SET v_refusal = JSON_OBJECT('OverLimit', JSON_OBJECT('limit', 'LabelBytes', 'max', 256,
            'value', GREATEST(LENGTH(p_by), LENGTH(p_reason))));
    ELSEIF NOT v_is_held THEN
        SET v_refusal = JSON_OBJECT('NotHeld', JSON_OBJECT('lock', v_text, 'token', p_only + 0));
    ELSEIF v_session IS NULL AND COALESCE(v_taken, 0) = 0 THEN
        SET v_refusal = JSON_OBJECT('NoHolder', JSON_OBJECT('lock', v_text));
    ELSE
        CALL palisade_next(v_last, 1 + LENGTH(v_names) - LENGTH(REPLACE(v_names, ',', '')), v_moved_to);
        SET v_refusal = IF(v_moved_to IS NULL, '{"TokensExhausted":{"max":9007199254740991}}', NULL);
    END IF;
    IF v_refusal IS NULL THEN
        SET v_how = CONCAT_WS(' ', 'forced', HEX(p_by), HEX(p_reason), v_moved_to);
        IF v_session IS NOT NULL THEN
            CALL palisade_end_place(p_name, 0, NULL, v_how, HEX(p_name), v_log);
        END IF;
        CALL palisade_end_claims(p_name, 0, 0, p_only, v_how, v_log, v_grants);
        SET v_grants = v_grants + (v_session IS NOT NULL), v_rest = v_names;
        WHILE v_rest <> '' DO
            CALL palisade_pop(v_rest, v_name);
            UPDATE palisade_lock l SET l.token = v_moved_to WHERE l.name = v_name AND l.token < v_moved_to AND l.session IS NULL;
        END WHILE;
        CALL palisade_settle(v_names, v_budget, v_log);
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_grants AS grants, v_moved_to AS moved_to, v_refusal AS refusal;
END $$

-- Changes the permits of a semaphore that is in use. `refusal` is NULL on success.
DROP PROCEDURE IF EXISTS palisade_resize $$
CREATE PROCEDURE palisade_resize(p_name VARBINARY(512), p_permits BIGINT)
BEGIN
    DECLARE v_names, v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_permits BIGINT;
    DECLARE v_ended INT;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_is_used TINYINT DEFAULT 0;
    DECLARE v_refusal BLOB;
    DECLARE v_below BLOB DEFAULT CONCAT_WS(' ', 'resized', HEX(p_name), p_permits);
    DECLARE v_text VARCHAR(512) CHARACTER SET utf8mb4 DEFAULT CONVERT(p_name USING utf8mb4);
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
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
        SET v_log = CONCAT(v_below, '\n');
        CALL palisade_end_claims(p_name, 1, p_permits, NULL, v_below, v_log, v_ended);
        CALL palisade_settle(v_names, v_budget, v_log);
    END IF;
    CALL palisade_finish(v_log);
    SELECT v_refusal AS refusal;
END $$

-- Attaches a session to a new connection of its client. Late requests of older connections are refused from then on. Returns the
-- number of keep-alives, and a row for each grant with its request number; no row if the session has ended.
DROP PROCEDURE IF EXISTS palisade_attach $$
CREATE PROCEDURE palisade_attach(p_session BIGINT, p_epoch INT)
BEGIN
    DECLARE v_kept BIGINT;
    DECLARE v_lives TINYINT;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    SELECT s.kept INTO v_kept FROM palisade_session s WHERE s.id = p_session FOR UPDATE;
    CALL palisade_lives(p_session, v_lives);
    UPDATE palisade_session s SET s.epoch = GREATEST(s.epoch, p_epoch) WHERE s.id = p_session;
    SELECT v_kept AS kept, NULL AS name, NULL AS number, NULL AS token FROM palisade_state s WHERE v_lives
    UNION ALL SELECT v_kept, l.name, l.number, l.token FROM palisade_lock l
        WHERE l.used_by = p_session AND l.session = p_session AND l.withheld_until IS NULL AND v_lives
    UNION ALL SELECT v_kept, c.name, c.number, c.token FROM palisade_claim c WHERE c.session = p_session AND c.waits = 0
        AND c.withheld_until IS NULL AND c.part = 1 AND v_lives;
    CALL palisade_finish('');
END $$

-- Ends expired holders and lock-delays at the locks of a waiting request, and grants the locks to waiters. Clients call it for their
-- waits from time to time; if `more` is 1, again at once.
DROP PROCEDURE IF EXISTS palisade_nudge $$
CREATE PROCEDURE palisade_nudge(p_session BIGINT, p_number BIGINT)
BEGIN
    DECLARE v_names MEDIUMBLOB;
    DECLARE v_budget INT DEFAULT 100;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_names(p_session, p_number, 0, v_names);
    CALL palisade_hold_all(v_names);
    CALL palisade_tend(v_names, v_budget, v_log);
    CALL palisade_finish(v_log);
    SELECT v_budget <= 0 AS more, v_log AS events;
END $$

-- Deletes the notices of a session up to this one, which the client has read.
DROP PROCEDURE IF EXISTS palisade_heard $$
CREATE PROCEDURE palisade_heard(p_session BIGINT, p_id BIGINT)
BEGIN
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    DELETE FROM palisade_notice WHERE session = p_session AND id <= p_id;
    CALL palisade_finish('');
END $$

-- Keeps events for this many milliseconds from now on. `events` is the last event before.
DROP PROCEDURE IF EXISTS palisade_watch $$
CREATE PROCEDURE palisade_watch(p_ms BIGINT)
BEGIN
    DECLARE v_events BIGINT;
    DECLARE v_until DATETIME(6);
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    -- Waits for transactions that have found that no client watches. Their changes are visible afterwards.
    SELECT w.until INTO v_until FROM palisade_watched w WHERE w.only_one = 1 FOR UPDATE;
    SELECT (SELECT s.events FROM palisade_state s) INTO v_events;
    UPDATE palisade_watched w SET w.until = GREATEST(w.until, UTC_TIMESTAMP(6) + INTERVAL (p_ms * 1000) MICROSECOND)
        WHERE w.only_one = 1;
    CALL palisade_finish('');
    SELECT v_events AS events;
END $$

-- For people and for other languages -------------------------------------------------------------------------------------

-- All holders and waiters, one row each; times are UTC.
DROP VIEW IF EXISTS palisade_locks $$
CREATE VIEW palisade_locks AS
    SELECT CONVERT(l.name USING utf8mb4) COLLATE utf8mb4_bin AS name, IF(l.withheld_until IS NULL, 'held', 'withheld') COLLATE utf8mb4_bin AS state,
        4294967295 AS need, l.permits, l.token, l.session, CONVERT(s.label USING utf8mb4) COLLATE utf8mb4_bin AS label, l.since,
        COALESCE(l.withheld_until, s.deadline) AS until, l.value, 0 AS arrival
    FROM palisade_lock l LEFT JOIN palisade_session s ON s.id = l.session
    WHERE l.session IS NOT NULL AND (l.withheld_until > UTC_TIMESTAMP(6)
        OR (l.withheld_until IS NULL AND s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)))
    UNION ALL
    SELECT CONVERT(c.name USING utf8mb4) COLLATE utf8mb4_bin, IF(c.waits, 'waiting', IF(c.withheld_until IS NULL, 'held', 'withheld')) COLLATE utf8mb4_bin,
        c.need, l.permits, c.token, c.session, CONVERT(s.label USING utf8mb4) COLLATE utf8mb4_bin, c.since,
        COALESCE(c.withheld_until, s.deadline), c.value, c.arrival
    FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name LEFT JOIN palisade_session s ON s.id = c.session
    WHERE c.withheld_until > UTC_TIMESTAMP(6)
        OR (c.withheld_until IS NULL AND s.ended IS NULL AND s.deadline > UTC_TIMESTAMP(6)) $$

-- Returns a row for each inconsistency in the tables, and no row for consistent tables. Changes nothing.
DROP PROCEDURE IF EXISTS palisade_check $$
CREATE PROCEDURE palisade_check()
BEGIN
    SELECT 'a lock counts its waiters wrong' AS problem, HEX(l.name) AS lock_in_hex, CONCAT('counts ', l.waiting) AS detail
        FROM palisade_lock l WHERE l.waiting <> (SELECT COUNT(*) FROM palisade_claim c WHERE c.name = l.name AND c.waits = 1)
    UNION ALL SELECT 'a lock counts its holders wrong', HEX(l.name), CONCAT('counts ', l.taken) FROM palisade_lock l
        WHERE l.taken <> (SELECT COALESCE(SUM(c.need), 0) FROM palisade_claim c WHERE c.name = l.name AND c.waits = 0)
    UNION ALL SELECT 'a lock has two holders', HEX(l.name), CONCAT('taken ', l.taken) FROM palisade_lock l
        WHERE l.taken > IF(l.session IS NULL, IF(l.permits IS NULL, 4294967295, l.taken), 0)
    UNION ALL SELECT 'a claim has no lock', HEX(c.name), CONCAT('session ', c.session) FROM palisade_claim c
        WHERE NOT EXISTS (SELECT 1 FROM palisade_lock l WHERE l.name = c.name)
    UNION ALL SELECT 'a holder has no session', HEX(l.name), CONCAT('session ', l.session) FROM palisade_lock l
        WHERE l.session IS NOT NULL AND l.withheld_until IS NULL AND NOT EXISTS (SELECT 1 FROM palisade_session s WHERE s.id = l.session)
    UNION ALL SELECT 'a claim has no session', HEX(c.name), CONCAT('session ', c.session) FROM palisade_claim c
        WHERE c.withheld_until IS NULL AND NOT EXISTS (SELECT 1 FROM palisade_session s WHERE s.id = c.session)
    UNION ALL SELECT 'a grant has no token of its lock', HEX(l.name), CONCAT('token ', l.token) FROM palisade_lock l
        WHERE l.session IS NOT NULL AND (l.token <= 0 OR NOT l.used_by <=> l.session)
    UNION ALL SELECT 'a claim has no token of its lock', HEX(c.name), CONCAT('token ', COALESCE(c.token, 'none'))
        FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name
        WHERE IF(c.waits, c.token IS NOT NULL, NOT COALESCE(c.token BETWEEN 1 AND l.token, 0))
    UNION ALL SELECT 'two grants have one token', HEX(MIN(c.name)), CONCAT('token ', c.token) FROM palisade_claim c
        WHERE c.waits = 0 GROUP BY c.token HAVING COUNT(DISTINCT c.session, c.number) > 1
    UNION ALL SELECT 'two grants have one token', HEX(l.name), CONCAT('token ', l.token) FROM palisade_lock l
        WHERE l.session IS NOT NULL AND EXISTS (SELECT 1 FROM palisade_lock o WHERE o.used_by = l.session AND o.session = l.session
            AND o.token = l.token AND o.name <> l.name)
    UNION ALL SELECT 'a place in a queue was passed', HEX(c.name), CONCAT('arrival ', c.arrival)
        FROM palisade_claim c JOIN palisade_lock l ON l.name = c.name
        WHERE c.arrival > l.arrivals OR (c.waits = 1 AND c.arrival <= l.passed)
    UNION ALL SELECT 'a request has lost a part', HEX(MIN(c.name)), CONCAT('session ', c.session, ', number ', c.number)
        FROM palisade_claim c JOIN palisade_session s ON s.id = c.session AND s.ended IS NULL
        GROUP BY c.session, c.number HAVING COUNT(*) <> MIN(c.parts) OR MIN(c.waits) <> MAX(c.waits)
            OR NOT MIN(c.token) <=> MAX(c.token)
    UNION ALL SELECT 'a free lock shows what is over', HEX(l.name), '' FROM palisade_lock l
        WHERE l.session IS NULL AND (l.withheld_until IS NOT NULL OR l.value IS NOT NULL OR l.delay_ms IS NOT NULL
            OR (l.taken = 0 AND l.waiting = 0 AND (l.permits IS NOT NULL OR l.history IS NOT NULL)))
    UNION ALL SELECT 'a token was not counted', HEX(l.name), CONCAT('token ', l.token) FROM palisade_lock l
        WHERE l.token > (SELECT MAX(s.token) FROM palisade_state s)
    UNION ALL SELECT 'the count of tokens is gone', '', '' FROM (SELECT COUNT(*) AS n FROM palisade_state s) x WHERE x.n <> 1;
END $$

-- Acquires a lock, and waits in its queue for `patience_ms` at most; without patience it tries once. Mode is exclusive, shared, or
-- permits, with the number to take and the limit. Returns one row if it is granted; renew the lock before its TTL ends. A wait ends
-- 10 s after its last poll, so that a call that was killed does not block the queue. A call that fails ends its wait at once.
DROP PROCEDURE IF EXISTS palisade_acquire_as $$
CREATE PROCEDURE palisade_acquire_as(
    name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4,
    mode VARCHAR(16) CHARACTER SET utf8mb4, permits BIGINT, permits_of BIGINT, patience_ms BIGINT
)
BEGIN
    DECLARE v_want, v_refusal BLOB;
    DECLARE v_text VARCHAR(120) CHARACTER SET utf8mb4;
    DECLARE v_log MEDIUMBLOB DEFAULT '';
    DECLARE v_session, v_token, v_kept BIGINT;
    DECLARE v_outcome VARBINARY(16) DEFAULT 'again';
    DECLARE v_budget INT;
    DECLARE v_did TINYINT;
    DECLARE v_deadline DATETIME(6);
    DECLARE v_until DATETIME(6) DEFAULT UTC_TIMESTAMP(6) + INTERVAL (COALESCE(patience_ms, 0) * 1000) MICROSECOND;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        IF v_began THEN
            ROLLBACK AND NO CHAIN NO RELEASE;
            BEGIN
                DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
                UPDATE palisade_session s SET s.ended = 'closed' WHERE s.id = v_session AND s.ended IS NULL;
                COMMIT AND NO CHAIN NO RELEASE;
            END;
        END IF;
        RESIGNAL;
    END;
    -- If no client of the library uses this database, nothing else calls palisade_sweep.
    CALL palisade_tidy(1000, v_did);
    CALL palisade_begin(v_began);
    CALL palisade_check_name(name);
    SET v_want = CONCAT(HEX(CAST(name AS BINARY)), ':', CASE mode WHEN 'exclusive' THEN '4294967295:' WHEN 'shared' THEN '1:'
        WHEN 'permits' THEN CONCAT(permits, ':', permits_of) END);
    IF v_want IS NULL THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'mode is exclusive, shared, or permits with how many to take and how many there are';
    END IF;
    CALL palisade_enter(ttl_ms, COALESCE(label, CURRENT_USER()), 1, v_session, v_refusal);
    UPDATE palisade_session s SET s.ttl_ms = LEAST(ttl_ms, 10000) WHERE s.id = v_session;
    SET v_outcome = IF(v_refusal IS NULL, 'again', 'refused');
    CALL palisade_finish('');
    WHILE v_outcome IN ('again', 'queued') DO
        IF v_outcome = 'queued' THEN
            DO SLEEP(0.02);
        END IF;
        CALL palisade_begin(v_began);
        SET v_log = '', v_budget = 100;
        CALL palisade_prolong(v_session, v_kept);
        -- Repeating the request returns its current state.
        CALL palisade_ask(v_session, 0, 1, v_want, '1', patience_ms IS NOT NULL, 1, NULL, NULL, v_log, v_outcome, v_token, v_refusal);
        IF v_outcome = 'granted' THEN
            UPDATE palisade_session s SET s.ttl_ms = ttl_ms WHERE s.id = v_session;
            CALL palisade_prolong(v_session, v_kept);
        ELSEIF v_outcome IN ('busy', 'refused') OR (patience_ms IS NOT NULL AND UTC_TIMESTAMP(6) >= v_until) THEN
            SET v_outcome = IF(v_outcome = 'refused', v_outcome, 'gone'), v_budget = 100;
            UPDATE palisade_session s SET s.ended = 'closed' WHERE s.id = v_session AND s.ended IS NULL;
            CALL palisade_end_session(v_session, v_budget, v_log);
        END IF;
        SELECT s.deadline INTO v_deadline FROM palisade_session s WHERE s.id = v_session;
        CALL palisade_finish(v_log);
    END WHILE;
    IF v_outcome = 'refused' THEN
        SET v_text = CONCAT('refused: ', LEFT(CONVERT(v_refusal USING utf8mb4), 110));
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_text;
    END IF;
    SELECT v_token AS token, v_session AS session, v_deadline AS until FROM palisade_state s WHERE v_outcome = 'granted';
END $$

-- Acquires a lock if it is free; renew it before its TTL ends. Returns one row if it is granted, no row if it is not free.
DROP PROCEDURE IF EXISTS palisade_acquire $$
CREATE PROCEDURE palisade_acquire(name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4)
BEGIN
    CALL palisade_acquire_as(name, ttl_ms, label, 'exclusive', NULL, NULL, NULL);
END $$

-- Acquires a lock, and waits in its queue for `patience_ms` at most. Returns one row if it is granted, otherwise no row.
DROP PROCEDURE IF EXISTS palisade_acquire_within $$
CREATE PROCEDURE palisade_acquire_within(
    name VARCHAR(4096) CHARACTER SET utf8mb4, ttl_ms BIGINT, label VARCHAR(256) CHARACTER SET utf8mb4, patience_ms BIGINT
)
BEGIN
    CALL palisade_acquire_as(name, ttl_ms, label, 'exclusive', NULL, NULL, COALESCE(patience_ms, 0));
END $$

-- Releases a lock. `released` is 0 if no grant has this token; then nothing has changed.
DROP PROCEDURE IF EXISTS palisade_release $$
CREATE PROCEDURE palisade_release(name VARCHAR(4096) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    CALL palisade_give_back(NULL, name, token);
END $$

-- Renews the holder of a lock. `renewed` is 0 if no grant has this token.
DROP PROCEDURE IF EXISTS palisade_renew $$
CREATE PROCEDURE palisade_renew(name VARCHAR(4096) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    DECLARE v_session, v_number, v_kept BIGINT;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    CALL palisade_begin(v_began);
    CALL palisade_holder_of(name, token, v_session, v_number);
    CALL palisade_prolong(v_session, v_kept);
    CALL palisade_finish('');
    SELECT v_kept IS NOT NULL AS renewed;
END $$

-- Releases a lock by force: all its grants, or only the one with this token. Seal resources with `moved_to`.
DROP PROCEDURE IF EXISTS palisade_break $$
CREATE PROCEDURE palisade_break(name VARCHAR(4096) CHARACTER SET utf8mb4, reason VARCHAR(256) CHARACTER SET utf8mb4, token BIGINT)
BEGIN
    CALL palisade_force(name, token, SESSION_USER(), reason);
END $$

-- Raises all tokens above this one, after the database has lost tokens, or if locks were kept elsewhere before. It runs with the
-- caller's rights: EXECUTE alone is not enough, so that no application uses up tokens. At most 2^52, so that half of them remain.
DROP PROCEDURE IF EXISTS palisade_raise_tokens $$
CREATE PROCEDURE palisade_raise_tokens(above BIGINT) SQL SECURITY INVOKER
BEGIN
    DECLARE v_rows BIGINT;
    DECLARE v_held VARBINARY(512);
    DECLARE v_message VARCHAR(128) CHARACTER SET utf8mb4;
    -- Rounded up to the end of a block, so that every lock takes a new block next.
    DECLARE v_above BIGINT DEFAULT (above + 255) DIV 256 * 256;
    DECLARE v_began TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN IF v_began THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF; RESIGNAL; END;
    IF above IS NULL OR above NOT BETWEEN 1 AND 4503599627370496 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tokens can be raised above a number from 1 to 2^52 = 4503599627370496: more would use up those that are left';
    END IF;
    -- At this level the SELECT locks all rows and prevents inserts. A row that is inserted later begins above the new count.
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    START TRANSACTION READ WRITE;
    SET v_began = 1;
    SELECT COUNT(*) INTO v_rows FROM palisade_lock l FORCE INDEX (PRIMARY) WHERE l.name >= '' FOR UPDATE;
    SELECT MIN(l.name) INTO v_held FROM palisade_lock l WHERE l.token < above AND (l.session IS NOT NULL OR l.taken > 0);
    IF v_held IS NOT NULL THEN
        SET v_message = CONCAT('locks are held with lower tokens, such as ', LEFT(CONVERT(v_held USING utf8mb4), 30),
            ': release or break them (palisade ls), then raise again');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_message;
    END IF;
    UPDATE palisade_lock l SET l.token = v_above
        WHERE l.name >= '' AND l.token < v_above AND l.session IS NULL AND l.taken = 0;
    UPDATE palisade_state s SET s.token = v_above WHERE s.only_one = 1 AND s.token < v_above;
    CALL palisade_finish('');
END $$

INSERT INTO palisade_version (only_one, version, usable_from) VALUES (1, 4, 4)
    ON DUPLICATE KEY UPDATE version = GREATEST(palisade_version.version, 4) $$
DO RELEASE_LOCK(CONCAT('palisade_', MD5(DATABASE()))) $$
DELIMITER ;
