-- The fence of Palisade for PostgreSQL 13 and newer, version 3. Run it as often as you like: nothing is lost. Needs
-- CREATE on the database; afterwards applications need only
--   GRANT USAGE ON SCHEMA palisade_fence TO app; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO app;
BEGIN;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(1885432934, 0);
    IF to_regprocedure('palisade_fence.version()') IS NOT NULL THEN
        IF palisade_fence.version() > 3 THEN
            RAISE EXCEPTION 'a newer palisade_fence (version %) is installed; nothing has changed', palisade_fence.version()
                USING HINT = 'Use the palisade that has installed it, or a newer one.';
        END IF;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS palisade_fence;

CREATE OR REPLACE FUNCTION palisade_fence.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';

-- One row per resource: the newest token that has sealed it. What is held while one reads or writes.
CREATE TABLE IF NOT EXISTS palisade_fence.marks (
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- One row per resource: the last numbered write under that token. Apart, so that numbered writes hold up each other only.
CREATE TABLE IF NOT EXISTS palisade_fence.numbers (
    resource text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL DEFAULT 0,
    author bigint NOT NULL DEFAULT 0,
    outcome bytea,                  -- NULL: nothing was written under this number, and never will be
    writer xid8                     -- the transaction that has used the number up
) WITH (fillfactor = 50);

-- How many seals there have been. It only says whether there was one since: nothing is decided by its value, and nothing
-- that outlives a connection remembers it.
CREATE SEQUENCE IF NOT EXISTS palisade_fence.seals;
DO $$ BEGIN PERFORM nextval('palisade_fence.seals'); END $$;

-- SQLSTATEs: PF001 stale, PF002 not sealed, PF003 no token shown, PF004 a repeat, PF005 a gap, PF006 bad input,
-- PF007 superseded, PF008 not possible here. DETAIL is JSON.
CREATE OR REPLACE FUNCTION palisade_fence.refuse(code text, what text, hint text, detail jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, HINT = hint, DETAIL = jsonb_strip_nulls(detail)::text;
END $$;

-- A number from outside, NULL if there is none. From 2^53 on JSON readers would round it.
CREATE OR REPLACE FUNCTION palisade_fence.number_of(value text, what text, lowest bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value IS NULL OR value = '' THEN
        RETURN NULL;
    END IF;
    IF value ~ '^(0|[1-9][0-9]{0,15})$' AND value::bigint BETWEEN lowest AND 9007199254740991 THEN
        RETURN value::bigint;
    END IF;
    PERFORM palisade_fence.refuse('PF006', format('%L is no %s', left(value, 40), what),
        format('Give a number from %s to 9007199254740991.', lowest), jsonb_build_object('what', what));
END $$;

CREATE OR REPLACE FUNCTION palisade_fence.check_name(resource text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF resource IS NULL OR resource = '' OR octet_length(resource) > 512 OR resource ~ '[[:cntrl:]]' THEN
        PERFORM palisade_fence.refuse('PF006', 'a resource''s name has 1 to 512 bytes and no control characters',
            'Name the resource as you name its lock.', '{"what": "name"}');
    END IF;
END $$;

-- (From here on what most writes need is called in expressions, because PERFORM takes several times as long.)
-- What is acknowledged is durable, and whoever stops in the midst of a transaction holds up a seal for 30 seconds at
-- most. Who has set idle_in_transaction_session_timeout keeps it.
CREATE OR REPLACE FUNCTION palisade_fence.settle_session() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    note text;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        note := set_config('synchronous_commit', 'on', true);
    END IF;
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        note := set_config('idle_in_transaction_session_timeout', '30s', true);
    END IF;
    RETURN note;
END $$;

-- Raises the mark, or refuses if it is higher. Waits for transactions that write under an older token: they end first,
-- or are refused. Says how many numbered writes were made under this token. Nothing that was read before is sealed.
CREATE OR REPLACE FUNCTION palisade_fence.seal(resource text, token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    seen bigint;
BEGIN
    PERFORM palisade_fence.check_name(seal.resource);
    IF palisade_fence.number_of(COALESCE(seal.token::text, 'NULL'), 'token', 1) IS NULL THEN
        RETURN NULL;
    END IF;
    -- Its snapshot may be older than the last write under an older token, so what it reads would not be sealed.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM palisade_fence.refuse('PF008',
            format('%I cannot be sealed in a %s transaction', seal.resource, current_setting('transaction_isolation')),
            'Seal in a transaction of its own: BEGIN ISOLATION LEVEL READ COMMITTED; SELECT palisade_fence.seal(…); COMMIT. '
            'Then begin the other one.', jsonb_build_object('resource', seal.resource));
    END IF;
    PERFORM palisade_fence.settle_session();
    SELECT m.token INTO seen FROM palisade_fence.marks m WHERE m.resource = seal.resource;
    IF seen IS NULL OR seen < seal.token THEN
        -- Waits for all who write under an older token, and has its turn before writers who come later.
        PERFORM pg_advisory_xact_lock(1885432934, hashtext(seal.resource));
        INSERT INTO palisade_fence.marks AS m (resource, token) VALUES (seal.resource, seal.token)
            ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token < EXCLUDED.token;
        IF FOUND THEN
            PERFORM nextval('palisade_fence.seals');
            INSERT INTO palisade_fence.numbers (resource) VALUES (seal.resource)
                ON CONFLICT (resource) DO UPDATE SET seq = 0, author = 0, outcome = NULL, writer = NULL;
        END IF;
        SELECT m.token INTO seen FROM palisade_fence.marks m WHERE m.resource = seal.resource;
    END IF;
    IF seen > seal.token THEN
        PERFORM palisade_fence.refuse('PF007',
            format('token %s cannot seal %I: token %s has sealed it', seal.token, seal.resource, seen),
            'The lock is somebody else''s by now. Stop the work and acquire it again.',
            jsonb_build_object('resource', seal.resource, 'token', seal.token, 'seen', seen));
    END IF;
    RETURN (SELECT n.seq FROM palisade_fence.numbers n WHERE n.resource = seal.resource);
END $$;

-- The mark of a resource; no row if nothing has ever sealed it.
CREATE OR REPLACE FUNCTION palisade_fence.mark(resource text, OUT token bigint, OUT seq bigint, OUT author bigint, OUT outcome bytea)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.token, n.seq, n.author, n.outcome
        FROM palisade_fence.marks m JOIN palisade_fence.numbers n USING (resource) WHERE m.resource = mark.resource
$$;

-- Says no to a token that is not the mark's.
CREATE OR REPLACE FUNCTION palisade_fence.refuse_token(resource text, shown text, seen bigint, how text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    token bigint := palisade_fence.number_of(shown, 'token', 1);
    known jsonb := jsonb_build_object('resource', resource, 'token', token, 'seen', seen);
BEGIN
    IF token IS NULL THEN
        PERFORM palisade_fence.refuse('PF003', format('%I is fenced, and no token is shown', resource),
            format('Acquire the lock, seal (%s), then SET LOCAL palisade.token = ''…'' in this transaction.', how), known);
    ELSIF token < seen THEN
        PERFORM palisade_fence.refuse('PF001', format('token %s is stale: token %s has sealed %I', token, seen, resource),
            'The lock is somebody else''s by now. Stop the work and acquire it again.', known);
    END IF;
    PERFORM palisade_fence.refuse('PF002', format('token %s has not sealed %I (%s)', token, resource,
            CASE WHEN seen IS NULL THEN 'nothing has' ELSE 'its mark is at ' || seen END),
        format('First seal (%s), then read, then write. If it was sealed: was the database restored?', how), known);
END $$;

-- What a connection notes when it is admitted: under which token, to what, and after how many seals.
CREATE OR REPLACE FUNCTION palisade_fence.admission(resource text, shown text) RETURNS text LANGUAGE sql AS $$
    SELECT concat(shown, ':', pg_sequence_last_value('palisade_fence.seals'::regclass), ':', resource)
$$;

-- Whether judge() has to be asked. A connection that was admitted under a token is admitted under it again as long as
-- nobody has sealed anything since. The lock comes first, so that no seal comes in between; last, what judge() does for
-- every transaction. It is one expression, which becomes a part of its caller's, because each has to be made ready anew in
-- every transaction.
CREATE OR REPLACE FUNCTION palisade_fence.must_judge(resource text, shown text) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE
        WHEN pg_advisory_xact_lock_shared(1885432934, hashtext(resource)) IS NULL THEN true
        WHEN current_setting('palisade.seq', true) <> '' OR current_setting('synchronous_commit') = 'off' THEN true
        WHEN current_setting('palisade.admitted', true) IS DISTINCT FROM palisade_fence.admission(resource, shown) THEN true
        WHEN current_setting('idle_in_transaction_session_timeout') = '0'
            THEN set_config('idle_in_transaction_session_timeout', '30s', true) IS NULL
        ELSE false END
$$;

-- The check. Holds the mark, shared, until the transaction ends, so that no seal comes in between: the advisory lock, of
-- which a seal takes its part alone, and, the first time after a seal, the row. FOR SHARE and nothing weaker: FOR KEY SHARE
-- would be given the mark as it was before a seal. In REPEATABLE READ and SERIALIZABLE a mark that was raised since the
-- snapshot is a serialization failure.
CREATE OR REPLACE FUNCTION palisade_fence.judge(resource text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    shown text := current_setting('palisade.token', true);
    number text := current_setting('palisade.seq', true);
    seen bigint;
BEGIN
    IF pg_advisory_xact_lock_shared(1885432934, hashtext(judge.resource)) IS NULL THEN
        PERFORM palisade_fence.check_name(judge.resource);
    END IF;
    IF current_setting('palisade.admitted', true) IS DISTINCT FROM palisade_fence.admission(judge.resource, shown) THEN
        SELECT m.token INTO seen FROM palisade_fence.marks m WHERE m.resource = judge.resource FOR SHARE;
        IF shown IS NULL OR seen::text IS DISTINCT FROM shown THEN
            PERFORM palisade_fence.refuse_token(judge.resource, shown, seen,
                format('SELECT palisade_fence.seal(%L, …)', judge.resource));
        END IF;
        shown := set_config('palisade.admitted', palisade_fence.admission(judge.resource, shown), false);
    END IF;
    IF number <> '' THEN
        number := palisade_fence.take_number(judge.resource, current_setting('palisade.token')::bigint,
            palisade_fence.number_of(number, 'number of a write', 0),
            COALESCE(palisade_fence.number_of(current_setting('palisade.author', true), 'author', 0), 0), '');
    END IF;
    RETURN palisade_fence.settle_session();
END $$;

-- Uses a number up, or refuses it. All statements of one transaction are one numbered write.
DROP FUNCTION IF EXISTS palisade_fence.take_number(text, bigint, bigint, bigint);
CREATE OR REPLACE FUNCTION palisade_fence.take_number(resource text, token bigint, number bigint, by bigint, expected bytea) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    last palisade_fence.numbers;
    known jsonb;
BEGIN
    LOOP
        UPDATE palisade_fence.numbers n SET seq = number, author = by, outcome = expected, writer = pg_current_xact_id()
            WHERE n.resource = take_number.resource AND n.seq = number - 1;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        -- Waits for whoever is using a number up. It may be the one before ours.
        SELECT n.* INTO last FROM palisade_fence.numbers n WHERE n.resource = take_number.resource FOR NO KEY UPDATE;
        EXIT WHEN number IS DISTINCT FROM last.seq + 1;
    END LOOP;
    IF number = last.seq AND last.writer = pg_current_xact_id() THEN
        RETURN NULL;
    END IF;
    known := jsonb_build_object('resource', last.resource, 'token', take_number.token, 'seq', number);
    IF number = last.seq AND number > 0 AND by = last.author AND last.outcome IS NOT NULL THEN
        PERFORM palisade_fence.refuse('PF004',
            format('write %s under token %s was applied to %I before', number, take_number.token, last.resource),
            'It is done: nothing has changed now. DETAIL has its outcome, in hexadecimal.',
            known || jsonb_build_object('outcome', encode(last.outcome, 'hex')));
    ELSIF number = last.seq AND number > 0 AND by = last.author THEN
        PERFORM palisade_fence.refuse('PF004',
            format('write %s under token %s was given up: nothing was written to %I', number, take_number.token, last.resource),
            'It will never be applied. Use the next number.', known);
    END IF;
    PERFORM palisade_fence.refuse('PF005',
        format('write %s under token %s is not the next one for %I: %s is', number, take_number.token, last.resource, last.seq + 1),
        'Somebody else has written under this token. Seal again, and read again.',
        known || jsonb_build_object('expected', last.seq + 1));
END $$;

-- The check for reads, and for tables without a trigger: everything that comes after it in this transaction is under
-- the seal, and the triggers need no SET LOCAL.
CREATE OR REPLACE FUNCTION palisade_fence.admit(resource text, token bigint, seq bigint DEFAULT NULL, author bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text := concat(set_config('palisade.token', COALESCE(admit.token::text, ''), true),
        set_config('palisade.seq', COALESCE(admit.seq::text, ''), true),
        set_config('palisade.author', COALESCE(admit.author::text, ''), true));
BEGIN
    IF palisade_fence.must_judge(admit.resource, admit.token::text) THEN
        note := palisade_fence.judge(admit.resource);
    END IF;
END $$;

-- The same for a numbered write, with what is expected to come of it: if that is so, there is no need for outcome(). The
-- number is used up here, so the triggers need not know it.
CREATE OR REPLACE FUNCTION palisade_fence.admit_write(resource text, token bigint, seq bigint, author bigint, expected bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text := concat(set_config('palisade.token', COALESCE(admit_write.token::text, ''), true),
        set_config('palisade.seq', '', true));
BEGIN
    IF palisade_fence.must_judge(admit_write.resource, admit_write.token::text) THEN
        note := palisade_fence.judge(admit_write.resource);
    END IF;
    note := palisade_fence.take_number(admit_write.resource, admit_write.token, admit_write.seq, admit_write.author,
        admit_write.expected);
END $$;

-- What came of this transaction's numbered write, for whoever repeats it. NULL: nothing, and nothing ever will.
CREATE OR REPLACE FUNCTION palisade_fence.outcome(resource text, value bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE palisade_fence.numbers n SET outcome = outcome.value
        WHERE n.resource = outcome.resource AND n.writer = pg_current_xact_id();
    IF NOT FOUND THEN
        PERFORM palisade_fence.refuse('PF008', format('this transaction has made no numbered write to %I', outcome.resource),
            'Show palisade.token and palisade.seq, and write, before you store an outcome.',
            jsonb_build_object('resource', outcome.resource));
    END IF;
END $$;

-- The trigger of a protected table.
CREATE OR REPLACE FUNCTION palisade_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text;
BEGIN
    IF palisade_fence.must_judge(TG_ARGV[0], current_setting('palisade.token', true)) THEN
        note := palisade_fence.judge(TG_ARGV[0]);
    END IF;
    RETURN NULL;
END $$;

-- The same where a table is a part of another, or has parts. It notes what has passed: then it runs once a statement, and
-- for a row only where the statement named another table.
CREATE OR REPLACE FUNCTION palisade_fence.guard_parts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text := palisade_fence.judge(TG_ARGV[0]);
BEGIN
    note := set_config('palisade.passed',
        concat(pg_current_xact_id(), ':', current_setting('palisade.token'), ':', TG_ARGV[0]), true);
    RETURN NULL;
END $$;

-- Protects a table, with its partitions, under the mark of a resource. Several tables can share one.
CREATE OR REPLACE FUNCTION palisade_fence.protect(protected regclass, resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade_fence.check_name(protect.resource);
    PERFORM palisade_fence.unprotect(protected);
    IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = protected AND c.relkind = 'r')
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE protected IN (i.inhrelid, i.inhparent))
    THEN
        EXECUTE format('CREATE TRIGGER palisade_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION palisade_fence.guard(%L)', protected, protect.resource);
        -- Never fires. While it is there the table cannot be made a part of another, through which nobody would be
        -- checked: unprotect it, attach it, protect it again.
        EXECUTE format('CREATE TRIGGER palisade_fence_alone AFTER DELETE ON %s REFERENCING OLD TABLE AS gone '
            'FOR EACH ROW EXECUTE FUNCTION palisade_fence.guard(%L)', protected, protect.resource);
        EXECUTE format('ALTER TABLE %s DISABLE TRIGGER palisade_fence_alone', protected);
        RETURN;
    END IF;
    EXECUTE format('CREATE TRIGGER palisade_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION palisade_fence.guard_parts(%L)', protected, protect.resource);
    EXECUTE format('CREATE TRIGGER palisade_fence_row AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
        'WHEN (current_setting(''palisade.passed'', true) IS DISTINCT FROM '
        'concat(pg_current_xact_id(), '':'', current_setting(''palisade.token'', true), %L)) '
        'EXECUTE FUNCTION palisade_fence.guard_parts(%L)', protected, ':' || protect.resource, protect.resource);
END $$;

-- Takes the protection away, whichever it is. A column palisade_token stays.
CREATE OR REPLACE FUNCTION palisade_fence.unprotect(protected regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found name;
BEGIN
    FOR found IN SELECT t.tgname FROM pg_catalog.pg_trigger t WHERE t.tgrelid = protected AND t.tgparentid = 0
        AND t.tgname IN ('palisade_fence', 'palisade_fence_row', 'palisade_fence_alone', '00_palisade_fence', '00_palisade_fence_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found, protected);
    END LOOP;
END $$;

-- The trigger of a table whose rows have marks of their own.
CREATE OR REPLACE FUNCTION palisade_fence.guard_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    named text := TG_TABLE_NAME || ' row';
    how text := format('SELECT palisade_fence.seal_rows(%L, …)', TG_TABLE_NAME);
    shown text := current_setting('palisade.token', true);
    token bigint := palisade_fence.number_of(shown, 'token', 1);
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        PERFORM palisade_fence.refuse('PF008', format('a row of %I cannot be deleted: its mark would go with it', TG_TABLE_NAME),
            'Have a column that says it is gone, or protect the table as a whole.', jsonb_build_object('resource', named));
    ELSIF token IS NULL THEN
        PERFORM palisade_fence.refuse_token(named, shown, NULL, how);
    ELSIF TG_OP = 'UPDATE' AND OLD.palisade_token IS DISTINCT FROM token THEN
        IF OLD.palisade_token > token OR current_setting('palisade.sealing', true) IS DISTINCT FROM shown THEN
            PERFORM palisade_fence.refuse_token(named, shown, OLD.palisade_token, how);
        END IF;
    END IF;
    NEW.palisade_token := token;
    named := palisade_fence.settle_session();
    RETURN NEW;
END $$;

-- Gives every row of a table a mark of its own, in the column palisade_token.
CREATE OR REPLACE FUNCTION palisade_fence.protect_rows(protected regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade_fence.unprotect(protected);
    PERFORM set_config('client_min_messages', 'warning', true);
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS palisade_token bigint', protected);
    EXECUTE format('CREATE TRIGGER "00_palisade_fence" BEFORE INSERT OR UPDATE OR DELETE ON %s '
        'FOR EACH ROW EXECUTE FUNCTION palisade_fence.guard_row()', protected);
    EXECUTE format('CREATE TRIGGER "00_palisade_fence_truncate" BEFORE TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION palisade_fence.guard_row()', protected);
END $$;

-- Seals the rows in which a column has this value, and shows the token in this transaction; says how many there are.
-- A row that is not there cannot be sealed: whoever inserts it first has it.
CREATE OR REPLACE FUNCTION palisade_fence.seal_rows(protected regclass, key name, value text, token bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    sealed bigint;
BEGIN
    PERFORM set_config('palisade.token', COALESCE(token::text, ''), true),
        set_config('palisade.sealing', COALESCE(token::text, ''), true);
    EXECUTE format('UPDATE %s SET palisade_token = %L WHERE %I = %L', protected, token, key, value);
    GET DIAGNOSTICS sealed = ROW_COUNT;
    PERFORM set_config('palisade.sealing', '', true);
    RETURN sealed;
END $$;

-- Nobody but who is granted it: a seal with a huge token would shut everybody out.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA palisade_fence FROM PUBLIC;
REVOKE ALL ON palisade_fence.marks, palisade_fence.numbers FROM PUBLIC;

-- Who could be admitted before there was admit_write() can call it too.
DO $$
DECLARE
    who oid;
BEGIN
    FOR who IN SELECT a.grantee FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
        WHERE p.oid = 'palisade_fence.admit'::regproc AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION palisade_fence.admit_write TO %s', who::regrole);
    END LOOP;
END $$;
COMMIT;
