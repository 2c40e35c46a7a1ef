//! The bench on which the promises are checked.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use palisade::engine::{Engine, Failure, Guarantees, Level, LockInfo, Order, Watched};
use palisade::{
    EfficiencyGuard, Error, ErrorKind, Event, LockGuard, Loss, Misuse, Options, Palisade, Standing, Token,
};

use super::stalls;
use crate::bounded::{BOUND, check, within};
use crate::faulty_engine::EngineFaults;

/// Returns the TTLs of clients that a promise cuts off, one for each attempt.
pub(super) fn short_ttls() -> impl Iterator<Item = Duration> {
    stalls::short_ttls(Duration::from_millis(2500))
}

/// An engine to be checked. All clients of one subject, and of its clones, must share the same locks.
pub trait Subject: Clone + Send + Sync + 'static {
    /// The engine.
    type Engine: Engine;

    /// Creates the engine, on the keeper's thread.
    fn engine(&self) -> impl Future<Output = Result<Self::Engine, Failure>>;

    /// Connects a client. An engine that has a URL is connected by it.
    fn connect(&self, options: Options) -> impl Future<Output = Result<Palisade, Error>> + Send;

    /// Returns a client's label as other clients see it. An engine with users may put the user's name in front.
    fn seen(&self, label: &str) -> String {
        label.to_owned()
    }

    /// Returns a subject whose tokens no other test raises. An engine whose subjects share a store needs one more store.
    #[must_use]
    fn alone(&self) -> Self {
        self.clone()
    }
}

/// A subject of any type, so that the promises are compiled once and not once for each engine.
trait AnySubject: Send + Sync {
    fn engine(self: Arc<Self>) -> LocalBoxFuture<'static, Result<Box<dyn Engine>, Failure>>;
    fn connect(&self, options: Options) -> BoxFuture<'_, Result<Palisade, Error>>;
    fn seen(&self, label: &str) -> String;
    fn alone(&self) -> Arc<dyn AnySubject>;
}

impl<S: Subject> AnySubject for S {
    fn engine(self: Arc<Self>) -> LocalBoxFuture<'static, Result<Box<dyn Engine>, Failure>> {
        Box::pin(async move { Ok(Box::new(Subject::engine(&*self).await?) as Box<dyn Engine>) })
    }

    fn connect(&self, options: Options) -> BoxFuture<'_, Result<Palisade, Error>> {
        Box::pin(Subject::connect(self, options))
    }

    fn seen(&self, label: &str) -> String {
        Subject::seen(self, label)
    }

    fn alone(&self) -> Arc<dyn AnySubject> {
        Arc::new(Subject::alone(self))
    }
}

/// A subject, and a prefix of names that no other test uses.
#[derive(Clone)]
pub struct Bench {
    subject: Arc<dyn AnySubject>,
    prefix: String,
}

/// Checks one promise on one subject.
pub fn run<S: Subject>(subject: S, promise: impl AsyncFnOnce(&Bench)) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let bench = Bench { subject: Arc::new(subject), prefix: format!("conformance/{}/{number}/", std::process::id()) };
    check(BOUND, promise(&bench));
}

impl Bench {
    /// Returns a bench on which no other test raises tokens.
    #[must_use]
    pub fn alone(&self) -> Bench {
        Bench { subject: self.subject.alone(), prefix: self.prefix.clone() }
    }

    /// Returns a lock's name that no other test uses.
    pub fn name(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    /// Returns a client's label as other clients see it.
    pub fn seen(&self, label: &str) -> String {
        self.subject.seen(label)
    }

    /// A client.
    pub async fn client(&self) -> Palisade {
        self.client_called("a client").await
    }

    /// A client with a label.
    pub async fn client_called(&self, label: &str) -> Palisade {
        ok(self.connect(Options::new().label(label)).await)
    }

    /// Connects with options.
    pub async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        self.subject.connect(options).await
    }

    /// A client whose connection to the engine can be cut. To the engine that is no different from a client behind a broken network:
    /// its session really expires, by the engine's own clock.
    pub async fn faulty_client(&self, faults: &EngineFaults, ttl: Duration) -> Palisade {
        let options = Options::new().ttl(ttl).label("on a stage");
        let (subject, faults) = (self.subject.clone(), faults.clone());
        let connect = async move || subject.engine().await.map(|engine| faults.wrap(engine));
        ok(options.connect_engine("faulty_engine", connect).await)
    }

    /// Waits until a lock has this number of waiters. Does nothing on an engine without queues, where the order of waiters
    /// does not matter.
    pub async fn until_queued(&self, client: &Palisade, name: &str, waiters: usize) {
        if client.guarantees().order == Order::Fair {
            let what = format!("has {waiters} waiters");
            self.until(client, name, &what, |lock| lock.map_or(0, |lock| lock.waiters.len()) == waiters).await;
        }
    }

    /// Waits until a lock has no holder and no waiter.
    pub async fn until_idle(&self, client: &Palisade, name: &str) {
        self.until(client, name, "is idle", |lock| lock.is_none_or(|lock| !lock.is_in_use())).await;
    }

