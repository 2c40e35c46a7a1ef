//! What the tests of this engine have in common.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_testbench::servers;
use tokio_postgres::{Client, NoTls};

/// A database of its own on the shared server.
pub(crate) async fn database() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
    let name = format!("own_{}_{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
    let client = client(&server.url()).await;
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a database can be made");
    format!("postgres://postgres@{}/{name}", server.address)
}

/// A connection as any application has it.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it lets everybody in");
    // It ends with the client.
    drop(tokio::spawn(connection));
    client
}

/// A connection to a database in which the schema is installed.
pub(crate) async fn installed(url: &str) -> Client {
    let client = client(url).await;
    client.batch_execute(palisade::engine::postgres::SCHEMA).await.expect("the schema can be installed");
    client
}

pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(test);
}
