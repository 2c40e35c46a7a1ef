//! What can go wrong with a file, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::ErrorCode;
use thiserror::Error;

use super::access::is_full;
use crate::engine::{Failure, Unavailable};

/// Why a URL names no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadPath {
    /// There is a host where none can be.
    #[error("the file is on this host, so the URL has no host; {ACCEPTED}")]
    Host,
    /// It is a directory.
    #[error("a file is needed, not a directory; {ACCEPTED}")]
    Directory,
    /// There are options, of which there are none.
    #[error("there are no options behind '?' or '#'; {ACCEPTED}")]
    Options,
    /// There is something that cannot be printed.
    #[error("there is a control character at byte {at}; {ACCEPTED}")]
    Control {
        /// Where.
        at: usize,
    },
}

const ACCEPTED: &str = "say embedded:///path/locks.db or embedded:path/locks.db";

/// What went wrong. One batch has many callers, so it can be cloned.
#[derive(Debug, Clone, Error)]
pub(super) enum Trouble {
    #[error("HOME does not say where the default file is; say embedded:///path/locks.db")]
    NoHome,
    #[error("{} does not exist: create it (mkdir -p)", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not a directory, so no file can be in it; give another path", .0.display())]
    NotADirectory(PathBuf),
    #[error(
        "{} is a symbolic link, but what belongs beside the database must be beside it: put back what the link replaced; \
         nothing was changed",
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
        "this user may not write {}: change its owner or mode, or give another path; nothing was changed",
        .0.display()
    )]
    Forbidden(PathBuf),
    #[error(
        "the locks of this host are in {}, which this user may not write. To share them, as root: groupadd palisade-locks, \
         add the user to it, chgrp -R palisade-locks {directory}, chmod -R g+rwX {directory}, chmod g+s {directory}. Or name a file of your own \
         (embedded:///path/locks.db), which other users do not share; nothing was changed",
        .file.display()
    )]
    NotShared { file: PathBuf, directory: &'static str },
    #[error(
        "this user's locks are in {}, and this host now has {} for all users: a lock could be held in both. When no command \
         uses the user's own file any more, remove it and the files beside it; until then name one of them with --url \
         embedded:///path. Nothing was changed",
        .own.display(), .shared.display()
    )]
    TwoDefaults { own: PathBuf, shared: PathBuf },
    #[error("{} is read-only: make it writable, or give another path; nothing was changed", .0.display())]
    ReadOnly(PathBuf),
    #[error("no space is left for {}: free some; nothing was changed or lost", .0.display())]
    Full(PathBuf),
    #[error("{} is not an SQLite database: give another path, or move it away; nothing was changed", .0.display())]
    NotADatabase(PathBuf),
    #[error("{} is the SQLite database of another program: give another path; nothing was changed", .0.display())]
    NotOurs(PathBuf),
    #[error(
        "{} has {links} hard links, and each name would have locks of its own: remove the others (find them with \
         find -xdev -inum {inode}), or use a symbolic link; nothing was changed",
        .file.display()
    )]
    HardLinks { file: PathBuf, links: u64, inode: u64 },
    #[error(
        "{} is a mount point, and what belongs beside it is elsewhere: mount its directory instead of the file; \
         nothing was changed",
        .0.display()
    )]
    MountPoint(PathBuf),
    #[error(
        "{} is in use under another name, or it or a file beside it was removed or replaced while in use: stop its \
         users{users}, then start them again; nothing was changed",
        .file.display()
    )]
    InUse { file: PathBuf, users: String },
    #[error(
        "{} is in use by processes with another boot or clock than this one{users}: share the host's boot id and time \
         namespace with them, use a file of your own, or stop them; nothing was changed",
        .file.display()
    )]
    OtherClock { file: PathBuf, users: String },
    #[error(
        "{} has format {found} of an older build, which this build does not read (it reads {known}): when no process \
         uses it any more, move it away with all files whose names begin so; nothing was changed",
        .file.display()
    )]
    OlderFormat { file: PathBuf, found: i64, known: i64 },
    #[error(
        "{} has format {found}, this build reads up to {known}: use a newer build; nothing was changed",
        .file.display()
    )]
    NewerFormat { file: PathBuf, found: i64, known: i64 },
    #[error(
        "{} is damaged: {what}. Stop its users and put back a good copy. Tokens that were given since that copy was \
         made would be given again: raise the tokens above the highest that any fence has seen",
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
    Occupied { file: PathBuf, pid: String, waited_s: u64 },
    #[error("another program has a transaction open on {}: end it", .file.display())]
    Busy { file: PathBuf, source: Arc<rusqlite::Error> },
    #[error("cannot {doing} {}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: Arc<io::Error> },
    #[error("SQLite failed on {}", .file.display())]
    Sqlite { file: PathBuf, source: Arc<rusqlite::Error> },
    #[error("session {session} is kept alive by process {pid} itself")]
    OthersSession { session: u64, pid: u32 },
}

