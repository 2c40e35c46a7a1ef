//! Clients of one `memory:` namespace, some of them with injected faults.

use std::future::Future;
use std::time::Duration;

use palisade::engine::Engine;
use palisade::engine::memory::{Config, Memory};
use palisade::{BootInstant, LockGuard, Loss, Options, Palisade, SessionId};
use palisade_testbench::bounded;
pub(crate) use palisade_testbench::bounded::BOUND;
use palisade_testbench::faulty_engine::EngineFaults;
use palisade_testbench::fixture::{self, retryable, unused_name};

/// The TTL of a session that ends during its test. It outlives a standstill of ten seconds at any moment before that.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(18);
/// The TTL of a session whose test may begin again with the next one: a standstill may end it at any moment.
pub(crate) const SHORTEST_TTL: Duration = Duration::from_secs(1);

/// Returns until when a lock was certainly held whose session was not kept alive. A client that notices that a second late takes its
/// process for paused. `None` for another loss.
pub(crate) fn not_kept_alive(loss: &Loss) -> Option<BootInstant> {
    match loss {
        Loss::Unreachable { safe_until, .. } | Loss::Paused { safe_until, .. } => Some(*safe_until),
        _ => None,
    }
}

/// Takes a lock with a session that may end at any moment.
pub(crate) async fn take(client: &Palisade, name: &str) -> LockGuard {
    bounded::until_some("the lock is granted", async || retryable(client.lock(name).acquire().await)).await
}

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// A namespace of `memory:`.
#[derive(Clone)]
pub(crate) struct Fixture {
    name: String,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture { name: unused_name("fixture-") }
    }

    fn config(&self) -> Config {
        Config { name: Some(self.name.clone()) }
    }

    pub(crate) fn url(&self) -> String {
        format!("memory:{}", self.name)
    }

    pub(crate) async fn client(&self) -> Palisade {
        Options::new().label("another").connect(&self.url()).await.expect("a client")
    }

    pub(crate) async fn faulty_client(&self, faults: &EngineFaults) -> Palisade {
        self.faulty_client_with(faults, Options::new()).await
    }

    pub(crate) async fn faulty_client_with(&self, faults: &EngineFaults, options: Options) -> Palisade {
        let (config, faults) = (self.config(), faults.clone());
        let connect = async move || Ok(faults.wrap(Box::new(Memory::connect(&config))));
        options.label("on stage").connect_engine("faulty_engine", connect).await.expect("a client")
    }

    /// Ends a session without its client's knowledge.
    pub(crate) async fn end_session(&self, session: SessionId) {
        let config = self.config();
        let end = async move { Memory::connect(&config).close_session(session).await };
        tokio::task::LocalSet::new().run_until(end).await.expect("it can be ended");
    }

    pub(crate) async fn until_queued(&self, name: &str, waiters: usize) {
        fixture::until_queued(&self.client().await, name, waiters).await;
    }

    /// Asserts that nothing is held or queued: another client gets the lock, and after its release the lock is idle.
    pub(crate) async fn nothing_is_left(&self, name: &str) {
        let other = self.client().await;
        let held = other.lock(name).acquire().await.expect("earlier holders and waiters end");
        held.release().await.expect("it is released");
        fixture::until_idle(&other, name).await;
    }

    pub(crate) async fn is_held_with(&self, name: &str, token: palisade::Token) -> bool {
        let lock = self.client().await.inspect(name).await.expect("an answer");
        lock.is_some_and(|lock| lock.holders.iter().any(|holder| holder.token == token))
    }
}
