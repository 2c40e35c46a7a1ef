//! One server for many tests.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use tempfile::TempDir;

use super::{Absent, last_lines};

/// A server that the tests of one process share. The first test that needs it starts it, and it ends with its last user.
/// Its directory is removed then.
pub struct Shared<S> {
    running: Mutex<Weak<(S, TempDir)>>,
    start: fn(&Path) -> Result<S, Absent>,
}

impl<S> Shared<S> {
    /// Returns a server that is started by this function when it is needed.
    pub const fn new(start: fn(&Path) -> Result<S, Absent>) -> Shared<S> {
        Shared { running: Mutex::new(Weak::new()), start }
    }

    /// Returns the server; starts it if it does not run.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn get(&self) -> Result<Arc<(S, TempDir)>, Absent> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = running.upgrade() {
            return Ok(server);
        }
        let directory = tempfile::tempdir()?;
        let server = Arc::new(((self.start)(directory.path())?, directory));
        *running = Arc::downgrade(&server);
        Ok(server)
    }

    /// Does the same for one test. If the test fails, the end of the server's log is printed.
    ///
    /// # Errors
    ///
    /// As [`Shared::get`].
    pub fn in_use(&self) -> Result<Arc<InUse<S>>, Absent> {
        Ok(Arc::new(InUse { server: self.get()? }))
    }
}

/// A server as one test uses it, and its directory.
pub struct InUse<S> {
    server: Arc<(S, TempDir)>,
}

impl<S> InUse<S> {
    /// Returns a server that no other test uses.
    pub fn alone(server: S, directory: TempDir) -> InUse<S> {
        InUse { server: Arc::new((server, directory)) }
    }

    /// Returns the server. `None` if other tests use it too.
    pub fn get_mut(&mut self) -> Option<&mut S> {
        Arc::get_mut(&mut self.server).map(|(server, _)| server)
    }
}

impl<S> Deref for InUse<S> {
    type Target = (S, TempDir);

    fn deref(&self) -> &(S, TempDir) {
        &self.server
    }
}

impl<S> Drop for InUse<S> {
    fn drop(&mut self) {
        // A server that ends with this test prints its log itself.
        if thread::panicking() && Arc::strong_count(&self.server) > 1 {
            print_logs(self.server.1.path());
        }
    }
}

/// The logs of a server that other tests use too, and that never ends before them. If a test fails while it has this value, their
/// ends are printed.
pub struct LogsOnFailure {
    directory: PathBuf,
}

impl LogsOnFailure {
    /// Returns a value that prints the logs in this directory of a server.
    pub fn of(directory: &Path) -> LogsOnFailure {
        LogsOnFailure { directory: directory.to_owned() }
    }
}

impl Drop for LogsOnFailure {
    fn drop(&mut self) {
        if thread::panicking() {
            print_logs(&self.directory);
        }
    }
}

/// Prints the ends of the logs in a directory and in the directories of its servers.
#[allow(clippy::print_stderr, reason = "a test that fails must show what its server said")]
fn print_logs(directory: &Path) {
    let entries =
        |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let inside: Vec<_> = entries(directory).collect();
    let below = inside.iter().filter(|path| path.is_dir()).flat_map(|path| entries(path));
    for log in inside.iter().cloned().chain(below).filter(|path| path.extension().is_some_and(|end| end == "log")) {
        eprintln!("The end of {}:\n{}", log.display(), last_lines(&log));
    }
}
