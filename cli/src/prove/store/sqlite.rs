//! A row in a table of SQLite. The ratchet is a second column. The strict fence is triggers on the table.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::Token;
use palisade_fence::sqlite::{Sqlite, Work};
use rusqlite::types::Value;
use rusqlite::{Connection, params};

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;

/// How long a writer waits for a locked database: longer than any pause, since a writer may be paused in a transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Counter {
    path: String,
    table: Arc<str>,
    plain: Mutex<Connection>,
    fenced: Sqlite,
}

impl Counter {
    pub(super) async fn open(path: &str, name: &str) -> Result<Counter, Failure> {
        let cannot = |error: &dyn std::fmt::Display| Failure::Unavailable(format!("SQLite {path}: {error}"));
        let plain = Connection::open(path).map_err(|error| cannot(&error))?;
        plain.busy_timeout(BUSY_TIMEOUT).map_err(|error| cannot(&error))?;
        let fenced = Sqlite::open(path, name).await.map_err(|error| cannot(&error))?;
        Ok(Counter { path: path.to_owned(), table: name.into(), plain: Mutex::new(plain), fenced })
    }

    fn plain(&self) -> MutexGuard<'_, Connection> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Failed(format!("the database says: {error}"))
}

fn unknown_outcome(error: rusqlite::Error) -> StoreError {
    StoreError::UnknownOutcome(format!("the database says: {error}"))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Store for Counter {
    fn describe(&self) -> String {
        format!("SQLite {}", self.path)
    }

    fn create_data(&self, fencing: Fencing) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let table = &self.table;
            let sql = format!(
                "CREATE TABLE {table} (number INTEGER NOT NULL, seen INTEGER NOT NULL); INSERT INTO {table} VALUES (0, 0)"
            );
            self.plain().execute_batch(&sql).map_err(failed)?;
            match fencing {
                Fencing::Strict => Ok(self.fenced.protect(table).await?),
                Fencing::None | Fencing::Ratchet => Ok(()),
            }
        })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            let dropped = self.plain().execute_batch(&format!("DROP TABLE IF EXISTS {}", self.table));
            dropped.map_err(failed)
        })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let sql = format!("SELECT number FROM {}", self.table);
            let number: i64 = self.plain().query_row(&sql, [], |row| row.get(0)).map_err(failed)?;
            u64::try_from(number)
                .map_err(|_| StoreError::Failed(format!("the table contains {number}, which no writer wrote")))
        })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = ?1", self.table);
            self.plain().execute(&sql, [signed(number)]).map(|_| ()).map_err(unknown_outcome)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = ?1, seen = ?2 WHERE seen <= ?2", self.table);
            let changed = self.plain().execute(&sql, params![signed(number), signed(token.get())]);
            match changed.map_err(unknown_outcome)? {
                0 => Err(ratchet_refusal(token)),
                _ => Ok(()),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        let row = Row { table: self.table.clone() };
        Box::pin(async move { seal(self.fenced.clone(), row, token).await })
    }
}

/// The one row of a protected table.
struct Row {
    table: Arc<str>,
}

impl CounterAdapter for Row {
    type Resource = Sqlite;

    fn query(&self) -> Work {
        let sql = format!("SELECT number FROM {}", self.table);
        Work::new(move |transaction| transaction.query_row(&sql, [], |row| row.get(0)))
    }

    fn number(&self, answer: Value) -> Option<u64> {
        match answer {
            Value::Integer(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    fn change(&self, number: u64) -> Work {
        let sql = format!("UPDATE {} SET number = ?1", self.table);
        Work::new(move |transaction| transaction.execute(&sql, [signed(number)]).map(|_| Value::Null))
    }
}
