//! A connection that shows a token.

use std::ops::Deref;

use futures_util::FutureExt;
use palisade_core::Token;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::error::kind;
use crate::Error;

const RESET: &str = "RESET palisade_fence.token";

/// A connection that shows a token: everything that [`tokio_postgres::Client`] can do, each statement in a separate
/// transaction. Dropped, the connection shows no token any more. See [`Fence::under`](super::Fence::under).
///
/// A statement shows the token, not a number: if its answer is lost, it may have been applied and may even be applied
/// later. Read the data before you repeat it.
#[derive(Debug)]
#[must_use = "the token is shown while it is there"]
pub struct Under<'c> {
    client: &'c mut Client,
    name: String,
    token: Token,
    is_shown: bool,
}

impl<'c> Under<'c> {
    pub(super) async fn begin(client: &'c mut Client, name: String, token: Token) -> Result<Under<'c>, Error> {
        let under = Under { client, name, token, is_shown: true };
        let shown = under.batch_execute(&format!("SET palisade_fence.token = '{token}'")).await;
        match shown {
            Ok(()) => Ok(under),
            Err(error) => Err(under.error(error, false, "show a token to")),
        }
    }

    /// Returns the token that is shown.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Runs one statement in one round trip, and returns the number of changed rows.
    ///
    /// # Cancellation, and on connection loss
    ///
    /// It may have been applied, or may still be.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`](crate::ErrorKind): a newer token has sealed it.
    /// [`ErrorKind::NotSealed`](crate::ErrorKind): this one has not. [`ErrorKind::Rejected`](crate::ErrorKind): the database
    /// does not accept the statement. The database cannot be reached.
    pub async fn execute(&self, statement: &Statement, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client.execute(statement, parameters).await.map_err(|error| self.error(error, true, "write"))
    }

    /// Stops showing the token, and waits for the server's reply. Dropping does the same without waiting.
    ///
    /// # Errors
    ///
    /// The connection was lost, and what was shown on it with it.
    pub async fn end(mut self) -> Result<(), Error> {
        let ended = self.client.batch_execute(RESET).await;
        self.is_shown = false;
        ended.map_err(|error| self.error(error, false, "end the use of"))
    }

    fn error(&self, error: tokio_postgres::Error, may_be_committed: bool, operation: &'static str) -> Error {
        Error::new(kind(error, may_be_committed), &*self.name, operation).under(self.token)
    }
}

impl Deref for Under<'_> {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        if self.is_shown {
            // One poll sends it, before anything else on this connection.
            let _ = self.client.batch_execute(RESET).now_or_never();
        }
    }
}
