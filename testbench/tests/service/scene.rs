//! A service of one's own, clients that reach it directly, and clients that reach it through a proxy.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use palisade::engine::{LockInfo, Watched};
use palisade::{BootInstant, Event, LockGuard, Options, Palisade, SessionId, Standing, Token, Watch};
use palisade_testbench::proxy::Proxy;
use palisade_testbench::servers::Service;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Longer than anything takes that works.
const BOUND: Duration = Duration::from_secs(120);

/// Long enough that nothing ends by it in a test.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// Checks a promise on a runtime with one thread.
pub(crate) fn check(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let bounded = async { tokio::time::timeout(BOUND, promise).await };
    runtime.block_on(bounded).expect("it takes too long: something that should happen does not");
}

pub(crate) struct Scene {
    pub(crate) service: Service,
    pub(crate) proxy: Proxy,
    // Removed after the process has ended.
    folder: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::with_variables(tempfile::tempdir().expect("a folder"), &[])
    }

    /// With more variables in the service's environment.
    pub(crate) fn with_variables(folder: TempDir, variables: &[(&str, &str)]) -> Scene {
        let service = Service::start_with(env!("CARGO_BIN_EXE_serve"), folder.path(), variables);
        let service = service.unwrap_or_else(|absent| panic!("{absent}"));
        let proxy = Proxy::start(service.address).expect("a proxy");
        Scene { service, proxy, folder }
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client that reaches the service directly.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        Options::new().label("direct").ttl(ttl).connect(&self.service.url()).await.expect("a client")
    }

    /// A client that reaches the service through the proxy.
    pub(crate) async fn through_proxy(&self, ttl: Duration) -> Palisade {
        let url = format!("palisade://{}", self.proxy.address);
        Options::new().label("through the proxy").ttl(ttl).connect(&url).await.expect("a client")
    }
}

/// A lock as it is. A question that was asked just before the line broke fails, and can be repeated.
pub(crate) async fn look(client: &Palisade, name: &str) -> Option<LockInfo> {
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

pub(crate) async fn until_queued(client: &Palisade, name: &str, waiters: usize) {
    until(client, name, |lock| lock.map_or(0, |lock| lock.waiters.len()) == waiters).await;
}

pub(crate) async fn until_idle(client: &Palisade, name: &str) {
    until(client, name, |lock| lock.is_none()).await;
}

pub(crate) async fn take(client: &Palisade, name: &str) -> LockGuard {
    client.lock(name).acquire().await.expect("its turn comes")
}

/// Waits for a lock in a task of its own.
pub(crate) fn taking(client: &Palisade, name: &str) -> JoinHandle<Result<LockGuard, palisade::Error>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(name).acquire().await })
}

pub(crate) async fn taken(task: JoinHandle<Result<LockGuard, palisade::Error>>) -> LockGuard {
    task.await.expect("it does not panic").expect("its turn comes")
}

pub(crate) fn token(guard: &LockGuard) -> Token {
    guard.token().expect("it is held")
}

/// Until when a lock is certainly held, once that is in doubt.
pub(crate) async fn jeopardy(guard: &LockGuard) -> BootInstant {
    match guard.jeopardy().await {
        Standing::Jeopardy { safe_until } => safe_until,
        other => panic!("not in jeopardy: {other:?}"),
    }
}

/// Who holds a lock.
pub(crate) async fn holder(client: &Palisade, name: &str) -> Option<SessionId> {
    look(client, name).await.and_then(|lock| lock.holders.first()?.session)
}

/// The grants that a watch has seen by the time it sees `last` end.
pub(crate) async fn grants_until_end_of(watch: &mut Watch, last: Token) -> Vec<Token> {
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
