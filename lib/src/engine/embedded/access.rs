//! Owner, group and mode of the files. They are set when the database is created, whatever the umask.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, Uid};

/// The owner, group and mode of the database and of the files next to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    uid: u32,
    gid: u32,
    /// Only the bits for reading and writing.
    mode: u32,
}

impl Access {
    /// Returns access for exactly the users that can write this directory.
    pub(super) fn of_directory(found: &Metadata) -> Access {
        let writers = found.mode() & 0o222;
        Access { uid: found.uid(), gid: found.gid(), mode: 0o600 | writers | (writers << 1) }
    }

    /// Returns access for the users that can write this file.
    pub(super) fn of_file(found: &Metadata) -> Access {
        Access { uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o666 }
    }

    /// Creates a file that does not exist. It gets its name after its owner and mode, so that a killed process leaves
    /// no file that other users cannot open.
    pub(super) fn create(self, path: &Path) -> io::Result<File> {
        match create_unnamed(path) {
            Ok(file) => {
                self.apply(&file)?;
                link(&file, path)?;
                Ok(file)
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
                self.apply(&file)?;
                Ok(file)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a file for reading and writing, and creates it if it does not exist.
    pub(super) fn open_or_create(self, path: &Path) -> io::Result<File> {
        loop {
            match open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Creates a directory unless it exists. Flushes, since a detached session survives a power cut.
    pub(super) fn create_directory(self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        let unfinished = Path::new(&unfinished);
        match fs::remove_dir(unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(unfinished)?;
        self.chown(|uid, gid| rustix::fs::chown(unfinished, uid, gid));
        let inherited = fs::metadata(unfinished)?.mode() & 0o2000;
        let searchable = (self.mode & 0o444) >> 2;
        rustix::fs::chmod(unfinished, Mode::from_raw_mode(inherited | self.mode | searchable))?;
        fs::rename(unfinished, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Sets the owner and group of a file that SQLite has created. SQLite copies the mode, but only as root the
    /// group.
    pub(super) fn apply_to(self, path: &Path) {
        let is_other = |found: Metadata| (found.uid(), found.gid()) != (self.uid, self.gid);
        if fs::metadata(path).is_ok_and(is_other) {
            self.chown(|uid, gid| rustix::fs::chown(path, uid, gid));
        }
    }

    fn apply(self, file: &File) -> io::Result<()> {
        self.chown(|uid, gid| rustix::fs::fchown(file, uid, gid));
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?)
    }

    /// Changes the owner and the group as far as permitted: only root may change the owner, and only members of a
    /// group may assign a file to it.
    fn chown(self, chown: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>) {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        if chown(Some(uid), Some(gid)).is_err() {
            let _ = chown(None, Some(gid));
        }
    }
}

/// Opens a file next to the database for reading and writing. Without O_CREAT, which the kernel may refuse for a file
/// of another user (fs.protected_regular). Follows no link, which could redirect the writes of another user.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let no_links = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(no_links).open(path)
}

/// Returns whether a file system is full, which SQLite reports as an I/O error.
pub(super) fn is_full(path: &Path) -> bool {
    use std::io::Write;
    // SQLite allocates this much at once.
    let tried = create_unnamed(path).and_then(|mut file| file.write_all(&[0; 64 * 1024]));
    tried.is_err_and(|error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

/// Creates an unnamed file in the directory of this path. It is deleted when it is closed, unless it is linked
/// before.
#[cfg(target_os = "linux")]
fn create_unnamed(path: &Path) -> io::Result<File> {
    use rustix::fs::OFlags;
    use rustix::io::Errno;

    let directory = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn create_unnamed(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Links an unnamed file to a path, unless that exists.
fn link(file: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{AtFlags, CWD, linkat};
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_accessible_to_the_users_that_can_write_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        for (mode, expected) in [(0o755, 0o600), (0o775, 0o660), (0o777, 0o666), (0o500, 0o600), (0o2770, 0o660)] {
            rustix::fs::chmod(directory.path(), Mode::from_raw_mode(mode)).unwrap();
            let access = Access::of_directory(&fs::metadata(directory.path()).unwrap());
            assert_eq!(access.mode, expected, "{mode:o}");
        }
    }
}