    /// Waits until a condition is true of a lock. `what` says it in words.
    pub async fn until(
        &self,
        client: &Palisade,
        name: &str,
        what: &str,
        is_true: impl Fn(Option<&LockInfo>) -> bool,
    ) {
        let mut watch = match client.guarantees().offers.watch {
            true => Some(ok(client.watch(name).await)),
            false => None,
        };
        let waiting = async {
            while !is_true(ok(client.inspect(name).await).as_ref()) {
                match &mut watch {
                    Some(watch) => drop(watch.next().await),
                    // An engine without watches can only be polled.
                    None => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        };
        within(&format!("'{name}' {what}"), waiting).await;
    }
}

/// A lock with a token, if the engine has tokens.
#[derive(Debug)]
pub enum Held {
    /// With a token.
    Fenced(LockGuard),
    /// Without.
    Efficient(EfficiencyGuard),
}

impl Held {
    /// The token.
    pub fn token(&self) -> Token {
        match self {
            Held::Fenced(guard) => ok(guard.token()),
            Held::Efficient(_) => panic!("asked for the token of a guard that has none"),
        }
    }

    /// Releases it.
    pub async fn release(&self) -> Result<(), Error> {
        match self {
            Held::Fenced(guard) => guard.release().await,
            Held::Efficient(guard) => guard.release().await,
        }
    }

    /// Returns whether it is lost by now.
    pub fn is_lost(&self) -> bool {
        let standing = match self {
            Held::Fenced(guard) => guard.standing(),
            Held::Efficient(guard) => guard.standing(),
        };
        matches!(standing, Standing::Lost(_))
    }

    /// Waits until it is lost.
    pub async fn lost(&self) -> Loss {
        match self {
            Held::Fenced(guard) => guard.lost().await,
            Held::Efficient(guard) => guard.lost().await,
        }
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    Not,
    Within(Duration),
    Long,
}

pub(super) async fn ask(client: &Palisade, name: &str, wait: Wait) -> Result<Option<Held>, Error> {
    let lock = client.lock(name);
    Ok(if is_fenced(client.guarantees()) {
        let guard = match wait {
            Wait::Not => lock.try_acquire().await?,
            Wait::Within(time) => lock.acquire_within(time).await?,
            Wait::Long => Some(lock.acquire().await?),
        };
        guard.map(Held::Fenced)
    } else {
        let lock = lock.efficiency();
        let guard = match wait {
            Wait::Not => lock.try_acquire().await?,
            Wait::Within(time) => lock.acquire_within(time).await?,
            Wait::Long => Some(lock.acquire().await?),
        };
        guard.map(Held::Efficient)
    })
}

/// Waits for a lock and takes it.
pub(super) async fn take(client: &Palisade, name: &str) -> Held {
    ok(ask(client, name, Wait::Long).await).expect("a wait without a bound ends with a grant")
}

/// Takes a lock with a session that may be lost meanwhile. Returns `None` then.
pub(super) async fn take_unless_lost(client: &Palisade, name: &str) -> Option<Held> {
    stalls::unless_lost(ask(client, name, Wait::Long).await)?
}

/// Takes a lock if it is free.
pub(super) async fn try_take(client: &Palisade, name: &str) -> Option<Held> {
    ok(ask(client, name, Wait::Not).await)
}

/// Waits for a lock in another task.
pub(super) fn taking(client: &Palisade, name: &str) -> tokio::task::JoinHandle<Result<Option<Held>, Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { ask(&client, &name, Wait::Long).await })
}

/// Closes a client. Returns whether the engine has answered: a close waits two seconds, and a machine may stand still for longer. The
/// session ends by its TTL then.
pub(super) async fn close(client: Palisade) -> bool {
    let closed = client.close().await;
    if let Err(error) = &closed {
        assert!(error.is_retryable() && error.may_have_taken_effect(), "{error}");
    }
    closed.is_ok()
}

/// Waits until a lock that was left by a close is free. If the engine has answered the close, it is free at once.
pub(super) async fn take_closed(client: &Palisade, name: &str, is_closed: bool) -> Held {
    match is_closed {
        true => try_take(client, name).await.expect("it is free at once"),
        false => take(client, name).await,
    }
}

/// Waits for a task, and returns its result.
pub(super) async fn join<T>(task: tokio::task::JoinHandle<T>) -> T {
    task.await.expect("the task does not panic")
}

pub(super) fn is_fenced(guarantees: &Guarantees) -> bool {
    guarantees.level == Level::Fenced
}

#[track_caller]
pub(super) fn ok<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("it should have worked, but: {error}"),
    }
}

#[track_caller]
fn failed<T: Debug>(result: Result<T, Error>) -> Error {
    match result {
        Ok(value) => panic!("it should have failed, but: {value:?}"),
        Err(error) => error,
    }
}

/// Asserts that the engine does not offer it, and that the message says what to do.
#[track_caller]
pub(super) fn is_unsupported<T: Debug>(result: Result<T, Error>) {
    let error = failed(result);
    assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
    assert!(error.to_string().contains("use "), "it does not say what to do: {error}");
}

/// Asserts that the call is refused as misuse.
#[track_caller]
pub(super) fn is_misuse<T: Debug>(result: Result<T, Error>) -> Misuse {
    let error = failed(result);
    assert!(!error.is_retryable() && !error.may_have_taken_effect(), "{error}");
    match error.kind() {
        ErrorKind::Misuse(misuse) => misuse.clone(),
        kind => panic!("this is no misuse: {kind:?}"),
    }
}

/// Asserts that the lock or the session is lost.
#[track_caller]
pub(super) fn is_lost<T: Debug>(result: Result<T, Error>) -> Loss {
    let error = failed(result);
    error.loss().unwrap_or_else(|| panic!("nothing was lost: {error}")).clone()
}

/// The next event of a watch.
pub(super) async fn next_event(watch: &mut palisade::Watch) -> Event {
    match watch.next().await {
        Some(Watched::Event(event)) => event,
        other => panic!("instead of an event: {other:?}"),
    }
}
