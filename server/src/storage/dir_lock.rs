//! The lock of a data directory: two processes that write one log would destroy it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StorageError;

/// The locked file. It contains the process's number, for messages.
const NAME: &str = "in-use";
/// How long to wait for a process that is about to end.
const WAIT: Duration = Duration::from_millis(500);

/// The exclusive lock of a directory, until it is dropped. The system releases it when the process ends.
#[derive(Debug)]
pub(super) struct DirLock {
    _locked: File,
}

impl DirLock {
    /// Returns whether a process has used the directory with these files before.
    pub(super) fn was_used(names: &[String]) -> bool {
        names.iter().any(|name| name == NAME)
    }

    pub(super) fn acquire(directory: &Path) -> Result<DirLock, StorageError> {
        let path = directory.join(NAME);
        let failed = |what, source| StorageError::io(what, path.display().to_string(), source);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(|source| failed("open", source))?;
        let began = Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(failed("lock", error.into()));
            }
            if began.elapsed() > WAIT {
                return Err(StorageError::InUse { directory: directory.display().to_string(), pid: pid(&mut file) });
            }
            thread::sleep(Duration::from_millis(20));
        }
        let noted = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        noted.map_err(|source| failed("write", source))?;
        Ok(DirLock { _locked: file })
    }
}

/// Returns the number of the process that uses a directory, if one does.
pub fn user_of(directory: &Path) -> Option<String> {
    let mut file = File::open(directory.join(NAME)).ok()?;
    let is_used = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
    is_used.then(|| pid(&mut file))
}

/// Reads the number of the process that has the lock.
fn pid(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text).ok();
    let pid = read.and_then(|_| text.trim().parse::<u32>().ok());
    pid.map_or_else(|| "whose number is not known".to_owned(), |pid| pid.to_string())
}
