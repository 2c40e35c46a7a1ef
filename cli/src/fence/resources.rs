//! The resources of a store, for `palisade fence check` without a RESOURCE.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use palisade_fence::mysql::options;
use rusqlite::{Connection, OpenFlags};

use crate::outcome::Failure;
use crate::stores::path;
use crate::stores::postgres::Connector;
use crate::text::plain;

/// How long to wait for the list. The message is useful without it.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How many resources a message names.
const MAX_NAMED: usize = 20;

/// Returns the error that RESOURCE is missing, with the resources that are sealed in the store.
pub(super) async fn missing(scheme: &str, store: &str) -> Failure {
    let names = tokio::time::timeout(LIST_TIMEOUT, list(scheme, store)).await.ok().flatten();
    let hint = match names.as_deref() {
        _ if scheme.starts_with("redis") => "; to list them: redis-cli --scan --pattern 'palisade:{*}'".to_owned(),
        None => String::new(),
        Some([]) => "; no resource is sealed there yet".to_owned(),
        Some(names) => {
            let more = names.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
            let more = more.map(|_| ", …").unwrap_or_default();
            let names: Vec<_> = names.iter().take(MAX_NAMED).map(|name| plain(name)).collect();
            format!("; sealed there: {}{more}", names.join(", "))
        }
    };
    Failure::Misuse(format!("RESOURCE is missing: name the resource whose mark to check{hint}"))
}

/// Returns the sealed resources, one more than are named; `None` if they cannot be names.
async fn list(scheme: &str, store: &str) -> Option<Vec<String>> {
    let limit = MAX_NAMED + 1;
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

/// Returns the tables whose rows have the marks `NAME/KEY`; none if they cannot be names.
pub(super) async fn row_marked_in_mysql(url: &str, name: &str) -> Vec<String> {
    let list = async {
        let mut connection = mysql_async::Conn::new(options(url).ok()?).await.ok()?;
        let sql = "SELECT CONVERT(name USING utf8mb4) FROM palisade_fence_tables WHERE resource = ? AND row_key IS NOT NULL";
        connection.exec(sql, (name,)).await.ok()
    };
    list.await.unwrap_or_default()
}
