//! A row in a table of PostgreSQL. The ratchet is a second column. The strict fence is a trigger on the table.

use palisade::Token;
use palisade_fence::postgres::{self, Change, Postgres, Sql};
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{Client, Error, Row};

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::stores::{
    postgres::{Connector, describe},
    redacted,
};

pub(super) struct Counter {
    url: String,
    connector: Connector,
    table: String,
    plain: Mutex<Client>,
    fenced: OnceCell<Postgres>,
}

impl Counter {
    pub(super) async fn open(url: &str, name: &str) -> Result<Counter, Failure> {
        let connector = Connector::parse(url)?;
        let plain = Mutex::new(connector.connect().await?);
        Ok(Counter { url: url.to_owned(), connector, table: name.to_owned(), plain, fenced: OnceCell::new() })
    }

    async fn fenced(&self) -> Result<Postgres, StoreError> {
        let connect = || self.connector.resource(&self.table);
        Ok(self.fenced.get_or_try_init(connect).await?.clone())
    }
}

fn failed(error: Error) -> StoreError {
    StoreError::Failed(describe(&error))
}

fn unknown_outcome(error: Error) -> StoreError {
    StoreError::UnknownOutcome(describe(&error))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Store for Counter {
    fn describe(&self) -> String {
        redacted(&self.url)
    }

    fn create_data(&self, fencing: Fencing) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (table, mut plain) = (&self.table, self.plain.lock().await);
            let sql = format!("CREATE TABLE {table} AS SELECT 0::bigint AS number, 0::bigint AS seen");
            plain.batch_execute(&sql).await.map_err(failed)?;
            if fencing == Fencing::Strict {
                postgres::install(&mut plain).await?;
                postgres::protect(&mut plain, table, table).await?;
            }
            Ok(())
        })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            // Dropping a table that is still protected would be reported as a gap in the fence.
            let sql = format!(
                "DO $$ BEGIN
                    IF to_regprocedure('palisade_fence.unprotect(text)') IS NOT NULL THEN
                        PERFORM palisade_fence.unprotect('{table}');
                    END IF;
                END $$;
                DROP TABLE IF EXISTS {table}",
                table = self.table
            );
            self.plain.lock().await.batch_execute(&sql).await.map_err(failed)
        })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let sql = format!("SELECT number FROM {}", self.table);
            let row = self.plain.lock().await.query_one(&sql, &[]).await.map_err(failed)?;
            number(&row).ok_or_else(|| StoreError::Failed("the table does not contain a number".to_owned()))
        })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = $1", self.table);
            let written = self.plain.lock().await.execute(&sql, &[&signed(number)]).await;
            written.map(|_| ()).map_err(unknown_outcome)
        })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let sql = format!("UPDATE {} SET number = $1, seen = $2 WHERE seen <= $2", self.table);
            let values = (signed(number), signed(token.get()));
            match self.plain.lock().await.execute(&sql, &[&values.0, &values.1]).await.map_err(unknown_outcome)? {
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

fn number(row: &Row) -> Option<u64> {
    row.try_get::<_, i64>(0).ok()?.try_into().ok()
}

/// The one row of a protected table.
struct OneRow {
    table: String,
}

impl CounterAdapter for OneRow {
    type Resource = Postgres;

    fn query(&self) -> Sql {
        Sql::new(format!("SELECT number FROM {}", self.table))
    }

    fn number(&self, answer: Vec<Row>) -> Option<u64> {
        number(answer.first()?)
    }

    fn change(&self, number: u64) -> Change {
        Sql::new(format!("UPDATE {} SET number = $1", self.table)).bind(signed(number)).into()
    }
}
