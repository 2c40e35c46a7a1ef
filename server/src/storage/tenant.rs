//! One process at a time uses a directory: two that write one log would destroy it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StorageError;

/// Whoever has it locked uses the directory; its process is written in it, for messages.
const NAME: &str = "in-use";
/// One that is about to end is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// The right to use a directory, for as long as it lives. The system takes it back when the process ends, however.
#[derive(Debug)]
pub(super) struct Tenant {
    _locked: File,
}

impl Tenant {
    /// Whether a process has used the directory with these files before.
    pub(super) fn has_been(names: &[String]) -> bool {
        names.iter().any(|name| name == NAME)
    }

    pub(super) fn move_in(directory: &Path) -> Result<Tenant, StorageError> {
        let path = directory.join(NAME);
        let failed = |what, source| StorageError::io(what, path.display().to_string(), source);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(|source| failed("open", source))?;
        let began = Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(failed("lock", error.into()));
            }
            if began.elapsed() > PATIENCE {
                return Err(StorageError::InUse { directory: directory.display().to_string(), pid: pid(&mut file) });
            }
            thread::sleep(Duration::from_millis(20));
        }
        let noted = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        noted.map_err(|source| failed("write", source))?;
        Ok(Tenant { _locked: file })
    }
}

/// The process that has moved in.
fn pid(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text).ok();
    let pid = read.and_then(|_| text.trim().parse::<u32>().ok());
    pid.map_or_else(|| "whose number is not known".to_owned(), |pid| pid.to_string())
}
