//! A client of each store that acquires and releases one lock.

use std::mem::ManuallyDrop;
use std::time::Duration;

use etcd_client::LockOptions;
use palisade::{LockGuard, Options, Palisade};
use zookeeper_client::{Acls, CreateMode, Error, LockPrefix};

use crate::driver::Contender;

const TTL: Duration = Duration::from_secs(30);
/// How long a call to another store than ours may take, when a node fails. Without it a call to a stopped node never ends.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A client with its own connection and session.
pub(crate) enum Client {
    Palisade { client: Palisade, lock: String, guard: Option<LockGuard> },
    Etcd { client: Box<etcd_client::Client>, lease: i64, lock: String, key: Vec<u8> },
    ZooKeeper { client: zookeeper_client::Client, folder: String, path: String },
}

impl Client {
    pub(crate) async fn palisade(url: &str, lock: &str) -> Client {
        let client = Options::new().ttl(TTL).connect(url).await.unwrap();
        Client::Palisade { client, lock: lock.to_owned(), guard: None }
    }

    pub(crate) async fn etcd(endpoints: &[String], lock: &str) -> Client {
        let mut client = Box::new(etcd_client::Client::connect(endpoints, None).await.unwrap());
        let lease = client.lease_grant(600, None).await.unwrap().id();
        Client::Etcd { client, lease, lock: lock.to_owned(), key: Vec::new() }
    }

    pub(crate) async fn zookeeper(addresses: &str, lock: &str) -> Client {
        let connector = zookeeper_client::Client::connector().with_session_timeout(TTL);
        let client = connector.connect(addresses).await.unwrap();
        Client::ZooKeeper { client, folder: format!("/bench/{lock}"), path: String::new() }
    }

    /// Uses another lock: a failed acquire may have left a claim on the last one.
    pub(crate) fn use_lock(&mut self, name: &str) {
        match self {
            Client::Palisade { lock, .. } | Client::Etcd { lock, .. } => name.clone_into(lock),
            Client::ZooKeeper { folder, .. } => *folder = format!("/bench/{name}"),
        }
    }

    pub(crate) async fn try_acquire(&mut self) -> Result<(), String> {
        match self {
            Client::Palisade { client, lock, guard } => {
                *guard = Some(client.lock(lock.as_str()).acquire().await.map_err(text)?);
            }
            Client::Etcd { client, lease, lock, key } => {
                let options = LockOptions::new().with_lease(*lease);
                *key = client.lock(lock.as_str(), Some(options)).await.map_err(text)?.key().to_vec();
            }
            Client::ZooKeeper { client, folder, path } => {
                let prefix = LockPrefix::new_curator(folder, "lock-").unwrap();
                let container = CreateMode::Container.with_acls(Acls::anyone_all());
                let options = zookeeper_client::LockOptions::new(Acls::anyone_all());
                let options = options.with_ancestor_options(container).unwrap();
                let held = client.lock(prefix, b"", options).await.map_err(text)?;
                // Dropping it would delete the node without an answer.
                ManuallyDrop::new(held).lock_path().clone_into(path);
            }
        }
        Ok(())
    }

    pub(crate) async fn try_release(&mut self) -> Result<(), String> {
        match self {
            Client::Palisade { guard, .. } => match guard.take() {
                Some(guard) => guard.release().await.map_err(text),
                None => Ok(()),
            },
            Client::Etcd { client, key, .. } => client.unlock(key.as_slice()).await.map(drop).map_err(text),
            Client::ZooKeeper { client, path, .. } => match client.delete(path, None).await {
                Ok(()) | Err(Error::NoNode) => Ok(()),
                Err(error) => Err(text(error)),
            },
        }
    }

    /// Acquires and releases the lock, if the store answers in time.
    pub(crate) async fn acquire_in_time(&mut self) -> Result<(), String> {
        match self {
            Client::Palisade { .. } => self.try_acquire().await,
            _ => tokio::time::timeout(CALL_TIMEOUT, self.try_acquire()).await.unwrap_or_else(|late| Err(text(late))),
        }
    }

    pub(crate) async fn release_in_time(&mut self) -> Result<(), String> {
        match self {
            Client::Palisade { .. } => self.try_release().await,
            _ => tokio::time::timeout(CALL_TIMEOUT, self.try_release()).await.unwrap_or_else(|late| Err(text(late))),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Contender for Client {
    async fn acquire(&mut self) {
        self.try_acquire().await.unwrap();
    }

    async fn release(&mut self) {
        self.try_release().await.unwrap();
    }

    async fn leave(self) {
        match self {
            Client::Palisade { client, .. } => drop(client.close().await),
            Client::Etcd { mut client, lease, .. } => drop(client.lease_revoke(lease).await),
            Client::ZooKeeper { client, .. } => {
                let mut state = client.state_watcher();
                drop(client);
                while !state.changed().await.is_terminated() {}
            }
        }
    }
}
