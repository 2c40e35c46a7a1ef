-- Facts about the whole file: the boot of its sessions, and the binding of the files next to it.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- One row is one batch of commands that were committed together. Numbers increase by one.
CREATE TABLE log (
    seq   INTEGER PRIMARY KEY,
    batch BLOB NOT NULL
);

-- The machine after the batch of this number. A reader starts here.
CREATE TABLE snapshot (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    seq     INTEGER NOT NULL,
    machine BLOB NOT NULL,
    notes   BLOB NOT NULL
);
