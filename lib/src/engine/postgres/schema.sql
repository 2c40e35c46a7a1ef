-- Palisade's locks in PostgreSQL 13 and newer. It can be run again at any time: nothing is lost, and connected clients go
-- on. Needs CREATE on the database. Afterwards an application's role needs only
--   SELECT palisade.allow('app');
--
-- How it is kept right:
-- * Every change at a lock is made while its row is locked. A call that needs several rows locks them in the order of
--   their names, in one statement. A call that already holds rows never waits for another row: it skips what is locked.
-- * A session ends by one decision, for all that it holds and waits for: its deadline becomes -infinity, for good. What it
--   has left behind is removed afterwards, by a call that meets it or by the sweep.
-- * A request holds its session's key (an advisory lock) shared. The end of the session holds it alone, so that no grant
--   is made for a session whose row is about to go.
-- * A call does a bounded amount of work. What is left is done by the next call that looks at the lock, or by the sweep.
-- * Rows of unused locks are removed by `clean` only, which refuses a transaction that has changed anything before.
BEGIN;
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

-- What all locks have in common. `cluster` tells one life of the data from another: a store that was emptied or replaced
-- has another one, or none.
CREATE TABLE IF NOT EXISTS palisade.state (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    floor bigint NOT NULL DEFAULT 0,        -- no lock whose row was removed has had a higher token
    watched_until timestamptz NOT NULL DEFAULT '-infinity',
    cluster uuid NOT NULL DEFAULT gen_random_uuid(),
    cleaned_to text COLLATE "C" NOT NULL DEFAULT '' -- the name up to which `clean` has come on its present round
) WITH (fillfactor = 50);
INSERT INTO palisade.state DEFAULT VALUES ON CONFLICT DO NOTHING;

-- A client's liveness. A deadline of -infinity: it has ended.
CREATE TABLE IF NOT EXISTS palisade.session (
    id bigint PRIMARY KEY,
    ttl_ms bigint NOT NULL,
    deadline timestamptz NOT NULL,
    epoch integer NOT NULL DEFAULT 0,       -- requests of an older connection are refused
    is_lease boolean NOT NULL DEFAULT false, -- ends with what it holds
    channel text CHECK (octet_length(channel) BETWEEN 1 AND 63), -- where its client listens
    label bytea NOT NULL,
    withdrawn bigint[] NOT NULL DEFAULT '{}', -- the last few requests that were cancelled before they came
    forgotten bigint NOT NULL DEFAULT 0     -- the highest that is no longer there
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS session_deadline ON palisade.session (deadline);

-- A lock. A single exclusive holder is in its row, because an acquire and a release that change this one row in place do
-- half the work. Every other holder, and every waiter, is in palisade.claim.
CREATE TABLE IF NOT EXISTS palisade.lock (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,                  -- the last one given here
    session bigint,                         -- the holder, if it is a single exclusive one
    number bigint,                          -- its request
    since timestamptz,
    delay_ms bigint,
    withheld_until timestamptz,             -- the holder's session has ended, and its delay runs
    value bytea,
    permits bigint,                         -- of a semaphore in use
    taken bigint NOT NULL DEFAULT 0,        -- what holders in palisade.claim have
    waiting integer NOT NULL DEFAULT 0,     -- how many wait in palisade.claim
    history text[],                         -- the last grants that ended while it was in use
    used_by bigint,                         -- the last one in `session`, which is among the locks that it has used
    CHECK (taken >= 0 AND waiting >= 0)
) WITH (fillfactor = 50);
-- Not of `session`: an acquire by the last holder then changes nothing that is in an index.
CREATE INDEX IF NOT EXISTS lock_used_by ON palisade.lock (used_by);
CREATE INDEX IF NOT EXISTS lock_withheld ON palisade.lock (withheld_until) WHERE withheld_until IS NOT NULL;

-- A request's place at a lock: in its queue, or among its holders. A request for several locks has a row at each.
CREATE TABLE IF NOT EXISTS palisade.claim (
    lock text COLLATE "C" NOT NULL,
    waits boolean NOT NULL,
    arrival bigint NOT NULL,
    session bigint NOT NULL,
    number bigint NOT NULL,                 -- below 0 for one without a number
    part integer NOT NULL,
    parts integer NOT NULL,
    need bigint NOT NULL CHECK (need > 0),
    token bigint CHECK ((token IS NULL) = waits),
    since timestamptz,
    delay_ms bigint,
    withheld_until timestamptz,
    value bytea,
    PRIMARY KEY (lock, waits, arrival)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS claim_request ON palisade.claim (session, number);
CREATE INDEX IF NOT EXISTS claim_withheld ON palisade.claim (withheld_until) WHERE withheld_until IS NOT NULL;

-- All places, whichever table they are in.
CREATE OR REPLACE VIEW palisade.place AS
    SELECT c.*, false AS is_inline FROM palisade.claim c
    UNION ALL
    SELECT l.name, false, 0, l.session, l.number, 1, 1, 4294967295, l.token, l.since, l.delay_ms, l.withheld_until, l.value, true
    FROM palisade.lock l WHERE l.session = l.used_by;

-- The order of arrival: taken while the locks' rows are held.
CREATE SEQUENCE IF NOT EXISTS palisade.arrivals;
-- Keeps the tokens of different locks apart, because a client knows its grants by them. It does not make them rise: a
-- sequence can go back after a crash. Each token is above the last one in its lock's row.
CREATE SEQUENCE IF NOT EXISTS palisade.tokens MAXVALUE 9007199254740991;

-- What a session has to be told, kept until its client has asked, or until the session is gone.
CREATE TABLE IF NOT EXISTS palisade.notice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    said text NOT NULL
);
CREATE INDEX IF NOT EXISTS notice_session ON palisade.notice (session);

-- Clients that want to know what happens.
CREATE TABLE IF NOT EXISTS palisade.watcher (
    channel text NOT NULL CHECK (octet_length(channel) BETWEEN 1 AND 63),
    prefix text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (channel, prefix)
);

-- Functions: always replaced by the newest -----------------------------------------------------------------------------
-- (What every call needs is called in expressions, because PERFORM takes several times as long.)

-- The server's clock. Nothing else here reads it, so a test that replaces this function moves it. (The planner puts the
-- body in place of the call.)
CREATE OR REPLACE FUNCTION palisade.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp()';

-- SQLSTATEs: PL001 refused by the rules, with the refusal as DETAIL; PL002 not possible in this transaction.
CREATE OR REPLACE FUNCTION palisade.check_transaction() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'locks cannot be used in a % transaction: it does not see what others have done since it began',
            current_setting('transaction_isolation')
            USING ERRCODE = 'PL002', HINT = 'Call it in a transaction of its own, or BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
    RETURN true;
END $$;

-- Has the commit wait for the disk, and for the standbys that it would wait for. Never lowers what the user has set.
CREATE OR REPLACE FUNCTION palisade.make_durable() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RETURN set_config('synchronous_commit', 'on', true) IS NOT NULL;
    END IF;
    RETURN true;
END $$;

