//! Detects network file systems, which cannot be fenced.

use std::io;
use std::path::Path;

/// File systems that several hosts can have mounted, by the number that `statfs` gives them.
const NETWORK: [(u64, &str); 11] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x6573_5546, "FUSE"),
    (0x0161_4414, "GFS2"),
];

/// Returns the name of the network file system that contains a path; `None` for a local one.
pub(super) fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    let kind = rustix::fs::statfs(path)?.f_type;
    // The type of the field differs between platforms; the numbers fit into 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::unnecessary_cast)]
    Ok(name_of(u64::from(kind as u32)))
}

fn name_of(kind: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_detected() {
        assert_eq!(name_of(0x6969), Some("NFS"));
        assert_eq!(name_of(0xfe53_4d42), Some("SMB2"));
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(name_of(local), None, "ext4, xfs, btrfs, tmpfs, overlayfs, zfs");
        }
    }

    #[test]
    fn a_temporary_folder_is_local() {
        assert_eq!(network_file_system(&std::env::temp_dir()).expect("it is there"), None);
    }
}
