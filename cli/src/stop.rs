//! How a command ends that goes on until somebody stops it.

use std::future::{Future, pending};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::outcome::Failure;
use crate::signals::Signals;

/// Does the work until it is done, or until a signal such as Ctrl-C says to stop. The work is then dropped where it stands, which
/// releases what it holds.
pub(crate) async fn unless_stopped(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let mut signals = Signals::heed()?;
    tokio::select! {
        biased;
        end = signals.end() => Err(Failure::Exit(end.exit_code())),
        done = work => done,
    }
}

/// Waits until nobody reads what is written to stdout. For ever, where that cannot happen, as with a file.
pub(crate) async fn nobody_reads() {
    match watched_stdout() {
        Ok(stdout) => drop(stdout.ready(Interest::ERROR).await),
        Err(_) => pending().await,
    }
}

#[allow(deprecated, reason = "its replacement is unsafe, for types that do not own their descriptor; this one does")]
fn watched_stdout() -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(io::stdout().as_fd().try_clone_to_owned()?, Interest::ERROR)
}
