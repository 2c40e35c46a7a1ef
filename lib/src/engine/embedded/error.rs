//! Errors of the file, and their remedies.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use thiserror::Error;

use super::access::is_full;
use crate::engine::{Failure, Unavailable};

/// The reason why a URL names no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadPath {
    /// The URL has a host.
    #[error("the file is on this host, so the URL has no host; {ACCEPTED}")]
    Host,
    /// The path is a directory.
    #[error("a file is needed, not a directory; {ACCEPTED}")]
    Directory,
    /// The URL has options.
    #[error("there are no options after '?' or '#'; {ACCEPTED}")]
    Options,
    /// The path has a control character.
    #[error("there is a control character at byte {at}; {ACCEPTED}")]
    Control {
        /// The position of its byte.
        at: usize,
    },
}

const ACCEPTED: &str = "say embedded:///path/locks.db or embedded:path/locks.db";

/// An error of the file. It can be cloned, since one batch has many callers.
#[derive(Debug, Clone, Error)]
pub(super) enum StoreError {
    #[error("HOME does not say where the default file is; say embedded:///path/locks.db")]
    NoHome,
    #[error(
        "process {parent} had a database open when it forked this process, so SQLite cannot lock {} here: connect only after \
         forking, and in the parent not before, or start this process with exec",
        .file.display()
    )]
    Forked { file: PathBuf, parent: u32 },
    #[error("{} does not exist: create it (mkdir -p)", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not a directory, so no file can be in it; give another path", .0.display())]
    NotADirectory(PathBuf),
    #[error(
        "{} is a symbolic link, but the files of the database must be next to it: put back the file that the link replaced",
        .0.display()
    )]
    Link(PathBuf),
    #[error("{} is not a regular file; give the path of a file", .0.display())]
    NotAFile(PathBuf),
    #[error(
        "{} is on a network file system ({kind}), where the locks of different hosts do not exclude each other: \
         use a local disk, or an engine that is made for several hosts",
        .file.display()
    )]
    NetworkFileSystem { file: PathBuf, kind: &'static str },
    #[error("{} is on a file system without shared memory for SQLite: use a local disk", .0.display())]
    NoSharedMemory(PathBuf),
    #[error(
        "this user may not write {}: change its owner or mode, or give another path",
        .0.display()
    )]
    Forbidden(PathBuf),
    #[error(
        "the locks of this host are in {}, which this user may not write. To share them, as root: groupadd palisade-locks, \
         add the user to it, chgrp -R palisade-locks {directory}, chmod -R g+rwX {directory}, chmod g+s {directory}. Or name a private file \
         (embedded:///path/locks.db), which other users do not share",
        .file.display()
    )]
    NotShared { file: PathBuf, directory: &'static str },
    #[error(
        "this user's locks are in {}, and this host now has {} for all users: a lock could be held in both. When no command \
         uses the user's file any more, remove it and the files next to it; until then name one of them with --url \
         embedded:///path",
        .private.display(), .shared.display()
    )]
    TwoDefaults { private: PathBuf, shared: PathBuf },
    #[error("{} is read-only: make it writable, or give another path", .0.display())]
    ReadOnly(PathBuf),
    #[error("no space is left for {}: free some; nothing is lost", .0.display())]
    Full(PathBuf),
    #[error("{} is not an SQLite database: give another path, or move it away", .0.display())]
    NotADatabase(PathBuf),
    #[error("{} is the SQLite database of another program: give another path", .0.display())]
    NotOurs(PathBuf),
    #[error(
        "{} has {links} hard links, and each name would have separate locks: remove the others (find them with \
         find -xdev -inum {inode}), or use a symbolic link",
        .file.display()
    )]
    HardLinks { file: PathBuf, links: u64, inode: u64 },
    #[error(
        "{} is a mount point, so the files next to it are not those of the database: mount its directory instead of the file",
        .0.display()
    )]
    MountPoint(PathBuf),
    #[error(
        "{} is in use under another name, or it or a file next to it was removed or replaced while in use: stop its \
         users{users}, then start them again",
        .file.display()
    )]
    InUse { file: PathBuf, users: String },
    #[error(
        "{} is in use by processes with another boot or clock than this one{users}: share the host's boot id and time \
         namespace with them, use a separate file, or stop them",
        .file.display()
    )]
    OtherClock { file: PathBuf, users: String },
    #[error(
        "{} has format {found} of an older build, which this build does not read (it reads {known}): when no process \
         uses it any more, move it away with all files whose names begin with its name. Tokens begin again in a new file: raise \
         them above the highest that any fence has seen",
        .file.display()
    )]
    OlderFormat { file: PathBuf, found: i64, known: i64 },
    #[error(
        "{} has format {found}, this build reads up to {known}: use a newer build",
        .file.display()
    )]
    NewerFormat { file: PathBuf, found: i64, known: i64 },
    #[error(
        "{} is damaged: {what}. Stop its users and restore a good copy. Tokens that were issued after that copy was made \
         would be issued again: raise the tokens above the highest that any fence has seen",
        .file.display()
    )]
    Damaged { file: PathBuf, what: String },
    #[error(
        "{} was removed or replaced while it was in use: stop all its users, then start them again",
        .0.display()
    )]
    Replaced(PathBuf),
    #[error(
        "process {pid} has kept others from writing {} for {waited_s} s: it may be stopped (kill -CONT {pid})",
        .file.display()
    )]
    LogLockTimeout { file: PathBuf, pid: String, waited_s: u64 },
    #[error("another program has a transaction open on {}: end it", .file.display())]
    Busy { file: PathBuf, source: Arc<rusqlite::Error> },
    #[error("cannot {operation} {}", .path.display())]
    Io { operation: &'static str, path: PathBuf, source: Arc<io::Error> },
    #[error("SQLite failed on {}", .file.display())]
    Sqlite { file: PathBuf, source: Arc<rusqlite::Error> },
    #[error("process {pid} owns session {session} and keeps it alive; no other process may")]
    NotSessionOwner { session: u64, pid: u32 },
}

