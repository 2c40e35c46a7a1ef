//! Lease files: one small file per session, with its deadline. The process that owns the session keeps the file
//! locked until it exits.
//!
//! A session is only ended under the log's lock, after its file was read under that lock.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_core::{SessionId, Ttl};
use rustix::fs::{FlockOperation, flock};

use super::access::{Access, open};
use super::paths::{Inode, inode_of};
use crate::BootInstant;

/// The leases of this process, and access to those of others.
pub(super) struct Leases {
    directory: PathBuf,
    access: Access,
    boot: u64,
    own: HashMap<SessionId, OwnLease>,
}

struct OwnLease {
    /// Locked until the last copy of this descriptor is closed, which the exit of the process does.
    file: File,
    deadline: BootInstant,
}

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// It ends at this deadline unless it is renewed, or earlier if its process dies.
    Live { deadline: BootInstant, pid: Option<u32> },
    /// Its deadline has passed, its process is dead, or the host has rebooted.
    Expired,
    /// There is no file, or it has no valid record.
    Missing,
    /// This user may not read the file.
    Unreadable,
}

/// The result of a keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The deadline was extended before it passed, so no process can have ended the session.
    Renewed,
    /// Another process may have ended the session meanwhile. The log decides.
    Unverified,
    /// The deadline had passed.
    Expired,
    /// Another process owns the session.
    NotOwner,
}

/// The owner of a lease, which writes its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// This process, which keeps the file locked.
    Process(u32),
    /// No process: the session is detached. Any process may renew it, under the log's lock.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    owner: Owner,
    boot: u64,
    deadline: BootInstant,
}

const MAGIC: [u8; 4] = *b"PLSS";
/// The size of a record in bytes.
const RECORD: usize = 28;

impl Record {
    fn encode(&self) -> [u8; RECORD] {
        let pid = match self.owner {
            Owner::Process(pid) => pid,
            Owner::None => 0,
        };
        let mut bytes = [0; RECORD];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&pid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.boot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.deadline.as_ns().to_le_bytes());
        let sum = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns `None` for a partly written record.
    fn decode(bytes: &[u8; RECORD]) -> Option<Record> {
        let (head, sum) = bytes.split_at(24);
        if head[..4] != MAGIC || sum != crc32fast::hash(head).to_le_bytes() {
            return None;
        }
        let pid = u32::from_le_bytes(head[4..8].try_into().ok()?);
        Some(Record {
            owner: if pid == 0 { Owner::None } else { Owner::Process(pid) },
            boot: u64::from_le_bytes(head[8..16].try_into().ok()?),
            deadline: BootInstant::from_ns(u64::from_le_bytes(head[16..24].try_into().ok()?)),
        })
    }

    /// Reads a record. Retries, since another process may be writing it.
    fn read(file: &File) -> io::Result<Option<Record>> {
        for _ in 0..64 {
            let mut bytes = [0; RECORD];
            if file.read_at(&mut bytes, 0)? == RECORD
                && let Some(record) = Record::decode(&bytes)
            {
                return Ok(Some(record));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)
    }
}

impl Leases {
    pub(super) fn new(directory: PathBuf, access: Access, boot: u64) -> Leases {
        Leases { directory, access, boot, own: HashMap::new() }
    }

    pub(super) fn path(&self, session: SessionId) -> PathBuf {
        self.directory.join(session.to_string())
    }

    pub(super) fn is_own(&self, session: SessionId) -> bool {
        self.own.contains_key(&session)
    }

    /// Returns a copy of the locked descriptor. The session's lock on its file lasts until the last copy is closed.
    /// Without a copy the session ends with the process.
    pub(super) fn lifeline(&self, session: SessionId) -> Option<OwnedFd> {
        Some(self.own.get(&session)?.file.try_clone().ok()?.into())
    }

    /// Returns the session of this process with the earliest deadline.
    pub(super) fn first_own(&self) -> Option<(BootInstant, SessionId)> {
        self.own.iter().map(|(session, own)| (own.deadline, *session)).min()
    }

