//! The log's lock, which admits one writer at a time. Waiting for it neither polls nor blocks the caller's thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

use super::access::{Access, open};
use super::error::StoreError;
use super::paths::{Inode, Paths, inode_of};

/// The longest wait for the lock. A commit takes milliseconds, so its holder is probably stopped.
const LOCK_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

pub(super) struct LogLock {
    path: PathBuf,
    database: PathBuf,
    file: File,
}

/// The right to write. Dropping it unlocks.
pub(super) enum LogLockGuard<'a> {
    /// The descriptor of [`LogLock`], which was free at once.
    Own(&'a File),
    /// A separate descriptor, on which a thread waited. Closing it unlocks.
    Waited(#[expect(dead_code, reason = "kept for its drop")] File),
}

impl Drop for LogLockGuard<'_> {
    fn drop(&mut self) {
        if let LogLockGuard::Own(file) = self {
            // Fails only for an invalid descriptor.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

impl LogLock {
    /// Opens the file, or creates it. `check_existing` checks the database before that, and returns its access if it
    /// exists.
    pub(super) fn open(
        paths: &Paths,
        check_existing: impl FnOnce() -> Result<Option<Access>, StoreError>,
    ) -> Result<LogLock, StoreError> {
        let io_error = |error| StoreError::io("open", &paths.lock, error);
        let file = match open(&paths.lock) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let access = match check_existing()? {
                    Some(access) => access,
                    None => Access::of_directory(&paths.directory().metadata().map_err(io_error)?),
                };
                access.open_or_create(&paths.lock)
            }
            opened => opened,
        };
        Ok(LogLock { path: paths.lock.clone(), database: paths.file.clone(), file: file.map_err(io_error)? })
    }

    /// Returns another handle of the same file.
    pub(super) fn file(&self) -> Result<File, StoreError> {
        self.file.try_clone().map_err(|error| StoreError::io("open", &self.path, error))
    }

    /// Returns the inode. Fails if another file is at the path.
    pub(super) fn inode(&self) -> Result<Inode, StoreError> {
        let io_error = |error| StoreError::io("inspect", &self.path, error);
        let inode = Inode::of(&self.file.metadata().map_err(io_error)?);
        match inode_of(&self.path).map_err(io_error)? == Some(inode) {
            true => Ok(inode),
            false => Err(StoreError::Replaced(self.path.clone())),
        }
    }

    /// Waits for the lock, for a bounded time.
    pub(super) async fn acquire(&self) -> Result<LogLockGuard<'_>, StoreError> {
        let io_error = |error| StoreError::io("lock", &self.path, error);
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                write_holder(&self.file);
                return Ok(LogLockGuard::Own(&self.file));
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io_error(error.into())),
        }
        let waiting = self.wait().map_err(io_error)?;
        match tokio::time::timeout(LOCK_TIMEOUT, waiting).await {
            Ok(Ok(taken)) => Ok(LogLockGuard::Waited(taken.map_err(io_error)?)),
            Ok(Err(_)) => Err(io_error(io::Error::other("the thread that waited for it ended"))),
            Err(_) => {
                let waited_s = LOCK_TIMEOUT.as_secs();
                Err(StoreError::LogLockTimeout { file: self.database.clone(), pid: self.holder(), waited_s })
            }
        }
    }

    /// Waits on a separate thread, which a runtime that shuts down does not join. The thread locks a separate file
    /// description: if the caller has timed out meanwhile, closing that one unlocks.
    fn wait(&self) -> io::Result<oneshot::Receiver<io::Result<File>>> {
        let (sender, receiver) = oneshot::channel();
        let path = self.path.clone();
        let wait = move || {
            let taken = open(&path).and_then(|file| {
                rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
                write_holder(&file);
                Ok(file)
            });
            drop(sender.send(taken));
        };
        std::thread::Builder::new().name("palisade-wait".to_owned()).stack_size(64 * 1024).spawn(wait)?;
        Ok(receiver)
    }

    fn holder(&self) -> String {
        let mut text = [0; 20];
        let read = self.file.read_at(&mut text, 0).unwrap_or(0);
        let digits = text[..read].iter().take_while(|byte| byte.is_ascii_digit());
        let pid: String = digits.map(|byte| char::from(*byte)).collect();
        if pid.is_empty() { "?".to_owned() } else { pid }
    }
}

/// Writes the process id into the file, for error messages only, so it may fail. Skips an unchanged one, since a
/// write makes the next flush slower.
fn write_holder(file: &File) {
    let name = format!("{:<19}\n", std::process::id());
    let mut last = [0; 20];
    if file.read_at(&mut last, 0).is_ok() && last == *name.as_bytes() {
        return;
    }
    drop(file.write_all_at(name.as_bytes(), 0));
}
