//! Checks of sessions that end by their TTL, on a machine that may stand still for longer than the TTL.

use std::iter;
use std::time::Duration;

use palisade::{BootInstant, Error, LockGuard, Loss, Palisade, Standing};
use tokio::task::JoinHandle;

use crate::bounded::{until, until_some, within};
use crate::fixture::{inspect, retryable};

/// The TTL of a session that ends during its test. It outlives a standstill of ten seconds at any moment before that.
pub const SHORT_TTL: Duration = Duration::from_secs(20);

/// The longest TTL of an attempt. Redlock keeps no longer ones.
const LONGEST: Duration = Duration::from_secs(60);

/// Returns the TTLs of the attempts to check what happens when a session ends by its TTL: this one, and each time twice as much. An
/// attempt whose session was lost before it was cut off proves nothing, and the next one follows.
///
/// # Panics
///
/// The iterator panics instead of returning a TTL of more than a minute: then it is not the machine that ends the sessions.
pub fn short_ttls(shortest: Duration) -> impl Iterator<Item = Duration> {
    let ttls = iter::successors(Some(shortest), |ttl| Some(*ttl * 2)).take_while(|ttl| *ttl <= LONGEST);
    ttls.chain(iter::from_fn(move || -> Option<Duration> {
        panic!("each session was lost before it was cut off, with TTLs from {shortest:?} to {LONGEST:?}")
    }))
}

/// Returns what a client was granted. `None` if its session was lost meanwhile.
///
/// # Panics
///
/// The call has failed for another reason.
pub fn unless_lost<T>(granted: Result<T, Error>) -> Option<T> {
    match granted {
        Ok(granted) => Some(granted),
        Err(error) => match error.loss() {
            Some(Loss::Expired | Loss::Paused { .. } | Loss::Unreachable { .. }) => None,
            _ => panic!("it should have worked, but: {error}"),
        },
    }
}

/// Returns whether a session was lost because it was not kept alive. A client that notices that a second late takes its process for
/// paused.
pub fn is_not_kept_alive(loss: &Loss) -> bool {
    matches!(loss, Loss::Unreachable { .. } | Loss::Paused { .. })
}

/// Waits until a session was renewed. Returns whether it was; it may be lost instead.
pub async fn is_renewed(guard: &LockGuard) -> bool {
    let confirmed = guard.safe_until();
    tokio::select! {
        biased;
        _ = guard.renewed(confirmed) => true,
        _ = guard.lost() => false,
    }
}

/// Waits until a lock is in jeopardy, or lost because this process stood still meanwhile. Returns until when it was certainly held.
///
/// # Panics
///
/// It is lost for another reason.
pub async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match within("the lock is in jeopardy", guard.jeopardy()).await {
        Standing::Jeopardy { safe_until } | Standing::Lost(Loss::Paused { safe_until, .. }) => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// Releases a lock, also on a connection that is just being opened again.
pub async fn give_back(guard: &LockGuard) {
    until_some("the lock is released", async || retryable(guard.release().await)).await;
}

/// Waits until a lock has this number of waiters, or the task of one of them has ended, since its session was lost.
pub async fn until_queued_or_ended<T>(client: &Palisade, name: &str, waiters: usize, waiter: &JoinHandle<T>) {
    let count = async || inspect(client, name).await.map_or(0, |lock| lock.waiters.len());
    let what = format!("'{name}' has {waiters} waiters");
    until(&what, async || waiter.is_finished() || count().await == waiters).await;
}
