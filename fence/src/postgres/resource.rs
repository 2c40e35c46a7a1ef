//! A database as a resource with numbered writes.

use std::fmt;
use std::str::FromStr;

use palisade_core::Token;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Row, Socket};

use super::change::{Change, Kind, Sql, Step};
use super::connections::Connections;
use super::error::{kind, kind_of_failed, stored};
use super::fence::literal;
use super::{Fence, Transaction};
use crate::{Error, ErrorKind, Mark, Pass, Resource, Sealed};

/// The data in a database under one mark, read and changed by SQL, in numbered writes. Has a pool of connections, and
/// reconnects when they break. A write takes no more round trips than the same transaction without a fence.
#[derive(Clone)]
pub struct Postgres {
    fence: Fence,
    address: String,
    connections: Connections,
}

impl Postgres {
    /// Connects to a database in which the schema is [installed](super::install). The URL is libpq's, or its
    /// `key=value` form; `tls` is a connector of your choice, or `NoTls`. Needs a Tokio runtime, here and later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`]: the name or the URL is invalid, or the schema is not installed. The database
    /// cannot be reached.
    pub async fn connect<T>(url: &str, tls: T, resource: &str) -> Result<Postgres, Error>
    where
        T: MakeTlsConnect<Socket, Stream: Send, TlsConnect: Send> + Clone + Send + Sync + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
        T::Stream: 'static,
    {
        let fence = Fence::new(resource)?;
        // The driver's error may quote the URL, which has passwords in it.
        let what = "this is no PostgreSQL URL; it looks like postgres://user:password@host:5432/database";
        let bad = |_| Error::new(ErrorKind::misuse(what), resource, "open");
        let config = Config::from_str(url).map_err(bad)?;
        let address = address(&config);
        let postgres = Postgres { fence, address, connections: Connections::to(config, tls) };
        let client = postgres.client("open").await?;
        postgres.fence.mark(&client).await?;
        postgres.connections.keep(client);
        Ok(postgres)
    }

    async fn client(&self, operation: &'static str) -> Result<Client, Error> {
        self.connections.take().await.map_err(|error| Error::new(kind(error, false), self.name(), operation))
    }

    /// Queries in a transaction under this pass.
    async fn query(&self, client: &mut Client, pass: &Pass, query: &Sql) -> Result<Vec<Row>, ErrorKind> {
        let not_done = |error| kind(error, false);
        let admit = format!("admit({}, '{}')", literal(self.fence.resource()), pass.token);
        let (begun, statement) =
            Transaction::begin_preparing(client, pass.token, &admit, &query.text).await.map_err(not_done)?;
        begun.query_and_commit(&statement.map_err(not_done)?, &query.bound()).await.map_err(not_done)
    }

    /// Runs one statement in a transaction under this pass. Most statements change one row, so that outcome is stored
    /// together with the admission. Only another outcome takes one more statement.
    async fn execute(&self, client: &mut Client, pass: &Pass, sql: &Sql) -> Result<Option<Vec<u8>>, ErrorKind> {
        const EXPECTED: &str = "1";
        let admit = self.admit_write(pass, &literal(EXPECTED));
        let (begun, statement) = match Transaction::begin_preparing(client, pass.token, &admit, &sql.text).await {
            Ok(begun) => begun,
            Err(error) => return stored(&error).ok_or_else(|| kind(error, false)),
        };
        let not_done = |error| kind(error, false);
        let statement = statement.map_err(not_done)?;
        let rows = begun.execute(&statement, &sql.bound()).await.map_err(not_done)?.to_string();
        // Closed in this transaction: behind a pooler the next transaction may use another connection.
        drop(statement);
        match rows == EXPECTED {
            true => begun.end("COMMIT").await.map_err(|error| kind(error, true))?,
            false => self.end(begun, rows.as_bytes()).await?,
        }
        Ok(Some(rows.into_bytes()))
    }

    /// Runs a closure in a transaction under this pass.
    async fn work(
        &self,
        client: &mut Client,
        pass: &Pass,
        work: &(dyn for<'t> Fn(&'t Transaction<'_>) -> Step<'t> + Send + Sync),
    ) -> Result<Option<Vec<u8>>, ErrorKind> {
        let begun = match Transaction::begin(client, "", pass.token, &self.admit_write(pass, "''")).await {
            Ok(begun) => begun,
            Err(error) => return stored(&error).ok_or_else(|| kind(error, false)),
        };
        let outcome = work(&begun).await.map_err(kind_of_failed)?;
        self.end(begun, &outcome).await?;
        Ok(Some(outcome))
    }

