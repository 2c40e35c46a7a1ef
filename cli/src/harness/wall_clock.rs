//! A wall clock that can be set, for one process: Debian's package `faketime`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The wall clock of processes that are started with its variables. Their other clocks are not changed.
#[derive(Debug, Clone)]
pub struct WallClock {
    libraries: String,
    time: String,
}

impl WallClock {
    /// Creates a clock that is right until it jumps. This file has its offset.
    ///
    /// # Errors
    ///
    /// `faketime` is not installed, or the file cannot be written.
    pub fn new(file: &Path) -> io::Result<WallClock> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "faketime is not installed");
        let text = |path: PathBuf| path.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidFilename);
        let clock = WallClock { libraries: text(library().ok_or_else(missing)?)?, time: text(file.to_owned())? };
        clock.jump("+0")?;
        Ok(clock)
    }

    /// Loads the C library with the clock: its allocator then replaces the one of Redis, which reads the time before `faketime` is
    /// initialised.
    pub fn with_libc(mut self) -> WallClock {
        self.libraries += ":libc.so.6";
        self
    }

    /// Jumps: `+1h`, `-1h`, `+0`.
    ///
    /// # Errors
    ///
    /// Its file cannot be written.
    pub fn jump(&self, offset: &str) -> io::Result<()> {
        // A process that reads the file meanwhile sees the old offset or the new one.
        let new = format!("{}.new", self.time);
        fs::write(&new, format!("{offset}\n"))?;
        fs::rename(new, &self.time)
    }

    /// Returns the environment variables of a process that uses this clock.
    pub fn variables(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.libraries),
            ("FAKETIME_TIMESTAMP_FILE", &self.time),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ]
    }

    /// Returns the same variables for a program that reads the clock so often that it must not read the file each time, such as Java.
    pub fn cached_variables(&self) -> [(&str, &str); 4] {
        self.variables().map(|(name, value)| match name {
            "FAKETIME_NO_CACHE" => ("FAKETIME_CACHE_DURATION", "1"),
            _ => (name, value),
        })
    }
}

/// Removes the shared memory that `faketime` makes for a process, and that stays behind when the process is killed.
pub fn remove_shared_memory(pid: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        // A process without such a clock has none.
        let _ = fs::remove_file(format!("/dev/shm/{name}_{pid}"));
    }
}

/// Returns the path of the library, if it is installed.
pub fn library() -> Option<PathBuf> {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].into_iter().map(PathBuf::from);
    let subfolders = fs::read_dir("/usr/lib").ok()?.flatten().map(|folder| folder.path());
    roots.chain(subfolders).map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.exists())
}
