//! Small files that are replaced as a whole: magic, format and a checksum, then the value.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Disk, DiskFile};
use super::error::StorageError;

/// Magic, format and checksum of the body.
pub(super) const HEADER: usize = 16;

/// A kind of small file.
pub(super) struct SmallFile {
    pub(super) name: &'static str,
    /// The file while it is being written.
    pub(super) unfinished: &'static str,
    pub(super) magic: [u8; 8],
    /// The name of this kind in messages: "a watermark".
    pub(super) what: &'static str,
}

impl SmallFile {
    /// Replaces the file, durably.
    pub(super) fn write<D: Disk>(&self, disk: &D, value: &impl Serialize) -> Result<(), StorageError> {
        let failed = |what| move |source| StorageError::io(what, disk.path(self.name), source);
        let body = postcard::to_allocvec(value).map_err(std::io::Error::other).map_err(failed("encode"))?;
        super::remove(disk, self.unfinished).map_err(failed("replace"))?;
        let mut file = disk.create(self.unfinished).map_err(failed("replace"))?;
        file.write_at(&[&header(self.magic, &body)[..], &body].concat(), 0).map_err(failed("write"))?;
        file.sync().map_err(failed("flush"))?;
        disk.rename(self.unfinished, self.name).and_then(|()| disk.sync()).map_err(failed("replace"))
    }

    /// Reads the file; `None` in a directory that has none.
    pub(super) fn read<D: Disk, T: DeserializeOwned>(&self, disk: &D) -> Result<Option<T>, StorageError> {
        let bytes = match disk.read(self.name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| StorageError::io("read", disk.path(self.name), source))?,
        };
        let damaged = |what: &str| StorageError::damaged(disk.path(self.name), 0, what);
        let (head, body) = bytes.split_at_checked(HEADER).ok_or_else(|| damaged("it is too short"))?;
        if head[..8] != self.magic {
            return Err(damaged(&format!("it does not begin as {} does", self.what)));
        }
        if *head != header(self.magic, body) {
            let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
            return Err(match format {
                super::FORMAT => damaged("the checksum does not match"),
                found => StorageError::UnknownFormat { file: disk.path(self.name), found },
            });
        }
        postcard::from_bytes(body).map(Some).map_err(|error| damaged(&error.to_string()))
    }
}

/// Returns the bytes before the body.
pub(super) fn header(magic: [u8; 8], body: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..12].copy_from_slice(&super::FORMAT.to_le_bytes());
    bytes[12..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes
}
