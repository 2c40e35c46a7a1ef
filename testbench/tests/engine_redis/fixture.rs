//! A Redis of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::future::Future;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use palisade::{Error, LockGuard, Options, Palisade};
pub(crate) use palisade_testbench::asking::{look, taken, token, until_idle, until_queued};
use palisade_testbench::proxy::Proxy;
use palisade_testbench::servers::Redis;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(30);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let bounded = async { tokio::time::timeout(BOUND, promise).await };
    runtime.block_on(bounded).expect("it takes too long: something that should happen does not");
}

pub(crate) struct Fixture {
    pub(crate) redis: Redis,
    pub(crate) proxy: Proxy,
    // Removed after the process has ended.
    pub(crate) folder: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with(&[], &[])
    }

    /// With options and variables of the server.
    pub(crate) fn with(options: &[&str], variables: &[(&str, &str)]) -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        Fixture::inside(folder, options, variables)
    }

    pub(crate) fn inside(folder: TempDir, options: &[&str], variables: &[(&str, &str)]) -> Fixture {
        let redis = Redis::start_under(&folder.path().join("redis"), options, variables);
        let redis = redis.unwrap_or_else(|absent| panic!("{absent}"));
        let proxy = Proxy::start(redis.address).expect("a proxy");
        Fixture { redis, proxy, folder }
    }

    /// A client that reaches it directly.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        connect(&self.redis.url(), ttl).await
    }

    /// A client that reaches it through the proxy.
    pub(crate) async fn through_proxy(&self, ttl: Duration) -> Palisade {
        connect(&format!("redis://{}", self.proxy.address), ttl).await
    }
}

pub(crate) async fn connect(url: &str, ttl: Duration) -> Palisade {
    Options::new().label("a client").ttl(ttl).connect(url).await.expect("a client")
}

pub(crate) async fn take(client: &Palisade, name: &str) -> LockGuard {
    client.lock(name).dangerous_accept_failover().acquire().await.expect("its turn comes")
}

pub(crate) async fn try_take(client: &Palisade, name: &str) -> Option<LockGuard> {
    client.lock(name).dangerous_accept_failover().try_acquire().await.expect("an answer")
}

/// Waits for a lock in a task of its own.
pub(crate) fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).dangerous_accept_failover().acquire().await })
}

/// Releases on a line that may break meanwhile.
pub(crate) async fn give_back(guard: &LockGuard) {
    while let Err(error) = guard.release().await {
        assert!(error.is_retryable(), "{error}");
    }
}

/// A process that does as it is told: `src/bin/worker.rs`. It is killed when the test is done with it.
pub(crate) struct Worker {
    child: Child,
    tell: ChildStdin,
    heard: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(url: &str, ttl: Duration) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker");
        let tell = child.stdin.take().expect("it has an input");
        let heard = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        let mut worker = Worker { child, tell, heard };
        worker.tell(&format!("connect {url} {}", ttl.as_millis()));
        assert_eq!(worker.hear(), "connected");
        worker
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.tell, "{what}").expect("it listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        self.heard.next().and_then(Result::ok).expect("it answers")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
