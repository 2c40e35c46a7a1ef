-- What is true of the file as a whole: the boot in which its sessions live, and what binds the files beside it to it.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- One row is one batch of commands that were committed together. Numbers rise by one.
CREATE TABLE log (
    seq   INTEGER PRIMARY KEY,
    batch BLOB NOT NULL
);

-- The machine after the batch of this number: where a reader begins.
CREATE TABLE snapshot (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    seq     INTEGER NOT NULL,
    machine BLOB NOT NULL,
    notes   BLOB NOT NULL
);
