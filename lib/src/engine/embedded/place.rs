//! Where the file and its companions are, and whether they can be there.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::Config;
use super::error::Trouble;

/// The file and its companions.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The database.
    pub(super) file: PathBuf,
    /// Whoever writes has a lock on this file.
    pub(super) lock: PathBuf,
    /// Opened by whoever has committed something, so that watchers are woken.
    pub(super) bell: PathBuf,
    /// One file per session, and one bell.
    pub(super) sessions: PathBuf,
}

impl Place {
    /// Finds the place that a configuration means; makes the directories of the default one.
    pub(super) fn find(config: &Config) -> Result<Place, Trouble> {
        let file = file(config)?;
        if config.file.is_none() {
            make_directory(&file)?;
        }
        check_directory(&file)?;
        if fs::metadata(&file).is_ok_and(|found| !found.is_file()) {
            return Err(Trouble::NotAFile(file));
        }
        let beside = |suffix: &str| {
            let mut path = file.clone().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        Ok(Place { lock: beside("-lock"), bell: beside("-bell"), sessions: beside("-sessions"), file })
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

    /// Makes what is beside the database.
    pub(super) fn furnish(&self) -> Result<(), Trouble> {
        match fs::create_dir(&self.sessions) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Trouble::io("create", &self.sessions, error));
            }
            _ => {}
        }
        let bell = fs::OpenOptions::new().append(true).create(true).open(&self.bell);
        bell.map(drop).map_err(|error| Trouble::io("create", &self.bell, error))
    }
}

/// Where the file is or will be.
pub(super) fn file(config: &Config) -> Result<PathBuf, Trouble> {
    match &config.file {
        Some(file) => std::path::absolute(file).map_err(|error| Trouble::io("find", file, error)),
        None => default_file(),
    }
}

fn default_file() -> Result<PathBuf, Trouble> {
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/palisade")
    } else {
        let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = from("XDG_STATE_HOME").or_else(|| from("HOME").map(|home| home.join(".local/state")));
        state.ok_or(Trouble::NoHome)?.join("palisade")
    };
    Ok(directory.join("locks.db"))
}

fn make_directory(file: &Path) -> Result<(), Trouble> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| Trouble::io("create", directory, error))
}

fn check_directory(file: &Path) -> Result<(), Trouble> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    match fs::metadata(directory) {
        Ok(found) if !found.is_dir() => return Err(Trouble::NotADirectory(directory.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Trouble::NoDirectory(directory.to_owned()));
        }
        Err(error) => return Err(Trouble::io("look into", directory, error)),
        Ok(_) => {}
    }
    // The database itself may be a link to somewhere else.
    let at = if file.exists() { file } else { directory };
    match network_file_system(at) {
        Some(kind) => Err(Trouble::NetworkFileSystem { file: file.to_owned(), kind }),
        None => Ok(()),
    }
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

/// A number that is another one after each boot of the host.
pub(super) fn boot(config: &Config) -> Result<u64, Trouble> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let id = match &config.boot_id {
        Some(id) => id.clone(),
        None => fs::read_to_string(BOOT_ID).map_err(|error| Trouble::io("read", Path::new(BOOT_ID), error))?,
    };
    // FNV-1a: the same in every build, for processes of different builds meet at one file.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(id.trim().bytes().fold(0xcbf2_9ce4_8422_2325, mix))
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
}
