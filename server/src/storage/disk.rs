//! All access to files, so that tests can tear writes, flip bits, fill the disk and fail its flushes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::error::StorageError;
use super::tenant::Tenant;

/// A directory with files.
pub trait Disk: Clone + Send + 'static {
    /// A file that is open.
    type File: DiskFile;

    /// The names of all files.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// A file's whole content.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Makes a new, empty file; one of that name must not be there.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for writing.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of a file that has it.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes durable which files there are.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn sync(&self) -> io::Result<()>;

    /// Where it is, for messages.
    fn path(&self, name: &str) -> String;

    /// Does something in the background. It is no failure if it is not done.
    fn meanwhile(&self, job: impl FnOnce() + Send + 'static);
}

/// A file that is open.
pub trait DiskFile: Send + 'static {
    /// Writes all of it at this place.
    ///
    /// # Errors
    ///
    /// What the system says; some of it may have been written.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything durable that was written.
    ///
    /// # Errors
    ///
    /// What the system says. Nothing is known then of what was written, and asking again would not tell.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Debug, Clone)]
pub struct RealDisk {
    directory: PathBuf,
    /// Held by whoever still writes.
    _tenant: Option<Arc<Tenant>>,
}

impl RealDisk {
    /// Uses a directory, and makes it, durably, if need be.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn open(directory: PathBuf) -> io::Result<RealDisk> {
        let made: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
        // Labels and tokens are nobody else's business.
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Otherwise a power cut could take the directory away, with everything that was flushed in it.
        for parent in made.iter().filter_map(|path| path.parent()) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent)?.sync_all()?;
        }
        Ok(RealDisk { directory, _tenant: None })
    }

    /// The same, as the only process that does. `may_begin_again` says that the operator knows which tokens were given.
    ///
    /// # Errors
    ///
    /// What the system says, or that another process uses it; that the files of an embedded engine are there, or that the
    /// files of a service were there and are removed.
    pub fn open_alone(directory: PathBuf, may_begin_again: bool) -> Result<RealDisk, StorageError> {
        let shown = directory.display().to_string();
        let failed = |what, source| StorageError::io(what, shown.clone(), source);
        let disk = RealDisk::open(directory).map_err(|source| failed("use", source))?;
        let names = disk.list().map_err(|source| failed("list", source))?;
        if let Some(file) = embedded_file(&names) {
            return Err(StorageError::OfEmbedded { file: disk.path(file), directory: disk.path("") });
        }
        let has_data =
            |name: &String| name == "watermark" || name.starts_with("log-") || name.starts_with("snapshot-");
        if Tenant::has_been(&names) && !names.iter().any(has_data) && !may_begin_again {
            return Err(StorageError::FilesRemoved { directory: disk.path("") });
        }
        let tenant = Tenant::move_in(&disk.directory)?;
        Ok(RealDisk { _tenant: Some(Arc::new(tenant)), ..disk })
    }
}

/// The database of an embedded engine, which has a file NAME-lock beside it.
fn embedded_file(names: &[String]) -> Option<&str> {
    let mut bases = names.iter().filter_map(|name| name.strip_suffix("-lock"));
    bases.find(|base| names.iter().any(|name| name == base || name.strip_suffix("-sessions") == Some(base)))
}

impl Disk for RealDisk {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            // A name that is no text is none of ours.
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
        // The directory may be another's, and open to all.
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

    fn meanwhile(&self, job: impl FnOnce() + Send + 'static) {
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
