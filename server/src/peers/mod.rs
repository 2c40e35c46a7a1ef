//! The other members of the cluster: connections to them and from them, on a port of their own.
//!
//! Each member opens one connection to each other one, and sends its messages there. A snapshot has a connection of its own, so
//! that it delays no message.

mod admin;
mod forming;
mod link;
mod listener;
mod notices;
mod relay;
mod snapshots;
mod tls;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

pub use forming::Founding;
pub use tls::{PeerTls, PeerTlsFiles};

use crate::net::{Server, enable_keepalive};
use crate::node::Input;
use crate::replica::PeerMessage;
use crate::run::ServiceError;
use crate::storage::disk::Disk;
use crate::storage::{Identity, Member};
use crate::tls::ByteStream;
use link::Link;
use notices::Notices;
use wire::{Answer, Greeting, Purpose};

pub(crate) use admin::{AdminError, AdminReply, AdminResult, Administer, ClusterStatus, MemberReport, MemberStatus};
pub(crate) use forming::form;
pub(crate) use listener::accept;
pub(crate) use relay::{LeaderDialer, Relay};
pub(crate) use wire::RelayedClient;

/// How long a connection to another member, or its greeting, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long messages to another member may stay unacknowledged before their connection is opened again, in milliseconds.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS: u32 = 5_000;

/// How many requests of operators are carried out at once. The others wait.
const ADMIN_PLACES: usize = 2;

/// This member, and its connections to the others.
pub(crate) struct Peers<D: Disk> {
    identity: Identity,
    tls: Option<PeerTls>,
    disk: D,
    server: Rc<Server>,
    /// The version of the log that this member says it understands.
    log_version: u16,
    links: RefCell<BTreeMap<u64, Link>>,
    /// Where the other members listen, for other threads.
    addresses: watch::Sender<BTreeMap<u64, String>>,
    /// Snapshots on their way to other members.
    sending: RefCell<JoinSet<()>>,
    /// Held while a received snapshot is written.
    receiving: Arc<Mutex<()>>,
    /// Bounds the requests of operators that cost connections to other members, or memory.
    admin_places: Semaphore,
    /// The backup that an operator reads, with its number.
    backup: RefCell<Option<(u64, Bytes)>>,
    /// Why connections from other members have ended.
    notices: RefCell<Notices>,
    /// The newest connection of each member on which its messages come.
    inbound: RefCell<BTreeMap<u64, u64>>,
    /// The members whose messages are refused now, and why.
    refused: RefCell<BTreeMap<u64, String>>,
    /// The task that drops it.
    forgetting: RefCell<Option<AbortHandle>>,
    /// The members that were removed, as of the last applied entry.
    removed_members: watch::Sender<Vec<u64>>,
    /// Signalled when another member says that this one was removed.
    pub(crate) removed: Notify,
}

impl<D: Disk> Peers<D> {
    pub(crate) fn new(
        identity: Identity,
        tls: Option<PeerTls>,
        disk: D,
        server: Rc<Server>,
        log_version: u16,
    ) -> Rc<Peers<D>> {
        Rc::new(Peers {
            identity,
            tls,
            disk,
            server,
            log_version,
            links: RefCell::default(),
            addresses: watch::Sender::default(),
            sending: RefCell::default(),
            receiving: Arc::default(),
            admin_places: Semaphore::new(ADMIN_PLACES),
            backup: RefCell::default(),
            notices: RefCell::default(),
            inbound: RefCell::default(),
            refused: RefCell::default(),
            forgetting: RefCell::default(),
            removed_members: watch::Sender::default(),
            removed: Notify::new(),
        })
    }

    /// Notes a new connection of a member on which its messages come, and returns its number.
    fn begin_inbound(&self, member: u64) -> u64 {
        let mut inbound = self.inbound.borrow_mut();
        let newest = inbound.entry(member).or_default();
        *newest += 1;
        *newest
    }

    fn is_newest_inbound(&self, member: u64, connection: u64) -> bool {
        self.inbound.borrow().get(&member) == Some(&connection)
    }

    /// Says that this member must be replaced, and why.
    pub(crate) fn replace(&self, why: String) -> ServiceError {
        let node = self.identity.node.clone().unwrap_or_else(|| Member::new("NAME", "HOST:PORT"));
        ServiceError::Replace { name: node.name, address: node.address, why }
    }

    /// Closes the connections on which these members send their messages.
    pub(crate) fn refuse_removed(&self, members: &[u64]) {
        self.removed_members.send_replace(members.to_vec());
    }

    /// Opens connections to these members, as far as there are none, and closes all others.
    pub(crate) fn connect(self: &Rc<Self>, members: &BTreeMap<u64, Member>) {
        let mut links = self.links.borrow_mut();
        links.retain(|id, link| members.get(id).is_some_and(|member| member.address == link.address()));
        for (id, member) in members {
            links.entry(*id).or_insert_with(|| Link::open(self, *id, member.address.clone()));
        }
        self.addresses.send_replace(links.iter().map(|(id, link)| (*id, link.address().to_owned())).collect());
    }

    /// Sends messages, as far as there are connections. Those that are lost are sent again by the replica.
    pub(crate) fn send(self: &Rc<Self>, messages: Vec<PeerMessage>) {
        for message in messages {
            let to = message.to();
            if message.needs_snapshot() {
                self.send_snapshot(message);
                continue;
            }
            let is_sent = self.links.borrow().get(&to).is_some_and(|link| link.send(message));
            if !is_sent {
                self.server.step(Input::Unreachable { member: to });
            }
        }
    }

    fn address(&self, member: u64) -> Option<String> {
        self.links.borrow().get(&member).map(|link| link.address().to_owned())
    }

    /// Connects to another member.
    async fn dial(&self, address: &str, purpose: &Purpose) -> io::Result<ByteStream> {
        dial(address, self.tls.as_ref(), purpose).await
    }
}

/// A member of the cluster says that this node was removed.
#[derive(Debug, Error)]
#[error("this node was removed from the cluster")]
struct RemovedFromCluster;

/// A node that is invited has been a member of another cluster before.
#[derive(Debug, Error)]
#[error("the node there belongs to a cluster already")]
struct InOtherCluster;

/// Draws a number that no other member or backup has.
pub(crate) fn random_number() -> u64 {
    RandomState::new().hash_one(0).max(1)
}

/// Draws the number of a new cluster.
pub(crate) fn random_cluster() -> u128 {
    u128::from(random_number()) << 64 | u128::from(random_number())
}

/// Runs a job on another thread, and waits for it.
async fn blocking<T: Send + 'static>(job: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(job).await.map_err(io::Error::other)?
}

/// Connects to a member, and greets it.
async fn dial(address: &str, tls: Option<&PeerTls>, purpose: &Purpose) -> io::Result<ByteStream> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        // Failure only costs latency.
        drop(stream.set_nodelay(true));
        // The other machine may lose its power, and close nothing.
        enable_keepalive(&stream);
        if let Purpose::Messages { .. } = purpose {
            // After a cut without a sign, the system would wait for minutes until it sends again.
            #[cfg(target_os = "linux")]
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS);
        }
        let mut stream: ByteStream = match tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.connect(address, stream).await?),
        };
        wire::send(&mut stream, &Greeting::new(purpose)).await?;
        match wire::receive(&mut stream).await? {
            Answer::Welcome => Ok(stream),
            Answer::Refused(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
            Answer::Removed => Err(io::Error::other(RemovedFromCluster)),
            Answer::InOtherCluster => Err(io::Error::new(io::ErrorKind::PermissionDenied, InOtherCluster)),
        }
    };
    timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
