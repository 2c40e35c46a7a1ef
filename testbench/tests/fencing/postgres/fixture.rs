//! A database for each test, on a shared server.

use std::future::Future;
use std::sync::Arc;

use palisade_fence::postgres;
use palisade_testbench::bounded::{self, BOUND, until};
use palisade_testbench::fixture::unused_name;
use palisade_testbench::servers::Postgres;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub(crate) struct Fixture {
    pub(crate) server: &'static Postgres,
    database: String,
}

/// Runs a test on a database in which the fence is installed, and a table `orders` is protected as `orders`.
pub(crate) fn play<F: Future<Output = ()>>(test: impl FnOnce(Arc<Fixture>) -> F) {
    bounded::check(BOUND, async { test(Arc::new(Fixture::new().await)).await });
}

impl Fixture {
    async fn new() -> Fixture {
        let server = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        let database = unused_name("test_");
        let root = connect(&server.url()).await;
        root.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("a database");
        let fixture = Fixture { server, database };
        let mut client = fixture.client().await;
        postgres::install(&mut client).await.expect("it is installed");
        let table = "CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL); INSERT INTO orders VALUES (42, 0)";
        client.batch_execute(table).await.expect("a table");
        postgres::protect(&mut client, "orders", "orders").await.expect("it is protected");
        fixture
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@{}/{}", self.server.address, self.database)
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    /// Waits until this client waits for a lock of the database.
    pub(crate) async fn until_it_waits(&self, client: &ServerProcess) {
        let root = self.client().await;
        let sql = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {}", client.pid);
        until("the client waits for a lock", async || ask(&root, &sql).await == "t").await;
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

/// The server process of a client, so that another client can observe it.
pub(crate) struct ServerProcess {
    pid: String,
}

impl ServerProcess {
    pub(crate) async fn of(client: &Client) -> ServerProcess {
        ServerProcess { pid: ask(client, "SELECT pg_backend_pid()").await }
    }
}

/// Returns the first column of the first row of the last result.
pub(crate) async fn ask(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
        _ => None,
    });
    row.unwrap_or_default()
}

/// Runs SQL that must succeed.
#[track_caller]
pub(crate) fn run<'c>(client: &'c Client, sql: &str) -> impl Future<Output = ()> + use<'c> {
    let sql = sql.to_owned();
    async move { client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")) }
}

/// Runs SQL that must be refused, and rolls back. Returns the SQLSTATE.
pub(crate) async fn refused(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.expect_err(sql);
    client.batch_execute("ROLLBACK").await.expect("it can be ended");
    error.code().unwrap_or_else(|| panic!("{sql}: {error:?}")).code().to_owned()
}

/// Returns a transaction with a token.
pub(crate) fn under(token: u64, sql: &str) -> String {
    format!("BEGIN; SET LOCAL palisade_fence.token = '{token}'; {sql}; COMMIT")
}

pub(crate) async fn seal(client: &Client, token: u64) {
    run(client, &format!("SELECT palisade_fence.seal('orders', {token})")).await;
}
