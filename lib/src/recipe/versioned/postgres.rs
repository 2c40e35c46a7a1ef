//! Values in PostgreSQL. Each call is one statement and one round trip.

use super::{Condition, LOAD, STORE, VersionedStore};
use crate::Error;
use crate::recipe::store::{Call, Postgres, bytes, is_missing, text};

/// The table of the values. A recipe creates it if it is missing and the role may do so.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_versioned (
    name text COLLATE \"C\" PRIMARY KEY,
    write text COLLATE \"C\" NOT NULL,
    value bytea NOT NULL
);";

const GET: &str = "SELECT value, write FROM palisade_versioned WHERE name = $1";
const CREATE: &str = "INSERT INTO palisade_versioned (name, write, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
/// Waits for a transaction that is replacing the value, and then finds it replaced.
const REPLACE: &str = "UPDATE palisade_versioned SET write = $2, value = $3 WHERE name = $1 AND write = $4";

impl VersionedStore for Postgres {
    const NAME: &'static str = "postgres";
    const REFUSAL_IS_CERTAIN: bool = true;

    async fn get(&self, name: &str) -> Result<Option<(Vec<u8>, Condition)>, Error> {
        let work = async {
            let connection = self.connection(LOAD, name).await?;
            let found = connection.query_typed_opt(GET, &[text(&name)]).await;
            connection.keep();
            let found = found.and_then(|row| match row {
                Some(row) => Ok(Some((row.try_get(0)?, Condition::of(row.try_get(1)?)))),
                None => Ok(None),
            });
            match found {
                Err(error) if is_missing(&error) => Ok(None),
                found => found.map_err(|error| self.error(error, false, LOAD, name)),
            }
        };
        self.bounded(Call { operation: LOAD, key: name, writes: false }, work).await
    }

    async fn put(
        &self,
        name: &str,
        value: &[u8],
        write: &str,
        expected: Option<&Condition>,
    ) -> Result<Option<Condition>, Error> {
        let work = async {
            let connection = self.connection(STORE, name).await?;
            let replaced;
            let mut params = vec![text(&name), text(&write), bytes(&value)];
            let sql = match expected {
                Some(expected) => {
                    replaced = expected.write();
                    params.push(text(&replaced));
                    REPLACE
                }
                None => CREATE,
            };
            let mut put = connection.execute_typed(sql, &params).await;
            if put.as_ref().is_err_and(is_missing) && expected.is_none() {
                self.create(&connection, (SCHEMA, "palisade_versioned"), (STORE, name)).await?;
                put = connection.execute_typed(sql, &params).await;
            }
            connection.keep();
            // The statement commits itself.
            let stored = put.map_err(|error| self.error(error, true, STORE, name))?;
            Ok((stored == 1).then(|| Condition::of(write)))
        };
        self.bounded(Call { operation: STORE, key: name, writes: true }, work).await
    }
}
