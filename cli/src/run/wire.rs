//! The messages between `palisade run` and its warden: one line of JSON each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// A message to the warden.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Replaces the deadlines: TERM at the first moment, if there is one, and KILL at the second. Both are in nanoseconds
    /// after boot.
    Deadlines { term_at_ns: Option<u64>, kill_at_ns: u64 },
    /// Pass on a signal.
    Signal(i32),
    /// The lock is lost: kill the command now.
    Lost,
}

/// A message from the warden.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs, in this process group.
    Started {
        /// The process group's number.
        group: i32,
    },
    /// The command was stopped from its terminal.
    Stopped,
    /// The command has ended, and its process group is empty.
    Ended {
        /// The command's exit code, or 128 plus the number of the signal that ended it.
        code: u8,
        /// Whether the warden ended the command.
        by_warden: bool,
    },
}

/// One end of the connection between `palisade run` and its warden.
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

    /// Sends a message without waiting. Returns whether it was sent: not if the peer is gone, which the next
    /// [`Wire::receive`] shows, or if hundreds of messages wait for a peer that is stopped.
    pub(super) fn send(&self, message: &impl Serialize) -> bool {
        let Ok(mut line) = serde_json::to_vec(message) else { return false };
        line.push(b'\n');
        // The system takes a short message as a whole or not at all.
        send(self.sink.as_ref(), &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    /// Returns the next message; `None` when the peer is gone.
    ///
    /// # Cancellation
    ///
    /// No message is lost.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        let line = self.lines.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }
}

/// Sends the command's stdin and the lock's lifeline: while a process has that descriptor open, the engine takes the
/// holder for alive.
pub(super) fn send_descriptors(
    stream: &UnixStream,
    stdin: BorrowedFd<'_>,
    lifeline: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let descriptors: Vec<_> = [stdin].into_iter().chain(lifeline).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(b".")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives the command's stdin and the lock's lifeline.
pub(super) fn receive_descriptors(stream: &UnixStream) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut sent = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let stdin = sent.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((stdin, sent.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_that_reads_nothing_keeps_nobody_waiting_and_finds_whole_messages_later() {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        let (ours, mut theirs) = (Wire::new(ours).expect("a wire"), Wire::new(theirs).expect("a wire"));
        let sent = (1..1_000_000).take_while(|number| ours.send(&Order::Signal(*number))).count();
        assert!((100..999_999).contains(&sent), "{sent}");
        for expected in 1..=sent {
            let order = theirs.receive().await;
            assert!(
                matches!(order, Some(Order::Signal(number)) if usize::try_from(number) == Ok(expected)),
                "{order:?}"
            );
        }
        assert!(ours.send(&Order::Lost));
        assert!(matches!(theirs.receive().await, Some(Order::Lost)));
        drop(theirs);
        assert!(!ours.send(&Order::Lost));
    }
}
