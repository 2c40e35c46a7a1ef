//! Values in SQLite.

use rusqlite::{OptionalExtension, params};

use super::{Condition, LOAD, STORE, VersionedStore};
use crate::Error;
use crate::recipe::store::Sqlite;

/// The table of the values. The functions of this module create it if it is missing.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS palisade_versioned (
    name TEXT PRIMARY KEY,
    write TEXT NOT NULL,
    value BLOB NOT NULL
) WITHOUT ROWID;";

impl VersionedStore for Sqlite {
    const NAME: &'static str = "sqlite";
    const REFUSAL_IS_CERTAIN: bool = true;

    async fn get(&self, name: &str) -> Result<Option<(Vec<u8>, Condition)>, Error> {
        let owned = name.to_owned();
        let find = self.write((LOAD, name), SCHEMA, move |transaction| {
            let sql = "SELECT value, write FROM palisade_versioned WHERE name = ?1";
            let row = transaction
                .prepare_cached(sql)?
                .query_row([owned], |row| Ok((row.get(0)?, Condition::of(&row.get::<_, String>(1)?))));
            row.optional()
        });
        find.await
    }

    async fn put(
        &self,
        name: &str,
        bytes: &[u8],
        write: &str,
        expected: Option<&Condition>,
    ) -> Result<Option<Condition>, Error> {
        let (owned, bytes, new) = (name.to_owned(), bytes.to_owned(), write.to_owned());
        let expected = expected.map(|expected| expected.write().to_owned());
        let put = self.write((STORE, name), SCHEMA, move |transaction| match expected {
            None => {
                let sql =
                    "INSERT INTO palisade_versioned (name, write, value) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
                transaction.prepare_cached(sql)?.execute(params![owned, new, bytes])
            }
            Some(expected) => {
                let sql = "UPDATE palisade_versioned SET write = ?2, value = ?3 WHERE name = ?1 AND write = ?4";
                transaction.prepare_cached(sql)?.execute(params![owned, new, bytes, expected])
            }
        });
        Ok((put.await? == 1).then(|| Condition::of(write)))
    }
}
