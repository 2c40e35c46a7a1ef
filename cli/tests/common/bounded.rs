//! Bounded waits: an event that never comes fails the test instead of blocking it.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The bound of every wait. Nothing takes this long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `wait` on another thread, and fails if it does not return within [`TIMEOUT`].
pub(crate) fn within<T: Send + 'static>(what: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    awaited(wait).unwrap_or_else(|| panic!("{what} did not come within {TIMEOUT:?}"))
}

/// Runs `wait` on another thread; `None` if it does not return within [`TIMEOUT`].
pub(crate) fn awaited<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || drop(sender.send(wait())));
    receiver.recv_timeout(TIMEOUT).ok()
}
