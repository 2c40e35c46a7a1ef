//! Errors of the node's files.

use std::io;

use thiserror::Error;

use super::watermark::Watermark;

/// A torn write at the log's end, which was never acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornWrite {
    /// The file of the log.
    pub file: String,
    /// The offset at which the log was cut.
    pub offset: usize,
}

/// Why the files of a node cannot be used.
#[derive(Debug, Error)]
pub enum StorageError {
    /// An I/O error. After a failed write or flush the content of the disk is unknown, and the node must stop.
    #[error("cannot {what} {file}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// The content of a file has changed since it was written.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Nothing was changed. Put back another copy of this directory. \
         Without one, start with an empty directory and {}: all sessions and grants are lost then, and no token is \
         given again", serve_above(*.raise_above)
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Where.
        offset: usize,
        /// The damage that was found.
        what: String,
        /// The highest token that may have been given out, if the watermark is readable.
        raise_above: Option<u64>,
    },
    /// Entries that were durable are missing at the log's end.
    #[error(
        "the log in {directory} ends at entry {last}, and entry {index} was durable: its end was removed, or an older \
         copy was put back. {}. Put back the newest copy of this directory. Without one, `palisade serve \
         --raise-tokens-above {tokens}` starts with the locks as of entry {last}: later sessions and grants are lost \
         then, and no token is given again", unchanged(.undone.as_ref())
    )]
    LogCut {
        /// Which directory.
        directory: String,
        /// The last entry of the log.
        last: u64,
        /// An entry that was durable.
        index: u64,
        /// The highest token that may have been given out.
        tokens: u64,
        /// The torn last write that was undone while the log was read.
        undone: Option<TornWrite>,
    },
    /// The file that limits the tokens given out is missing.
    #[error(
        "{directory} has a log and no watermark file, so tokens that the log does not know may have been given out. \
         {}. Put back the newest copy of this directory. Without one, `palisade serve --raise-tokens-above N` starts \
         with this log, where N is the highest token in use at any resource (`palisade fence check` shows a resource's)",
        unchanged(.undone.as_ref())
    )]
    NoWatermark {
        /// Which directory.
        directory: String,
        /// The torn last write that was undone while the log was read.
        undone: Option<TornWrite>,
    },
    /// The file that names the member is missing.
    #[error(
        "{directory} has a log and no file 'identity', which says whose log it is. Nothing was changed. Put back that file from \
         any copy of this directory"
    )]
    NoIdentity {
        /// Which directory.
        directory: String,
    },
    /// A node that begins would take over the files of another one.
    #[error(
        "{directory} has a log or a watermark already, and a node that founds or joins a cluster begins with an empty directory: its log comes from \
         the other nodes. Nothing was changed. Start it with an empty directory, or with the file 'identity' that belongs to them. \
         Only the folder 'keys' may be there before"
    )]
    NotEmpty {
        /// Which directory.
        directory: String,
    },
    /// A service has used the directory, and its files were removed.
    #[error(
        "a service has used {directory} before, and its log and its watermark were removed: it would give its tokens \
         again. Nothing was changed. Put back the newest copy of this directory. Without one, `palisade serve \
         --raise-tokens-above N` begins with no locks, where N is the highest token in use at any resource (`palisade \
         fence check` shows a resource's). If it has never granted a lock, remove the file 'in-use' there"
    )]
    FilesRemoved {
        /// Which directory.
        directory: String,
    },
    /// An embedded engine uses the directory.
    #[error(
        "{file} is the file of an embedded engine, and {directory} cannot be the directory of a service too. Nothing was \
         changed. Use another directory (--data-dir); its locks do not become those of the service"
    )]
    UsedByEmbedded {
        /// The file.
        file: String,
        /// Which directory.
        directory: String,
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
    /// It is no backup that can be used.
    #[error("{file} is not a backup that can be used: {what}")]
    BadBackup {
        /// Which file.
        file: String,
        /// The problem that was found.
        what: String,
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
        StorageError::Damaged { file, offset, what: what.into(), raise_above: None }
    }

    /// Adds the highest token that may have been given out, for the message.
    pub(super) fn advise(mut self, watermark: Option<Watermark>) -> StorageError {
        if let StorageError::Damaged { raise_above, .. } = &mut self {
            *raise_above = watermark.map(|watermark| watermark.tokens);
        }
        self
    }
}

fn unchanged(undone: Option<&TornWrite>) -> String {
    match undone {
        Some(TornWrite { file, offset }) => {
            format!("Nothing was changed, except that the torn last write at byte {offset} of {file} was undone")
        }
        None => "Nothing was changed".to_owned(),
    }
}

fn serve_above(raise_above: Option<u64>) -> String {
    match raise_above {
        Some(token) => format!("`palisade serve --raise-tokens-above {token}`"),
        None => {
            "`palisade serve --raise-tokens-above N`, where N is the highest token in use at any resource".to_owned()
        }
    }
}