impl StoreError {
    pub(super) fn sqlite(file: &Path, error: rusqlite::Error) -> StoreError {
        let path = file.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full(path),
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if !may_be_written(&error) && is_full(file) => {
                StoreError::Full(path)
            }
            Some(ErrorCode::NotADatabase) => StoreError::NotADatabase(path),
            Some(ErrorCode::DatabaseCorrupt) => StoreError::Damaged { file: path, what: error.to_string() },
            Some(ErrorCode::ReadOnly) => StoreError::ReadOnly(path),
            Some(ErrorCode::PermissionDenied) => StoreError::Forbidden(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                StoreError::Busy { file: path, source: Arc::new(error) }
            }
            _ => StoreError::Sqlite { file: path, source: Arc::new(error) },
        }
    }

    pub(super) fn io(operation: &'static str, path: &Path, error: io::Error) -> StoreError {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => StoreError::Forbidden(path),
            io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly(path),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(path),
            io::ErrorKind::NotADirectory => StoreError::NotADirectory(path),
            _ => StoreError::Io { operation, path, source: Arc::new(error) },
        }
    }

    /// Returns the error for a file that other processes use in a conflicting way.
    pub(super) fn in_use(file: &Path, users: Vec<u32>) -> StoreError {
        StoreError::InUse { file: file.to_owned(), users: listed(users) }
    }

    /// Returns the error for a file that processes with another clock use.
    pub(super) fn other_clock(file: &Path, users: Vec<u32>) -> StoreError {
        StoreError::OtherClock { file: file.to_owned(), users: listed(users) }
    }

    /// Returns whether the error goes away when other processes exit.
    pub(super) fn is_caused_by_others(&self) -> bool {
        matches!(self, StoreError::InUse { .. } | StoreError::OtherClock { .. } | StoreError::Replaced(_))
    }

    /// Returns whether the file was replaced, so that this process's locks are lost.
    pub(super) fn is_data_loss(&self) -> bool {
        matches!(self, StoreError::Replaced(_))
    }

    /// Returns the error for a file of another build.
    pub(super) fn other_format(file: &Path, found: i64, known: i64) -> StoreError {
        let file = file.to_owned();
        if found > known {
            StoreError::NewerFormat { file, found, known }
        } else {
            StoreError::OlderFormat { file, found, known }
        }
    }

    pub(super) fn damaged(file: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Damaged { file: file.to_owned(), what: what.into() }
    }

    /// Returns whether a failed commit that is not in the log will never be there. After a failed flush, a recovery
    /// of the file may still find it.
    pub(super) fn rules_out_commit(&self) -> bool {
        !matches!(self, StoreError::Sqlite { .. } | StoreError::Damaged { .. })
    }

    fn is_transient(&self) -> bool {
        matches!(
            self,
            StoreError::Full(_)
                | StoreError::LogLockTimeout { .. }
                | StoreError::Busy { .. }
                | StoreError::Io { .. }
                | StoreError::Sqlite { .. }
        )
    }

    /// Converts the error for the caller.
    pub(super) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        let reason = match self {
            StoreError::Io { source, .. } => format!(": {source}"),
            StoreError::Sqlite { source, .. } => format!(": {source}"),
            _ => String::new(),
        };
        let known = if may_have_taken_effect { "; the call may have taken effect" } else { "" };
        Failure::Unavailable(Unavailable {
            what: format!("{self}{reason}{known}"),
            may_have_taken_effect,
            is_retryable: self.is_transient(),
            source: self.cause(),
            if_undone: None,
        })
    }

    fn cause(&self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        match self {
            StoreError::Io { source, .. } => Some(Box::new(source.clone())),
            StoreError::Busy { source, .. } | StoreError::Sqlite { source, .. } => Some(Box::new(source.clone())),
            _ => None,
        }
    }
}

/// Returns whether the data of a failed flush may be on the disk nevertheless.
fn may_be_written(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(SQLITE_IOERR_FSYNC | SQLITE_IOERR_DIR_FSYNC))
}

fn listed(users: Vec<u32>) -> String {
    let mut users = users.into_iter().filter(|pid| *pid != 0).collect::<Vec<_>>();
    users.sort_unstable();
    users.dedup();
    let users: Vec<_> = users.iter().map(u32::to_string).collect();
    match users.len() {
        0 => String::new(),
        1 => format!(" (process {})", users[0]),
        _ => format!(" (processes {})", users.join(", ")),
    }
}

impl From<StoreError> for Failure {
    /// Converts an error that occurred before anything was written.
    fn from(error: StoreError) -> Failure {
        error.failure(false)
    }
}
