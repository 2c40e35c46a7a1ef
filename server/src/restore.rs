//! A new cluster from a backup, or from the directory of a node that is left of an old one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use palisade_core::{Command, Limits, Machine, RestoreError, Token};
use thiserror::Error;

use crate::peers::{random_cluster, random_number};
use crate::replica::entry_commands;
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::{
    Backup, HardState, Identity, Member, Membership, Recovered, Snapshot, Stage, StorageError, Store, Watermark,
    Write, write_identity, write_snapshot, write_watermark,
};

/// How far tokens are raised above the last one that is known: more than the old cluster can have given out since. At 50,000
/// grants a second it would have needed two years.
const RAISE_BY: u64 = 1 << 42;
/// How much further they are raised for each second of the wall clock since the begin of 2026: more than a cluster gives out. So one
/// that is restored from the same backup later begins above the first one. A wrong clock costs only that.
const RAISE_BY_SECOND: u64 = 1 << 16;
const BEGIN_OF_2026: u64 = 1_767_225_600;

/// Where the locks come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The file of a backup.
    Backup(PathBuf),
    /// The directory of a node that does not run.
    Directory(PathBuf),
}

/// What a new cluster begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The number of the new cluster.
    pub cluster: u128,
    /// How many sessions it has. Those without a client end after their TTL.
    pub sessions: u32,
    /// How many locks are held or wanted.
    pub locks: u32,
    /// Every token that it gives is above this one.
    pub tokens_above: Token,
    /// The last entry of the source.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
}

/// Why there is no new cluster. The source is as it was.
#[derive(Debug, Error)]
pub enum RestoreFailed {
    /// A file cannot be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file cannot be read.
    #[error("cannot read {}: {why}", .file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// Its machine cannot be read.
    #[error("the locks cannot be read: {0}")]
    Machine(#[from] RestoreError),
    /// There is nothing in it.
    #[error("{0} has no locks, and no member of a cluster has ever written there")]
    Empty(String),
    /// The new directory has files.
    #[error("{0} is not empty; name a directory that does not exist yet")]
    InUse(String),
    /// Tokens cannot be raised so far.
    #[error("tokens cannot be raised above {0}: half of all tokens must be left")]
    TooHigh(u64),
}

/// Makes a directory in which a new cluster of one node begins, with the locks of the source. Its tokens are above all that the old
/// cluster can have given out, above those of a cluster that was begun with the same source at an earlier time (`unix_seconds` is
/// now), and above `tokens_above`.
///
/// # Errors
///
/// Nothing can be started in the directory.
pub fn restore(
    source: &Source,
    directory: &Path,
    node: Option<Member>,
    tokens_above: Option<Token>,
    unix_seconds: u64,
) -> Result<Restored, RestoreFailed> {
    let old = read(source)?;
    let known = old.tokens.max(old.machine.last_token().map_or(0, Token::get));
    let since = unix_seconds.saturating_sub(BEGIN_OF_2026).saturating_mul(RAISE_BY_SECOND);
    let above = known.saturating_add(RAISE_BY).saturating_add(since).min(Token::HIGHEST_RAISE.get());
    let above = above.max(tokens_above.map_or(0, Token::get));
    let above = Token::new(above).ok().filter(|above| above.get() > known && above.check_raise().is_ok());
    let above = above.ok_or(RestoreFailed::TooHigh(known))?;
    let mut machine = old.machine;
    machine.apply(Command::RaiseTokens { above });

    let disk = RealDisk::open_alone(directory.to_owned(), true)?;
    let names = disk.list().map_err(|why| RestoreFailed::Unreadable { file: directory.to_owned(), why })?;
    let is_data = |name: &String| {
        ["identity", "watermark"].contains(&name.as_str()) || name.starts_with("log-") || name.starts_with("snapshot")
    };
    if names.iter().any(is_data) {
        return Err(RestoreFailed::InUse(directory.display().to_string()));
    }
    let (cluster, member) = (random_cluster(), random_number());
    let members = node.iter().map(|node| (member, node.clone())).collect();
    let membership = Membership { voters: vec![member], members, ..Membership::default() };
    let (index, term) = (old.index + 1, old.term.max(1));
    let snapshot = Snapshot { index, term, membership: membership.clone(), machine: machine.snapshot() };
    write_snapshot(&disk, &snapshot)?;
    write_watermark(&disk, Watermark { index, tokens: above.get() })?;
    let (mut store, _) = Store::open(disk.clone(), None)?;
    store.append(&Write { hard_state: HardState { term, vote: 0, commit: index }, records: Vec::new() })?;
    // Without it the directory cannot be used, so it comes last.
    write_identity(
        &disk,
        &Identity { cluster, member, node, founders: membership, contacts: BTreeMap::new(), stage: Stage::Member },
    )?;
    let (sessions, locks) = (machine.session_count(), machine.lock_count());
    Ok(Restored { cluster, sessions, locks, tokens_above: above, index: old.index, term: old.last_term })
}

struct Old {
    machine: Machine,
    index: u64,
    /// The term of the last entry, and the latest one.
    last_term: u64,
    term: u64,
    /// The watermark.
    tokens: u64,
}

fn read(source: &Source) -> Result<Old, RestoreFailed> {
    match source {
        Source::Backup(file) => {
            let unreadable = |why| RestoreFailed::Unreadable { file: file.clone(), why };
            let bytes = std::fs::read(file).map_err(unreadable)?;
            let Snapshot { index, term, machine, .. } = Backup::decode(&bytes, &file.display().to_string())?.snapshot;
            Ok(Old { machine: Machine::restore(&machine)?, index, last_term: term, term, tokens: 0 })
        }
        Source::Directory(directory) => {
            if !directory.is_dir() {
                let why = io::ErrorKind::NotADirectory.into();
                return Err(RestoreFailed::Unreadable { file: directory.clone(), why });
            }
            let disk = RealDisk::open_alone(directory.clone(), true)?;
            // Entries that are missing at its end are lost in any case.
            let (_, recovered) = Store::open(disk, Some(u64::MAX))?;
            if recovered.last_index() == 0 {
                return Err(RestoreFailed::Empty(directory.display().to_string()));
            }
            replay(&recovered)
        }
    }
}

/// Applies everything in the log: also entries that this node does not know to be committed, because a majority may have them.
fn replay(recovered: &Recovered) -> Result<Old, RestoreFailed> {
    let mut machine = match &recovered.snapshot {
        Some(snapshot) => Machine::restore(&snapshot.machine)?,
        None => Machine::new(Limits::default()),
    };
    for record in recovered.records.iter().filter(|record| !record.is_membership) {
        for command in entry_commands(&record.data) {
            machine.apply(command);
        }
    }
    let (index, term) = (recovered.last_index(), recovered.hard_state.term);
    let last_term = recovered.records.last().map(|record| record.term);
    let last_term = last_term.or(recovered.snapshot.as_ref().map(|snapshot| snapshot.term)).unwrap_or(0);
    Ok(Old { machine, index, last_term, term, tokens: recovered.watermark.tokens })
}
