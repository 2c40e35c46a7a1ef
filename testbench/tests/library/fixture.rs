//! Clients that meet on one `memory:` namespace, some of them on a stage.

use std::future::Future;
use std::time::Duration;

use palisade::engine::Engine;
use palisade::engine::memory::{Config, Memory};
use palisade::{Options, Palisade, SessionId};
use palisade_testbench::bounded;
use palisade_testbench::faulty_engine::Stage;
use palisade_testbench::fixture::{self, unused_name};

/// Longer than anything takes that works.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    bounded::check(BOUND, promise);
}

/// A place where clients meet.
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

    pub(crate) async fn on_stage(&self, stage: &Stage) -> Palisade {
        self.on_stage_with(stage, Options::new()).await
    }

    pub(crate) async fn on_stage_with(&self, stage: &Stage, options: Options) -> Palisade {
        let (config, stage) = (self.config(), stage.clone());
        let connect = async move || Ok(stage.put(Memory::connect(&config)));
        options.label("on stage").connect_engine("faulty_engine", connect).await.expect("a client")
    }

    /// Ends a session behind its client's back.
    pub(crate) async fn end_session(&self, session: SessionId) {
        let config = self.config();
        let end = async move { Memory::connect(&config).close_session(session).await };
        tokio::task::LocalSet::new().run_until(end).await.expect("it can be ended");
    }

    pub(crate) async fn until_queued(&self, name: &str, waiters: usize) {
        fixture::until_queued(&self.client().await, name, waiters).await;
    }

    /// Nothing is held or queued any more: another client gets the lock, and then nobody holds or wants it.
    pub(crate) async fn nothing_is_left(&self, name: &str) {
        let other = self.client().await;
        let held = other.lock(name).acquire().await.expect("whatever was there goes away");
        held.release().await.expect("it is released");
        fixture::until_idle(&other, name).await;
    }

    pub(crate) async fn is_held_with(&self, name: &str, token: palisade::Token) -> bool {
        let lock = self.client().await.inspect(name).await.expect("an answer");
        lock.is_some_and(|lock| lock.holders.iter().any(|holder| holder.token == token))
    }
}
