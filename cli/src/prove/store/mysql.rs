//! A row in a table of MySQL or MariaDB. The ratchet is a second column. The strict fence is triggers on the table.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};
use palisade::Token;
use palisade_fence::mysql::{MySql, Row, Rows, Scope, Statement, options};
use tokio::sync::{Mutex, OnceCell};

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::stores::{redacted, with_secret};

pub(super) struct Counter {
    url: String,
    table: String,
    plain: Mutex<Conn>,
    fenced: OnceCell<Rows>,
}

impl Counter {
    pub(super) async fn open(url: &str, name: &str) -> Result<Counter, Failure> {
        let unreachable = |error| Failure::Unavailable(format!("MySQL: {error}"));
        let url = with_secret(url);
        let opts = options(&url).map_err(|error| Failure::Misuse(error.to_string()))?;
        let plain = Conn::new(opts).await.map_err(unreachable)?;
        let table = name.to_owned();
        Ok(Counter { url, table, plain: Mutex::new(plain), fenced: OnceCell::new() })
    }

    async fn fenced(&self) -> Result<Rows, StoreError> {
        let connect = async || MySql::connect(&self.url).await?.rows(&self.table);
        Ok(self.fenced.get_or_try_init(connect).await?.clone())
    }
}

fn failed(error: Error) -> StoreError {
    StoreError::Failed(format!("MySQL says: {error}"))
}

fn unknown_outcome(error: Error) -> StoreError {
    StoreError::UnknownOutcome(format!("MySQL says: {error}"))
}

impl Store for Counter {
    fn describe(&self) -> String {
        redacted(&self.url)
    }

    fn create_data(&self, fencing: Fencing) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let table = &self.table;
            let mut plain = self.plain.lock().await;
            let create = format!("CREATE TABLE {table} (number BIGINT NOT NULL, seen BIGINT NOT NULL) ENGINE=InnoDB");
            plain.query_drop(create).await.map_err(failed)?;
            plain.query_drop(format!("INSERT INTO {table} VALUES (0, 0)")).await.map_err(failed)?;
            if fencing == Fencing::Strict {
                let mysql = MySql::install(&self.url).await?;
                mysql.protect(table, &Scope::Table(table.clone())).await?;
            }
            Ok(())
        })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            let sql = format!("DROP TABLE IF EXISTS {}", self.table);
            self.plain.lock().await.query_drop(sql).await.map_err(failed)
        })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let sql = format!("SELECT number FROM {}", self.table);
            let number = self.plain.lock().await.query_first(sql).await.map_err(failed)?;
            number.ok_or_else(|| StoreError::Failed("the table has no row".to_owned()))
        })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = ?", self.table);
            self.plain.lock().await.exec_drop(sql, (number,)).await.map_err(unknown_outcome)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = ?, seen = ? WHERE seen <= ?", self.table);
            let mut plain = self.plain.lock().await;
            plain.exec_drop(sql, (number, token.get(), token.get())).await.map_err(unknown_outcome)?;
            match plain.affected_rows() {
                0 => Err(ratchet_refusal(token)),
                _ => Ok(()),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        let row = OneRow { table: self.table.clone() };
        Box::pin(async move { seal(self.fenced().await?, row, token).await })
    }
}

/// The one row of a protected table.
struct OneRow {
    table: String,
}

impl CounterAdapter for OneRow {
    type Resource = Rows;

    fn query(&self) -> Statement {
        Statement::new(&format!("SELECT number FROM {}", self.table))
    }

    fn number(&self, answer: Vec<Row>) -> Option<u64> {
        answer.first()?.get_opt(0)?.ok()
    }

    fn change(&self, number: u64) -> Vec<Statement> {
        vec![Statement::new(&format!("UPDATE {} SET number = ?", self.table)).bind(number)]
    }
}
