//! Relays the connections of clients to the node that leads.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use tokio::io::copy_bidirectional;
use tokio::sync::watch;

use super::wire::{Purpose, RelayedClient};
use super::{PeerTls, Peers, dial};
use crate::node::Protocol;
use crate::storage::disk::Disk;
use crate::tls::ByteStream;

/// Passes clients on to the node that leads.
pub(crate) trait Relay {
    /// Relays a RESP connection until one side closes it, or another node leads. Returns at once if no other node leads.
    fn relay(self: Rc<Self>, stream: ByteStream, client: RelayedClient) -> LocalBoxFuture<'static, ()>;

    /// Returns a dialer for the HTTP thread, which relays request by request.
    fn leader_dialer(&self) -> LeaderDialer;

    /// Returns how many other members this node has a connection to.
    fn connected_members(&self) -> usize;
}

impl<D: Disk> Relay for Peers<D> {
    fn relay(self: Rc<Self>, mut stream: ByteStream, client: RelayedClient) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let mut leader = self.server.leader.subscribe();
            let Some(to) = *leader.borrow_and_update() else { return };
            let Some(address) = self.address(to) else { return };
            let purpose = Purpose::Relay { cluster: self.identity.cluster, to, protocol: Protocol::Resp, client };
            let dialed = tokio::select! {
                // The last leader may not answer at all.
                _ = leader.changed() => return,
                dialed = self.dial(&address, &purpose) => dialed,
            };
            let mut leading = match dialed {
                Ok(leading) => leading,
                Err(error) => return tracing::debug!(%error, "a client could not be relayed"),
            };
            tokio::select! {
                // The client connects again, and learns from the new leader what became of its requests.
                _ = leader.changed() => {}
                _ = copy_bidirectional(&mut stream, &mut leading) => {}
            }
        })
    }

    fn leader_dialer(&self) -> LeaderDialer {
        LeaderDialer {
            cluster: self.identity.cluster,
            member: self.identity.member,
            tls: self.tls.clone(),
            leader: self.server.leader.subscribe(),
            addresses: self.addresses.subscribe(),
        }
    }

    fn connected_members(&self) -> usize {
        self.links.borrow().values().filter(|link| link.is_connected()).count()
    }
}

/// Opens connections to the node that leads, on any thread.
#[derive(Clone)]
pub(crate) struct LeaderDialer {
    cluster: u128,
    /// This node.
    member: u64,
    tls: Option<PeerTls>,
    leader: watch::Receiver<Option<u64>>,
    addresses: watch::Receiver<BTreeMap<u64, String>>,
}

impl LeaderDialer {
    /// Returns the other member that leads. `None` if this node leads, or knows no leader.
    pub(crate) fn other_leader(&self) -> Option<u64> {
        self.leader.borrow().filter(|leader| *leader != self.member)
    }

    /// Waits until this node takes another member for the leader, or none.
    pub(crate) async fn until_replaced(&self, leader: u64) {
        // An error means that the service has ended.
        drop(self.leader.clone().wait_for(|known| *known != Some(leader)).await);
    }

    /// Opens a connection on which the leader serves this client over HTTP.
    pub(crate) async fn dial(&self, leader: u64, client: RelayedClient) -> io::Result<ByteStream> {
        let address = self.addresses.borrow().get(&leader).cloned();
        let address = address.ok_or_else(|| io::Error::other("its address is not known yet"))?;
        let purpose = Purpose::Relay { cluster: self.cluster, to: leader, protocol: Protocol::Http, client };
        dial(&address, self.tls.as_ref(), &purpose).await
    }
}
