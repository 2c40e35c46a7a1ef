//! Where the file and its companions are, and whether they can be there.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Config;
use super::error::Trouble;

/// The directory of the file that the users of one host share unless they name another.
const SHARED: &str = "/var/lib/palisade-locks";

/// The longest chain of links that is followed, as in the kernel.
const LINKS_AT_MOST: usize = 40;

/// The file and its companions. All of them are beside the file itself, whatever name led to it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The database.
    pub(super) file: PathBuf,
    /// SQLite's log of the database, while it is in use.
    pub(super) wal: PathBuf,
    /// SQLite's index of that log.
    pub(super) shm: PathBuf,
    /// The process that writes has a lock on this file.
    pub(super) lock: PathBuf,
    /// Opened by a process that has committed something, so that watchers are woken.
    pub(super) bell: PathBuf,
    /// One file per session, and one bell.
    pub(super) sessions: PathBuf,
}

/// Which file it is, as long as the host runs.
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

/// Which file is at a path, if one is.
pub(super) fn inode_of(path: &Path) -> io::Result<Option<Inode>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(Inode::of(&found))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Place {
    /// Finds the place that a configuration means; makes the directories of the default one. Touches nothing else.
    pub(super) fn find(config: &Config) -> Result<Place, Trouble> {
        let named = file(config)?;
        if config.file.is_none() {
            make_directory(&named)?;
        }
        let file = resolve(named)?;
        let beside = |suffix: &str| {
            let mut path = file.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        let place = Place {
            wal: beside("-wal"),
            shm: beside("-shm"),
            lock: beside("-lock"),
            bell: beside("-bell"),
            sessions: beside("-sessions"),
            file,
        };
        match place.check() {
            Err(Trouble::Forbidden(_)) if config.file.is_none() && place.directory() == Path::new(SHARED) => {
                Err(Trouble::NotShared { file: place.file, directory: SHARED })
            }
            checked => checked.map(|()| place),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    fn check(&self) -> Result<(), Trouble> {
        if let Ok(found) = fs::symlink_metadata(&self.file) {
            check_file(&self.file, &found)?;
        }
        if let Some(kind) = network_file_system(self.directory()) {
            return Err(Trouble::NetworkFileSystem { file: self.file.clone(), kind });
        }
        // Asked before SQLite is, which would open a database that it cannot write, and make files beside it that the
        // users who can write it cannot open.
        for path in [&self.file, &self.wal, &self.shm, &self.lock, &self.bell, &self.sessions] {
            check_access(path)?;
        }
        check_access(self.directory())
    }

    /// Makes sure that a power cut does not take a new database away again, and its tokens with it.
    pub(super) fn make_durable(&self) -> Result<(), Trouble> {
        for directory in self.file.ancestors().skip(1).take(2) {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            match synced {
                // Who may not read a directory did not make it.
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(Trouble::io("sync", directory, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where the file is or will be, by the name that was given.
pub(super) fn file(config: &Config) -> Result<PathBuf, Trouble> {
    match &config.file {
        Some(file) => std::path::absolute(file).map_err(|error| Trouble::io("find", file, error)),
        None => default_file(),
    }
}

/// The file itself, at the end of all links.
fn resolve(named: PathBuf) -> Result<PathBuf, Trouble> {
    let mut file = named.clone();
    for _ in 0..LINKS_AT_MOST {
        let directory = file.parent().unwrap_or(Path::new("/"));
        let directory = match fs::canonicalize(directory) {
            Ok(found) if !found.is_dir() => return Err(Trouble::NotADirectory(found)),
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Trouble::NoDirectory(directory.to_owned()));
            }
            Err(error) => return Err(Trouble::io("look into", directory, error)),
        };
        let Some(name) = file.file_name() else { return Err(Trouble::NotAFile(file)) };
        let at = directory.join(name);
        match fs::read_link(&at) {
            Ok(target) => file = directory.join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(Trouble::io("follow the links of", &named, rustix::io::Errno::LOOP.into()))
}

/// Whether a file can be a database that has one name.
fn check_file(file: &Path, found: &Metadata) -> Result<(), Trouble> {
    if !found.is_file() {
        return Err(Trouble::NotAFile(file.to_owned()));
    }
    if found.nlink() > 1 {
        return Err(Trouble::HardLinks { file: file.to_owned(), links: found.nlink(), inode: found.ino() });
    }
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    match is_mount_point(&mounts, file) {
        true => Err(Trouble::MountPoint(file.to_owned())),
        false => Ok(()),
    }
}

/// Whether something is mounted at this very path, from the text of `/proc/self/mountinfo`.
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

/// Whether this user may read and write what is at a path, if anything is.
fn check_access(path: &Path) -> Result<(), Trouble> {
    use rustix::fs::Access;
    let wanted = match fs::symlink_metadata(path) {
        // What is beside the database is beside it and nowhere else.
        Ok(found) if found.is_symlink() => return Err(Trouble::Link(path.to_owned())),
        Ok(found) if found.is_dir() => Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
        Ok(_) => Access::READ_OK | Access::WRITE_OK,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Trouble::io("look at", path, error)),
    };
    rustix::fs::access(path, wanted).map_err(|error| Trouble::io("open", path, error.into()))
}

/// The file that all users of the host share, if root has made its directory; until then each user's own. A user who has
/// used both would have two worlds of locks, so that is refused.
fn default_file() -> Result<PathBuf, Trouble> {
    let shared = Path::new(SHARED).join("locks.db");
    if rustix::process::geteuid().is_root() {
        return Ok(shared);
    }
    // Not XDG_STATE_HOME: a shell has it and cron has not, and both must find the same file.
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = home.map(|home| home.join(".local/state/palisade/locks.db"));
    match own {
        Some(own) if !Path::new(SHARED).exists() => Ok(own),
        Some(own) if own.exists() => Err(Trouble::TwoDefaults { own, shared }),
        None if !Path::new(SHARED).exists() => Err(Trouble::NoHome),
        _ => Ok(shared),
    }
}

/// Makes the directory of the default file, for its owner alone; the one that users share, for the members of a group
/// where that exists.
fn make_directory(file: &Path) -> Result<(), Trouble> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let trouble = |error| Trouble::io("create", directory, error);
    if directory.is_dir() {
        return Ok(());
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let group = group_in(&groups).filter(|_| directory == Path::new(SHARED));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(trouble)?;
    if let Some(group) = group {
        std::os::unix::fs::chown(directory, None, Some(group)).map_err(trouble)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o2770)).map_err(trouble)?;
    }
    Ok(())
}

/// The number of the group whose members share the host's locks, from the text of `/etc/group`.
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

/// By the magic numbers of statfs(2). FUSE may be anything, most often something remote.
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

/// A number that is the same for all processes whose boot clocks can be compared: another one after each boot of the
/// host, and in a container that has its own boot id or its own offset to the boot clock.
pub(super) fn boot(config: &Config) -> Result<u64, Trouble> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let id = match &config.boot_id {
        Some(id) => id.clone(),
        None => fs::read_to_string(BOOT_ID).map_err(|error| Trouble::io("read", Path::new(BOOT_ID), error))?,
    };
    // FNV-1a: the same in every build, for processes of different builds meet at one file.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(id.trim().bytes().chain(clock_offset().bytes()).fold(0xcbf2_9ce4_8422_2325, mix))
}

/// By how much the boot clock of this process is moved: nothing, outside of a time namespace.
fn clock_offset() -> String {
    let namespace = |name: &str| fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    let own = namespace("time");
    if own != namespace("time_for_children") {
        // The offsets that the kernel shows are those of this process's children.
        return own.map_or_else(String::new, |own| own.to_string_lossy().into_owned());
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let boot_clock = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    let numbers: Vec<_> = boot_clock.unwrap_or_default().split_whitespace().collect();
    if numbers.iter().all(|number| *number == "0") { String::new() } else { numbers.join(".") }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_name() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        assert_eq!(network_kind(0xff53_4d42), Some("SMB"));
        assert_eq!(network_kind(0xef53), None, "ext4");
        let trouble = Trouble::NetworkFileSystem { file: "/mnt/a.db".into(), kind: "NFS" };
        assert!(trouble.to_string().contains("use a local disk"), "{trouble}");
    }

    #[test]
    fn the_group_of_those_who_share_is_found_by_its_name() {
        assert_eq!(group_in("root:x:0:\npalisade:x:7:\npalisade-locks:x:961:alice,bob\n"), Some(961));
        assert_eq!(group_in("root:x:0:\n"), None);
    }

    #[test]
    fn a_mount_point_is_found_by_its_whole_name() {
        let mounts =
            b"27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 254:0 /a /srv/my\\040locks.db rw - ext4 /dev/vda rw\n";
        let is = |path: &str| is_mount_point(mounts, Path::new(path));
        assert!(is("/srv/my locks.db") && is("/"));
        assert!(!is("/srv/my") && !is("/srv") && !is("/srv/my locks.db-wal"));
    }
}