impl Trouble {
    pub(super) fn sqlite(file: &Path, error: rusqlite::Error) -> Trouble {
        let path = file.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Trouble::Full(path),
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) if !may_be_written(&error) && is_full(file) => {
                Trouble::Full(path)
            }
            Some(ErrorCode::NotADatabase) => Trouble::NotADatabase(path),
            Some(ErrorCode::DatabaseCorrupt) => Trouble::Damaged { file: path, what: error.to_string() },
            Some(ErrorCode::ReadOnly) => Trouble::ReadOnly(path),
            Some(ErrorCode::PermissionDenied) => Trouble::Forbidden(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Trouble::Busy { file: path, source: Arc::new(error) }
            }
            _ => Trouble::Sqlite { file: path, source: Arc::new(error) },
        }
    }

    pub(super) fn io(doing: &'static str, path: &Path, error: io::Error) -> Trouble {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Trouble::Forbidden(path),
            io::ErrorKind::ReadOnlyFilesystem => Trouble::ReadOnly(path),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Trouble::Full(path),
            io::ErrorKind::NotADirectory => Trouble::NotADirectory(path),
            _ => Trouble::Io { doing, path, source: Arc::new(error) },
        }
    }

    /// In use in a way in which this process cannot use it.
    pub(super) fn in_use(file: &Path, users: Vec<u32>) -> Trouble {
        Trouble::InUse { file: file.to_owned(), users: listed(users) }
    }

    /// In use by processes whose deadlines mean nothing to this one.
    pub(super) fn other_clock(file: &Path, users: Vec<u32>) -> Trouble {
        Trouble::OtherClock { file: file.to_owned(), users: listed(users) }
    }

    /// Whether it goes away when other processes end, which they may be about to.
    pub(super) fn is_about_others(&self) -> bool {
        matches!(self, Trouble::InUse { .. } | Trouble::OtherClock { .. } | Trouble::Replaced(_))
    }

    /// Whether what this process knew of the locks is not what other processes see.
    pub(super) fn is_data_loss(&self) -> bool {
        matches!(self, Trouble::Replaced(_))
    }

    pub(super) fn damaged(file: &Path, what: impl Into<String>) -> Trouble {
        Trouble::Damaged { file: file.to_owned(), what: what.into() }
    }

    /// Whether a commit that failed so, and is not in the log, will never be there. After a failed write-back it may
    /// yet be found by whoever recovers the file.
    pub(super) fn is_certain(&self) -> bool {
        !matches!(self, Trouble::Sqlite { .. } | Trouble::Damaged { .. })
    }

    fn is_passing(&self) -> bool {
        matches!(
            self,
            Trouble::Full(_)
                | Trouble::Occupied { .. }
                | Trouble::Busy { .. }
                | Trouble::Io { .. }
                | Trouble::Sqlite { .. }
        )
    }

    /// As the caller sees it.
    pub(super) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        let reason = match self {
            Trouble::Io { source, .. } => format!(": {source}"),
            Trouble::Sqlite { source, .. } => format!(": {source}"),
            _ => String::new(),
        };
        let known = if may_have_taken_effect { "; the call may have taken effect" } else { "" };
        Failure::Unavailable(Unavailable {
            what: format!("{self}{reason}{known}"),
            may_have_taken_effect,
            is_retryable: self.is_passing(),
            source: self.cause(),
        })
    }

    fn cause(&self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Trouble::Io { source, .. } => Some(Box::new(source.clone())),
            Trouble::Busy { source, .. } | Trouble::Sqlite { source, .. } => Some(Box::new(source.clone())),
            _ => None,
        }
    }
}

/// Whether what could not be flushed may be on the disk all the same.
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

impl From<Trouble> for Failure {
    /// For trouble that came before anything was written.
    fn from(trouble: Trouble) -> Failure {
        trouble.failure(false)
    }
}
