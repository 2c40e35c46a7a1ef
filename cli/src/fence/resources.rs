//! The resources of a store, for `palisade fence check` without a RESOURCE.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use palisade_fence::mysql::options;
use rusqlite::{Connection, OpenFlags};

use crate::outcome::Failure;
use crate::stores::path;
use crate::stores::postgres::Connector;
use crate::text::plain;

/// How long to wait for the list, which only helps.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many resources a message names.
const NAMED: usize = 20;

/// Says that RESOURCE is missing, and which resources are sealed in the store.
pub(super) async fn missing(scheme: &str, store: &str) -> Failure {
    let listed = tokio::time::timeout(PATIENCE, list(scheme, store)).await.ok().flatten();
    let known = match listed.as_deref() {
        _ if scheme.starts_with("redis") => "; to list them: redis-cli --scan --pattern 'palisade:{*}'".to_owned(),
        None => String::new(),
        Some([]) => "; nothing has been sealed there yet".to_owned(),
        Some(names) => {
            let more = names.len().checked_sub(NAMED).filter(|more| *more > 0);
            let more = more.map(|_| ", …").unwrap_or_default();
            let names: Vec<_> = names.iter().take(NAMED).map(|name| plain(name)).collect();
            format!("; sealed there: {}{more}", names.join(", "))
        }
    };
    Failure::Misuse(format!("RESOURCE is missing: name the resource whose mark to check{known}"))
}

/// Returns the sealed resources, one more than are named; `None` if they cannot be listed.
async fn list(scheme: &str, store: &str) -> Option<Vec<String>> {
    let limit = NAMED + 1;
    match scheme {
        "mysql" => {
            let mut connection = mysql_async::Conn::new(options(store).ok()?).await.ok()?;
            let sql = format!(
                "SELECT CONVERT(resource USING utf8mb4) FROM palisade_fence_marks ORDER BY resource LIMIT {limit}"
            );
            connection.query(sql).await.ok()
        }
        "sqlite" => {
            let file = path(store.strip_prefix("sqlite:")?);
            let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
            // The table of a fence, or of the marks of `palisade fence http`.
            ["palisade_mark", "marks"].iter().find_map(|table| {
                let sql = format!("SELECT resource FROM {table} ORDER BY resource LIMIT {limit}");
                connection.prepare(&sql).ok()?.query_map([], |row| row.get(0)).ok()?.collect::<Result<_, _>>().ok()
            })
        }
        "postgres" | "postgresql" => {
            let client = Connector::parse(store).ok()?.connect().await.ok()?;
            let sql = format!("SELECT resource FROM palisade_fence.marks ORDER BY resource LIMIT {limit}");
            let rows = client.query(&sql, &[]).await.ok()?;
            rows.iter().map(|row| row.try_get(0).ok()).collect()
        }
        _ => None,
    }
}

/// Returns the tables whose rows have the marks `NAME/KEY`; none if they cannot be listed.
pub(super) async fn row_marked_in_mysql(url: &str, name: &str) -> Vec<String> {
    let list = async {
        let mut connection = mysql_async::Conn::new(options(url).ok()?).await.ok()?;
        let sql = "SELECT CONVERT(name USING utf8mb4) FROM palisade_fence_tables WHERE resource = ? AND row_key IS NOT NULL";
        connection.exec(sql, (name,)).await.ok()
    };
    list.await.unwrap_or_default()
}
