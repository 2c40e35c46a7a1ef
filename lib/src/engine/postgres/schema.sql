-- Palisade's locks in PostgreSQL 13 and newer. Running this again loses nothing, also while clients are connected. It needs
-- CREATE on the database. Afterwards an application's role needs only
--   SELECT palisade.allow('app');
--
-- Invariants:
-- * A transaction changes a lock, or a claim on it, only while it has locked the lock's row. A call that needs several rows locks
--   them in the order of their names, in one statement. A call that has locked rows never waits for another row: it skips rows
--   that another transaction has locked.
-- * A session ends when its deadline becomes -infinity, which is never undone. From then on all its grants and waits are void.
--   Later calls that find its claims, or the sweep, remove them.
-- * A request has a shared advisory lock on its session's key. A call that ends the session has an exclusive one, so that no
--   grant is made for a session whose row is being deleted.
-- * A call does a bounded amount of work. The next call for the lock, or the sweep, does the rest.
-- * Only `clean` removes rows of unused locks, and it refuses a transaction that has changed anything before.
-- `p_locks` is a list of locks whose rows this transaction has locked, unless the function says that it locks them.
-- An installation that has waited for another one must see it.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL client_min_messages = warning;

DO $$
DECLARE
    v_version integer;
BEGIN
    PERFORM pg_advisory_xact_lock(1885432935, 0);
    IF to_regclass('palisade.version') IS NOT NULL THEN
        SELECT v.version INTO v_version FROM palisade.version v;
        IF v_version > 2 THEN
            RAISE EXCEPTION 'a newer schema of palisade (version %) is installed; nothing has changed', v_version
                USING HINT = 'Use the palisade that has installed it, or a newer one.';
        ELSIF v_version < 2 THEN
            RAISE EXCEPTION 'an older schema of palisade (version %) is installed, which cannot be upgraded; nothing has changed',
                v_version USING HINT = 'Stop its clients, note SELECT max(token) FROM palisade.lock and SELECT floor FROM '
                'palisade.state, DROP SCHEMA palisade CASCADE, install again, and SELECT palisade.raise_tokens(the higher one).';
        END IF;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS palisade;

-- The version of the schema, and the oldest client that can use it.
CREATE TABLE IF NOT EXISTS palisade.version (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    version integer NOT NULL,
    usable_from integer NOT NULL
);
INSERT INTO palisade.version (version, usable_from) VALUES (2, 2) ON CONFLICT DO NOTHING;

-- The state that all locks share. `cluster` identifies the data: after a new installation it is different. `origin` is where the
-- data were installed (see `palisade.origin`), by which a copy of the database is detected.
CREATE TABLE IF NOT EXISTS palisade.state (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    floor bigint NOT NULL DEFAULT 0,        -- the highest token of all locks whose rows were removed
    watched_until timestamptz NOT NULL DEFAULT '-infinity',
    cluster uuid NOT NULL DEFAULT gen_random_uuid(),
    origin text NOT NULL,
    cleaned_to text COLLATE "C" NOT NULL DEFAULT '' -- the name at which `clean` continues
) WITH (fillfactor = 50);

-- The sessions. One with a deadline of -infinity has ended.
CREATE TABLE IF NOT EXISTS palisade.session (
    id bigint PRIMARY KEY,
    ttl_ms bigint NOT NULL,
    deadline timestamptz NOT NULL,
    epoch integer NOT NULL DEFAULT 0,       -- requests of older connections are refused
    is_lease boolean NOT NULL DEFAULT false, -- opened by `acquire`; ends when its lock is released
    channel text CHECK (octet_length(channel) BETWEEN 1 AND 63), -- the channel on which its client listens
    label bytea NOT NULL,
    withdrawn bigint[] NOT NULL DEFAULT '{}', -- the last requests that were cancelled before they arrived
    forgotten bigint NOT NULL DEFAULT 0     -- the highest request number that `withdrawn` no longer has
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS session_deadline ON palisade.session (deadline);

-- The locks. Holders and waiters are in palisade.claim. `permits` and `history` are valid only while the lock has claims: the
-- first claim of an unused lock sets both.
CREATE TABLE IF NOT EXISTS palisade.lock (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,                  -- the last one that was granted here
    permits bigint,                         -- of a semaphore
    taken bigint NOT NULL DEFAULT 0,        -- the permits of all its holders
    waiting integer NOT NULL DEFAULT 0,     -- the number of its waiters
    history text[],                         -- the last grants that ended while it was in use
    CHECK (taken >= 0 AND waiting >= 0)
) WITH (fillfactor = 50);

-- The claims: a request in the queue of a lock, or among its holders. A request for several locks has a row (a part) for each.
CREATE TABLE IF NOT EXISTS palisade.claim (
    lock text COLLATE "C" NOT NULL,
    waits boolean NOT NULL,
    arrival bigint NOT NULL,                -- its order in the queue; once granted, its token
    token bigint,                           -- NULL while it waits; `check` verifies that, since a constraint would slow every acquire
    session bigint NOT NULL,
    number bigint NOT NULL,                 -- negative for a request without a number
    part integer NOT NULL,
    parts integer NOT NULL,
    need bigint NOT NULL,
    since timestamptz,
    delay_ms bigint,
    withheld_until timestamptz,
    value bytea,
    PRIMARY KEY (lock, waits, arrival)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX IF NOT EXISTS claim_request ON palisade.claim (session, number, part);
CREATE INDEX IF NOT EXISTS claim_withheld ON palisade.claim (withheld_until) WHERE withheld_until IS NOT NULL;

-- The order of arrival. A request takes its number while it has locked the rows of its locks.
CREATE SEQUENCE IF NOT EXISTS palisade.arrivals;
-- Makes the tokens of different locks differ, because a client identifies its grants by token. That tokens rise does not depend
-- on it, since a sequence can go back after a crash: each token is above the last one in its lock's row.
CREATE SEQUENCE IF NOT EXISTS palisade.tokens MAXVALUE 9007199254740991;

-- Notices for sessions, each kept until the client has read it, or the session has ended.
CREATE TABLE IF NOT EXISTS palisade.notice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    said text NOT NULL
);
CREATE INDEX IF NOT EXISTS notice_session ON palisade.notice (session);

-- The watches of clients.
CREATE TABLE IF NOT EXISTS palisade.watcher (
    channel text NOT NULL CHECK (octet_length(channel) BETWEEN 1 AND 63),
    prefix text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (channel, prefix)
);

-- Identifies where the data are: the server, the database and the table. A restored dump or a copied database has another
-- origin. A copy of the server's files has the same one.
CREATE OR REPLACE FUNCTION palisade.origin() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_server bigint;
BEGIN
    IF has_function_privilege('pg_control_system()', 'EXECUTE') THEN
        SELECT c.system_identifier INTO v_server FROM pg_control_system() c;
    END IF;
    RETURN format('%s/%s/%s', v_server, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
        'palisade.lock'::regclass::oid);
END $$;
INSERT INTO palisade.state (origin) VALUES (palisade.origin()) ON CONFLICT DO NOTHING;

-- Functions: always replaced by the newest -----------------------------------------------------------------------------
-- (Functions that every call needs return a boolean and are called in expressions: PERFORM takes several times as long.)

-- Returns the server's time. No other function reads the clock, so tests replace this one. (The planner inlines it.)
CREATE OR REPLACE FUNCTION palisade.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp()';

-- Our SQLSTATEs: PL001 a refusal, as JSON in the DETAIL; PL002 not possible in this transaction; PL003 the data are a copy.
CREATE OR REPLACE FUNCTION palisade.check_transaction() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'locks cannot be used in a % transaction: it does not see what others have done since it began',
            current_setting('transaction_isolation')
            USING ERRCODE = 'PL002', HINT = 'Call it in a transaction of its own, or BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
    RETURN true;
END $$;

-- Fails for a copy of the data, which would issue the same tokens as the original. Only calls that open or attach a session, or
-- wait, check this: the other calls need a session, and `origin` reads a file.
CREATE OR REPLACE FUNCTION palisade.check_origin() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT s.origin <> palisade.origin() FROM palisade.state s) THEN
        RAISE EXCEPTION 'these locks are a copy, from a restored dump or a copied database: their tokens may be given twice'
            USING ERRCODE = 'PL003', HINT = 'SELECT palisade.accept_copy(above), with the highest token that any resource has '
            'seen (`palisade fence check` shows it), ends all sessions of the copy and gives only higher tokens.';
    END IF;
    RETURN true;
END $$;

-- Makes the commit of this transaction wait for the disk, and for synchronous standbys. Keeps a stricter setting of the user.
CREATE OR REPLACE FUNCTION palisade.make_durable() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RETURN set_config('synchronous_commit', 'on', true) IS NOT NULL;
    END IF;
    RETURN true;
END $$;

