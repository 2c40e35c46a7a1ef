//! A backup of a cluster: a snapshot, and where it comes from.

use serde::{Deserialize, Serialize};

use super::error::StorageError;
use super::small_file::{HEADER, header};
use super::snapshot::Snapshot;

const MAGIC: [u8; 8] = *b"PLSDBAK\n";

/// The locks of a cluster at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// The cluster that it is of.
    pub cluster: u128,
    /// Its state.
    pub snapshot: Snapshot,
}

impl Backup {
    /// Returns the contents of its file.
    pub fn encode(&self) -> Vec<u8> {
        let body = match postcard::to_allocvec(self) {
            Ok(body) => body,
            Err(error) => unreachable!("a backup can always be encoded: {error}"),
        };
        [&header(MAGIC, &body)[..], &body].concat()
    }

    /// Reads the contents of its file, whose name is for messages.
    ///
    /// # Errors
    ///
    /// It is no backup, is damaged, or was made by another build.
    pub fn decode(bytes: &[u8], file: &str) -> Result<Backup, StorageError> {
        let bad = |what: &str| StorageError::BadBackup { file: file.to_owned(), what: what.to_owned() };
        let (head, body) = bytes.split_at_checked(HEADER).ok_or_else(|| bad("it is too short"))?;
        if head[..8] != MAGIC {
            return Err(bad("it does not begin as a backup does"));
        }
        let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if format != super::FORMAT {
            return Err(StorageError::UnknownFormat { file: file.to_owned(), found: format });
        }
        if *head != header(MAGIC, body) {
            return Err(bad("the checksum does not match: it is damaged or cut"));
        }
        postcard::from_bytes(body).map_err(|error| bad(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Membership;

    #[test]
    fn a_backup_is_read_back_and_damage_is_noticed() {
        let snapshot = Snapshot { index: 7, term: 2, membership: Membership::default(), machine: vec![1, 2, 3] };
        let backup = Backup { cluster: 9, snapshot };
        let bytes = backup.encode();
        assert_eq!(Backup::decode(&bytes, "x").unwrap(), backup);
        for cut in 0..bytes.len() {
            assert!(Backup::decode(&bytes[..cut], "x").is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Backup::decode(&damaged, "x").is_err(), "damaged at {at}");
        }
    }
}
