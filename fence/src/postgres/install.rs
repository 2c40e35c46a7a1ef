//! The schema `palisade_fence`.

use tokio_postgres::{Client, Row};

use super::error::kind;
use super::fence::{checked, literal};
use crate::{Error, Problem};

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

/// Puts the trigger on a table with all of its partitions and children: from then on writes need the token of this resource's
/// mark. A second call can name another resource. The table's name is parsed as in SQL: `orders`, `shop.orders`, `"Orders"`.
///
/// # Errors
///
/// The name is not a resource's, there is no such table, or it is not the role's own; it cannot be protected, and the
/// message says why.
pub async fn protect(client: &mut Client, table: &str, resource: &str) -> Result<(), Error> {
    let sql = format!("BEGIN; {}; COMMIT", protect_sql(table, resource)?);
    run(client, &sql, table, "protect").await
}

/// Returns the problems with the protection of tables in this database. The role needs EXECUTE on `palisade_fence.check`.
///
/// # Errors
///
/// The schema is not there, the role may not look, or the server cannot be reached.
pub async fn problems(client: &Client) -> Result<Vec<Problem>, Error> {
    let rows = client.query("SELECT name, resource, problem, remedy FROM palisade_fence.check()", &[]).await;
    let problem = |row: &Row| {
        Ok(Problem {
            table: row.try_get(0)?,
            resource: row.try_get(1)?,
            what: row.try_get(2)?,
            remedy: row.try_get(3)?,
        })
    };
    let problems = rows.and_then(|rows| rows.iter().map(problem).collect());
    problems.map_err(|error| Error::new(kind(error, false), "postgres palisade_fence", "check"))
}

/// Returns the tables in this database that have row marks. The role needs EXECUTE on `palisade_fence.full_name`.
///
/// # Errors
///
/// The schema is not there, the role may not look, or the server cannot be reached.
pub async fn tables_with_row_marks(client: &Client) -> Result<Vec<String>, Error> {
    let sql = "SELECT DISTINCT palisade_fence.full_name(f.relation) FROM palisade_fence.fenced f WHERE f.resource IS NULL \
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = f.relation) ORDER BY 1";
    let rows = client.query(sql, &[]).await;
    let tables = rows.and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect());
    tables.map_err(|error| Error::new(kind(error, false), "postgres palisade_fence", "read the row marks in"))
}

/// Returns the SQL that [`protect`] runs.
///
/// # Errors
///
/// The name is not a resource's, or the table's holds a NUL.
pub fn protect_sql(table: &str, resource: &str) -> Result<String, Error> {
    let resource = checked(resource, "protect")?;
    Ok(format!("SELECT palisade_fence.protect({}, {})", literal(table), literal(resource)))
}

/// Runs a transaction, and rolls it back if it fails.
async fn run(client: &mut Client, sql: &str, what: &str, operation: &'static str) -> Result<(), Error> {
    let result = client.batch_execute(sql).await;
    if let Err(error) = result {
        // Best effort: a broken connection has no transaction to roll back.
        let _ = client.batch_execute("ROLLBACK").await;
        return Err(Error::new(kind(error, true), format!("postgres {what}"), operation));
    }
    Ok(())
}
