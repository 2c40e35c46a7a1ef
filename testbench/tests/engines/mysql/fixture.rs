//! A database for one test, clients that reach it directly, and clients that reach it through a proxy.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use palisade_testbench::bounded::{self, BOUND};
pub(crate) use palisade_testbench::bounded::{check_many, number_from_env, until, until_some};
pub(crate) use palisade_testbench::conformance::stalls::{SHORT_TTL, give_back, is_not_kept_alive, jeopardy};
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, grants_until_end_of, holder, inspect, retryable, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::fixture::{Proxied, prepare, unused_name};
use palisade_testbench::servers::LogsOnFailure;
pub(crate) use palisade_testbench::servers::MariaDb as Server;

/// The URL options for encryption, for a verified server (which is the same), and for a plain connection.
pub(crate) const ENCRYPTED: &str = "ssl-mode=required";
pub(crate) const VERIFIED: &str = "ssl-mode=verify_identity";
pub(crate) const NOT_ENCRYPTED: &str = "ssl-mode=disabled";
/// Options that an attacker in between could downgrade.
pub(crate) const WEAK: [&str; 2] = ["ssl-mode=preferred", "ssl-mode=verify_ca"];
/// The options for the trusted authority, and for the client's certificate.
pub(crate) const CA: &str = "ssl-ca";
pub(crate) const CERTIFICATE: &str = "ssl-cert";
pub(crate) const KEY: &str = "ssl-key";

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

    /// In a database with this default character set.
    pub(crate) fn in_character_set(charset: &str) -> Fixture {
        let fixture = Fixture::new();
        let alter = format!("ALTER DATABASE {} CHARACTER SET {charset}", fixture.database);
        Server::shared().unwrap_or_else(|absent| panic!("{absent}")).run(&alter).expect("it is changed");
        fixture
    }

    /// On a server that other fixtures use too.
    pub(crate) fn beside(server: SocketAddr) -> Fixture {
        Fixture::at(server, &unused_name("own_"))
    }

    /// In a new database of this name.
    pub(crate) fn at(server: SocketAddr, database: &str) -> Fixture {
        prepare(async {
            let mut client = client(&format!("mysql://root@{server}/test")).await;
            client.query_drop(format!("CREATE DATABASE {database}")).await.expect("a database can be made");
        });
        let path = database.to_owned();
        let proxied = Proxied::start(server, move |address| format!("mysql://root@{address}/{path}"));
        // With one connection, what happens to it happens to every request.
        Fixture { proxied: proxied.with_proxy_options("?connections=1"), database: database.to_owned(), _logs: None }
    }

    pub(crate) fn url_as(&self, user: &str, host: &str) -> String {
        format!("mysql://{user}@{host}:{}/{}", self.address.port(), self.database)
    }

    /// Creates a user that must authenticate by `SSL`, or `X509`.
    pub(crate) async fn allow(&self, user: &str, required: &str) {
        let mut store = self.store().await;
        let make = format!("CREATE USER IF NOT EXISTS {user}@'%' REQUIRE {required}");
        store.query_drop(make).await.expect("a user");
        let allow = format!("GRANT EXECUTE, SELECT ON {}.* TO {user}@'%'", self.database);
        store.query_drop(allow).await.expect("it is let in");
    }

    /// Opens a plain connection to a database in which everything is installed.
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
    pub(crate) async fn cut_connections(&self) {
        let mut store = client(&self.url()).await;
        let sql = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let ids: Vec<u64> = store.query(sql).await.expect("an answer");
        for id in ids {
            // It may have ended already.
            drop(store.query_drop(format!("KILL {id}")).await);
        }
    }

    /// Frees a lock without a notice.
    pub(crate) async fn forget_holder(&self, lock: &str) {
        let free = format!("UPDATE palisade_lock SET session = NULL, number = NULL WHERE name = '{lock}'");
        client(&self.url()).await.query_drop(free).await.expect("it is free");
    }

    /// Returns the number of sessions in the store.
    pub(crate) async fn sessions(&self) -> i64 {
        let mut store = client(&self.url()).await;
        let sessions = store.query_first("SELECT COUNT(*) FROM palisade_session").await.expect("an answer");
        sessions.expect("a number")
    }
}

/// Waits until a transaction waits for a row. `meanwhile` checks what must be true until then.
pub(crate) async fn until_blocked(store: &mut Conn, meanwhile: impl Fn()) {
    let blocked = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    until("a transaction waits for a row", async || {
        if store.query_first(blocked).await.expect("an answer") != Some(0) {
            return true;
        }
        meanwhile();
        // The server renews this table only after no client has read it for 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
        false
    })
    .await;
}

/// Installs the schema as a shell does.
pub(crate) async fn install(conn: &mut Conn) {
    let schema = palisade::engine::mysql::SCHEMA;
    let (_, schema) = schema.split_once("DELIMITER $$").expect("it has one");
    let (schema, _) = schema.split_once("DELIMITER ;").expect("it has one");
    for statement in schema.split("$$\n").filter(|statement| !statement.trim().is_empty()) {
        conn.query_drop(statement).await.unwrap_or_else(|error| panic!("{error}: {statement}"));
    }
}

/// Opens a plain connection.
pub(crate) async fn client(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).expect("a URL")).await.expect("it lets root in")
}
