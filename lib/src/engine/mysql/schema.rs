//! The tables and procedures: their version, and their installation.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};

use super::error::{is_denied, is_missing, message};
use crate::engine::remote::ConnectError;
use crate::engine::sql_text::is_usable;

/// The SQL of all tables and procedures, for the shells `mysql` and `mariadb`. It can be run again at any time.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The version of the schema that this build installs and needs.
pub(super) const VERSION: i32 = 4;

/// Returns the identity of the data if this build can use the installed schema. This is the usual case, and takes one query.
pub(super) async fn usable(conn: &mut Conn) -> Option<String> {
    let query = "SELECT v.version, v.usable_from, s.cluster FROM palisade_version v, palisade_state s";
    let (version, usable_from, cluster): (i32, i32, String) = conn.query_first(query).await.ok()??;
    (version >= VERSION && usable_from <= VERSION).then_some(cluster)
}

/// Installs the schema if it is missing, and checks that this build can use it. Returns the identity of the data.
pub(super) async fn install_if_missing(conn: &mut Conn) -> Result<String, ConnectError> {
    if !is_current(conn).await? {
        install(conn).await?;
        if !is_current(conn).await? {
            return Err(ConnectError::permanent("the tables palisade_… were installed, but cannot be found"));
        }
    }
    let cluster = conn.query_first("SELECT cluster FROM palisade_state").await.map_err(unusable)?;
    cluster.ok_or_else(|| ConnectError::permanent("the row of palisade_state is gone; run the schema again"))
}

/// Whether the schema has the version of this build, or a newer one that it can use.
async fn is_current(conn: &mut Conn) -> Result<bool, ConnectError> {
    let row = match conn.query_first("SELECT version, usable_from FROM palisade_version").await {
        Ok(row) => row,
        Err(error) if is_missing(&error) => return Ok(false),
        Err(error) => return Err(unusable(error)),
    };
    let Some(found) = row else { return Ok(false) };
    let replace = "drop the tables of the locks (palisade_version, _state, _session, _lock, _claim, _block, _notice, _event, \
         _watched) when no client uses them, and connect again";
    is_usable("the schema palisade_…", found, VERSION, replace)
}

/// The statements of the schema, which a shell would run one after the other.
fn statements() -> impl Iterator<Item = &'static str> {
    let lines = SCHEMA.split_once("DELIMITER $$").map_or("", |(_, rest)| rest);
    let lines = lines.split_once("DELIMITER ;").map_or(lines, |(lines, _)| lines);
    lines.split("$$\n").map(str::trim).filter(|statement| !statement.is_empty())
}

/// Installs the schema, under a lock of MySQL (GET_LOCK): of two clients, the second one finds it installed. The names of such
/// locks are shared by all databases of a server, so the name contains the database.
async fn install(conn: &mut Conn) -> Result<(), ConnectError> {
    conn.query_drop("DO GET_LOCK(CONCAT('palisade_', MD5(DATABASE())), 8)").await?;
    let done = match is_current(conn).await {
        Ok(false) => run(conn).await,
        done => done.map(drop),
    };
    // It was acquired here, and once more by the schema if that failed halfway.
    let release = "RELEASE_LOCK(CONCAT('palisade_', MD5(DATABASE())))";
    conn.query_drop(format!("DO {release}, {release}")).await?;
    done
}

async fn run(conn: &mut Conn) -> Result<(), ConnectError> {
    for statement in statements() {
        if let Err(error) = conn.query_drop(statement).await {
            return Err(match is_denied(&error) {
                true => ConnectError::permanent(format!(
                    "the tables palisade_… are not installed, and this user has no right to install them ({}); run as a \
                     user with the rights: palisade engine mysql schema | mysql database",
                    message(&error)
                )),
                false => error.into(),
            });
        }
    }
    Ok(())
}

fn unusable(error: Error) -> ConnectError {
    match is_denied(&error) {
        true => ConnectError::permanent(format!(
            "this user has no right to use the locks ({}); they need EXECUTE on the database and SELECT on its tables palisade_…",
            message(&error)
        )),
        false => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_splits_into_single_statements() {
        assert!(statements().count() > 50);
        for statement in statements() {
            let code: Vec<_> = statement.lines().filter(|line| !line.starts_with("--")).collect();
            let words = ["SET", "DO", "CREATE", "DROP", "INSERT", "CALL"];
            let first = code.iter().find(|line| !line.trim().is_empty()).copied().unwrap_or("");
            assert!(words.iter().any(|word| first.starts_with(word)), "{statement}");
            assert!(!statement.contains("$$") && !statement.contains("DELIMITER"), "{statement}");
        }
    }

    /// Variables belong to the connection, which an application or a fence may share.
    #[test]
    fn no_procedure_keeps_anything_in_a_variable_of_the_connection() {
        assert!(!SCHEMA.contains('@'));
    }
}
