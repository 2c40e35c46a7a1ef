-- Palisade's locks in PostgreSQL 13 and newer. Run it as often as you like: nothing is lost, and clients that are
-- connected go on. Needs CREATE on the database; afterwards applications need only
--   SELECT palisade.allow('app');
BEGIN;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(1885432935, 0);
    IF to_regclass('palisade.version') IS NOT NULL THEN
        IF (SELECT v.version FROM palisade.version v) > 1 THEN
            RAISE EXCEPTION 'a newer schema of palisade (version %) is installed; nothing has changed',
                (SELECT v.version FROM palisade.version v)
                USING HINT = 'Use the palisade that has installed it, or a newer one.';
        END IF;
    END IF;
END $$;

-- Step 1 --------------------------------------------------------------------------------------------------------------
CREATE SCHEMA IF NOT EXISTS palisade;

-- Which steps are done, and the oldest client that can use the result.
CREATE TABLE IF NOT EXISTS palisade.version (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    version integer NOT NULL,
    usable_from integer NOT NULL
);
INSERT INTO palisade.version (version, usable_from) VALUES (1, 1) ON CONFLICT DO NOTHING;

-- What all locks have in common. `cluster` tells one life of the data from another: a restored or emptied store has
-- another one, or none.
CREATE TABLE IF NOT EXISTS palisade.state (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    floor bigint NOT NULL DEFAULT 0,        -- no lock whose row was removed has had a higher token
    watched_until timestamptz NOT NULL DEFAULT '-infinity',
    cluster uuid NOT NULL DEFAULT gen_random_uuid(),
    cleaned_to text COLLATE "C" NOT NULL DEFAULT '' -- the name up to which unused rows were removed, on this round
) WITH (fillfactor = 50);
INSERT INTO palisade.state DEFAULT VALUES ON CONFLICT DO NOTHING;

-- A client's liveness. It is dead when its deadline has passed; whoever finds that notes it here, for good.
CREATE TABLE IF NOT EXISTS palisade.session (
    id bigint PRIMARY KEY,
    ttl_ms bigint NOT NULL,
    deadline timestamptz NOT NULL,
    ended boolean NOT NULL DEFAULT false,
    epoch integer NOT NULL DEFAULT 0,       -- requests of an older connection are refused
    is_lease boolean NOT NULL DEFAULT false, -- ends with what it holds
    channel text,                           -- where its client listens
    label bytea NOT NULL,
    withdrawn bigint[] NOT NULL DEFAULT '{}', -- requests that were cancelled before they came, the last few
    forgotten bigint NOT NULL DEFAULT 0     -- the highest that is no longer there
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS session_deadline ON palisade.session (deadline);

-- A lock. A single exclusive holder is in its row, and nothing else is touched for it; everything else that is held,
-- and whatever waits, is in palisade.claim.
CREATE TABLE IF NOT EXISTS palisade.lock (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,                  -- the last one given here
    session bigint,                         -- the holder, if it is a single exclusive one
    number bigint,                          -- its request
    since timestamptz,
    delay_ms bigint,
    withheld_until timestamptz,             -- the holder is dead, and its delay runs
    value bytea,
    permits bigint,                         -- of a semaphore in use
    taken bigint NOT NULL DEFAULT 0,        -- what holders in palisade.claim have
    waiting integer NOT NULL DEFAULT 0,     -- how many wait in palisade.claim
    history text[],                         -- the last grants that ended while it was in use
    used_by bigint                          -- the last one who was in `session`: what it holds is among these
) WITH (fillfactor = 50);
-- As it was before there was `used_by`.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'palisade.lock'::regclass AND a.attname = 'used_by') THEN
        LOCK TABLE palisade.lock, palisade.state;
        ALTER TABLE palisade.lock SET (fillfactor = 50);
        ALTER TABLE palisade.lock ADD COLUMN used_by bigint;
        ALTER TABLE palisade.state ADD COLUMN cleaned_to text COLLATE "C" NOT NULL DEFAULT '';
        DROP INDEX IF EXISTS palisade.lock_session;
    END IF;
END $$;
-- Not of `session`: whoever takes the same lock again changes nothing that is in an index, which costs far less.
CREATE INDEX IF NOT EXISTS lock_used_by ON palisade.lock (used_by);

