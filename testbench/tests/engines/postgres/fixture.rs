//! A database for one test, clients that reach it directly, and clients that reach it through a proxy.

use std::net::SocketAddr;
use std::ops::Deref;

use palisade_testbench::bounded::{self, BOUND};
pub(crate) use palisade_testbench::bounded::{check_many, number_from_env, until, until_some};
pub(crate) use palisade_testbench::conformance::stalls::{SHORT_TTL, give_back, is_not_kept_alive, jeopardy};
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, grants_until_end_of, holder, inspect, retryable, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::fixture::{Proxied, prepare, unused_name};
use palisade_testbench::servers::LogsOnFailure;
pub(crate) use palisade_testbench::servers::Postgres as Server;
use tokio_postgres::{Client, NoTls};

/// The URL options for encryption, for a verified server (which is the same), and for a plain connection.
pub(crate) const ENCRYPTED: &str = "sslmode=require";
pub(crate) const VERIFIED: &str = "sslmode=verify-full";
pub(crate) const NOT_ENCRYPTED: &str = "sslmode=disable";
/// Options that an attacker in between could downgrade.
pub(crate) const WEAK: [&str; 3] = ["sslmode=prefer", "sslmode=allow", "sslmode=verify-ca"];
/// The options for the trusted authority, and for the client's certificate.
pub(crate) const CA: &str = "sslrootcert";
pub(crate) const CERTIFICATE: &str = "sslcert";
pub(crate) const KEY: &str = "sslkey";

/// Checks a promise.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check_on_threads(BOUND, promise);
}

pub(crate) struct Fixture {
    proxied: Proxied,
    database: String,
    _logs: Option<LogsOnFailure>,
}

impl Deref for Fixture {
    type Target = Proxied;

    fn deref(&self) -> &Proxied {
        &self.proxied
    }
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let server = Server::shared().unwrap_or_else(|absent| panic!("{absent}"));
        Fixture { _logs: Some(server.logs_on_failure()), ..Fixture::beside(server.address) }
    }

    /// On a server that other fixtures use too.
    pub(crate) fn beside(server: SocketAddr) -> Fixture {
        Fixture::at(server, &unused_name("own_"))
    }

    /// In a new database of this name.
    pub(crate) fn at(server: SocketAddr, database: &str) -> Fixture {
        prepare(async {
            let client = client(&format!("postgres://postgres@{server}/postgres")).await;
            client.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("a database can be made");
        });
        let path = database.to_owned();
        let proxied = Proxied::start(server, move |address| format!("postgres://postgres@{address}/{path}"));
        Fixture { proxied, database: database.to_owned(), _logs: None }
    }

    pub(crate) fn url_as(&self, user: &str, host: &str) -> String {
        format!("postgres://{user}@{host}:{}/{}", self.address.port(), self.database)
    }

    /// Creates a user. The server's `pg_hba.conf` says how it must authenticate.
    pub(crate) async fn allow(&self, user: &str, _: &str) {
        let make = format!(
            "DO $$ BEGIN CREATE ROLE {user} LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; \
             SELECT palisade.allow('{user}')"
        );
        self.store().await.batch_execute(&make).await.expect("it is let in");
    }

    /// Opens a plain connection to a database in which the schema is installed.
    pub(crate) async fn store(&self) -> Client {
        let client = client(&self.url()).await;
        client.batch_execute(palisade::engine::postgres::SCHEMA).await.expect("the schema can be installed");
        client
    }

    /// Drops everything, and installs it again.
    pub(crate) async fn lose_everything(&self) {
        let store = self.store().await;
        store.batch_execute("DROP SCHEMA palisade CASCADE").await.expect("it is dropped");
        self.store().await;
    }

    /// Ends all connections of clients.
    pub(crate) async fn cut_connections(&self) {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'palisade' \
             AND datname = current_database()";
        client(&self.url()).await.batch_execute(cut).await.expect("lines are cut");
    }

    /// Frees a lock without a notice.
    pub(crate) async fn forget_holder(&self, lock: &str) {
        let free = format!(
            "DELETE FROM palisade.claim WHERE lock = '{lock}'; UPDATE palisade.lock SET taken = 0 WHERE name = '{lock}'"
        );
        client(&self.url()).await.batch_execute(&free).await.expect("it is free");
    }

    /// Returns the number of sessions in the store.
    pub(crate) async fn sessions(&self) -> i64 {
        let store = client(&self.url()).await;
        store.query_one("SELECT count(*) FROM palisade.session", &[]).await.expect("an answer").get(0)
    }
}

/// Opens a plain connection.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it accepts every connection");
    // It ends with the client.
    drop(tokio::spawn(connection));
    client
}
