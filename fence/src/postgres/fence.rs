//! The fence for an application that has its own connections.

use std::sync::Arc;

use futures_util::future::join3;
use palisade_core::Token;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, SimpleQueryMessage, Statement};

use super::error::kind;
use super::transaction::Transaction;
use super::under::Under;
use crate::name::check_name;
use crate::{Error, ErrorKind, Mark, Seq};

const LONGEST_NAME: usize = 512;

/// The mark of one resource, used over the application's own connections: `tokio_postgres`, or a pool's that deref to
/// it. It fences the transactions that begin here, and all transactions on tables with the trigger.
///
/// A transaction shows the token, not a number: if the answer to its commit is lost, it may have been applied and may
/// even be applied later. Read the data before you repeat it, or use [`Postgres`](super::Postgres), which finds out the
/// outcome.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use palisade_fence::{Token, postgres::Fence};
/// let (fence, token) = (Fence::new("orders")?, Token::new(34)?);
/// fence.seal(client, token).await?;                           // before anything is read
///
/// let transaction = fence.transaction(client, token).await?;
/// let total: i64 = transaction.query_one("SELECT total FROM orders WHERE id = 42", &[]).await?.get(0);
/// transaction.execute("UPDATE orders SET total = $1 WHERE id = 42", &[&(total + 5)]).await?;
/// transaction.commit().await?;
///
/// let update = client.prepare("UPDATE orders SET total = $1 WHERE id = $2").await?;
/// fence.execute(client, token, &update, &[&7_i64, &42]).await?;       // one round trip, as without a fence
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Fence {
    resource: Arc<str>,
}

impl Fence {
    /// Returns the fence of a resource, without any I/O.
    ///
    /// ```
    /// use palisade_fence::postgres::Fence;
    /// assert!(Fence::new("orders/42").is_ok());
    /// assert!(Fence::new("").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// The name is empty, longer than 512 bytes, or has control characters.
    pub fn new(resource: &str) -> Result<Fence, Error> {
        Ok(Fence { resource: checked(resource, "open")?.into() })
    }

    /// Raises the mark, in one round trip and a separate transaction. Waits for transactions that write under an older
    /// token: at most 30 seconds for one whose client is idle; `SET lock_timeout` bounds the others.
    ///
    /// # Cancellation
    ///
    /// The mark may have been raised. Sealing again with the same token is no error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Superseded`]: a newer token has sealed it. The database cannot be reached, or the schema is not there.
    pub async fn seal(&self, client: &mut Client, token: Token) -> Result<Mark, Error> {
        self.raise(client, token).await.map_err(|kind| self.error(kind, "seal", token))
    }