    /// Creates the file of a new session of this process. The caller has the log's lock.
    pub(super) fn create(&mut self, session: SessionId, ttl: Ttl) -> io::Result<()> {
        let file = self.create_file(session)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let deadline = from_now(ttl);
        self.own_record(deadline).write(&file)?;
        self.own.insert(session, OwnLease { file, deadline });
        Ok(())
    }

    fn create_file(&self, session: SessionId) -> io::Result<File> {
        let path = self.path(session);
        // A failed commit may have left a file.
        drop(fs::remove_file(&path));
        self.access.create(&path)
    }

    /// Writes a new deadline for a session of this process. Needs no lock: no other process writes it, and a process
    /// that ends the session reads the clock before the file.
    pub(super) fn renew(&mut self, session: SessionId, ttl: Ttl) -> io::Result<Renewal> {
        let path = self.path(session);
        let Some(own) = self.own.get(&session) else { return Ok(Renewal::NotOwner) };
        let began_at = BootInstant::now();
        if began_at >= own.deadline {
            return Ok(Renewal::Expired);
        }
        let deadline = began_at + millis(ttl);
        let record = self.own_record(deadline);
        let Some(own) = self.own.get_mut(&session) else { return Ok(Renewal::NotOwner) };
        record.write(&own.file)?;
        // A file that was moved away counts as removed, since other processes read its path.
        let was_removed = inode_of(&path)? != Some(Inode::of(&own.file.metadata()?));
        if was_removed {
            self.access.create_directory(&self.directory)?;
            let file = self.access.open_or_create(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            record.write(&file)?;
            own.file = file;
        }
        let before = std::mem::replace(&mut own.deadline, deadline);
        Ok(if !was_removed && BootInstant::now() < before { Renewal::Renewed } else { Renewal::Unverified })
    }

    /// Writes a new deadline for a session of this process, and detaches it from the process: the session then lasts until
    /// the deadline, even if all processes exit. Flushes, since it must survive a reboot. The caller has the log's
    /// lock.
    pub(super) fn detach(&mut self, session: SessionId, began_at: BootInstant, ttl: Ttl) -> io::Result<Renewal> {
        let Some(own) = self.own.get(&session) else { return self.renew_detached(session, began_at, ttl) };
        if own.deadline.has_passed() {
            return Ok(Renewal::Expired);
        }
        let file = self.access.open_or_create(&self.path(session))?;
        self.ownerless_record(began_at + millis(ttl)).write(&file)?;
        file.sync_all()?;
        File::open(&self.directory)?.sync_all()?;
        // Unlock the file only after the record says that the lease has no owner.
        self.own.remove(&session);
        Ok(Renewal::Renewed)
    }

    /// Returns whether a session has no owner, because its client detached from it in this boot or an earlier one.
    pub(super) fn is_detached(&self, session: SessionId) -> bool {
        let record = File::open(self.path(session)).and_then(|file| Record::read(&file));
        matches!(record, Ok(Some(Record { owner: Owner::None, .. })))
    }

    /// Writes a new deadline for a session that has no owner. The caller has the log's lock.
    pub(super) fn renew_detached(&self, session: SessionId, began_at: BootInstant, ttl: Ttl) -> io::Result<Renewal> {
        let file = match open(&self.path(session)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.recreate(session, ttl);
                return Ok(Renewal::Renewed);
            }
            file => file?,
        };
        let deadline = began_at + millis(ttl);
        match Record::read(&file)? {
            Some(Record { owner: Owner::Process(_), .. }) => Ok(Renewal::NotOwner),
            Some(record) if record.boot != self.boot || record.deadline.has_passed() => Ok(Renewal::Expired),
            Some(record) if record.deadline >= deadline => Ok(Renewal::Renewed),
            _ => self.ownerless_record(deadline).write(&file).map(|()| Renewal::Renewed),
        }
    }

    /// Returns the process that owns a session.
    pub(super) fn owner_pid(&self, session: SessionId) -> Option<u32> {
        let record = Record::read(&File::open(self.path(session)).ok()?).ok()??;
        match record.owner {
            Owner::Process(pid) => Some(pid),
            Owner::None => None,
        }
    }

