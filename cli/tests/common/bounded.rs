//! Waits that end: what never comes fails a test instead of holding it up.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Nothing that is waited for takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `wait` on another thread, and fails if it does not return within [`PATIENCE`].
pub(crate) fn within<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    awaited(wait).unwrap_or_else(|| panic!("{what} did not come within {PATIENCE:?}"))
}

/// The same; `None` if it does not come.
pub(crate) fn awaited<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || drop(sender.send(wait())));
    receiver.recv_timeout(PATIENCE).ok()
}