-- A request's place at a lock: in its queue, or among its holders. One for several locks has a row at each.
CREATE TABLE IF NOT EXISTS palisade.claim (
    lock text COLLATE "C" NOT NULL,
    waits boolean NOT NULL,
    arrival bigint NOT NULL,
    session bigint NOT NULL,
    number bigint NOT NULL,                 -- below 0 for one without a number
    part integer NOT NULL,
    parts integer NOT NULL,
    need bigint NOT NULL,
    token bigint,
    since timestamptz,
    delay_ms bigint,
    withheld_until timestamptz,
    value bytea,
    PRIMARY KEY (lock, waits, arrival)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS claim_request ON palisade.claim (session, number);

-- The order of arrival: taken while the locks' rows are held.
CREATE SEQUENCE IF NOT EXISTS palisade.arrivals;
-- Where tokens come from, so that no two locks have the same one at the same time: a client knows its grants by them.
-- That they rise is not left to it, as a sequence can go back after a crash: each is above the last one of its lock.
CREATE SEQUENCE IF NOT EXISTS palisade.tokens MAXVALUE 9007199254740991;
-- Numbers for requests without one.
CREATE SEQUENCE IF NOT EXISTS palisade.unnumbered;

-- What a session has to be told, kept until it was, or until the session is gone.
CREATE TABLE IF NOT EXISTS palisade.notice (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    said text NOT NULL
);
CREATE INDEX IF NOT EXISTS notice_session ON palisade.notice (session);

-- Who wants to know what happens.
CREATE TABLE IF NOT EXISTS palisade.watcher (
    channel text NOT NULL,
    prefix text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (channel, prefix)
);

-- Functions: always replaced by the newest -----------------------------------------------------------------------------
-- (What every call needs is called in expressions, because PERFORM takes several times as long.)

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

-- What is granted is durable before anybody is told. Never lowers what the user has set.
CREATE OR REPLACE FUNCTION palisade.make_durable() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RETURN set_config('synchronous_commit', 'on', true) IS NOT NULL;
    END IF;
    RETURN true;
END $$;

-- Keeps a session's requests apart from its end and from their cancellation.
CREATE OR REPLACE FUNCTION palisade.key_of(p_session bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS
    'SELECT (1 + p_session % 2147483646)::integer';

CREATE OR REPLACE FUNCTION palisade.is_live(p_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM palisade.session s
        WHERE s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp());
END $$;

CREATE OR REPLACE FUNCTION palisade.over(p_limit text, p_max bigint, p_value bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('OverLimit', json_build_object('limit', p_limit, 'max', p_max, 'value', p_value))::text $$;

CREATE OR REPLACE FUNCTION palisade.no_session(p_session bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('NoSuchSession', json_build_object('session', p_session))::text $$;

-- Tells a session's client, if it listens. What must not be lost is kept, too.
CREATE OR REPLACE FUNCTION palisade.tell(p_session bigint, p_said text, p_keep boolean) RETURNS void
LANGUAGE plpgsql AS $$
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

-- Tells a session that a grant of it ended, not on its wish. That it was taken away is kept, with the grant itself: its
-- client may not have heard of either.
CREATE OR REPLACE FUNCTION palisade.tell_lost(p_session bigint, p_number bigint, p_token bigint, p_how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_how LIKE 'forced%' THEN
        INSERT INTO palisade.notice (session, said) SELECT p_session, concat_ws(' ', 'g', p_session, p_number, p_token)
            FROM palisade.session s WHERE s.id = p_session AND p_number > 0;
    END IF;
    PERFORM palisade.tell(p_session, concat_ws(' ', 'l', p_session, p_token, p_how), p_how LIKE 'forced%');
END $$;

-- Whether anybody watches. Read where the floor is read anyway.
CREATE OR REPLACE FUNCTION palisade.is_watched() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT s.watched_until > clock_timestamp() FROM palisade.state s);
END $$;

-- Tells those who watch. What is too long for a notification is told as something that was missed.
CREATE OR REPLACE FUNCTION palisade.report(p_locks text[], p_event json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_said text := 'w ' || p_event::text;
BEGIN
    PERFORM pg_notify(w.channel, CASE WHEN octet_length(v_said) < 7900 THEN v_said ELSE 'm' END)
        FROM (SELECT DISTINCT x.channel FROM palisade.watcher x, unnest(p_locks) l(name)
            WHERE x.until > clock_timestamp() AND starts_with(l.name, x.prefix)) w;
END $$;

CREATE OR REPLACE FUNCTION palisade.report_granted(
    p_locks text[], p_session bigint, p_number bigint, p_token bigint, p_ticket bigint, p_value bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade.report(p_locks, json_build_object('is', 'granted', 'locks', p_locks, 'session', p_session,
        'token', p_token, 'ticket', p_ticket, 'number', CASE WHEN p_number > 0 THEN p_number END));
    IF p_value IS NOT NULL THEN
        PERFORM palisade.report(p_locks, json_build_object('is', 'published', 'locks', p_locks, 'token', p_token,
            'value', encode(p_value, 'hex')));
    END IF;
END $$;

-- An ending, as history and notices write it: `released`, `closed`, `expired`, or `forced BY REASON TOKEN` in hex.
CREATE OR REPLACE FUNCTION palisade.report_ended(p_locks text[], p_session bigint, p_token bigint, p_how text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade.report(p_locks, json_build_object('is', 'ended', 'locks', p_locks, 'session', p_session,
        'token', p_token, 'how', p_how));
END $$;

-- The history of a lock with one more ending.
CREATE OR REPLACE FUNCTION palisade.with_ending(
    p_history text[], p_session bigint, p_token bigint, p_need bigint, p_how text
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_label text;
BEGIN
    SELECT encode(s.label, 'hex') INTO v_label FROM palisade.session s WHERE s.id = p_session;
    RETURN COALESCE(p_history[GREATEST(cardinality(p_history) - 6, 1):], '{}') || concat_ws(',', p_token, p_session, p_need,
        COALESCE(v_label, ''), p_how);
END $$;

-- A session whose deadline has passed is dead from now on, whatever the clock says later. False: not now.
CREATE OR REPLACE FUNCTION palisade.bury(p_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_channel text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1885432935, palisade.key_of(p_session)) THEN
        RETURN false;
    END IF;
    UPDATE palisade.session s SET ended = true
        WHERE s.id = p_session AND NOT s.ended AND s.deadline <= clock_timestamp() RETURNING s.channel INTO v_channel;
    IF FOUND THEN
        IF v_channel IS NOT NULL THEN
            PERFORM pg_notify(v_channel, concat_ws(' ', 's', p_session, 'expired'));
        END IF;
        RETURN true;
    END IF;
    RETURN NOT palisade.is_live(p_session);
END $$;

-- Removes rows of locks that nobody uses and whose token is not among the last 2000. Looks at a few hundred rows, from
-- where the last one stopped. The floor rises before they go.
CREATE OR REPLACE FUNCTION palisade.clean() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
    v_from text;
    v_to text;
    v_seen integer;
    v_highest bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1885432935, -1) THEN
        RETURN;
    END IF;
    SELECT t.last_value, s.cleaned_to INTO v_last, v_from FROM palisade.tokens t, palisade.state s;
    SELECT max(x.name), count(*) INTO v_to, v_seen FROM (
        SELECT l.name FROM palisade.lock l WHERE l.name > v_from ORDER BY l.name LIMIT 400) x;
    WITH idle AS (
        SELECT l.name FROM palisade.lock l WHERE l.name > v_from AND l.name <= v_to AND l.session IS NULL AND l.taken = 0
            AND l.waiting = 0 AND l.token NOT BETWEEN v_last - 2000 AND v_last FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM palisade.lock l USING idle WHERE l.name = idle.name RETURNING l.token
    )
    SELECT max(gone.token) INTO v_highest FROM gone;
    -- After the last name comes the first.
    UPDATE palisade.state s SET floor = GREATEST(s.floor, v_highest), cleaned_to = CASE WHEN v_seen = 400 THEN v_to ELSE '' END;
END $$;

-- A lock's row, made if there is none, and locked until the end of the transaction. The floor is read when nobody can
-- remove or add the row any more: one that was removed meanwhile has raised it.
CREATE OR REPLACE FUNCTION palisade.hold_row(p_lock text) RETURNS palisade.lock LANGUAGE plpgsql AS $$
DECLARE
    v_row palisade.lock;
    v_floor bigint;
BEGIN
    LOOP
        SELECT l.* INTO v_row FROM palisade.lock l WHERE l.name = p_lock FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO palisade.lock AS l (name, token) SELECT p_lock, s.floor FROM palisade.state s
            ON CONFLICT (name) DO NOTHING RETURNING l.* INTO v_row;
        IF FOUND THEN
            SELECT s.floor INTO v_floor FROM palisade.state s;
            IF v_row.token < v_floor THEN
                UPDATE palisade.lock l SET token = v_floor WHERE l.name = p_lock RETURNING l.* INTO v_row;
            END IF;
            IF random() < 0.015625 THEN
                PERFORM palisade.clean();
            END IF;
            EXIT;
        END IF;
    END LOOP;
    RETURN v_row;
END $$;

-- Whether so much is left, whoever's turn it is.
CREATE OR REPLACE FUNCTION palisade.admits(p_row palisade.lock, p_need bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN p_row.session IS NULL AND p_row.taken + p_need <= COALESCE(p_row.permits, 4294967295);
END $$;

-- A lock that nobody holds or wants is nothing but a token.
CREATE OR REPLACE FUNCTION palisade.rest(p_locks text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE palisade.lock l SET permits = NULL, history = NULL
        WHERE l.name = ANY(p_locks) AND l.session IS NULL AND l.taken = 0 AND l.waiting = 0
            AND (l.permits IS NOT NULL OR l.history IS NOT NULL);
END $$;

-- Ends what dead sessions hold at a lock whose row is held here, or withholds it for its delay; ends delays.
-- True if something became free.
CREATE OR REPLACE FUNCTION palisade.reap(p_lock text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
    v_freed boolean := false;
    v_watched boolean := palisade.is_watched();
BEGIN
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock;
    IF l.session IS NOT NULL AND l.withheld_until IS NULL AND NOT palisade.is_live(l.session)
        AND palisade.bury(l.session) THEN
        PERFORM palisade.tell_lost(l.session, l.number, l.token, 'expired');
        IF l.waiting > 0 OR l.delay_ms IS NOT NULL THEN
            l.history := palisade.with_ending(l.history, l.session, l.token, 4294967295, 'expired');
        END IF;
        l.withheld_until := clock_timestamp() + l.delay_ms * interval '1 ms';
        UPDATE palisade.lock x SET history = l.history, value = NULL, number = NULL, withheld_until = l.withheld_until,
            session = CASE WHEN l.delay_ms IS NOT NULL THEN x.session END WHERE x.name = p_lock;
        v_freed := l.delay_ms IS NULL;
        IF v_watched THEN
            PERFORM palisade.report_ended(ARRAY[p_lock], l.session, l.token, 'expired');
            IF l.delay_ms IS NOT NULL THEN
                PERFORM palisade.report(ARRAY[p_lock], json_build_object('is', 'withheld', 'locks', ARRAY[p_lock],
                    'token', l.token, 'delay', l.delay_ms));
            END IF;
        END IF;
    ELSIF l.withheld_until <= clock_timestamp() THEN
        UPDATE palisade.lock x SET session = NULL, delay_ms = NULL, withheld_until = NULL WHERE x.name = p_lock;
        v_freed := true;
        IF v_watched THEN
            PERFORM palisade.report(ARRAY[p_lock], json_build_object('is', 'delay-ended', 'locks', ARRAY[p_lock],
                'token', l.token));
        END IF;
    END IF;
    IF l.taken > 0 THEN
        FOR c IN SELECT x.* FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits ORDER BY x.arrival LOOP
            IF c.withheld_until IS NULL AND NOT palisade.is_live(c.session) AND palisade.bury(c.session) THEN
                v_freed := palisade.end_part(c, 'expired', ARRAY[p_lock]) OR v_freed;
            ELSIF c.withheld_until <= clock_timestamp() THEN
                v_freed := palisade.end_part(c, NULL, ARRAY[p_lock]) OR v_freed;
            END IF;
        END LOOP;
    END IF;
    RETURN v_freed;
END $$;

-- Ends one place of a grant; with a delay after an expiry it is withheld. True if something became free. Told with
-- these names, or not at all.
CREATE OR REPLACE FUNCTION palisade.end_part(c palisade.claim, p_how text, p_locks text[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_watched boolean := p_locks IS NOT NULL AND palisade.is_watched();
    v_is_withheld boolean := p_how = 'expired' AND c.delay_ms IS NOT NULL;
    v_others boolean;
BEGIN
    IF p_how IS NOT NULL THEN
        v_others := v_is_withheld OR (SELECT l.waiting > 0 OR l.taken > c.need FROM palisade.lock l WHERE l.name = c.lock);
        IF v_others THEN
            UPDATE palisade.lock l SET history = palisade.with_ending(l.history, c.session, c.token, c.need, p_how)
                WHERE l.name = c.lock;
        END IF;
        IF p_how <> 'released' AND p_locks IS NOT NULL THEN
            PERFORM palisade.tell_lost(c.session, c.number, c.token, p_how);
        END IF;
    END IF;
    IF v_watched THEN
        IF p_how IS NULL THEN
            PERFORM palisade.report(p_locks, json_build_object('is', 'delay-ended', 'locks', p_locks,
                'token', c.token));
        ELSE
            PERFORM palisade.report_ended(p_locks, c.session, c.token, p_how);
        END IF;
    END IF;
    IF v_is_withheld THEN
        UPDATE palisade.claim x SET withheld_until = clock_timestamp() + c.delay_ms * interval '1 ms', value = NULL
            WHERE x.lock = c.lock AND NOT x.waits AND x.arrival = c.arrival;
        IF v_watched THEN
            PERFORM palisade.report(p_locks, json_build_object('is', 'withheld', 'locks', p_locks,
                'token', c.token, 'delay', c.delay_ms));
        END IF;
        RETURN false;
    END IF;
    DELETE FROM palisade.claim x WHERE x.lock = c.lock AND NOT x.waits AND x.arrival = c.arrival;
    UPDATE palisade.lock l SET taken = l.taken - c.need WHERE l.name = c.lock;
    RETURN true;
END $$;

-- Takes a waiter out of one queue.
CREATE OR REPLACE FUNCTION palisade.leave_queue(c palisade.claim, p_why text, p_locks text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM palisade.claim x WHERE x.lock = c.lock AND x.waits AND x.arrival = c.arrival;
    UPDATE palisade.lock l SET waiting = l.waiting - 1 WHERE l.name = c.lock;
    IF p_locks IS NOT NULL AND palisade.is_watched() THEN
        PERFORM palisade.report(p_locks, json_build_object('is', 'left', 'locks', p_locks, 'ticket', c.arrival,
            'session', c.session, 'why', p_why));
    END IF;
END $$;

-- The first of a queue who lives. Those before it are taken out.
CREATE OR REPLACE FUNCTION palisade.front_of(p_lock text) RETURNS palisade.claim LANGUAGE plpgsql AS $$
DECLARE
    c palisade.claim;
BEGIN
    LOOP
        SELECT x.* INTO c FROM palisade.claim x WHERE x.lock = p_lock AND x.waits ORDER BY x.arrival LIMIT 1;
        IF NOT FOUND OR palisade.is_live(c.session) THEN
            RETURN c;
        END IF;
        PERFORM palisade.leave_queue(c, 'expired', ARRAY[p_lock]);
    END LOOP;
END $$;

-- Grants whatever can be granted now at these locks, whose rows are held here, front of the queue first.
CREATE OR REPLACE FUNCTION palisade.settle(p_touched text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    i integer := 0;
    l palisade.lock;
    c palisade.claim;
    v_token bigint;
    v_locks text[];
BEGIN
    WHILE i < cardinality(p_touched) LOOP
        i := i + 1;
        LOOP
            SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_touched[i];
            EXIT WHEN l.waiting = 0;
            c := palisade.front_of(l.name);
            EXIT WHEN c.lock IS NULL OR NOT palisade.admits(l, c.need) OR l.token >= 9007199254740991;
            v_locks := ARRAY[l.name];
            IF c.parts = 1 AND c.need = 4294967295 THEN
                DELETE FROM palisade.claim x WHERE x.lock = c.lock AND x.waits AND x.arrival = c.arrival;
                UPDATE palisade.lock x SET token = GREATEST(x.token + 1, nextval('palisade.tokens')), session = c.session,
                    used_by = c.session, number = c.number, since = clock_timestamp(), delay_ms = c.delay_ms,
                    value = c.value, waiting = x.waiting - 1
                    WHERE x.name = l.name RETURNING x.token INTO v_token;
            ELSIF c.parts = 1 THEN
                UPDATE palisade.lock x SET token = GREATEST(x.token + 1, nextval('palisade.tokens')), taken = x.taken + c.need, waiting = x.waiting - 1
                    WHERE x.name = l.name RETURNING x.token INTO v_token;
                UPDATE palisade.claim x SET waits = false, token = v_token, since = clock_timestamp()
                    WHERE x.lock = c.lock AND x.waits AND x.arrival = c.arrival;
            ELSE
                v_token := palisade.grant_set(c);
                EXIT WHEN v_token IS NULL;
                v_locks := ARRAY(SELECT x.lock FROM palisade.claim x
                    WHERE x.session = c.session AND x.number = c.number ORDER BY x.part);
                p_touched := p_touched || v_locks;
            END IF;
            EXIT WHEN NOT palisade.make_durable();
            PERFORM palisade.tell(c.session, concat_ws(' ', 'g', c.session, c.number, v_token), false);
            IF palisade.is_watched() THEN
                PERFORM palisade.report_granted(v_locks, c.session, c.number, v_token, c.arrival, c.value);
            END IF;
        END LOOP;
    END LOOP;
    PERFORM palisade.rest(p_touched);
END $$;

-- Grants a set that is at the front of one queue, if it is at the front of all and enough is left everywhere. The other
-- rows are not waited for, as that could be for ever: whoever has one is busy, and the waiter is told to look itself.
CREATE OR REPLACE FUNCTION palisade.grant_set(c palisade.claim) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    l palisade.lock;
    p palisade.claim;
    f palisade.claim;
    v_token bigint := nextval('palisade.tokens');
    v_found integer := 0;
BEGIN
    FOR l IN SELECT x.* FROM palisade.lock x WHERE x.name IN (SELECT y.lock FROM palisade.claim y
        WHERE y.session = c.session AND y.number = c.number AND y.waits) ORDER BY x.name FOR UPDATE SKIP LOCKED LOOP
        v_found := v_found + 1;
    END LOOP;
    IF v_found < c.parts THEN
        PERFORM palisade.tell(c.session, concat_ws(' ', 't', c.session, c.number), false);
        RETURN NULL;
    END IF;
    FOR p IN SELECT y.* FROM palisade.claim y WHERE y.session = c.session AND y.number = c.number LOOP
        PERFORM palisade.reap(p.lock);
        f := palisade.front_of(p.lock);
        SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p.lock;
        IF f.arrival IS DISTINCT FROM c.arrival OR NOT palisade.admits(l, p.need) THEN
            RETURN NULL;
        END IF;
        v_token := GREATEST(v_token, l.token + 1);
    END LOOP;
    IF v_token > 9007199254740991 THEN
        RETURN NULL;
    END IF;
    UPDATE palisade.lock x SET token = v_token, taken = x.taken + y.need, waiting = x.waiting - 1
        FROM palisade.claim y WHERE y.session = c.session AND y.number = c.number AND x.name = y.lock;
    UPDATE palisade.claim y SET waits = false, token = v_token, since = clock_timestamp()
        WHERE y.session = c.session AND y.number = c.number;
    RETURN v_token;
END $$;

-- Ends a claim whose locks' rows are all held here: a wait, or a grant.
CREATE OR REPLACE FUNCTION palisade.end_claim(p_session bigint, p_number bigint, p_how text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    c palisade.claim;
    v_locks text[];
BEGIN
    v_locks := ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number ORDER BY x.part);
    FOR c IN SELECT x.* FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number ORDER BY x.part LOOP
        IF c.waits THEN
            PERFORM palisade.leave_queue(c, p_how, CASE WHEN c.part = c.parts THEN v_locks END);
        ELSE
            PERFORM palisade.end_part(c, p_how, CASE WHEN c.part = c.parts THEN v_locks END);
        END IF;
    END LOOP;
END $$;

-- Ends the single exclusive grant in a lock's row, which is held here.
CREATE OR REPLACE FUNCTION palisade.end_inline(l palisade.lock, p_how text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_delay boolean := p_how = 'expired' AND l.delay_ms IS NOT NULL AND l.withheld_until IS NULL;
BEGIN
    IF p_how IS NOT NULL AND l.withheld_until IS NULL THEN
        IF l.waiting > 0 OR v_delay THEN
            l.history := palisade.with_ending(l.history, l.session, l.token, 4294967295, p_how);
        END IF;
        IF p_how <> 'released' THEN
            PERFORM palisade.tell_lost(l.session, l.number, l.token, p_how);
        END IF;
    END IF;
    UPDATE palisade.lock x SET history = l.history, value = NULL, number = NULL,
        session = CASE WHEN v_delay THEN x.session END,
        since = CASE WHEN v_delay THEN x.since END,
        delay_ms = CASE WHEN v_delay THEN x.delay_ms END,
        withheld_until = CASE WHEN v_delay THEN clock_timestamp() + x.delay_ms * interval '1 ms' END
        WHERE x.name = l.name;
    IF palisade.is_watched() THEN
        IF l.withheld_until IS NULL THEN
            PERFORM palisade.report_ended(ARRAY[l.name], l.session, l.token, p_how);
        ELSE
            PERFORM palisade.report(ARRAY[l.name], json_build_object('is', 'delay-ended', 'locks', ARRAY[l.name],
                'token', l.token, 'how', p_how));
        END IF;
        IF v_delay THEN
            PERFORM palisade.report(ARRAY[l.name], json_build_object('is', 'withheld', 'locks', ARRAY[l.name],
                'token', l.token, 'delay', l.delay_ms));
        END IF;
    END IF;
END $$;

-- Locks the rows of these locks, in the order of their names.
CREATE OR REPLACE FUNCTION palisade.hold_rows(p_locks text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM palisade.lock l WHERE l.name = ANY(p_locks) ORDER BY l.name FOR UPDATE;
END $$;

-- Ends a session and everything it has; its key is held here.
CREATE OR REPLACE FUNCTION palisade.end_session(p_session bigint, p_how text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_locks text[];
    v_channel text;
    v_number bigint;
    l palisade.lock;
BEGIN
    v_locks := ARRAY(SELECT x.name FROM palisade.lock x
            WHERE x.used_by = p_session AND x.session = p_session AND x.withheld_until IS NULL
        UNION SELECT y.lock FROM palisade.claim y WHERE y.session = p_session AND y.withheld_until IS NULL ORDER BY 1);
    PERFORM palisade.hold_rows(v_locks);
    -- In the order in which it took them, held or waited for.
    FOR v_number IN SELECT y.number FROM palisade.claim y WHERE y.session = p_session AND y.withheld_until IS NULL
        GROUP BY y.number ORDER BY min(y.arrival) LOOP
        PERFORM palisade.end_claim(p_session, v_number, p_how);
    END LOOP;
    FOR l IN SELECT x.* FROM palisade.lock x
        WHERE x.used_by = p_session AND x.session = p_session AND x.withheld_until IS NULL ORDER BY x.since LOOP
        PERFORM palisade.end_inline(l, p_how);
    END LOOP;
    DELETE FROM palisade.session s WHERE s.id = p_session RETURNING s.channel INTO v_channel;
    DELETE FROM palisade.notice n WHERE n.session = p_session;
    IF v_channel IS NOT NULL THEN
        PERFORM pg_notify(v_channel, concat_ws(' ', 's', p_session, p_how));
    END IF;
    PERFORM palisade.settle(v_locks);
END $$;

-- Clients of every kind --------------------------------------------------------------------------------------------------

-- Begins a session.
CREATE OR REPLACE FUNCTION palisade.open(p_ttl_ms bigint, p_label bytea, p_channel text, OUT session bigint, OUT refusal text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    IF p_ttl_ms < 100 THEN
        refusal := json_build_object('UnderLimit', json_build_object('limit', 'TtlMinMs', 'min', 100, 'value', p_ttl_ms));
    ELSIF p_ttl_ms > 3888000000 THEN
        refusal := palisade.over('TtlMaxMs', 3888000000, p_ttl_ms);
    ELSIF octet_length(p_label) > 256 THEN
        refusal := palisade.over('LabelBytes', 256, octet_length(p_label));
    ELSE
        LOOP
            -- From chance, so that no number comes twice, also not in a store that was restored.
            session := 1 + ('x' || translate(right(gen_random_uuid()::text, 13), '-', ''))::bit(48)::bigint;
            INSERT INTO palisade.session (id, ttl_ms, deadline, channel, label)
                VALUES (session, p_ttl_ms, clock_timestamp() + p_ttl_ms * interval '1 ms', p_channel, p_label)
                ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
        END LOOP;
    END IF;
END $$;

-- Another TTL for a session; false if it has ended.
CREATE OR REPLACE FUNCTION palisade.keep_alive(p_session bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN false; END IF;
    UPDATE palisade.session s SET deadline = clock_timestamp() + s.ttl_ms * interval '1 ms'
        WHERE s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp();
    RETURN FOUND;
END $$;

-- Ends a session on its own wish. Ending one that has ended is no error.
CREATE OR REPLACE FUNCTION palisade.close(p_session bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN false; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    PERFORM FROM palisade.session s WHERE s.id = p_session AND NOT s.ended FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM palisade.end_session(p_session, 'closed');
    RETURN true;
END $$;

-- Ends what is overdue, so much at most: sessions, and delays of which nobody asks.
CREATE OR REPLACE FUNCTION palisade.sweep(p_most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_session bigint;
    v_lock text;
    v_ended integer := 0;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN 0; END IF;
    FOR v_session IN SELECT s.id FROM palisade.session s WHERE s.deadline <= clock_timestamp()
        ORDER BY s.deadline LIMIT p_most FOR UPDATE SKIP LOCKED LOOP
        IF pg_try_advisory_xact_lock(1885432935, palisade.key_of(v_session)) THEN
            PERFORM palisade.end_session(v_session, 'expired');
            v_ended := v_ended + 1;
        END IF;
        -- Each holds rows of its own, and two together could wait for somebody else's two.
        EXIT WHEN v_ended > 0;
    END LOOP;
    IF v_ended = 0 THEN
        SELECT x.name INTO v_lock FROM (
            SELECT l.name FROM palisade.lock l WHERE l.withheld_until <= clock_timestamp()
            UNION ALL SELECT c.lock FROM palisade.claim c WHERE c.withheld_until <= clock_timestamp()) x LIMIT 1;
        IF FOUND THEN
            PERFORM palisade.hold_rows(ARRAY[v_lock]);
            IF palisade.reap(v_lock) THEN
                PERFORM palisade.settle(ARRAY[v_lock]);
                v_ended := 1;
            END IF;
        END IF;
        DELETE FROM palisade.watcher w WHERE w.until <= clock_timestamp();
    END IF;
    RETURN v_ended;
END $$;

-- What is wrong with a request whatever the state of the locks; NULL if nothing is.
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
    FOR i IN 1 .. cardinality(p_locks) LOOP
        IF octet_length(p_locks[i]) > 512 THEN
            RETURN palisade.over('NameBytes', 512, octet_length(p_locks[i]));
        END IF;
        IF p_permits[i] IS NOT NULL THEN
            IF p_permits[i] NOT BETWEEN 1 AND 4294967294 THEN
                RETURN json_build_object('BadLimit', json_build_object('limit', p_permits[i]));
            END IF;
            IF p_needs[i] NOT BETWEEN 1 AND p_permits[i] THEN
                RETURN json_build_object('BadPermits', json_build_object('count', p_needs[i], 'of', p_permits[i]));
            END IF;
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

-- What is wrong with one lock of a request, given how it is used; NULL if nothing is.
CREATE OR REPLACE FUNCTION palisade.conflict_of(
    l palisade.lock, p_session bigint, p_permits bigint, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_token bigint;
BEGIN
    IF l.session IS NULL AND l.taken = 0 AND l.waiting = 0 THEN
        RETURN NULL;
    END IF;
    IF l.permits IS DISTINCT FROM p_permits THEN
        IF l.permits IS NOT NULL AND p_permits IS NOT NULL THEN
            RETURN json_build_object('LimitDiffers', json_build_object('lock', l.name, 'limit', l.permits, 'asked', p_permits));
        END IF;
        RETURN json_build_object('WrongKind', json_build_object('lock', l.name,
            'is', palisade.kind_of(l.permits), 'asked', palisade.kind_of(p_permits)));
    END IF;
    IF NOT p_may_queue THEN
        IF l.session = p_session AND l.withheld_until IS NULL THEN
            v_token := l.token;
        ELSE
            SELECT c.token INTO v_token FROM palisade.claim c WHERE c.session = p_session AND c.lock = l.name
                AND NOT c.waits AND c.withheld_until IS NULL ORDER BY c.arrival LIMIT 1;
        END IF;
        IF v_token IS NOT NULL THEN
            RETURN json_build_object('AlreadyHeld', json_build_object('lock', l.name, 'token', v_token));
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION palisade.kind_of(p_permits bigint) RETURNS json LANGUAGE sql AS $$
    SELECT CASE WHEN p_permits IS NULL THEN '"Lock"'::json
        ELSE json_build_object('Semaphore', json_build_object('limit', p_permits)) END $$;

-- Asks for one lock or several. A lock is a semaphore: exclusive needs 4294967295, shared 1, both with NULL permits.
-- `said` is granted, queued, busy or refused; `detail` is the refusal, or the wait's number.
CREATE OR REPLACE FUNCTION palisade.request(
    p_session bigint, p_epoch integer, p_number bigint, p_locks text[], p_needs bigint[], p_permits bigint[],
    p_waits boolean, p_may_queue boolean, p_delay_ms bigint, p_value bytea,
    OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session;
    l palisade.lock;
    i integer;
    v_number bigint := COALESCE(p_number, -nextval('palisade.unnumbered'));
    v_is_free boolean := true;
    v_is_single boolean := cardinality(p_locks) = 1 AND p_needs[1] = 4294967295;
    v_arrival bigint;
    v_token bigint := 0;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    said := 'refused';
    PERFORM pg_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session));
    SELECT x.* INTO s FROM palisade.session x WHERE x.id = p_session AND NOT x.ended AND x.deadline > clock_timestamp();
    IF NOT FOUND THEN
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
        IF palisade.reap(p_locks[i]) THEN
            PERFORM palisade.settle(ARRAY[p_locks[i]]);
        END IF;
    END LOOP;
    IF p_number IS NOT NULL THEN
        SELECT r.said, r.token, r.detail INTO said, token, detail FROM palisade.standing(p_session, p_number, p_locks, p_needs) r;
        IF said IS NOT NULL THEN
            RETURN;
        END IF;
        said := 'refused';
    END IF;
    FOR i IN 1 .. cardinality(p_locks) LOOP
        SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_locks[i];
        detail := palisade.conflict_of(l, p_session, p_permits[i], p_may_queue);
        IF detail IS NOT NULL THEN
            RETURN;
        END IF;
        IF l.waiting >= 100000 AND p_waits THEN
            detail := palisade.over('WaitersPerLock', 100000, l.waiting + 1);
            RETURN;
        END IF;
        -- Those who are dead do not wait.
        IF l.waiting > 0 THEN
            v_is_free := (palisade.front_of(l.name)).lock IS NULL AND v_is_free;
            SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_locks[i];
        END IF;
        l.permits := p_permits[i];
        v_is_free := v_is_free AND palisade.admits(l, p_needs[i]);
        v_token := GREATEST(v_token, l.token + 1);
    END LOOP;
    IF NOT v_is_free AND NOT p_waits THEN
        said := 'busy';
        RETURN;
    END IF;
    IF v_is_free THEN
        v_token := GREATEST(v_token, nextval('palisade.tokens'));
    END IF;
    IF v_is_free AND v_token > 9007199254740991 THEN
        detail := '{"TokensExhausted":{"max":9007199254740991}}';
        RETURN;
    END IF;
    IF v_is_free AND v_is_single THEN
        UPDATE palisade.lock x SET token = v_token, session = p_session, used_by = p_session, number = v_number,
            since = clock_timestamp(), delay_ms = p_delay_ms, value = p_value, withheld_until = NULL
            WHERE x.name = p_locks[1];
    ELSE
        v_arrival := nextval('palisade.arrivals');
        INSERT INTO palisade.claim (lock, waits, arrival, session, number, part, parts, need, token, since, delay_ms, value)
            SELECT p_locks[g.i], NOT v_is_free, v_arrival, p_session, v_number, g.i, cardinality(p_locks), p_needs[g.i],
                CASE WHEN v_is_free THEN v_token END, clock_timestamp(), p_delay_ms, p_value
            FROM generate_subscripts(p_locks, 1) g(i);
        UPDATE palisade.lock x SET permits = p_permits[array_position(p_locks, x.name)],
            token = CASE WHEN v_is_free THEN v_token ELSE x.token END,
            taken = x.taken + CASE WHEN v_is_free THEN p_needs[array_position(p_locks, x.name)] ELSE 0 END,
            waiting = x.waiting + CASE WHEN v_is_free THEN 0 ELSE 1 END
            WHERE x.name = ANY(p_locks);
    END IF;
    IF v_is_free THEN
        IF NOT palisade.make_durable() THEN RETURN; END IF;
        said := 'granted';
        token := v_token;
        IF palisade.is_watched() THEN
            PERFORM palisade.report_granted(p_locks, p_session, v_number, v_token, NULL, p_value);
        END IF;
        RETURN;
    END IF;
    said := 'queued';
    detail := v_arrival;
    IF palisade.is_watched() THEN
        PERFORM palisade.report(p_locks, json_build_object('is', 'queued', 'locks', p_locks, 'ticket', v_arrival,
            'session', p_session));
    END IF;
END $$;

-- What a repeat of a request is told that waits or is held: nothing if there is no such request.
CREATE OR REPLACE FUNCTION palisade.standing(
    p_session bigint, p_number bigint, p_locks text[], p_needs bigint[], OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql AS $$
DECLARE
    c palisade.claim;
BEGIN
    IF cardinality(p_locks) = 1 AND p_needs[1] = 4294967295 THEN
        SELECT l.token INTO token FROM palisade.lock l
            WHERE l.name = p_locks[1] AND l.session = p_session AND l.number = p_number;
        IF FOUND THEN
            said := 'granted';
            RETURN;
        END IF;
    END IF;
    SELECT x.* INTO c FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_locks IS DISTINCT FROM ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = p_session AND x.number = p_number
        ORDER BY x.part) OR p_needs IS DISTINCT FROM ARRAY(SELECT x.need FROM palisade.claim x
        WHERE x.session = p_session AND x.number = p_number ORDER BY x.part) THEN
        said := 'refused';
        detail := json_build_object('NumberReused', json_build_object('number', p_number));
    ELSIF c.waits THEN
        said := 'queued';
        detail := c.arrival;
    ELSE
        said := 'granted';
        token := c.token;
    END IF;
END $$;

-- The same for one exclusive lock that nobody else uses: one row is touched. Everything else is left to `request`.
CREATE OR REPLACE FUNCTION palisade.take(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean,
    OUT said text, OUT token bigint, OUT detail text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_is_new boolean;
    v_floor bigint;
    v_is_watched boolean;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session));
    IF octet_length(p_lock) <= 512 THEN
        INSERT INTO palisade.lock AS l (name, token, session, used_by, number, since)
            SELECT p_lock, GREATEST(x.floor + 1, nextval('palisade.tokens')), s.id, s.id, p_number, clock_timestamp()
            FROM palisade.session s, palisade.state x
            WHERE s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp() AND s.epoch <= p_epoch
                AND s.forgotten < p_number AND p_number <> ALL (s.withdrawn) AND x.floor < 9007199254740991
            ON CONFLICT (name) DO UPDATE SET token = GREATEST(l.token + 1, EXCLUDED.token), session = EXCLUDED.session,
                used_by = EXCLUDED.used_by, number = EXCLUDED.number, since = EXCLUDED.since
            WHERE l.session IS NULL AND l.taken = 0 AND l.waiting = 0 AND l.token < 9007199254740991
            RETURNING l.token, l.xmax = 0 INTO token, v_is_new;
    END IF;
    IF token IS NULL THEN
        SELECT r.said, r.token, r.detail INTO said, token, detail FROM palisade.request(p_session, p_epoch, p_number,
            ARRAY[p_lock], '{4294967295}', '{NULL}', p_waits, p_may_queue, NULL, NULL) r;
        RETURN;
    END IF;
    said := 'granted';
    IF NOT palisade.make_durable() THEN RETURN; END IF;
    -- In a snapshot of its own: a row that was removed while this one was made has raised the floor.
    SELECT x.floor, x.watched_until > clock_timestamp() INTO v_floor, v_is_watched FROM palisade.state x;
    IF v_is_new THEN
        IF token <= v_floor THEN
            token := v_floor + 1;
            UPDATE palisade.lock l SET token = take.token WHERE l.name = p_lock;
        END IF;
        IF random() < 0.015625 THEN
            PERFORM palisade.clean();
        END IF;
    END IF;
    IF v_is_watched THEN
        PERFORM palisade.report_granted(ARRAY[p_lock], p_session, p_number, token, NULL, NULL);
    END IF;
END $$;

-- The same, for the usual case that the lock's row is there, nobody uses it and nobody watches: one statement, and no
-- more around it than it takes. Says the token, or how the request stands: queued, busy, outdated, or the refusal.
-- To set a search path would take a tenth of a call, and more with many connections. So there is none in this one and in
-- the one that gives back, and each function and operator in them has its schema: a caller's path must not say what is
-- called here.
CREATE OR REPLACE FUNCTION palisade.take_quickly(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_token bigint;
BEGIN
    -- It is held before the session is looked at, or the session could end in between. The rest waits for it.
    IF pg_catalog.pg_try_advisory_xact_lock_shared(1885432935,
        (1 OPERATOR(pg_catalog.+) (p_session OPERATOR(pg_catalog.%) 2147483646))::integer) THEN
        v_token := pg_catalog.nextval('palisade.tokens');
        UPDATE palisade.lock l SET token = v_token, session = p_session, used_by = p_session, number = p_number,
            since = pg_catalog.clock_timestamp() FROM palisade.session s
            WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.session IS NULL AND l.taken OPERATOR(pg_catalog.=) 0
                AND l.waiting OPERATOR(pg_catalog.=) 0 AND l.token OPERATOR(pg_catalog.<) v_token
                AND s.id OPERATOR(pg_catalog.=) p_session AND NOT s.ended
                AND s.deadline OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
                AND s.epoch OPERATOR(pg_catalog.<=) CASE WHEN pg_catalog.current_setting('transaction_isolation')
                    OPERATOR(pg_catalog.=) 'read committed' THEN p_epoch END
                AND s.forgotten OPERATOR(pg_catalog.<) p_number AND p_number OPERATOR(pg_catalog.<>) ALL (s.withdrawn)
                AND (SELECT x.watched_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() FROM palisade.state x);
        IF FOUND THEN
            -- As `make_durable` does.
            IF pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
                AND pg_catalog.set_config('synchronous_commit', 'on', true) IS NULL THEN
                RETURN NULL;
            END IF;
            RETURN v_token;
        END IF;
    END IF;
    RETURN palisade.take_otherwise(p_session, p_epoch, p_number, p_lock, p_waits, p_may_queue);
END $$;

-- The rest of it: first the other usual case, that somebody has the lock.
CREATE OR REPLACE FUNCTION palisade.take_otherwise(
    p_session bigint, p_epoch integer, p_number bigint, p_lock text, p_waits boolean, p_may_queue boolean
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_arrival bigint;
    r record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' AND NOT palisade.check_transaction() THEN
        RETURN NULL;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session)) THEN
        PERFORM pg_advisory_xact_lock_shared(1885432935, palisade.key_of(p_session));
    END IF;
    IF p_waits AND p_may_queue THEN
        -- If its holder is one who lives, there is nothing to do but to wait.
        UPDATE palisade.lock l SET waiting = l.waiting + 1 FROM palisade.session s
            WHERE l.name = p_lock AND l.withheld_until IS NULL AND l.waiting < 100000
                AND (SELECT NOT h.ended AND h.deadline > clock_timestamp() FROM palisade.session h WHERE h.id = l.session)
                AND s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp() AND s.epoch <= p_epoch
                AND s.forgotten < p_number AND p_number <> ALL (s.withdrawn)
                AND (l.session <> p_session OR l.number <> p_number);
        IF FOUND THEN
            -- Its row is held here now, so this one is the last of the queue.
            INSERT INTO palisade.claim AS c (lock, waits, arrival, session, number, part, parts, need, since)
                SELECT p_lock, true, nextval('palisade.arrivals'), p_session, p_number, 1, 1, 4294967295, clock_timestamp()
                WHERE NOT EXISTS (SELECT FROM palisade.claim y WHERE y.session = p_session AND y.number = p_number)
                RETURNING c.arrival INTO v_arrival;
            IF FOUND THEN
                IF palisade.is_watched() THEN
                    PERFORM palisade.report(ARRAY[p_lock], json_build_object('is', 'queued', 'locks', ARRAY[p_lock],
                        'ticket', v_arrival, 'session', p_session));
                END IF;
                RETURN 'queued';
            END IF;
            UPDATE palisade.lock l SET waiting = l.waiting - 1 WHERE l.name = p_lock;
        END IF;
    END IF;
    r := palisade.take(p_session, p_epoch, p_number, p_lock, p_waits, p_may_queue);
    RETURN CASE r.said WHEN 'granted' THEN r.token::text WHEN 'refused' THEN r.detail ELSE r.said END;
END $$;

-- Why a token does not hold a lock. Whether it ever did nobody knows, as tokens are counted by lock.
CREATE OR REPLACE FUNCTION palisade.why_not(p_lock text, p_token bigint) RETURNS text LANGUAGE sql AS
    $$ SELECT json_build_object('NotHeld', json_build_object('lock', p_lock, 'token', p_token))::text $$;

-- Gives back a grant, whole, and grants to those whose turn it is. `said` is released or refused.
CREATE OR REPLACE FUNCTION palisade.give_back(p_session bigint, p_lock text, p_token bigint, OUT said text, OUT detail text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
    v_locks text[];
    v_next record;
    v_token bigint;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock AND x.session = p_session AND x.token = p_token
        AND x.withheld_until IS NULL FOR UPDATE;
    IF FOUND AND l.waiting = 0 THEN
        UPDATE palisade.lock x SET session = NULL, number = NULL, since = NULL, delay_ms = NULL, value = NULL, history = NULL
            WHERE x.name = p_lock;
        said := 'released';
        IF palisade.is_watched() THEN
            PERFORM palisade.report_ended(ARRAY[p_lock], p_session, p_token, 'released');
        END IF;
        RETURN;
    END IF;
    -- Most often the next one wants it alone, too: then it is handed over in one step.
    IF FOUND THEN
        DELETE FROM palisade.claim y USING palisade.session n, palisade.session s
            WHERE y.lock = p_lock AND y.waits
                AND y.arrival = (SELECT z.arrival FROM palisade.claim z WHERE z.lock = p_lock AND z.waits ORDER BY z.arrival LIMIT 1)
                AND y.parts = 1 AND y.need = 4294967295
                AND n.id = y.session AND NOT n.ended AND n.deadline > clock_timestamp()
                AND s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp()
            RETURNING y.arrival, y.session, y.number, y.delay_ms, y.value, n.channel, encode(s.label, 'hex') AS label INTO v_next;
        IF FOUND AND palisade.make_durable() THEN
            UPDATE palisade.lock x SET token = GREATEST(x.token + 1, nextval('palisade.tokens')), session = v_next.session,
                used_by = v_next.session, number = v_next.number, since = clock_timestamp(), delay_ms = v_next.delay_ms,
                value = v_next.value, waiting = x.waiting - 1,
                history = COALESCE(x.history[GREATEST(cardinality(x.history) - 6, 1):], '{}')
                    || concat_ws(',', p_token, p_session, 4294967295, v_next.label, 'released')
                WHERE x.name = p_lock RETURNING x.token INTO v_token;
            IF v_next.channel IS NOT NULL THEN
                PERFORM pg_notify(v_next.channel, concat_ws(' ', 'g', v_next.session, v_next.number, v_token));
            END IF;
            IF palisade.is_watched() THEN
                PERFORM palisade.report_ended(ARRAY[p_lock], p_session, p_token, 'released');
                PERFORM palisade.report_granted(ARRAY[p_lock], v_next.session, v_next.number, v_token, v_next.arrival,
                    v_next.value);
            END IF;
            said := 'released';
            RETURN;
        END IF;
    END IF;
    said := 'refused';
    v_locks := ARRAY[p_lock];
    SELECT x.* INTO c FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token;
    IF FOUND THEN
        v_locks := ARRAY(SELECT x.lock FROM palisade.claim x WHERE x.session = c.session AND x.number = c.number);
    END IF;
    PERFORM palisade.hold_rows(v_locks);
    IF NOT palisade.is_live(p_session) THEN
        detail := palisade.no_session(p_session);
        RETURN;
    END IF;
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock AND x.session IS NOT NULL AND x.token = p_token
        AND x.withheld_until IS NULL;
    IF NOT FOUND THEN
        SELECT x.* INTO c FROM palisade.claim x
            WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token AND x.withheld_until IS NULL;
        IF NOT FOUND THEN
            detail := palisade.why_not(p_lock, p_token);
            RETURN;
        END IF;
    END IF;
    IF COALESCE(l.session, c.session) <> p_session THEN
        detail := json_build_object('OtherSession', json_build_object('lock', p_lock, 'token', p_token));
        RETURN;
    END IF;
    IF l.session IS NOT NULL THEN
        PERFORM palisade.end_inline(l, 'released');
    ELSE
        PERFORM palisade.end_claim(c.session, c.number, 'released');
    END IF;
    PERFORM palisade.settle(v_locks);
    said := 'released';
END $$;

-- The same, for the usual case that nobody waits and nobody watches. NULL if it is given back, or the refusal. What
-- `take_quickly` says about a search path is true here, too. In a transaction that does not see what others have done
-- since, the row is either as it sees it, or cannot be changed.
CREATE OR REPLACE FUNCTION palisade.give_back_quickly(p_session bigint, p_lock text, p_token bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    UPDATE palisade.lock l SET session = NULL
        WHERE l.name OPERATOR(pg_catalog.=) p_lock AND l.session OPERATOR(pg_catalog.=) p_session
            AND l.token OPERATOR(pg_catalog.=) p_token AND l.waiting OPERATOR(pg_catalog.=) 0
            AND l.withheld_until IS NULL AND l.delay_ms IS NULL AND l.value IS NULL AND l.history IS NULL
            AND (SELECT x.watched_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() FROM palisade.state x);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (palisade.give_back(p_session, p_lock, p_token)).detail;
END $$;

-- Gives up a request that waits, or that has not come yet. `said` is gone, or granted with the token, or refused.
CREATE OR REPLACE FUNCTION palisade.cancel(
    p_session bigint, p_number bigint, OUT said text, OUT token bigint, OUT detail text, OUT lock text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s palisade.session;
    v_locks text[];
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    SELECT x.* INTO s FROM palisade.session x WHERE x.id = p_session AND NOT x.ended AND x.deadline > clock_timestamp();
    IF NOT FOUND THEN
        said := 'refused';
        detail := palisade.no_session(p_session);
        RETURN;
    END IF;
    v_locks := ARRAY(SELECT c.lock FROM palisade.claim c WHERE c.session = p_session AND c.number = p_number);
    PERFORM palisade.hold_rows(v_locks);
    SELECT x.token, x.lock INTO token, lock FROM (
        SELECT c.token, c.lock FROM palisade.claim c WHERE c.session = p_session AND c.number = p_number AND NOT c.waits
        UNION ALL SELECT l.token, l.name FROM palisade.lock l
            WHERE l.used_by = p_session AND l.session = p_session AND l.number = p_number) x LIMIT 1;
    IF FOUND THEN
        said := 'granted';
        RETURN;
    END IF;
    said := 'gone';
    PERFORM palisade.end_claim(p_session, p_number, 'cancelled');
    UPDATE palisade.session x SET withdrawn = x.withdrawn[GREATEST(cardinality(x.withdrawn) - 62, 1):] || p_number,
        forgotten = GREATEST(x.forgotten, CASE WHEN cardinality(x.withdrawn) > 63 THEN x.withdrawn[1] END)
        WHERE x.id = p_session AND p_number <> ALL (x.withdrawn);
    PERFORM palisade.settle(v_locks);
END $$;

-- What observers read of a lock from now on.
CREATE OR REPLACE FUNCTION palisade.publish(p_session bigint, p_lock text, p_token bigint, p_value bytea)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN NULL; END IF;
    PERFORM palisade.hold_rows(ARRAY[p_lock]);
    IF NOT palisade.is_live(p_session) THEN
        RETURN palisade.no_session(p_session);
    END IF;
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock AND x.session IS NOT NULL AND x.token = p_token
        AND x.withheld_until IS NULL;
    SELECT x.* INTO c FROM palisade.claim x
        WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_token AND x.withheld_until IS NULL;
    IF l.session IS NULL AND c.session IS NULL THEN
        RETURN palisade.why_not(p_lock, p_token);
    END IF;
    IF COALESCE(l.session, c.session) <> p_session THEN
        RETURN json_build_object('OtherSession', json_build_object('lock', p_lock, 'token', p_token));
    END IF;
    IF octet_length(p_value) > 4096 THEN
        RETURN palisade.over('ValueBytes', 4096, octet_length(p_value));
    END IF;
    IF l.session IS NULL THEN
        RETURN '"ValueNotPossible"';
    END IF;
    UPDATE palisade.lock x SET value = p_value WHERE x.name = p_lock;
    IF palisade.is_watched() THEN
        PERFORM palisade.report(ARRAY[p_lock], json_build_object('is', 'published', 'locks', ARRAY[p_lock], 'token', p_token,
            'value', encode(p_value, 'hex')));
    END IF;
    RETURN NULL;
END $$;

-- Takes a lock away from whoever holds it, or from one grant only. The token moves on.
CREATE OR REPLACE FUNCTION palisade.force(
    p_lock text, p_only bigint, p_by bytea, p_reason bytea, OUT grants integer, OUT moved_to bigint, OUT refusal text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
    v_locks text[];
    v_how text;
BEGIN
    IF NOT palisade.check_transaction() OR NOT palisade.make_durable() THEN RETURN; END IF;
    IF GREATEST(octet_length(p_by), octet_length(p_reason)) > 256 THEN
        refusal := palisade.over('LabelBytes', 256, GREATEST(octet_length(p_by), octet_length(p_reason)));
        RETURN;
    END IF;
    v_locks := ARRAY(SELECT DISTINCT y.lock FROM palisade.claim x, palisade.claim y
        WHERE x.lock = p_lock AND NOT x.waits AND y.session = x.session AND y.number = x.number) || p_lock;
    PERFORM palisade.hold_rows(v_locks);
    IF palisade.reap(p_lock) THEN
        PERFORM palisade.settle(ARRAY[p_lock]);
    END IF;
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock;
    IF p_only IS NOT NULL THEN
        PERFORM FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits AND x.token = p_only;
        IF NOT FOUND AND (l.session IS NULL OR l.token <> p_only) THEN
            refusal := palisade.why_not(p_lock, p_only);
            RETURN;
        END IF;
    ELSIF l.session IS NULL AND COALESCE(l.taken, 0) = 0 THEN
        refusal := json_build_object('NobodyHolds', json_build_object('lock', p_lock));
        RETURN;
    END IF;
    moved_to := GREATEST(nextval('palisade.tokens'), (SELECT max(x.token) + 1 FROM palisade.lock x WHERE x.name = ANY(v_locks)));
    v_how := concat_ws(' ', 'forced', encode(p_by, 'hex'), encode(p_reason, 'hex'), moved_to);
    grants := 0;
    IF l.session IS NOT NULL AND (p_only IS NULL OR l.token = p_only) THEN
        PERFORM palisade.end_inline(l, v_how);
        grants := 1;
    END IF;
    FOR c IN SELECT x.* FROM palisade.claim x WHERE x.lock = p_lock AND NOT x.waits
        AND (p_only IS NULL OR x.token = p_only) ORDER BY x.arrival LOOP
        PERFORM palisade.end_claim(c.session, c.number, CASE WHEN c.withheld_until IS NULL THEN v_how END);
        grants := grants + 1;
    END LOOP;
    UPDATE palisade.lock x SET token = moved_to WHERE x.name = ANY(v_locks) AND x.token < moved_to;
    PERFORM palisade.settle(v_locks);
END $$;

-- Changes the permits of a semaphore in use.
CREATE OR REPLACE FUNCTION palisade.resize(p_lock text, p_permits bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l palisade.lock;
    c palisade.claim;
    v_locks text[];
    v_refusal json := json_build_object('ResizedBelow', json_build_object('lock', p_lock, 'limit', p_permits));
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN NULL; END IF;
    v_locks := ARRAY(SELECT DISTINCT y.lock FROM palisade.claim x, palisade.claim y WHERE x.lock = p_lock AND x.waits
        AND x.need > p_permits AND y.session = x.session AND y.number = x.number) || p_lock;
    PERFORM palisade.hold_rows(v_locks);
    SELECT x.* INTO l FROM palisade.lock x WHERE x.name = p_lock;
    IF l.name IS NULL OR (l.session IS NULL AND l.taken = 0 AND l.waiting = 0) THEN
        RETURN json_build_object('NoSuchLock', json_build_object('lock', p_lock));
    END IF;
    IF l.permits IS NULL THEN
        RETURN json_build_object('WrongKind', json_build_object('lock', p_lock, 'is', 'Lock',
            'asked', palisade.kind_of(p_permits)));
    END IF;
    IF p_permits NOT BETWEEN 1 AND 4294967294 THEN
        RETURN json_build_object('BadLimit', json_build_object('limit', p_permits));
    END IF;
    UPDATE palisade.lock x SET permits = p_permits WHERE x.name = p_lock;
    IF palisade.is_watched() THEN
        PERFORM palisade.report(ARRAY[p_lock], json_build_object('is', 'resized', 'locks', ARRAY[p_lock], 'limit', p_permits));
    END IF;
    FOR c IN SELECT x.* FROM palisade.claim x WHERE x.lock = p_lock AND x.waits AND x.need > p_permits ORDER BY x.arrival LOOP
        PERFORM palisade.end_claim(c.session, c.number, v_refusal::text);
        PERFORM palisade.tell(c.session, concat_ws(' ', 'r', c.session, c.number, v_refusal), true);
    END LOOP;
    PERFORM palisade.settle(v_locks);
    RETURN NULL;
END $$;

-- A new connection of a session's client: requests of older ones that come late are refused. Says what is held under
-- which number; no row if the session has ended, and one of NULLs if it holds nothing.
CREATE OR REPLACE FUNCTION palisade.attach(p_session bigint, p_epoch integer) RETURNS TABLE (lock text, number bigint, token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(1885432935, palisade.key_of(p_session));
    UPDATE palisade.session s SET epoch = GREATEST(s.epoch, p_epoch)
        WHERE s.id = p_session AND NOT s.ended AND s.deadline > clock_timestamp();
    IF FOUND THEN
        RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint
            UNION ALL SELECT l.name, l.number, l.token FROM palisade.lock l
                WHERE l.used_by = p_session AND l.session = p_session AND l.withheld_until IS NULL
            UNION ALL SELECT c.lock, c.number, c.token FROM palisade.claim c
                WHERE c.session = p_session AND NOT c.waits AND c.withheld_until IS NULL AND c.part = 1;
    END IF;
END $$;

-- What became of requests that wait. Whatever is overdue at their locks is ended on the way. Then what the session has to
-- be told beside that; it is told once.
CREATE OR REPLACE FUNCTION palisade.look_up(p_session bigint, p_numbers bigint[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_number bigint;
    v_locks text[];
    v_lock text;
BEGIN
    IF NOT palisade.check_transaction() THEN RETURN; END IF;
    IF NOT palisade.is_live(p_session) THEN
        RETURN NEXT concat_ws(' ', 's', p_session, 'expired');
        RETURN;
    END IF;
    FOREACH v_number IN ARRAY p_numbers LOOP
        v_locks := ARRAY(SELECT c.lock FROM palisade.claim c WHERE c.session = p_session AND c.number = v_number
            AND c.waits ORDER BY c.lock);
        IF cardinality(v_locks) > 0 AND palisade.is_stuck(v_locks, p_session, v_number) THEN
            PERFORM palisade.hold_rows(v_locks);
            FOREACH v_lock IN ARRAY v_locks LOOP
                PERFORM palisade.reap(v_lock);
            END LOOP;
            PERFORM palisade.settle(v_locks);
        END IF;
    END LOOP;
    RETURN QUERY SELECT concat_ws(' ', 'g', p_session, x.number, x.token) FROM (
        SELECT c.number, c.token FROM palisade.claim c
            WHERE c.session = p_session AND c.number = ANY(p_numbers) AND NOT c.waits AND c.part = 1
        UNION ALL SELECT l.number, l.token FROM palisade.lock l
            WHERE l.used_by = p_session AND l.session = p_session AND l.number = ANY(p_numbers)) x;
    RETURN QUERY WITH told AS (DELETE FROM palisade.notice n WHERE n.session = p_session RETURNING n.id, n.said)
        SELECT told.said FROM told ORDER BY told.id;
END $$;

-- Whether somebody should look at these locks, for a waiter: a holder or a waiter is dead, a delay is over, or it is this
-- waiter's turn and nobody has noticed. Looks without holding anything.
CREATE OR REPLACE FUNCTION palisade.is_stuck(p_locks text[], p_session bigint, p_number bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM palisade.lock l WHERE l.name = ANY(p_locks) AND l.session IS NOT NULL
            AND CASE WHEN l.withheld_until IS NULL THEN NOT palisade.is_live(l.session)
                ELSE l.withheld_until <= clock_timestamp() END)
        OR EXISTS (SELECT FROM palisade.claim c WHERE c.lock = ANY(p_locks)
            AND CASE WHEN c.withheld_until IS NULL THEN NOT palisade.is_live(c.session)
                ELSE c.withheld_until <= clock_timestamp() END)
        OR EXISTS (SELECT FROM palisade.lock l WHERE l.name = ANY(p_locks) AND l.session IS NULL
            AND (SELECT c.session = p_session AND c.number = p_number AND palisade.admits(l, c.need) FROM palisade.claim c
                WHERE c.lock = l.name AND c.waits ORDER BY c.arrival LIMIT 1));
END $$;

-- Events go to this channel for so long.
CREATE OR REPLACE FUNCTION palisade.watch(p_channel text, p_prefix text, p_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + p_ms * interval '1 ms';
BEGIN
    INSERT INTO palisade.watcher AS w (channel, prefix, until) VALUES (p_channel, p_prefix, v_until)
        ON CONFLICT (channel, prefix) DO UPDATE SET until = EXCLUDED.until;
    UPDATE palisade.state s SET watched_until = v_until WHERE s.watched_until < v_until;
END $$;

-- Waits for calls that were under way when a watch began: they may not have seen it, and nobody hears of what they do.
-- Whoever looks at the locks after that sees it. Not in the transaction that begins the watch.
CREATE OR REPLACE FUNCTION palisade.watch_begun() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE palisade.lock IN SHARE MODE;
END $$;

CREATE OR REPLACE FUNCTION palisade.unwatch(p_channel text, p_prefix text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM palisade.watcher w WHERE w.channel = p_channel AND w.prefix = p_prefix;
    -- First the row: who begins to watch meanwhile is seen then, or changes it afterwards.
    PERFORM FROM palisade.state FOR UPDATE;
    UPDATE palisade.state s SET watched_until = '-infinity'
        WHERE s.watched_until > clock_timestamp() AND NOT EXISTS (SELECT FROM palisade.watcher);
END $$;

-- For people and for other languages --------------------------------------------------------------------------------------

-- Who holds what and who waits, one row each. Labels are bytes, as a client may call itself anything.
CREATE OR REPLACE VIEW palisade.locks AS
    SELECT l.name AS lock, CASE WHEN l.withheld_until IS NULL THEN 'held' ELSE 'withheld' END AS state,
        4294967295 AS need, l.permits, l.token, l.session, s.label, l.since,
        COALESCE(l.withheld_until, s.deadline) AS until, l.value, 0::bigint AS arrival
    FROM palisade.lock l LEFT JOIN palisade.session s ON s.id = l.session
    WHERE l.session IS NOT NULL AND (l.withheld_until > clock_timestamp()
        OR (l.withheld_until IS NULL AND NOT s.ended AND s.deadline > clock_timestamp()))
    UNION ALL
    SELECT c.lock, CASE WHEN c.waits THEN 'waiting' WHEN c.withheld_until IS NULL THEN 'held' ELSE 'withheld' END,
        c.need, l.permits, c.token, c.session, s.label, c.since, COALESCE(c.withheld_until, s.deadline), c.value, c.arrival
    FROM palisade.claim c JOIN palisade.lock l ON l.name = c.lock LEFT JOIN palisade.session s ON s.id = c.session
    WHERE c.withheld_until > clock_timestamp()
        OR (c.withheld_until IS NULL AND NOT s.ended AND s.deadline > clock_timestamp());

-- Locks in use, as JSON with bytes in hex, sorted by name: those of this name, or all that begin so.
CREATE OR REPLACE FUNCTION palisade.show(p_name text, p_prefix text) RETURNS SETOF json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT json_build_object('name', v.lock, 'permits', max(v.permits),
        'places', json_agg(json_build_object('state', v.state, 'need', v.need, 'token', v.token, 'session', v.session,
            'label', encode(v.label, 'hex'), 'held_ms', round(extract(epoch FROM clock_timestamp() - v.since) * 1000),
            'left_ms', round(extract(epoch FROM v.until - clock_timestamp()) * 1000)) ORDER BY v.arrival, v.since),
        'value', max(encode(v.value, 'hex')) FILTER (WHERE v.state = 'held'),
        'history', (SELECT l.history FROM palisade.lock l WHERE l.name = v.lock))
    FROM palisade.locks v
    WHERE v.lock = p_name OR (p_name IS NULL AND starts_with(v.lock, p_prefix))
    GROUP BY v.lock ORDER BY v.lock;
END $$;

-- What is wrong with a name.
CREATE OR REPLACE FUNCTION palisade.check_name(p_lock text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_lock IS NULL OR p_lock = '' OR octet_length(p_lock) > 512 OR starts_with(p_lock, '$')
        OR p_lock ~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\u200e\u200f\u061c]' THEN
        RAISE EXCEPTION 'a lock''s name has 1 to 512 bytes, no control characters, and does not begin with $'
            USING ERRCODE = 'PL001';
    END IF;
END $$;

-- A refusal, as an error.
CREATE OR REPLACE FUNCTION palisade.refuse(p_refusal text, p_lock text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'lock % is refused: %', quote_literal(p_lock), p_refusal USING ERRCODE = 'PL001', DETAIL = p_refusal;
END $$;

-- Takes a lock if it is free, for so long; `renew` it before that. One row if it is had, no row if somebody else has it.
-- `mode` is exclusive or shared; a semaphore is given its permits, and how many of them to take.
CREATE OR REPLACE FUNCTION palisade.acquire(
    lock text, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL
) RETURNS TABLE (token bigint, session bigint, until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_session bigint;
    r record;
BEGIN
    PERFORM palisade.check_name(acquire.lock);
    v_session := palisade.lease(acquire.ttl, acquire.label);
    r := palisade.request(v_session, 0, NULL, ARRAY[acquire.lock], ARRAY[palisade.need_of(acquire.mode, permits, acquire.take)],
        ARRAY[permits], false, true, NULL, NULL);
    IF r.said = 'granted' THEN
        RETURN QUERY SELECT r.token, s.id, s.deadline FROM palisade.session s WHERE s.id = v_session;
        RETURN;
    END IF;
    DELETE FROM palisade.session s WHERE s.id = v_session;
    IF r.said = 'refused' THEN
        PERFORM palisade.refuse(r.detail, acquire.lock);
    END IF;
END $$;

-- A session of one lock, that nobody listens for.
CREATE OR REPLACE FUNCTION palisade.lease(p_ttl interval, p_label text, OUT session bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_label text := COALESCE(p_label, NULLIF(current_setting('application_name'), ''), session_user);
    o record;
BEGIN
    o := palisade.open((extract(epoch FROM p_ttl) * 1000)::bigint, convert_to(left(v_label, 64), 'UTF8'), NULL);
    IF o.refusal IS NOT NULL THEN
        RAISE EXCEPTION 'a ttl of % is refused: %', p_ttl, o.refusal USING ERRCODE = 'PL001', DETAIL = o.refusal;
    END IF;
    session := o.session;
    UPDATE palisade.session s SET is_lease = true WHERE s.id = o.session;
END $$;

CREATE OR REPLACE FUNCTION palisade.need_of(p_mode text, p_permits bigint, p_take bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF p_permits IS NOT NULL THEN
        RETURN p_take;
    END IF;
    CASE p_mode
        WHEN 'exclusive' THEN RETURN 4294967295;
        WHEN 'shared' THEN RETURN 1;
        ELSE RAISE EXCEPTION 'mode % is neither exclusive nor shared', quote_literal(p_mode) USING ERRCODE = 'PL001';
    END CASE;
END $$;

-- Waits for a lock in its queue, for so long at most, and says with which token it is had; NULL if it is not.
-- CALL it outside of a transaction: it commits on its way.
CREATE OR REPLACE PROCEDURE palisade.acquire_within(
    lock text, patience interval, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL, INOUT token bigint DEFAULT NULL, INOUT session bigint DEFAULT NULL
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    v_until timestamptz := clock_timestamp() + patience;
    v_said text;
    v_detail text;
BEGIN
    session := palisade.begin_wait(lock, ttl, mode, permits, take, label);
    LOOP
        COMMIT;
        SELECT w.said, w.token INTO v_said, token FROM palisade.wait_on(session) w;
        EXIT WHEN v_said <> 'queued';
        IF clock_timestamp() >= v_until THEN
            PERFORM palisade.close(session);
            session := NULL;
            COMMIT;
            RETURN;
        END IF;
        PERFORM pg_sleep(LEAST(0.05, GREATEST(0.001, extract(epoch FROM v_until - clock_timestamp()))));
    END LOOP;
    IF v_said = 'lost' THEN
        RAISE EXCEPTION 'the wait for % took longer than its ttl of %', quote_literal(lock), ttl USING ERRCODE = 'PL001';
    END IF;
END $$;

-- The two steps of that, for whoever has a loop of its own: join the queue, and look every now and then. Whoever does
-- not look for as long as the ttl leaves the queue.
CREATE OR REPLACE FUNCTION palisade.begin_wait(
    lock text, ttl interval DEFAULT '30s', mode text DEFAULT 'exclusive', permits bigint DEFAULT NULL,
    take bigint DEFAULT 1, label text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_session bigint;
    r record;
BEGIN
    PERFORM palisade.check_name(lock);
    v_session := palisade.lease(ttl, label);
    r := palisade.request(v_session, 0, 1, ARRAY[lock], ARRAY[palisade.need_of(mode, permits, take)], ARRAY[permits],
        true, true, NULL, NULL);
    IF r.said = 'refused' THEN
        PERFORM palisade.refuse(r.detail, lock);
    END IF;
    RETURN v_session;
END $$;

CREATE OR REPLACE FUNCTION palisade.wait_on(p_session bigint, OUT said text, OUT token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_line text;
BEGIN
    said := CASE WHEN palisade.keep_alive(p_session) THEN 'queued' ELSE 'lost' END;
    FOR v_line IN SELECT x FROM palisade.look_up(p_session, '{1}') x LOOP
        IF v_line LIKE 'g %' THEN
            said := 'granted';
            token := split_part(v_line, ' ', 4)::bigint;
        ELSIF v_line LIKE 'r %' OR v_line LIKE 'l %' THEN
            said := 'lost';
        END IF;
    END LOOP;
END $$;

-- Gives a lock back. False if this token does not hold it any more, or never did: then nothing has changed.
CREATE OR REPLACE FUNCTION palisade.release(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_session bigint := palisade.holder_of(lock, token);
    r record;
BEGIN
    r := palisade.give_back(v_session, lock, token);
    IF r.said = 'released' THEN
        DELETE FROM palisade.session s WHERE s.id = v_session AND s.is_lease;
    END IF;
    RETURN r.said = 'released';
END $$;

CREATE OR REPLACE FUNCTION palisade.holder_of(p_lock text, p_token bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT l.session FROM palisade.lock l WHERE l.name = p_lock AND l.token = p_token AND l.withheld_until IS NULL
        AND l.session IS NOT NULL
    UNION ALL
    SELECT c.session FROM palisade.claim c
        WHERE c.lock = p_lock AND NOT c.waits AND c.token = p_token AND c.withheld_until IS NULL
$$;

-- Another ttl for the holder of a lock. False if this token does not hold it any more.
CREATE OR REPLACE FUNCTION palisade.renew(lock text, token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN COALESCE(palisade.keep_alive(palisade.holder_of(lock, token)), false);
END $$;

-- Takes a lock away from whoever holds it. Resources are sealed with the number that it returns.
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
    IF above NOT BETWEEN 1 AND 9007199254740991 OR NOT palisade.make_durable() THEN
        RAISE EXCEPTION 'a token is a number from 1 to 9007199254740991' USING ERRCODE = 'PL001';
    END IF;
    UPDATE palisade.state s SET floor = above WHERE s.floor < above;
    PERFORM setval('palisade.tokens', GREATEST(above, nextval('palisade.tokens')));
    UPDATE palisade.lock l SET token = above WHERE l.token < above AND l.session IS NULL AND l.taken = 0;
    IF EXISTS (SELECT FROM palisade.lock l WHERE l.token < above) THEN
        RAISE EXCEPTION 'some locks are held with lower tokens; end their sessions or break them first'
            USING ERRCODE = 'PL001';
    END IF;
END $$;

-- Lets a role use the locks. It needs no rights on the tables.
CREATE OR REPLACE FUNCTION palisade.allow(role text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA palisade TO %I', role);
    EXECUTE format('GRANT SELECT ON palisade.version, palisade.state, palisade.locks TO %I', role);
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'palisade'::regnamespace AND (p.prosecdef OR p.prokind = 'p') LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', f, role);
    END LOOP;
END $$;

REVOKE ALL ON ALL ROUTINES IN SCHEMA palisade FROM PUBLIC;
-- Whoever was let in may also call what is new.
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

-- Calls that were under way with the functions as they were before know nothing of `used_by`. They come first here.
DO $$
BEGIN
    LOCK TABLE palisade.lock IN SHARE ROW EXCLUSIVE MODE;
    UPDATE palisade.lock l SET used_by = l.session WHERE l.session IS NOT NULL AND l.used_by IS DISTINCT FROM l.session;
END $$;
