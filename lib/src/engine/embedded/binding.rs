//! The binding of a database to the files next to it, with the highest token that it has issued. It is in the file of
//! the log's lock, so that a database that was replaced, also by an older copy, is recognised.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// A random number that is also in the database. Every new binding has a new one.
pub(super) type BindingId = [u8; 16];

/// The identity of a database file. Unlike a device number it survives a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    inode: u64,
    /// The creation time, since inode numbers are reused; 0 if the file system does not have it.
    created_ns: u64,
}

impl Identity {
    pub(super) fn of(path: &Path) -> io::Result<Identity> {
        let found = fs::metadata(path)?;
        let created = found.created().ok().and_then(|created| created.duration_since(UNIX_EPOCH).ok());
        Ok(Identity { inode: found.ino(), created_ns: created.map_or(0, |created| created.as_nanos() as u64) })
    }
}

/// The binding in the file of the log's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) id: BindingId,
    pub(super) database: Identity,
    /// The inode numbers of SQLite's files, which stay the same while a process uses the database.
    pub(super) wal: u64,
    pub(super) shm: u64,
    /// The boot of the last write.
    pub(super) boot: u64,
    /// The highest issued token. Exact within that boot, since a power cut may undo the write.
    pub(super) issued: u64,
    /// No higher token was ever issued. Raised durably before the first token above it is issued.
    pub(super) reserved: u64,
}

const MAGIC: [u8; 4] = *b"PLSB";
const SIZE: usize = 80;
/// The binding follows the process id of the lock's holder.
const OFFSET: u64 = 32;

impl Binding {
    /// Returns `None` if there is no complete binding.
    pub(super) fn read(file: &File) -> io::Result<Option<Binding>> {
        let mut bytes = [0; SIZE];
        match file.read_exact_at(&mut bytes, OFFSET) {
            Ok(()) => Ok(Binding::decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the file has a binding that is damaged.
    pub(super) fn is_damaged(file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.len() > OFFSET && Binding::read(file)?.is_none())
    }

    /// Writes the binding. The caller has the log's lock.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), OFFSET)
    }

    fn encode(&self) -> [u8; SIZE] {
        let numbers = [
            self.database.inode,
            self.database.created_ns,
            self.wal,
            self.shm,
            self.boot,
            self.issued,
            self.reserved,
        ];
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&self.id);
        for (at, number) in bytes[20..76].chunks_exact_mut(8).zip(numbers) {
            at.copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[..76]);
        bytes[76..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; SIZE]) -> Option<Binding> {
        let (head, sum) = bytes.split_at(76);
        if head[..4] != MAGIC || sum != crc32fast::hash(head).to_le_bytes() {
            return None;
        }
        let mut numbers = head[20..].chunks_exact(8).map(|at| at.try_into().map(u64::from_le_bytes));
        let mut next = || numbers.next()?.ok();
        Some(Binding {
            id: head[4..20].try_into().ok()?,
            database: Identity { inode: next()?, created_ns: next()? },
            wal: next()?,
            shm: next()?,
            boot: next()?,
            issued: next()?,
            reserved: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_is_read_back_and_a_damaged_one_is_recognised() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Binding::read(&file).unwrap(), None);
        let database = Identity { inode: 1, created_ns: 2 };
        let binding = Binding { id: [7; 16], database, wal: 3, shm: 4, boot: 5, issued: 6, reserved: 1_006 };
        binding.write(&file).unwrap();
        assert_eq!(Binding::read(&file).unwrap(), Some(binding));
        assert!(!Binding::is_damaged(&file).unwrap());
        file.write_all_at(&[9], OFFSET + 40).unwrap();
        assert_eq!(Binding::read(&file).unwrap(), None);
        assert!(Binding::is_damaged(&file).unwrap());
        file.set_len(OFFSET).unwrap();
        assert!(!Binding::is_damaged(&file).unwrap());
    }
}
