//! The connection on which this member sends its messages to another one.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, split};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use super::notices::Notices;
use super::wire::{self, Purpose};
use super::{Peers, RemovedFromCluster};
use crate::node::Input;
use crate::replica::PeerMessage;
use crate::storage::disk::Disk;
use crate::tls::ByteStream;

/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How many bytes may wait for a member that is slow to read. The replica sends again what was dropped.
const QUEUE_BYTES: usize = 64 << 20;
/// How many bytes are written to the socket at once.
const WRITE_BYTES: usize = 64 << 10;

/// A connection to one member, which is opened again whenever it breaks.
pub(super) struct Link {
    address: String,
    queue: mpsc::UnboundedSender<Vec<u8>>,
    state: Rc<State>,
    task: AbortHandle,
}

#[derive(Default)]
struct State {
    is_connected: Cell<bool>,
    queued: Cell<usize>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    pub(super) fn open<D: Disk>(peers: &Rc<Peers<D>>, member: u64, address: String) -> Link {
        let (queue, messages) = mpsc::unbounded_channel();
        let state = Rc::new(State::default());
        let running = run(peers.clone(), member, address.clone(), messages, state.clone());
        Link { address, queue, state, task: spawn_local(running).abort_handle() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state.is_connected.get()
    }

    /// Queues a message. Returns `false` if it is dropped.
    pub(super) fn send(&self, message: PeerMessage) -> bool {
        if !self.state.is_connected.get() || self.state.queued.get() > QUEUE_BYTES {
            return false;
        }
        let bytes = message.encode();
        self.state.queued.set(self.state.queued.get() + bytes.len());
        self.queue.send(bytes).is_ok()
    }
}

async fn run<D: Disk>(
    peers: Rc<Peers<D>>,
    member: u64,
    address: String,
    mut messages: mpsc::UnboundedReceiver<Vec<u8>>,
    state: Rc<State>,
) {
    let mut pause = FIRST_PAUSE;
    let mut notices = Notices::default();
    loop {
        let purpose = Purpose::Messages {
            cluster: peers.identity.cluster,
            from: peers.identity.member,
            to: member,
            log: peers.log_version,
            has_users: peers.server.users.is_some(),
            node: peers.identity.node.clone(),
        };
        match peers.dial(&address, &purpose).await {
            Ok(stream) => {
                tracing::info!(address, "connected to another member");
                (pause, notices) = (FIRST_PAUSE, Notices::default());
                state.is_connected.set(true);
                let error = write(stream, &mut messages, &state).await;
                state.is_connected.set(false);
                tracing::warn!(address, %error, "the connection to another member is closed");
                peers.server.step(Input::Suspect { member });
            }
            Err(error) => {
                // A member that cannot be reached may still lead the others; one that refuses does not run.
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    peers.server.step(Input::Suspect { member });
                }
                if error.get_ref().is_some_and(|cause| cause.is::<RemovedFromCluster>()) {
                    peers.removed.notify_one();
                }
                // A member that begins closes its first connection.
                if notices.is_due(&error.to_string(), 2) {
                    tracing::warn!(address, %error, "cannot connect to another member");
                }
            }
        }
        while messages.try_recv().is_ok() {}
        state.queued.set(0);
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Writes messages until the connection breaks, and returns why it did.
async fn write(stream: ByteStream, messages: &mut mpsc::UnboundedReceiver<Vec<u8>>, state: &State) -> io::Error {
    let (mut reader, writer) = split(stream);
    let mut writer = BufWriter::with_capacity(WRITE_BYTES, writer);
    let writing = async {
        while let Some(first) = messages.recv().await {
            let mut next = Some(first);
            while let Some(message) = next {
                state.queued.set(state.queued.get().saturating_sub(message.len()));
                wire::write_frame(&mut writer, &message).await?;
                next = messages.try_recv().ok();
            }
            writer.flush().await?;
        }
        Ok::<(), io::Error>(())
    };
    let mut byte = [0];
    tokio::select! {
        written = writing => written.err().unwrap_or_else(|| io::Error::other("the member was removed")),
        // The other side says nothing after its welcome.
        read = reader.read(&mut byte) => read.err().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
    }
}
