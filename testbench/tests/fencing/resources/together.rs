//! The engine and the fence of one store, on one connection, as an application without a client of ours uses them: locks by
//! the engine's SQL or functions, writes by the fence's. They share nothing: the engine never changes the token
//! that the fence uses, nor the fence a token of the engine.

use palisade_fence::mysql::{MySql, Scope};
use palisade_fence::{postgres, redis};
use palisade_testbench::bounded::{BOUND, check, until_some};
use palisade_testbench::fixture;
use palisade_testbench::servers::{MariaDb, Postgres, Redis};
use tempfile::TempDir;

/// An application's connection, on which it locks and writes.
trait Session {
    /// Tries once to acquire a lock with this TTL.
    async fn acquire(&mut self, lock: &str, ttl_ms: u64) -> Option<u64>;
    /// Joins the queue of a lock and waits for it.
    async fn wait(&mut self, lock: &str) -> u64;
    async fn release(&mut self, lock: &str, token: u64) -> bool;
    async fn renew(&mut self, lock: &str, token: u64) -> bool;
    async fn seal(&mut self, resource: &str, token: u64) -> bool;
    /// Adds one, with the token that it has presented last. Returns whether that was accepted.
    async fn write(&mut self, resource: &str) -> bool;
    /// Returns the number.
    async fn total(&mut self, resource: &str) -> u64;
}

/// A store with all resources that the test names.
trait Store {
    type Session: Session;
    async fn session(&self, how: usize) -> Self::Session;
    /// Waits until a session that waits for this lock is in its queue, where the store has queues for such sessions.
    async fn until_queued(&self, lock: &str);
}

/// Does so with an observing client.
async fn until_queued(url: &str, lock: &str) {
    let observer = palisade::Options::new().observer().connect(url).await.expect("it is there");
    fixture::until_queued(&observer, lock, 1).await;
}

/// Waits for a lock until the session that holds it expires.
async fn until_had(session: &mut impl Session, lock: &str) -> u64 {
    until_some("the session before has expired", async || session.acquire(lock, 600_000).await).await
}

/// Checks every way in which an engine's work on a connection could change the fence's token.
async fn keep_apart(store: &impl Store, how: usize) {
    let (orders, stock) = (format!("orders_{how}"), format!("stock_{how}"));
    let (mut loser, mut winner) = (store.session(how).await, store.session(how).await);

    // A sealed writer takes another lock, renews and releases it, and continues.
    let first = loser.acquire(&orders, 600_000).await.expect("it is free");
    assert!(loser.seal(&orders, first).await && loser.write(&orders).await);
    for turn in 0..50 {
        let other = loser.acquire(&stock, 600_000).await.expect("it is free");
        assert!(other > 0 && loser.write(&orders).await, "after {turn} other locks");
        assert!(loser.renew(&stock, other).await && loser.renew(&orders, first).await);
        assert!(loser.release(&stock, other).await && loser.write(&orders).await, "after {turn} other locks");
    }
    assert_eq!(loser.total(&orders).await, 101);

    // A hand-over: the loser's own call grants the lock to the waiter. The loser's later write is refused.
    let (second, ()) = tokio::join!(winner.wait(&orders), async {
        store.until_queued(&orders).await;
        assert!(loser.release(&orders, first).await);
    });
    assert!(second > first && winner.seal(&orders, second).await);
    assert!(!loser.write(&orders).await, "the lock was handed over");
    assert!(!loser.seal(&orders, first).await && !loser.write(&orders).await);
    assert!(winner.write(&orders).await);

    // The loser tries to acquire again, fails, and writes all the same.
    assert_eq!(loser.acquire(&orders, 600_000).await, None);
    assert!(!loser.write(&orders).await && !loser.release(&orders, first).await && !loser.write(&orders).await);
    // The loser acquires again, and has not sealed yet.
    assert!(winner.release(&orders, second).await);
    let third = loser.acquire(&orders, 200).await.expect("it is free");
    assert!(third > second && !loser.write(&orders).await, "what was read before is older than the seal");
    assert!(loser.seal(&orders, third).await && loser.write(&orders).await);

    // The session of one expires, the other has the lock, and then the first one again.
    let fourth = until_had(&mut winner, &orders).await;
    assert!(fourth > third && winner.seal(&orders, fourth).await);
    assert!(!loser.write(&orders).await && !loser.renew(&orders, third).await && !loser.write(&orders).await);
    assert_eq!(loser.acquire(&orders, 600_000).await, None);
    let elsewhere = loser.acquire(&stock, 600_000).await.expect("it is free");
    assert!(elsewhere > 0 && !loser.write(&orders).await);
    assert!(winner.write(&orders).await && winner.release(&orders, fourth).await);
    let fifth = loser.acquire(&orders, 600_000).await.expect("it is free");
    assert!(fifth > fourth && !loser.write(&orders).await && loser.seal(&orders, fifth).await);
    assert!(loser.write(&orders).await && !winner.write(&orders).await);
    assert_eq!(loser.total(&orders).await, 105);
}

