//! Snapshots on their way from the leader to another member.

use std::io;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

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
        let (disk, receiving) = (self.disk.clone(), self.receiving.clone());
        let snapshot = blocking(move || {
            let snapshot: Snapshot = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
            keep_received(&disk, &receiving, &snapshot)?;
            Ok(snapshot)
        });
        let snapshot = snapshot.await?;
        self.server.step(Input::ReceivedSnapshot(message, Box::new(snapshot)));
        wire::send(&mut stream, &Answer::Welcome).await
    }
}

/// Makes a received snapshot durable. Two leaders may send one at the same time, and both are written to the same file first.
fn keep_received<D: Disk>(disk: &D, receiving: &Mutex<()>, snapshot: &Snapshot) -> io::Result<()> {
    let _alone = receiving.lock().unwrap_or_else(PoisonError::into_inner);
    write_received_snapshot(disk, snapshot).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Membership;
    use crate::storage::disk::RealDisk;

    #[test]
    fn snapshots_that_are_received_at_the_same_time_are_written_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path().to_owned()).unwrap();
        let receiving = Mutex::new(());
        for round in 0..20 {
            std::thread::scope(|scope| {
                for sender in 1..=4 {
                    let index = round * 4 + sender;
                    let (disk, receiving) = (&disk, &receiving);
                    let machine = vec![index as u8; 50_000];
                    let snapshot = Snapshot { index, term: 1, membership: Membership::default(), machine };
                    scope.spawn(move || keep_received(disk, receiving, &snapshot).unwrap());
                }
            });
            let found = read_snapshot(&disk).unwrap().unwrap();
            assert_eq!((found.index, found.machine[0]), (round * 4 + 4, (round * 4 + 4) as u8));
        }
    }
}
