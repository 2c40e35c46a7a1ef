//! Snapshots on their way from the leader to another member.

use std::io;
use std::rc::Rc;

use super::wire::{self, Answer, FRAME_BYTES, Purpose};
use super::{Peers, blocking};
use crate::node::Input;
use crate::replica::PeerMessage;
use crate::storage::disk::Disk;
use crate::storage::{Snapshot, read_snapshot, write_received_snapshot};
use crate::tls::ByteStream;

/// How many bytes of a snapshot are sent at once.
const CHUNK: usize = 256 << 10;
/// The most bytes of a snapshot: it must fit into the memory of the member that receives it.
const SNAPSHOT_BYTES: u64 = 8 << 30;

impl<D: Disk> Peers<D> {
    /// Sends the newest snapshot, with the message that it belongs to.
    pub(super) fn send_snapshot(self: &Rc<Self>, message: PeerMessage) {
        let peers = self.clone();
        let mut sending = self.sending.borrow_mut();
        while sending.try_join_next().is_some() {}
        sending.spawn_local(async move {
            let member = message.to();
            let sent = peers.try_send_snapshot(message).await;
            if let Err(error) = &sent {
                tracing::warn!(%error, "a snapshot could not be sent to another member");
            }
            peers.server.step(Input::SnapshotSent { member, has_arrived: sent.is_ok() });
        });
    }

    async fn try_send_snapshot(&self, message: PeerMessage) -> io::Result<()> {
        let to = message.to();
        let address = self.address(to).ok_or_else(|| io::Error::other("the member was removed"))?;
        let disk = self.disk.clone();
        let bytes = blocking(move || {
            let snapshot = read_snapshot(&disk).map_err(io::Error::other)?;
            let snapshot = snapshot.ok_or_else(|| io::Error::other("there is no snapshot"))?;
            postcard::to_allocvec(&snapshot).map_err(io::Error::other)
        });
        let bytes = bytes.await?;
        let purpose = Purpose::Snapshot {
            cluster: self.identity.cluster,
            from: self.identity.member,
            to,
            message: message.encode(),
            bytes: bytes.len() as u64,
        };
        let mut stream = self.dial(&address, &purpose).await?;
        for chunk in bytes.chunks(CHUNK) {
            wire::write_frame(&mut stream, chunk).await?;
            // Messages to members and replies to clients come first.
            tokio::task::yield_now().await;
        }
        tokio::io::AsyncWriteExt::flush(&mut stream).await?;
        match wire::receive(&mut stream).await? {
            Answer::Welcome => Ok(()),
            Answer::Refused(why) => Err(io::Error::other(why)),
            Answer::Removed => Err(io::Error::other(super::RemovedFromCluster)),
            Answer::InOtherCluster => Err(io::Error::other(super::InOtherCluster)),
        }
    }

    /// Receives a snapshot, makes it durable, and passes it to the node.
    pub(super) async fn receive_snapshot(
        &self,
        message: PeerMessage,
        size: u64,
        mut stream: ByteStream,
    ) -> io::Result<()> {
        if size > SNAPSHOT_BYTES {
            return Err(io::Error::other(format!("a snapshot of {size} bytes is too large")));
        }
        let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
        while (bytes.len() as u64) < size {
            wire::read_frame(&mut stream, &mut chunk, FRAME_BYTES).await?;
            bytes.extend_from_slice(&chunk);
        }
        let disk = self.disk.clone();
        let snapshot = blocking(move || {
            let snapshot: Snapshot = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
            let newest = read_snapshot(&disk).map_err(io::Error::other)?.map_or(0, |own| own.index);
            if snapshot.index > newest {
                write_received_snapshot(&disk, &snapshot).map_err(io::Error::other)?;
            }
            Ok(snapshot)
        });
        let snapshot = snapshot.await?;
        self.server.step(Input::ReceivedSnapshot(message, Box::new(snapshot)));
        wire::send(&mut stream, &Answer::Welcome).await
    }
}
