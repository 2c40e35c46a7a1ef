//! The schema `palisade_fence`.

use tokio_postgres::Client;

use super::error::kind;
use super::fence::{checked, literal};
use crate::Error;

/// The SQL of the schema `palisade_fence`: one transaction, for PostgreSQL 13 and newer. Running it again changes
/// nothing, running a newer one upgrades.
pub const INSTALL: &str = include_str!("install.sql");

/// Installs the schema `palisade_fence`, or upgrades it. Needs CREATE on the database; what uses it needs only
/// `GRANT USAGE ON SCHEMA palisade_fence` and `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence`.
///
/// # Errors
///
/// A newer version is installed, the role may not create it, or the server cannot be reached.
pub async fn install(client: &mut Client) -> Result<(), Error> {
    run(client, INSTALL, "palisade_fence", "install").await
}

/// Puts the trigger on a table: from then on it is written under this resource's mark only. Again with another
/// resource: under that one's. The name of the table is taken as SQL takes it: `orders`, `shop.orders`, `"Orders"`.
///
/// # Errors
///
/// The name is not a resource's, there is no such table, or it is not the role's own.
pub async fn protect(client: &mut Client, table: &str, resource: &str) -> Result<(), Error> {
    let sql = format!("BEGIN; {}; COMMIT", protect_sql(table, resource)?);
    run(client, &sql, table, "protect").await
}

/// The SQL that [`protect`] runs.
///
/// # Errors
///
/// The name is not a resource's, or the table's holds a NUL.
pub fn protect_sql(table: &str, resource: &str) -> Result<String, Error> {
    let resource = checked(resource, "protect")?;
    Ok(format!("SELECT palisade_fence.protect({}, {})", literal(table), literal(resource)))
}

/// Runs a transaction; a failed one is left.
async fn run(client: &mut Client, sql: &str, what: &str, operation: &'static str) -> Result<(), Error> {
    let result = client.batch_execute(sql).await;
    if let Err(error) = result {
        // It has failed already; a connection that is gone has no transaction.
        let _ = client.batch_execute("ROLLBACK").await;
        return Err(Error::new(kind(error, true), format!("postgres {what}"), operation));
    }
    Ok(())
}
