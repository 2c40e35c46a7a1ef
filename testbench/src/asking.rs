//! What tests of engines ask again and again: how a lock looks, until it looks so, and a lock in a task of its own.

use palisade::engine::{LockInfo, Watched};
use palisade::{BootInstant, Error, Event, LockGuard, Palisade, SessionId, Standing, Token, Watch};
use tokio::task::JoinHandle;

/// A lock as it is. A question that was asked just before the line broke fails, and can be repeated.
pub async fn look(client: &Palisade, name: &str) -> Option<LockInfo> {
    loop {
        match client.inspect(name).await {
            Ok(lock) => return lock,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Waits until a lock looks so.
async fn until(client: &Palisade, name: &str, is_so: impl Fn(Option<&LockInfo>) -> bool) {
    let mut watch = loop {
        match client.watch(name).await {
            Ok(watch) => break watch,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    while !is_so(look(client, name).await.as_ref()) {
        watch.next().await;
    }
}

/// Waits until so many wait for a lock.
pub async fn until_queued(client: &Palisade, name: &str, waiters: usize) {
    until(client, name, |lock| lock.map_or(0, |lock| lock.waiters.len()) == waiters).await;
}

/// Waits until nobody holds or wants a lock.
pub async fn until_idle(client: &Palisade, name: &str) {
    until(client, name, |lock| lock.is_none_or(|lock| !lock.is_in_use())).await;
}

/// Waits for a lock.
pub async fn take(client: &Palisade, name: &str) -> LockGuard {
    client.lock(name).acquire().await.expect("its turn comes")
}

/// Waits for a lock in a task of its own.
pub fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).acquire().await })
}

/// The lock that a task has waited for.
pub async fn taken(task: JoinHandle<Result<LockGuard, Error>>) -> LockGuard {
    task.await.expect("it does not panic").expect("its turn comes")
}

/// The token of a lock that is held.
pub fn token(guard: &LockGuard) -> Token {
    guard.token().expect("it is held")
}

/// Until when a lock is certainly held, once that is in doubt.
pub async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match guard.jeopardy().await {
        Standing::Jeopardy { safe_until } => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// The holder of a lock.
pub async fn holder(client: &Palisade, name: &str) -> Option<SessionId> {
    look(client, name).await.and_then(|lock| lock.holders.first()?.session)
}

/// The grants that a watch has seen by the time it sees `last` end.
pub async fn grants_until_end_of(watch: &mut Watch, last: Token) -> Vec<Token> {
    let mut grants = Vec::new();
    loop {
        match watch.next().await {
            Some(Watched::Event(Event::Granted { token, .. })) => grants.push(token),
            Some(Watched::Event(Event::GrantEnded { token, .. })) if token == last => return grants,
            Some(Watched::Event(_)) => {}
            other => panic!("instead of an event: {other:?}"),
        }
    }
}