    /// Starts the TTL of a session whose opening was just committed. The caller has the log's lock.
    pub(super) fn start(&mut self, session: SessionId, ttl: Ttl) {
        let deadline = from_now(ttl);
        let record = self.own_record(deadline);
        match self.own.get_mut(&session) {
            Some(own) if record.write(&own.file).is_ok() => own.deadline = deadline,
            Some(_) => {}
            None => self.recreate(session, ttl),
        }
    }

    /// Returns the state of a session's lease.
    pub(super) fn state(&self, session: SessionId) -> LeaseState {
        // Read the clock before the file, so that a renewal in between is not overlooked.
        let now = BootInstant::now();
        if let Some(OwnLease { deadline, .. }) = self.own.get(&session) {
            let live = LeaseState::Live { deadline: *deadline, pid: None };
            return if *deadline <= now { LeaseState::Expired } else { live };
        }
        let file = match File::open(self.path(session)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return LeaseState::Missing,
            Err(_) => return LeaseState::Unreadable,
        };
        match Record::read(&file) {
            Err(_) => LeaseState::Unreadable,
            Ok(None) => LeaseState::Missing,
            Ok(Some(record)) if record.boot != self.boot || record.deadline <= now => LeaseState::Expired,
            Ok(Some(Record { owner: Owner::None, deadline, .. })) => LeaseState::Live { deadline, pid: None },
            Ok(Some(Record { owner: Owner::Process(pid), deadline, .. })) => {
                // Readers take a shared lock, which only the owner excludes.
                match flock(&file, FlockOperation::NonBlockingLockShared) {
                    Ok(()) => LeaseState::Expired,
                    Err(_) => LeaseState::Live { deadline, pid: Some(pid) },
                }
            }
        }
    }

    /// Creates a missing file without an owner, so that the session ends one TTL from now unless its owner renews it.
    /// The caller has the log's lock.
    pub(super) fn recreate(&self, session: SessionId, ttl: Ttl) {
        let file = self.access.open_or_create(&self.path(session));
        let written = file.and_then(|file| self.ownerless_record(from_now(ttl)).write(&file));
        if let Err(error) = written {
            tracing::warn!(session = session.get(), %error, "cannot write the lease file of a session");
        }
    }

    /// Forgets all sessions, after the database was replaced.
    pub(super) fn forget_all(&mut self) {
        self.own.clear();
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.own.remove(&session);
    }

    /// Forgets a session that has ended, and removes its file.
    pub(super) fn remove(&mut self, session: SessionId) {
        self.forget(session);
        drop(fs::remove_file(self.path(session)));
    }

    fn own_record(&self, deadline: BootInstant) -> Record {
        Record { owner: Owner::Process(std::process::id()), boot: self.boot, deadline }
    }

    fn ownerless_record(&self, deadline: BootInstant) -> Record {
        Record { owner: Owner::None, boot: self.boot, deadline }
    }
}

/// Returns the processes that keep lease files in this directory locked; 0 stands for an unknown one. The database is
/// not asked: a process may not have noticed yet that it was replaced.
pub(super) fn live_owners(directory: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    let files = entries.flatten().filter(|entry| is_number(&entry.file_name()));
    let mut owners: Vec<_> = files.filter_map(|entry| live_owner(&entry.path())).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Returns the process that keeps a lease file locked.
fn live_owner(path: &Path) -> Option<u32> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        // The owner of an unreadable file is unknown.
        Err(_) => return Some(0),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    match Record::read(&file) {
        Ok(Some(Record { owner: Owner::Process(pid), .. })) => Some(pid),
        _ => Some(0),
    }
}

fn millis(ttl: Ttl) -> Duration {
    Duration::from_millis(ttl.as_ms())
}

fn from_now(ttl: Ttl) -> BootInstant {
    BootInstant::now() + millis(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partly_written_record_is_not_accepted() {
        let old = Record { owner: Owner::Process(7), boot: 1, deadline: BootInstant::from_ns(u64::MAX) };
        let new = Record { deadline: BootInstant::from_ns(5), ..old };
        assert_eq!(Record::decode(&old.encode()), Some(old));
        for cut in 17..RECORD - 1 {
            let mut torn = old.encode();
            torn[..cut].copy_from_slice(&new.encode()[..cut]);
            assert_eq!(Record::decode(&torn), None, "cut at {cut}");
        }
    }
}
