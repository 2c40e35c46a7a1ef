//! Signs of life: one small file per session. Its owner writes the deadline into it, and has a lock on it as long as
//! its process lives.
//!
//! Ending a session is decided only under the log's lock, after looking at the file at that moment.

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
use super::place::{Inode, inode_of};
use crate::BootInstant;

/// The sessions that this process keeps, and how it looks at those of others.
pub(super) struct Alive {
    directory: PathBuf,
    access: Access,
    boot: u64,
    own: HashMap<SessionId, Own>,
}

struct Own {
    /// Locked; the lock goes when the process does.
    file: File,
    deadline: BootInstant,
}

/// What a session's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// It lives until then, unless it is kept alive or its process dies.
    Until { deadline: BootInstant, pid: Option<u32> },
    /// Its deadline has passed, its process is dead, or the host was booted since.
    Over,
    /// There is no file, or it says nothing.
    Lost,
    /// This user may not look.
    Hidden,
}

/// How a keep-alive went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    /// Nobody can have ended the session meanwhile.
    InTime,
    /// Somebody may have: the log knows.
    Perhaps,
    /// The deadline had passed.
    TooLate,
    /// Its file is not this process's to write.
    NotOurs,
}

/// Who writes the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// The process that has the lock on the file.
    Process(u32),
    /// Any process, under the log's lock.
    Anybody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    keeper: Keeper,
    boot: u64,
    deadline: BootInstant,
}

const MAGIC: [u8; 4] = *b"PLSS";
const RECORD: usize = 28;

