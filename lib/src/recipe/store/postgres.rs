//! PostgreSQL.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error as PgError};

use super::{CONNECT, Call, bounded, named, parse_url, within};
use crate::engine::postgres::connection::dial_shared;
use crate::engine::postgres::{Config, error};
use crate::engine::remote::ConnectError;
use crate::{Error, ErrorKind};

const ENGINE: &str = "postgres";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The advisory lock of clients that create tables. The number only has to differ from those of other applications.
const CREATE_LOCK: i64 = 0x7061_6c69_7361_6465;
/// Connections beyond these are closed after their use.
const MAX_IDLE: usize = 16;

/// A record counts only once it is on disk. The isolation level is the one that the statements are written for.
const SETTINGS: &str = "SET synchronous_commit = on; SET lock_timeout = '10s'; SET statement_timeout = '30s'; \
     SET idle_in_transaction_session_timeout = '60s'; SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off";

/// A PostgreSQL database. Opens connections as they are needed, and replaces those that break.
///
/// ```no_run
/// # async fn f() -> Result<(), palisade::Error> {
/// use palisade::recipe::store::Postgres;
/// let database = Postgres::connect("postgres://app@db.example/shop").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres(Arc<Pool>);

struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.0.config.peer())
    }
}

impl Postgres {
    /// Connects. The URL is that of the [engine](crate::engine::postgres::Config::parse).
    ///
    /// # Errors
    ///
    /// The URL is invalid; the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Postgres, Error> {
        let config = parse_url(url, ENGINE, &["postgres", "postgresql"], |_, rest| Config::parse(rest))?;
        let postgres = Postgres(Arc::new(Pool { config, idle: Mutex::default() }));
        postgres.connection(CONNECT, "").await?.keep();
        Ok(postgres)
    }

    /// Returns an idle connection, or a new one.
    pub(crate) async fn connection(&self, operation: &'static str, key: &str) -> Result<Connection<'_>, Error> {
        let idle = || self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(client) = idle() {
            if !client.is_closed() {
                return Ok(Connection { postgres: self, client });
            }
        }
        let connect = async {
            let client = dial_shared(&self.0.config).await?;
            client.batch_execute(SETTINGS).await?;
            Ok::<_, ConnectError>(client)
        };
        match within(CONNECT_TIMEOUT, connect).await {
            Ok(client) => Ok(Connection { postgres: self, client }),
            Err(error) => {
                let failure = error.at(&self.0.config.peer()).failure(false);
                Err(named(Error::new(failure.into(), ENGINE, operation), key))
            }
        }
    }

    /// Creates the tables of a recipe, unless there is this one of them. Clients that find them missing at the same time wait for each
    /// other, and only the first creates them: `IF NOT EXISTS` alone fails in one of them, and creating an index that exists would
    /// wait for, and could deadlock with, those that already write.
    pub(crate) async fn create(
        &self,
        client: &Client,
        (schema, table): (&str, &str),
        (operation, key): (&'static str, &str),
    ) -> Result<(), Error> {
        let create = format!(
            "DO $create$ BEGIN
                 PERFORM pg_advisory_xact_lock({CREATE_LOCK});
                 IF to_regclass('{table}') IS NULL THEN {schema} END IF;
             END $create$"
        );
        client.batch_execute(&create).await.map_err(|error| self.error(error, false, operation, key))
    }

    /// Fails a call that takes too long.
    pub(crate) async fn bounded<T>(
        &self,
        call: Call<'_>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        bounded((ENGINE, &self.0.config.peer()), call, work).await
    }

    /// Classifies an error of a statement. `is_committing` tells whether the statement may have committed.
    pub(crate) fn error(&self, error: PgError, is_committing: bool, operation: &'static str, key: &str) -> Error {
        let peer = self.0.config.peer();
        let kind = match error.code() {
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                let what = format!(
                    "{peer}: {}. A role that may create tables can prepare them with `palisade engine postgres recipes`, and grant \
                     their use (docs/recipes/README.md)",
                    error::message(&error)
                );
                ErrorKind::Denied { what }
            }
            code => {
                let is_answer =
                    code.is_some_and(|code| !code.code().starts_with("57P0") && !code.code().starts_with("08"));
                ConnectError::from(error).at(&peer).failure(is_committing && !is_answer).into()
            }
        };
        Error::new(kind, ENGINE, operation).on(key)
    }
}

/// Whether a table is missing.
pub(crate) fn is_missing(error: &PgError) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}

/// A parameter with its type. A statement with types needs one round trip instead of two.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

pub(crate) fn text<T: ToSql + Sync>(value: &T) -> Param<'_> {
    (value, Type::TEXT)
}

pub(crate) fn bytes<T: ToSql + Sync>(value: &T) -> Param<'_> {
    (value, Type::BYTEA)
}

pub(crate) fn big(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

pub(crate) fn float(value: &f64) -> Param<'_> {
    (value, Type::FLOAT8)
}

/// PostgreSQL multiplies intervals by floating-point numbers. Those of a year in milliseconds are exact.
#[allow(clippy::cast_precision_loss, reason = "it is below 2^53")]
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_millis() as f64
}

/// A connection of the pool. Dropped without [`keep`](Connection::keep), it is closed, because a transaction may be open.
pub(crate) struct Connection<'a> {
    postgres: &'a Postgres,
    client: Client,
}

impl Connection<'_> {
    /// Puts the connection back.
    pub(crate) fn keep(self) {
        let mut idle = self.postgres.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.client.is_closed() && idle.len() < MAX_IDLE {
            idle.push(self.client);
        }
    }
}

impl Deref for Connection<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Connection<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
