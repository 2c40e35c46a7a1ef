-- Palisade's tables in a database whose tables it protects. They work from any client, the sqlite3 shell included:
--
--   INSERT INTO palisade_seal (resource, token) VALUES ('orders', 34);        -- first, before anything is read
--
--   BEGIN IMMEDIATE;
--   INSERT INTO palisade_present (resource, token) VALUES ('orders', 34);     -- fails if 34 was overtaken
--   UPDATE orders SET …;                                                      -- fails without the line above
--   DELETE FROM palisade_pass;
--   COMMIT;
--
-- A statement that says OR IGNORE or OR REPLACE says so for the statements of its triggers too. So nothing here relies on
-- a constraint alone: each trigger ends by checking that what was asked for is there.

-- The mark of each resource, and the author and outcome of its last write. `is_applied` is 0 if the last number was
-- used up without a write. The resource is the only key, so that REPLACE cannot remove a row by another one.
CREATE TABLE palisade_mark (
    resource TEXT PRIMARY KEY NOT NULL CHECK (typeof(resource) = 'text' AND resource <> ''),
    token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991),
    seq INTEGER NOT NULL DEFAULT 0 CHECK (typeof(seq) = 'integer' AND seq >= 0),
    author INTEGER NOT NULL DEFAULT 0,
    is_applied INTEGER NOT NULL DEFAULT 0,
    outcome
) WITHOUT ROWID;

-- REPLACE removes a row without a DELETE that a trigger could see.
CREATE TRIGGER palisade_mark_is_first BEFORE INSERT ON palisade_mark
WHEN EXISTS (SELECT 1 FROM palisade_mark WHERE resource = NEW.resource)
BEGIN
    SELECT RAISE(ABORT, 'palisade: this resource has a mark: insert the token into palisade_seal to raise it');
END;

CREATE TRIGGER palisade_mark_rises BEFORE UPDATE ON palisade_mark
WHEN NEW.token < OLD.token OR NEW.resource <> OLD.resource OR (NEW.token = OLD.token AND NEW.seq < OLD.seq)
BEGIN
    SELECT RAISE(ABORT, 'palisade: a mark only goes up');
END;

CREATE TRIGGER palisade_mark_stays BEFORE DELETE ON palisade_mark
BEGIN
    SELECT RAISE(ABORT, 'palisade: marks are kept for ever, or an old token would be accepted again');
END;

-- Tokens that were presented in this transaction. A row must be gone when the transaction ends: where foreign keys are
-- enforced, a COMMIT that would leave one behind fails, because nothing can be in palisade_nothing.
CREATE TABLE palisade_nothing (id INTEGER PRIMARY KEY, CHECK (0));
CREATE TABLE palisade_pass (
    resource TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    is_left INTEGER NOT NULL DEFAULT 1 REFERENCES palisade_nothing (id) DEFERRABLE INITIALLY DEFERRED
);

-- The protected tables and their resources. A seal is refused if a table has lost its triggers.
CREATE TABLE palisade_protected (
    name TEXT PRIMARY KEY NOT NULL COLLATE NOCASE,
    resource TEXT NOT NULL
) WITHOUT ROWID;

CREATE VIEW palisade_seal AS SELECT resource, token FROM palisade_mark;

CREATE TRIGGER palisade_seal_insert INSTEAD OF INSERT ON palisade_seal
BEGIN
    SELECT RAISE(ABORT, 'palisade: superseded: a higher token has sealed this resource (see palisade_mark). Either a newer holder has the lock: acquire it again. Or the engine that gave this token counts lower: palisade tokens raise --above that token')
    FROM palisade_mark WHERE resource = NEW.resource AND token > NEW.token;
    INSERT INTO palisade_mark (resource, token) SELECT NEW.resource, NEW.token
    WHERE NOT EXISTS (SELECT 1 FROM palisade_mark WHERE resource = NEW.resource);
    UPDATE palisade_mark SET token = NEW.token, seq = 0, author = 0, is_applied = 0, outcome = NULL
    WHERE resource = NEW.resource AND token < NEW.token;
    SELECT RAISE(ABORT, 'palisade: not sealed: a resource is a text, and a token a number from 1 to 9007199254740991')
    WHERE NOT EXISTS (SELECT 1 FROM palisade_mark WHERE resource = NEW.resource AND token = NEW.token);
    DELETE FROM palisade_pass WHERE resource = NEW.resource;
END;

CREATE VIEW palisade_present AS SELECT resource, token FROM palisade_pass;

CREATE TRIGGER palisade_present_insert INSTEAD OF INSERT ON palisade_present
BEGIN
    SELECT RAISE(ABORT, 'palisade: stale: a higher token has sealed this resource (see palisade_mark). Either a newer holder has the lock: acquire it again. Or the engine that gave this token counts lower: palisade tokens raise --above that token')
    FROM palisade_mark WHERE resource = NEW.resource AND token > NEW.token;
    SELECT RAISE(ABORT, 'palisade: not sealed: insert this token into palisade_seal first')
    WHERE NOT EXISTS (SELECT 1 FROM palisade_mark WHERE resource = NEW.resource AND token = NEW.token);
    DELETE FROM palisade_pass WHERE resource = NEW.resource;
    INSERT INTO palisade_pass (resource, token) VALUES (NEW.resource, NEW.token);
END;
