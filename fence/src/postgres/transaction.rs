//! A transaction under a token.

use std::ops::Deref;

use futures_util::FutureExt;
use futures_util::future::join;
use palisade_core::Token;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::error::kind;
use crate::Error;

/// A transaction under a token: everything that [`tokio_postgres::Client`] can do, until it is committed. Dropped, it is
/// rolled back. Leave BEGIN, COMMIT and ROLLBACK to it.
#[derive(Debug)]
#[must_use = "it is rolled back if it is not committed"]
pub struct Transaction<'c> {
    client: &'c mut Client,
    name: String,
    token: Token,
    is_open: bool,
}

impl<'c> Transaction<'c> {
    /// Begins a transaction and calls one of the schema's functions to be admitted, in one round trip.
    pub(super) async fn begin(
        client: &'c mut Client,
        name: &str,
        token: Token,
        admit: &str,
    ) -> Result<Transaction<'c>, tokio_postgres::Error> {
        let transaction = Transaction { client, name: name.to_owned(), token, is_open: true };
        transaction.batch_execute(&format!("BEGIN; SELECT palisade_fence.{admit}")).await?;
        Ok(transaction)
    }

    /// Begins a transaction and prepares a statement, in one round trip. The statement is not executed in it: if BEGIN
    /// failed, it would run unfenced.
    pub(super) async fn begin_preparing(
        client: &'c mut Client,
        token: Token,
        admit: &str,
        text: &str,
    ) -> Result<(Transaction<'c>, Result<Statement, tokio_postgres::Error>), tokio_postgres::Error> {
        let transaction = Transaction { client, name: String::new(), token, is_open: true };
        let begin = format!("BEGIN; SELECT palisade_fence.{admit}");
        let (begun, prepared) = join(transaction.batch_execute(&begin), transaction.prepare(text)).await;
        begun.map(|()| (transaction, prepared))
    }

    /// Returns the token that it is under.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Commits, in one round trip.
    ///
    /// # Cancellation, and on connection loss
    ///
    /// It may have been committed, or may still be.
    ///
    /// # Errors
    ///
    /// It was not committed, because a statement of it had failed or the database does not accept it at the end; or the
    /// connection was lost, and it may have been.
    pub async fn commit(self) -> Result<(), Error> {
        let (name, token) = (self.name.clone(), self.token);
        self.end("SELECT; COMMIT")
            .await
            .map_err(|error| Error::new(kind(error, true), name, "commit to").under(token))
    }

    /// Rolls back.
    ///
    /// # Errors
    ///
    /// The connection was lost; the server then rolls back.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.is_open = false;
        let ended = self.client.batch_execute("ROLLBACK").await;
        ended.map_err(|error| Error::new(kind(error, false), &*self.name, "roll back").under(self.token))
    }

    /// Commits. COMMIT in a failed transaction rolls back without an error. Unless it is known that no statement has failed,
    /// another statement must come before it, which then fails.
    pub(super) async fn end(mut self, commit: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(commit).await?;
        self.is_open = false;
        Ok(())
    }

    /// Queries rows and commits, in one round trip.
    pub(super) async fn query_and_commit(
        mut self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let (rows, ended) = join(self.client.query(statement, parameters), self.client.batch_execute("COMMIT")).await;
        self.is_open = false;
        rows.and_then(|rows| ended.map(|()| rows))
    }
}

impl Deref for Transaction<'_> {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // One poll sends it, before anything else on this connection.
            let _ = self.client.batch_execute("ROLLBACK").now_or_never();
        }
    }
}
