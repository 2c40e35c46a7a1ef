//! Which processes use a database, whatever name, link, mount or container they reach it through: each of them has a
//! shared lock on the file itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::Trouble;
use super::place::{Inode, inode_of};

/// The databases that this process uses.
///
/// One descriptor for each, which stays open until the process uses the database no more: closing any descriptor of a
/// file takes away the locks that SQLite has on it in this process.
static USED: Mutex<BTreeMap<Inode, Used>> = Mutex::new(BTreeMap::new());

struct Used {
    file: Arc<File>,
    times: usize,
}

/// This process uses a database. To be dropped after the connection to it.
pub(super) struct Presence {
    path: PathBuf,
    inode: Inode,
    file: Arc<File>,
    is_alone: bool,
}

impl Presence {
    /// Joins the users of a database. The first of them excludes all others until it [settles](Presence::settle).
    pub(super) fn join(path: &Path) -> Result<Presence, Trouble> {
        let trouble = |error| Trouble::io("open", path, error);
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = inode_of(path).map_err(trouble)?.ok_or_else(|| Trouble::Replaced(path.to_owned()))?;
        let present = |file, is_alone| Presence { path: path.to_owned(), inode, file, is_alone };
        if let Some(known) = used.get_mut(&inode) {
            known.times += 1;
            return Ok(present(known.file.clone(), false));
        }
        let file = Arc::new(File::open(path).map_err(trouble)?);
        if Inode::of(&file.metadata().map_err(trouble)?) != inode {
            return Err(Trouble::Replaced(path.to_owned()));
        }
        let lock = |operation| match flock(&*file, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(Trouble::io("lock", path, error.into())),
        };
        let is_alone = lock(FlockOperation::NonBlockingLockExclusive)?;
        if !is_alone && !lock(FlockOperation::NonBlockingLockShared)? {
            return Err(Trouble::in_use(path, users(inode)));
        }
        used.insert(inode, Used { file: file.clone(), times: 1 });
        Ok(present(file, is_alone))
    }

    /// Whether no other process used the database when this one joined. None can have joined since.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Lets others join. They may have come through another name in the moment in between: the caller looks once more
    /// whether everything beside the database still belongs to it.
    pub(super) fn settle(&mut self) -> Result<(), Trouble> {
        if !std::mem::take(&mut self.is_alone) {
            return Ok(());
        }
        match flock(&*self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(()),
            Err(_) => Err(Trouble::in_use(&self.path, self.users())),
        }
    }

    /// The other processes that use the database, as far as the system tells.
    pub(super) fn users(&self) -> Vec<u32> {
        users(self.inode)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = used.get_mut(&self.inode) {
            known.times -= 1;
            if known.times == 0 {
                used.remove(&self.inode);
            }
        }
    }
}

/// The processes that have a lock on a file, but for this one.
fn users(inode: Inode) -> Vec<u32> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (major, minor) = (rustix::fs::major(inode.device), rustix::fs::minor(inode.device));
    let place = format!("{major:02x}:{minor:02x}:{}", inode.number);
    let mut users: Vec<u32> = locks
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok(),
                _ => None,
            }
        })
        .filter(|pid| *pid != std::process::id())
        .collect();
    users.sort_unstable();
    users.dedup();
    users
}