-- The second half of a session's key.
CREATE OR REPLACE FUNCTION palisade.key_of(p_session bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS
    'SELECT (1 + p_session % 2147483646)::integer';

-- Whether a session is not due to end. Decides nothing.
CREATE OR REPLACE FUNCTION palisade.is_live(p_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM palisade.session s WHERE s.id = p_session AND s.deadline > palisade.now());
END $$;

-- Ends those of these sessions whose deadline has passed: the one decision, for all that they hold and wait for. One that
-- is being renewed at this moment is left alone: it lives.
CREATE OR REPLACE FUNCTION palisade.expire(p_sessions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[] := ARRAY(SELECT x.id FROM palisade.session x WHERE x.id = ANY(p_sessions)
        AND x.deadline <= palisade.now() AND x.deadline > '-infinity' FOR UPDATE SKIP LOCKED);
    s record;
BEGIN
    FOR s IN UPDATE palisade.session x SET deadline = '-infinity' WHERE x.id = ANY(v_ids) RETURNING x.id, x.channel LOOP
        IF palisade.make_durable() AND s.channel IS NOT NULL THEN
            PERFORM pg_notify(s.channel, concat_ws(' ', 's', s.id, 'expired'));
        END IF;
    END LOOP;
END $$;

-- Whether that was decided, or its row is gone.
CREATE OR REPLACE FUNCTION palisade.has_ended(p_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = p_session AND s.deadline > '-infinity');
END $$;

-- The session of a call; NULLs if it has ended. One whose deadline has passed ends now, unless it is being renewed: then
-- that is waited for. Not while a lock's row is held.
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

-- Whether a token ever held the lock is not known, as only the last one is kept.
CREATE OR REPLACE FUNCTION palisade.not_held(p_lock text, p_token bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('NotHeld', json_build_object('lock', p_lock, 'token', p_token))::text $$;

-- Tells a session's client, if it listens. What must not be lost is kept, too.
CREATE OR REPLACE FUNCTION palisade.tell(p_session bigint, p_said text, p_keep boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_channel text;
BEGIN
    SELECT s.channel INTO v_channel FROM palisade.session s WHERE s.id = p_session;
    IF FOUND AND p_keep THEN
        INSERT INTO palisade.notice (session, said) VALUES (p_session, p_said);
    END IF;
    IF v_channel IS NOT NULL THEN
        PERFORM pg_notify(v_channel, p_said);
    END IF;
END $$;

-- Tells a session that a grant of it ended, not on its wish. A forced end is kept, with the grant itself: its client may
-- not have heard of either.
CREATE OR REPLACE FUNCTION palisade.tell_lost(p_session bigint, p_number bigint, p_token bigint, p_how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_how LIKE 'forced%' THEN
        INSERT INTO palisade.notice (session, said) SELECT p_session, concat_ws(' ', 'g', p_session, p_number, p_token)
            FROM palisade.session s WHERE s.id = p_session AND p_number > 0;
    END IF;
    PERFORM palisade.tell(p_session, concat_ws(' ', 'l', p_session, p_token, p_how), p_how LIKE 'forced%');
END $$;

-- Tells those who watch, if there are any. An event that is too long for a notification is told as a missed one.
CREATE OR REPLACE FUNCTION palisade.report(p_is text, p_locks text[], p_event jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_said text;
BEGIN
    IF (SELECT s.watched_until > palisade.now() FROM palisade.state s) THEN
        v_said := 'w ' || (jsonb_build_object('is', p_is, 'locks', p_locks) || p_event)::text;
        PERFORM pg_notify(w.channel, CASE WHEN octet_length(v_said) < 7900 THEN v_said ELSE 'm' END)
            FROM (SELECT DISTINCT x.channel FROM palisade.watcher x, unnest(p_locks) l(name)
                WHERE x.until > palisade.now() AND starts_with(l.name, x.prefix)) w;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION palisade.report_granted(
    p_locks text[], p_session bigint, p_number bigint, p_token bigint, p_ticket bigint, p_value bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade.report('granted', p_locks, jsonb_build_object('session', p_session, 'token', p_token,
        'ticket', p_ticket, 'number', CASE WHEN p_number > 0 THEN p_number END));
    IF p_value IS NOT NULL THEN
        PERFORM palisade.report('published', p_locks, jsonb_build_object('token', p_token, 'value', encode(p_value, 'hex')));
    END IF;
END $$;

-- A lock's row, made if there is none, and locked until the end of the transaction. The floor is read again when the row
-- is ours: `clean` may have removed an older one, and raised the floor, since the statement that made this one began.
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

-- Locks the rows of these locks, in the order of their names. If it may not wait, only those that nobody has.
CREATE OR REPLACE FUNCTION palisade.hold_rows(p_locks text[], p_may_wait boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_held text[];
BEGIN
    IF p_may_wait THEN
        v_held := ARRAY(SELECT l.name FROM palisade.lock l WHERE l.name = ANY(p_locks) ORDER BY l.name FOR UPDATE);
    ELSE
        v_held := ARRAY(SELECT l.name FROM palisade.lock l WHERE l.name = ANY(p_locks) ORDER BY l.name FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN v_held;
END $$;

-- Writes a row that is held here. A lock that is neither held nor wanted is nothing but a token. Tokens never go back.
CREATE OR REPLACE FUNCTION palisade.save(l palisade.lock) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_token bigint;
BEGIN
    IF l.session IS NULL AND l.taken = 0 AND l.waiting = 0 THEN
        l.permits := NULL;
        l.history := NULL;
    END IF;
    UPDATE palisade.lock x SET token = l.token, session = l.session, used_by = COALESCE(l.session, x.used_by),
        number = l.number, since = l.since, delay_ms = l.delay_ms, withheld_until = l.withheld_until, value = l.value,
        permits = l.permits, taken = l.taken, waiting = l.waiting, history = l.history
        WHERE x.name = l.name AND x.token <= l.token RETURNING x.token INTO STRICT v_token;
    RETURN v_token;
END $$;

-- Whether so much is left, in whatever order it is asked for.
CREATE OR REPLACE FUNCTION palisade.admits(l palisade.lock, p_need bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN l.session IS NULL AND l.taken + p_need <= COALESCE(l.permits, 4294967295);
END $$;

-- Ends a place, held or waited for, at a lock whose row is held here; the caller saves the row. After an expiry with a
-- delay the place is withheld. `how` is released, cancelled, closed, expired, a refusal, `forced BY REASON TOKEN` with
-- both texts in hex, or NULL for a delay that is over. It is told with these locks, or not at all.
CREATE OR REPLACE FUNCTION palisade.end_place(INOUT l palisade.lock, p palisade.place, p_how text, p_locks text[])
LANGUAGE plpgsql AS $$
DECLARE
    v_withheld_until timestamptz;
BEGIN
    IF p.waits THEN
        DELETE FROM palisade.claim x WHERE x.lock = p.lock AND x.waits AND x.arrival = p.arrival
            RETURNING x.lock INTO STRICT p.lock;
        l.waiting := l.waiting - 1;
        PERFORM palisade.report('left', p_locks, jsonb_build_object('ticket', p.arrival, 'session', p.session, 'why', p_how));
        RETURN;
    END IF;
    IF p.withheld_until IS NULL AND p_how = 'expired' THEN
        v_withheld_until := palisade.now() + p.delay_ms * interval '1 ms';
    END IF;
    IF p.withheld_until IS NULL THEN
        -- The history of a lock ends with its use.
        IF v_withheld_until IS NOT NULL OR l.waiting > 0 OR (l.taken > p.need AND NOT p.is_inline) THEN
            l.history := COALESCE(l.history[GREATEST(cardinality(l.history) - 6, 1):], '{}') || concat_ws(',', p.token,
                p.session, p.need, COALESCE((SELECT encode(s.label, 'hex') FROM palisade.session s WHERE s.id = p.session), ''),
                p_how);
        END IF;
        IF p_how <> 'released' AND p_locks IS NOT NULL THEN
            PERFORM palisade.tell_lost(p.session, p.number, p.token, p_how);
        END IF;
    END IF;
    IF p.is_inline THEN
        l.value := NULL;
        l.withheld_until := v_withheld_until;
        IF v_withheld_until IS NULL THEN
            l.session := NULL;
            l.number := NULL;
            l.since := NULL;
            l.delay_ms := NULL;
        END IF;
    ELSIF v_withheld_until IS NOT NULL THEN
        UPDATE palisade.claim x SET withheld_until = v_withheld_until, value = NULL
            WHERE x.lock = p.lock AND NOT x.waits AND x.arrival = p.arrival RETURNING x.lock INTO STRICT p.lock;
    ELSE
        DELETE FROM palisade.claim x WHERE x.lock = p.lock AND NOT x.waits AND x.arrival = p.arrival
            RETURNING x.lock INTO STRICT p.lock;
        l.taken := l.taken - p.need;
    END IF;
    PERFORM palisade.report(CASE WHEN p.withheld_until IS NULL THEN 'ended' ELSE 'delay-ended' END, p_locks,
        jsonb_build_object('session', p.session, 'token', p.token, 'how', p_how));
    IF v_withheld_until IS NOT NULL THEN
        PERFORM palisade.report('withheld', p_locks, jsonb_build_object('token', p.token, 'delay', p.delay_ms));
    END IF;
END $$;

-- Ends what ended sessions hold at a lock whose row is held here, and delays that are over: a hundred at most.
CREATE OR REPLACE FUNCTION palisade.end_dead_holders(INOUT l palisade.lock) LANGUAGE plpgsql AS $$
DECLARE
    p palisade.place;
BEGIN
    PERFORM palisade.expire(ARRAY(SELECT x.session FROM palisade.place x JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = l.name AND NOT x.waits AND x.withheld_until IS NULL AND s.deadline <= palisade.now() LIMIT 100));
    FOR p IN SELECT x.* FROM palisade.place x LEFT JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = l.name AND NOT x.waits AND CASE WHEN x.withheld_until IS NULL
            THEN COALESCE(s.deadline, '-infinity') = '-infinity' ELSE x.withheld_until <= palisade.now() END
        ORDER BY x.arrival LIMIT 100 LOOP
        l := palisade.end_place(l, p, CASE WHEN p.withheld_until IS NULL THEN 'expired' END, ARRAY[l.name]);
    END LOOP;
END $$;

-- The first in a lock's queue.
CREATE OR REPLACE FUNCTION palisade.front_of(p_lock text) RETURNS palisade.claim LANGUAGE plpgsql AS $$
DECLARE
    c palisade.claim;
BEGIN
    SELECT x.* INTO c FROM palisade.claim x WHERE x.lock = p_lock AND x.waits ORDER BY x.arrival LIMIT 1;
    RETURN c;
END $$;

-- Takes waiters of ended sessions out of the first thousand of a queue, in one statement: one by one, each would be
-- searched for behind all that were removed before it.
CREATE OR REPLACE FUNCTION palisade.drop_dead_waiters(INOUT l palisade.lock) LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint[];
    c palisade.claim;
BEGIN
    v_first := ARRAY(SELECT x.arrival FROM palisade.claim x WHERE x.lock = l.name AND x.waits ORDER BY x.arrival LIMIT 1000);
    PERFORM palisade.expire(ARRAY(SELECT x.session FROM palisade.claim x JOIN palisade.session s ON s.id = x.session
        WHERE x.lock = l.name AND x.waits AND x.arrival = ANY(v_first) AND s.deadline <= palisade.now()));
    FOR c IN DELETE FROM palisade.claim x WHERE x.lock = l.name AND x.waits AND x.arrival = ANY(v_first)
        AND palisade.has_ended(x.session) RETURNING x.* LOOP
        l.waiting := l.waiting - 1;
        PERFORM palisade.report('left', ARRAY[l.name], jsonb_build_object('ticket', c.arrival, 'session', c.session,
            'why', 'expired'));
    END LOOP;
END $$;

-- Goes over locks whose rows are held here: ends this request's places, if one is named, and what dead holders have, if
-- that is asked for; then grants what can be granted, front of the queue first, a hundred times at most at each. Says
-- whether anything has changed.
CREATE OR REPLACE FUNCTION palisade.settle(
    p_locks text[], p_ends_dead boolean, p_session bigint, p_number bigint, p_how text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_has_changed boolean := false;
    v_todo text[] := p_locks;
    v_names text[];
    i integer := 0;
    v_granted integer;
    l palisade.lock;
    v_before palisade.lock;
    p palisade.place;
    c palisade.claim;
    v_token bigint;
BEGIN
    IF p_session IS NOT NULL THEN
        v_names := ARRAY(SELECT x.lock FROM palisade.place x WHERE x.session = p_session AND x.number = p_number ORDER BY x.part);
    END IF;
    WHILE i < cardinality(v_todo) LOOP
        i := i + 1;
        SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = v_todo[i];
        v_before := l;
        IF p_session IS NOT NULL AND i <= cardinality(p_locks) THEN
            SELECT x.* INTO p FROM palisade.place x WHERE x.lock = l.name AND x.session = p_session AND x.number = p_number;
            IF FOUND THEN
                l := palisade.end_place(l, p, p_how, CASE WHEN p.part = p.parts THEN v_names END);
            END IF;
        END IF;
        IF p_ends_dead THEN
            l := palisade.end_dead_holders(l);
        END IF;
        v_granted := 0;
        WHILE l.session IS NULL AND l.waiting > 0 LOOP
            c := palisade.front_of(l.name);
            IF NOT palisade.is_live(c.session) THEN
                l := palisade.drop_dead_waiters(l);
                c := palisade.front_of(l.name);
                -- If there are more than a thousand, the next call goes on.
                EXIT WHEN c.lock IS NULL OR palisade.has_ended(c.session);
            END IF;
            EXIT WHEN NOT palisade.admits(l, c.need) OR l.token >= 9007199254740991 OR NOT palisade.make_durable();
            IF v_granted = 100 THEN
                -- Its client asks, and that call goes on.
                PERFORM palisade.tell(c.session, concat_ws(' ', 't', c.session, c.number), false);
                EXIT;
            END IF;
            v_granted := v_granted + 1;
            IF c.parts > 1 THEN
                PERFORM palisade.save(l);
                v_token := palisade.grant_set(c);
                SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = v_todo[i];
                v_before := l;
                EXIT WHEN v_token IS NULL;
                v_has_changed := true;
                v_todo := v_todo || ARRAY(SELECT x.lock FROM palisade.claim x
                    WHERE x.session = c.session AND x.number = c.number AND x.lock <> l.name ORDER BY x.part);
            ELSE
                v_token := GREATEST(l.token + 1, nextval('palisade.tokens'));
                l.token := v_token;
                l.waiting := l.waiting - 1;
                IF c.need = 4294967295 THEN
                    DELETE FROM palisade.claim x WHERE x.lock = c.lock AND x.waits AND x.arrival = c.arrival
                        RETURNING x.lock INTO STRICT c.lock;
                    l.session := c.session;
                    l.number := c.number;
                    l.since := palisade.now();
                    l.delay_ms := c.delay_ms;
                    l.value := c.value;
                ELSE
                    UPDATE palisade.claim x SET waits = false, token = v_token, since = palisade.now()
                        WHERE x.lock = c.lock AND x.waits AND x.arrival = c.arrival RETURNING x.lock INTO STRICT c.lock;
                    l.taken := l.taken + c.need;
                END IF;
            END IF;
            PERFORM palisade.tell(c.session, concat_ws(' ', 'g', c.session, c.number, v_token), false);
            PERFORM palisade.report_granted(CASE WHEN c.parts = 1 THEN ARRAY[l.name] ELSE ARRAY(SELECT x.lock
                FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number ORDER BY x.part) END,
                c.session, c.number, v_token, c.arrival, c.value);
        END LOOP;
        IF l IS DISTINCT FROM v_before THEN
            v_has_changed := palisade.save(l) IS NOT NULL;
        END IF;
    END LOOP;
    RETURN v_has_changed;
END $$;

-- Grants a set that is at the front of one queue, if it is at the front of all and enough is left everywhere. Its other
-- rows are not waited for, as rows are held here: if one is busy, the waiter is told to ask itself.
CREATE OR REPLACE FUNCTION palisade.grant_set(c palisade.claim) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_locks text[] := ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number AND x.waits);
    l palisade.lock;
    f palisade.claim;
    v_token bigint := nextval('palisade.tokens');
    v_changed integer;
BEGIN
    IF cardinality(palisade.hold_rows(v_locks, false)) < c.parts THEN
        PERFORM palisade.tell(c.session, concat_ws(' ', 't', c.session, c.number), false);
        RETURN NULL;
    END IF;
    FOR l IN SELECT x.* FROM palisade.lock x WHERE x.name = ANY(v_locks) LOOP
        f := palisade.front_of(l.name);
        IF f.arrival <> c.arrival OR NOT palisade.admits(l, f.need) THEN
            RETURN NULL;
        END IF;
        v_token := GREATEST(v_token, l.token + 1);
    END LOOP;
    IF v_token > 9007199254740991 THEN
        RETURN NULL;
    END IF;
    UPDATE palisade.claim x SET waits = false, token = v_token, since = palisade.now()
        WHERE x.session = c.session AND x.number = c.number AND x.waits;
    UPDATE palisade.lock y SET token = v_token, taken = y.taken + x.need, waiting = y.waiting - 1
        FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number AND y.name = x.lock;
    GET DIAGNOSTICS v_changed = ROW_COUNT;
    IF v_changed <> c.parts THEN
        RAISE EXCEPTION 'request % of session % has % of its % places', c.number, c.session, v_changed, c.parts;
    END IF;
    RETURN v_token;
END $$;

-- Ends what a session that has ended still has, up to 64 requests, and then its row. Its key is held here. Says how much
-- was done. Waits come first, so that none of them is granted what the session has held.
CREATE OR REPLACE FUNCTION palisade.end_session(p_session bigint, p_how text, p_may_wait boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_held text[];
    v_done integer := 0;
    r record;
BEGIN
    v_held := palisade.hold_rows(ARRAY(SELECT x.lock FROM palisade.place x WHERE x.session = p_session
        AND x.withheld_until IS NULL ORDER BY x.waits DESC, x.arrival, x.since LIMIT 64), p_may_wait);
    FOR r IN SELECT x.number, array_agg(x.lock ORDER BY x.part) AS locks FROM palisade.place x
        WHERE x.session = p_session AND x.withheld_until IS NULL
        GROUP BY x.number, x.waits, x.arrival ORDER BY x.waits DESC, x.arrival, min(x.since) LOOP
        IF r.locks <@ v_held THEN
            PERFORM palisade.settle(r.locks, false, p_session, r.number, p_how);
            v_done := v_done + 1;
        END IF;
    END LOOP;
    IF NOT EXISTS (SELECT FROM palisade.place x WHERE x.session = p_session AND x.withheld_until IS NULL) THEN
        DELETE FROM palisade.notice n WHERE n.session = p_session;
        DELETE FROM palisade.session s WHERE s.id = p_session;
        v_done := v_done + 1;
    END IF;
    RETURN v_done;
END $$;

-- Clients of every kind --------------------------------------------------------------------------------------------------

-- Begins a session.
CREATE OR REPLACE FUNCTION palisade.open(p_ttl_ms bigint, p_label bytea, p_channel text, OUT session bigint, OUT refusal text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
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
            -- Random, so that no number comes twice, not even in a store that was restored.
            session := 1 + ('x' || translate(right(gen_random_uuid()::text, 13), '-', ''))::bit(48)::bigint;
            INSERT INTO palisade.session (id, ttl_ms, deadline, channel, label)
                VALUES (session, p_ttl_ms, palisade.now() + p_ttl_ms * interval '1 ms', p_channel, p_label)
                ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
        END LOOP;
    END IF;
END $$;

-- Another TTL for a session, on the disk before it is answered; false if it has ended. If its deadline has passed, it
-- ends here, whatever the clock says later.
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

-- Ends a session on its own wish. True if nothing of it is left; otherwise call it again. Ending one that has ended is no
-- error.
CREATE OR REPLACE FUNCTION palisade.close(p_session bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_channel text;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN false; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    UPDATE palisade.session s SET deadline = '-infinity' WHERE s.id = p_session AND s.deadline > '-infinity'
        RETURNING s.channel INTO v_channel;
    IF v_channel IS NOT NULL THEN
        PERFORM pg_notify(v_channel, concat_ws(' ', 's', p_session, 'closed'));
    END IF;
    PERFORM palisade.end_session(p_session, 'closed', true);
    RETURN NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = p_session);
END $$;

-- Ends what is overdue: sessions, and delays that are over. Says how much it has done; call it again, in a transaction of
-- its own, until that is 0. Waits for nothing.
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
            IF palisade.has_ended(v_session) THEN
                v_done := v_done + palisade.end_session(v_session, 'expired', false);
            END IF;
        END IF;
    END LOOP;
    FOR v_lock IN SELECT DISTINCT x.lock FROM palisade.place x WHERE x.withheld_until <= palisade.now() 
        LIMIT GREATEST(p_most - v_done, 0) LOOP
        IF cardinality(palisade.hold_rows(ARRAY[v_lock], false)) > 0 THEN
            PERFORM palisade.settle(ARRAY[v_lock], true, NULL, NULL, NULL);
            v_done := v_done + 1;
        END IF;
    END LOOP;
    DELETE FROM palisade.watcher w WHERE w.ctid = ANY(ARRAY(SELECT x.ctid FROM palisade.watcher x
        WHERE x.until <= palisade.now() FOR UPDATE SKIP LOCKED));
    RETURN v_done;
END $$;

-- Removes rows of locks that are not in use and whose token is not among the last few thousand, and raises the floor above
-- them: looks at so many rows, from where the last call stopped. `more` is false at the end of a round. Only in a
-- transaction that has changed nothing before: it must not remove a row that its own transaction needs.
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
        SELECT l.name FROM palisade.lock l WHERE l.name > v_from AND l.name <= v_to AND l.session IS NULL AND l.taken = 0
            AND l.waiting = 0 AND l.token NOT BETWEEN v_last - p_keep + 1 AND v_last FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM palisade.lock l USING idle WHERE l.name = idle.name RETURNING l.token
    )
    SELECT max(gone.token), count(*) INTO v_highest, removed FROM gone;
    more := v_seen >= p_most;
    UPDATE palisade.state s SET floor = GREATEST(s.floor, v_highest), cleaned_to = CASE WHEN more THEN v_to ELSE '' END
        WHERE removed > 0 OR s.cleaned_to <> CASE WHEN more THEN v_to ELSE '' END;
END $$;

-- What is wrong with a request whatever the state of the locks; NULL if nothing is. What no client of ours sends is an error.
CREATE OR REPLACE FUNCTION palisade.fault_of(
    p_locks text[], p_needs bigint[], p_permits bigint[], p_delay_ms bigint, p_value bytea
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i integer;
BEGIN
    IF COALESCE(cardinality(p_locks), 0) = 0 THEN
        RETURN '"NoLocks"';
    END IF;
    IF cardinality(p_locks) > 64 THEN
        RETURN palisade.over('LocksPerRequest', 64, cardinality(p_locks));
    END IF;
    IF cardinality(p_needs) IS DISTINCT FROM cardinality(p_locks)
        OR cardinality(p_permits) IS DISTINCT FROM cardinality(p_locks) OR p_delay_ms < 0 THEN
        RAISE EXCEPTION 'a request has a need and a number of permits for each lock, and a delay of 0 or more'
            USING ERRCODE = 'PL001';
    END IF;
    FOR i IN 1 .. cardinality(p_locks) LOOP
        IF octet_length(p_locks[i]) > 512 THEN
            RETURN palisade.over('NameBytes', 512, octet_length(p_locks[i]));
        END IF;
        IF NOT palisade.is_name(p_locks[i]) THEN
            RAISE EXCEPTION 'a lock''s name has 1 to 512 bytes, no control characters, and does not begin with $'
                USING ERRCODE = 'PL001';
        END IF;
        IF p_permits[i] IS NOT NULL THEN
            IF p_permits[i] NOT BETWEEN 1 AND 4294967294 THEN
                RETURN json_build_object('BadLimit', json_build_object('limit', p_permits[i]));
            END IF;
            IF (p_needs[i] BETWEEN 1 AND p_permits[i]) IS NOT TRUE THEN
                RETURN json_build_object('BadPermits', json_build_object('count', p_needs[i], 'of', p_permits[i]));
            END IF;
        ELSIF (p_needs[i] IN (1, 4294967295)) IS NOT TRUE THEN
            RAISE EXCEPTION 'a lock is shared, which needs 1, or exclusive, which needs 4294967295; not %', p_needs[i]
                USING ERRCODE = 'PL001';
        END IF;
        IF p_locks[i] = ANY(p_locks[: i - 1]) THEN
            RETURN json_build_object('NamedTwice', json_build_object('lock', p_locks[i]));
        END IF;
    END LOOP;
    IF p_delay_ms > 3600000 THEN
        RETURN palisade.over('DelayMaxMs', 3600000, p_delay_ms);
    END IF;
    IF p_value IS NOT NULL THEN
        IF octet_length(p_value) > 4096 THEN
            RETURN palisade.over('ValueBytes', 4096, octet_length(p_value));
        END IF;
        IF cardinality(p_locks) > 1 OR p_needs[1] <> 4294967295 THEN
            RETURN '"ValueNotPossible"';
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- The library's rules for names.
CREATE OR REPLACE FUNCTION palisade.is_name(p_lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN COALESCE(octet_length(p_lock) BETWEEN 1 AND 512 AND NOT starts_with(p_lock, '$')
        AND p_lock !~ E'[\\u0001-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069\\u200e\\u200f\\u061c]', false);
END $$;

CREATE OR REPLACE FUNCTION palisade.kind_of(p_permits bigint) RETURNS json LANGUAGE sql AS $$
    SELECT CASE WHEN p_permits IS NULL THEN '"Lock"'::json
        ELSE json_build_object('Semaphore', json_build_object('limit', p_permits)) END $$;

-- What is wrong with one lock of a request, given how it is used; NULL if nothing is.
CREATE OR REPLACE FUNCTION palisade.conflict_of(
    l palisade.lock, p_session bigint, p_permits bigint, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_token bigint;
BEGIN
    IF l.permits IS DISTINCT FROM p_permits THEN
        IF l.permits IS NOT NULL AND p_permits IS NOT NULL THEN
            RETURN json_build_object('LimitDiffers', json_build_object('lock', l.name, 'limit', l.permits, 'asked', p_permits));
        END IF;
        RETURN json_build_object('WrongKind', json_build_object('lock', l.name,
            'is', palisade.kind_of(l.permits), 'asked', palisade.kind_of(p_permits)));
    END IF;
    IF NOT p_may_queue THEN
        SELECT x.token INTO v_token FROM palisade.place x WHERE x.session = p_session AND x.lock = l.name
            AND NOT x.waits AND x.withheld_until IS NULL ORDER BY x.arrival LIMIT 1;
        IF FOUND THEN
            RETURN json_build_object('AlreadyHeld', json_build_object('lock', l.name, 'token', v_token));
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Whether a call should go over a lock, though nothing was released there: a holder's session is overdue, a delay is over,
-- or one that could be granted is in front. Only the waiter that is itself in front looks at all holders of a shared lock.
CREATE OR REPLACE FUNCTION palisade.is_stuck(l palisade.lock, p_session bigint, p_number bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    f palisade.claim;
    v_is_mine boolean;
BEGIN
    IF l.session IS NOT NULL THEN
        RETURN CASE WHEN l.withheld_until IS NULL THEN NOT palisade.is_live(l.session)
            ELSE l.withheld_until <= palisade.now() END;
    END IF;
    IF l.waiting > 0 THEN
        f := palisade.front_of(l.name);
        v_is_mine := f.session = p_session AND f.number = p_number;
        IF NOT palisade.is_live(f.session) OR (palisade.admits(l, f.need) AND (f.parts = 1 OR v_is_mine)) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN l.taken > 0 AND EXISTS (SELECT FROM (
            SELECT c.session, c.withheld_until FROM palisade.claim c WHERE c.lock = l.name AND NOT c.waits
            ORDER BY c.arrival LIMIT CASE WHEN v_is_mine THEN NULL ELSE 16 END) x
        WHERE CASE WHEN x.withheld_until IS NULL THEN NOT palisade.is_live(x.session)
            ELSE x.withheld_until <= palisade.now() END);
END $$;

-- What a repeat of a request is told that waits or is held: nothing if there is no such request.
CREATE OR REPLACE FUNCTION palisade.standing(
    p_session bigint, p_number bigint, p_locks text[], p_needs bigint[], OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql AS $$
DECLARE
    p record;
BEGIN
    SELECT bool_or(x.waits) AS waits, max(x.arrival) AS arrival, max(x.token) AS token,
        array_agg(x.lock ORDER BY x.part) AS locks, array_agg(x.need ORDER BY x.part) AS needs
        INTO p FROM palisade.place x WHERE x.session = p_session AND x.number = p_number;
    IF p.waits IS NULL THEN
        RETURN;
    ELSIF p_locks IS DISTINCT FROM p.locks OR p_needs IS DISTINCT FROM p.needs THEN
        said := 'refused';
        detail := json_build_object('NumberReused', json_build_object('number', p_number));
    ELSIF p.waits THEN
        said := 'queued';
        detail := p.arrival;
    ELSE
        said := 'granted';
        token := p.token;
    END IF;
END $$;

-- Asks for one lock or several. A lock is a semaphore: exclusive needs 4294967295, shared 1, both with NULL permits.
-- `said` is granted, queued, busy, outdated or refused; `detail` is the refusal, or the wait's number.
CREATE OR REPLACE FUNCTION palisade.request(
    p_session bigint, p_epoch integer, p_number bigint, p_locks text[], p_needs bigint[], p_permits bigint[],
    p_waits boolean, p_may_queue boolean, p_delay_ms bigint, p_value bytea,
    OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session;
    l palisade.lock;
    i integer;
    v_stuck text[] := '{}';
    v_number bigint := COALESCE(p_number, -nextval('palisade.arrivals'));
    v_is_free boolean := true;
    v_arrival bigint;
    v_changed integer;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    said := 'refused';
    PERFORM pg_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session));
    s := palisade.living(p_session);
    IF s.id IS NULL THEN
        detail := palisade.no_session(p_session);
        RETURN;
    END IF;
    IF p_epoch < s.epoch THEN
        said := 'outdated';
        RETURN;
    END IF;
    IF p_number = ANY(s.withdrawn) THEN
        detail := json_build_object('Withdrawn', json_build_object('number', p_number));
        RETURN;
    END IF;
    IF p_number <= s.forgotten THEN
        SELECT r.said, r.token, r.detail INTO said, token, detail FROM palisade.standing(p_session, p_number, p_locks, p_needs) r;
        IF said IS NULL THEN
            said := 'refused';
            detail := json_build_object('NumberForgotten', json_build_object('number', p_number));
        END IF;
        RETURN;
    END IF;
    detail := palisade.fault_of(p_locks, p_needs, p_permits, p_delay_ms, p_value);
    IF detail IS NOT NULL THEN
        RETURN;
    END IF;
    FOR i IN SELECT g.i FROM generate_subscripts(p_locks, 1) g(i) ORDER BY p_locks[g.i] COLLATE "C" LOOP
        l := palisade.hold_row(p_locks[i]);
        IF palisade.is_stuck(l, p_session, p_number) THEN
            v_stuck := v_stuck || l.name;
        END IF;
    END LOOP;
    IF v_stuck <> '{}' THEN
        PERFORM palisade.settle(v_stuck, true, NULL, NULL, NULL);
    END IF;
    IF p_number IS NOT NULL THEN
        SELECT r.said, r.token, r.detail INTO said, token, detail FROM palisade.standing(p_session, p_number, p_locks, p_needs) r;
        IF said IS NOT NULL THEN
            RETURN;
        END IF;
        said := 'refused';
    END IF;
    token := 0;
    FOR i IN 1 .. cardinality(p_locks) LOOP
        IF cardinality(p_locks) > 1 OR v_stuck <> '{}' THEN
            SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = p_locks[i];
        END IF;
        IF l.session IS NOT NULL OR l.taken > 0 OR l.waiting > 0 THEN
            detail := palisade.conflict_of(l, p_session, p_permits[i], p_may_queue);
            IF detail IS NULL AND l.waiting >= 100000 AND p_waits THEN
                detail := palisade.over('WaitersPerLock', 100000, l.waiting + 1);
            END IF;
            IF detail IS NOT NULL THEN
                token := NULL;
                RETURN;
            END IF;
        END IF;
        l.permits := p_permits[i];
        v_is_free := v_is_free AND l.waiting = 0 AND palisade.admits(l, p_needs[i]);
        token := GREATEST(token, l.token + 1);
    END LOOP;
    IF NOT v_is_free THEN
        token := NULL;
        said := 'busy';
        IF NOT p_waits THEN
            RETURN;
        END IF;
    ELSE
        token := GREATEST(token, nextval('palisade.tokens'));
        IF token > 9007199254740991 THEN
            token := NULL;
            detail := '{"TokensExhausted":{"max":9007199254740991}}';
            RETURN;
        END IF;
        IF NOT palisade.make_durable() THEN RETURN; END IF;
    END IF;
    IF v_is_free AND cardinality(p_locks) = 1 AND p_needs[1] = 4294967295 THEN
        l.token := token;
        l.session := p_session;
        l.number := v_number;
        l.since := palisade.now();
        l.delay_ms := p_delay_ms;
        l.value := p_value;
        token := palisade.save(l);
    ELSE
        v_arrival := nextval('palisade.arrivals');
        INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, token, since, delay_ms, value)
            SELECT p_locks[g.i], NOT v_is_free, v_arrival, p_session, v_number, g.i, cardinality(p_locks), p_needs[g.i],
                request.token, palisade.now(), p_delay_ms, p_value
            FROM generate_subscripts(p_locks, 1) g(i);
        UPDATE palisade.lock x SET permits = p_permits[array_position(p_locks, x.name)],
            token = COALESCE(request.token, x.token),
            taken = x.taken + CASE WHEN v_is_free THEN p_needs[array_position(p_locks, x.name)] ELSE 0 END,
            waiting = x.waiting + CASE WHEN v_is_free THEN 0 ELSE 1 END
            WHERE x.name = ANY(p_locks);
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        IF v_changed <> cardinality(p_locks) THEN
            RAISE EXCEPTION 'request % of session % has changed % rows instead of %', v_number, p_session, v_changed,
                cardinality(p_locks);
        END IF;
    END IF;
    IF v_is_free THEN
        said := 'granted';
        PERFORM palisade.report_granted(p_locks, p_session, v_number, token, NULL, p_value);
    ELSE
        said := 'queued';
        detail := v_arrival;
        PERFORM palisade.report('queued', p_locks, jsonb_build_object('ticket', v_arrival, 'session', p_session));
    END IF;
END $$;

-- The same for one exclusive lock, and for the usual case that its row is there, unused, and nobody watches: one statement,
-- and no more around it than it takes. Everything else is left to `request`. Says the token, or how the request stands:
-- queued, busy, outdated, or the refusal.
-- To set a search path would take a tenth of a call, and more with many connections. So there is none in this one and in
-- the one that gives back, and each function and operator in them has its schema: a caller's path must not say what is
-- called here.
CREATE OR REPLACE FUNCTION palisade.take(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_token bigint;
BEGIN
    -- The key is held before the session is looked at. The rest waits for it, if it must.
    IF pg_catalog.pg_try_advisory_xact_lock_shared(1885432935,
        (1 OPERATOR(pg_catalog.+) (p_session OPERATOR(pg_catalog.%) 2147483646))::integer) THEN
        v_token := pg_catalog.nextval('palisade.tokens');
        UPDATE palisade.lock l SET token = v_token, session = p_session, used_by = p_session, number = p_number,
            since = palisade.now() FROM palisade.session s
            WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.session IS NULL AND l.taken OPERATOR(pg_catalog.=) 0
                AND l.waiting OPERATOR(pg_catalog.=) 0 AND l.token OPERATOR(pg_catalog.<) v_token
                AND s.id OPERATOR(pg_catalog.=) p_session AND s.deadline OPERATOR(pg_catalog.>) palisade.now()
                AND s.epoch OPERATOR(pg_catalog.<=) CASE WHEN pg_catalog.current_setting('transaction_isolation')
                    OPERATOR(pg_catalog.=) 'read committed' THEN p_epoch END
                AND s.forgotten OPERATOR(pg_catalog.<) p_number AND p_number OPERATOR(pg_catalog.<>) ALL (s.withdrawn)
                AND (SELECT x.watched_until OPERATOR(pg_catalog.<) palisade.now() FROM palisade.state x)
            RETURNING l.token INTO v_token;
        IF FOUND THEN
            -- As `make_durable` does.
            IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
                AND pg_catalog.set_config('synchronous_commit', 'on', true) IS NULL THEN
                RETURN NULL;
            END IF;
            RETURN v_token;
        END IF;
    END IF;
    RETURN palisade.take_or_queue(p_session, p_epoch, p_number, p_lock, p_waits, p_may_queue);
END $$;

-- First the other usual case: a session that lives holds the lock alone, so there is nothing to do but to wait. (A hot
-- lock is queued for in half the time of `request`.)
CREATE OR REPLACE FUNCTION palisade.take_or_queue(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    IF p_waits AND p_may_queue AND palisade.check_transaction()
        AND pg_try_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session)) THEN
        UPDATE palisade.lock l SET waiting = l.waiting + 1 FROM palisade.session h, palisade.session s
            WHERE l.name = p_lock AND l.withheld_until IS NULL AND l.waiting < 100000 AND h.id = l.session
                AND h.deadline > palisade.now() AND s.id = p_session AND s.deadline > palisade.now() AND s.epoch <= p_epoch
                AND s.forgotten < p_number AND p_number <> ALL (s.withdrawn)
                AND (SELECT x.watched_until < palisade.now() FROM palisade.state x);
        IF FOUND THEN
            -- Its row is held here now, so this one is the last of the queue, unless it has a place already.
            INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, since)
                SELECT p_lock, true, nextval('palisade.arrivals'), p_session, p_number, 1, 1, 4294967295, palisade.now()
                WHERE NOT EXISTS (SELECT FROM palisade.place x WHERE x.session = p_session AND x.number = p_number);
            IF FOUND THEN
                RETURN 'queued';
            END IF;
            UPDATE palisade.lock l SET waiting = l.waiting - 1 WHERE l.name = p_lock;
        END IF;
    END IF;
    r := palisade.request(p_session, p_epoch, p_number, ARRAY[p_lock], ARRAY[4294967295], ARRAY[NULL::bigint], p_waits,
        p_may_queue, NULL, NULL);
    RETURN CASE r.said WHEN 'granted' THEN r.token::text WHEN 'refused' THEN r.detail ELSE r.said END;
END $$;

-- Gives back a grant, whole, and grants to those whose turn it is. NULL if it is given back, or the refusal. First the
-- usual case that nobody waits and nobody watches. What `take` says about a search path is true here, too. In a
-- transaction that does not see what others have done since, the row is either as it sees it, or cannot be changed.
CREATE OR REPLACE FUNCTION palisade.give_back(p_session bigint, p_lock text, p_token bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE palisade.lock l SET session = NULL
        WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.session OPERATOR(pg_catalog.=) p_session
            AND l.token OPERATOR(pg_catalog.=) p_token AND l.waiting OPERATOR(pg_catalog.=) 0
            AND l.withheld_until IS NULL AND l.delay_ms IS NULL AND l.value IS NULL AND l.history IS NULL
            AND (SELECT x.watched_until OPERATOR(pg_catalog.<) palisade.now() FROM palisade.state x);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN palisade.hand_over(p_session, p_lock, p_token);
END $$;

-- First the other usual case: the next one lives, wants the lock alone, and nobody watches. (A hot lock is handed over in
-- half the time of `settle`.)
CREATE OR REPLACE FUNCTION palisade.hand_over(p_session bigint, p_lock text, p_token bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p palisade.place;
    v_locks text[];
    v_next record;
    v_token bigint;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN NULL; END IF;
    IF (palisade.living(p_session)).id IS NULL THEN
        RETURN palisade.no_session(p_session);
    END IF;
    PERFORM FROM palisade.lock l WHERE l.name = p_lock AND l.session = p_session AND l.token = p_token
        AND l.withheld_until IS NULL AND l.waiting > 0 AND l.token < 9007199254740991
        AND (SELECT x.watched_until < palisade.now() FROM palisade.state x) FOR UPDATE OF l;
    IF FOUND THEN
        DELETE FROM palisade.claim c USING palisade.session n, palisade.session s
            WHERE c.lock = p_lock AND c.waits AND c.arrival = (SELECT x.arrival FROM palisade.claim x
                    WHERE x.lock = p_lock AND x.waits ORDER BY x.arrival LIMIT 1)
                AND c.parts = 1 AND c.need = 4294967295 AND n.id = c.session AND n.deadline > palisade.now() AND s.id = p_session
            RETURNING c.session, c.number, c.delay_ms, c.value, n.channel, encode(s.label, 'hex') AS label INTO v_next;
        IF FOUND AND palisade.make_durable() THEN
            UPDATE palisade.lock l SET token = GREATEST(l.token + 1, nextval('palisade.tokens')), session = v_next.session,
                used_by = v_next.session, number = v_next.number, since = palisade.now(), delay_ms = v_next.delay_ms,
                value = v_next.value, waiting = l.waiting - 1,
                history = COALESCE(l.history[GREATEST(cardinality(l.history) - 6, 1):], '{}')
                    || concat_ws(',', p_token, p_session, 4294967295, v_next.label, 'released')
                WHERE l.name = p_lock RETURNING l.token INTO STRICT v_token;
            IF v_next.channel IS NOT NULL THEN
                PERFORM pg_notify(v_next.channel, concat_ws(' ', 'g', v_next.session, v_next.number, v_token));
            END IF;
            RETURN NULL;
        END IF;
    END IF;
    -- Which locks a grant has does not change, so its rows can be locked when that is known.
    SELECT x.* INTO p FROM palisade.place x WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token;
    v_locks := CASE WHEN p.parts > 1 THEN ARRAY(SELECT x.lock FROM palisade.place x
        WHERE x.session = p.session AND x.number = p.number ORDER BY x.part) ELSE ARRAY[p_lock] END;
    IF palisade.hold_rows(v_locks, true) <> '{}' THEN
        SELECT x.* INTO p FROM palisade.place x
            WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token AND x.withheld_until IS NULL;
    END IF;
    IF p.lock IS NULL OR p.withheld_until IS NOT NULL THEN
        RETURN palisade.not_held(p_lock, p_token);
    END IF;
    IF p.session <> p_session THEN
        RETURN json_build_object('OtherSession', json_build_object('lock', p_lock, 'token', p_token));
    END IF;
    PERFORM palisade.settle(v_locks, false, p_session, p.number, 'released');
    RETURN NULL;
END $$;

-- Gives up a request that waits, or that has not come yet. `said` is gone, or granted with the token, or refused.
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
    v_locks := palisade.hold_rows(ARRAY(SELECT x.lock FROM palisade.place x
        WHERE x.session = p_session AND x.number = p_number), true);
    SELECT x.token, x.lock INTO token, lock FROM palisade.place x
        WHERE x.session = p_session AND x.number = p_number AND NOT x.waits ORDER BY x.part LIMIT 1;
    IF FOUND THEN
        said := 'granted';
        RETURN;
    END IF;
    said := 'gone';
    UPDATE palisade.session x SET withdrawn = x.withdrawn[GREATEST(cardinality(x.withdrawn) - 62, 1):] || p_number,
        forgotten = GREATEST(x.forgotten, CASE WHEN cardinality(x.withdrawn) > 63 THEN x.withdrawn[1] END)
        WHERE x.id = p_session AND p_number <> ALL (x.withdrawn);
    PERFORM palisade.settle(v_locks, false, p_session, p_number, 'cancelled');
END $$;

-- What observers read of a lock from now on. NULL, or the refusal.
CREATE OR REPLACE FUNCTION palisade.publish(p_session bigint, p_lock text, p_token bigint, p_value bytea)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p palisade.place;
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN NULL; END IF;
    IF (palisade.living(p_session)).id IS NULL THEN
        RETURN palisade.no_session(p_session);
    END IF;
    PERFORM palisade.hold_rows(ARRAY[p_lock], true);
    SELECT x.* INTO p FROM palisade.place x
        WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token AND x.withheld_until IS NULL;
    IF NOT FOUND THEN
        RETURN palisade.not_held(p_lock, p_token);
    END IF;
    IF p.session <> p_session THEN
        RETURN json_build_object('OtherSession', json_build_object('lock', p_lock, 'token', p_token));
    END IF;
    IF octet_length(p_value) > 4096 THEN
        RETURN palisade.over('ValueBytes', 4096, octet_length(p_value));
    END IF;
    IF NOT p.is_inline THEN
        RETURN '"ValueNotPossible"';
    END IF;
    UPDATE palisade.lock x SET value = p_value WHERE x.name = p_lock RETURNING x.name INTO STRICT p_lock;
    PERFORM palisade.report('published', ARRAY[p_lock], jsonb_build_object('token', p_token, 'value', encode(p_value, 'hex')));
    RETURN NULL;
END $$;

-- Takes a lock away from all who hold it, or from one grant only. The token moves on.
CREATE OR REPLACE FUNCTION palisade.force(
    p_lock text, p_only bigint, p_by bytea, p_reason bytea, OUT grants integer, OUT moved_to bigint, OUT refusal text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    p palisade.place;
    v_locks text[];
    v_names text[];
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
        PERFORM palisade.settle(ARRAY[p_lock], true, NULL, NULL, NULL);
    END IF;
    IF NOT EXISTS (SELECT FROM palisade.place x
        WHERE x.lock = p_lock AND NOT x.waits AND x.token = COALESCE(p_only, x.token)) THEN
        refusal := CASE WHEN p_only IS NULL THEN json_build_object('NobodyHolds', json_build_object('lock', p_lock))::text
            ELSE palisade.not_held(p_lock, p_only) END;
        RETURN;
    END IF;
    moved_to := GREATEST(nextval('palisade.tokens'), (SELECT max(x.token) + 1 FROM palisade.lock x WHERE x.name = ANY(v_locks)));
    v_how := concat_ws(' ', 'forced', encode(p_by, 'hex'), encode(p_reason, 'hex'), moved_to);
    grants := 0;
    FOR r IN SELECT x.session, x.number FROM palisade.place x WHERE x.lock = p_lock AND NOT x.waits
        AND x.token = COALESCE(p_only, x.token) ORDER BY x.arrival LOOP
        v_names := ARRAY(SELECT x.lock FROM palisade.place x WHERE x.session = r.session AND x.number = r.number ORDER BY x.part);
        FOR p IN SELECT x.* FROM palisade.place x WHERE x.session = r.session AND x.number = r.number ORDER BY x.part LOOP
            SELECT x.* INTO STRICT l FROM palisade.lock x WHERE x.name = p.lock;
            PERFORM palisade.save(palisade.end_place(l, p, v_how, CASE WHEN p.part = p.parts THEN v_names END));
        END LOOP;
        grants := grants + 1;
    END LOOP;
    UPDATE palisade.lock x SET token = moved_to WHERE x.name = ANY(v_locks) AND x.token < moved_to;
    PERFORM palisade.settle(v_locks, false, NULL, NULL, NULL);
END $$;

-- Changes the permits of a semaphore in use. NULL, or the refusal.
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
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock AND (x.session IS NOT NULL OR x.taken > 0 OR x.waiting > 0);
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
    l.permits := p_permits;
    PERFORM palisade.save(l);
    PERFORM palisade.report('resized', ARRAY[p_lock], jsonb_build_object('limit', p_permits));
    FOR c IN SELECT x.* FROM palisade.claim x WHERE x.lock = p_lock AND x.waits AND x.need > p_permits ORDER BY x.arrival LOOP
        PERFORM palisade.settle(ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number
            ORDER BY x.part), false, c.session, c.number, v_refusal);
        PERFORM palisade.tell(c.session, concat_ws(' ', 'r', c.session, c.number, v_refusal), true);
    END LOOP;
    PERFORM palisade.settle(v_locks, false, NULL, NULL, NULL);
    RETURN NULL;
END $$;

-- A new connection of a session's client: requests of older ones that come late are refused. Says what is held under
-- which number; no row if the session has ended, and one of NULLs if it holds nothing.
CREATE OR REPLACE FUNCTION palisade.attach(p_session bigint, p_epoch integer) RETURNS TABLE (lock text, number bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    IF (palisade.living(p_session)).id IS NULL THEN RETURN; END IF;
    UPDATE palisade.session s SET epoch = GREATEST(s.epoch, p_epoch) WHERE s.id = p_session;
    RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint
        UNION ALL SELECT x.lock, x.number, x.token FROM palisade.place x
            WHERE x.session = p_session AND NOT x.waits AND x.withheld_until IS NULL AND x.part = 1;
END $$;

-- The waits among these that `is_stuck` speaks of.
CREATE OR REPLACE FUNCTION palisade.stuck(p_session bigint, p_numbers bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT c.number FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock WHERE c.session = p_session
        AND c.number = ANY(p_numbers) AND c.waits AND palisade.is_stuck(l, c.session, c.number));
END $$;

-- What became of requests that wait. What stands in their way and is over is ended; if more of that is left, `t` says that
-- it is worth asking again at once. Then what else the session has to be told; it is told once.
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
    -- All rows of a request are held, as a set is granted whole.
    IF v_stuck <> '{}' AND palisade.settle(palisade.hold_rows(ARRAY(SELECT c.lock FROM palisade.claim c
            WHERE c.session = p_session AND c.number = ANY(v_stuck)), true), true, NULL, NULL, NULL)
        AND palisade.stuck(p_session, p_numbers) <> '{}' THEN
        RETURN NEXT concat_ws(' ', 't', p_session);
    END IF;
    RETURN QUERY SELECT concat_ws(' ', 'g', p_session, x.number, x.token) FROM palisade.place x
        WHERE x.session = p_session AND x.number = ANY(p_numbers) AND NOT x.waits AND x.part = 1;
    RETURN QUERY WITH told AS (DELETE FROM palisade.notice n WHERE n.session = p_session RETURNING n.id, n.said)
        SELECT told.said FROM told ORDER BY told.id;
END $$;

-- Events go to this channel for so long, a minute at most.
CREATE OR REPLACE FUNCTION palisade.watch(p_channel text, p_prefix text, p_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := palisade.now() + LEAST(p_ms, 60000) * interval '1 ms';
BEGIN
    INSERT INTO palisade.watcher AS w (channel, prefix, until) VALUES (p_channel, p_prefix, v_until)
        ON CONFLICT (channel, prefix) DO UPDATE SET until = EXCLUDED.until;
    UPDATE palisade.state s SET watched_until = v_until WHERE s.watched_until < v_until;
END $$;

-- Waits for calls that were under way when a watch began: they may not have seen it, and told nobody what they did. A look
-- at the locks after that sees it. Not in the transaction that begins the watch.
CREATE OR REPLACE FUNCTION palisade.watch_begun() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE palisade.lock IN SHARE MODE;
END $$;

CREATE OR REPLACE FUNCTION palisade.unwatch(p_channel text, p_prefix text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM palisade.watcher w WHERE w.channel = p_channel AND w.prefix = p_prefix;
    -- First the row: a watch that begins meanwhile is seen then, or changes it afterwards.
    PERFORM FROM palisade.state FOR UPDATE;
    UPDATE palisade.state s SET watched_until = '-infinity'
        WHERE s.watched_until > palisade.now() AND NOT EXISTS (SELECT FROM palisade.watcher);
END $$;

-- For people and for other languages --------------------------------------------------------------------------------------

-- Holders and waiters, one row each. Labels are bytes, as a client may call itself anything.
CREATE OR REPLACE VIEW palisade.locks AS
    SELECT p.lock, CASE WHEN p.waits THEN 'waiting' WHEN p.withheld_until IS NULL THEN 'held' ELSE 'withheld' END AS state,
        p.need, l.permits, p.token, p.session, s.label, p.since, COALESCE(p.withheld_until, s.deadline) AS until, p.value,
        p.arrival
    FROM palisade.place p JOIN palisade.lock l ON l.name = p.lock LEFT JOIN palisade.session s ON s.id = p.session
    WHERE COALESCE(p.withheld_until, s.deadline) > palisade.now();

-- Locks in use, as JSON with bytes in hex, sorted by name: those of this name, or all that begin so.
CREATE OR REPLACE FUNCTION palisade.show(p_name text, p_prefix text) RETURNS SETOF json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT json_build_object('name', v.lock, 'permits', max(v.permits),
        'places', json_agg(json_build_object('state', v.state, 'need', v.need, 'token', v.token, 'session', v.session,
            'label', encode(v.label, 'hex'), 'held_ms', round(extract(epoch FROM palisade.now() - v.since) * 1000),
            'left_ms', round(extract(epoch FROM v.until - palisade.now()) * 1000)) ORDER BY v.arrival, v.since),
        'value', max(encode(v.value, 'hex')) FILTER (WHERE v.state = 'held'),
        'history', (SELECT l.history FROM palisade.lock l WHERE l.name = v.lock))
    FROM palisade.locks v
    WHERE v.lock = p_name OR (p_name IS NULL AND starts_with(v.lock, p_prefix))
    GROUP BY v.lock ORDER BY v.lock;
END $$;

-- What is wrong with the tables: one row for each thing that can never be, none if all is well. One statement, so that it
-- sees one state of them.
CREATE OR REPLACE FUNCTION palisade.check() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('lock %L counts %s taken and %s waiting, and has %s and %s', l.name, l.taken, l.waiting, x.taken, x.waiting)
        FROM palisade.lock l, LATERAL (SELECT COALESCE(sum(c.need) FILTER (WHERE NOT c.waits), 0) AS taken,
            count(*) FILTER (WHERE c.waits) AS waiting FROM palisade.claim c WHERE c.lock = l.name) x
        WHERE l.taken <> x.taken OR l.waiting <> x.waiting
    UNION ALL SELECT format('lock %L is held by session %s alone, and by others', l.name, l.session)
        FROM palisade.lock l WHERE l.session IS NOT NULL AND l.taken > 0
    UNION ALL SELECT format('lock %L has more than one holder, and one of them is exclusive', c.lock)
        FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock
        WHERE NOT c.waits AND l.permits IS NULL AND c.need < l.taken AND l.taken >= 4294967295
    UNION ALL SELECT format('lock %L is used by %s and held by %s', l.name, COALESCE(l.used_by::text, 'none'), l.session)
        FROM palisade.lock l WHERE l.session IS NOT NULL AND l.used_by IS DISTINCT FROM l.session
    UNION ALL SELECT format('lock %L is not in use, and not at rest', l.name)
        FROM palisade.lock l WHERE l.session IS NULL AND l.taken = 0 AND l.waiting = 0
            AND (l.permits IS NOT NULL OR l.history IS NOT NULL OR l.withheld_until IS NOT NULL)
    UNION ALL SELECT format('lock %L is withheld without a delay', p.lock)
        FROM palisade.place p WHERE p.withheld_until IS NOT NULL AND p.delay_ms IS NULL
    UNION ALL SELECT format('session %s has a place at lock %L, and there is no such session', p.session, p.lock)
        FROM palisade.place p WHERE p.withheld_until IS NULL
            AND NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = p.session)
    UNION ALL SELECT format('session %s has a place at lock %L, which has no row', c.session, c.lock)
        FROM palisade.claim c WHERE NOT EXISTS (SELECT FROM palisade.lock l WHERE l.name = c.lock)
    UNION ALL SELECT format('lock %L has had token %s, and token %s is held', l.name, l.token, c.token)
        FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock WHERE c.token > l.token
    UNION ALL SELECT format('token %s of lock %L is held %s times', c.token, c.lock, count(*))
        FROM palisade.claim c WHERE NOT c.waits GROUP BY c.lock, c.token HAVING count(*) > 1
    UNION ALL SELECT format('request %s of session %s has %s of its %s places, or not all of them alike', c.number, c.session,
            count(*), max(c.parts))
        FROM palisade.claim c JOIN palisade.session s ON s.id = c.session WHERE s.deadline > '-infinity'
        GROUP BY c.session, c.number
        HAVING count(*) <> max(c.parts) OR count(DISTINCT (c.waits, c.token, c.arrival)) > 1
    UNION ALL SELECT format('there is a notice for session %s, and no such session', n.session)
        FROM palisade.notice n WHERE NOT EXISTS (SELECT FROM palisade.session s WHERE s.id = n.session)
    UNION ALL SELECT format('%s has %s rows instead of 1', x.what, x.rows) FROM (
            SELECT 'palisade.state' AS what, count(*) AS rows FROM palisade.state
            UNION ALL SELECT 'palisade.version', count(*) FROM palisade.version) x WHERE x.rows <> 1
$$;

-- Sweeps until nothing is overdue, and removes rows of locks that are not in use. For pg_cron and the like, where no client
-- of the library is connected: those do it every few seconds. CALL it outside of a transaction: it commits on its way.
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

-- A refusal, as an error.
CREATE OR REPLACE FUNCTION palisade.refuse(p_refusal text, p_lock text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'lock % is refused: %', quote_literal(p_lock), p_refusal USING ERRCODE = 'PL001', DETAIL = p_refusal;
END $$;

-- A session of one lock, whose client does not listen.
CREATE OR REPLACE FUNCTION palisade.lease(p_ttl interval, p_label text, OUT session bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_label text := COALESCE(p_label, NULLIF(current_setting('application_name'), ''), session_user);
    o record;
BEGIN
    o := palisade.open((extract(epoch FROM p_ttl) * 1000)::bigint, convert_to(left(v_label, 64), 'UTF8'), NULL);
    IF o.refusal IS NOT NULL THEN
        RAISE EXCEPTION 'a ttl of % is refused: %', p_ttl, o.refusal USING ERRCODE = 'PL001', DETAIL = o.refusal;
    END IF;
    UPDATE palisade.session s SET is_lease = true WHERE s.id = o.session RETURNING s.id INTO STRICT session;
END $$;

CREATE OR REPLACE FUNCTION palisade.need_of(p_mode text, p_permits bigint, p_take bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF p_permits IS NOT NULL THEN
        RETURN p_take;
    END IF;
    CASE p_mode
        WHEN 'exclusive' THEN RETURN 4294967295;
        WHEN 'shared' THEN RETURN 1;
        ELSE RAISE EXCEPTION 'mode % is neither exclusive nor shared', quote_nullable(p_mode) USING ERRCODE = 'PL001';
    END CASE;
END $$;

-- The two calls that begin a lease: asks for one lock, and says how the request stands. It does not sweep: in a caller's open
-- transaction that would hold the rows of other locks.
CREATE OR REPLACE FUNCTION palisade.request_lease(
    p_lock text, p_ttl interval, p_mode text, p_permits bigint, p_take bigint, p_label text, p_waits boolean,
    OUT said text, OUT session bigint
) LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    session := palisade.lease(p_ttl, p_label);
    r := palisade.request(session, 0, 1, ARRAY[p_lock], ARRAY[palisade.need_of(p_mode, p_permits, p_take)], ARRAY[p_permits],
        p_waits, true, NULL, NULL);
    said := r.said;
    IF said = 'refused' THEN
        PERFORM palisade.refuse(r.detail, p_lock);
    END IF;
END $$;

-- Takes a lock if it is free, for so long; `renew` it before that. One row if it is had, no row if it is not free.
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
        RETURN QUERY SELECT p.token, s.id, s.deadline FROM palisade.place p JOIN palisade.session s ON s.id = p.session
            WHERE s.id = r.session AND s.deadline > '-infinity' AND NOT p.waits;
    ELSE
        DELETE FROM palisade.session s WHERE s.id = r.session;
    END IF;
END $$;

-- Joins the queue of a lock. Call `wait_on` now and then until it says `granted`: a wait that is not looked at for as long
-- as its ttl leaves the queue.
CREATE OR REPLACE FUNCTION palisade.begin_wait(
    lock text, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (palisade.request_lease(lock, ttl, mode, permits, take, label, true)).session;
END $$;

-- How a wait stands: queued, granted with its token, or lost. Keeps it alive when half of its ttl is over.
CREATE OR REPLACE FUNCTION palisade.wait_on(p_session bigint, OUT said text, OUT token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session := palisade.living(p_session);
    v_line text;
BEGIN
    said := 'lost';
    IF s.id IS NULL OR (s.deadline < palisade.now() + s.ttl_ms * interval '0.5 ms' AND NOT palisade.keep_alive(p_session)) THEN
        RETURN;
    END IF;
    said := 'queued';
    FOR v_line IN SELECT x FROM palisade.look_up(p_session, '{1}') x LOOP
        IF v_line LIKE 'g %' THEN
            said := 'granted';
            token := split_part(v_line, ' ', 4)::bigint;
        ELSIF v_line NOT LIKE 't %' THEN
            said := 'lost';
            token := NULL;
        END IF;
    END LOOP;
END $$;

-- Waits for a lock in its queue, for so long at most, and says with which token it is had; NULL if it is not.
-- CALL it outside of a transaction: it commits on its way.
CREATE OR REPLACE PROCEDURE palisade.acquire_within(
    lock text, patience interval, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL, INOUT token bigint DEFAULT NULL, INOUT session bigint DEFAULT NULL
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    v_until timestamptz := palisade.now() + patience;
    v_said text;
BEGIN
    session := palisade.begin_wait(lock, ttl, mode, permits, take, label);
    LOOP
        COMMIT;
        SELECT w.said, w.token INTO v_said, token FROM palisade.wait_on(session) w;
        EXIT WHEN v_said <> 'queued';
        IF palisade.now() >= v_until THEN
            PERFORM palisade.close(session);
            session := NULL;
            COMMIT;
            RETURN;
        END IF;
        PERFORM pg_sleep(LEAST(0.05, GREATEST(0.001, extract(epoch FROM v_until - palisade.now()))));
    END LOOP;
    IF v_said = 'lost' THEN
        RAISE EXCEPTION 'the wait for % is over: its session has ended, by its ttl of % or by hand', quote_literal(lock), ttl
            USING ERRCODE = 'PL001';
    END IF;
END $$;

-- The session that holds a lock with this token.
CREATE OR REPLACE FUNCTION palisade.holder_of(p_lock text, p_token bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT p.session FROM palisade.place p
        WHERE p.lock = p_lock AND NOT p.waits AND p.token = p_token AND p.withheld_until IS NULL
$$;

-- Gives a lock back. False if this token does not hold it any more, or never did: then nothing has changed.
CREATE OR REPLACE FUNCTION palisade.release(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_session bigint := palisade.holder_of(lock, token);
BEGIN
    IF NOT palisade.check_transaction() OR v_session IS NULL OR palisade.give_back(v_session, lock, token) IS NOT NULL THEN
        RETURN false;
    END IF;
    DELETE FROM palisade.session s WHERE s.id = v_session AND s.is_lease;
    RETURN true;
END $$;

-- Another ttl for the holder of a lock. False if this token does not hold it any more.
CREATE OR REPLACE FUNCTION palisade.renew(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN palisade.keep_alive(palisade.holder_of(lock, token));
END $$;

-- Takes a lock away from all who hold it. Resources are sealed with the number that it returns.
CREATE OR REPLACE FUNCTION palisade.break(lock text, reason text, token bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r record;
BEGIN
    r := palisade.force(lock, token, convert_to(session_user::text, 'UTF8'), convert_to(reason, 'UTF8'));
    IF r.refusal IS NOT NULL THEN
        PERFORM palisade.refuse(r.refusal, lock);
    END IF;
    RETURN r.moved_to;
END $$;

-- Gives no token up to and including this one any more, as when the store has lost some, or locks come from elsewhere.
CREATE OR REPLACE FUNCTION palisade.raise_tokens(above bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (above BETWEEN 1 AND 9007199254740991) IS NOT TRUE THEN
        RAISE EXCEPTION 'a token is a number from 1 to 9007199254740991' USING ERRCODE = 'PL001';
    END IF;
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
    -- Calls under way come first, and others wait: none is left with a token that it took before.
    LOCK TABLE palisade.lock IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM palisade.lock l WHERE l.token < above AND (l.session IS NOT NULL OR l.taken > 0)) THEN
        RAISE EXCEPTION 'some locks are held with lower tokens; end their sessions or break them first'
            USING ERRCODE = 'PL001';
    END IF;
    UPDATE palisade.state s SET floor = above WHERE s.floor < above;
    UPDATE palisade.lock l SET token = above WHERE l.token < above;
    -- With a distance, as calls that wait for the table may take some numbers meanwhile.
    PERFORM setval('palisade.tokens', LEAST(GREATEST(above, nextval('palisade.tokens')) + 1000000, 9007199254740991));
END $$;

-- Lets a role use the locks. It needs no rights on the tables.
CREATE OR REPLACE FUNCTION palisade.allow(role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA palisade TO %I', role);
    EXECUTE format('GRANT SELECT ON palisade.version, palisade.state, palisade.locks TO %I', role);
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'palisade'::regnamespace
        AND (p.prosecdef OR p.prokind = 'p' OR p.proname = 'now') LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', f, role);
    END LOOP;
END $$;

REVOKE ALL ON ALL ROUTINES IN SCHEMA palisade FROM PUBLIC;
-- Roles that were allowed before may also call what is new.
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
