//! The conformance suite on one member, on three, and on three whose leader is killed, stopped and cut off all the time.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade::engine::Failure;
use palisade::{Error, Options, Palisade};

use super::Store;
use super::bench::{Fixture, Stores, present};
use super::ensemble::Ensemble;
use super::repeating::Repeating;
use crate::bounded::block_until;
use crate::conformance::Subject;
use crate::fixture::unused_name;
use crate::servers::{Absent, InUse};

/// The engine on one member.
pub struct OnOne<S>(Arc<Fixture<S>>);

impl<S: Store> OnOne<S> {
    /// Returns a namespace on the shared member.
    pub fn new(stores: &Stores<S>) -> OnOne<S> {
        OnOne(Arc::new(stores.shared()))
    }
}

impl<S> Clone for OnOne<S> {
    fn clone(&self) -> OnOne<S> {
        OnOne(self.0.clone())
    }
}

impl<S: Store> Subject for OnOne<S> {
    type Engine = S::Engine;

    async fn engine(&self) -> Result<S::Engine, Failure> {
        S::connect(&self.0.url()).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.0.url()).await
    }
}

/// The engine on three members. Calls that fail and may be repeated are repeated.
pub struct OnThree<S> {
    members: Arc<InUse<Members<S>>>,
    prefix: String,
}

impl<S: Store> OnThree<S> {
    /// Returns a namespace on members that do not fail.
    ///
    /// # Panics
    ///
    /// They are not installed, or do not begin to answer.
    pub fn new(stores: &Stores<S>) -> OnThree<S> {
        OnThree { members: present(stores.three.in_use()), prefix: unused_name("three-") }
    }

    /// Returns a namespace on members of which the leader fails every few seconds.
    ///
    /// # Panics
    ///
    /// They are not installed, or do not begin to answer.
    pub fn failing(stores: &Stores<S>) -> OnThree<S> {
        OnThree { members: present(stores.failing.in_use()), prefix: unused_name("failing-") }
    }

    fn url(&self) -> String {
        self.members.0.url.replace(PREFIX, &self.prefix)
    }
}

impl<S> Clone for OnThree<S> {
    fn clone(&self) -> OnThree<S> {
        OnThree { members: self.members.clone(), prefix: self.prefix.clone() }
    }
}

impl<S: Store> Subject for OnThree<S> {
    type Engine = Repeating<S::Engine>;

    async fn engine(&self) -> Result<Repeating<S::Engine>, Failure> {
        Repeating::connect(async || S::connect(&self.url()).await).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let subject = self.clone();
        options.connect_engine("three members", async move || subject.engine().await).await
    }
}

/// Stands for the namespace in a URL.
const PREFIX: &str = "PREFIX";
/// Between two faults.
const PAUSE: Duration = Duration::from_secs(2);

/// Three members, and a thread that keeps them and may make them fail.
pub(super) struct Members<S> {
    url: String,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Ensemble<S>>>,
}

impl<S: Store> Members<S> {
    pub(super) fn start(folder: &Path) -> Result<Members<S>, Absent> {
        Members::with(folder, |_, _| {})
    }

    pub(super) fn start_failing(folder: &Path) -> Result<Members<S>, Absent> {
        Members::with(folder, fail)
    }

    fn with(folder: &Path, fault: fn(&mut Ensemble<S>, usize)) -> Result<Members<S>, Absent> {
        let mut ensemble = Ensemble::on(S::start_three(folder)?);
        let (url, (end, is_over)) = (ensemble.url(PREFIX), mpsc::channel());
        let thread = thread::spawn(move || {
            let mut round = 0;
            while is_over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                fault(&mut ensemble, round);
                round += 1;
            }
            ensemble
        });
        Ok(Members { url, end: Some(end), thread: Some(thread) })
    }
}

impl<S> Drop for Members<S> {
    fn drop(&mut self) {
        drop(self.end.take());
        // The members end with the thread. A panic there has been printed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Kills, stops or cuts off the leader, waits until the others have a new one, and ends the fault.
fn fail<S: Store>(ensemble: &mut Ensemble<S>, round: usize) {
    let Some(leader) = ensemble.store.leader() else { return };
    let has_other = |store: &S| store.leader().is_some_and(|other| other != leader);
    match round % 3 {
        0 => {
            ensemble.store.kill(leader);
            block_until("another member leads", || has_other(&ensemble.store));
            present(ensemble.store.restart(leader));
        }
        1 => {
            ensemble.store.stop(leader);
            block_until("another member leads", || has_other(&ensemble.store));
            ensemble.store.go_on(leader);
        }
        _ => {
            ensemble.proxies[leader].black_hole();
            // The duration is the fault: the members do not notice it, so no event ends it.
            thread::sleep(PAUSE);
            ensemble.proxies[leader].cut();
            ensemble.proxies[leader].pass();
        }
    }
}
