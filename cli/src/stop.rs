//! The end of commands that run until they are stopped.

use std::future::{Future, pending};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::outcome::Failure;
use crate::signals::Signals;

/// Runs `work` until it is done, or until a signal such as Ctrl-C. Dropping `work` then releases its locks.
pub(crate) async fn until_stopped(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        biased;
        end = signals.stop_requested() => Err(Failure::Exit(end.exit_code())),
        done = work => done,
    }
}

/// Waits until the reader of stdout is gone. Never returns where that cannot happen, as with a file.
pub(crate) async fn stdout_closed() {
    match watched_stdout() {
        Ok(stdout) => drop(stdout.ready(Interest::ERROR).await),
        Err(_) => pending().await,
    }
}

#[allow(deprecated, reason = "its replacement is unsafe, for types that do not own their descriptor; this one does")]
fn watched_stdout() -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(io::stdout().as_fd().try_clone_to_owned()?, Interest::ERROR)
}
