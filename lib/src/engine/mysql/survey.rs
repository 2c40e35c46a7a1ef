//! The settings of a server that the engine's promises depend on, for `palisade doctor`.

use mysql_async::Row;
use mysql_async::prelude::Queryable;

use super::connection::{CALL_TIMEOUT, dial};
use super::wire::{number, text};
use super::{Config, schema};
use crate::engine::Failure;
use crate::engine::remote::{ConnectError, within};
use crate::engine::sql_text::bytes;

/// The settings of a server that the engine's promises depend on.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The version as the server writes it: `10.11.14-MariaDB`, `8.0.40`.
    pub version: String,
    /// Whether the server is read-only, as a replica is, so that it cannot grant locks.
    pub is_read_only: bool,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush_log: u64,
    /// `sync_binlog`, if there is a binary log.
    pub sync_binlog: Option<u64>,
    /// `binlog_format`, if there is a binary log.
    pub binlog_format: Option<String>,
    /// Tables `palisade_…` in another storage engine than InnoDB.
    pub foreign_tables: Vec<String>,
    /// The version of the schema; `None` if it is not installed.
    pub installed: Option<u64>,
    /// Inconsistencies in the tables, as `CALL palisade_check()` reports them, each with its lock.
    pub contradictions: Vec<String>,
    /// The user of the connection.
    pub user: String,
}

/// Reads the settings of a server, over a separate connection.
///
/// # Errors
///
/// The server cannot be reached, or does not answer.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    let read = async {
        let mut conn = dial(&config.opts()?).await?;
        let settings = "SELECT VERSION(), @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, \
             @@global.sync_binlog, @@global.binlog_format, CURRENT_USER()";
        let row: Option<Row> = conn.query_first(settings).await?;
        let row = row.ok_or_else(|| ConnectError::transient("a reply without a row"))?;
        let foreign = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND \
             LEFT(table_name, 9) = 'palisade_' AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'";
        let foreign_tables = conn.query(foreign).await?;
        // Tables that this user cannot read count as not installed.
        let installed = conn.query_first("SELECT version FROM palisade_version").await.unwrap_or(None);
        let contradictions = match installed {
            // Earlier versions have no such procedure.
            Some(version) if version >= schema::VERSION as u64 => {
                conn.query("CALL palisade_check()").await?.iter().map(contradiction).collect()
            }
            _ => Vec::new(),
        };
        drop(conn.disconnect().await);
        let has_binlog = number(&row, 3) == Some(1);
        Ok(Survey {
            version: text(&row, 0).unwrap_or_default(),
            is_read_only: number(&row, 1) == Some(1),
            flush_log: number(&row, 2).unwrap_or(0),
            sync_binlog: number(&row, 4).filter(|_| has_binlog),
            binlog_format: text(&row, 5).filter(|_| has_binlog),
            foreign_tables,
            installed,
            contradictions,
            user: text(&row, 6).unwrap_or_default(),
        })
    };
    within(CALL_TIMEOUT, read).await.map_err(|error| error.at(&config.peer()).failure(false))
}

/// `PROBLEM, LOCK IN HEX, DETAIL`.
fn contradiction(row: &Row) -> String {
    let [problem, hex, detail] = [0, 1, 2].map(|column| text(row, column).unwrap_or_default());
    let lock = bytes(&hex).unwrap_or_default().escape_ascii().to_string();
    format!("{problem}: '{lock}', {detail}")
}
