//! The settings of a PostgreSQL server that the engine's promises depend on.

use std::pin::pin;

use super::connection::dial;
use super::{Config, pooler};
use crate::engine::Failure;
use crate::engine::remote::ConnectError;

/// The settings of a PostgreSQL server that the engine's promises depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// The version as the server writes it.
    pub version: String,
    /// The version as a number, like 150006.
    pub version_number: i32,
    /// Whether it is a standby, which cannot grant locks.
    pub is_standby: bool,
    /// Whether there is a pooler that gives each transaction another connection.
    pub is_pooled: bool,
    /// Whether commits are flushed to the disk: `fsync`.
    pub fsync: bool,
    /// Whether pages that a power cut tears can be repaired: `full_page_writes`.
    pub full_page_writes: bool,
    /// The setting `synchronous_commit`: which disks a commit waits for.
    pub synchronous_commit: String,
    /// The setting `synchronous_standby_names`: which standbys a commit waits for.
    pub synchronous_standbys: String,
    /// The number of standbys; `None` if this role cannot read it.
    pub standbys: Option<i64>,
    /// The role.
    pub role: String,
    /// Whether the role could install or upgrade the schema.
    pub may_install: bool,
    /// The version of the schema; `None` if it is not installed.
    pub schema: Option<i32>,
    /// Inconsistencies in the tables, as `palisade.check()` reports them; empty if this role may not call it.
    pub contradictions: Vec<String>,
}

const QUERY: &str = "SELECT current_setting('server_version'), current_setting('server_version_num')::integer, \
     pg_is_in_recovery(), current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean, \
     current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_user::text, \
     has_database_privilege(current_database(), 'CREATE'), to_regclass('palisade.version') IS NOT NULL, \
     (SELECT count(*) FROM pg_stat_replication)";

/// Reads the settings of a server, over a separate connection.
///
/// # Errors
///
/// The server cannot be reached, or refuses this client.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    let read = async {
        let dialed = dial(config, |_| ()).await?;
        let mut driver = pin!(dialed.driver);
        tokio::select! {
            found = read_settings(&dialed.client, dialed.local, config) => found,
            error = &mut driver => Err(error),
        }
    };
    read.await.map_err(|error: ConnectError| error.at(&config.peer()).failure(false))
}

async fn read_settings(
    client: &tokio_postgres::Client,
    local: Option<std::net::SocketAddr>,
    config: &Config,
) -> Result<Survey, ConnectError> {
    let row = client.query_typed_one(QUERY, &[]).await?;
    let schema = match row.try_get(9)? {
        true => {
            let version = client.query_typed_opt("SELECT version FROM palisade.version", &[]).await?;
            version.map(|row| row.try_get(0)).transpose()?
        }
        false => None,
    };
    let contradictions = match schema {
        // It fails with another version of the schema, or without rights. Connecting reports both.
        Some(_) => client.query_typed("SELECT palisade.check()", &[]).await.unwrap_or_default(),
        None => Vec::new(),
    };
    Ok(Survey {
        version: row.try_get(0)?,
        version_number: row.try_get(1)?,
        is_standby: row.try_get(2)?,
        is_pooled: pooler::is_between(client, local, config).await?,
        fsync: row.try_get(3)?,
        full_page_writes: row.try_get(4)?,
        synchronous_commit: row.try_get(5)?,
        synchronous_standbys: row.try_get(6)?,
        standbys: row.try_get(10)?,
        role: row.try_get(7)?,
        may_install: row.try_get(8)?,
        schema,
        contradictions: contradictions.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?,
    })
}
