//! What the tests of this engine have in common.

use std::sync::atomic::{AtomicU64, Ordering};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use palisade_testbench::servers::MariaDb;

/// A database of its own on the shared server.
pub(crate) async fn database() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let server = MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let name = format!("own_{}", LAST.fetch_add(1, Ordering::Relaxed));
    client(&server.url()).await.query_drop(format!("CREATE DATABASE {name}")).await.expect("a database can be made");
    format!("mysql://root@{}/{name}", server.address)
}

/// A connection as any application has it.
pub(crate) async fn client(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).expect("a URL")).await.expect("it lets root in")
}

/// A connection to a database in which everything is installed.
pub(crate) async fn installed(url: &str) -> Conn {
    let mut conn = client(url).await;
    let schema = palisade::engine::mysql::SCHEMA;
    let (_, schema) = schema.split_once("DELIMITER $$").expect("it has one");
    let (schema, _) = schema.split_once("DELIMITER ;").expect("it has one");
    for statement in schema.split("$$\n").filter(|statement| !statement.trim().is_empty()) {
        conn.query_drop(statement).await.unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
    conn
}

pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(test);
}
