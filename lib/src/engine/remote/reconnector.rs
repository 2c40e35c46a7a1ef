//! The reconnect loop and the current connection.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Backend, ClientState, ConnectError};
use crate::engine::Failure;

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a connection that was opened and then broke.
const LONGEST_PAUSE_AFTER_CONNECTION: Duration = Duration::from_millis(40);
/// The pause after an error that only the operator can remove.
const PAUSE_AFTER_PERMANENT: Duration = Duration::from_secs(2);
/// A connection that lasted this long resets the pause.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// The shortest time that a keep-alive waits for its reply, however short the TTL.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(250);

/// The current connection, and the outcome of the last attempt to open one.
pub struct Reconnector<C> {
    current: RefCell<Option<Rc<C>>>,
    attempts: watch::Sender<Attempts>,
}

#[derive(Default)]
struct Attempts {
    failed: u64,
    error: Option<ConnectError>,
}

impl<C> Reconnector<C> {
    pub(super) fn new() -> Reconnector<C> {
        Reconnector { current: RefCell::new(None), attempts: watch::Sender::new(Attempts::default()) }
    }

    /// The connection, if one is open.
    pub(super) fn current(&self) -> Option<Rc<C>> {
        self.current.borrow().clone()
    }

    /// Returns the connection. Without one, waits for the attempt that is running or the next one, and fails as it does.
    pub(crate) async fn connection(&self) -> Result<Rc<C>, Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut attempts = self.attempts.subscribe();
        let before = attempts.borrow_and_update().failed;
        loop {
            if attempts.changed().await.is_err() {
                unreachable!("the sender is in self");
            }
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let now = attempts.borrow_and_update();
            if let Some(error) = now.error.as_ref().filter(|_| now.failed > before) {
                return Err(error.failure(false));
            }
        }
    }

    pub(super) fn set(&self, connection: Rc<C>) {
        *self.current.borrow_mut() = Some(connection);
        self.attempts.send_modify(|_| {});
    }

    pub(super) fn unset(&self) {
        *self.current.borrow_mut() = None;
    }

    fn note_failed(&self, error: ConnectError) {
        self.attempts.send_modify(|attempts| {
            attempts.failed += 1;
            attempts.error = Some(error);
        });
    }

    /// Opens one connection after the other. `attempt` returns why its connection broke, or why it could not open one. A
    /// permanent error also ends every waiting acquire.
    pub(super) async fn run<B: Backend>(
        &self,
        client: &ClientState<B>,
        attempt: impl AsyncFn() -> Result<ConnectError, ConnectError>,
    ) {
        let mut backoff = Backoff::new();
        loop {
            match attempt().await {
                Ok(error) if error.is_redirect() => {}
                Ok(error) => {
                    tracing::warn!(%error, "lost the connection");
                    backoff.connection_broke();
                }
                Err(error) if error.is_redirect() => {}
                Err(error) => {
                    if error.is_permanent() {
                        tracing::warn!(%error, "cannot connect");
                        backoff.permanent_error();
                        client.fail_waits(|| error.failure(true));
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
    ttl.map_or(longest, |ttl| (ttl / 3).clamp(SHORTEST_TIMEOUT, longest))
}

/// Returns between half of a pause and all of it, so that clients that lost their connection together do not return together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let part = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause * part as u32 / 2048
}
