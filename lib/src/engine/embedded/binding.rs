//! What binds the files beside a database to it, and the highest token that it has given. Kept in the file of the log's
//! lock, so that a database that was replaced by another one, or by an older copy of itself, is recognised.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// A random number that is also in the database. Binding the two again makes a new one.
pub(super) type BindingId = [u8; 16];

/// Which file a database is. Unlike a device number it stays the same when the host is booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    inode: u64,
    /// When the file was made; 0 where the file system does not know. Inode numbers are used again.
    born_ns: u64,
}

impl Identity {
    pub(super) fn of(path: &Path) -> io::Result<Identity> {
        let found = fs::metadata(path)?;
        let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Identity { inode: found.ino(), born_ns: born.map_or(0, |born| born.as_nanos() as u64) })
    }
}

/// What the file of the log's lock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) id: BindingId,
    pub(super) database: Identity,
    /// The inode numbers of SQLite's files, which stay the same as long as a process uses the database.
    pub(super) wal: u64,
    pub(super) shm: u64,
    /// The boot in which it was written last.
    pub(super) boot: u64,
    /// The highest token that was given. Exact within that boot: a power cut may take it back.
    pub(super) given: u64,
    /// No higher token was ever given. On the disk before the first token above it is.
    pub(super) reserved: u64,
}

const MAGIC: [u8; 4] = *b"PLSB";
const SIZE: usize = 80;
/// Behind the number of the process that has the lock.
const OFFSET: u64 = 32;

impl Binding {
    /// `None` when nothing was written, or not all of it.
    pub(super) fn read(file: &File) -> io::Result<Option<Binding>> {
        let mut bytes = [0; SIZE];
        match file.read_exact_at(&mut bytes, OFFSET) {
            Ok(()) => Ok(Binding::decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a binding was written here that cannot be read any more.
    pub(super) fn is_damaged(file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.len() > OFFSET && Binding::read(file)?.is_none())
    }

    /// The caller has the log's lock.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), OFFSET)
    }

    fn encode(&self) -> [u8; SIZE] {
        let numbers =
            [self.database.inode, self.database.born_ns, self.wal, self.shm, self.boot, self.given, self.reserved];
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
            database: Identity { inode: next()?, born_ns: next()? },
            wal: next()?,
            shm: next()?,
            boot: next()?,
            given: next()?,
            reserved: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_damaged_is_not() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Binding::read(&file).unwrap(), None);
        let database = Identity { inode: 1, born_ns: 2 };
        let binding = Binding { id: [7; 16], database, wal: 3, shm: 4, boot: 5, given: 6, reserved: 1_006 };
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
