//! The interface to the file system, so that tests can tear writes, flip bits, fill the disk and fail flushes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::FORMING;
use super::dir_lock::DirLock;
use super::error::StorageError;

/// A directory with files.
pub trait Disk: Clone + Send + 'static {
    /// An open file.
    type File: DiskFile;

    /// Returns the names of all files.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Creates an empty file. Fails if the name exists.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for writing.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file. Replaces a file that has the new name.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    ///
    /// # Errors
    ///
    /// The I/O error.
    fn sync(&self) -> io::Result<()>;

    /// Returns the path, for messages.
    fn path(&self, name: &str) -> String;

    /// Runs a job in the background. The job may be dropped.
    fn spawn(&self, job: impl FnOnce() + Send + 'static);
}

/// An open file.
pub trait DiskFile: Send + 'static {
    /// Writes all bytes at this offset.
    ///
    /// # Errors
    ///
    /// The I/O error; some of it may have been written.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    ///
    /// The I/O error. The content of the file is unknown then, and a second flush may succeed without writing it.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Debug, Clone)]
pub struct RealDisk {
    directory: PathBuf,
    /// Shared by all clones, so that the lock is held until the last writer ends.
    _lock: Option<Arc<DirLock>>,
}

impl RealDisk {
    /// Opens a directory. Creates it, durably, if it does not exist.
    ///
    /// # Errors
    ///
    /// The I/O error.
    pub fn open(directory: PathBuf) -> io::Result<RealDisk> {
        let made: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
        // Other users must not read labels and tokens.
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Otherwise a power cut could remove the directory with all flushed files.
        for parent in made.iter().filter_map(|path| path.parent()) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent)?.sync_all()?;
        }
        Ok(RealDisk { directory, _lock: None })
    }

    /// Opens and locks a directory. `may_start_empty` allows a directory whose files were removed: the operator has
    /// raised the tokens.
    ///
    /// # Errors
    ///
    /// The I/O error; another process uses the directory; it has files of an embedded engine; or the files of a service
    /// were removed from it.
    pub fn open_alone(directory: PathBuf, may_start_empty: bool) -> Result<RealDisk, StorageError> {
        let shown = directory.display().to_string();
        let failed = |what, source| StorageError::io(what, shown.clone(), source);
        let disk = RealDisk::open(directory).map_err(|source| failed("use", source))?;
        let names = disk.list().map_err(|source| failed("list", source))?;
        if let Some(file) = embedded_file(&names) {
            return Err(StorageError::UsedByEmbedded { file: disk.path(file), directory: disk.path("") });
        }
        let was_used = DirLock::was_used(&names);
        let dir_lock = DirLock::acquire(&disk.directory)?;
        // Listed again under the lock: another service may have created its files meanwhile, and ended.
        let names = disk.list().map_err(|source| failed("list", source))?;
        let has_data = |name: &String| {
            ["watermark", FORMING].contains(&name.as_str())
                || name.starts_with("log-")
                || name.starts_with("snapshot-")
        };
        if was_used && !names.iter().any(has_data) && !may_start_empty {
            return Err(StorageError::FilesRemoved { directory: disk.path("") });
        }
        Ok(RealDisk { _lock: Some(Arc::new(dir_lock)), ..disk })
    }
}

/// Finds the database of an embedded engine: a file NAME for which NAME-lock exists too.
fn embedded_file(names: &[String]) -> Option<&str> {
    let mut bases = names.iter().filter_map(|name| name.strip_suffix("-lock"));
    bases.find(|base| names.iter().any(|name| name == base || name.strip_suffix("-sessions") == Some(base)))
}

impl Disk for RealDisk {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            // All our names are UTF-8.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.directory.join(name))
    }

    fn create(&self, name: &str) -> io::Result<File> {
        // An existing directory may be readable by other users.
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.directory.join(name))
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.directory.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.directory.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        drop(thread::Builder::new().name("palisade-disk".to_owned()).spawn(job));
    }
}

impl DiskFile for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