fn run<S: Store>(ways: usize, store: impl Future<Output = S>) {
    check(BOUND, async {
        let store = store.await;
        for how in 0..ways {
            keep_apart(&store, how).await;
        }
    });
}

struct InPostgres(&'static Postgres);

impl InPostgres {
    async fn new() -> InPostgres {
        let server = Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        palisade::connect(&server.url()).await.expect("it installs itself").close().await.expect("it ends");
        let (mut client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it is there");
        tokio::spawn(connection);
        postgres::install(&mut client).await.expect("it is installed");
        for table in (0..ISOLATION.len()).map(|how| format!("orders_{how}")) {
            let made = format!("CREATE TABLE {table} (total bigint); INSERT INTO {table} VALUES (0)");
            client.batch_execute(&made).await.expect("a table");
            postgres::protect(&mut client, &table, &table).await.expect("it is protected");
        }
        InPostgres(server)
    }
}

/// How writes are isolated; the engine's functions are for READ COMMITTED only.
const ISOLATION: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

impl Store for InPostgres {
    type Session = PostgresSession;

    async fn session(&self, how: usize) -> PostgresSession {
        let (client, connection) =
            tokio_postgres::connect(&self.0.url(), tokio_postgres::NoTls).await.expect("it is there");
        tokio::spawn(connection);
        PostgresSession { client, isolation: ISOLATION[how] }
    }

    async fn until_queued(&self, lock: &str) {
        until_queued(&self.0.url(), lock).await;
    }
}

struct PostgresSession {
    client: tokio_postgres::Client,
    isolation: &'static str,
}

impl PostgresSession {
    /// The first column of the first row; `None` without a row.
    async fn ask(&self, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
        let messages = self.client.simple_query(sql).await?;
        Ok(messages.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    async fn is(&self, sql: &str) -> bool {
        self.ask(sql).await.expect("it answers").expect("a row") == "t"
    }
}

impl Session for PostgresSession {
    async fn acquire(&mut self, lock: &str, ttl_ms: u64) -> Option<u64> {
        let sql = format!("SELECT token FROM palisade.acquire('{lock}', ttl => '{ttl_ms} ms')");
        self.ask(&sql).await.expect("it answers").map(|token| token.parse().expect("a token"))
    }

    async fn wait(&mut self, lock: &str) -> u64 {
        let sql = format!("CALL palisade.acquire_within('{lock}', '300 s', '600 s')");
        self.ask(&sql).await.expect("it answers").expect("it is granted").parse().expect("a token")
    }

    async fn release(&mut self, lock: &str, token: u64) -> bool {
        self.is(&format!("SELECT palisade.release('{lock}', {token})")).await
    }

    async fn renew(&mut self, lock: &str, token: u64) -> bool {
        self.is(&format!("SELECT palisade.renew('{lock}', {token})")).await
    }

    async fn seal(&mut self, resource: &str, token: u64) -> bool {
        let sealed = self.ask(&format!("SELECT palisade_fence.seal('{resource}', {token})")).await.is_ok();
        if sealed {
            self.ask(&format!("SET palisade_fence.token = '{token}'")).await.expect("it is shown");
        }
        sealed
    }

    async fn write(&mut self, resource: &str) -> bool {
        let write = format!("UPDATE {resource} SET total = total + 1");
        let sql = format!("BEGIN ISOLATION LEVEL {}; {write}; COMMIT", self.isolation);
        let done = self.client.batch_execute(&sql).await;
        self.client.batch_execute("ROLLBACK").await.expect("it can be ended");
        done.is_ok()
    }

    async fn total(&mut self, resource: &str) -> u64 {
        self.ask(&format!("SELECT total FROM {resource}"))
            .await
            .expect("it answers")
            .expect("a row")
            .parse()
            .expect("a number")
    }
}

#[test]
#[ignore = "long: several seconds"]
fn postgres_keeps_engine_and_fence_apart_on_one_connection() {
    run(ISOLATION.len(), InPostgres::new());
}

struct InMariaDb {
    server: MariaDb,
    _place: TempDir,
}

/// Settings in which sessions differ.
const SESSIONS: [&str; 4] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED, time_zone = '+05:30'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, sql_mode = '', NAMES latin1",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, sql_mode = 'ORACLE', time_zone = '-11:00'",
];

impl InMariaDb {
    async fn new() -> InMariaDb {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let server = MariaDb::start(place.path()).expect("a MariaDB");
        palisade::connect(&server.url()).await.expect("it installs itself").close().await.expect("it ends");
        let mysql = MySql::install(&server.url()).await.expect("it is there");
        for table in (0..SESSIONS.len()).map(|how| format!("orders_{how}")) {
            let made =
                format!("CREATE TABLE {table} (id INT PRIMARY KEY, total BIGINT); INSERT INTO {table} VALUES (1, 0)");
            server.run(&made).expect("a table");
            mysql.protect(&table, &Scope::Table(table.clone())).await.expect("it has triggers");
        }
        InMariaDb { server, _place: place }
    }
}

impl Store for InMariaDb {
    type Session = mysql_async::Conn;

    async fn session(&self, how: usize) -> mysql_async::Conn {
        use mysql_async::prelude::Queryable;
        let mut session = mysql_async::Conn::from_url(self.server.url()).await.expect("a connection");
        for setting in SESSIONS[how].trim_start_matches("SET ").split(", ") {
            session.query_drop(format!("SET {setting}")).await.expect("it is set");
        }
        session
    }

    async fn until_queued(&self, lock: &str) {
        until_queued(&self.server.url(), lock).await;
    }
}

/// The first column of the first row; `None` without a row, or if it is refused.
async fn first(session: &mut mysql_async::Conn, sql: &str) -> Option<u64> {
    use mysql_async::prelude::Queryable;
    let answered = until_some("the statement loses no deadlock", async || {
        match session.query_first::<mysql_async::Row, _>(sql).await {
            Ok(found) => Some(found.map(|row| row.get(0).expect("a number"))),
            // A deadlock, and a row that was locked for too long, mean that nothing has happened.
            Err(mysql_async::Error::Server(error)) if [1205, 1213].contains(&error.code) => None,
            Err(mysql_async::Error::Server(error)) if error.state.starts_with("45F") => Some(None),
            Err(other) => panic!("{sql}: {other}"),
        }
    });
    answered.await
}

impl Session for mysql_async::Conn {
    async fn acquire(&mut self, lock: &str, ttl_ms: u64) -> Option<u64> {
        first(self, &format!("CALL palisade_acquire('{lock}', {ttl_ms}, NULL)")).await
    }

    async fn wait(&mut self, lock: &str) -> u64 {
        first(self, &format!("CALL palisade_acquire_within('{lock}', 600000, NULL, 300000)"))
            .await
            .expect("it is granted")
    }

    async fn release(&mut self, lock: &str, token: u64) -> bool {
        first(self, &format!("CALL palisade_release('{lock}', {token})")).await == Some(1)
    }

    async fn renew(&mut self, lock: &str, token: u64) -> bool {
        first(self, &format!("CALL palisade_renew('{lock}', {token})")).await == Some(1)
    }

    async fn seal(&mut self, resource: &str, token: u64) -> bool {
        use mysql_async::prelude::Queryable;
        self.query_drop(format!("CALL palisade_fence_seal('{resource}', {token})")).await.is_ok()
    }

    async fn write(&mut self, resource: &str) -> bool {
        use mysql_async::prelude::Queryable;
        self.query_drop(format!("UPDATE {resource} SET total = total + 1 WHERE id = 1")).await.is_ok()
    }

    async fn total(&mut self, resource: &str) -> u64 {
        first(self, &format!("SELECT total FROM {resource}")).await.expect("a row")
    }
}

#[test]
#[ignore = "long: several seconds"]
fn mariadb_keeps_engine_and_fence_apart_on_one_connection() {
    run(SESSIONS.len(), InMariaDb::new());
}

struct InRedis {
    server: Redis,
    _place: TempDir,
}

impl InRedis {
    async fn new() -> InRedis {
        let place = tempfile::tempdir().expect("a directory");
        let server = Redis::start(place.path(), "no").expect("a Redis");
        let functions = palisade::engine::redis::functions();
        let mut client = ::redis::Client::open(server.url()).expect("a URL").get_connection().expect("a connection");
        let () =
            ::redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&functions).query(&mut client).expect("loaded");
        redis::Redis::install(&server.url()).await.expect("both have room");
        // In the other order as well.
        let () =
            ::redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&functions).query(&mut client).expect("loaded");
        InRedis { server, _place: place }
    }
}

impl Store for InRedis {
    type Session = RedisSession;

    async fn session(&self, _: usize) -> RedisSession {
        let client = ::redis::Client::open(self.server.url()).expect("a URL").get_connection().expect("a connection");
        RedisSession { client, sessions: Vec::new(), shown: (0, 0) }
    }

    /// A session of functions polls, and is in no queue.
    async fn until_queued(&self, _: &str) {}
}

struct RedisSession {
    client: ::redis::Connection,
    /// The session of each token.
    sessions: Vec<(u64, String)>,
    /// The token that was sealed with last, and the number of the last write.
    shown: (u64, u64),
}

const NAMESPACE: &str = "palisade:{palisade}:locks";

impl RedisSession {
    fn call<T: ::redis::FromRedisValue>(&mut self, words: &str) -> Result<T, ::redis::RedisError> {
        let mut call = ::redis::cmd("FCALL");
        call.arg(words.split(' ').collect::<Vec<_>>());
        call.query(&mut self.client)
    }

    fn session_of(&self, token: u64) -> String {
        self.sessions.iter().find(|(known, _)| *known == token).expect("it was given").1.clone()
    }
}

impl Session for RedisSession {
    async fn acquire(&mut self, lock: &str, ttl_ms: u64) -> Option<u64> {
        let had: Option<(u64, String)> =
            self.call(&format!("palisade_acquire 1 {NAMESPACE} {lock} {ttl_ms}")).expect("it answers");
        self.sessions.extend(had.clone());
        had.map(|(token, _)| token)
    }

    async fn wait(&mut self, lock: &str) -> u64 {
        until_had(self, lock).await
    }

    async fn release(&mut self, lock: &str, token: u64) -> bool {
        let session = self.session_of(token);
        self.call(&format!("palisade_release 1 {NAMESPACE} {lock} {token} {session}")).expect("it answers")
    }

    async fn renew(&mut self, _: &str, token: u64) -> bool {
        let session = self.session_of(token);
        self.call(&format!("palisade_renew 1 {NAMESPACE} {session}")).expect("it answers")
    }

    async fn seal(&mut self, resource: &str, token: u64) -> bool {
        let sealed = self.call::<u64>(&format!("palisade_seal 2 palisade:{{{resource}}} {resource} {token}"));
        if let Ok(seq) = sealed {
            self.shown = (token, seq);
        }
        sealed.is_ok()
    }

    async fn write(&mut self, resource: &str) -> bool {
        let (token, seq) = (self.shown.0, self.shown.1 + 1);
        let write = format!("palisade_write 2 palisade:{{{resource}}} {resource} {token} {seq} 0 INCR");
        let done = self.call::<u64>(&write).is_ok();
        self.shown.1 += u64::from(done);
        done
    }

    async fn total(&mut self, resource: &str) -> u64 {
        ::redis::cmd("GET").arg(resource).query(&mut self.client).expect("it answers")
    }
}

#[test]
fn redis_keeps_engine_and_fence_apart_on_one_connection() {
    run(1, InRedis::new());
}
