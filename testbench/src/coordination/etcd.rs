//! etcd.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use palisade::engine::Failure;
use palisade::engine::etcd::{Config, Etcd};

use super::Store;
use crate::servers::{Absent, EtcdCluster};
use palisade_cli::harness::wall_clock::WallClock;

impl Store for EtcdCluster {
    type Engine = Etcd;

    /// With its usual settings, etcd has no shorter leases.
    const SHORT_TTL: Duration = Duration::from_secs(2);

    fn start(folder: &Path) -> Result<EtcdCluster, Absent> {
        EtcdCluster::start_one(folder)
    }

    fn start_three(folder: &Path) -> Result<EtcdCluster, Absent> {
        EtcdCluster::start(folder)
    }

    /// Programs in Go read the clock without the C library, so `faketime` has no effect on them.
    fn start_with_clock(_: &Path, _: &WallClock) -> Option<Result<EtcdCluster, Absent>> {
        None
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    fn url(addresses: &[SocketAddr], prefix: &str) -> String {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        format!("etcd://{}/{prefix}", addresses.join(","))
    }

    async fn connect(url: &str) -> Result<Etcd, Failure> {
        Etcd::connect(Config::parse(url.trim_start_matches("etcd:"))?).await
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| member.is_leader().unwrap_or(false))
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
        let keys = self.members[0].ctl(&["get", "--prefix", &format!("{prefix}/"), "--keys-only"]);
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }
}
