//! Why the files of a node cannot be used.

use std::io;

use thiserror::Error;

/// Why the files of a node cannot be used.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The system failed. After a failed write or flush nobody knows what is on the disk, and the node must stop.
    #[error("cannot {what} {file}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// What is in a file is not what was written.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Nothing was changed. Put back another copy of this directory; \
         without one, start with an empty one and raise its tokens above all that were given"
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Where.
        offset: usize,
        /// What gave it away.
        what: String,
    },
    /// Another process uses the directory.
    #[error(
        "{directory} is in use by process {pid}: two services cannot share a directory; stop that one, or use another \
         directory"
    )]
    InUse {
        /// Which directory.
        directory: String,
        /// The process that uses it.
        pid: String,
    },
    /// Another build wrote it.
    #[error(
        "{file} has format {found}, this build reads format {}; use the build that wrote it, or a newer one",
        super::FORMAT
    )]
    UnknownFormat {
        /// Which file.
        file: String,
        /// Its format.
        found: u32,
    },
}

impl StorageError {
    pub(super) fn io(what: &'static str, file: String, source: io::Error) -> StorageError {
        StorageError::Io { what, file, source }
    }

    pub(crate) fn no_thread(source: io::Error) -> StorageError {
        StorageError::Io { what: "start a thread for", file: "a snapshot".to_owned(), source }
    }

    pub(super) fn damaged(file: String, offset: usize, what: impl Into<String>) -> StorageError {
        StorageError::Damaged { file, offset, what: what.into() }
    }
}
