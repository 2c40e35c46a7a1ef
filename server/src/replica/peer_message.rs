//! Messages between members.

use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use thiserror::Error;

use super::tail::conf_state;
use crate::storage::Snapshot;

/// A message from one member to another.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerMessage(pub(super) Message);

/// What the sender of a message must have on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Its vote for this member in this term.
    Vote {
        /// The term.
        term: u64,
        /// The candidate.
        candidate: u64,
    },
    /// All entries up to this one.
    Entries {
        /// The index of the last one.
        last: u64,
    },
}

/// A message that cannot be read.
#[derive(Debug, Error)]
#[error("the message cannot be read: {0}")]
pub struct UnreadableMessage(String);

impl PeerMessage {
    /// Returns the member that it is for.
    pub fn to(&self) -> u64 {
        self.0.to
    }

    /// Returns the member that has sent it.
    pub fn from(&self) -> u64 {
        self.0.from
    }

    /// Returns whether the leader's snapshot belongs to it, which the host sends with it.
    pub fn needs_snapshot(&self) -> bool {
        self.0.msg_type == MessageType::MsgSnapshot
    }

    /// Returns what its sender must have on its disk, for tests of the storage.
    pub fn promise(&self) -> Option<Promise> {
        let message = &self.0;
        let vote = |candidate| Promise::Vote { term: message.term, candidate };
        match message.msg_type {
            MessageType::MsgRequestVote => Some(vote(message.from)),
            MessageType::MsgRequestVoteResponse if !message.reject => Some(vote(message.to)),
            MessageType::MsgAppendResponse if !message.reject => Some(Promise::Entries { last: message.index }),
            _ => None,
        }
    }

    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self.0.write_to_bytes() {
            Ok(bytes) => bytes,
            Err(error) => unreachable!("a message can always be encoded: {error}"),
        }
    }

    /// Reads a message of a member: the parser is not made for strangers.
    ///
    /// # Errors
    ///
    /// These bytes are no message.
    pub fn decode(bytes: &[u8]) -> Result<PeerMessage, UnreadableMessage> {
        let mut message = Message::default();
        message.merge_from_bytes(bytes).map_err(|error| UnreadableMessage(error.to_string()))?;
        Ok(PeerMessage(message))
    }

    /// Returns the message that is about this snapshot: the leader may have made a newer one since it began to send.
    pub(super) fn with_snapshot(mut self, snapshot: &Snapshot) -> PeerMessage {
        let metadata = self.0.mut_snapshot().mut_metadata();
        metadata.index = snapshot.index;
        metadata.term = snapshot.term;
        metadata.set_conf_state(conf_state(&snapshot.membership));
        self
    }
}
