//! One writer at a time: a lock on a file of its own, so that waiting for it neither polls nor blocks the thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

use super::access::{Access, open};
use super::error::Trouble;
use super::log;
use super::place::{Inode, Place, inode_of};

/// How long the log may be occupied before callers are told.
const LONGEST_WAIT: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

pub(super) struct LogLock {
    path: PathBuf,
    database: PathBuf,
    file: File,
}

/// The right to write, until it is dropped.
pub(super) enum Held<'a> {
    Own(&'a File),
    /// Closing it gives the right back.
    Waited(#[expect(dead_code, reason = "kept for its drop")] File),
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Held::Own(file) = self {
            // Fails only for a descriptor that is none.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

impl LogLock {
    /// Opens the file, or makes it. Beside a database of another program, or one that is in use under another name,
    /// nothing is made.
    pub(super) fn open(place: &Place) -> Result<LogLock, Trouble> {
        let trouble = |error| Trouble::io("open", &place.lock, error);
        let file = match open(&place.lock) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let access = match log::examine(place)? {
                    Some(access) => access,
                    None => Access::of_directory(&place.directory().metadata().map_err(trouble)?),
                };
                access.open_or_create(&place.lock)
            }
            opened => opened,
        };
        Ok(LogLock { path: place.lock.clone(), database: place.file.clone(), file: file.map_err(trouble)? })
    }

    /// Another handle of the same file.
    pub(super) fn file(&self) -> Result<File, Trouble> {
        self.file.try_clone().map_err(|error| Trouble::io("open", &self.path, error))
    }

    /// Which file it is. Fails if it is not the one at its path any more.
    pub(super) fn inode(&self) -> Result<Inode, Trouble> {
        let trouble = |error| Trouble::io("look at", &self.path, error);
        let inode = Inode::of(&self.file.metadata().map_err(trouble)?);
        match inode_of(&self.path).map_err(trouble)? == Some(inode) {
            true => Ok(inode),
            false => Err(Trouble::Replaced(self.path.clone())),
        }
    }

    /// Waits for its turn, but not for ever.
    pub(super) async fn take(&self) -> Result<Held<'_>, Trouble> {
        let trouble = |error| Trouble::io("lock", &self.path, error);
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                sign(&self.file);
                return Ok(Held::Own(&self.file));
            }
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(trouble(error.into())),
        }
        let waiting = self.wait().map_err(trouble)?;
        match tokio::time::timeout(LONGEST_WAIT, waiting).await {
            Ok(Ok(taken)) => Ok(Held::Waited(taken.map_err(trouble)?)),
            Ok(Err(_)) => Err(trouble(io::Error::other("the thread that waited for it ended"))),
            Err(_) => {
                let waited_s = LONGEST_WAIT.as_secs();
                Err(Trouble::Occupied { file: self.database.clone(), pid: self.holder(), waited_s })
            }
        }
    }

    /// Waits on a thread of its own, which a runtime that shuts down does not wait for. It locks a description of its
    /// own: if nobody wants the lock any more when it comes, closing the file gives back that one and no other.
    fn wait(&self) -> io::Result<oneshot::Receiver<io::Result<File>>> {
        let (sender, receiver) = oneshot::channel();
        let path = self.path.clone();
        let wait = move || {
            let taken = open(&path).and_then(|file| {
                rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
                sign(&file);
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

/// Says who has it. For people only, so it may fail. Written only when it changes: a write costs the next commit more
/// than it costs here.
fn sign(file: &File) {
    let name = format!("{:<19}\n", std::process::id());
    let mut last = [0; 20];
    if file.read_at(&mut last, 0).is_ok() && last == *name.as_bytes() {
        return;
    }
    drop(file.write_all_at(name.as_bytes(), 0));
}
