//! What members say to each other: a greeting, its answer, then frames.

use std::io;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::node::Protocol;
use crate::storage::{Identity, Member};

/// The version of what members say to each other, and the oldest one that this build still speaks. A later version may add purposes, and
/// fields at the end of the greeting.
pub(super) const PROTOCOL: u16 = 2;
const OLDEST: u16 = 2;
const MAGIC: [u8; 8] = *b"PLSDPEER";
/// The most bytes of a greeting or its answer. A stranger may send one.
const GREETING_BYTES: usize = 64 << 10;
/// The most bytes of a frame: a message of the replicated log has about 1 MiB of entries, and at least one.
pub(super) const FRAME_BYTES: usize = 64 << 20;

/// The first words of a connection. What follows its fields may change; they may not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    magic: [u8; 8],
    pub(super) protocol: u16,
    /// The oldest protocol that the sender speaks.
    oldest: u16,
    /// The build, for messages.
    pub(super) build: String,
    /// The purpose, in the form of that protocol.
    purpose: Vec<u8>,
}

/// What a connection is for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// Messages of the replicated log follow, a frame each. The sender understands this version of the log, and may have users. The
    /// receiver connects to it too, also if its log does not name the sender yet.
    Messages { cluster: u128, from: u64, to: u64, log: u16, has_users: bool, node: Option<Member> },
    /// A snapshot follows, in frames, and the message that it belongs to.
    Snapshot { cluster: u128, from: u64, to: u64, message: Vec<u8>, bytes: u64 },
    /// The bytes of a client follow, which has connected to a node that does not lead.
    Relay { cluster: u128, to: u64, protocol: Protocol, client: RelayedClient },
    /// An empty node becomes this member.
    Invite(Box<Identity>),
    /// The member reports what it knows of itself.
    Report { cluster: u128, to: u64 },
}

/// A client whose connection another node relays.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RelayedClient {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// The user that its certificate names, which the other node has verified.
    pub(crate) user: Option<String>,
}

/// The answer to a greeting.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome,
    Refused(String),
    /// The member that greets was removed from the cluster.
    Removed,
    /// The node that is invited is a member of another cluster.
    InOtherCluster,
}

impl Greeting {
    pub(super) fn new(purpose: &Purpose) -> Greeting {
        let purpose = encode(purpose);
        Greeting {
            magic: MAGIC,
            protocol: PROTOCOL,
            oldest: OLDEST,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            purpose,
        }
    }

    /// Returns the purpose, or why the other side is refused.
    pub(super) fn purpose(&self) -> Result<Purpose, String> {
        if self.magic != MAGIC {
            return Err("this is the port of a Palisade cluster, where only its members connect".to_owned());
        }
        if self.protocol < OLDEST || self.oldest > PROTOCOL {
            return Err(format!(
                "this member (build {}) speaks versions {OLDEST} to {PROTOCOL} of the members' protocol, and the other one (build {}) \
                 versions {} to {}; upgrade the older one",
                env!("CARGO_PKG_VERSION"),
                self.build,
                self.oldest,
                self.protocol
            ));
        }
        postcard::from_bytes(&self.purpose).map_err(|error| format!("the greeting cannot be read: {error}"))
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    match postcard::to_allocvec(value) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("a greeting can always be encoded: {error}"),
    }
}

/// Sends a greeting or its answer.
pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), value: &impl Serialize) -> io::Result<()> {
    write_frame(stream, &encode(value)).await?;
    stream.flush().await
}

/// Receives a greeting or its answer.
pub(super) async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let mut bytes = Vec::new();
    read_frame(stream, &mut bytes, GREETING_BYTES).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(
            io::ErrorKind::InvalidData,
            "the other side does not speak as a node does without TLS: one of the two has no --peer-certificate, or this is a port \
             for clients",
        ),
        _ => error,
    })?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes the length of a frame, and the frame.
pub(super) async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::Error::other("the frame is too large"))?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(frame).await
}

/// Reads a frame of at most this many bytes.
pub(super) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut Vec<u8>,
    at_most: usize,
) -> io::Result<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > at_most {
        let what = format!("a frame of {length} bytes was announced, and {at_most} are allowed");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    into.clear();
    // Grows as the bytes come: an announcement alone costs no memory.
    let read = stream.take(length as u64).read_to_end(into).await?;
    if read < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_announced_frame_is_bounded() {
        let mut bytes = (u32::MAX).to_le_bytes().to_vec();
        bytes.extend([0; 100]);
        let error = receive::<Answer>(&mut &bytes[..]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_cut_frame_is_an_error() {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend([0; 7]);
        let error = receive::<Answer>(&mut &bytes[..]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn another_version_is_told_both() {
        let mut greeting =
            Greeting::new(&Purpose::Messages { cluster: 1, from: 2, to: 3, log: 1, has_users: false, node: None });
        greeting.protocol = PROTOCOL + 1;
        assert!(greeting.purpose().is_ok(), "a newer member that speaks this version too");
        greeting.oldest = PROTOCOL + 1;
        let why = greeting.purpose().unwrap_err();
        assert!(why.contains("versions 2 to 2") && why.contains("versions 3 to 3"), "{why}");
        greeting.oldest = 0;
        greeting.protocol = OLDEST - 1;
        assert!(greeting.purpose().is_err(), "an older member");
    }
}
