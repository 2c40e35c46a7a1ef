-- The fence of Palisade for PostgreSQL 13 and newer, version 4. Run it as often as you like: nothing is lost. Needs
-- CREATE on the database; afterwards applications need only
--   GRANT USAGE ON SCHEMA palisade_fence TO app; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO app;
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(1885432934, 0);
    IF to_regprocedure('palisade_fence.version()') IS NOT NULL THEN
        IF palisade_fence.version() > 4 THEN
            RAISE EXCEPTION 'a newer palisade_fence (version %) is installed; nothing has changed', palisade_fence.version()
                USING HINT = 'Use the palisade that has installed it, or a newer one.';
        END IF;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS palisade_fence;

CREATE OR REPLACE FUNCTION palisade_fence.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';

-- One row per resource: the newest token that has sealed it. Readers and writers hold a lock on it.
CREATE TABLE IF NOT EXISTS palisade_fence.marks (
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL
) WITH (fillfactor = 50);

-- One row per resource: the last numbered write under that token. A separate table, so that numbered writes block only each
-- other.
CREATE TABLE IF NOT EXISTS palisade_fence.numbers (
    resource text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL DEFAULT 0,
    author bigint NOT NULL DEFAULT 0,
    outcome bytea,                  -- NULL: nothing was written under this number, and never will be
    writer xid8                     -- the transaction that has used the number up
) WITH (fillfactor = 50);

-- The tables that were protected, by name. A table that is dropped and created again under its name has lost its triggers:
-- check() and keep_up() find it here.
CREATE TABLE IF NOT EXISTS palisade_fence.protected (
    name text COLLATE "C" PRIMARY KEY,  -- with its schema
    resource text                       -- NULL: every row has a mark
);

-- The number of seals so far. A connection compares it with the number at its last check, to notice that a resource was
-- sealed since. The value has no other use.
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
-- Acknowledged transactions are durable, and a client that pauses in a transaction blocks a seal for at most 30 seconds. An
-- idle_in_transaction_session_timeout that the client has set stays.
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

