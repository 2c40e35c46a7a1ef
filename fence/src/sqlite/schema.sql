-- What Palisade keeps in a database whose tables it protects. Works from any client, the sqlite3 shell included:
--
--   INSERT INTO palisade_seal (resource, token) VALUES ('orders', 34);        -- first, before anything is read
--
--   BEGIN IMMEDIATE;
--   INSERT INTO palisade_present (resource, token) VALUES ('orders', 34);     -- fails if 34 was overtaken
--   UPDATE orders SET …;                                                      -- fails without the line above
--   DELETE FROM palisade_pass;
--   COMMIT;

-- How far each resource has come. `is_applied` is 0 if nothing was written under the last number.
CREATE TABLE IF NOT EXISTS palisade_mark (
    resource TEXT PRIMARY KEY NOT NULL CHECK (typeof(resource) = 'text' AND resource <> ''),
    token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991),
    seq INTEGER NOT NULL DEFAULT 0 CHECK (typeof(seq) = 'integer' AND seq >= 0),
    author INTEGER NOT NULL DEFAULT 0,
    is_applied INTEGER NOT NULL DEFAULT 0,
    outcome
);

CREATE TRIGGER IF NOT EXISTS palisade_mark_rises BEFORE UPDATE ON palisade_mark
WHEN NEW.token < OLD.token OR NEW.resource <> OLD.resource
BEGIN
    SELECT RAISE(ABORT, 'palisade: a mark only goes up');
END;

CREATE TRIGGER IF NOT EXISTS palisade_mark_stays BEFORE DELETE ON palisade_mark
BEGIN
    SELECT RAISE(ABORT, 'palisade: marks are kept for ever, or an old token would be accepted again');
END;

-- Tokens that were presented in this transaction. A row must be gone when the transaction ends: where foreign keys are
-- enforced, a COMMIT that would leave one behind fails.
CREATE TABLE IF NOT EXISTS palisade_nothing (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS palisade_pass (
    resource TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL,
    is_left INTEGER NOT NULL DEFAULT 1 REFERENCES palisade_nothing (id) DEFERRABLE INITIALLY DEFERRED
);

CREATE VIEW IF NOT EXISTS palisade_seal AS SELECT resource, token FROM palisade_mark;

CREATE TRIGGER IF NOT EXISTS palisade_seal_insert INSTEAD OF INSERT ON palisade_seal
BEGIN
    SELECT RAISE(ABORT, 'palisade: superseded: a newer token has sealed this resource (see palisade_mark)')
    FROM palisade_mark WHERE resource = NEW.resource AND token > NEW.token;
    INSERT INTO palisade_mark (resource, token) VALUES (NEW.resource, NEW.token)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, seq = 0, author = 0, is_applied = 0, outcome = NULL
    WHERE excluded.token > token;
    DELETE FROM palisade_pass WHERE resource = NEW.resource;
END;

CREATE VIEW IF NOT EXISTS palisade_present AS SELECT resource, token FROM palisade_pass;

CREATE TRIGGER IF NOT EXISTS palisade_present_insert INSTEAD OF INSERT ON palisade_present
BEGIN
    SELECT RAISE(ABORT, 'palisade: stale: a newer token has sealed this resource (see palisade_mark)')
    FROM palisade_mark WHERE resource = NEW.resource AND token > NEW.token;
    SELECT RAISE(ABORT, 'palisade: not sealed: insert this token into palisade_seal first')
    WHERE NOT EXISTS (SELECT 1 FROM palisade_mark WHERE resource = NEW.resource AND token = NEW.token);
    INSERT OR REPLACE INTO palisade_pass (resource, token) VALUES (NEW.resource, NEW.token);
END;
