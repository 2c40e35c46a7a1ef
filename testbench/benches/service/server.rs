//! What is measured: a server of each kind, and a client of it that contends for one lock.

use std::path::Path;
use std::time::{Duration, Instant};

use palisade_testbench::servers::{self, Absent, processor_time};

use crate::etcd::Etcd;
use crate::ours::Palisade;
use crate::redis::Redis;
use crate::zookeeper::ZooKeeper;

/// A server that runs.
pub(crate) enum Server {
    Palisade(servers::Service),
    /// There are two of them, so it has a name.
    Redis(&'static str, servers::Redis),
    Etcd(servers::Etcd),
    ZooKeeper(servers::ZooKeeper),
}

impl Server {
    /// Ours, and then the peers.
    pub(crate) fn start_all(folder: &Path) -> Result<[Server; 5], Absent> {
        Ok([
            Server::Palisade(servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder)?),
            Server::Redis("redis (fsync always)", servers::Redis::start(folder, "always")?),
            Server::Redis("redis (no persistence)", servers::Redis::start(folder, "no")?),
            Server::Etcd(servers::Etcd::start(folder)?),
            Server::ZooKeeper(servers::ZooKeeper::start(folder)?),
        ])
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Server::Palisade(_) => "palisade",
            Server::Redis(name, _) => name,
            Server::Etcd(_) => "etcd",
            Server::ZooKeeper(_) => "zookeeper",
        }
    }

    /// The processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        processor_time(match self {
            Server::Palisade(server) => server.pid(),
            Server::Redis(_, server) => server.pid(),
            Server::Etcd(server) => server.pid(),
            Server::ZooKeeper(server) => server.pid(),
        })
    }

    /// A client on a connection of its own, with what it needs to have this lock. `waits` if others want it, too.
    pub(crate) async fn connect(&self, number: usize, lock: &str, waits: bool) -> Contender {
        match self {
            Server::Palisade(server) => {
                Contender::Palisade(Palisade::connect(&server.address.to_string(), lock, waits).await)
            }
            Server::Redis(_, server) => {
                Contender::Redis(Redis::connect(&server.address.to_string(), lock, number).await)
            }
            Server::Etcd(server) => Contender::Etcd(Box::new(Etcd::connect(&server.endpoint, lock).await)),
            Server::ZooKeeper(server) => {
                Contender::ZooKeeper(ZooKeeper::connect(&server.address.to_string(), lock).await)
            }
        }
    }
}

/// A client that wants one lock again and again.
pub(crate) enum Contender {
    Palisade(Palisade),
    Redis(Redis),
    Etcd(Box<Etcd>),
    ZooKeeper(ZooKeeper),
}

impl Contender {
    /// Waits until it has the lock.
    pub(crate) async fn acquire(&mut self) {
        match self {
            Contender::Palisade(client) => client.acquire().await,
            Contender::Redis(client) => client.acquire().await,
            Contender::Etcd(client) => client.acquire().await,
            Contender::ZooKeeper(client) => client.acquire().await,
        }
    }

    /// When its request for what it holds had been sent, if that can be told.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        match self {
            Contender::Palisade(client) => Some(client.asked_at),
            Contender::Redis(client) => Some(client.asked_at),
            Contender::Etcd(_) | Contender::ZooKeeper(_) => None,
        }
    }

    /// Gives it back, and waits until that is acknowledged.
    pub(crate) async fn release(&mut self) {
        match self {
            Contender::Palisade(client) => client.release().await,
            Contender::Redis(client) => client.release().await,
            Contender::Etcd(client) => client.release().await,
            Contender::ZooKeeper(client) => client.release().await,
        }
    }

    /// Leaves nothing behind.
    pub(crate) async fn leave(self) {
        match self {
            Contender::Palisade(client) => client.leave().await,
            // The line is all that it has.
            Contender::Redis(_) => {}
            Contender::Etcd(client) => client.leave().await,
            Contender::ZooKeeper(client) => client.leave().await,
        }
    }
}
