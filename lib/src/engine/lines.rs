//! One line after the other to where locks are kept: which one there is, who waits for one, and when the next attempt is.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Failure;
use super::lasting::{Keeps, Lasting};

/// How long to wait before the second attempt, and at most.
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The same after a line that could be made, but did not last.
const LONGEST_PAUSE_AFTER_LINE: Duration = Duration::from_millis(40);
/// The same after one that somebody has to do something about.
const PAUSE_FOR_GOOD: Duration = Duration::from_secs(2);
/// A line that has lasted for so long is no reason to be careful.
const GOOD_LINE: Duration = Duration::from_secs(1);
/// No answer is expected sooner than that, however short a session lives.
pub(super) const SHORTEST_WAIT: Duration = Duration::from_millis(250);

/// What is in the way of a line.
pub(super) trait InTheWay: fmt::Display {
    /// Whether it stays until somebody does something about it.
    fn is_for_good(&self) -> bool;
}

/// The line there is, if there is one, and the attempts to make one that have failed, with what was in their way.
pub(super) struct Lines<L, T> {
    line: RefCell<Option<Rc<L>>>,
    attempts: watch::Sender<Attempts<T>>,
}

struct Attempts<T> {
    failed: u64,
    why: Option<T>,
}

impl<L, T> Lines<L, T> {
    pub(super) fn new() -> Lines<L, T> {
        Lines { line: RefCell::new(None), attempts: watch::Sender::new(Attempts { failed: 0, why: None }) }
    }

    /// The line, if there is one.
    pub(super) fn up(&self) -> Option<Rc<L>> {
        self.line.borrow().clone()
    }

    /// The line. If there is none, the attempt that is under way, or the next one, decides.
    pub(super) async fn line(&self, failure: impl Fn(&T) -> Failure) -> Result<Rc<L>, Failure> {
        if let Some(line) = self.up() {
            return Ok(line);
        }
        let mut attempts = self.attempts.subscribe();
        let before = attempts.borrow_and_update().failed;
        loop {
            if attempts.changed().await.is_err() {
                unreachable!("the sender is here");
            }
            if let Some(line) = self.up() {
                return Ok(line);
            }
            let now = attempts.borrow_and_update();
            if let Some(why) = now.why.as_ref().filter(|_| now.failed > before) {
                return Err(failure(why));
            }
        }
    }

    /// From now on this is the line.
    pub(super) fn set(&self, line: Rc<L>) {
        *self.line.borrow_mut() = Some(line);
        self.attempts.send_modify(|_| {});
    }

    /// The line is lost.
    pub(super) fn unset(&self) {
        *self.line.borrow_mut() = None;
    }

    /// There was none to be had.
    pub(super) fn failed(&self, why: T) {
        self.attempts.send_modify(|attempts| {
            attempts.failed += 1;
            attempts.why = Some(why);
        });
    }
}

impl<L, T: InTheWay> Lines<L, T> {
    /// Makes one line after the other, for ever. An attempt ends with what a line was lost by, or with what was in the way of
    /// one, and both are told to people. What waits is told as well if somebody has to do something first.
    pub(super) async fn keep<K: Keeps>(
        &self,
        to: &str,
        lasting: &Lasting<K>,
        attempt: impl AsyncFn() -> Result<T, T>,
        failure: impl Fn(&T) -> Failure,
    ) {
        let mut pause = Pause::new();
        loop {
            match attempt().await {
                Ok(trouble) => {
                    tracing::warn!(%trouble, "the line to {to} is lost");
                    pause.after_line();
                }
                Err(trouble) => {
                    if trouble.is_for_good() {
                        tracing::warn!(%trouble, "no line to {to}");
                        pause.for_good();
                        lasting.end_waits(|| failure(&trouble));
                    } else {
                        tracing::debug!(%trouble, "no line to {to}");
                    }
                    self.failed(trouble);
                }
            }
            pause.pass(lasting.shortest_ttl()).await;
        }
    }
}

/// The time between two attempts.
pub(super) struct Pause {
    length: Duration,
    began_at: Instant,
}

impl Pause {
    /// The first attempt begins.
    pub(super) fn new() -> Pause {
        Pause { length: SHORTEST_PAUSE, began_at: Instant::now() }
    }

    /// There was a line, and it is lost.
    pub(super) fn after_line(&mut self) {
        let has_lasted = self.began_at.elapsed() >= GOOD_LINE;
        self.length = self.length.min(if has_lasted { SHORTEST_PAUSE } else { LONGEST_PAUSE_AFTER_LINE });
    }

    /// Somebody has to do something about it.
    pub(super) fn for_good(&mut self) {
        self.length = PAUSE_FOR_GOOD;
    }

    /// Waits; the next attempt begins. Sessions that live shortly leave less time.
    pub(super) async fn pass(&mut self, shortest_ttl: Option<Duration>) {
        sleep(jittered(self.length)).await;
        let longest = shortest_ttl.map_or(LONGEST_PAUSE, |ttl| ttl / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        (self.length, self.began_at) = ((self.length * 2).min(longest), Instant::now());
    }
}

/// How long to wait for the answer to a keep-alive: as long as leaves time for another one on another line.
pub(super) fn patience(ttl: Option<Duration>, longest: Duration) -> Duration {
    ttl.map_or(longest, |ttl| (ttl / 3).clamp(SHORTEST_WAIT, longest))
}

/// Between half of it and all of it, so that many clients do not come at the same moment.
pub(super) fn jittered(pause: Duration) -> Duration {
    let part = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause * part as u32 / 2048
}
