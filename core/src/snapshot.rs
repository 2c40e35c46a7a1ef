//! Snapshots: equal states give equal bytes, and damaged bytes are refused.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machine::{Claim, Forced, Lock, LockEntry, Session};
use crate::slab::Slab;
use crate::{Limits, Machine, invariant};

/// The version that [`Machine::snapshot`] writes.
pub const SNAPSHOT_VERSION: u32 = 4;

const MAGIC: [u8; 8] = *b"PALISADE";
const HEADER: usize = MAGIC.len() + 4 + 4;

/// Why a snapshot cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The bytes do not begin with the magic number.
    #[error("this is not a snapshot of locks")]
    NotASnapshot,
    /// An older or a newer build wrote it.
    #[error(
        "the snapshot has version {found}, this build reads version {SNAPSHOT_VERSION}; use the build that wrote it"
    )]
    UnknownVersion {
        /// The version that wrote it.
        found: u32,
    },
    /// The bytes have changed since they were written.
    #[error("the snapshot is damaged: {what}; use another copy of it")]
    Damaged {
        /// The damage that was found.
        what: String,
    },
}

#[derive(Serialize)]
struct Written<'a> {
    limits: &'a Limits,
    last_token: u64,
    last_arrival: u64,
    sessions: &'a Slab<Session>,
    locks: &'a Slab<Lock>,
    claims: &'a Slab<Claim>,
    entries: &'a Slab<LockEntry>,
    forced: &'a VecDeque<Forced>,
}

#[derive(Deserialize)]
struct Read {
    limits: Limits,
    last_token: u64,
    last_arrival: u64,
    sessions: Slab<Session>,
    locks: Slab<Lock>,
    claims: Slab<Claim>,
    entries: Slab<LockEntry>,
    forced: VecDeque<Forced>,
}

impl Machine {
    /// Returns the whole machine as bytes. Equal machines give equal bytes.
    ///
    /// ```
    /// use palisade_core::{Limits, Machine};
    /// let bytes = Machine::new(Limits::default()).snapshot();
    /// assert_eq!(Machine::restore(&bytes)?.snapshot(), bytes);
    /// # Ok::<(), palisade_core::RestoreError>(())
    /// ```
    pub fn snapshot(&self) -> Vec<u8> {
        let written = Written {
            limits: &self.limits,
            last_token: self.last_token,
            last_arrival: self.last_arrival,
            sessions: &self.sessions,
            locks: &self.locks,
            claims: &self.claims,
            entries: &self.entries,
            forced: &self.forced,
        };
        let mut bytes = vec![0; HEADER];
        bytes = match postcard::to_extend(&written, bytes) {
            Ok(bytes) => bytes,
            Err(error) => unreachable!("writing to memory cannot fail: {error}"),
        };
        let checksum = crc32fast::hash(&bytes[HEADER..]);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Restores the machine from the bytes of [`Machine::snapshot`].
    ///
    /// # Errors
    ///
    /// The bytes are not a snapshot, of another version, or damaged.
    ///
    /// ```
    /// use palisade_core::{Machine, RestoreError};
    /// assert_eq!(Machine::restore(b"something else").err(), Some(RestoreError::NotASnapshot));
    /// ```
    pub fn restore(bytes: &[u8]) -> Result<Machine, RestoreError> {
        let damaged = |what: &str| RestoreError::Damaged { what: what.to_owned() };
        if bytes.len() < HEADER || bytes[..8] != MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(8) != SNAPSHOT_VERSION {
            return Err(RestoreError::UnknownVersion { found: word(8) });
        }
        if word(12) != crc32fast::hash(&bytes[HEADER..]) {
            return Err(damaged("its checksum does not match"));
        }
        let (read, rest) =
            postcard::take_from_bytes::<Read>(&bytes[HEADER..]).map_err(|e| damaged(&e.to_string()))?;
        if !rest.is_empty() {
            return Err(damaged("there is something behind its end"));
        }
        let mut machine = Machine::new(read.limits);
        (machine.last_token, machine.last_arrival) = (read.last_token, read.last_arrival);
        (machine.sessions, machine.locks) = (read.sessions, read.locks);
        (machine.claims, machine.entries) = (read.claims, read.entries);
        machine.forced = read.forced;
        invariant::check_links(&machine).map_err(|broken| damaged(&broken.to_string()))?;
        machine.index_everything();
        invariant::check(&machine).map_err(|broken| damaged(&broken.to_string()))?;
        Ok(machine)
    }
}