    /// Uses the number up without a write, in one round trip, or returns its stored outcome.
    async fn use_up_number(&self, client: &mut Client, pass: &Pass) -> Result<Option<Vec<u8>>, ErrorKind> {
        let sql = format!("SELECT palisade_fence.{}", self.admit_write(pass, "NULL"));
        match client.batch_execute(&sql).await {
            Ok(()) => Ok(None),
            Err(error) => stored(&error).ok_or_else(|| kind(error, true)),
        }
    }

    /// Returns the call that admits a write, with its expected outcome as an SQL literal. Numbers are in quotes, because
    /// PostgreSQL parses those directly as the parameter's type and would have to convert others.
    fn admit_write(&self, pass: &Pass, expected: &str) -> String {
        let resource = literal(self.fence.resource());
        format!("admit_write({resource}, '{}', '{}', '{}', {expected})", pass.token, pass.seq, pass.author)
    }

    /// Stores the outcome of a write, and commits it.
    async fn end(&self, begun: Transaction<'_>, outcome: &[u8]) -> Result<(), ErrorKind> {
        let resource = literal(self.fence.resource());
        let commit = format!("SELECT palisade_fence.outcome({resource}, decode('{}', 'hex')); COMMIT", hex(outcome));
        begun.end(&commit).await.map_err(|error| kind(error, true))
    }

    /// Puts a connection back after its use, unless it is broken.
    fn used<T>(
        &self,
        client: Client,
        done: Result<T, ErrorKind>,
        operation: &'static str,
        token: Token,
    ) -> Result<T, Error> {
        if !client.is_closed() {
            self.connections.keep(client);
        }
        done.map_err(|kind| Error::new(kind, self.name(), operation).under(token))
    }
}

impl Resource for Postgres {
    type Query = Sql;
    type Answer = Vec<Row>;
    type Change = Change;
    type Outcome = Vec<u8>;

    fn name(&self) -> String {
        format!("postgres {} on {}", self.fence.resource(), self.address)
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let mut client = self.client("seal").await.map_err(|error| error.under(token))?;
        let sealed = self.fence.raise(&mut client, token).await;
        self.used(client, sealed, "seal", token)
    }

    async fn read(&self, pass: &Pass, query: Sql) -> Result<Vec<Row>, Error> {
        let mut client = self.client("read").await.map_err(|error| error.under(pass.token))?;
        let rows = self.query(&mut client, pass, &query).await;
        self.used(client, rows, "read", pass.token)
    }

    async fn write(&self, pass: &Pass, change: Option<Change>) -> Result<Option<Vec<u8>>, Error> {
        let mut client = self.client("write").await.map_err(|error| error.under(pass.token))?;
        let outcome = match change.map(|change| change.0) {
            Some(Kind::Statement(sql)) => self.execute(&mut client, pass, &sql).await,
            Some(Kind::Work(work)) => self.work(&mut client, pass, &*work).await,
            None => self.use_up_number(&mut client, pass).await,
        };
        self.used(client, outcome, "write", pass.token)
    }
}

crate::sealable!(Postgres);

impl Sealed<Postgres> {
    /// Reads rows, unless a newer token has sealed the resource. See [`Sealed::read`].
    ///
    /// # Errors
    ///
    /// Those of [`Sealed::read`].
    pub async fn query(&self, sql: Sql) -> Result<Vec<Row>, Error> {
        self.read(sql).await
    }

    /// Runs one statement as one numbered write, and returns the number of changed rows. See [`Sealed::write`].
    ///
    /// # Errors
    ///
    /// Those of [`Sealed::write`].
    pub async fn execute(&mut self, sql: Sql) -> Result<u64, Error> {
        let outcome = self.write(sql.into()).await?;
        let rows = str::from_utf8(&outcome).ok().and_then(|text| text.parse().ok());
        let strange = || {
            Error::new(
                ErrorKind::misuse("what is stored as the outcome is not ours"),
                self.resource().name(),
                "write",
            )
        };
        rows.ok_or_else(strange)
    }

    /// Runs the closure as one numbered write, and returns its result. See [`Sealed::write`] and
    /// [`Change::new`].
    ///
    /// # Errors
    ///
    /// Those of [`Sealed::write`].
    pub async fn transaction(
        &mut self,
        work: impl for<'t> Fn(&'t Transaction<'_>) -> Step<'t> + Send + Sync + 'static,
    ) -> Result<Vec<u8>, Error> {
        self.write(Change::new(work)).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Returns the address for messages, `db:5432/shop`, without the password.
fn address(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{host}:{port}/{}", config.get_dbname().or(config.get_user()).unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