impl Record {
    fn encode(&self) -> [u8; RECORD] {
        let pid = match self.keeper {
            Keeper::Process(pid) => pid,
            Keeper::Anybody => 0,
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

    /// `None` for bytes that were not written in one piece.
    fn decode(bytes: &[u8; RECORD]) -> Option<Record> {
        let (head, sum) = bytes.split_at(24);
        if head[..4] != MAGIC || sum != crc32fast::hash(head).to_le_bytes() {
            return None;
        }
        let pid = u32::from_le_bytes(head[4..8].try_into().ok()?);
        Some(Record {
            keeper: if pid == 0 { Keeper::Anybody } else { Keeper::Process(pid) },
            boot: u64::from_le_bytes(head[8..16].try_into().ok()?),
            deadline: BootInstant::from_ns(u64::from_le_bytes(head[16..24].try_into().ok()?)),
        })
    }

    /// A read may meet a write halfway; it is over in a moment.
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

impl Alive {
    pub(super) fn new(directory: PathBuf, access: Access, boot: u64) -> Alive {
        Alive { directory, access, boot, own: HashMap::new() }
    }

    pub(super) fn path(&self, session: SessionId) -> PathBuf {
        self.directory.join(session.to_string())
    }

    pub(super) fn is_own(&self, session: SessionId) -> bool {
        self.own.contains_key(&session)
    }

    /// What says that the process of a session of this process lives: the lock goes with its last copy. Without one
    /// the session ends with the process, and no promise depends on more.
    pub(super) fn lifeline(&self, session: SessionId) -> Option<OwnedFd> {
        Some(self.own.get(&session)?.file.try_clone().ok()?.into())
    }

    /// The session of this process whose deadline comes first.
    pub(super) fn first_own(&self) -> Option<(BootInstant, SessionId)> {
        self.own.iter().map(|(session, own)| (own.deadline, *session)).min()
    }

    /// Makes the file of a session of this process. The caller has the log's lock, and nobody knows the session yet.
    pub(super) fn create(&mut self, session: SessionId, ttl: Ttl) -> io::Result<()> {
        let file = self.create_file(session)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let deadline = from_now(ttl);
        self.own_record(deadline).write(&file)?;
        self.own.insert(session, Own { file, deadline });
        Ok(())
    }

    fn create_file(&self, session: SessionId) -> io::Result<File> {
        let path = self.path(session);
        // A commit that failed may have left one behind.
        drop(fs::remove_file(&path));
        self.access.create(&path)
    }

    /// Writes a new deadline for a session of this process. Needs no lock: nobody else writes it, and whoever ends
    /// the session has read the clock before the file.
    pub(super) fn renew(&mut self, session: SessionId, ttl: Ttl) -> io::Result<Renewed> {
        let path = self.path(session);
        let Some(own) = self.own.get(&session) else { return Ok(Renewed::NotOurs) };
        let began = BootInstant::now();
        if began >= own.deadline {
            return Ok(Renewed::TooLate);
        }
        let deadline = began + millis(ttl);
        let record = self.own_record(deadline);
        let Some(own) = self.own.get_mut(&session) else { return Ok(Renewed::NotOurs) };
        record.write(&own.file)?;
        // Also one that was moved away: others look for it at its path.
        let was_removed = inode_of(&path)? != Some(Inode::of(&own.file.metadata()?));
        if was_removed {
            self.access.create_directory(&self.directory)?;
            let file = self.access.open_or_create(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            record.write(&file)?;
            own.file = file;
        }
        let before = std::mem::replace(&mut own.deadline, deadline);
        Ok(if !was_removed && BootInstant::now() < before { Renewed::InTime } else { Renewed::Perhaps })
    }

    /// Writes a new deadline for a session of this process, which then lives by that alone, whatever becomes of
    /// processes. On the disk, so that it is known after a reboot too. The caller has the log's lock.
    pub(super) fn leave(&mut self, session: SessionId, began: BootInstant, ttl: Ttl) -> io::Result<Renewed> {
        let Some(own) = self.own.get(&session) else { return self.renew_left(session, began, ttl) };
        if own.deadline.has_passed() {
            return Ok(Renewed::TooLate);
        }
        let file = self.access.open_or_create(&self.path(session))?;
        self.anybodys_record(began + millis(ttl)).write(&file)?;
        file.sync_all()?;
        File::open(&self.directory)?.sync_all()?;
        // Only now the lock on the file goes, which said that the process lives.
        self.own.remove(&session);
        Ok(Renewed::InTime)
    }

    /// Whether a session lives by its TTL alone, in whatever boot it was left.
    pub(super) fn was_left(&self, session: SessionId) -> bool {
        let record = File::open(self.path(session)).and_then(|file| Record::read(&file));
        matches!(record, Ok(Some(Record { keeper: Keeper::Anybody, .. })))
    }

    /// Writes a new deadline for a session that was left. The caller has the log's lock.
    pub(super) fn renew_left(&self, session: SessionId, began: BootInstant, ttl: Ttl) -> io::Result<Renewed> {
        let file = match open(&self.path(session)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.stand_in(session, ttl);
                return Ok(Renewed::InTime);
            }
            file => file?,
        };
        let deadline = began + millis(ttl);
        match Record::read(&file)? {
            Some(Record { keeper: Keeper::Process(_), .. }) => Ok(Renewed::NotOurs),
            Some(record) if record.boot != self.boot || record.deadline.has_passed() => Ok(Renewed::TooLate),
            Some(record) if record.deadline >= deadline => Ok(Renewed::InTime),
            _ => self.anybodys_record(deadline).write(&file).map(|()| Renewed::InTime),
        }
    }

    /// The process that keeps a session alive, if one does.
    pub(super) fn keeper(&self, session: SessionId) -> Option<u32> {
        let record = Record::read(&File::open(self.path(session)).ok()?).ok()??;
        match record.keeper {
            Keeper::Process(pid) => Some(pid),
            Keeper::Anybody => None,
        }
    }

    /// Gives a session that was just opened its full TTL from now on. The caller has the log's lock.
    pub(super) fn begin(&mut self, session: SessionId, ttl: Ttl) {
        let deadline = from_now(ttl);
        let record = self.own_record(deadline);
        match self.own.get_mut(&session) {
            Some(own) if record.write(&own.file).is_ok() => own.deadline = deadline,
            Some(_) => {}
            None => self.stand_in(session, ttl),
        }
    }

    /// How a session is.
    pub(super) fn look(&self, session: SessionId) -> Sign {
        // The clock first: a deadline that is written after this cannot be missed.
        let now = BootInstant::now();
        if let Some(Own { deadline, .. }) = self.own.get(&session) {
            let until = Sign::Until { deadline: *deadline, pid: None };
            return if *deadline <= now { Sign::Over } else { until };
        }
        let file = match File::open(self.path(session)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Sign::Lost,
            Err(_) => return Sign::Hidden,
        };
        match Record::read(&file) {
            Err(_) => Sign::Hidden,
            Ok(None) => Sign::Lost,
            Ok(Some(record)) if record.boot != self.boot || record.deadline <= now => Sign::Over,
            Ok(Some(Record { keeper: Keeper::Anybody, deadline, .. })) => Sign::Until { deadline, pid: None },
            Ok(Some(Record { keeper: Keeper::Process(pid), deadline, .. })) => {
                // Those who look do not exclude each other, the owner excludes them all.
                match flock(&file, FlockOperation::NonBlockingLockShared) {
                    Ok(()) => Sign::Over,
                    Err(_) => Sign::Until { deadline, pid: Some(pid) },
                }
            }
        }
    }

    /// Makes a file for a session whose own is lost, so that it ends one TTL from now unless its owner comes back.
    /// The caller has the log's lock.
    pub(super) fn stand_in(&self, session: SessionId, ttl: Ttl) {
        let file = self.access.open_or_create(&self.path(session));
        let written = file.and_then(|file| self.anybodys_record(from_now(ttl)).write(&file));
        if let Err(error) = written {
            tracing::warn!(session = session.get(), %error, "cannot write the file of a session");
        }
    }

    /// Lets go of all sessions: what their files say means nothing to other processes any more.
    pub(super) fn forget_all(&mut self) {
        self.own.clear();
    }

    /// Lets go of a session that has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.own.remove(&session);
    }

    /// Lets go of a session that has ended, and removes its file.
    pub(super) fn remove(&mut self, session: SessionId) {
        self.forget(session);
        drop(fs::remove_file(self.path(session)));
    }

    fn own_record(&self, deadline: BootInstant) -> Record {
        Record { keeper: Keeper::Process(std::process::id()), boot: self.boot, deadline }
    }

    fn anybodys_record(&self, deadline: BootInstant) -> Record {
        Record { keeper: Keeper::Anybody, boot: self.boot, deadline }
    }
}

/// The processes whose sessions have files in a directory that they keep locked; 0 for one that does not say. Whatever
/// the database says: a process that lives has not noticed yet that the database is another one.
pub(super) fn living(directory: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    let files = entries.flatten().filter(|entry| is_number(&entry.file_name()));
    let mut living: Vec<_> = files.filter_map(|entry| keeper_of(&entry.path())).collect();
    living.sort_unstable();
    living.dedup();
    living
}

/// The process that keeps a session's file locked, if one does.
fn keeper_of(path: &Path) -> Option<u32> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        // A file that cannot be looked at may be anybody's.
        Err(_) => return Some(0),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    match Record::read(&file) {
        Ok(Some(Record { keeper: Keeper::Process(pid), .. })) => Some(pid),
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
    fn a_record_that_is_half_written_is_not_believed() {
        let old = Record { keeper: Keeper::Process(7), boot: 1, deadline: BootInstant::from_ns(u64::MAX) };
        let new = Record { deadline: BootInstant::from_ns(5), ..old };
        assert_eq!(Record::decode(&old.encode()), Some(old));
        for cut in 17..RECORD - 1 {
            let mut torn = old.encode();
            torn[..cut].copy_from_slice(&new.encode()[..cut]);
            assert_eq!(Record::decode(&torn), None, "cut at {cut}");
        }
    }
}
