//! The schema: its version, and its installation.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::error::message;
use crate::engine::remote::ConnectError;
use crate::engine::sql_text::is_usable;

/// The SQL of the schema, for `psql`. It can be run again at any time.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The version of the schema that this build installs and needs.
const VERSION: i32 = 2;

/// Installs the schema if it is missing, and checks that this build can use it and that the data are not a copy. Returns the
/// identity of the data.
pub(super) async fn install_if_missing(client: &Client) -> Result<String, ConnectError> {
    if !is_current(client).await? {
        install(client).await?;
        if !is_current(client).await? {
            return Err(ConnectError::permanent(
                "the schema 'palisade' was installed, but cannot be found".to_owned(),
            ));
        }
    }
    let sql = "SELECT cluster::text, origin = palisade.origin() FROM palisade.state";
    match client.query_typed_one(sql, &[]).await {
        Ok(row) if row.try_get(1)? => Ok(row.try_get(0)?),
        Ok(_) => Err(ConnectError::permanent(
            "these locks are a copy, from a restored dump or a copied database, and their tokens may be given twice; \
             SELECT palisade.accept_copy(above), with the highest token that any resource has seen (`palisade fence check` \
             shows it), ends all sessions of the copy and gives only higher tokens"
                .to_owned(),
        )),
        Err(error) => Err(unusable(error)),
    }
}

/// Whether the schema has the version of this build, or a newer one that it can use.
async fn is_current(client: &Client) -> Result<bool, ConnectError> {
    let exists = client.query_typed_one("SELECT to_regclass('palisade.version') IS NOT NULL", &[]).await;
    if !exists.map_err(unusable)?.try_get::<_, bool>(0)? {
        return Ok(false);
    }
    let row =
        client.query_typed_opt("SELECT version, usable_from FROM palisade.version", &[]).await.map_err(unusable)?;
    let Some(row) = row else { return Ok(false) };
    let replace = "to replace it, run palisade engine postgres schema | psql and do what its error says";
    is_usable("the schema 'palisade'", (row.try_get(0)?, row.try_get(1)?), VERSION, replace)
}

async fn install(client: &Client) -> Result<(), ConnectError> {
    match client.batch_execute(SCHEMA).await {
        Ok(()) => Ok(()),
        Err(error) => {
            // End the failed transaction, so that later statements can run.
            drop(client.batch_execute("ROLLBACK").await);
            match error.code() {
                Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => Err(ConnectError::permanent(format!(
                    "the schema 'palisade' is not installed, and this role has no right to install it ({}); run as a role \
                     with the right: palisade engine postgres schema | psql",
                    message(&error)
                ))),
                Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Err(ConnectError::transient(
                    "it is a standby, or read-only, and the schema 'palisade' is not installed; connect to the primary"
                        .to_owned(),
                )),
                _ => Err(error.into()),
            }
        }
    }
}

fn unusable(error: tokio_postgres::Error) -> ConnectError {
    match error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        true => ConnectError::permanent(format!(
            "this role has no right to use the locks ({}); the role that installed them can allow it: SELECT palisade.allow('role')",
            message(&error)
        )),
        false => error.into(),
    }
}
