//! A store behind a proxy, clients of both, and the steps that the tests of every engine have in common.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::engine::{LockInfo, Watched};
use palisade::{BootInstant, Error, Event, LockGuard, Options, Palisade, SessionId, Standing, Token, Watch};
use tokio::task::JoinHandle;

use crate::bounded::{BOUND, check, until_some, within};
use crate::proxy::Proxy;

/// A TTL that never passes during a test.
pub const LONG_TTL: Duration = Duration::from_secs(3600);

/// A store, a proxy in front of it, and clients that reach it directly and through the proxy.
pub struct Proxied {
    /// The address of the store.
    pub address: SocketAddr,
    /// The proxy.
    pub proxy: Proxy,
    url_at: Box<dyn Fn(SocketAddr) -> String + Send + Sync>,
    /// Added to URLs that lead through the proxy.
    proxy_options: &'static str,
}

impl Proxied {
    /// Starts a proxy. `url_at` is the URL for a store at an address.
    ///
    /// # Panics
    ///
    /// There is no port, or no thread.
    pub fn start(address: SocketAddr, url_at: impl Fn(SocketAddr) -> String + Send + Sync + 'static) -> Proxied {
        let proxy = Proxy::start(address).expect("a proxy");
        Proxied { address, proxy, url_at: Box::new(url_at), proxy_options: "" }
    }

    /// Adds options to URLs that lead through the proxy.
    #[must_use]
    pub fn with_proxy_options(self, proxy_options: &'static str) -> Proxied {
        Proxied { proxy_options, ..self }
    }

    /// The URL of the store itself.
    pub fn url(&self) -> String {
        self.url_at(self.address)
    }

    /// The URL of the store when it is reached at another address.
    pub fn url_at(&self, address: SocketAddr) -> String {
        (self.url_at)(address)
    }

    /// Connects a client directly.
    pub async fn client(&self, ttl: Duration) -> Palisade {
        connect("direct", &self.url(), ttl).await
    }

    /// Connects a client through the proxy.
    pub async fn through_proxy(&self, ttl: Duration) -> Palisade {
        let url = format!("{}{}", self.url_at(self.proxy.address), self.proxy_options);
        connect("through the proxy", &url, ttl).await
    }
}

async fn connect(label: &str, url: &str, ttl: Duration) -> Palisade {
    Options::new().label(label).ttl(ttl).connect(url).await.expect("a client")
}

/// Returns a name that no other test of this process has: `own_7`.
pub fn unused_name(prefix: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Prepares a store on another thread, since the caller may be inside a runtime.
///
/// # Panics
///
/// It fails, or takes too long.
pub fn prepare(preparation: impl Future<Output = ()> + Send) {
    std::thread::scope(|scope| scope.spawn(|| check(BOUND, preparation)).join()).expect("the store is prepared");
}

/// Returns a lock as the store shows it. Repeats a request that failed because its connection broke.
pub async fn inspect(client: &Palisade, name: &str) -> Option<LockInfo> {
    until_some("a lock can be inspected", async || retryable(client.inspect(name).await)).await
}

/// Returns `None` for an error after which the request may be repeated.
///
/// # Panics
///
/// It may not be repeated.
pub fn retryable<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(|error| assert!(error.is_retryable(), "{error}")).ok()
}

/// Waits until a condition is true of a lock. `what` says it in words.
pub async fn until_lock(client: &Palisade, name: &str, what: &str, is_true: impl Fn(Option<&LockInfo>) -> bool) {
    let waiting = async {
        let mut watch = until_some("a lock can be watched", async || retryable(client.watch(name).await)).await;
        while !is_true(inspect(client, name).await.as_ref()) {
            watch.next().await;
        }
    };
    within(&format!("'{name}' {what}"), waiting).await;
}

/// Waits until a lock has this number of waiters.
pub async fn until_queued(client: &Palisade, name: &str, waiters: usize) {
    let what = format!("has {waiters} waiters");
    until_lock(client, name, &what, |lock| lock.map_or(0, |lock| lock.waiters.len()) == waiters).await;
}

/// Waits until a lock has no holder and no waiter.
pub async fn until_idle(client: &Palisade, name: &str) {
    until_lock(client, name, "is idle", |lock| lock.is_none_or(|lock| !lock.is_in_use())).await;
}

/// Waits for a lock.
pub async fn take(client: &Palisade, name: &str) -> LockGuard {
    within(&format!("'{name}' is granted"), client.lock(name).acquire()).await.expect("its turn comes")
}

/// Waits for a lock in another task.
pub fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).acquire().await })
}

/// Waits for the lock that a task waits for.
pub async fn taken(task: JoinHandle<Result<LockGuard, Error>>) -> LockGuard {
    within("the waiting task has its lock", task).await.expect("it does not panic").expect("its turn comes")
}

/// Returns the token of a lock that is held.
pub fn token(guard: &LockGuard) -> Token {
    guard.token().expect("it is held")
}

/// Waits until a lock is in jeopardy. Returns until when it is certainly held.
pub async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match within("the lock is in jeopardy", guard.jeopardy()).await {
        Standing::Jeopardy { safe_until } => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// Returns the session that holds a lock.
pub async fn holder(client: &Palisade, name: &str) -> Option<SessionId> {
    inspect(client, name).await.and_then(|lock| lock.holders.first()?.session)
}

/// Reads a watch until the grant `last` ends. Returns the grants that it has reported by then.
pub async fn grants_until_end_of(watch: &mut Watch, last: Token) -> Vec<Token> {
    let mut grants = Vec::new();
    loop {
        match within(&format!("the watch reports the end of {last}"), watch.next()).await {
            Some(Watched::Event(Event::Granted { token, .. })) => grants.push(token),
            Some(Watched::Event(Event::GrantEnded { token, .. })) if token == last => return grants,
            Some(Watched::Event(_)) => {}
            other => panic!("instead of an event: {other:?}"),
        }
    }
}
