//! Clusters whose nodes make a snapshot of every few kilobytes of their log.

use std::path::Path;
use std::time::Duration;

use palisade::Options;
use palisade_cli::harness::network::Network;
use palisade_testbench::bounded::{until_some, within};
use palisade_testbench::servers::ServiceCluster;
use tempfile::TempDir;

pub(crate) const BOUND: Duration = Duration::from_secs(120);
pub(crate) const TTL: Duration = Duration::from_secs(20);

pub(crate) fn start(variables: &[(&str, &str)], folder: &Path) -> ServiceCluster {
    let variables = [variables, &[("SERVE_COMPACT_AFTER", "20000")]].concat();
    let started = ServiceCluster::start(env!("CARGO_BIN_EXE_serve"), folder, 3, &variables);
    started.unwrap_or_else(|absent| panic!("{absent}"))
}

pub(crate) fn cluster() -> (ServiceCluster, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (start(&[], folder.path()), folder)
}

/// Waits until a node answers that it leads, and returns it.
pub(crate) async fn leader(cluster: &ServiceCluster) -> usize {
    loop {
        if let Some(leader) = cluster.leader() {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until another node than this one leads.
pub(crate) async fn until_another_leads(cluster: &ServiceCluster, than: usize) {
    while cluster.leader().is_none_or(|leader| leader == than) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
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
    let client = within("a client is served", Options::new().ttl(TTL).connect(&cluster.url())).await.unwrap();
    let mut last = None;
    for _ in 0..times {
        let guard = until_some("the lock is granted", async || client.lock(lock).acquire().await.ok()).await;
        let token = guard.token().unwrap();
        assert!(last.is_none_or(|last| last < token), "{token} follows {last:?}");
        last = Some(token);
        drop(guard.release().await);
    }
}
