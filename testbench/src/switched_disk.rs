//! A real disk that fails while a file exists, so that a test can make the disk of another process fail.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use palisade_server::storage::disk::{Disk, DiskFile, RealDisk};
use rustix::io::Errno;

/// A disk, and the file that switches its faults: `full`, or `flush` for flushes that fail.
#[derive(Debug, Clone)]
pub struct SwitchedDisk {
    disk: RealDisk,
    switch: PathBuf,
}

/// A file of it.
#[derive(Debug)]
pub struct SwitchedFile {
    file: File,
    switch: PathBuf,
}

impl SwitchedDisk {
    /// Puts a switch on a disk.
    pub fn new(disk: RealDisk, switch: PathBuf) -> SwitchedDisk {
        SwitchedDisk { disk, switch }
    }

    fn file(&self, file: File) -> SwitchedFile {
        SwitchedFile { file, switch: self.switch.clone() }
    }
}

/// Fails if the switch is at this fault.
fn check(switch: &Path, fault: &str, error: Errno) -> io::Result<()> {
    if fs::read_to_string(switch).is_ok_and(|is_at| is_at == fault) { Err(error.into()) } else { Ok(()) }
}

fn check_space(switch: &Path) -> io::Result<()> {
    check(switch, "full", Errno::NOSPC)
}

fn check_flush(switch: &Path) -> io::Result<()> {
    check(switch, "flush", Errno::IO)
}

impl Disk for SwitchedDisk {
    type File = SwitchedFile;

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.disk.read(name)
    }

    fn create(&self, name: &str) -> io::Result<SwitchedFile> {
        check_space(&self.switch)?;
        self.disk.create(name).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<SwitchedFile> {
        self.disk.open(name).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        check_flush(&self.switch)?;
        self.disk.sync()
    }

    fn path(&self, name: &str) -> String {
        self.disk.path(name)
    }

    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.disk.spawn(job);
    }
}

impl DiskFile for SwitchedFile {
    /// Writes a half if the disk is full.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(full) = check_space(&self.switch) {
            DiskFile::write_at(&mut self.file, &bytes[..bytes.len() / 2], offset)?;
            return Err(full);
        }
        DiskFile::write_at(&mut self.file, bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        check_flush(&self.switch)?;
        DiskFile::sync(&mut self.file)
    }
}
