//! The shared lock that each process has on the database it uses. It is on the inode, so it is visible through every
//! name, link, mount and container.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StoreError;
use super::paths::{Inode, inode_of};

/// The databases that this process uses.
///
/// One descriptor for each, which stays open until the process no longer uses the database: closing any descriptor of
/// a file releases the locks that SQLite has on it in this process.
static OPEN: Mutex<BTreeMap<Inode, OpenDatabase>> = Mutex::new(BTreeMap::new());

struct OpenDatabase {
    file: Arc<File>,
    users: usize,
}

/// The lock on a database. Must be dropped after the connection to it.
pub(super) struct DatabaseLock {
    path: PathBuf,
    inode: Inode,
    file: Arc<File>,
    is_exclusive: bool,
}

impl DatabaseLock {
    /// Locks a database. The lock of its first user is exclusive until it is [downgraded](DatabaseLock::downgrade).
    pub(super) fn acquire(path: &Path) -> Result<DatabaseLock, StoreError> {
        let io_error = |error| StoreError::io("open", path, error);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = inode_of(path).map_err(io_error)?.ok_or_else(|| StoreError::Replaced(path.to_owned()))?;
        let acquired = |file, is_exclusive| DatabaseLock { path: path.to_owned(), inode, file, is_exclusive };
        if let Some(known) = open.get_mut(&inode) {
            known.users += 1;
            return Ok(acquired(known.file.clone(), false));
        }
        let file = Arc::new(File::open(path).map_err(io_error)?);
        if Inode::of(&file.metadata().map_err(io_error)?) != inode {
            return Err(StoreError::Replaced(path.to_owned()));
        }
        let lock = |operation| match flock(&*file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(StoreError::io("lock", path, error.into())),
        };
        let is_exclusive = lock(FlockOperation::NonBlockingLockExclusive)?;
        if !is_exclusive && !lock(FlockOperation::NonBlockingLockShared)? {
            return Err(StoreError::in_use(path, users(inode)));
        }
        open.insert(inode, OpenDatabase { file: file.clone(), users: 1 });
        Ok(acquired(file, is_exclusive))
    }

    /// Returns whether this process is the only user of the database.
    pub(super) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Makes the lock shared. Another process may come through another name just before that, so the caller checks
    /// again that the files next to the database belong to it.
    pub(super) fn downgrade(&mut self) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.is_exclusive) {
            return Ok(());
        }
        match flock(&*self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(()),
            Err(_) => Err(StoreError::in_use(&self.path, self.users())),
        }
    }

    /// Returns the other processes that use the database, as far as the system shows them.
    pub(super) fn users(&self) -> Vec<u32> {
        users(self.inode)
    }
}

impl Drop for DatabaseLock {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = open.get_mut(&self.inode) {
            known.users -= 1;
            if known.users == 0 {
                open.remove(&self.inode);
            }
        }
    }
}

/// Returns the other processes that have a lock on a file.
fn users(inode: Inode) -> Vec<u32> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (rustix::fs::major(inode.device), rustix::fs::minor(inode.device));
    let device_and_inode = format!("{major:02x}:{minor:02x}:{}", inode.number);
    let mut users: Vec<u32> = locks
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [_, "FLOCK", _, _, pid, at, ..] if at == device_and_inode => pid.parse().ok(),
                _ => None,
            }
        })
        .filter(|pid| *pid != std::process::id())
        .collect();
    users.sort_unstable();
    users.dedup();
    users
}
