//! Refuses to open a database in a forked child of a process that has one open.

use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::StoreError;

/// The process id, in the upper half, and how many databases the process has open.
///
/// SQLite takes the locks of a file once per process, and counts their users in memory. A forked child has the counts but not the
/// locks, so another process may take the child for gone, and remove the `-wal` file that the child writes to. A mutex could
/// be locked when the process forks, so this is one number.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// A database that this process has open.
pub(super) struct OpenCount(());

impl OpenCount {
    /// Counts one more.
    pub(super) fn add(file: &Path) -> Result<OpenCount, StoreError> {
        let update = |open: u64| parent(open).is_none().then(|| upper(process::id()) | (lower(open) + 1));
        match OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(_) => Ok(OpenCount(())),
            Err(open) => Err(forked(file, open)),
        }
    }

    /// Refuses in a forked child of a process that had a database open.
    pub(super) fn check(file: &Path) -> Result<(), StoreError> {
        let open = OPEN.load(Ordering::Relaxed);
        parent(open).map_or(Ok(()), |_| Err(forked(file, open)))
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        // A child leaves the count of its parent alone.
        let update = |open: u64| parent(open).is_none().then(|| upper(process::id()) | lower(open).saturating_sub(1));
        let _ = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }
}

fn forked(file: &Path, open: u64) -> StoreError {
    StoreError::Forked { file: file.to_owned(), parent: parent(open).unwrap_or_default() }
}

/// Returns the process that had a database open when it forked this one.
fn parent(open: u64) -> Option<u32> {
    let pid = u32::try_from(open >> 32).unwrap_or_default();
    (lower(open) > 0 && pid != process::id()).then_some(pid)
}

fn upper(pid: u32) -> u64 {
    u64::from(pid) << 32
}

fn lower(open: u64) -> u64 {
    open & u64::from(u32::MAX)
}
