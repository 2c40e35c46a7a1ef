//! A database of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use palisade::engine::{LockInfo, Watched};
use palisade::{BootInstant, Event, LockGuard, Options, Palisade, SessionId, Standing, Token, Watch};
use palisade_testbench::proxy::Proxy;
use palisade_testbench::servers::MariaDb;
use tokio::task::JoinHandle;

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(120);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

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

pub(crate) struct Scene {
    server: SocketAddr,
    database: String,
    pub(crate) proxy: Proxy,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let server = MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}")).address;
        Scene::at(server, &format!("own_{}", LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// On a server of one's own.
    pub(crate) fn at(server: SocketAddr, database: &str) -> Scene {
        let make = async {
            let mut client = client(&format!("mysql://root@{server}/test")).await;
            client.query_drop(format!("CREATE DATABASE {database}")).await.expect("a database can be made");
        };
        std::thread::scope(|scope| scope.spawn(|| check(make)).join()).expect("it is made");
        let proxy = Proxy::start(server).expect("a proxy");
        Scene { server, database: database.to_owned(), proxy }
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.server)
    }

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        format!("mysql://root@{address}/{}", self.database)
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

/// A lock as it is. A question that was asked just before the line broke fails, and can be repeated.
pub(crate) async fn look(client: &Palisade, name: &str) -> Option<LockInfo> {
    loop {
        match client.inspect(name).await {
            Ok(lock) => return lock,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Waits until a lock looks so.
async fn until(client: &Palisade, name: &str, is_so: impl Fn(Option<&LockInfo>) -> bool) {
    let mut watch = loop {
        match client.watch(name).await {
            Ok(watch) => break watch,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    while !is_so(look(client, name).await.as_ref()) {
        watch.next().await;
    }
}

pub(crate) async fn until_queued(client: &Palisade, name: &str, waiters: usize) {
    until(client, name, |lock| lock.map_or(0, |lock| lock.waiters.len()) == waiters).await;
}

pub(crate) async fn until_idle(client: &Palisade, name: &str) {
    until(client, name, |lock| lock.is_none()).await;
}

pub(crate) async fn take(client: &Palisade, name: &str) -> LockGuard {
    client.lock(name).acquire().await.expect("its turn comes")
}

/// Waits for a lock in a task of its own.
pub(crate) fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, palisade::Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).acquire().await })
}

pub(crate) async fn taken(task: JoinHandle<Result<LockGuard, palisade::Error>>) -> LockGuard {
    task.await.expect("it does not panic").expect("its turn comes")
}

pub(crate) fn token(guard: &LockGuard) -> Token {
    guard.token().expect("it is held")
}

/// Until when a lock is certainly held, once that is in doubt.
pub(crate) async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match guard.jeopardy().await {
        Standing::Jeopardy { safe_until } => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// Who holds a lock.
pub(crate) async fn holder(client: &Palisade, name: &str) -> Option<SessionId> {
    look(client, name).await.and_then(|lock| lock.holders.first()?.session)
}

/// The grants that a watch has seen by the time it sees `last` end.
pub(crate) async fn grants_until_end_of(watch: &mut Watch, last: Token) -> Vec<Token> {
    let mut grants = Vec::new();
    loop {
        match watch.next().await {
            Some(Watched::Event(Event::Granted { token, .. })) => grants.push(token),
            Some(Watched::Event(Event::GrantEnded { token, .. })) if token == last => return grants,
            Some(Watched::Event(_)) => {}
            other => panic!("instead of an event: {other:?}"),
        }
    }
}