-- Returns the second half of a session's key, an advisory lock.
CREATE OR REPLACE FUNCTION palisade.key_of(p_session bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS
    'SELECT (1 + p_session % 2147483646)::integer';

-- Returns a session's deadline; -infinity if it has ended or its row is gone. Does not end it.
CREATE OR REPLACE FUNCTION palisade.deadline_of(p_session bigint) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    RETURN COALESCE((SELECT s.deadline FROM palisade.session s WHERE s.id = p_session), '-infinity');
END $$;

-- Ends those of these sessions whose deadline has passed. Skips a session whose row is locked: it is being renewed.
CREATE OR REPLACE FUNCTION palisade.expire(p_sessions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_session bigint;
BEGIN
    FOR v_session IN UPDATE palisade.session s SET deadline = '-infinity' WHERE s.id = ANY(ARRAY(
            SELECT x.id FROM palisade.session x WHERE x.id = ANY(p_sessions) AND x.deadline <= palisade.now()
            AND x.deadline > '-infinity' FOR UPDATE SKIP LOCKED)) RETURNING s.id LOOP
        PERFORM palisade.make_durable(), palisade.tell(v_session, concat_ws(' ', 's', v_session, 'expired'), false);
    END LOOP;
END $$;

-- Returns the session of a call; NULLs if it has ended. Ends it if its deadline has passed. Waits for a renewal that is under way,
-- so it must not be called after a lock's row was locked.
CREATE OR REPLACE FUNCTION palisade.living(p_session bigint) RETURNS palisade.session LANGUAGE plpgsql AS $$
DECLARE
    s palisade.session;
BEGIN
    SELECT x.* INTO s FROM palisade.session x WHERE x.id = p_session AND x.deadline > palisade.now();
    IF NOT FOUND THEN
        UPDATE palisade.session x SET deadline = '-infinity'
            WHERE x.id = p_session AND x.deadline <= palisade.now() AND x.deadline > '-infinity' AND palisade.make_durable();
        SELECT x.* INTO s FROM palisade.session x WHERE x.id = p_session AND x.deadline > '-infinity';
    END IF;
    RETURN s;
END $$;

CREATE OR REPLACE FUNCTION palisade.over(p_limit text, p_max bigint, p_value bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('OverLimit', json_build_object('limit', p_limit, 'max', p_max, 'value', p_value))::text $$;

CREATE OR REPLACE FUNCTION palisade.no_session(p_session bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('NoSuchSession', json_build_object('session', p_session))::text $$;

-- Returns the refusal for a token that does not hold a lock, or that another session holds. Whether the token ever held the lock
-- is unknown, since only the last one is stored.
CREATE OR REPLACE FUNCTION palisade.not_held(p_lock text, p_token bigint, p_holder bigint) RETURNS text LANGUAGE sql AS $$
    SELECT json_build_object(CASE WHEN p_holder IS NULL THEN 'NotHeld' ELSE 'OtherSession' END,
        json_build_object('lock', p_lock, 'token', p_token))::text $$;

-- Notifies a session's client, if it listens. With `p_keep`, also stores a notice, for messages that must not be lost.
CREATE OR REPLACE FUNCTION palisade.tell(p_session bigint, p_said text, p_keep boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO palisade.notice (session, said) SELECT s.id, p_said FROM palisade.session s WHERE s.id = p_session AND p_keep;
    PERFORM pg_notify(s.channel, p_said) FROM palisade.session s WHERE s.id = p_session AND s.channel IS NOT NULL;
END $$;

-- Notifies the watching clients of an event. For one that is too long for a notification, they get a `missed` message.
CREATE OR REPLACE FUNCTION palisade.report(p_is text, p_locks text[], p_event jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_payload text;
BEGIN
    IF (SELECT s.watched_until > palisade.now() FROM palisade.state s) THEN
        v_payload := 'w ' || (jsonb_build_object('is', p_is, 'locks', p_locks) || p_event)::text;
        PERFORM pg_notify(w.channel, CASE WHEN octet_length(v_payload) < 7900 THEN v_payload ELSE 'm' END)
            FROM (SELECT DISTINCT x.channel FROM palisade.watcher x, unnest(p_locks) l(name)
                WHERE x.until > palisade.now() AND starts_with(l.name, x.prefix)) w;
    END IF;
END $$;

-- Locks a lock's row until the end of the transaction. Inserts the row if it is missing. The floor is read again once the row
-- is locked: `clean` may have removed an older row, and raised the floor, since the inserting statement began.
CREATE OR REPLACE FUNCTION palisade.hold_row(p_lock text) RETURNS palisade.lock LANGUAGE plpgsql AS $$
DECLARE
    l palisade.lock;
BEGIN
    LOOP
        SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO palisade.lock (name, token) VALUES (p_lock, 0) ON CONFLICT (name) DO NOTHING;
        IF FOUND THEN
            UPDATE palisade.lock x SET token = (SELECT s.floor FROM palisade.state s) WHERE x.name = p_lock
                RETURNING x.* INTO STRICT l;
            EXIT;
        END IF;
    END LOOP;
    RETURN l;
END $$;

-- Locks the rows of these locks, in the order of their names. If it may not wait, skips those that another call has locked. Returns
-- the locked ones.
CREATE OR REPLACE FUNCTION palisade.hold_rows(p_locks text[], p_may_wait boolean) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_may_wait THEN
        RETURN ARRAY(SELECT l.name FROM palisade.lock l WHERE l.name = ANY(p_locks) ORDER BY l.name FOR UPDATE);
    END IF;
    RETURN ARRAY(SELECT l.name FROM palisade.lock l WHERE l.name = ANY(p_locks) ORDER BY l.name FOR UPDATE SKIP LOCKED);
END $$;

-- Returns whether enough permits are free, without regard to the queue.
CREATE OR REPLACE FUNCTION palisade.admits(l palisade.lock, p_need bigint) RETURNS boolean LANGUAGE sql AS
    'SELECT l.taken + p_need <= COALESCE(l.permits, 4294967295)';

-- Ends a claim, held or waiting. A grant with a lock-delay that expires becomes withheld. `how` is released, cancelled, closed,
-- expired, a refusal, `forced BY REASON TOKEN` with both texts in hex, or NULL for a lock-delay that is over. `p_locks` are the
-- locks for the event; NULL for no event.
CREATE OR REPLACE FUNCTION palisade.end_claim(c palisade.claim, p_how text, p_locks text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_is_grant boolean := NOT c.waits AND c.withheld_until IS NULL;
    v_withheld_until timestamptz := CASE WHEN v_is_grant AND p_how = 'expired' THEN palisade.now() + c.delay_ms * interval '1 ms' END;
    v_is_forced boolean := p_how LIKE 'forced%';
BEGIN
    IF v_withheld_until IS NULL THEN
        DELETE FROM palisade.claim x WHERE x.lock = c.lock AND x.waits = c.waits AND x.arrival = c.arrival
            RETURNING x.lock INTO STRICT c.lock;
    ELSE
        UPDATE palisade.claim x SET withheld_until = v_withheld_until, value = NULL
            WHERE x.lock = c.lock AND NOT x.waits AND x.arrival = c.arrival RETURNING x.lock INTO STRICT c.lock;
    END IF;
    UPDATE palisade.lock l SET waiting = l.waiting - c.waits::integer,
        taken = l.taken - CASE WHEN c.waits OR v_withheld_until IS NOT NULL THEN 0 ELSE c.need END,
        history = CASE WHEN v_is_grant THEN palisade.history_after(l.history, c, p_how) ELSE l.history END
        WHERE l.name = c.lock RETURNING l.name INTO STRICT c.lock;
    IF c.waits THEN
        PERFORM palisade.report('left', p_locks, jsonb_build_object('ticket', c.arrival, 'session', c.session, 'why', p_how));
        RETURN;
    END IF;
    IF v_is_grant AND p_how <> 'released' AND p_locks IS NOT NULL THEN
        -- Store the notices of a forced end, and of the grant: the client may not have heard of the grant yet.
        IF v_is_forced AND c.number > 0 THEN
            PERFORM palisade.tell(c.session, concat_ws(' ', 'g', c.session, c.number, c.token), true);
        END IF;
        PERFORM palisade.tell(c.session, concat_ws(' ', 'l', c.session, c.token, p_how), v_is_forced);
    END IF;
    PERFORM palisade.report(CASE WHEN v_is_grant THEN 'ended' ELSE 'delay-ended' END, p_locks,
        jsonb_build_object('session', c.session, 'token', c.token, 'how', p_how));
    IF v_withheld_until IS NOT NULL THEN
        PERFORM palisade.report('withheld', p_locks, jsonb_build_object('token', c.token, 'delay', c.delay_ms));
    END IF;
END $$;

-- Returns the history with this grant added, and at most eight entries.
CREATE OR REPLACE FUNCTION palisade.history_after(p_history text[], c palisade.claim, p_how text) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN COALESCE(p_history[GREATEST(cardinality(p_history) - 6, 1):], '{}') || concat_ws(',', c.token, c.session, c.need,
        COALESCE((SELECT encode(s.label, 'hex') FROM palisade.session s WHERE s.id = c.session), ''), p_how);
END $$;

-- Ends all claims of a request. Returns their locks, which the caller must `settle`. Withheld claims stay, unless `how` is forced.
CREATE OR REPLACE FUNCTION palisade.end_request(p_session bigint, p_number bigint, p_how text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_claims palisade.claim[] := ARRAY(SELECT x FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number
        AND (x.withheld_until IS NULL OR p_how LIKE 'forced%') ORDER BY x.part);
    v_locks text[] := ARRAY(SELECT x.lock FROM unnest(v_claims) x ORDER BY x.part);
    c palisade.claim;
BEGIN
    FOREACH c IN ARRAY v_claims LOOP
        -- A request for several locks gets one event, with its last claim.
        PERFORM palisade.end_claim(c, p_how, CASE WHEN c.lock = v_locks[cardinality(v_locks)] THEN v_locks END);
    END LOOP;
    RETURN v_locks;
END $$;

-- Ends the grants of ended sessions at a lock, and lock-delays that are over, at most 100. Returns whether there were any.
CREATE OR REPLACE FUNCTION palisade.end_dead_holders(p_lock text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_has_changed boolean := false;
    c palisade.claim;
BEGIN
    PERFORM palisade.expire(ARRAY(SELECT x.session FROM palisade.claim x JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = p_lock AND NOT x.waits AND x.withheld_until IS NULL AND s.deadline <= palisade.now() LIMIT 100));
    FOR c IN SELECT x.* FROM palisade.claim x LEFT JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = p_lock AND NOT x.waits AND CASE WHEN x.withheld_until IS NULL
            THEN COALESCE(s.deadline, '-infinity') = '-infinity' ELSE x.withheld_until <= palisade.now() END
        ORDER BY x.arrival LIMIT 100 LOOP
        PERFORM palisade.end_claim(c, CASE WHEN c.withheld_until IS NULL THEN 'expired' END, ARRAY[p_lock]);
        v_has_changed := true;
    END LOOP;
    RETURN v_has_changed;
END $$;

-- Returns the first waiter of a lock.
CREATE OR REPLACE FUNCTION palisade.front_of(p_lock text) RETURNS palisade.claim LANGUAGE sql AS
    'SELECT x FROM palisade.claim x WHERE x.lock = p_lock AND x.waits ORDER BY x.arrival LIMIT 1';

-- Removes the waiters of ended sessions from the first 1,000 of a queue, and returns how many. One statement does it, since each
-- search for a single one would scan over all rows that were deleted before.
CREATE OR REPLACE FUNCTION palisade.drop_dead_waiters(p_lock text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint[] := ARRAY(SELECT x.arrival FROM palisade.claim x WHERE x.lock = p_lock AND x.waits
        ORDER BY x.arrival LIMIT 1000);
    v_dropped integer := 0;
    c palisade.claim;
BEGIN
    PERFORM palisade.expire(ARRAY(SELECT x.session FROM palisade.claim x JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = p_lock AND x.waits AND x.arrival = ANY(v_first) AND s.deadline <= palisade.now()));
    FOR c IN DELETE FROM palisade.claim x WHERE x.lock = p_lock AND x.waits AND x.arrival = ANY(v_first)
        AND palisade.deadline_of(x.session) = '-infinity' RETURNING x.* LOOP
        v_dropped := v_dropped + 1;
        PERFORM palisade.report('left', ARRAY[p_lock], jsonb_build_object('ticket', c.arrival, 'session', c.session,
            'why', 'expired'));
    END LOOP;
    UPDATE palisade.lock l SET waiting = l.waiting - v_dropped WHERE l.name = p_lock AND v_dropped > 0;
    RETURN v_dropped;
END $$;

-- Grants these locks to waiters, from the front of each queue, at most 100 grants for each lock. With `p_ends_dead`, first ends the
-- holders whose sessions have ended. Returns whether anything has changed.
CREATE OR REPLACE FUNCTION palisade.settle(p_locks text[], p_ends_dead boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_has_changed boolean := false;
    v_todo text[] := p_locks;
    i integer := 0;
    v_granted integer;
    l palisade.lock;
    c palisade.claim;
BEGIN
    WHILE i < cardinality(v_todo) LOOP
        i := i + 1;
        v_granted := 0;
        v_has_changed := (p_ends_dead AND palisade.end_dead_holders(v_todo[i])) OR v_has_changed;
        LOOP
            SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = v_todo[i];
            EXIT WHEN l.waiting = 0 OR NOT palisade.admits(l, 1);
            c := palisade.front_of(l.name);
            IF palisade.deadline_of(c.session) <= palisade.now() THEN
                v_has_changed := palisade.drop_dead_waiters(l.name) > 0 OR v_has_changed;
                c := palisade.front_of(l.name);
                -- More than 1,000 waiters have ended, or a keep-alive is under way. The next call continues.
                EXIT WHEN palisade.deadline_of(c.session) <= palisade.now();
            END IF;
            IF v_granted = 100 THEN
                -- Its client then calls `look_up`, which continues.
                PERFORM palisade.tell(c.session, concat_ws(' ', 't', c.session, c.number), false);
                EXIT;
            END IF;
            EXIT WHEN NOT palisade.grant(c, true);
            v_granted := v_granted + 1;
            v_has_changed := true;
            IF c.parts > 1 THEN
                v_todo := v_todo || ARRAY(SELECT x.lock FROM palisade.claim x
                    WHERE x.session = c.session AND x.number = c.number AND x.lock <> c.lock ORDER BY x.part);
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_has_changed;
END $$;

-- Grants a request that is at the front of one queue, if it is at the front of all its queues and enough permits are free. This
-- call has locked rows already, so it does not wait for the row of a further lock. It then notifies the waiter, which polls.
CREATE OR REPLACE FUNCTION palisade.grant(c palisade.claim, p_tells boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_locks text[] := ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number ORDER BY x.part);
    v_token bigint;
    v_changed integer;
BEGIN
    IF c.parts > 1 AND cardinality(palisade.hold_rows(v_locks, false)) < c.parts THEN
        PERFORM palisade.tell(c.session, concat_ws(' ', 't', c.session, c.number), false);
        RETURN false;
    END IF;
    SELECT max(l.token) + 1 INTO v_token FROM palisade.claim x JOIN palisade.lock l ON l.name = x.lock
        WHERE x.session = c.session AND x.number = c.number
        HAVING bool_and(palisade.admits(l, x.need) AND NOT EXISTS (SELECT FROM palisade.claim y
            WHERE y.lock = x.lock AND y.waits AND y.arrival < x.arrival));
    IF v_token IS NULL OR v_token > 9007199254740991 OR NOT palisade.make_durable() THEN
        RETURN false;
    END IF;
    v_token := GREATEST(v_token, nextval('palisade.tokens'));
    UPDATE palisade.claim x SET waits = false, arrival = v_token, token = v_token, since = palisade.now()
        WHERE x.session = c.session AND x.number = c.number;
    UPDATE palisade.lock l SET token = v_token, taken = l.taken + x.need, waiting = l.waiting - 1
        FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number AND l.name = x.lock;
    GET DIAGNOSTICS v_changed = ROW_COUNT;
    IF v_changed <> c.parts THEN
        RAISE EXCEPTION 'request % of session % has % of its % places', c.number, c.session, v_changed, c.parts;
    END IF;
    IF p_tells THEN
        PERFORM palisade.tell(c.session, concat_ws(' ', 'g', c.session, c.number, v_token), false);
    END IF;
    PERFORM palisade.report('granted', v_locks, jsonb_build_object('session', c.session, 'token', v_token,
        'ticket', CASE WHEN p_tells THEN c.arrival END, 'number', CASE WHEN c.number > 0 THEN c.number END));
    IF c.value IS NOT NULL THEN
        PERFORM palisade.report('published', v_locks, jsonb_build_object('token', v_token, 'value', encode(c.value, 'hex')));
    END IF;
    RETURN true;
END $$;

-- Ends up to 64 requests of a session that has ended, and then deletes its row. The caller has an exclusive lock on its key.
-- Returns how much was done.
CREATE OR REPLACE FUNCTION palisade.end_session(p_session bigint, p_how text, p_may_wait boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_held text[];
    v_done integer := 0;
    r record;
BEGIN
    v_held := palisade.hold_rows(ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = p_session
        AND x.withheld_until IS NULL ORDER BY x.waits DESC, x.arrival LIMIT 64), p_may_wait);
    FOR r IN SELECT x.number, array_agg(x.lock) AS locks FROM palisade.claim x
        WHERE x.session = p_session AND x.withheld_until IS NULL
        GROUP BY x.number, x.waits, x.arrival ORDER BY x.waits DESC, x.arrival LOOP
        IF r.locks <@ v_held THEN
            PERFORM palisade.end_request(p_session, r.number, p_how);
            v_done := v_done + 1;
        END IF;
    END LOOP;
    PERFORM palisade.settle(v_held, false);
    IF NOT EXISTS (SELECT FROM palisade.claim x WHERE x.session = p_session AND x.withheld_until IS NULL) THEN
        DELETE FROM palisade.notice n WHERE n.session = p_session;
        DELETE FROM palisade.session s WHERE s.id = p_session;
        v_done := v_done + 1;
    END IF;
    RETURN v_done;
END $$;

-- Clients of every kind --------------------------------------------------------------------------------------------------

-- Opens a session.
CREATE OR REPLACE FUNCTION palisade.open(p_ttl_ms bigint, p_label bytea, p_channel text, OUT session bigint, OUT refusal text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.check_origin() OR NOT palisade.make_durable() THEN RETURN; END IF;
    IF p_ttl_ms < 100 THEN
        refusal := json_build_object('UnderLimit', json_build_object('limit', 'TtlMinMs', 'min', 100, 'value', p_ttl_ms));
    ELSIF p_ttl_ms > 3888000000 THEN
        refusal := palisade.over('TtlMaxMs', 3888000000, p_ttl_ms);
    ELSIF octet_length(p_label) > 256 THEN
        refusal := palisade.over('LabelBytes', 256, octet_length(p_label));
    ELSIF octet_length(p_channel) NOT BETWEEN 1 AND 63 THEN
        RAISE EXCEPTION 'a session cannot listen on a channel whose name has % bytes', octet_length(p_channel)
            USING ERRCODE = 'PL001', HINT = 'The name of a channel has 1 to 63 bytes. Pass NULL to listen on none.';
    ELSE
        LOOP
            -- A random number, so that no session gets the number of another one, even in a restored database.
            session := 1 + ('x' || translate(right(gen_random_uuid()::text, 13), '-', ''))::bit(48)::bigint;
            INSERT INTO palisade.session (id, ttl_ms, deadline, channel, label)
                VALUES (session, p_ttl_ms, palisade.now() + p_ttl_ms * interval '1 ms', p_channel, p_label)
                ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
        END LOOP;
    END IF;
END $$;

-- Renews a session, durably; false if it has ended. Ends it if its deadline has passed, even if the clock is set back later.
CREATE OR REPLACE FUNCTION palisade.keep_alive(p_session bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_lives boolean;
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN false; END IF;
    UPDATE palisade.session s SET deadline = CASE WHEN s.deadline > palisade.now()
            THEN palisade.now() + s.ttl_ms * interval '1 ms' ELSE '-infinity' END
        WHERE s.id = p_session AND s.deadline > '-infinity' RETURNING s.deadline > '-infinity' INTO v_lives;
    RETURN COALESCE(v_lives, false);
END $$;

-- Closes a session. Returns false if claims are left: then call it again. Closing a session that has ended is not an error.
CREATE OR REPLACE FUNCTION palisade.close(p_session bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN false; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    UPDATE palisade.session s SET deadline = '-infinity' WHERE s.id = p_session AND s.deadline > '-infinity';
    IF FOUND THEN
        PERFORM palisade.tell(p_session, concat_ws(' ', 's', p_session, 'closed'), false);
    END IF;
    PERFORM palisade.end_session(p_session, 'closed', true);
    RETURN NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = p_session);
END $$;

-- Ends expired sessions, and lock-delays that are over. Returns how much was done: call it again, in separate transactions, until
-- that is 0. Never waits for a row.
CREATE OR REPLACE FUNCTION palisade.sweep(p_most integer DEFAULT 64) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_session bigint;
    v_lock text;
    v_done integer := 0;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN 0; END IF;
    FOR v_session IN SELECT s.id FROM palisade.session s WHERE s.deadline <= palisade.now()
        ORDER BY s.deadline LIMIT 1000 LOOP
        EXIT WHEN v_done >= p_most;
        IF pg_try_advisory_xact_lock(1885432935, palisade.key_of(v_session)) THEN
            PERFORM palisade.expire(ARRAY[v_session]);
            IF palisade.deadline_of(v_session) = '-infinity' THEN
                v_done := v_done + palisade.end_session(v_session, 'expired', false);
            END IF;
        END IF;
    END LOOP;
    FOR v_lock IN SELECT DISTINCT x.lock FROM palisade.claim x WHERE x.withheld_until <= palisade.now()
        LIMIT GREATEST(p_most - v_done, 0) LOOP
        IF cardinality(palisade.hold_rows(ARRAY[v_lock], false)) > 0 THEN
            PERFORM palisade.settle(ARRAY[v_lock], true);
            v_done := v_done + 1;
        END IF;
    END LOOP;
    DELETE FROM palisade.watcher w WHERE w.ctid = ANY(ARRAY(SELECT x.ctid FROM palisade.watcher x
        WHERE x.until <= palisade.now() FOR UPDATE SKIP LOCKED));
    RETURN v_done;
END $$;

-- Removes rows of unused locks, except those with one of the last `p_keep` tokens, and raises the floor to their tokens. Examines
-- `p_most` rows, from where the last call stopped. `more` is false after the last row. It fails in a transaction that has changed
-- anything before, since it could remove a row that this transaction needs.
CREATE OR REPLACE FUNCTION palisade.clean(
    p_keep bigint DEFAULT 2000, p_most integer DEFAULT 1000, OUT removed integer, OUT more boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last bigint;
    v_from text;
    v_to text;
    v_seen integer;
    v_highest bigint;
BEGIN
    removed := 0;
    more := false;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'rows of locks are not removed in a transaction that has changed something'
            USING ERRCODE = 'PL002', HINT = 'Call it in a transaction of its own, or CALL palisade.tidy().';
    END IF;
    IF NOT palisade.check_transaction() OR NOT pg_try_advisory_xact_lock(1885432935, -1) THEN
        RETURN;
    END IF;
    SELECT t.last_value, s.cleaned_to INTO v_last, v_from FROM palisade.tokens t, palisade.state s;
    SELECT max(x.name), count(*) INTO v_to, v_seen FROM (
        SELECT l.name FROM palisade.lock l WHERE l.name > v_from ORDER BY l.name LIMIT p_most) x;
    WITH idle AS (
        SELECT l.name FROM palisade.lock l WHERE l.name > v_from AND l.name <= v_to AND l.taken = 0 AND l.waiting = 0
            AND l.token NOT BETWEEN v_last - p_keep + 1 AND v_last FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM palisade.lock l USING idle WHERE l.name = idle.name RETURNING l.token
    )
    SELECT max(gone.token), count(*) INTO v_highest, removed FROM gone;
    more := v_seen >= p_most;
    UPDATE palisade.state s SET floor = GREATEST(s.floor, v_highest), cleaned_to = CASE WHEN more THEN v_to ELSE '' END
        WHERE removed > 0 OR s.cleaned_to <> CASE WHEN more THEN v_to ELSE '' END;
END $$;

-- Returns a refusal if a request is invalid whatever the state of the locks; otherwise NULL. Fails for a request that no version of
-- the library sends.
CREATE OR REPLACE FUNCTION palisade.fault_of(
    p_locks text[], p_needs bigint[], p_permits bigint[], p_delay_ms bigint, p_value bytea
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i integer;
BEGIN
    IF COALESCE(cardinality(p_locks), 0) = 0 THEN
        RETURN '"NoLocks"';
    ELSIF cardinality(p_locks) > 64 THEN
        RETURN palisade.over('LocksPerRequest', 64, cardinality(p_locks));
    ELSIF cardinality(p_needs) IS DISTINCT FROM cardinality(p_locks)
        OR cardinality(p_permits) IS DISTINCT FROM cardinality(p_locks) OR p_delay_ms < 0 THEN
        RAISE EXCEPTION 'a request has a need and a number of permits for each lock, and a delay of 0 or more'
            USING ERRCODE = 'PL001';
    END IF;
    FOR i IN 1 .. cardinality(p_locks) LOOP
        IF octet_length(p_locks[i]) > 512 THEN
            RETURN palisade.over('NameBytes', 512, octet_length(p_locks[i]));
        ELSIF NOT palisade.is_name(p_locks[i]) THEN
            RAISE EXCEPTION 'a lock''s name has 1 to 512 bytes, no control characters, and does not begin with $'
                USING ERRCODE = 'PL001';
        ELSIF p_permits[i] NOT BETWEEN 1 AND 4294967294 THEN
            RETURN json_build_object('BadLimit', json_build_object('limit', p_permits[i]));
        ELSIF p_permits[i] IS NOT NULL AND (p_needs[i] BETWEEN 1 AND p_permits[i]) IS NOT TRUE THEN
            RETURN json_build_object('BadPermits', json_build_object('count', p_needs[i], 'of', p_permits[i]));
        ELSIF p_permits[i] IS NULL AND (p_needs[i] IN (1, 4294967295)) IS NOT TRUE THEN
            RAISE EXCEPTION 'a lock is exclusive, which needs 4294967295, or shared, which needs 1; not %', p_needs[i]
                USING ERRCODE = 'PL001';
        ELSIF p_locks[i] = ANY(p_locks[: i - 1]) THEN
            RETURN json_build_object('NamedTwice', json_build_object('lock', p_locks[i]));
        END IF;
    END LOOP;
    RETURN CASE
        WHEN p_delay_ms > 3600000 THEN palisade.over('DelayMaxMs', 3600000, p_delay_ms)
        WHEN octet_length(p_value) > 4096 THEN palisade.over('ValueBytes', 4096, octet_length(p_value))
        WHEN p_value IS NOT NULL AND (cardinality(p_locks) > 1 OR p_needs[1] <> 4294967295) THEN '"ValueNotPossible"' END;
END $$;

-- Returns whether a name is valid, by the same rules as the library.
CREATE OR REPLACE FUNCTION palisade.is_name(p_lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN COALESCE(octet_length(p_lock) BETWEEN 1 AND 512 AND NOT starts_with(p_lock, '$')
        AND p_lock !~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069\\u200e\\u200f\\u061c]', false);
END $$;

CREATE OR REPLACE FUNCTION palisade.kind_of(p_permits bigint) RETURNS json LANGUAGE sql AS $$
    SELECT CASE WHEN p_permits IS NULL THEN '"Lock"'::json
        ELSE json_build_object('Semaphore', json_build_object('limit', p_permits)) END $$;

-- Returns a refusal if the current use of one lock does not allow the request; otherwise NULL.
CREATE OR REPLACE FUNCTION palisade.conflict_of(
    l palisade.lock, p_session bigint, p_permits bigint, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE sql AS $$
    SELECT COALESCE(
        CASE WHEN l.permits <> p_permits
            THEN json_build_object('LimitDiffers', json_build_object('lock', l.name, 'limit', l.permits, 'asked', p_permits))
        WHEN l.permits IS DISTINCT FROM p_permits
            THEN json_build_object('WrongKind', json_build_object('lock', l.name, 'is', palisade.kind_of(l.permits),
                'asked', palisade.kind_of(p_permits)))
        WHEN NOT p_may_queue THEN (
            SELECT json_build_object('AlreadyHeld', json_build_object('lock', l.name, 'token', min(x.token))) FROM palisade.claim x
            WHERE x.session = p_session AND x.lock = l.name AND NOT x.waits AND x.withheld_until IS NULL HAVING count(*) > 0)
        END::text,
        CASE WHEN l.waiting >= 100000 AND p_waits THEN palisade.over('WaitersPerLock', 100000, l.waiting + 1) END)
$$;

-- Returns whether a lock needs `settle` although nothing was released: a holder's session has expired, a lock-delay is over, or the
-- first waiter could be granted. Only for the first waiter itself are all holders checked; otherwise the first 16.
CREATE OR REPLACE FUNCTION palisade.is_stuck(l palisade.lock, p_session bigint, p_number bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    f palisade.claim;
    v_is_mine boolean;
BEGIN
    IF l.waiting > 0 THEN
        f := palisade.front_of(l.name);
        v_is_mine := f.session = p_session AND f.number = p_number;
        IF palisade.deadline_of(f.session) <= palisade.now() OR (palisade.admits(l, f.need) AND (f.parts = 1 OR v_is_mine)) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN l.taken > 0 AND EXISTS (SELECT FROM (
            SELECT c.session, c.withheld_until FROM palisade.claim c WHERE c.lock = l.name AND NOT c.waits
            ORDER BY c.arrival LIMIT CASE WHEN v_is_mine THEN NULL ELSE 16 END) x
        WHERE COALESCE(x.withheld_until, palisade.deadline_of(x.session)) <= palisade.now());
END $$;

-- Returns the outcome for a repeated request that waits or holds already; NULLs if there is no such request.
CREATE OR REPLACE FUNCTION palisade.standing(
    p_session bigint, p_number bigint, p_locks text[], p_needs bigint[], OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql AS $$
DECLARE
    v_is_same boolean;
BEGIN
    SELECT (array_agg(x.lock ORDER BY x.part), array_agg(x.need ORDER BY x.part)) = (p_locks, p_needs),
        CASE WHEN bool_or(x.waits) THEN 'queued' ELSE 'granted' END, max(x.token), CASE WHEN bool_or(x.waits) THEN max(x.arrival) END
        INTO v_is_same, said, token, detail
        FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number HAVING count(*) > 0;
    IF v_is_same IS FALSE THEN
        said := 'refused';
        token := NULL;
        detail := json_build_object('NumberReused', json_build_object('number', p_number));
    END IF;
END $$;

-- Requests one lock or several. A lock is a semaphore: an exclusive holder needs 4294967295 permits, a shared one needs 1, both with
-- NULL permits.
-- `said` is granted, queued, busy, outdated or refused; `detail` is the refusal, or the wait's number.
CREATE OR REPLACE FUNCTION palisade.request(
    p_session bigint, p_epoch integer, p_number bigint, p_locks text[], p_needs bigint[], p_permits bigint[],
    p_waits boolean, p_may_queue boolean, p_delay_ms bigint, p_value bytea,
    OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session;
    l palisade.lock;
    c palisade.claim;
    i integer;
    v_stuck text[] := '{}';
    v_number bigint := COALESCE(p_number, -nextval('palisade.arrivals'));
    v_is_free boolean := true;
    v_changed integer;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    said := 'refused';
    PERFORM pg_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session));
    s := palisade.living(p_session);
    IF s.id IS NULL THEN
        detail := palisade.no_session(p_session);
    ELSIF p_epoch < s.epoch THEN
        said := 'outdated';
    ELSIF p_number = ANY(s.withdrawn) THEN
        detail := json_build_object('Withdrawn', json_build_object('number', p_number));
    ELSIF p_number <= s.forgotten THEN
        SELECT * INTO said, token, detail FROM palisade.standing(p_session, p_number, p_locks, p_needs);
        IF said IS NULL THEN
            said := 'refused';
            detail := json_build_object('NumberForgotten', json_build_object('number', p_number));
        END IF;
    ELSE
        detail := palisade.fault_of(p_locks, p_needs, p_permits, p_delay_ms, p_value);
    END IF;
    IF said <> 'refused' OR detail IS NOT NULL THEN
        RETURN;
    END IF;
    FOR i IN SELECT g.i FROM generate_subscripts(p_locks, 1) g(i) ORDER BY p_locks[g.i] COLLATE "C" LOOP
        l := palisade.hold_row(p_locks[i]);
        IF palisade.is_stuck(l, p_session, p_number) THEN
            v_stuck := v_stuck || l.name;
        END IF;
    END LOOP;
    PERFORM palisade.settle(v_stuck, true);
    SELECT * INTO said, token, detail FROM palisade.standing(p_session, p_number, p_locks, p_needs);
    IF said IS NOT NULL THEN
        RETURN;
    END IF;
    said := 'refused';
    FOR i IN 1 .. cardinality(p_locks) LOOP
        SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = p_locks[i];
        IF l.taken > 0 OR l.waiting > 0 THEN
            detail := palisade.conflict_of(l, p_session, p_permits[i], p_waits, p_may_queue);
            v_is_free := v_is_free AND l.waiting = 0 AND palisade.admits(l, p_needs[i]);
        END IF;
        IF detail IS NULL AND l.token >= 9007199254740991 THEN
            detail := '{"TokensExhausted":{"max":9007199254740991}}';
        END IF;
        IF detail IS NOT NULL THEN
            RETURN;
        END IF;
    END LOOP;
    IF NOT v_is_free AND NOT p_waits THEN
        said := 'busy';
        RETURN;
    END IF;
    -- Join the queues. If all locks are free, the request is at their front, and is granted from there.
    detail := nextval('palisade.arrivals');
    INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, since, delay_ms, value)
        SELECT p_locks[g.i], true, detail::bigint, p_session, v_number, g.i, cardinality(p_locks), p_needs[g.i], palisade.now(),
            p_delay_ms, p_value FROM generate_subscripts(p_locks, 1) g(i);
    UPDATE palisade.lock x SET waiting = x.waiting + 1, permits = p_permits[array_position(p_locks, x.name)],
        history = CASE WHEN x.taken > 0 OR x.waiting > 0 THEN x.history END WHERE x.name = ANY(p_locks);
    GET DIAGNOSTICS v_changed = ROW_COUNT;
    IF v_changed <> cardinality(p_locks) THEN
        RAISE EXCEPTION 'request % of session % has changed % rows instead of %', v_number, p_session, v_changed,
            cardinality(p_locks);
    END IF;
    IF v_is_free THEN
        SELECT x.* INTO STRICT c FROM palisade.claim x WHERE x.session = p_session AND x.number = v_number AND x.part = 1;
        IF NOT palisade.grant(c, false) THEN
            RAISE EXCEPTION 'request % of session % is free and not granted', v_number, p_session;
        END IF;
        SELECT * INTO said, token, detail FROM palisade.standing(p_session, v_number, p_locks, p_needs);
    ELSE
        said := 'queued';
        PERFORM palisade.report('queued', p_locks, jsonb_build_object('ticket', detail::bigint, 'session', p_session));
    END IF;
END $$;

-- Requests one exclusive lock. The fast path is for a lock that has a row and is unused, while no client watches. It runs two
-- statements, where `request` runs a dozen and handles all other cases. Returns the token, or queued, busy, outdated, or a refusal.
-- Setting a search path would take a tenth of a call, and more with many connections. So this function and `give_back` set none, and
-- qualify each function and operator with its schema, so that a caller's search path cannot change what is called.
CREATE OR REPLACE FUNCTION palisade.take(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_token bigint;
BEGIN
    -- Lock the key before reading the session. If the key is not available, `request` waits for it.
    IF pg_catalog.pg_try_advisory_xact_lock_shared(1885432935,
        (1 OPERATOR(pg_catalog.+) (p_session OPERATOR(pg_catalog.%) 2147483646))::integer) THEN
        v_token := pg_catalog.nextval('palisade.tokens');
        UPDATE palisade.lock l SET token = v_token, taken = 4294967295, permits = NULL, history = NULL FROM palisade.session s
            WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.taken OPERATOR(pg_catalog.=) 0
                AND l.waiting OPERATOR(pg_catalog.=) 0 AND l.token OPERATOR(pg_catalog.<) v_token
                AND s.id OPERATOR(pg_catalog.=) p_session AND s.deadline OPERATOR(pg_catalog.>) palisade.now()
                AND s.epoch OPERATOR(pg_catalog.<=) CASE WHEN pg_catalog.current_setting('transaction_isolation')
                    OPERATOR(pg_catalog.=) 'read committed' THEN p_epoch END
                AND s.forgotten OPERATOR(pg_catalog.<) p_number AND p_number OPERATOR(pg_catalog.<>) ALL (s.withdrawn)
                AND (SELECT x.watched_until OPERATOR(pg_catalog.<) palisade.now() FROM palisade.state x);
        IF FOUND THEN
            INSERT INTO palisade.claim (lock, waits, arrival, token, session, number, part, parts, need, since)
                VALUES (p_lock, false, v_token, v_token, p_session, p_number, 1, 1, 4294967295, palisade.now());
            -- The body of `make_durable`, inlined.
            IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
                AND pg_catalog.set_config('synchronous_commit', 'on', true) IS NULL THEN
                RETURN NULL;
            END IF;
            RETURN v_token;
        END IF;
    END IF;
    RETURN palisade.take_or_queue(p_session, p_epoch, p_number, p_lock, p_waits, p_may_queue);
END $$;

-- The second fast path: a live session holds the lock exclusively, so the request joins the queue.
CREATE OR REPLACE FUNCTION palisade.take_or_queue(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    IF p_waits AND p_may_queue AND palisade.check_transaction()
        AND pg_try_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session)) THEN
        UPDATE palisade.lock l SET waiting = l.waiting + 1 FROM palisade.claim c, palisade.session h, palisade.session s
            WHERE l.name = p_lock AND l.taken = 4294967295 AND l.waiting < 100000 AND c.lock = p_lock AND NOT c.waits
                AND c.withheld_until IS NULL AND h.id = c.session AND h.deadline > palisade.now()
                AND s.id = p_session AND s.deadline > palisade.now() AND s.epoch <= p_epoch
                AND s.forgotten < p_number AND p_number <> ALL (s.withdrawn)
                AND (SELECT x.watched_until < palisade.now() FROM palisade.state x)
                AND NOT EXISTS (SELECT FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number);
        IF FOUND THEN
            -- The lock's row is locked, so this is the highest arrival.
            INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, since)
                VALUES (p_lock, true, nextval('palisade.arrivals'), p_session, p_number, 1, 1, 4294967295, palisade.now());
            RETURN 'queued';
        END IF;
    END IF;
    r := palisade.request(p_session, p_epoch, p_number, ARRAY[p_lock], ARRAY[4294967295], ARRAY[NULL::bigint], p_waits,
        p_may_queue, NULL, NULL);
    RETURN CASE r.said WHEN 'granted' THEN r.token::text WHEN 'refused' THEN r.detail ELSE r.said END;
END $$;

-- Releases a grant with all its locks, and grants them to the next waiters. Returns NULL, or a refusal. The fast path is for one
-- exclusively held lock without waiters, while no client watches. At a stricter isolation level than READ COMMITTED, the UPDATE fails
-- if the row has changed since the transaction began.
CREATE OR REPLACE FUNCTION palisade.give_back(p_session bigint, p_lock text, p_token bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE palisade.lock l SET taken = 0
        WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.token OPERATOR(pg_catalog.=) p_token
            AND l.taken OPERATOR(pg_catalog.=) 4294967295 AND l.waiting OPERATOR(pg_catalog.=) 0
            AND (SELECT x.watched_until OPERATOR(pg_catalog.<) palisade.now() FROM palisade.state x);
    IF FOUND THEN
        DELETE FROM palisade.claim c WHERE c.lock OPERATOR(pg_catalog.=) p_lock AND NOT c.waits
            AND c.arrival OPERATOR(pg_catalog.=) p_token AND c.session OPERATOR(pg_catalog.=) p_session
            AND c.parts OPERATOR(pg_catalog.=) 1 AND c.withheld_until IS NULL;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- Another session holds it, or the grant has several locks, or it is withheld. Undo the change.
        UPDATE palisade.lock l SET taken = 4294967295 WHERE l.name OPERATOR(pg_catalog.=) p_lock;
    END IF;
    RETURN palisade.hand_over(p_session, p_lock, p_token);
END $$;

-- The second fast path: the first waiter has a live session and wants this lock alone, exclusively, and no client watches. (It runs
-- a third of the statements of `end_request` and `settle`.)
CREATE OR REPLACE FUNCTION palisade.hand_over(p_session bigint, p_lock text, p_token bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c palisade.claim;
    v_locks text[];
    v_next record;
    v_token bigint;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN NULL; END IF;
    IF (palisade.living(p_session)).id IS NULL THEN
        RETURN palisade.no_session(p_session);
    END IF;
    SELECT x.* INTO c FROM palisade.lock l JOIN palisade.claim x ON x.lock = l.name AND NOT x.waits AND x.arrival = p_token
        WHERE l.name = p_lock AND l.token = p_token AND l.taken = 4294967295 AND l.waiting > 0 AND l.token < 9007199254740991
            AND x.session = p_session AND x.parts = 1 AND x.withheld_until IS NULL
            AND (SELECT y.watched_until < palisade.now() FROM palisade.state y) FOR UPDATE OF l;
    IF FOUND THEN
        v_token := GREATEST(p_token + 1, nextval('palisade.tokens'));
        UPDATE palisade.claim x SET waits = false, arrival = v_token, token = v_token, since = palisade.now() FROM palisade.session n
            WHERE x.lock = p_lock AND x.waits AND x.arrival = (SELECT y.arrival FROM palisade.claim y
                    WHERE y.lock = p_lock AND y.waits ORDER BY y.arrival LIMIT 1)
                AND x.parts = 1 AND x.need = 4294967295 AND n.id = x.session AND n.deadline > palisade.now()
            RETURNING x.session, x.number, n.channel INTO v_next;
        IF FOUND AND palisade.make_durable() THEN
            DELETE FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits AND x.arrival = c.arrival;
            UPDATE palisade.lock l SET token = v_token, waiting = l.waiting - 1,
                history = palisade.history_after(l.history, c, 'released') WHERE l.name = p_lock;
            IF v_next.channel IS NOT NULL THEN
                PERFORM pg_notify(v_next.channel, concat_ws(' ', 'g', v_next.session, v_next.number, v_token));
            END IF;
            RETURN NULL;
        END IF;
    END IF;
    -- The locks of a grant never change, so it is safe to read them before their rows are locked.
    v_locks := ARRAY(SELECT y.lock FROM palisade.claim x JOIN palisade.claim y ON y.session = x.session AND y.number = x.number
        WHERE x.lock = p_lock AND NOT x.waits AND x.arrival = p_token);
    v_locks := palisade.hold_rows(v_locks, true);
    c := palisade.held_by(p_lock, p_token);
    IF c.session IS DISTINCT FROM p_session THEN
        RETURN palisade.not_held(p_lock, p_token, c.session);
    END IF;
    PERFORM palisade.end_request(p_session, c.number, 'released');
    PERFORM palisade.settle(v_locks, false);
    RETURN NULL;
END $$;

-- Returns the claim that holds a lock with this token; NULLs if no claim holds it, or if the claim is withheld.
CREATE OR REPLACE FUNCTION palisade.held_by(p_lock text, p_token bigint) RETURNS palisade.claim LANGUAGE sql AS
    'SELECT x FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits AND x.arrival = p_token AND x.withheld_until IS NULL';

-- Cancels a request that waits, or that has not arrived yet. `said` is gone, or granted with the token, or refused.
CREATE OR REPLACE FUNCTION palisade.cancel(
    p_session bigint, p_number bigint, OUT said text, OUT token bigint, OUT detail text, OUT lock text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_locks text[];
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    IF (palisade.living(p_session)).id IS NULL THEN
        said := 'refused';
        detail := palisade.no_session(p_session);
        RETURN;
    END IF;
    v_locks := palisade.hold_rows(ARRAY(SELECT x.lock FROM palisade.claim x
        WHERE x.session = p_session AND x.number = p_number), true);
    SELECT x.token, x.lock INTO token, lock FROM palisade.claim x
        WHERE x.session = p_session AND x.number = p_number AND NOT x.waits ORDER BY x.part LIMIT 1;
    IF FOUND THEN
        said := 'granted';
        RETURN;
    END IF;
    said := 'gone';
    UPDATE palisade.session x SET withdrawn = x.withdrawn[GREATEST(cardinality(x.withdrawn) - 62, 1):] || p_number,
        forgotten = GREATEST(x.forgotten, CASE WHEN cardinality(x.withdrawn) > 63 THEN x.withdrawn[1] END)
        WHERE x.id = p_session AND p_number <> ALL (x.withdrawn);
    PERFORM palisade.end_request(p_session, p_number, 'cancelled');
    PERFORM palisade.settle(v_locks, false);
END $$;

-- Sets the value that observers of a lock read. Returns NULL, or a refusal.
CREATE OR REPLACE FUNCTION palisade.publish(p_session bigint, p_lock text, p_token bigint, p_value bytea)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c palisade.claim;
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN NULL; END IF;
    IF (palisade.living(p_session)).id IS NULL THEN
        RETURN palisade.no_session(p_session);
    END IF;
    PERFORM palisade.hold_rows(ARRAY[p_lock], true);
    c := palisade.held_by(p_lock, p_token);
    IF c.session IS DISTINCT FROM p_session THEN
        RETURN palisade.not_held(p_lock, p_token, c.session);
    END IF;
    IF octet_length(p_value) > 4096 THEN
        RETURN palisade.over('ValueBytes', 4096, octet_length(p_value));
    END IF;
    IF c.parts > 1 OR c.need <> 4294967295 THEN
        RETURN '"ValueNotPossible"';
    END IF;
    UPDATE palisade.claim x SET value = p_value WHERE x.lock = p_lock AND NOT x.waits AND x.arrival = c.arrival;
    PERFORM palisade.report('published', ARRAY[p_lock], jsonb_build_object('token', p_token, 'value', encode(p_value, 'hex')));
    RETURN NULL;
END $$;

-- Releases a lock by force: all its grants, or only the one with this token. `moved_to` is a new token, above those of the ended
-- grants.
CREATE OR REPLACE FUNCTION palisade.force(
    p_lock text, p_only bigint, p_by bytea, p_reason bytea, OUT grants integer, OUT moved_to bigint, OUT refusal text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_locks text[];
    v_how text;
    r record;
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
    IF GREATEST(octet_length(p_by), octet_length(p_reason)) > 256 THEN
        refusal := palisade.over('LabelBytes', 256, GREATEST(octet_length(p_by), octet_length(p_reason)));
        RETURN;
    END IF;
    v_locks := palisade.hold_rows(ARRAY(SELECT DISTINCT y.lock FROM palisade.claim x, palisade.claim y
        WHERE x.lock = p_lock AND NOT x.waits AND y.session = x.session AND y.number = x.number) || p_lock, true);
    IF p_lock = ANY(v_locks) THEN
        PERFORM palisade.settle(ARRAY[p_lock], true);
    END IF;
    IF NOT EXISTS (SELECT FROM palisade.claim x
        WHERE x.lock = p_lock AND NOT x.waits AND x.token = COALESCE(p_only, x.token)) THEN
        refusal := CASE WHEN p_only IS NULL THEN json_build_object('NoHolder', json_build_object('lock', p_lock))::text
            ELSE palisade.not_held(p_lock, p_only, NULL) END;
        RETURN;
    END IF;
    moved_to := GREATEST(nextval('palisade.tokens'), (SELECT max(x.token) + 1 FROM palisade.lock x WHERE x.name = ANY(v_locks)));
    v_how := concat_ws(' ', 'forced', encode(p_by, 'hex'), encode(p_reason, 'hex'), moved_to);
    grants := 0;
    FOR r IN SELECT x.session, x.number FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits
        AND x.token = COALESCE(p_only, x.token) ORDER BY x.arrival LOOP
        -- A request that was granted while this call waited for the row may have further locks.
        v_locks := v_locks || palisade.end_request(r.session, r.number, v_how);
        grants := grants + 1;
    END LOOP;
    UPDATE palisade.lock x SET token = moved_to WHERE x.name = ANY(v_locks) AND x.token < moved_to;
    PERFORM palisade.settle(v_locks, false);
END $$;

-- Changes the permits of a semaphore that is in use. Returns NULL, or a refusal.
CREATE OR REPLACE FUNCTION palisade.resize(p_lock text, p_permits bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
    v_locks text[];
    v_refusal text := json_build_object('ResizedBelow', json_build_object('lock', p_lock, 'limit', p_permits));
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN NULL; END IF;
    v_locks := palisade.hold_rows(ARRAY(SELECT DISTINCT y.lock FROM palisade.claim x, palisade.claim y WHERE x.lock = p_lock
        AND x.waits AND x.need > p_permits AND y.session = x.session AND y.number = x.number) || p_lock, true);
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock AND (x.taken > 0 OR x.waiting > 0);
    IF NOT FOUND THEN
        RETURN json_build_object('NoSuchLock', json_build_object('lock', p_lock));
    END IF;
    IF l.permits IS NULL THEN
        RETURN json_build_object('WrongKind', json_build_object('lock', p_lock, 'is', 'Lock',
            'asked', palisade.kind_of(p_permits)));
    END IF;
    IF (p_permits BETWEEN 1 AND 4294967294) IS NOT TRUE THEN
        RETURN json_build_object('BadLimit', json_build_object('limit', p_permits));
    END IF;
    UPDATE palisade.lock x SET permits = p_permits WHERE x.name = p_lock;
    PERFORM palisade.report('resized', ARRAY[p_lock], jsonb_build_object('limit', p_permits));
    FOR c IN SELECT x.* FROM palisade.claim x WHERE x.lock = p_lock AND x.waits AND x.need > p_permits ORDER BY x.arrival LOOP
        v_locks := v_locks || palisade.end_request(c.session, c.number, v_refusal);
        PERFORM palisade.tell(c.session, concat_ws(' ', 'r', c.session, c.number, v_refusal), true);
    END LOOP;
    PERFORM palisade.settle(v_locks, false);
    RETURN NULL;
END $$;

-- Attaches a session to a new connection of its client. Late requests of older connections are refused from then on. Returns a row
-- for each grant with its request number; one row of NULLs if the session holds nothing; no row if the session has ended.
CREATE OR REPLACE FUNCTION palisade.attach(p_session bigint, p_epoch integer) RETURNS TABLE (lock text, number bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.check_origin() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    IF (palisade.living(p_session)).id IS NULL THEN RETURN; END IF;
    UPDATE palisade.session s SET epoch = GREATEST(s.epoch, p_epoch) WHERE s.id = p_session;
    RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint
        UNION ALL SELECT x.lock, x.number, x.token FROM palisade.claim x
            WHERE x.session = p_session AND NOT x.waits AND x.withheld_until IS NULL AND x.part = 1;
END $$;

-- Returns the numbers of those waiting requests for which `is_stuck` is true.
CREATE OR REPLACE FUNCTION palisade.stuck(p_session bigint, p_numbers bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT c.number FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock WHERE c.session = p_session
        AND c.number = ANY(p_numbers) AND c.waits AND palisade.is_stuck(l, c.session, c.number));
END $$;

-- Returns the states of waiting requests. Ends expired holders and waiters ahead of them. A row `t` means that more are left: call
-- it again at once. Then returns the notices of the session, and deletes them.
CREATE OR REPLACE FUNCTION palisade.look_up(p_session bigint, p_numbers bigint[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_stuck bigint[];
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    IF (palisade.living(p_session)).id IS NULL THEN
        RETURN NEXT concat_ws(' ', 's', p_session, 'expired');
        RETURN;
    END IF;
    v_stuck := palisade.stuck(p_session, p_numbers);
    -- Lock the rows of all locks of a request, since it is granted as a whole.
    IF v_stuck <> '{}' AND palisade.settle(palisade.hold_rows(ARRAY(SELECT c.lock FROM palisade.claim c
            WHERE c.session = p_session AND c.number = ANY(v_stuck)), true), true)
        AND palisade.stuck(p_session, p_numbers) <> '{}' THEN
        RETURN NEXT concat_ws(' ', 't', p_session);
    END IF;
    RETURN QUERY SELECT concat_ws(' ', 'g', p_session, x.number, x.token) FROM palisade.claim x
        WHERE x.session = p_session AND x.number = ANY(p_numbers) AND NOT x.waits AND x.part = 1;
    RETURN QUERY WITH told AS (DELETE FROM palisade.notice n WHERE n.session = p_session RETURNING n.id, n.said)
        SELECT told.said FROM told ORDER BY told.id;
END $$;

-- Sends events to this channel for `p_ms` milliseconds, a minute at most.
CREATE OR REPLACE FUNCTION palisade.watch(p_channel text, p_prefix text, p_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := palisade.now() + LEAST(p_ms, 60000) * interval '1 ms';
BEGIN
    INSERT INTO palisade.watcher AS w (channel, prefix, until) VALUES (p_channel, p_prefix, v_until)
        ON CONFLICT (channel, prefix) DO UPDATE SET until = EXCLUDED.until;
    UPDATE palisade.state s SET watched_until = v_until WHERE s.watched_until < v_until;
END $$;

-- Waits for calls that were under way when a watch began: they may not have seen it, and then sent no events. Their changes are
-- visible afterwards. Not in the transaction that begins the watch.
CREATE OR REPLACE FUNCTION palisade.watch_begun() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE palisade.lock IN SHARE MODE;
END $$;

CREATE OR REPLACE FUNCTION palisade.unwatch(p_channel text, p_prefix text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM palisade.watcher w WHERE w.channel = p_channel AND w.prefix = p_prefix;
    -- Lock the row first. A watch that begins meanwhile is then visible, or changes the row afterwards.
    PERFORM FROM palisade.state FOR UPDATE;
    UPDATE palisade.state s SET watched_until = '-infinity'
        WHERE s.watched_until > palisade.now() AND NOT EXISTS (SELECT FROM palisade.watcher);
END $$;

-- For people and for other languages --------------------------------------------------------------------------------------

-- Returns bytes as text for people: as UTF-8, or with escapes if they are not. (A label may have any bytes.)
CREATE OR REPLACE FUNCTION palisade.text_of(p_bytes bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(p_bytes, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN encode(p_bytes, 'escape');
END $$;

-- Holders and waiters, one row each.
CREATE OR REPLACE VIEW palisade.locks AS
    SELECT c.lock, CASE WHEN c.waits THEN 'waiting' WHEN c.withheld_until IS NULL THEN 'held' ELSE 'withheld' END AS state,
        CASE WHEN c.need = 4294967295 THEN 'all' ELSE c.need::text END AS need, l.permits, c.token, c.session,
        palisade.text_of(s.label) AS label, c.since, COALESCE(c.withheld_until, s.deadline) AS until, c.value, c.arrival
    FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock LEFT JOIN palisade.session s ON s.id = c.session
    WHERE COALESCE(c.withheld_until, s.deadline) > palisade.now();

-- Returns locks in use, as JSON with bytes in hex, sorted by name: the lock with this name, or all with this prefix.
CREATE OR REPLACE FUNCTION palisade.show(p_name text, p_prefix text) RETURNS SETOF json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT json_build_object('name', v.lock, 'permits', max(v.permits),
        'places', json_agg(json_build_object('state', v.state, 'need', CASE v.need WHEN 'all' THEN 4294967295 ELSE v.need::bigint END,
            'token', v.token, 'session', v.session, 'label', (SELECT encode(s.label, 'hex') FROM palisade.session s
            WHERE s.id = v.session), 'held_ms', round(extract(epoch FROM palisade.now() - v.since) * 1000),
            'left_ms', round(extract(epoch FROM v.until - palisade.now()) * 1000)) ORDER BY v.arrival),
        'value', max(encode(v.value, 'hex')) FILTER (WHERE v.state = 'held'),
        'history', (SELECT l.history FROM palisade.lock l WHERE l.name = v.lock))
    FROM palisade.locks v
    WHERE v.lock = p_name OR (p_name IS NULL AND starts_with(v.lock, p_prefix))
    GROUP BY v.lock ORDER BY v.lock;
END $$;

-- Returns a row for each inconsistency in the tables, and no row for consistent tables. One statement, so that it sees one snapshot.
CREATE OR REPLACE FUNCTION palisade.check() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('lock %L counts %s taken and %s waiting, and has %s and %s', l.name, l.taken, l.waiting, x.taken, x.waiting)
        FROM palisade.lock l, LATERAL (SELECT COALESCE(sum(c.need) FILTER (WHERE NOT c.waits), 0) AS taken,
            count(*) FILTER (WHERE c.waits) AS waiting FROM palisade.claim c WHERE c.lock = l.name) x
        WHERE l.taken <> x.taken OR l.waiting <> x.waiting
    UNION ALL SELECT format('lock %L has more than one holder, and one of them is exclusive', c.lock)
        FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock
        WHERE NOT c.waits AND l.permits IS NULL AND c.need < l.taken AND l.taken >= 4294967295
    UNION ALL SELECT format('session %s has a claim at lock %L that needs %s and has arrival %s and token %s', c.session, c.lock,
            c.need, c.arrival, COALESCE(c.token::text, 'none'))
        FROM palisade.claim c WHERE c.need < 1 OR c.token IS DISTINCT FROM CASE WHEN NOT c.waits THEN c.arrival END
    UNION ALL SELECT format('lock %L is withheld without a delay', p.lock)
        FROM palisade.claim p WHERE p.withheld_until IS NOT NULL AND p.delay_ms IS NULL
    UNION ALL SELECT format('session %s has a place at lock %L, and there is no such session', p.session, p.lock)
        FROM palisade.claim p WHERE p.withheld_until IS NULL
            AND NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = p.session)
    UNION ALL SELECT format('session %s has a place at lock %L, which has no row', c.session, c.lock)
        FROM palisade.claim c WHERE NOT EXISTS (SELECT FROM palisade.lock l WHERE l.name = c.lock)
    UNION ALL SELECT format('lock %L has had token %s, and token %s is held', l.name, l.token, c.token)
        FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock WHERE c.token > l.token
    UNION ALL SELECT format('request %s of session %s has %s of its %s places, or not all of them alike', c.number, c.session,
            count(*), max(c.parts))
        FROM palisade.claim c JOIN palisade.session s ON s.id = c.session WHERE s.deadline > '-infinity'
        GROUP BY c.session, c.number
        HAVING count(*) <> max(c.parts) OR count(DISTINCT (c.waits, c.arrival)) > 1
    UNION ALL SELECT format('there is a notice for session %s, and no such session', n.session)
        FROM palisade.notice n WHERE NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = n.session)
    UNION ALL SELECT format('%s has %s rows instead of 1', x.what, x.rows) FROM (
            SELECT 'palisade.state' AS what, count(*) AS rows FROM palisade.state
            UNION ALL SELECT 'palisade.version', count(*) FROM palisade.version) x WHERE x.rows <> 1
    UNION ALL SELECT 'these locks are a copy, from a restored dump or a copied database: SELECT palisade.accept_copy(above)'
        FROM palisade.state s WHERE s.origin <> palisade.origin()
$$;

-- Ends all expired sessions and lock-delays, and removes rows of unused locks. Call it from pg_cron if no client of the library is
-- connected; those do it every few seconds. CALL it outside of a transaction, since it commits after each step.
CREATE OR REPLACE PROCEDURE palisade.tidy() LANGUAGE plpgsql AS $$
BEGIN
    WHILE palisade.sweep() > 0 LOOP
        COMMIT;
    END LOOP;
    COMMIT;
    WHILE (palisade.clean()).more LOOP
        COMMIT;
    END LOOP;
END $$;

-- Returns a refusal as a sentence for people. Programs read the DETAIL, which is JSON.
CREATE OR REPLACE FUNCTION palisade.in_words(p_refusal jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_kind text := COALESCE((SELECT k FROM jsonb_object_keys(p_refusal) k), '');
    r jsonb := p_refusal -> v_kind;
BEGIN
    RETURN CASE v_kind
        WHEN 'OverLimit' THEN format('%s is %s, and %s is the most', r ->> 'limit', r ->> 'value', r ->> 'max')
        WHEN 'UnderLimit' THEN format('%s is %s, and %s is the least', r ->> 'limit', r ->> 'value', r ->> 'min')
        WHEN 'BadLimit' THEN format('a semaphore has 1 to 4294967294 permits, not %s', r ->> 'limit')
        WHEN 'BadPermits' THEN format('%s of %s permits cannot be taken', COALESCE(r ->> 'count', 'NULL'), r ->> 'of')
        WHEN 'WrongKind' THEN format('it is in use as %s, not as %s', CASE r ->> 'is' WHEN 'Lock' THEN 'a plain lock' ELSE
            'a semaphore' END, CASE r ->> 'asked' WHEN 'Lock' THEN 'a plain lock' ELSE 'a semaphore' END)
        WHEN 'LimitDiffers' THEN format('it is in use with %s permits, not with %s', r ->> 'limit', r ->> 'asked')
        WHEN 'NoHolder' THEN 'no session holds it'
        WHEN 'NotHeld' THEN format('token %s does not hold it', r ->> 'token')
        WHEN 'TokensExhausted' THEN 'its tokens are used up'
        ELSE 'see DETAIL' END;
END $$;

CREATE OR REPLACE FUNCTION palisade.refuse(p_refusal text, p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is refused: %', p_what, palisade.in_words(p_refusal::jsonb) USING ERRCODE = 'PL001', DETAIL = p_refusal;
END $$;

-- Opens a lease: a session of one lock whose client does not listen. It does not sweep, since in a caller's open transaction that
-- would keep the rows of other locks locked.
CREATE OR REPLACE FUNCTION palisade.request_lease(
    p_lock text, p_ttl interval, p_mode text, p_permits bigint, p_take bigint, p_label text, p_waits boolean,
    OUT said text, OUT session bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_label text := COALESCE(p_label, NULLIF(current_setting('application_name'), ''), session_user);
    v_need bigint := CASE WHEN p_permits IS NOT NULL THEN p_take WHEN p_mode = 'exclusive' THEN 4294967295
        WHEN p_mode = 'shared' THEN 1 END;
    r record;
BEGIN
    IF v_need IS NULL AND p_permits IS NULL THEN
        RAISE EXCEPTION 'mode % is neither exclusive nor shared', quote_nullable(p_mode) USING ERRCODE = 'PL001';
    END IF;
    r := palisade.open((extract(epoch FROM p_ttl) * 1000)::bigint, convert_to(left(v_label, 64), 'UTF8'), NULL);
    IF r.refusal IS NOT NULL THEN
        PERFORM palisade.refuse(r.refusal, format('a session with a ttl of %s', p_ttl));
    END IF;
    -- The TTL begins when the request is decided: until then, this call may wait for other transactions.
    UPDATE palisade.session s SET is_lease = true, deadline = 'infinity' WHERE s.id = r.session RETURNING s.id INTO STRICT session;
    r := palisade.request(session, 0, 1, ARRAY[p_lock], ARRAY[v_need], ARRAY[p_permits], p_waits, true, NULL, NULL);
    said := r.said;
    IF said = 'refused' THEN
        PERFORM palisade.refuse(r.detail, format('lock %L', p_lock));
    END IF;
    -- While it waits, the TTL is 10 s, which `wait_on` renews. So a caller that is gone does not get the lock for its whole TTL.
    UPDATE palisade.session s SET deadline = palisade.now()
        + LEAST(s.ttl_ms * interval '1 ms', CASE said WHEN 'queued' THEN interval '10 s' END) WHERE s.id = session;
END $$;

-- Acquires a lock if it is free; `renew` it before its TTL ends. Returns one row if it is granted, no row if it is not free.
-- `mode` is exclusive or shared; a semaphore is given its permits, and how many of them to take. The token counts when the
-- transaction has committed, not before.
CREATE OR REPLACE FUNCTION palisade.acquire(
    lock text, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL
) RETURNS TABLE (token bigint, session bigint, until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r record;
BEGIN
    r := palisade.request_lease(acquire.lock, acquire.ttl, acquire.mode, permits, acquire.take, acquire.label, false);
    IF r.said = 'granted' THEN
        RETURN QUERY SELECT p.token, s.id, s.deadline FROM palisade.claim p JOIN palisade.session s ON s.id = p.session
            WHERE s.id = r.session AND s.deadline > '-infinity' AND NOT p.waits;
    ELSE
        DELETE FROM palisade.session s WHERE s.id = r.session;
    END IF;
END $$;

-- Joins the queue of a lock. Call `wait_on` every few seconds until it says `granted`: a wait without such a call for
-- ten seconds, or for its TTL if that is shorter, leaves the queue.
CREATE OR REPLACE FUNCTION palisade.begin_wait(
    lock text, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (palisade.request_lease(lock, ttl, mode, permits, take, label, true)).session;
END $$;

-- Returns the state of a wait: queued, granted with its token, or lost. Keeps the wait alive for another ten seconds, and
-- the lock for its whole ttl once it is granted.
CREATE OR REPLACE FUNCTION palisade.wait_on(p_session bigint, OUT said text, OUT token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session := palisade.living(p_session);
    v_window interval := LEAST(s.ttl_ms * interval '1 ms', interval '10 s');
BEGIN
    IF palisade.check_origin() AND s.id IS NOT NULL THEN
        UPDATE palisade.session x SET deadline = GREATEST(x.deadline, palisade.now() + v_window) WHERE x.id = p_session
            AND x.deadline > palisade.now() AND x.deadline < palisade.now() + v_window / 2 AND palisade.make_durable();
        PERFORM palisade.look_up(p_session, '{1}');
        SELECT CASE WHEN c.waits THEN 'queued' ELSE 'granted' END, c.token INTO said, token
            FROM palisade.claim c WHERE c.session = p_session AND c.number = 1;
        -- The lock is held for its whole TTL. `look_up` may have locked the lock's row, so this must not wait for the session's.
        IF said = 'granted' THEN
            PERFORM FROM palisade.session x WHERE x.id = p_session FOR UPDATE SKIP LOCKED;
            IF FOUND AND NOT palisade.keep_alive(p_session) THEN
                said := NULL;
                token := NULL;
            END IF;
        END IF;
    END IF;
    said := COALESCE(said, 'lost');
END $$;

-- Acquires a lock, and waits in its queue for `patience` at most. Returns the token; NULL if the lock is not granted.
-- CALL it outside of a transaction, since it commits before it waits.
CREATE OR REPLACE PROCEDURE palisade.acquire_within(
    lock text, patience interval, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL, INOUT token bigint DEFAULT NULL, INOUT session bigint DEFAULT NULL
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    v_until timestamptz := palisade.now() + patience;
    v_state text;
BEGIN
    IF v_until IS NULL THEN
        RAISE EXCEPTION 'the patience of acquire_within is NULL' USING ERRCODE = 'PL001', HINT = 'Say how long to wait: ''10s''.';
    END IF;
    -- PL/pgSQL does not allow COMMIT in a block with a handler. The text of its error tells whether there is also a transaction of the
    -- caller. On a server with messages in another language, the first COMMIT below fails instead.
    BEGIN
        COMMIT;
    EXCEPTION WHEN invalid_transaction_termination THEN
        IF SQLERRM = 'invalid transaction termination' THEN
            RAISE EXCEPTION 'acquire_within cannot be called in a transaction: it commits between its looks at the queue'
                USING ERRCODE = 'PL002', HINT = 'CALL it without BEGIN, or use palisade.begin_wait and palisade.wait_on.';
        END IF;
    END;
    session := palisade.begin_wait(lock, ttl, mode, permits, take, label);
    LOOP
        COMMIT;
        SELECT w.said, w.token INTO v_state, token FROM palisade.wait_on(session) w;
        EXIT WHEN v_state <> 'queued';
        IF palisade.now() >= v_until THEN
            PERFORM palisade.close(session);
            session := NULL;
            COMMIT;
            RETURN;
        END IF;
        PERFORM pg_sleep(LEAST(0.05, GREATEST(0.001, extract(epoch FROM v_until - palisade.now()))));
    END LOOP;
    IF v_state = 'lost' THEN
        RAISE EXCEPTION 'the wait for % is over: its session has ended, by its ttl of % or by hand', quote_literal(lock), ttl
            USING ERRCODE = 'PL001';
    END IF;
END $$;

-- Releases a lock. Returns false if no grant has this token; then nothing has changed.
CREATE OR REPLACE FUNCTION palisade.release(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_session bigint := (palisade.held_by(lock, token)).session;
BEGIN
    IF NOT palisade.check_transaction() OR v_session IS NULL OR palisade.give_back(v_session, lock, token) IS NOT NULL THEN
        RETURN false;
    END IF;
    DELETE FROM palisade.session s WHERE s.id = v_session AND s.is_lease;
    RETURN true;
END $$;

-- Renews the holder of a lock. Returns false if no grant has this token.
CREATE OR REPLACE FUNCTION palisade.renew(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN palisade.keep_alive((palisade.held_by(lock, token)).session);
END $$;

-- Releases a lock by force: all its grants. Seal resources with the token that it returns.
CREATE OR REPLACE FUNCTION palisade.break(lock text, reason text, token bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r record;
BEGIN
    r := palisade.force(lock, token, convert_to(session_user::text, 'UTF8'), convert_to(reason, 'UTF8'));
    IF r.refusal IS NOT NULL THEN
        PERFORM palisade.refuse(r.refusal, format('breaking lock %L', lock));
    END IF;
    RETURN r.moved_to;
END $$;

-- Raises all tokens above this one, after the database has lost tokens, or if locks were kept elsewhere before. At most 2^52, so
-- that half of all tokens remain.
CREATE OR REPLACE FUNCTION palisade.raise_tokens(above bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_held text;
BEGIN
    IF (above BETWEEN 1 AND 4503599627370496) IS NOT TRUE THEN
        RAISE EXCEPTION 'tokens can be raised above a number from 1 to 4503599627370496 (2^52), not above %; nothing has changed', above
            USING ERRCODE = 'PL001', HINT = 'A higher one would leave too few tokens below 2^53. Is it a token of these locks?';
    END IF;
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
    -- Wait for calls that are under way, and make others wait, so that no call uses a token that it took before.
    LOCK TABLE palisade.lock IN SHARE ROW EXCLUSIVE MODE;
    SELECT string_agg(quote_literal(x.name), ', ') INTO v_held FROM (SELECT l.name FROM palisade.lock l
        WHERE l.token < above AND l.taken > 0 ORDER BY l.name LIMIT 5) x;
    IF v_held IS NOT NULL THEN
        RAISE EXCEPTION 'locks are held with lower tokens: %; release them or take them away (palisade ls, palisade break), then raise again',
            v_held USING ERRCODE = 'PL001';
    END IF;
    UPDATE palisade.state s SET floor = above WHERE s.floor < above;
    UPDATE palisade.lock l SET token = above WHERE l.token < above;
    -- With a margin, since calls that wait for the table may take some numbers meanwhile.
    IF (SELECT t.last_value FROM palisade.tokens t) < above THEN
        PERFORM setval('palisade.tokens', LEAST(above + 1000000, 9007199254740991));
    END IF;
END $$;

-- Accepts a copy of the data as a new original: ends all its sessions, and issues only tokens above this one, which must be the
-- highest that any resource has seen.
CREATE OR REPLACE FUNCTION palisade.accept_copy(above bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE palisade.lock IN SHARE ROW EXCLUSIVE MODE;
    IF (SELECT s.origin = palisade.origin() FROM palisade.state s) THEN
        RAISE EXCEPTION 'these locks are no copy; nothing has changed' USING ERRCODE = 'PL001',
            HINT = 'To give only higher tokens, SELECT palisade.raise_tokens(above).';
    END IF;
    DELETE FROM palisade.claim;
    DELETE FROM palisade.notice;
    DELETE FROM palisade.session;
    UPDATE palisade.lock SET taken = 0, waiting = 0;
    PERFORM palisade.raise_tokens(above);
    UPDATE palisade.state SET cluster = gen_random_uuid(), origin = palisade.origin();
END $$;

-- Allows a role to use the locks. The role needs no rights on the tables.
CREATE OR REPLACE FUNCTION palisade.allow(role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA palisade TO %I', role);
    EXECUTE format('GRANT SELECT ON palisade.version, palisade.state, palisade.locks TO %I', role);
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'palisade'::regnamespace
        AND (p.prosecdef OR p.prokind = 'p' OR p.proname IN ('now', 'text_of')) LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', f, role);
    END LOOP;
END $$;

REVOKE ALL ON ALL ROUTINES IN SCHEMA palisade FROM PUBLIC;
-- Allow new functions to the roles that were allowed before.
DO $$
DECLARE
    v_role text;
BEGIN
    FOR v_role IN SELECT DISTINCT pg_get_userbyid(a.grantee) FROM pg_namespace n, aclexplode(n.nspacl) a
        WHERE n.nspname = 'palisade' AND a.privilege_type = 'USAGE' AND a.grantee NOT IN (0, n.nspowner) LOOP
        PERFORM palisade.allow(v_role);
    END LOOP;
END $$;
COMMIT;
