//! Checks whether a file can be replaced or removed.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The mode bit of a folder in which users can remove only their own files.
const STICKY: u32 = 0o1000;

/// Returns why this file of a folder cannot be replaced or removed; `None` if it can, or if it does not exist.
///
/// # Errors
///
/// The I/O error.
pub(super) fn obstacle(folder: &Path, name: &str) -> io::Result<Option<String>> {
    let path = folder.join(name);
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_too_long(&error) => return Ok(Some("its name is too long".to_owned())),
        Err(error) => return Err(error),
    };
    if let Some(kind) = not_plain(&found) {
        return Ok(Some(kind.to_owned()));
    }
    if found.nlink() > 1 {
        let what =
            format!("it has {} hard links, which a new version would part; keep one of its names", found.nlink());
        return Ok(Some(what));
    }
    let above = fs::metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if above.mode() & STICKY != 0 && ![0, found.uid(), above.uid()].contains(&user) {
        return Ok(Some("it belongs to another user, and its folder is sticky".to_owned()));
    }
    attribute(&path)
}

/// Returns the kind of a file that is not plain.
pub(super) fn not_plain(found: &Metadata) -> Option<&'static str> {
    match found.file_type() {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("it is a folder"),
        kind if kind.is_symlink() => Some("it is a symbolic link"),
        kind if kind.is_socket() => Some("it is a socket"),
        _ => Some("it is a device or a pipe"),
    }
}

/// Returns whether a name or a path is longer than the file system allows.
pub(super) fn is_too_long(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::NAMETOOLONG)
}

/// Checks attributes that only Linux reports.
#[cfg(target_os = "linux")]
fn attribute(path: &Path) -> io::Result<Option<String>> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
    let attributes = match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(found) => found.stx_attributes,
        // A kernel from before 4.11, or a sandbox that does not know the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let what = if attributes.contains(StatxAttributes::MOUNT_ROOT) {
        "it is a mount point; mount its folder instead"
    } else if attributes.intersects(fixed) {
        "it is marked as immutable or append-only (see lsattr)"
    } else {
        return Ok(None);
    };
    Ok(Some(what.to_owned()))
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "on Linux it fails")]
fn attribute(_: &Path) -> io::Result<Option<String>> {
    Ok(None)
}