    pub(super) async fn raise(&self, client: &mut Client, token: Token) -> Result<Mark, ErrorKind> {
        // One message is one transaction: there is nothing to roll back.
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT palisade_fence.seal({}, {token})",
            literal(&self.resource)
        );
        let messages = client.simple_query(&sql).await.map_err(|error| kind(error, true))?;
        let seq = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        match seq.map(Seq::new) {
            Some(Ok(seq)) => Ok(Mark { token, seq }),
            _ => Err(ErrorKind::misuse("what is installed as palisade_fence does not answer as it should")),
        }
    }

    /// Reads the mark, for reports: a seal may raise it at any time. `None` if the resource was never sealed.
    ///
    /// # Errors
    ///
    /// The database cannot be reached, or the schema is not there.
    pub async fn mark(&self, client: &Client) -> Result<Option<Mark>, Error> {
        let failed = |kind| Error::new(kind, self.name(), "read the mark of");
        let sql = "SELECT token, seq FROM palisade_fence.mark($1)";
        let row = client.query_opt(sql, &[&&*self.resource]).await.map_err(|error| failed(kind(error, false)))?;
        let number = |row: &tokio_postgres::Row, at| u64::try_from(row.try_get::<_, i64>(at).ok()?).ok();
        let Some(row) = row else { return Ok(None) };
        let token = number(&row, 0).and_then(|number| Token::new(number).ok());
        let seq = number(&row, 1).and_then(|number| Seq::new(number).ok());
        match (token, seq) {
            (Some(token), Some(seq)) => Ok(Some(Mark { token, seq })),
            _ => Err(failed(ErrorKind::misuse(
                "palisade_fence.marks has an invalid token: another program has changed it; restore the row",
            ))),
        }
    }

    /// Begins a transaction under the token, in one round trip. All that is read and written in it is under the seal.
    ///
    /// # Cancellation
    ///
    /// It is rolled back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: a newer token has sealed it. [`ErrorKind::NotSealed`]: this one has not. The database
    /// cannot be reached.
    pub async fn transaction<'c>(&self, client: &'c mut Client, token: Token) -> Result<Transaction<'c>, Error> {
        let admit = format!("admit({}, '{token}')", literal(&self.resource));
        let failed = |error| self.error(kind(error, false), "write", token);
        Transaction::begin(client, &self.name(), token, &admit).await.map_err(failed)
    }

    /// Shows the token on a connection until the guard is dropped, in one round trip. Each statement in between is a
    /// separate transaction without further messages: the cheapest fenced write. The trigger does the check, so the table
    /// must be [protected](super::protect). **Without the trigger nothing is checked.** Reads are not checked, and neither
    /// is this call: a stale token is refused when it writes.
    ///
    /// Only on a direct connection to the database. Behind a pooler that gives each transaction another connection (PgBouncer
    /// in transaction mode), transactions of other clients would show this token: use [`execute`](Fence::execute) there.
    ///
    /// ```no_run
    /// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade_fence::{Token, postgres::Fence};
    /// # let (fence, token) = (Fence::new("orders")?, Token::new(34)?);
    /// let update = client.prepare("UPDATE orders SET total = $1 WHERE id = $2").await?;
    /// let orders = fence.under(client, token).await?;
    /// for id in 1..=10 {
    ///     orders.execute(&update, &[&0_i64, &id]).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// The token is not shown.
    ///
    /// # Errors
    ///
    /// The database cannot be reached.
    pub async fn under<'c>(&self, client: &'c mut Client, token: Token) -> Result<Under<'c>, Error> {
        Under::begin(client, self.name(), token).await
    }

    /// Returns whether a table has the trigger for this resource, so that [`execute`](Fence::execute) and
    /// [`under`](Fence::under) are checked there. Call it once, when the program starts. The table's name is parsed as in SQL.
    ///
    /// # Errors
    ///
    /// There is no such table; the database cannot be reached.
    pub async fn is_protecting(&self, client: &Client, table: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = $1::text::regclass \
                   AND t.tgname = 'palisade_fence' AND t.tgenabled IN ('O', 'A') AND pg_catalog.convert_from(pg_catalog.substring(\
                   t.tgargs, 1, pg_catalog.position(t.tgargs, '\\x00'::bytea) - 1), pg_catalog.getdatabaseencoding()) = $2)";
        let row = client.query_one(sql, &[&table, &&*self.resource]).await;
        let failed = |error| Error::new(kind(error, false), self.name(), "read the trigger of");
        row.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Runs one statement in a separate transaction, in one round trip, and returns the number of changed rows. The trigger
    /// does the check, so the table must be [protected](super::protect). **Without the trigger nothing is checked**: call
    /// [`is_protecting`](Fence::is_protecting), or use [`transaction`](Fence::transaction), which needs no trigger.
    ///
    /// The token is shown until the end of the transaction, so a pooler may then give the connection to another client. This
    /// takes three messages, sent at once, where a plain statement takes one. [`under`](Fence::under) costs less for frequent
    /// writes on a direct connection.
    ///
    /// # Cancellation, and on connection loss
    ///
    /// It may have been applied, or may still be.
    ///
    /// # Errors
    ///
    /// Those of [`Fence::transaction`]. [`ErrorKind::Rejected`]: the database does not accept the statement.
    pub async fn execute(
        &self,
        client: &mut Client,
        token: Token,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        let begin = format!("BEGIN; SET LOCAL palisade_fence.token = '{token}'");
        // All three are sent before the first reply. After a failure the server skips the rest, and COMMIT rolls back.
        let (begun, done, ended) = join3(
            client.batch_execute(&begin),
            client.execute(statement, parameters),
            client.batch_execute("COMMIT"),
        )
        .await;
        let changed = begun.and(done).and_then(|rows| ended.map(|()| rows));
        changed.map_err(|error| self.error(kind(error, true), "write", token))
    }

    pub(super) fn resource(&self) -> &str {
        &self.resource
    }

    fn name(&self) -> String {
        format!("postgres {}", self.resource)
    }

    fn error(&self, kind: ErrorKind, operation: &'static str, token: Token) -> Error {
        Error::new(kind, self.name(), operation).under(token)
    }
}

/// Checks a resource's name.
pub(super) fn checked<'n>(name: &'n str, operation: &'static str) -> Result<&'n str, Error> {
    match check_name(name, LONGEST_NAME) {
        Ok(()) => Ok(name),
        Err(what) => Err(Error::new(ErrorKind::misuse(what), name.chars().take(40).collect::<String>(), operation)),
    }
}

/// Quotes a text for SQL, independent of `standard_conforming_strings`.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!(" E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}
