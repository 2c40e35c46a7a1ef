//! The paths of the database and of the files next to it.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::StoreError;

/// The directory of the default file, which the users of one host share.
const SHARED_DIRECTORY: &str = "/var/lib/palisade-locks";

/// The longest chain of links that is followed. The kernel has the same limit.
const MAX_LINKS: usize = 40;

/// The paths of the database and of the files next to it, with all links resolved.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    /// The database.
    pub(super) file: PathBuf,
    /// SQLite's write-ahead log.
    pub(super) wal: PathBuf,
    /// SQLite's index of that log.
    pub(super) shm: PathBuf,
    /// The file of the log's lock.
    pub(super) lock: PathBuf,
    /// The wake-up file of all commits.
    pub(super) wake: PathBuf,
    /// The directory with a lease file and a wake-up file per session.
    pub(super) sessions: PathBuf,
}

/// The identity of a file until the host reboots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inode {
    pub(super) device: u64,
    pub(super) number: u64,
}

impl Inode {
    pub(super) fn of(found: &Metadata) -> Inode {
        Inode { device: found.dev(), number: found.ino() }
    }
}

/// Returns the inode at a path, if there is a file.
pub(super) fn inode_of(path: &Path) -> io::Result<Option<Inode>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(Inode::of(&found))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Paths {
    /// Resolves the path of a database, or of the default one, whose directory it creates. Creates nothing else.
    pub(super) fn find(named: Option<&Path>) -> Result<Paths, StoreError> {
        let file = database(named)?;
        if named.is_none() {
            create_directory(&file)?;
        }
        let file = resolve(file)?;
        let next_to = |suffix: &str| {
            let mut path = file.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let paths = Paths {
            wal: next_to("-wal"),
            shm: next_to("-shm"),
            lock: next_to("-lock"),
            wake: next_to("-bell"),
            sessions: next_to("-sessions"),
            file,
        };
        match paths.check() {
            Err(StoreError::Forbidden(_)) if named.is_none() && paths.directory() == Path::new(SHARED_DIRECTORY) => {
                Err(StoreError::NotShared { file: paths.file, directory: SHARED_DIRECTORY })
            }
            checked => checked.map(|()| paths),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    fn check(&self) -> Result<(), StoreError> {
        if let Ok(found) = fs::symlink_metadata(&self.file) {
            check_file(&self.file, &found)?;
        }
        if let Some(kind) = network_file_system(self.directory()) {
            return Err(StoreError::NetworkFileSystem { file: self.file.clone(), kind });
        }
        // SQLite would open a database that this user cannot write, and create files that its other users cannot
        // open.
        for path in [&self.file, &self.wal, &self.shm, &self.lock, &self.wake, &self.sessions] {
            check_access(path)?;
        }
        check_access(self.directory())
    }

    /// Flushes the directories, so that a power cut does not remove a new database and its tokens.
    pub(super) fn make_durable(&self) -> Result<(), StoreError> {
        for directory in self.file.ancestors().skip(1).take(2) {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            match synced {
                // A user that may not read a directory has not created it.
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(StoreError::io("sync", directory, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the absolute path of a database, or of the default one.
pub(super) fn database(named: Option<&Path>) -> Result<PathBuf, StoreError> {
    match named {
        Some(file) => std::path::absolute(file).map_err(|error| StoreError::io("find", file, error)),
        None => default_file(),
    }
}

/// Resolves all links.
fn resolve(named: PathBuf) -> Result<PathBuf, StoreError> {
    let mut file = named.clone();
    for _ in 0..MAX_LINKS {
        let directory = file.parent().unwrap_or(Path::new("/"));
        let directory = match fs::canonicalize(directory) {
            Ok(found) if !found.is_dir() => return Err(StoreError::NotADirectory(found)),
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NoDirectory(directory.to_owned()));
            }
            Err(error) => return Err(StoreError::io("read", directory, error)),
        };
        let Some(name) = file.file_name() else { return Err(StoreError::NotAFile(file)) };
        let at = directory.join(name);
        match fs::read_link(&at) {
            Ok(target) => file = directory.join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(StoreError::io("follow the links of", &named, rustix::io::Errno::LOOP.into()))
}

/// Checks that a path is a regular file with one name.
fn check_file(file: &Path, found: &Metadata) -> Result<(), StoreError> {
    if !found.is_file() {
        return Err(StoreError::NotAFile(file.to_owned()));
    }
    if found.nlink() > 1 {
        return Err(StoreError::HardLinks { file: file.to_owned(), links: found.nlink(), inode: found.ino() });
    }
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    match is_mount_point(&mounts, file) {
        true => Err(StoreError::MountPoint(file.to_owned())),
        false => Ok(()),
    }
}

/// Returns whether exactly this path is a mount point, from the text of `/proc/self/mountinfo`.
fn is_mount_point(mounts: &[u8], path: &Path) -> bool {
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            byte => escaped.push(*byte),
        }
    }
    let mut points = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.any(|point| point == escaped)
}

/// Checks that this user may read and write an existing path.
fn check_access(path: &Path) -> Result<(), StoreError> {
    use rustix::fs::Access;
    let wanted = match fs::symlink_metadata(path) {
        // The files next to the database must be there and not elsewhere.
        Ok(found) if found.is_symlink() => return Err(StoreError::Link(path.to_owned())),
        Ok(found) if found.is_dir() => Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
        Ok(_) => Access::READ_OK | Access::WRITE_OK,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("inspect", path, error)),
    };
    match rustix::fs::access(path, wanted) {
        // The last user of the database has removed it meanwhile: SQLite does so with its files.
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(StoreError::io("open", path, error.into())),
    }
}

/// Returns the file that all users of the host share, if root has created its directory; otherwise the user's private
/// one. Refuses a user that has both, since a lock could be held in each.
fn default_file() -> Result<PathBuf, StoreError> {
    let shared = Path::new(SHARED_DIRECTORY).join("locks.db");
    if rustix::process::geteuid().is_root() {
        return Ok(shared);
    }
    // Not XDG_STATE_HOME, which is set in a shell and not in cron: both must find the same file.
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let private = home.map(|home| home.join(".local/state/palisade/locks.db"));
    match private {
        Some(private) if !Path::new(SHARED_DIRECTORY).exists() => Ok(private),
        Some(private) if private.exists() => Err(StoreError::TwoDefaults { private, shared }),
        None if !Path::new(SHARED_DIRECTORY).exists() => Err(StoreError::NoHome),
        _ => Ok(shared),
    }
}

/// Creates the directory of the default file, for its owner only. The shared one is for the members of a group, if
/// that exists.
fn create_directory(file: &Path) -> Result<(), StoreError> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let io_error = |error| StoreError::io("create", directory, error);
    if directory.is_dir() {
        return Ok(());
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let group = group_in(&groups).filter(|_| directory == Path::new(SHARED_DIRECTORY));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io_error)?;
    if let Some(group) = group {
        std::os::unix::fs::chown(directory, None, Some(group)).map_err(io_error)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o2770)).map_err(io_error)?;
    }
    Ok(())
}

/// Returns the id of the group whose members share the host's locks, from the text of `/etc/group`.
fn group_in(groups: &str) -> Option<u32> {
    let line = groups.lines().find_map(|line| line.strip_prefix("palisade-locks:"))?;
    line.split(':').nth(1)?.parse().ok()
}

#[cfg(target_os = "linux")]
fn network_file_system(path: &Path) -> Option<&'static str> {
    let found = rustix::fs::statfs(path).ok()?;
    network_kind(found.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_path: &Path) -> Option<&'static str> {
    None
}

/// Identifies a file system by its magic number (statfs(2)). FUSE counts as a network, since it usually is.
#[cfg(target_os = "linux")]
fn network_kind(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}

/// Returns a number that is the same for all processes whose boot clocks can be compared. It differs after each boot
/// of the host, and in a container with a different boot id or boot clock offset.
pub(super) fn boot(id: Option<&str>) -> Result<u64, StoreError> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let id = match id {
        Some(id) => id.to_owned(),
        None => fs::read_to_string(BOOT_ID).map_err(|error| StoreError::io("read", Path::new(BOOT_ID), error))?,
    };
    // FNV-1a is the same in every build, since processes of different builds may share a file.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(id.trim().bytes().chain(clock_offset().bytes()).fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Returns the boot clock offset of this process; empty outside of a time namespace.
fn clock_offset() -> String {
    let namespace = |name: &str| fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    let own = namespace("time");
    if own != namespace("time_for_children") {
        // The kernel shows the offsets of this process's children.
        return own.map_or_else(String::new, |own| own.to_string_lossy().into_owned());
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let boot_clock = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    let numbers: Vec<_> = boot_clock.unwrap_or_default().split_whitespace().collect();
    if numbers.iter().all(|number| *number == "0") { String::new() } else { numbers.join(".") }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn network_file_systems_are_named() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        assert_eq!(network_kind(0xff53_4d42), Some("SMB"));
        assert_eq!(network_kind(0xef53), None, "ext4");
        let error = StoreError::NetworkFileSystem { file: "/mnt/a.db".into(), kind: "NFS" };
        assert!(error.to_string().contains("use a local disk"), "{error}");
    }

    #[test]
    fn the_group_that_shares_locks_is_found_by_name() {
        assert_eq!(group_in("root:x:0:\npalisade:x:7:\npalisade-locks:x:961:alice,bob\n"), Some(961));
        assert_eq!(group_in("root:x:0:\n"), None);
    }

    #[test]
    fn a_mount_point_is_found_by_its_full_path() {
        let mounts =
            b"27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 254:0 /a /srv/my\\040locks.db rw - ext4 /dev/vda rw\n";
        let is = |path: &str| is_mount_point(mounts, Path::new(path));
        assert!(is("/srv/my locks.db") && is("/"));
        assert!(!is("/srv/my") && !is("/srv") && !is("/srv/my locks.db-wal"));
    }

    /// SQLite removes its files when the last user closes the database, also while another process connects.
    #[test]
    fn a_file_that_is_removed_while_it_is_checked_is_as_one_that_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db-wal");
        let is_checked = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_checked.load(Ordering::Relaxed) {
                    fs::write(&path, "").and_then(|()| fs::remove_file(&path)).unwrap();
                }
            });
            let checked = (0..100_000).find_map(|_| check_access(&path).err());
            is_checked.store(true, Ordering::Relaxed);
            assert!(checked.is_none(), "{checked:?}");
        });
    }
}
