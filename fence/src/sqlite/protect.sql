-- Refuses every change of a table whose transaction has not presented the token that its resource is sealed with.
CREATE TRIGGER IF NOT EXISTS {insert} BEFORE INSERT ON {table}
WHEN NOT EXISTS (SELECT 1 FROM palisade_pass JOIN palisade_mark USING (resource, token) WHERE resource = {resource})
BEGIN
    SELECT RAISE(ABORT, 'palisade: no token: this table is protected, insert the token into palisade_present first');
END;

CREATE TRIGGER IF NOT EXISTS {update} BEFORE UPDATE ON {table}
WHEN NOT EXISTS (SELECT 1 FROM palisade_pass JOIN palisade_mark USING (resource, token) WHERE resource = {resource})
BEGIN
    SELECT RAISE(ABORT, 'palisade: no token: this table is protected, insert the token into palisade_present first');
END;

CREATE TRIGGER IF NOT EXISTS {delete} BEFORE DELETE ON {table}
WHEN NOT EXISTS (SELECT 1 FROM palisade_pass JOIN palisade_mark USING (resource, token) WHERE resource = {resource})
BEGIN
    SELECT RAISE(ABORT, 'palisade: no token: this table is protected, insert the token into palisade_present first');
END;
