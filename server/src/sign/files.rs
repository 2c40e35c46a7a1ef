//! The files of the keys: `keys/cluster` names the cluster, `keys/NNNN.pk8` is one key, the highest number the newest.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::Ed25519KeyPair;
use thiserror::Error;

const CLUSTER: &str = "cluster";
/// The digits of a cluster's id: 128 random bits.
const ID_DIGITS: usize = 32;

/// Why the keys cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// An I/O error.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is damaged.
    #[error("{} is damaged; restore it, or remove it to do without what it was", .path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
    },
    /// Others can read a key, and could sign with it.
    #[error(
        "{} can be read by other users (mode {mode:03o}), so that they can sign with it; set its mode to 600, and if it may \
         have been read, make a new key (palisade serve --new-key) and retire this one (--retire-key)",
        .path.display()
    )]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is no key at all.
    #[error("there is no key in {}; make one: palisade serve --new-key", .folder.display())]
    NoKeys {
        /// Where they should be.
        folder: PathBuf,
    },
    /// There is no key of this name.
    #[error("there is no key '{kid}'; there are {}", .known.join(", "))]
    NoSuchKey {
        /// The name.
        kid: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The key is in use.
    #[error("key {kid} is the newest, which signs; make another one first: palisade serve --new-key")]
    StillSigns {
        /// Its name.
        kid: String,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::Io { what, path, source }
}

fn no_randomness<E>(_: E) -> io::Error {
    io::Error::other("the system gives no random bytes")
}

/// The folder with the keys.
#[derive(Debug, Clone)]
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(super) fn new(data_dir: &Path) -> Files {
        Files { folder: data_dir.join("keys") }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads the cluster's id.
    pub(super) fn cluster(&self) -> Result<String, KeyError> {
        let path = self.folder.join(CLUSTER);
        let id = fs::read_to_string(&path).map_err(failed("read", &path))?;
        let id = id.trim_end();
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
        if is_id { Ok(id.to_owned()) } else { Err(KeyError::Damaged { path }) }
    }

    /// Gives the cluster an id, unless it has one.
    pub(super) fn make_cluster(&self) -> Result<(), KeyError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed("make", &self.folder))?;
        let path = self.folder.join(CLUSTER);
        let mut bits = [0; ID_DIGITS / 2];
        SystemRandom::new().fill(&mut bits).map_err(no_randomness).map_err(failed("make", &path))?;
        let id: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        self.put(CLUSTER, format!("{id}\n").as_bytes()).map(drop)
    }

    /// Returns the numbers of all keys, the newest last.
    pub(super) fn numbers(&self) -> Result<Vec<u32>, KeyError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed("read", &self.folder))? {
            let name = entry.map_err(failed("read", &self.folder))?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".pk8")?.parse().ok());
            numbers.extend(number.filter(|number| *name == *file_name(*number)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(super) fn key(&self, number: u32) -> Result<Ed25519KeyPair, KeyError> {
        let path = self.folder.join(file_name(number));
        let mode = fs::metadata(&path).map_err(failed("read", &path))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path, mode });
        }
        let bytes = fs::read(&path).map_err(failed("read", &path))?;
        Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| KeyError::Damaged { path })
    }

    /// Creates a key that is newer than all others, and returns its number.
    pub(super) fn make_key(&self) -> Result<u32, KeyError> {
        let generated = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let key = generated.map_err(no_randomness).map_err(failed("make a key in", &self.folder))?;
        loop {
            let number = self.numbers()?.last().map_or(1, |last| last.saturating_add(1));
            if self.put(&file_name(number), key.as_ref())? {
                return Ok(number);
            }
        }
    }

    pub(super) fn remove_key(&self, number: u32) -> Result<(), KeyError> {
        let path = self.folder.join(file_name(number));
        fs::remove_file(&path).map_err(failed("remove", &path))?;
        self.sync()
    }

    /// Creates a file atomically and durably. Returns whether it did; an existing file stays.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool, KeyError> {
        let path = self.folder.join(name);
        if path.try_exists().map_err(failed("look for", &path))? {
            return Ok(false);
        }
        let draft = self.folder.join(format!(".{name}.{}", std::process::id()));
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft).and_then(
            |mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            },
        );
        // Unlike a rename, a link does not replace an existing file.
        let linked = written.and_then(|()| fs::hard_link(&draft, &path));
        drop(fs::remove_file(&draft));
        match linked {
            Ok(()) => self.sync().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed("write", &path)(error)),
        }
    }

    fn sync(&self) -> Result<(), KeyError> {
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed("flush", &self.folder))
    }
}

fn file_name(number: u32) -> String {
    format!("{number:04}.pk8")
}
