//! MySQL and MariaDB.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as MysqlError, Pool};

use super::{CONNECT, Call, bounded, named, parse_url, within};
use crate::engine::mysql::{Config, error};
use crate::engine::remote::ConnectError;
use crate::{Error, ErrorKind};

const ENGINE: &str = "mysql";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings that the statements are written for: a statement reads what others have committed before it, and times are those of UTC.
const SETTINGS: &str = "SET SESSION innodb_lock_wait_timeout = 5, autocommit = 1, time_zone = '+00:00', \
     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// A MySQL or MariaDB database. Opens connections as they are needed, and replaces those that break.
///
/// ```no_run
/// # async fn f() -> Result<(), palisade::Error> {
/// use palisade::recipe::store::Mysql;
/// let database = Mysql::connect("mysql://app@db.example/shop").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mysql(Arc<Shared>);

struct Shared {
    config: Config,
    pool: Pool,
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mysql({})", self.0.config.peer())
    }
}

impl Mysql {
    /// Connects. The URL is that of the [engine](crate::engine::mysql::Config::parse).
    ///
    /// # Errors
    ///
    /// The URL is invalid; the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Mysql, Error> {
        let config = parse_url(url, ENGINE, &["mysql"], |_, rest| Config::parse(rest))?;
        let opts = config.opts().map_err(|error| Error::new(error.failure(false).into(), ENGINE, CONNECT))?;
        let mysql = Mysql(Arc::new(Shared { config, pool: Pool::new(opts) }));
        drop(mysql.connection(CONNECT, "").await?);
        Ok(mysql)
    }

    /// Returns a connection of the pool, without an open transaction.
    pub(crate) async fn connection(&self, operation: &'static str, key: &str) -> Result<Conn, Error> {
        let connect = async {
            let mut conn = self.0.pool.get_conn().await?;
            conn.query_drop(SETTINGS).await?;
            conn.query_drop(ISOLATION).await?;
            Ok::<_, ConnectError>(conn)
        };
        let failed = |error: ConnectError| {
            named(Error::new(error.at(&self.0.config.peer()).failure(false).into(), ENGINE, operation), key)
        };
        within(CONNECT_TIMEOUT, connect).await.map_err(failed)
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
    pub(crate) fn error(&self, error: MysqlError, is_committing: bool, operation: &'static str, key: &str) -> Error {
        let peer = self.0.config.peer();
        let is_answer = matches!(error, MysqlError::Server(_));
        let kind = match error::is_denied(&error) {
            true => ErrorKind::Denied { what: format!("{peer}: {}", error::message(&error)) },
            false => ConnectError::from(error).at(&peer).failure(is_committing && !is_answer).into(),
        };
        Error::new(kind, ENGINE, operation).on(key)
    }
}

pub(crate) use error::{is_contention, is_missing};
