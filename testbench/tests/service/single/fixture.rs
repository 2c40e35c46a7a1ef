//! A service for one test, clients that reach it directly, and clients that reach it through a proxy.

use std::future::Future;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use palisade::{BootInstant, LockGuard, Loss, Standing};
use palisade_testbench::bounded::{self, BOUND};
pub(crate) use palisade_testbench::bounded::{until, until_some, within};
use palisade_testbench::fixture::Proxied;
pub(crate) use palisade_testbench::fixture::{
    LONG_TTL, grants_until_end_of, holder, inspect, retryable, take, taken, taking, token, until_idle, until_queued,
};
use palisade_testbench::servers::Service;
use tempfile::TempDir;

/// The TTL of a session that ends during its test. It outlives a standstill of ten seconds at any moment before that.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(20);

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// Waits until a lock is in jeopardy, or lost because this process stood still meanwhile. Returns until when it was certainly held.
pub(crate) async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match within("the lock is in jeopardy", guard.jeopardy()).await {
        Standing::Jeopardy { safe_until } | Standing::Lost(Loss::Paused { safe_until, .. }) => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// Returns whether a session was lost because it was not kept alive. A client that notices that a second late takes its process for
/// paused.
pub(crate) fn is_not_kept_alive(loss: &Loss) -> bool {
    matches!(loss, Loss::Unreachable { .. } | Loss::Paused { .. })
}

/// Releases a lock, also on a connection that is just being opened again.
pub(crate) async fn give_back(guard: &LockGuard) {
    until_some("the lock is released", async || retryable(guard.release().await)).await;
}

pub(crate) struct Fixture {
    pub(crate) service: Service,
    proxied: Proxied,
    // Removed after the process has ended.
    folder: TempDir,
}

impl Deref for Fixture {
    type Target = Proxied;

    fn deref(&self) -> &Proxied {
        &self.proxied
    }
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with_variables(tempfile::tempdir().expect("a folder"), &[])
    }

    /// With more variables in the service's environment.
    pub(crate) fn with_variables(folder: TempDir, variables: &[(&str, &str)]) -> Fixture {
        let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder.path(), variables);
        let service = service.unwrap_or_else(|absent| panic!("{absent}"));
        let proxied = Proxied::start(service.address, |address| format!("palisade://{address}"));
        Fixture { service, proxied, folder }
    }

    /// Returns the folder with the service's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}