-- What to do when a newer token has sealed a resource. The fence cannot tell a stale holder from an engine that counts lower.
CREATE OR REPLACE FUNCTION palisade_fence.way_out(token bigint, seen bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.format('Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave '
        'token %s counts lower than the one that gave token %s (a new file, another engine): palisade tokens raise --above %s '
        '--url ENGINE, then acquire it again.', token, seen, seen)
$$;

-- Refuses a seal because a newer token has sealed the resource.
CREATE OR REPLACE FUNCTION palisade_fence.refuse_seal(resource text, token bigint, seen bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade_fence.refuse('PF007',
        format('token %s cannot seal %I: token %s has sealed it', token, resource, seen),
        palisade_fence.way_out(token, seen),
        jsonb_build_object('resource', resource, 'token', token, 'seen', seen));
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
        -- Waits for all transactions that write under an older token, and goes before later writers.
        PERFORM pg_advisory_xact_lock(1885432934, hashtext(seal.resource));
        INSERT INTO palisade_fence.marks AS m (resource, token) VALUES (seal.resource, seal.token)
            ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE m.token < EXCLUDED.token;
        IF FOUND THEN
            PERFORM nextval('palisade_fence.seals');
            PERFORM set_config('palisade_fence.seals_here', 'yes', true);
            INSERT INTO palisade_fence.numbers (resource) VALUES (seal.resource)
                ON CONFLICT (resource) DO UPDATE SET seq = 0, author = 0, outcome = NULL, writer = NULL;
        END IF;
        SELECT m.token INTO seen FROM palisade_fence.marks m WHERE m.resource = seal.resource;
    END IF;
    IF seen > seal.token THEN
        PERFORM palisade_fence.refuse_seal(seal.resource, seal.token, seen);
    END IF;
    RETURN (SELECT n.seq FROM palisade_fence.numbers n WHERE n.resource = seal.resource);
END $$;

-- Lowers a mark, for the owner of the schema alone: it needs rights on the tables. For a mark that a wrong token has raised
-- above all that the engine gives. Connections that were admitted under the higher token are checked again.
CREATE OR REPLACE FUNCTION palisade_fence.force_lower(resource text, token bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF palisade_fence.number_of(COALESCE(force_lower.token::text, 'NULL'), 'token', 1) IS NULL THEN
        RETURN;
    END IF;
    PERFORM palisade_fence.settle_session(), pg_advisory_xact_lock(1885432934, hashtext(force_lower.resource));
    UPDATE palisade_fence.marks m SET token = force_lower.token
        WHERE m.resource = force_lower.resource AND m.token > force_lower.token;
    IF NOT FOUND THEN
        PERFORM palisade_fence.refuse('PF008', format('the mark of %I is not above %s', force_lower.resource, force_lower.token),
            'SELECT token FROM palisade_fence.mark(…) shows it.', jsonb_build_object('resource', force_lower.resource));
    END IF;
    UPDATE palisade_fence.numbers n SET seq = 0, author = 0, outcome = NULL, writer = NULL WHERE n.resource = force_lower.resource;
    PERFORM nextval('palisade_fence.seals');
END $$;

-- The mark of a resource; no row if nothing has ever sealed it.
CREATE OR REPLACE FUNCTION palisade_fence.mark(resource text, OUT token bigint, OUT seq bigint, OUT author bigint, OUT outcome bytea)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.token, n.seq, n.author, n.outcome
        FROM palisade_fence.marks m JOIN palisade_fence.numbers n USING (resource) WHERE m.resource = mark.resource
$$;

-- Refuses a token that is not the mark's.
CREATE OR REPLACE FUNCTION palisade_fence.refuse_token(resource text, shown text, seen bigint, how text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    token bigint := palisade_fence.number_of(shown, 'token', 1);
    known jsonb := jsonb_build_object('resource', resource, 'token', token, 'seen', seen);
BEGIN
    IF token IS NULL THEN
        PERFORM palisade_fence.refuse('PF003', format('%I is fenced, and no token is shown', resource),
            format('Acquire the lock, seal (%s), then SET LOCAL palisade_fence.token = ''…'' in this transaction.', how), known);
    ELSIF token < seen THEN
        PERFORM palisade_fence.refuse('PF001', format('token %s is stale: token %s has sealed %I', token, seen, resource),
            palisade_fence.way_out(token, seen), known);
    END IF;
    PERFORM palisade_fence.refuse('PF002', format('token %s has not sealed %I (%s)', token, resource,
            CASE WHEN seen IS NULL THEN 'nothing has' ELSE 'its mark is at ' || seen END),
        format('First seal (%s), then read, then write. If it was sealed: was the database restored?', how), known);
END $$;

-- The note that a connection keeps when it is admitted: the number of seals, the resource and the token. The resource's
-- length comes first, so that no other resource and token give the same note, even with colons in them.
CREATE OR REPLACE FUNCTION palisade_fence.admission(resource text, shown text) RETURNS text LANGUAGE sql AS $$
    SELECT concat(pg_sequence_last_value('palisade_fence.seals'::regclass), ':', octet_length(resource), ':', resource, ':', shown)
$$;

-- Returns whether judge() has to be called. A connection that was admitted under a token is admitted under it again as
-- long as no resource was sealed since. The lock comes first, so that no seal comes in between; last, what judge() does
-- for every transaction. It is one expression, which PostgreSQL inlines into its caller: every separate expression has
-- to be prepared again in every transaction.
CREATE OR REPLACE FUNCTION palisade_fence.must_judge(resource text, shown text) RETURNS boolean LANGUAGE sql AS $$
    SELECT CASE
        WHEN pg_advisory_xact_lock_shared(1885432934, hashtext(resource)) IS NULL THEN true
        WHEN current_setting('palisade_fence.seq', true) <> '' OR current_setting('synchronous_commit') = 'off' THEN true
        WHEN current_setting('palisade_fence.admitted', true) IS DISTINCT FROM palisade_fence.admission(resource, shown) THEN true
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
    shown text := current_setting('palisade_fence.token', true);
    number text := current_setting('palisade_fence.seq', true);
    seen bigint;
BEGIN
    IF pg_advisory_xact_lock_shared(1885432934, hashtext(judge.resource)) IS NULL THEN
        PERFORM palisade_fence.check_name(judge.resource);
    END IF;
    IF current_setting('palisade_fence.admitted', true) IS DISTINCT FROM palisade_fence.admission(judge.resource, shown) THEN
        SELECT m.token INTO seen FROM palisade_fence.marks m WHERE m.resource = judge.resource FOR SHARE;
        IF shown IS NULL OR seen::text IS DISTINCT FROM shown THEN
            PERFORM palisade_fence.refuse_token(judge.resource, shown, seen,
                format('SELECT palisade_fence.seal(%L, …)', judge.resource));
        END IF;
        -- A seal of this transaction may still be undone, after PREPARE TRANSACTION too: then the note ends with it.
        shown := set_config('palisade_fence.admitted', palisade_fence.admission(judge.resource, shown),
            COALESCE(current_setting('palisade_fence.seals_here', true), '') = 'yes');
    END IF;
    IF number <> '' THEN
        number := palisade_fence.take_number(judge.resource, current_setting('palisade_fence.token')::bigint,
            palisade_fence.number_of(number, 'number of a write', 0),
            COALESCE(palisade_fence.number_of(current_setting('palisade_fence.author', true), 'author', 0), 0), '');
    END IF;
    RETURN palisade_fence.settle_session();
END $$;

-- Uses a number up, or refuses it. All statements of one transaction are one numbered write.
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
        -- Waits for a transaction that is using a number up. It may be the one before ours.
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
        'Another client has written under this token. Seal again, and read again.',
        known || jsonb_build_object('expected', last.seq + 1));
END $$;

-- The check for reads, and for tables without a trigger: everything that comes after it in this transaction is under
-- the seal, and the triggers need no SET LOCAL.
CREATE OR REPLACE FUNCTION palisade_fence.admit(resource text, token bigint, seq bigint DEFAULT NULL, author bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text := concat(set_config('palisade_fence.token', COALESCE(admit.token::text, ''), true),
        set_config('palisade_fence.seq', COALESCE(admit.seq::text, ''), true),
        set_config('palisade_fence.author', COALESCE(admit.author::text, ''), true));
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
    note text := concat(set_config('palisade_fence.token', COALESCE(admit_write.token::text, ''), true),
        set_config('palisade_fence.seq', '', true));
BEGIN
    IF palisade_fence.must_judge(admit_write.resource, admit_write.token::text) THEN
        note := palisade_fence.judge(admit_write.resource);
    END IF;
    note := palisade_fence.take_number(admit_write.resource, admit_write.token, admit_write.seq, admit_write.author,
        admit_write.expected);
END $$;

-- Stores the outcome of this transaction's numbered write, for its repeats. NULL: nothing was written, and nothing will be.
CREATE OR REPLACE FUNCTION palisade_fence.outcome(resource text, value bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE palisade_fence.numbers n SET outcome = outcome.value
        WHERE n.resource = outcome.resource AND n.writer = pg_current_xact_id();
    IF NOT FOUND THEN
        PERFORM palisade_fence.refuse('PF008', format('this transaction has made no numbered write to %I', outcome.resource),
            'Show palisade_fence.token and palisade_fence.seq, and write, before you store an outcome.',
            jsonb_build_object('resource', outcome.resource));
    END IF;
END $$;

-- The trigger of a protected table.
CREATE OR REPLACE FUNCTION palisade_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    note text;
BEGIN
    IF palisade_fence.must_judge(TG_ARGV[0], current_setting('palisade_fence.token', true)) THEN
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
    note := set_config('palisade_fence.passed',
        concat(pg_current_xact_id(), ':', octet_length(TG_ARGV[0]), ':', TG_ARGV[0], ':',
            current_setting('palisade_fence.token')), true);
    RETURN NULL;
END $$;

-- The trigger of a table with row marks.
CREATE OR REPLACE FUNCTION palisade_fence.guard_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    named text := TG_TABLE_NAME || ' row';
    how text := format('SELECT palisade_fence.seal_rows(%L, …)', TG_TABLE_NAME);
    shown text := current_setting('palisade_fence.token', true);
    token bigint := palisade_fence.number_of(shown, 'token', 1);
    -- As seal_rows() sets it: the token, a space, and the rows.
    sealing text := current_setting('palisade_fence.sealing', true);
BEGIN
    IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
        PERFORM palisade_fence.refuse('PF008', format('a row of %I cannot be deleted: its mark would go with it', TG_TABLE_NAME),
            'Have a column that says it is gone, or protect the table as a whole.', jsonb_build_object('resource', named));
    ELSIF token IS NULL THEN
        PERFORM palisade_fence.refuse_token(named, shown, NULL, how);
    ELSIF TG_OP = 'UPDATE' AND OLD.palisade_token IS DISTINCT FROM token THEN
        IF split_part(sealing, ' ', 1) IS DISTINCT FROM shown THEN
            PERFORM palisade_fence.refuse_token(named, shown, OLD.palisade_token, how);
        ELSIF OLD.palisade_token > token THEN
            PERFORM palisade_fence.refuse_seal(substr(sealing, length(shown) + 2), token, OLD.palisade_token);
        END IF;
    END IF;
    NEW.palisade_token := token;
    named := palisade_fence.settle_session();
    RETURN NEW;
END $$;

-- The tables that have our triggers, each with its resource; NULL where every row has a mark.
CREATE OR REPLACE VIEW palisade_fence.fenced AS
    SELECT t.tgrelid AS relation,
        CASE WHEN t.tgnargs > 0 THEN convert_from(substring(t.tgargs FROM 1 FOR position('\x00'::bytea IN t.tgargs) - 1),
            getdatabaseencoding()) END AS resource
    FROM pg_catalog.pg_trigger t
    WHERE t.tgname IN ('palisade_fence', '00_palisade_fence_truncate') AND t.tgfoid IN ('palisade_fence.guard'::regproc,
        'palisade_fence.guard_parts'::regproc, 'palisade_fence.guard_row'::regproc);

-- A table's partitions and children, and theirs, those above first.
CREATE OR REPLACE FUNCTION palisade_fence.parts_of(whole oid) RETURNS TABLE (relation oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE part AS (
        SELECT i.inhrelid, 1 AS depth FROM pg_inherits i WHERE i.inhparent = whole
        UNION ALL SELECT i.inhrelid, p.depth + 1 FROM part p JOIN pg_inherits i ON i.inhparent = p.inhrelid)
    SELECT p.inhrelid FROM part p GROUP BY p.inhrelid ORDER BY max(p.depth), p.inhrelid
$$;

CREATE OR REPLACE FUNCTION palisade_fence.full_name(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation
$$;

-- Whether tables that become parts of protected ones are protected in the same command, by an event trigger.
CREATE OR REPLACE FUNCTION palisade_fence.keeps_up() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname = 'palisade_fence' AND e.evtenabled IN ('O', 'A'))
$$;

-- Tables that should have our triggers and do not: named as a protected one was, or a part of a protected one; or have
-- become a part of another table, through which only triggers for each row see what is written.
CREATE OR REPLACE FUNCTION palisade_fence.gaps() RETURNS TABLE (relation oid, resource text, why text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_regclass(p.name)::oid, p.resource, 'a protected table had this name, and this one is not protected'
        FROM palisade_fence.protected p
        WHERE to_regclass(p.name) IS NOT NULL AND NOT EXISTS (SELECT FROM palisade_fence.fenced f WHERE f.relation = to_regclass(p.name))
    UNION
    SELECT part.relation, f.resource, format('it is a part of %s, and not protected', palisade_fence.full_name(f.relation))
        FROM palisade_fence.fenced f, palisade_fence.parts_of(f.relation) part
        WHERE NOT EXISTS (SELECT FROM palisade_fence.fenced o WHERE o.relation = part.relation)
    UNION
    SELECT f.relation, f.resource, 'it has become a part of another table, through which writes are not checked'
        FROM palisade_fence.fenced f JOIN pg_inherits i ON i.inhrelid = f.relation
        WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = f.relation AND t.tgname IN ('palisade_fence_row', '00_palisade_fence'))
$$;

-- Takes our triggers from one table; those that it has from the table it is a part of go with that table's.
CREATE OR REPLACE FUNCTION palisade_fence.drop_triggers(relation oid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found name;
BEGIN
    FOR found IN SELECT t.tgname FROM pg_catalog.pg_trigger t WHERE t.tgrelid = relation AND t.tgparentid = 0
        AND t.tgname IN ('palisade_fence', 'palisade_fence_row', 'palisade_fence_alone', '00_palisade_fence', '00_palisade_fence_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found, palisade_fence.full_name(relation));
    END LOOP;
END $$;

-- Puts our triggers on one table. TRUNCATE is seen only by a trigger of the very table that it names, INSERT, UPDATE and
-- DELETE also by those for each row, which partitions have from their table, and children do not.
CREATE OR REPLACE FUNCTION palisade_fence.put_triggers(relation oid, resource text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    named text := palisade_fence.full_name(relation);
    kind "char";
    kept "char";
    is_alone boolean;
BEGIN
    SELECT c.relkind, c.relpersistence INTO kind, kept FROM pg_catalog.pg_class c WHERE c.oid = relation;
    IF kind NOT IN ('r', 'p') OR kept <> 'p' THEN
        PERFORM palisade_fence.refuse('PF008', format('%s cannot be protected: it is %s', named, CASE
                WHEN kept = 'u' THEN 'UNLOGGED, and empty after a crash' WHEN kept = 't' THEN 'temporary'
                WHEN kind = 'f' THEN 'a foreign table: protect it where its rows are' ELSE 'not a table' END),
            'Only tables whose rows this database keeps can be protected, with all of their partitions and children.', '{}');
    END IF;
    PERFORM palisade_fence.drop_triggers(relation);
    IF resource IS NULL THEN
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = relation AND t.tgname = '00_palisade_fence') THEN
            EXECUTE format('CREATE TRIGGER "00_palisade_fence" BEFORE INSERT OR UPDATE OR DELETE ON %s '
                'FOR EACH ROW EXECUTE FUNCTION palisade_fence.guard_row()', named);
        END IF;
        EXECUTE format('CREATE TRIGGER "00_palisade_fence_truncate" BEFORE TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION palisade_fence.guard_row()', named);
        RETURN;
    END IF;
    is_alone := kind = 'r' AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE relation IN (i.inhrelid, i.inhparent));
    EXECUTE format('CREATE TRIGGER palisade_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION palisade_fence.%I(%L)', named,
        CASE WHEN is_alone THEN 'guard' ELSE 'guard_parts' END, resource);
    IF is_alone THEN
        -- Never fires. While it exists the table cannot be attached to another one, through which writes would not be
        -- checked: unprotect it, attach it, protect it again.
        EXECUTE format('CREATE TRIGGER palisade_fence_alone AFTER DELETE ON %s REFERENCING OLD TABLE AS gone '
            'FOR EACH ROW EXECUTE FUNCTION palisade_fence.guard(%L)', named, resource);
        EXECUTE format('ALTER TABLE %s DISABLE TRIGGER palisade_fence_alone', named);
    ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = relation AND t.tgname = 'palisade_fence_row') THEN
        EXECUTE format('CREATE TRIGGER palisade_fence_row AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
            'WHEN (current_setting(''palisade_fence.passed'', true) IS DISTINCT FROM '
            'concat(pg_current_xact_id(), %L, current_setting(''palisade_fence.token'', true))) '
            'EXECUTE FUNCTION palisade_fence.guard_parts(%L)', named,
            concat(':', octet_length(resource), ':', resource, ':'), resource);
    END IF;
END $$;

-- Notes that a table is protected, or is not any more. It goes by the triggers, so that a caller cannot note what is not so.
CREATE OR REPLACE FUNCTION palisade_fence.note(named text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM palisade_fence.protected p WHERE p.name = named;
    INSERT INTO palisade_fence.protected (name, resource)
        SELECT named, f.resource FROM palisade_fence.fenced f WHERE f.relation = to_regclass(named);
END $$;

-- Protects a table, with all of its partitions and children, now and later.
CREATE OR REPLACE FUNCTION palisade_fence.protect_whole(protected oid, resource text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    IF NOT palisade_fence.keeps_up() AND (EXISTS (SELECT FROM palisade_fence.parts_of(protected))
        OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = protected AND c.relkind = 'p'))
    THEN
        PERFORM palisade_fence.refuse('PF008', format('%s has partitions or children, and later ones would not be fenced',
                palisade_fence.full_name(protected)),
            'Have a superuser run the output of `palisade fence postgres` again, which then makes an event trigger; or protect '
            'each partition or child by itself, also each that is made later.', '{}');
    END IF;
    SELECT palisade_fence.full_name(f.relation) AS named, f.resource INTO part
        FROM palisade_fence.fenced f JOIN palisade_fence.parts_of(protected) p ON p.relation = f.relation
        WHERE f.resource IS DISTINCT FROM protect_whole.resource
            AND f.resource IS DISTINCT FROM (SELECT o.resource FROM palisade_fence.fenced o WHERE o.relation = protected) LIMIT 1;
    IF FOUND THEN
        PERFORM palisade_fence.refuse('PF008', format('%s is protected in another way (%s)', part.named,
                COALESCE('as ' || part.resource, 'each row by itself')),
            format('SELECT palisade_fence.unprotect(%L), then protect the whole.', part.named), '{}');
    END IF;
    PERFORM palisade_fence.unprotect(palisade_fence.full_name(protected));
    FOR part IN SELECT protected AS relation UNION ALL SELECT p.relation FROM palisade_fence.parts_of(protected) p LOOP
        PERFORM palisade_fence.drop_triggers(part.relation);
    END LOOP;
    FOR part IN SELECT protected AS relation UNION ALL SELECT p.relation FROM palisade_fence.parts_of(protected) p LOOP
        PERFORM palisade_fence.put_triggers(part.relation, protect_whole.resource);
    END LOOP;
    PERFORM palisade_fence.note(palisade_fence.full_name(protected));
END $$;

-- Protects a table under the mark of a resource. Several tables can share one.
CREATE OR REPLACE FUNCTION palisade_fence.protect(protected regclass, resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade_fence.check_name(protect.resource);
    PERFORM palisade_fence.protect_whole(protected, protect.resource);
END $$;

-- Gives every row of a table a mark, in the column palisade_token.
CREATE OR REPLACE FUNCTION palisade_fence.protect_rows(protected regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('client_min_messages', 'warning', true);
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS palisade_token bigint', protected);
    PERFORM palisade_fence.protect_whole(protected, NULL);
END $$;

-- Takes the protection of a table away, whichever it is, and of its parts that have it from there. A column
-- palisade_token stays. A dropped table is removed from palisade_fence.protected.
DROP FUNCTION IF EXISTS palisade_fence.unprotect(regclass);
CREATE OR REPLACE FUNCTION palisade_fence.unprotect(protected text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    whole oid := to_regclass(protected);
    part oid;
BEGIN
    FOR part IN SELECT p.relation FROM palisade_fence.parts_of(whole) p, palisade_fence.fenced f, palisade_fence.fenced o
        WHERE f.relation = p.relation AND o.relation = whole AND f.resource IS NOT DISTINCT FROM o.resource
    LOOP
        PERFORM palisade_fence.drop_triggers(part);
    END LOOP;
    PERFORM palisade_fence.drop_triggers(whole);
    PERFORM palisade_fence.note(COALESCE(palisade_fence.full_name(whole), protected));
END $$;

-- Protects, in the command that makes them, tables that become parts of protected ones, or have the name of one.
CREATE OR REPLACE FUNCTION palisade_fence.keep_up() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    -- A schema that is renamed renames all of its tables, and PostgreSQL reports the schema only.
    IF NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() d WHERE d.classid = 'pg_namespace'::regclass
        OR (d.classid = 'pg_class'::regclass
            AND (EXISTS (SELECT FROM pg_inherits i WHERE d.objid IN (i.inhrelid, i.inhparent))
                OR EXISTS (SELECT FROM palisade_fence.protected p WHERE p.name = palisade_fence.full_name(d.objid))
                OR EXISTS (SELECT FROM palisade_fence.fenced f WHERE f.relation = d.objid))))
    THEN
        RETURN;
    END IF;
    FOR found IN SELECT DISTINCT g.relation, g.resource FROM palisade_fence.gaps() g LOOP
        PERFORM palisade_fence.put_triggers(found.relation, found.resource);
    END LOOP;
    -- A table that was renamed is known by its new name as well.
    FOR found IN SELECT DISTINCT f.relation FROM pg_event_trigger_ddl_commands() d, palisade_fence.fenced f JOIN pg_class c
            ON c.oid = f.relation
        WHERE (d.classid, d.objid) IN (('pg_class'::regclass, f.relation), ('pg_namespace'::regclass, c.relnamespace))
            AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = f.relation)
    LOOP
        PERFORM palisade_fence.note(palisade_fence.full_name(found.relation));
    END LOOP;
END $$;

-- Only superusers may make event triggers. Without it protect() refuses tables with parts, and check() says what is missing.
DO $$
BEGIN
    DROP EVENT TRIGGER IF EXISTS palisade_fence;
    CREATE EVENT TRIGGER palisade_fence ON ddl_command_end EXECUTE FUNCTION palisade_fence.keep_up();
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END $$;

-- What is wrong with the protection of tables, a row each: where, what, and what to do.
CREATE OR REPLACE FUNCTION palisade_fence.check() RETURNS TABLE (name text, resource text, problem text, remedy text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.name, p.resource, 'there is no such table any more: it was renamed or dropped',
            format('protect it by its new name, if it has one; then SELECT palisade_fence.unprotect(%L)', p.name)
        FROM palisade_fence.protected p WHERE to_regclass(p.name) IS NULL
    UNION ALL
    SELECT palisade_fence.full_name(g.relation), g.resource, g.why, format('SELECT palisade_fence.%s, or the table that it is a part of',
            CASE WHEN g.resource IS NULL THEN format('protect_rows(%L)', palisade_fence.full_name(g.relation))
                ELSE format('protect(%L, %L)', palisade_fence.full_name(g.relation), g.resource) END)
        FROM palisade_fence.gaps() g
    UNION ALL
    SELECT palisade_fence.full_name(f.relation), f.resource, format('its trigger %I is disabled', t.tgname),
            format('ALTER TABLE %s ENABLE TRIGGER %I', palisade_fence.full_name(f.relation), t.tgname)
        FROM palisade_fence.fenced f JOIN pg_trigger t ON t.tgrelid = f.relation
        WHERE t.tgname IN ('palisade_fence', 'palisade_fence_row', '00_palisade_fence', '00_palisade_fence_truncate')
            AND t.tgenabled NOT IN ('O', 'A')
    UNION ALL
    SELECT palisade_fence.full_name(f.relation), f.resource, 'it is UNLOGGED: a crash empties it',
            format('ALTER TABLE %s SET LOGGED', palisade_fence.full_name(f.relation))
        FROM palisade_fence.fenced f JOIN pg_class c ON c.oid = f.relation WHERE c.relpersistence = 'u'
    UNION ALL
    SELECT palisade_fence.full_name(f.relation), f.resource, 'partitions or children that are made later are not fenced',
            'let a superuser install the fence again (it then makes the event trigger palisade_fence), or enable that trigger'
        FROM palisade_fence.fenced f JOIN pg_class c ON c.oid = f.relation
        WHERE NOT palisade_fence.keeps_up() AND (c.relkind = 'p' OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = f.relation))
    ORDER BY 1, 3
$$;

-- Seals the rows in which a column has this value, and shows the token in this transaction; returns how many there are.
-- A row that does not exist cannot be sealed: any client can insert it first.
CREATE OR REPLACE FUNCTION palisade_fence.seal_rows(protected regclass, key name, value text, token bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    sealed bigint;
BEGIN
    IF palisade_fence.number_of(COALESCE(token::text, 'NULL'), 'token', 1) IS NULL OR value IS NULL THEN
        PERFORM palisade_fence.refuse('PF006', format('rows of %s whose %I is NULL cannot be sealed: NULL is equal to nothing',
                protected, key), 'Seal them by a column that has a value.', '{"what": "row"}');
    END IF;
    PERFORM set_config('palisade_fence.token', token::text, true),
        set_config('palisade_fence.sealing', format('%s %s %s=%s', token, protected, key, value), true);
    EXECUTE format('UPDATE %s SET palisade_token = %L WHERE %I = %L', protected, token, key, value);
    GET DIAGNOSTICS sealed = ROW_COUNT;
    PERFORM set_config('palisade_fence.sealing', '', true);
    RETURN sealed;
END $$;

-- Only granted roles may use it: a seal with a huge token would shut all clients out.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA palisade_fence FROM PUBLIC;
REVOKE ALL ON palisade_fence.marks, palisade_fence.numbers, palisade_fence.protected FROM PUBLIC;
-- It shows only what the catalogue shows. protect() reads it with its caller's rights.
GRANT SELECT ON palisade_fence.fenced TO PUBLIC;
COMMIT;
