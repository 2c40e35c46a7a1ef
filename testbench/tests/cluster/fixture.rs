//! A cluster of three nodes, which make a snapshot of every few kilobytes of their log.

use std::path::Path;
use std::time::Duration;

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
