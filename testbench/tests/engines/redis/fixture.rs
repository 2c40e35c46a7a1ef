//! A Redis for one test, clients that reach it directly, and clients that reach it through a proxy.

use std::future::Future;
use std::ops::Deref;
use std::process::Command;
use std::time::Duration;

use palisade::{Error, LockGuard, Options, Palisade};
use palisade_testbench::bounded::{self, BOUND, within};
pub(crate) use palisade_testbench::bounded::{check_many, number_from_env, until, until_some};
pub(crate) use palisade_testbench::conformance::stalls::give_back;
use palisade_testbench::conformance::stalls::unless_lost;
use palisade_testbench::fixture::Proxied;
pub(crate) use palisade_testbench::fixture::{LONG_TTL, inspect, retryable, taken, token, until_idle, until_queued};
use palisade_testbench::servers::Redis;
use palisade_testbench::worker_process::WorkerProcess;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

pub(crate) struct Fixture {
    pub(crate) redis: Redis,
    proxied: Proxied,
    // Removed after the process has ended.
    pub(crate) folder: TempDir,
}

impl Deref for Fixture {
    type Target = Proxied;

    fn deref(&self) -> &Proxied {
        &self.proxied
    }
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with(&[], &[])
    }

    /// With options and environment variables of the server.
    pub(crate) fn with(options: &[&str], variables: &[(&str, &str)]) -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        Fixture::inside(folder, options, variables)
    }

    pub(crate) fn inside(folder: TempDir, options: &[&str], variables: &[(&str, &str)]) -> Fixture {
        let redis = Redis::start_under(&folder.path().join("redis"), options, variables);
        let redis = redis.unwrap_or_else(|absent| panic!("{absent}"));
        let proxied = Proxied::start(redis.address, |address| format!("redis://{address}"));
        Fixture { redis, proxied, folder }
    }
}

pub(crate) async fn connect(url: &str, ttl: Duration) -> Palisade {
    Options::new().label("a client").ttl(ttl).connect(url).await.expect("a client")
}

pub(crate) async fn take(client: &Palisade, name: &str) -> LockGuard {
    let acquiring = client.lock(name).dangerous_accept_failover().acquire();
    within(&format!("'{name}' is granted"), acquiring).await.expect("its turn comes")
}

/// Tries to take a lock. Tries again while the client has no session, because its connection was cut or the server restarted.
pub(crate) async fn try_take(client: &Palisade, name: &str) -> Option<LockGuard> {
    let attempt = async || retryable(client.lock(name).dangerous_accept_failover().try_acquire().await);
    until_some("an attempt is answered", attempt).await
}

/// Waits for a lock in another task.
pub(crate) fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).dangerous_accept_failover().acquire().await })
}

/// Waits for a lock with a session that may be lost meanwhile. Returns `None` then.
pub(crate) async fn take_unless_lost(client: &Palisade, name: &str) -> Option<LockGuard> {
    unless_lost(client.lock(name).dangerous_accept_failover().acquire().await)
}

/// Lets a worker take a lock, whose session may be lost before it is granted on a machine that stands still.
pub(crate) fn take_by(worker: &mut WorkerProcess, name: &str) {
    let mut reply = worker.ask(&format!("acquire {name}"));
    for _ in 0..20 {
        if reply.starts_with("granted ") {
            return;
        }
        reply = worker.ask(&format!("acquire {name}"));
    }
    panic!("not granted: {reply}");
}

/// Starts the program `src/bin/worker.rs`, connected to a URL.
pub(crate) fn start_worker(url: &str, ttl: Duration) -> WorkerProcess {
    let mut worker = WorkerProcess::spawn(&mut Command::new(env!("CARGO_BIN_EXE_worker"))).expect("a worker");
    assert_eq!(worker.ask(&format!("connect {url} {}", ttl.as_millis())), "connected");
    worker
}
