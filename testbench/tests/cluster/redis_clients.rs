//! Clients of Redis that take and release locks while leaders are killed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use palisade_testbench::bounded::{check, number_from_env};
use redis::{Connection, RedisError, Value, cmd};

use crate::fixture::{BOUND, calm, cluster, leader, until_another_leads};

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const LOCKS: [&str; 2] = ["orders", "users"];

/// The value with which each lock is held, for all that the clients know, and the highest token of each.
#[derive(Default)]
struct Book {
    holders: BTreeMap<&'static str, String>,
    tokens: BTreeMap<&'static str, u64>,
    grants: usize,
}

/// A client that connects again when its connection breaks, to one node after the other.
struct Client {
    addresses: Vec<SocketAddr>,
    next: usize,
    connection: Option<Connection>,
}

impl Client {
    fn connect(&mut self) -> Result<Connection, RedisError> {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let client = redis::Client::open(format!("redis://{address}"))?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(connection)
    }

    fn ask(&mut self, words: &[&str]) -> Result<Value, RedisError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let reply = cmd(words[0]).arg(&words[1..]).query(&mut connection)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Repeats a command until it is answered.
    fn ask_until_answered(&mut self, words: &[&str]) -> Value {
        loop {
            match self.ask(words) {
                Ok(reply) => return reply,
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn work(number: usize, mut client: Client, book: &Mutex<Book>, is_over: &AtomicBool) {
    for turn in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let (lock, value) = (LOCKS[(number + turn) % LOCKS.len()], format!("{number}/{turn}"));
        // If the outcome is unknown, the value tells who holds the lock.
        if client.ask(&["SET", lock, &value, "NX", "PX", "60000"]).is_ok_and(|reply| reply == Value::Nil) {
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        if let Value::Int(token) = client.ask_until_answered(&["LOCK", "TOKEN", lock, &value]) {
            let mut book = book.lock().unwrap();
            let token = u64::try_from(token).unwrap();
            let last = book.tokens.insert(lock, token);
            assert!(last.is_none_or(|last| last < token), "{lock}: {token} follows {last:?}");
            let other = book.holders.insert(lock, value.clone());
            assert!(other.is_none(), "{lock} has two holders: {value} and {other:?}");
            book.grants += 1;
        } else {
            continue;
        }
        thread::sleep(Duration::from_millis(2));
        // It relies on the lock no longer.
        book.lock().unwrap().holders.remove(lock);
        client.ask_until_answered(&["EVAL", RELEASE, "1", lock, &value]);
    }
}

#[test]
fn locks_of_redis_clients_survive_killed_leaders() {
    let (mut cluster, _folder) = cluster();
    let (book, is_over) = (Arc::new(Mutex::new(Book::default())), Arc::new(AtomicBool::new(false)));
    let addresses: Vec<_> = (0..cluster.len()).map(|at| cluster.address(at)).collect();
    let workers: Vec<_> = (0..4)
        .map(|number| {
            let client = Client { addresses: addresses.clone(), next: number, connection: None };
            let (book, is_over) = (book.clone(), is_over.clone());
            thread::spawn(move || work(number, client, &book, &is_over))
        })
        .collect();
    // A client that holds one lock throughout.
    let mut holder = Client { addresses, next: 0, connection: None };
    while holder.ask_until_answered(&["SET", "held", "7f3a", "NX"]) != Value::Okay {
        // The answer to an earlier attempt was lost.
        holder.ask_until_answered(&["DEL", "held"]);
    }
    let Value::Int(token) = holder.ask_until_answered(&["LOCK", "TOKEN", "held", "7f3a"]) else { panic!("not held") };
    check(BOUND, async {
        for _ in 0..number_from_env("CLUSTER_KILLS", 3) {
            let grants = book.lock().unwrap().grants;
            while book.lock().unwrap().grants < grants + 20 {
                assert!(workers.iter().all(|worker| !worker.is_finished()), "a client has failed");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let killed = leader(&cluster).await;
            cluster.kill(killed);
            until_another_leads(&cluster, killed).await;
            cluster.restart(killed).unwrap();
        }
    });
    assert_eq!(holder.ask_until_answered(&["LOCK", "TOKEN", "held", "7f3a"]), Value::Int(token));
    assert_eq!(holder.ask_until_answered(&["TTL", "held"]), Value::Int(-1));
    is_over.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// A read waits until a majority has confirmed the leader. The commands behind it wait too.
#[test]
fn a_command_does_not_see_what_those_behind_it_do() {
    calm(&[], |cluster| {
        let at = check(BOUND, leader(cluster));
        let mut client = Client { addresses: vec![cluster.address(at)], next: 0, connection: None };
        client.ask_until_answered(&["PING"]);
        let mut connection = client.connection.take().unwrap();
        connection.set_read_timeout(Some(BOUND)).unwrap();
        for _ in 0..50 {
            let mut pipeline = redis::pipe();
            pipeline
                .cmd("GET")
                .arg("a")
                .cmd("SET")
                .arg("a")
                .arg("x")
                .arg("NX")
                .cmd("GET")
                .arg("a")
                .cmd("DEL")
                .arg("a");
            let replies: Vec<Value> = pipeline.query(&mut connection).unwrap();
            assert_eq!(replies, [Value::Nil, Value::Okay, Value::BulkString(b"x".to_vec()), Value::Int(1)]);
        }
    });
}
