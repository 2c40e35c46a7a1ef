//! Clusters whose nodes make a snapshot of every few kilobytes of their log, and clients that go on when another node leads.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::{LockGuard, Options, Palisade};
use palisade_cli::harness::network::Network;
pub(crate) use palisade_testbench::bounded::BOUND;
use palisade_testbench::bounded::{until, until_some};
use palisade_testbench::fixture::retryable;
use palisade_testbench::servers::ServiceCluster;
use tempfile::TempDir;

/// Longer than several elections, and longer than a machine stands still.
pub(crate) const TTL: Duration = Duration::from_secs(60);
/// The shortest time without a word of the leader after which a node asks for votes.
pub(crate) const ELECTION: Duration = Duration::from_secs(1);
/// How often a test is tried that a machine which stands still makes fail.
const ATTEMPTS: usize = 5;

pub(crate) fn start(variables: &[(&str, &str)], folder: &Path) -> ServiceCluster {
    let variables = [variables, &[("SERVE_COMPACT_AFTER", "20000")]].concat();
    let started = ServiceCluster::start(env!("CARGO_BIN_EXE_serve"), folder, 3, &variables);
    started.unwrap_or_else(|absent| panic!("{absent}"))
}

pub(crate) fn cluster() -> (ServiceCluster, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (start(&[], folder.path()), folder)
}

/// Runs a test that expects the same node to lead, and calls not to time out, except where the test itself is the cause. On a
/// machine that stands still that is not so: an attempt that fails after an election or a standstill proves nothing, and
/// the test is tried again on another cluster.
pub(crate) fn calm(variables: &[(&str, &str)], test: impl Fn(&mut ServiceCluster)) {
    for attempt in 1..=ATTEMPTS {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = start(variables, folder.path());
        let (before, standstill) = (elections(&cluster), Standstill::watch());
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(&mut cluster))) else { return };
        let is_excused = elections(&cluster) != before || standstill.longest() >= ELECTION / 2;
        if attempt == ATTEMPTS || !is_excused {
            resume_unwind(panic);
        }
    }
}

/// Returns how often the nodes say that they have begun to lead.
fn elections(cluster: &ServiceCluster) -> usize {
    let begins = |line: &&str| line.contains("this node is the leader") && !line.contains("no more");
    (0..cluster.len()).map(|at| cluster.log(at).lines().filter(begins).count()).sum()
}

/// Measures the longest time in which this process did not run.
struct Standstill {
    longest_ms: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Standstill {
    fn watch() -> Standstill {
        let (longest_ms, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        thread::spawn({
            let (longest_ms, is_over) = (longest_ms.clone(), is_over.clone());
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    thread::sleep(Duration::from_millis(10));
                    longest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
                }
            }
        });
        Standstill { longest_ms, is_over }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Waits until a node answers that it leads, and returns it.
pub(crate) async fn leader(cluster: &ServiceCluster) -> usize {
    until_some("a node leads", async || cluster.leader()).await
}

/// Waits until another node than this one leads.
pub(crate) async fn until_another_leads(cluster: &ServiceCluster, than: usize) {
    until("another node leads", async || cluster.leader().is_some_and(|leader| leader != than)).await;
}

/// Connects a client. Tries again while no node serves it.
pub(crate) async fn connect(url: &str) -> Palisade {
    until_some("a client is served", async || retryable(Options::new().ttl(TTL).connect(url).await)).await
}

/// Waits for a lock, also while no node leads.
pub(crate) async fn take(client: &Palisade, lock: &str) -> LockGuard {
    until_some("the lock is granted", async || retryable(client.lock(lock).acquire().await)).await
}

/// Releases a lock, also while no node leads.
pub(crate) async fn release(guard: &LockGuard) {
    until_some("the lock is released", async || retryable(guard.release().await)).await;
}

/// Starts a cluster of this many nodes, and the network between them.
pub(crate) fn on_network(size: usize, variables: &[(&str, &str)], folder: &Path) -> (ServiceCluster, Network) {
    let variables = [variables, &[("SERVE_COMPACT_AFTER", "20000")]].concat();
    let mut network = Network::start_recording("SERVE_NODE").unwrap();
    let through = |peer| network.add(peer).unwrap();
    let program = env!("CARGO_BIN_EXE_serve");
    let cluster = ServiceCluster::start_through(program, folder, size, &variables, through);
    (cluster.unwrap_or_else(|absent| panic!("{absent}")), network)
}

/// Takes and releases a lock again and again, as a client that knows all nodes.
pub(crate) async fn take_again_and_again(cluster: &ServiceCluster, lock: &str, times: usize) {
    let client = connect(&cluster.url()).await;
    let mut last = None;
    for _ in 0..times {
        let guard = take(&client, lock).await;
        let token = guard.token().unwrap();
        assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
        last = Some(token);
        drop(guard.release().await);
    }
}
