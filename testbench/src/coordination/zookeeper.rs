//! ZooKeeper.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use palisade::engine::Failure;
use palisade::engine::zookeeper::{Config, Zookeeper};
use zookeeper_client::Client;

use super::Store;
use crate::servers::{Absent, ZooKeeper, ZooKeeperEnsemble};
use palisade_cli::harness::wall_clock::WallClock;

impl Store for ZooKeeperEnsemble {
    type Engine = Zookeeper;

    const SHORT_TTL: Duration = Duration::from_secs(2);
    const REMEMBERS_REQUESTS: bool = false;

    fn start(folder: &Path) -> Result<ZooKeeperEnsemble, Absent> {
        Ok(ZooKeeperEnsemble { servers: vec![ZooKeeper::start_quick(folder)?] })
    }

    fn start_three(folder: &Path) -> Result<ZooKeeperEnsemble, Absent> {
        ZooKeeperEnsemble::start(folder)
    }

    fn start_with_clock(folder: &Path, clock: &WallClock) -> Option<Result<ZooKeeperEnsemble, Absent>> {
        let server = ZooKeeper::start_under(folder, &clock.cached_variables());
        Some(server.map(|server| ZooKeeperEnsemble { servers: vec![server] }))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    fn url(addresses: &[SocketAddr], prefix: &str) -> String {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("zookeeper://{}/{prefix}", addresses.join(","))
    }

    async fn connect(url: &str) -> Result<Zookeeper, Failure> {
        Zookeeper::connect(Config::parse(url.trim_start_matches("zookeeper:"))?).await
    }

    fn leader(&self) -> Option<usize> {
        match self.servers.len() {
            1 => Some(0),
            _ => ZooKeeperEnsemble::leader(self),
        }
    }

    fn kill(&mut self, member: usize) {
        self.servers[member].kill();
    }

    fn restart(&mut self, member: usize) -> Result<(), Absent> {
        self.servers[member].restart()
    }

    fn stop(&self, member: usize) {
        self.servers[member].stop();
    }

    fn go_on(&self, member: usize) {
        self.servers[member].go_on();
    }

    /// The server removes the parents of claims a moment after they are empty.
    async fn keys(&self, prefix: &str) -> Vec<String> {
        let client = Client::connect(&self.servers[0].address.to_string()).await.expect("a client");
        let mut keys = Vec::new();
        for parent in ["locks", "sessions"].map(|parent| format!("/{prefix}/{parent}")) {
            let nodes = client.list_children(&parent).await.expect("the nodes of the namespace");
            keys.extend(nodes.into_iter().map(|node| format!("{parent}/{node}")));
        }
        keys
    }
}
