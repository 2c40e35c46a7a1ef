//! What the command and its warden say to each other: one line of JSON each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// What the warden is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// From now on: TERM at the first moment, if there is one, KILL at the second, unless told otherwise before. Both
    /// in nanoseconds after boot.
    Until { term_at_ns: Option<u64>, kill_at_ns: u64 },
    /// Pass on a signal.
    Signal(i32),
    /// The lock is gone: end it now.
    Lost,
}

/// What the warden tells.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// It was stopped from its terminal.
    Stopped,
    /// It has ended, and nothing of it is left.
    Ended {
        /// Its exit code, 128 and the signal's number if one ended it.
        code: u8,
        /// Whether the warden ended it.
        by_warden: bool,
    },
}

/// One end of the line.
pub(super) struct Wire {
    lines: Lines<BufReader<OwnedReadHalf>>,
    sink: OwnedWriteHalf,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        let (source, sink) = tokio::net::UnixStream::from_std(stream)?.into_split();
        Ok(Wire { lines: BufReader::new(source).lines(), sink })
    }

    /// Says something. If nobody listens any more, that is noticed when nobody answers.
    pub(super) async fn say(&mut self, what: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(what) {
            line.push(b'\n');
            drop(self.sink.write_all(&line).await);
        }
    }

    /// What is said next; `None` when the other end is gone.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        let line = self.lines.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}

/// Hands over a descriptor.
pub(super) fn send_descriptor(stream: &UnixStream, descriptor: impl AsFd) -> io::Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(b".")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Takes a descriptor.
pub(super) fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    sent.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}
