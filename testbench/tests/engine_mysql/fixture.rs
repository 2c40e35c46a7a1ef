//! A database of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use palisade::{Options, Palisade};
pub(crate) use palisade_testbench::asking::{
    grants_until_end_of, holder, jeopardy, look, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::proxy::Proxy;
pub(crate) use palisade_testbench::servers::MariaDb as Server;

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(120);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// How a URL says that a line is encrypted, that it is and the server is verified, which is the same, and that it is not.
pub(crate) const ENCRYPTED: &str = "ssl-mode=required";
pub(crate) const VERIFIED: &str = "ssl-mode=verify_identity";
pub(crate) const NOT_ENCRYPTED: &str = "ssl-mode=disabled";
/// What would leave it to whoever is in between.
pub(crate) const WEAK: [&str; 2] = ["ssl-mode=preferred", "ssl-mode=verify_ca"];
/// The authority to trust, and the client's certificate.
pub(crate) const CA: &str = "ssl-ca";
pub(crate) const CERTIFICATE: &str = "ssl-cert";
pub(crate) const KEY: &str = "ssl-key";

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

    /// In a database whose texts are in this character set unless they say otherwise.
    pub(crate) fn in_character_set(charset: &str) -> Fixture {
        let fixture = Fixture::new();
        let alter = format!("ALTER DATABASE {} CHARACTER SET {charset}", fixture.database);
        Server::shared().unwrap_or_else(|absent| panic!("{absent}")).run(&alter).expect("it is changed");
        fixture
    }

    /// On a server that has other scenes too.
    pub(crate) fn beside(server: SocketAddr) -> Fixture {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Fixture::at(server, &format!("own_{}", LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// On a server of one's own.
    pub(crate) fn at(server: SocketAddr, database: &str) -> Fixture {
        let make = async {
            let mut client = client(&format!("mysql://root@{server}/test")).await;
            client.query_drop(format!("CREATE DATABASE {database}")).await.expect("a database can be made");
        };
        std::thread::scope(|scope| scope.spawn(|| check(make)).join()).expect("it is made");
        let proxy = Proxy::start(server).expect("a proxy");
        Fixture { server, database: database.to_owned(), proxy }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.server)
    }

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        format!("mysql://root@{address}/{}", self.database)
    }

    pub(crate) fn url_as(&self, user: &str, host: &str) -> String {
        format!("mysql://{user}@{host}:{}/{}", self.server.port(), self.database)
    }

    /// Lets a user in who shows what is required: `SSL`, or `X509`.
    pub(crate) async fn let_in(&self, user: &str, required: &str) {
        let mut store = self.store().await;
        let make = format!("CREATE USER IF NOT EXISTS {user}@'%' REQUIRE {required}");
        store.query_drop(make).await.expect("a user");
        let allow = format!("GRANT EXECUTE, SELECT ON {}.* TO {user}@'%'", self.database);
        store.query_drop(allow).await.expect("it is let in");
    }

    /// A client that reaches the server directly.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        Options::new().label("direct").ttl(ttl).connect(&self.url()).await.expect("a client")
    }

    /// A client that reaches the server through the proxy.
    pub(crate) async fn through_proxy(&self, ttl: Duration) -> Palisade {
        // On one connection, so that what happens to it happens to all that is asked.
        let url = format!("{}?connections=1", self.url_at(self.proxy.address));
        Options::new().label("through the proxy").ttl(ttl).connect(&url).await.expect("a client")
    }

    /// A connection as any application has it, where everything is installed.
    pub(crate) async fn store(&self) -> Conn {
        let mut conn = client(&self.url()).await;
        install(&mut conn).await;
        conn
    }

    /// Drops everything, and installs it again.
    pub(crate) async fn lose_everything(&self) {
        let mut store = self.store().await;
        for table in ["version", "state", "session", "lock", "claim", "notice", "event", "watched"] {
            store.query_drop(format!("DROP TABLE palisade_{table}")).await.expect("it is dropped");
        }
        self.store().await;
    }

    /// Ends all other connections to this database.
    pub(crate) async fn cut_lines(&self) {
        let mut store = client(&self.url()).await;
        let sql = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let ids: Vec<u64> = store.query(sql).await.expect("an answer");
        for id in ids {
            // It may have gone by itself.
            drop(store.query_drop(format!("KILL {id}")).await);
        }
    }

    /// Frees a lock without telling anybody.
    pub(crate) async fn forget_holder(&self, lock: &str) {
        let free = format!("UPDATE palisade_lock SET session = NULL, number = NULL WHERE name = '{lock}'");
        client(&self.url()).await.query_drop(free).await.expect("it is free");
    }

    /// How many sessions the store knows.
    pub(crate) async fn sessions(&self) -> i64 {
        let mut store = client(&self.url()).await;
        let sessions = store.query_first("SELECT COUNT(*) FROM palisade_session").await.expect("an answer");
        sessions.expect("a number")
    }
}

/// Runs the schema as a shell does.
pub(crate) async fn install(conn: &mut Conn) {
    let schema = palisade::engine::mysql::SCHEMA;
    let (_, schema) = schema.split_once("DELIMITER $$").expect("it has one");
    let (schema, _) = schema.split_once("DELIMITER ;").expect("it has one");
    for statement in schema.split("$$\n").filter(|statement| !statement.trim().is_empty()) {
        conn.query_drop(statement).await.unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
}

/// A connection as any application has it.
pub(crate) async fn client(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).expect("a URL")).await.expect("it lets root in")
}
