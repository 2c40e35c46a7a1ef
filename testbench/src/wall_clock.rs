//! A wall clock that a test can set, for one process: Debian's package `faketime`.

use std::fs;
use std::path::{Path, PathBuf};

/// The wall clock of processes that are started with its variables. Their other clocks are not changed.
pub struct WallClock {
    library: PathBuf,
    time: PathBuf,
}

impl WallClock {
    /// Creates a clock that is right until it jumps. This file has its offset.
    ///
    /// # Panics
    ///
    /// When `faketime` is not installed.
    pub fn new(file: &Path) -> WallClock {
        let folders = fs::read_dir("/usr/lib").expect("there are libraries").filter_map(Result::ok);
        let library =
            folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.exists());
        let library = library.expect("faketime is not installed: run scripts/setup");
        let clock = WallClock { library, time: file.to_owned() };
        clock.jump("+0");
        clock
    }

    /// Jumps: `+1h`, `-1h`, `+0`.
    ///
    /// # Panics
    ///
    /// When its file cannot be written.
    pub fn jump(&self, offset: &str) {
        fs::write(&self.time, format!("{offset}\n")).expect("the time can be set");
    }

    /// Returns the environment variables of a process that uses this clock.
    ///
    /// # Panics
    ///
    /// When a path is not UTF-8.
    pub fn variables(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", self.library.to_str().expect("a path")),
            ("FAKETIME_TIMESTAMP_FILE", self.time.to_str().expect("a path")),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}
