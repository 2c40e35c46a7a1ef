//! The reconnect loop and the current connection.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Backend, ClientState, ConnectError};
use crate::engine::Failure;
use crate::time::{Instant, sleep, timeout_at};

/// The first pause after a broken connection, doubled with each failed attempt. A restarted proxy is back this soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause, so that a store that returns is found well within the usual TTLs of seconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a connection that was opened and then broke: the store can be reached, so waiting gains little.
const LONGEST_PAUSE_AFTER_CONNECTION: Duration = Duration::from_millis(40);
/// The pause after an error that stays until the operator changes something: retrying sooner would only fill logs.
const PAUSE_AFTER_PERMANENT: Duration = Duration::from_secs(2);
/// A connection that lasted this long resets the pause.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// The shortest time that a keep-alive waits for its reply, however short the TTL. A loaded store may need this long.
const SHORTEST_KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(250);

/// The current connection, and why the last attempt to open one failed.
pub struct Reconnector<C> {
    current: RefCell<Option<Rc<C>>>,
    failures: RefCell<ConnectFailures>,
    /// Wakes those who wait for a connection, in the order in which they came.
    changed: Notify,
}

#[derive(Default)]
struct ConnectFailures {
    count: u64,
    last: Option<ConnectError>,
}

/// How one round of the reconnect loop ended.
pub(super) enum ConnectionEnd {
    /// No connection could be opened.
    NotOpened(ConnectError),
    /// A connection was opened, and broke later.
    Broke(ConnectError),
}

impl<C> Reconnector<C> {
    pub(super) fn new() -> Reconnector<C> {
        Reconnector { current: RefCell::new(None), failures: RefCell::default(), changed: Notify::new() }
    }

    /// The connection, if one is open.
    pub(super) fn current(&self) -> Option<Rc<C>> {
        self.current.borrow().clone()
    }

    /// Returns the connection. If none is open, waits for the current or next attempt to open one, and fails if that fails.
    pub(crate) async fn connection(&self) -> Result<Rc<C>, Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let before = self.failures.borrow().count;
        loop {
            self.changed.notified().await;
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let now = self.failures.borrow();
            if let Some(error) = now.last.as_ref().filter(|_| now.count > before) {
                return Err(error.failure(false));
            }
        }
    }

    /// Returns the connection as [`connection`](Reconnector::connection) does, but waits no longer than this. Fails then with the
    /// error of the last attempt.
    pub(super) async fn connection_until(&self, until: Instant) -> Result<Rc<C>, Failure> {
        let began_at = Instant::now();
        timeout_at(until, self.connection()).await.unwrap_or_else(|_| {
            let last = self.failures.borrow().last.clone();
            Err(last.unwrap_or_else(|| ConnectError::no_answer(began_at.elapsed())).failure(false))
        })
    }

    pub(super) fn set(&self, connection: Rc<C>) {
        *self.current.borrow_mut() = Some(connection);
        self.failures.borrow_mut().last = None;
        self.changed.notify_waiters();
    }

    pub(super) fn unset(&self) {
        *self.current.borrow_mut() = None;
    }

    fn note_failed(&self, error: ConnectError) {
        let mut failures = self.failures.borrow_mut();
        *failures = ConnectFailures { count: failures.count + 1, last: Some(error) };
        drop(failures);
        self.changed.notify_waiters();
    }

    /// Calls `serve` for one connection after the other. A permanent error also ends every waiting acquire.
    pub(super) async fn run<B: Backend>(&self, client: &ClientState<B>, serve: impl AsyncFn() -> ConnectionEnd) {
        let mut backoff = Backoff::new();
        loop {
            match serve().await {
                ConnectionEnd::Broke(error) | ConnectionEnd::NotOpened(error) if error.is_redirect() => {}
                ConnectionEnd::Broke(error) => {
                    tracing::warn!(%error, "lost the connection");
                    backoff.connection_broke();
                }
                ConnectionEnd::NotOpened(error) => {
                    if error.is_permanent() {
                        tracing::warn!(%error, "cannot connect");
                        backoff.permanent_error();
                        // The store may have queued them, and may grant them later.
                        client.fail_waits(|| error.failure(true).possibly_applied());
                    } else {
                        tracing::debug!(%error, "cannot connect");
                    }
                    self.note_failed(error);
                }
            }
            backoff.pause(client.shortest_ttl()).await;
        }
    }
}

/// The pause between two attempts to connect.
struct Backoff {
    pause: Duration,
    /// When the last attempt to connect began.
    began_at: Instant,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { pause: SHORTEST_PAUSE, began_at: Instant::now() }
    }

    fn connection_broke(&mut self) {
        let was_stable = self.began_at.elapsed() >= STABLE_AFTER;
        self.pause = self.pause.min(if was_stable { SHORTEST_PAUSE } else { LONGEST_PAUSE_AFTER_CONNECTION });
    }

    fn permanent_error(&mut self) {
        self.pause = PAUSE_AFTER_PERMANENT;
    }

    /// Waits before the next attempt. Short TTLs need shorter pauses.
    async fn pause(&mut self, shortest_ttl: Option<Duration>) {
        sleep(jittered(self.pause)).await;
        let longest = shortest_ttl.map_or(LONGEST_PAUSE, |ttl| ttl / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        (self.pause, self.began_at) = ((self.pause * 2).min(longest), Instant::now());
    }
}

/// Returns how long a keep-alive may take: a third of the TTL, which leaves time to repeat it on another connection.
pub(crate) fn keep_alive_timeout(ttl: Option<Duration>, longest: Duration) -> Duration {
    ttl.map_or(longest, |ttl| (ttl / 3).clamp(SHORTEST_KEEP_ALIVE_TIMEOUT, longest))
}

/// Returns a random time between half the pause and all of it, so that clients that lost their connections together do not
/// all reconnect at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let fraction = random() % 1024;
    pause / 2 + pause * fraction as u32 / 2048
}

fn random() -> u64 {
    #[cfg(feature = "_simulation")]
    if let Some(random) = crate::simulation::random() {
        return random;
    }
    RandomState::new().hash_one(())
}
