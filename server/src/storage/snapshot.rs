//! Snapshot files: the whole machine as of one entry.

use std::io;

use serde::{Deserialize, Serialize};

use super::disk::{Disk, DiskFile};
use super::error::StorageError;
use super::log::HeaderError;
use super::membership::Membership;
use super::remove;

const MAGIC: [u8; 8] = *b"PLSDSNP\n";
/// Magic, format, length of the body, checksum of the body.
const HEADER: usize = 24;
/// A snapshot that is being written.
const UNFINISHED: &str = "snapshot.new";
/// A snapshot of another node that is being written.
const RECEIVED: &str = "snapshot.received";

/// The state as of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The last entry that is in it.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The members as of that entry.
    pub membership: Membership,
    /// The machine.
    pub machine: Vec<u8>,
}

fn name(index: u64) -> String {
    format!("snapshot-{index:020}")
}

/// Makes a snapshot durable, then removes older ones.
pub(super) fn write<D: Disk>(disk: &D, snapshot: &Snapshot) -> Result<(), StorageError> {
    write_as(disk, snapshot, UNFINISHED)
}

/// Makes a snapshot of another node durable, unless there is a newer one, then removes older ones.
pub(super) fn write_received<D: Disk>(disk: &D, snapshot: &Snapshot) -> Result<(), StorageError> {
    if read(disk)?.is_some_and(|own| own.index >= snapshot.index) {
        // An earlier attempt may have failed after the file got its name.
        return disk.sync().map_err(|source| StorageError::io("name", disk.path(RECEIVED), source));
    }
    write_as(disk, snapshot, RECEIVED)
}

fn write_as<D: Disk>(disk: &D, snapshot: &Snapshot, unfinished: &str) -> Result<(), StorageError> {
    let written = try_write_as(disk, snapshot, unfinished);
    if written.is_err() {
        // On a full disk the log needs the space.
        drop(remove(disk, unfinished));
    }
    written
}

fn try_write_as<D: Disk>(disk: &D, snapshot: &Snapshot, unfinished: &str) -> Result<(), StorageError> {
    let failed = |what| move |source| StorageError::io(what, disk.path(unfinished), source);
    let body = postcard::to_allocvec(snapshot).map_err(io::Error::other).map_err(failed("encode"))?;
    remove(disk, unfinished).map_err(failed("remove"))?;
    let mut file = disk.create(unfinished).map_err(failed("create"))?;
    file.write_at(&header(&body), 0).map_err(failed("write"))?;
    file.write_at(&body, HEADER as u64).map_err(failed("write"))?;
    file.sync().map_err(failed("flush"))?;
    disk.rename(unfinished, &name(snapshot.index)).and_then(|()| disk.sync()).map_err(failed("name"))?;
    for old in all(disk)?.into_iter().filter(|old| *old < name(snapshot.index)) {
        remove(disk, &old).map_err(failed("remove"))?;
    }
    Ok(())
}

/// Removes the snapshots that were not finished when the node stopped.
pub(super) fn remove_unfinished<D: Disk>(disk: &D) -> Result<(), StorageError> {
    for name in [UNFINISHED, RECEIVED] {
        remove(disk, name).map_err(|source| StorageError::io("remove", disk.path(name), source))?;
    }
    Ok(())
}

/// Reads the newest snapshot.
pub(super) fn read<D: Disk>(disk: &D) -> Result<Option<Snapshot>, StorageError> {
    let Some(name) = all(disk)?.pop() else { return Ok(None) };
    let bytes = disk.read(&name).map_err(|source| StorageError::io("read", disk.path(&name), source))?;
    let body = check(&bytes).map_err(|wrong| wrong.of(disk.path(&name)))?;
    let damaged = |what: String| StorageError::damaged(disk.path(&name), HEADER, what);
    let snapshot: Snapshot = postcard::from_bytes(body).map_err(|error| damaged(error.to_string()))?;
    match name == self::name(snapshot.index) {
        true => Ok(Some(snapshot)),
        false => Err(damaged(format!("it ends at entry {}, and its name is that of another", snapshot.index))),
    }
}

fn all<D: Disk>(disk: &D) -> Result<Vec<String>, StorageError> {
    let mut names = disk.list().map_err(|source| StorageError::io("list", disk.path(""), source))?;
    names.retain(|name| name.starts_with("snapshot-"));
    names.sort();
    Ok(names)
}

fn header(body: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&super::FORMAT.to_le_bytes());
    bytes[12..20].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes[20..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes
}

fn check(bytes: &[u8]) -> Result<&[u8], HeaderError> {
    let (head, body) = bytes.split_at_checked(HEADER).ok_or(HeaderError::Damaged("it is too short"))?;
    if head[..8] != MAGIC {
        return Err(HeaderError::Damaged("it does not begin as a snapshot does"));
    }
    let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if format != super::FORMAT {
        return Err(HeaderError::Format(format));
    }
    if *head != header(body) {
        return Err(HeaderError::Damaged("the checksum does not match"));
    }
    Ok(body)
}
