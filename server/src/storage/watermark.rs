//! The token watermark: a file that limits which tokens may have been given out.
//!
//! A log that lost its end reads like a log that was never longer, and its tokens would be given a second time. So
//! tokens are reserved in blocks: the watermark is durable before the first token of a block is answered. A node that
//! starts gives only tokens above the watermark, whatever its log contains.

use serde::{Deserialize, Serialize};

use super::disk::{Disk, DiskFile};
use super::error::StorageError;

const NAME: &str = "watermark";
/// A watermark that is being written.
const UNFINISHED: &str = "watermark.new";
const MAGIC: [u8; 8] = *b"PLSDTOK\n";
/// Magic, format and checksum of the body.
const HEADER: usize = 16;

/// The position that the log is known to have reached, and the tokens that may have been given out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// An entry that was durable when the watermark was written. A log that ends before it was cut.
    pub index: u64,
    /// The highest token that may have been given out.
    pub tokens: u64,
}

/// Replaces the watermark, durably.
pub(super) fn write<D: Disk>(disk: &D, watermark: Watermark) -> Result<(), StorageError> {
    let failed = |what| move |source| StorageError::io(what, disk.path(NAME), source);
    let body = postcard::to_allocvec(&watermark).map_err(std::io::Error::other).map_err(failed("encode"))?;
    super::remove(disk, UNFINISHED).map_err(failed("replace"))?;
    let mut file = disk.create(UNFINISHED).map_err(failed("replace"))?;
    file.write_at(&[&header(&body)[..], &body].concat(), 0).map_err(failed("write"))?;
    file.sync().map_err(failed("flush"))?;
    disk.rename(UNFINISHED, NAME).and_then(|()| disk.sync()).map_err(failed("replace"))
}

/// Reads the watermark; `None` in a directory that has none.
pub(super) fn read<D: Disk>(disk: &D) -> Result<Option<Watermark>, StorageError> {
    let bytes = match disk.read(NAME) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|source| StorageError::io("read", disk.path(NAME), source))?,
    };
    let damaged = |what: &str| StorageError::damaged(disk.path(NAME), 0, what);
    let (head, body) = bytes.split_at_checked(HEADER).ok_or_else(|| damaged("it is too short"))?;
    if head[..8] != MAGIC {
        return Err(damaged("it does not begin as a watermark does"));
    }
    if *head != header(body) {
        let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        return Err(match format {
            super::FORMAT => damaged("the checksum does not match"),
            found => StorageError::UnknownFormat { file: disk.path(NAME), found },
        });
    }
    postcard::from_bytes(body).map(Some).map_err(|error| damaged(&error.to_string()))
}

fn header(body: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&super::FORMAT.to_le_bytes());
    bytes[12..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes
}
