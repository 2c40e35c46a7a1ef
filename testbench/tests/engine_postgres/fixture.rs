//! A database of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::{Options, Palisade};
pub(crate) use palisade_testbench::asking::{
    grants_until_end_of, holder, jeopardy, look, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::proxy::Proxy;
pub(crate) use palisade_testbench::servers::Postgres as Server;
use tokio_postgres::{Client, NoTls};

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(120);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// How a URL says that a line is encrypted, that it is and the server is verified, which is the same, and that it is not.
pub(crate) const ENCRYPTED: &str = "sslmode=require";
pub(crate) const VERIFIED: &str = "sslmode=verify-full";
pub(crate) const NOT_ENCRYPTED: &str = "sslmode=disable";
/// What would leave it to whoever is in between.
pub(crate) const WEAK: [&str; 3] = ["sslmode=prefer", "sslmode=allow", "sslmode=verify-ca"];
/// The authority to trust, and the client's certificate.
pub(crate) const CA: &str = "sslrootcert";
pub(crate) const CERTIFICATE: &str = "sslcert";
pub(crate) const KEY: &str = "sslkey";

/// Checks a promise.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let bounded = async { tokio::time::timeout(BOUND, promise).await };
    runtime.expect("a runtime").block_on(bounded).expect("it takes too long: something that should happen does not");
}

/// The same for one that takes as long as it is told to.
pub(crate) fn check_without_bound(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(promise);
}

pub(crate) struct Fixture {
    server: SocketAddr,
    database: String,
    pub(crate) proxy: Proxy,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::beside(Server::shared().unwrap_or_else(|absent| panic!("{absent}")).address)
    }

    /// On a server that has other scenes too.
    pub(crate) fn beside(server: SocketAddr) -> Fixture {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Fixture::at(server, &format!("own_{}", LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// On a server of one's own.
    pub(crate) fn at(server: SocketAddr, database: &str) -> Fixture {
        let make = async {
            let client = client(&format!("postgres://postgres@{server}/postgres")).await;
            client.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("a database can be made");
        };
        std::thread::scope(|scope| scope.spawn(|| check(make)).join()).expect("it is made");
        let proxy = Proxy::start(server).expect("a proxy");
        Fixture { server, database: database.to_owned(), proxy }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.server)
    }

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/{}", self.database)
    }

    pub(crate) fn url_as(&self, user: &str, host: &str) -> String {
        format!("postgres://{user}@{host}:{}/{}", self.server.port(), self.database)
    }

    /// Lets a user in. What it has to show is said by the server's own rules.
    pub(crate) async fn let_in(&self, user: &str, _: &str) {
        let make = format!(
            "DO $$ BEGIN CREATE ROLE {user} LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; \
             SELECT palisade.allow('{user}')"
        );
        self.store().await.batch_execute(&make).await.expect("it is let in");
    }

    /// A client that reaches the server directly.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        Options::new().label("direct").ttl(ttl).connect(&self.url()).await.expect("a client")
    }

    /// A client that reaches the server through the proxy.
    pub(crate) async fn through_proxy(&self, ttl: Duration) -> Palisade {
        let url = self.url_at(self.proxy.address);
        Options::new().label("through the proxy").ttl(ttl).connect(&url).await.expect("a client")
    }

    /// A connection as any application has it, where the schema is installed.
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
    pub(crate) async fn cut_lines(&self) {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'palisade' \
             AND datname = current_database()";
        client(&self.url()).await.batch_execute(cut).await.expect("lines are cut");
    }

    /// Frees a lock without telling anybody.
    pub(crate) async fn forget_holder(&self, lock: &str) {
        let free = format!(
            "DELETE FROM palisade.claim WHERE lock = '{lock}'; UPDATE palisade.lock SET taken = 0 WHERE name = '{lock}'"
        );
        client(&self.url()).await.batch_execute(&free).await.expect("it is free");
    }

    /// How many sessions the store knows.
    pub(crate) async fn sessions(&self) -> i64 {
        let store = client(&self.url()).await;
        store.query_one("SELECT count(*) FROM palisade.session", &[]).await.expect("an answer").get(0)
    }
}

/// A connection as any application has it.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it lets everybody in");
    // It ends with the client.
    drop(tokio::spawn(connection));
    client
}
