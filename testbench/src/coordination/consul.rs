//! Consul.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use palisade::engine::Failure;
use palisade::engine::consul::{Config, Consul};

use super::Store;
use crate::servers::{Absent, ConsulCluster};
use palisade_cli::harness::wall_clock::WallClock;

impl Store for ConsulCluster {
    type Engine = Consul;

    const SHORT_TTL: Duration = Duration::from_secs(2);

    fn start(folder: &Path) -> Result<ConsulCluster, Absent> {
        ConsulCluster::start_one(folder)
    }

    fn start_three(folder: &Path) -> Result<ConsulCluster, Absent> {
        ConsulCluster::start(folder)
    }

    /// Programs in Go read the clock without the C library, so `faketime` has no effect on them.
    fn start_with_clock(_: &Path, _: &WallClock) -> Option<Result<ConsulCluster, Absent>> {
        None
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    fn url(addresses: &[SocketAddr], prefix: &str) -> String {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("consul://{}/{prefix}", addresses.join(","))
    }

    async fn connect(url: &str) -> Result<Consul, Failure> {
        Consul::connect(Config::parse(url.trim_start_matches("consul:"))?).await
    }

    fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|member| self.leader_by(*member) == Some(*member))
    }

    fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    fn restart(&mut self, member: usize) -> Result<(), Absent> {
        self.members[member].restart()
    }

    fn stop(&self, member: usize) {
        self.members[member].stop();
    }

    fn go_on(&self, member: usize) {
        self.members[member].go_on();
    }

    async fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self.members[0].ctl(&["kv", "get", "-keys", "-separator=", &format!("{prefix}/")]);
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }
}
