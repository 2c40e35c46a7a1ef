//! One server for many tests.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

use super::Absent;

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
}
