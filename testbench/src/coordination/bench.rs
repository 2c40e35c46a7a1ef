//! The servers on which the promises are checked, and clients of them.

use std::ops::Deref;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use palisade::{LockGuard, Options, Palisade};

use super::Store;
use super::conformance::Members;
use crate::bounded::{BOUND, check, until_some};
use crate::fixture::{Proxied, retryable, unused_name};
use crate::servers::{Absent, InUse, Shared};
use crate::worker_process::WorkerProcess;

/// The servers that the tests of one process share, and the path of the program `worker`.
pub struct Stores<S> {
    one: Shared<S>,
    pub(super) three: Shared<Members<S>>,
    pub(super) failing: Shared<Members<S>>,
    worker: &'static str,
}

impl<S: Store> Stores<S> {
    /// Returns servers that are started when they are needed.
    pub const fn new(worker: &'static str) -> Stores<S> {
        Stores {
            one: Shared::new(S::start),
            three: Shared::new(Members::start),
            failing: Shared::new(Members::start_failing),
            worker,
        }
    }

    /// Returns a namespace on the shared member, for tests that do not disturb it.
    ///
    /// # Panics
    ///
    /// It is not installed, or does not begin to answer.
    pub fn shared(&self) -> Fixture<S> {
        Fixture::on(present(self.one.in_use()))
    }

    /// Starts a member that the test may kill and stop.
    pub(super) fn alone(&self) -> Fixture<S> {
        Fixture::start(S::start)
    }

    /// Starts the program `worker`, connected to a URL. With these variables in its environment.
    pub(super) fn worker(&self, url: &str, ttl: Duration, variables: &[(&str, &str)]) -> WorkerProcess {
        let mut command = Command::new(self.worker);
        let mut worker = WorkerProcess::spawn(command.envs(variables.iter().copied())).expect("a worker");
        assert_eq!(worker.ask(&format!("connect {url} {}", ttl.as_millis())), "connected");
        worker
    }
}

/// Checks one promise. Three members are killed and started several times in it.
pub fn run<S: Store>(stores: &'static Stores<S>, promise: impl AsyncFnOnce(&'static Stores<S>)) {
    check(2 * BOUND, promise(stores));
}

pub(super) fn present<T>(started: Result<T, Absent>) -> T {
    started.unwrap_or_else(|absent| panic!("{absent}"))
}

/// A namespace of a store, clients that reach it directly, and clients that reach its first member through a proxy.
pub struct Fixture<S> {
    store: Arc<InUse<S>>,
    /// The prefix of the namespace.
    pub prefix: String,
    proxied: Proxied,
}

impl<S> Deref for Fixture<S> {
    type Target = Proxied;

    fn deref(&self) -> &Proxied {
        &self.proxied
    }
}

impl<S: Store> Fixture<S> {
    /// Starts a store for one test.
    ///
    /// # Panics
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(start: impl FnOnce(&std::path::Path) -> Result<S, Absent>) -> Fixture<S> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = present(start(folder.path()));
        Fixture::on(Arc::new(InUse::alone(store, folder)))
    }

    fn on(store: Arc<InUse<S>>) -> Fixture<S> {
        let prefix = unused_name("own-");
        let own = prefix.clone();
        let proxied = Proxied::start(store.0.addresses()[0], move |address| S::url(&[address], &own));
        Fixture { store, prefix, proxied }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store.0
    }

    /// Returns the store.
    ///
    /// # Panics
    ///
    /// Other tests use it too.
    pub fn store_mut(&mut self) -> &mut S {
        let store = Arc::get_mut(&mut self.store).and_then(InUse::get_mut);
        store.expect("a store that no other test uses")
    }

    pub(super) async fn keys(&self) -> Vec<String> {
        self.store().keys(&self.prefix).await
    }

    /// Cuts the connections through the proxy, whose answers are held back, and lets later ones pass.
    pub async fn lose_answers(&self) {
        self.proxy.shut();
        self.proxy.until_ended(self.proxy.accepted()).await;
        self.proxy.pass();
    }
}

/// Connects a client.
pub(super) async fn connect(url: &str, ttl: Duration) -> Palisade {
    Options::new().label("a client").ttl(ttl).connect(url).await.expect("a client")
}

/// Tries to take a lock, also on a connection that breaks meanwhile.
pub(super) async fn try_take(client: &Palisade, name: &str) -> Option<LockGuard> {
    until_some("an answer", async || retryable(client.lock(name).try_acquire().await)).await
}
