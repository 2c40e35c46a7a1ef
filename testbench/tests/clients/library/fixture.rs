//! Clients of one `memory:` namespace, some of them with injected faults.

use std::future::Future;

use palisade::engine::Engine;
use palisade::engine::memory::{Config, Memory};
use palisade::{Options, Palisade, SessionId};
use palisade_testbench::bounded;
pub(crate) use palisade_testbench::bounded::BOUND;
use palisade_testbench::faulty_engine::EngineFaults;
use palisade_testbench::fixture::{self, unused_name};

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
