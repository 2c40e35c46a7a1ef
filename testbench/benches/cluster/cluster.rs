//! The clusters, and what can happen to their nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use palisade_testbench::servers::{Absent, EtcdCluster, ServiceCluster, ZooKeeperEnsemble};

use crate::client::Client;
use crate::driver::is_wanted;

/// The bound of everything that is waited for.
const BOUND: Duration = Duration::from_secs(60);

/// A cluster of three nodes.
pub(crate) enum Cluster {
    Palisade(ServiceCluster),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
}

impl Cluster {
    /// Starts ours, and then the others.
    pub(crate) fn start_all(folder: &Path) -> Result<Vec<Cluster>, Absent> {
        let ours = ServiceCluster::start(env!("CARGO_BIN_EXE_serve"), &folder.join("palisade"), 3, &[])?;
        let mut clusters = vec![Cluster::Palisade(ours)];
        if is_wanted("etcd") {
            clusters.push(Cluster::Etcd(EtcdCluster::start(folder)?));
        }
        if is_wanted("zookeeper") {
            clusters.push(Cluster::ZooKeeper(ZooKeeperEnsemble::start_usual(folder)?));
        }
        Ok(clusters)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Cluster::Palisade(_) => "palisade",
            Cluster::Etcd(_) => "etcd",
            Cluster::ZooKeeper(_) => "ZooKeeper",
        }
    }

    /// Returns a client for a sample of speed: of etcd, one that is connected to the node that leads.
    pub(crate) async fn connect(&self, lock: &str) -> Client {
        match self {
            Cluster::Etcd(cluster) => {
                let leader = cluster.members.iter().find(|member| member.is_leader().unwrap_or(false)).unwrap();
                Client::etcd(std::slice::from_ref(&leader.endpoint), lock).await
            }
            _ => self.connect_to_all(lock).await,
        }
    }

    /// Returns a client that knows all nodes.
    pub(crate) async fn connect_to_all(&self, lock: &str) -> Client {
        match self {
            Cluster::Palisade(cluster) => Client::palisade(&cluster.url(), lock).await,
            Cluster::Etcd(cluster) => {
                let endpoints: Vec<_> = cluster.members.iter().map(|member| member.endpoint.clone()).collect();
                Client::etcd(&endpoints, lock).await
            }
            Cluster::ZooKeeper(cluster) => Client::zookeeper(&cluster.addresses(), lock).await,
        }
    }

    /// Waits until a node leads, and returns it.
    pub(crate) fn leader(&self) -> usize {
        let until = Instant::now() + BOUND;
        loop {
            let leader = match self {
                Cluster::Palisade(cluster) => cluster.leader(),
                Cluster::Etcd(cluster) => {
                    cluster.members.iter().position(|member| member.is_leader().unwrap_or(false))
                }
                Cluster::ZooKeeper(cluster) => cluster.leader(),
            };
            match leader {
                Some(leader) => return leader,
                None if Instant::now() > until => panic!("{}: no node leads", self.name()),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    pub(crate) fn kill(&mut self, at: usize) {
        match self {
            Cluster::Palisade(cluster) => cluster.kill(at),
            Cluster::Etcd(cluster) => cluster.members[at].kill(),
            Cluster::ZooKeeper(cluster) => cluster.servers[at].kill(),
        }
    }

    /// Starts a node again, and waits until it serves clients.
    pub(crate) fn restart(&mut self, at: usize) -> Result<(), Absent> {
        match self {
            Cluster::Palisade(cluster) => {
                cluster.restart(at)?;
                let until = Instant::now() + BOUND;
                while !ask(cluster.address(at), &["HELLO", "3"]).is_ok_and(|reply| reply.contains("master")) {
                    assert!(Instant::now() < until, "a node does not serve clients");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            }
            Cluster::Etcd(cluster) => cluster.members[at].restart(),
            Cluster::ZooKeeper(cluster) => cluster.servers[at].restart(),
        }
    }

    pub(crate) fn stop(&self, at: usize) {
        match self {
            Cluster::Palisade(cluster) => cluster.stop(at),
            Cluster::Etcd(cluster) => cluster.members[at].stop(),
            Cluster::ZooKeeper(cluster) => cluster.servers[at].stop(),
        }
    }

    pub(crate) fn go_on(&self, at: usize) {
        match self {
            Cluster::Palisade(cluster) => cluster.go_on(at),
            Cluster::Etcd(cluster) => cluster.members[at].go_on(),
            Cluster::ZooKeeper(cluster) => cluster.servers[at].go_on(),
        }
    }

    /// Lets another node lead. Returns whether the cluster can do that.
    pub(crate) fn transfer(&self, leader: usize) -> bool {
        match self {
            Cluster::Palisade(cluster) => {
                ask(cluster.address(leader), &["CLUSTER", "TRANSFER"]).is_ok_and(|reply| !reply.starts_with('-'))
            }
            Cluster::Etcd(_) | Cluster::ZooKeeper(_) => false,
        }
    }
}

/// Sends a command to a node of ours, and returns the beginning of its reply.
fn ask(address: SocketAddr, words: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let words: String = std::iter::once(format!("*{}\r\n", words.len()))
        .chain(words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())))
        .collect();
    stream.write_all(words.as_bytes())?;
    let mut reply = [0; 1024];
    let read = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
}
