//! The messages between `palisade run` and its warden: one line of JSON each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Interest, Lines};
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
        /// Whether the command was never executed: it was not found, or cannot be.
        was_not_executed: bool,
    },
}

/// One end of the connection between `palisade run` and its warden.
pub(super) struct Wire {
    lines: Lines<BufReader<OwnedReadHalf>>,
    sink: OwnedWriteHalf,
    /// A message that waits for room.
    unsent: Option<Vec<u8>>,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        let (source, sink) = tokio::net::UnixStream::from_std(stream)?.into_split();
        Ok(Wire { lines: BufReader::new(source).lines(), sink, unsent: None })
    }

    /// Sends a message without waiting. Returns whether it was sent: not if the peer is gone, which the next
    /// [`Wire::receive`] shows, or if hundreds of messages wait for a peer that is stopped.
    pub(super) fn send(&self, message: &impl Serialize) -> bool {
        line_of(message).is_some_and(|line| send_line(&self.sink, &line).is_ok())
    }

    /// Sends a message that replaces the one before. If there is no room for it, [`Wire::receive`] sends it later.
    pub(super) fn send_latest(&mut self, message: &impl Serialize) {
        self.unsent = line_of(message).filter(|line| has_no_room(&self.sink, line));
    }

    /// Returns the next message; `None` when the peer is gone.
    ///
    /// # Cancellation
    ///
    /// No message is lost.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        let Wire { lines, sink, unsent } = self;
        loop {
            tokio::select! {
                biased;
                line = lines.next_line() => return serde_json::from_str(&line.ok()??).ok(),
                _ = sink.writable(), if unsent.is_some() => {
                    *unsent = unsent.take().filter(|line| has_no_room(sink, line));
                }
            }
        }
    }

    /// Returns the next message if it has arrived.
    pub(super) async fn try_receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        tokio::select! {
            biased;
            message = self.receive() => message,
            () = std::future::ready(()) => None,
        }
    }
}

fn line_of(message: &impl Serialize) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(message).ok()?;
    line.push(b'\n');
    Some(line)
}

fn send_line(sink: &OwnedWriteHalf, line: &[u8]) -> io::Result<()> {
    // The system takes a short message as a whole or not at all.
    let send = || send(sink.as_ref(), line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop);
    match send() {
        // The runtime learns from the second attempt that there is no room, so that `writable` waits for it.
        Err(Errno::AGAIN) => sink.as_ref().try_io(Interest::WRITABLE, || Ok(send()?)),
        sent => Ok(sent?),
    }
}

/// Sends a line. Returns whether it is to be sent again. A peer that is gone needs none.
fn has_no_room(sink: &OwnedWriteHalf, line: &[u8]) -> bool {
    send_line(sink, line).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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
    async fn what_cannot_be_sent_to_a_peer_that_is_gone_keeps_nobody_waiting() {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        let mut ours = Wire::new(ours).expect("a wire");
        drop(theirs);
        ours.send_latest(&Order::Lost);
        assert!(ours.receive::<Report>().await.is_none());
    }

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
        assert!(theirs.try_receive::<Order>().await.is_none());
        drop(theirs);
        assert!(!ours.send(&Order::Lost));
    }

    #[tokio::test]
    async fn the_last_of_the_messages_for_which_there_was_no_room_is_sent_when_there_is_some() {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        let (mut ours, mut theirs) = (Wire::new(ours).expect("a wire"), Wire::new(theirs).expect("a wire"));
        let sent = (1..1_000_000).take_while(|number| ours.send(&Order::Signal(*number))).count();
        for number in [-1, -2] {
            ours.send_latest(&Order::Signal(number));
        }
        assert!(ours.try_receive::<Report>().await.is_none());
        let read = async {
            for _ in 0..sent {
                theirs.receive::<Order>().await;
            }
            theirs.receive::<Order>().await
        };
        tokio::select! {
            report = ours.receive::<Report>() => panic!("{report:?}"),
            last = read => assert!(matches!(last, Some(Order::Signal(-2))), "{last:?}"),
        }
    }
}
