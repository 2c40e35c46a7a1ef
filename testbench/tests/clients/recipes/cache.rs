//! One process rebuilds a cached value, and the others get the old one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use palisade::recipe::cache::{BoxError, Cache, CacheStore, Cached, Memory};
use palisade::recipe::store::Redis;
use palisade::{Options, Palisade};
use palisade_testbench::bounded::{BOUND, check_on_threads, until, until_some, within};
use palisade_testbench::fixture::retryable;
use palisade_testbench::servers;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const HOUR: Duration = Duration::from_secs(3600);

/// Builds values 1, 2, 3, each only when the test lets it.
#[derive(Clone, Default)]
struct Builder {
    began: Arc<AtomicU32>,
    go: Arc<Notify>,
}

impl Builder {
    async fn build(self) -> Result<u32, io::Error> {
        let value = self.began.fetch_add(1, SeqCst) + 1;
        self.go.notified().await;
        Ok(value)
    }

    fn began(&self) -> u32 {
        self.began.load(SeqCst)
    }

    async fn get(&self, cache: &Cache<impl CacheStore>) -> u32 {
        let builder = self.clone();
        cache.get("home", || builder.build()).await.expect("a value")
    }
}

async fn locks() -> Palisade {
    palisade::connect("memory:").await.expect("an engine")
}

/// Ten callers miss the value at once. Without the recipe all of them build it.
async fn one_builds(store: impl CacheStore + Clone) {
    let (palisade, builder) = (locks().await, Builder::default());
    let cache = Cache::new(palisade.clone(), store).fresh(HOUR);
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (cache, builder) = (cache.clone(), builder.clone());
        callers.spawn(async move { builder.get(&cache).await });
    }
    until("the others wait", async || {
        palisade.inspect("cache/home").await.expect("a lock").is_some_and(|lock| lock.waiters.len() == 9)
    })
    .await;
    builder.go.notify_one();
    assert_eq!(callers.join_all().await, [1; 10]);
    assert_eq!(builder.began(), 1);
    assert_eq!(builder.get(&cache).await, 1, "it is cached");
}

/// A value that has expired is served while one process rebuilds it.
async fn old_value_is_served(store: impl CacheStore + Clone) {
    let (palisade, builder) = (locks().await, Builder::default());
    let cache = Cache::new(palisade, store).fresh(Duration::ZERO).stale(HOUR);
    builder.go.notify_one();
    assert_eq!(builder.get(&cache).await, 1);
    // All of these return at once: the rebuild waits for the test.
    for _ in 0..10 {
        assert_eq!(builder.get(&cache).await, 1);
    }
    until("one caller rebuilds it", async || builder.began() == 2).await;
    builder.go.notify_one();
    until("the new value is served", async || builder.get(&cache).await >= 2).await;
    builder.go.notify_one();
}

#[test]
fn one_builds_in_memory() {
    check_on_threads(BOUND, one_builds(Memory::default()));
}

#[test]
fn an_old_value_is_served_from_memory() {
    check_on_threads(BOUND, old_value_is_served(Memory::default()));
}

#[test]
fn one_builds_in_redis() {
    check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
        one_builds(Redis::connect(&server.url()).await.expect("a connection")).await;
    });
}

#[test]
fn an_old_value_is_served_from_redis() {
    check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let server = servers::Redis::start(folder.path(), "always").unwrap_or_else(|absent| panic!("{absent}"));
        old_value_is_served(Redis::connect(&server.url()).await.expect("a connection")).await;
    });
}

/// A failed rebuild leaves the old value; a failed first build is the caller's error.
#[test]
fn a_failed_rebuild_serves_the_old_value() {
    check_on_threads(BOUND, async {
        let cache = Cache::new(locks().await, Memory::default()).fresh(Duration::ZERO).stale(HOUR);
        let fail = || async { Err::<u32, _>(io::Error::other("the database is down")) };
        assert_eq!(cache.get("home", fail).await.expect_err("nothing is cached").to_string(), "the database is down");
        assert_eq!(cache.get("home", || async { Ok::<_, io::Error>(1) }).await.expect("a value"), 1);
        for _ in 0..3 {
            assert_eq!(cache.get("home", fail).await.expect("the old value"), 1);
        }
    });
}

/// A cache that fails.
#[derive(Clone)]
struct Broken;

impl CacheStore for Broken {
    async fn get(&self, _: &str) -> Result<Option<Cached>, BoxError> {
        Err("no answer".into())
    }

    async fn set(&self, _: &str, _: Vec<u8>, _: Duration) -> Result<(), BoxError> {
        Err("no answer".into())
    }
}

/// The engine is gone for longer than the TTL. An old value is served, and a missing one is built.
#[test]
fn an_engine_that_is_gone_keeps_no_value_back() {
    check_on_threads(BOUND, async {
        let folder = tempfile::tempdir().expect("a folder");
        let service = servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder.path());
        let service = service.unwrap_or_else(|absent| panic!("{absent}"));
        let options = Options::new().ttl(Duration::from_secs(1));
        let palisade = options.connect(&format!("palisade://{}", service.address)).await.expect("a client");
        // A standstill of the machine may end that session at any moment.
        let held = until_some("it is granted", async || retryable(palisade.lock("held").acquire().await)).await;
        let cache = Cache::new(palisade, Memory::default()).fresh(Duration::ZERO).stale(HOUR);
        let one = || async { Ok::<_, io::Error>(1) };
        assert_eq!(cache.get("home", one).await.expect("a value"), 1);
        drop(service);
        held.lost().await;
        for key in ["home", "away"] {
            assert_eq!(within("a value", cache.get(key, one)).await.expect("a value"), 1);
        }
    });
}

/// Neither the cache nor the lock engine is needed for a value.
#[test]
fn without_the_cache_or_the_engine_the_value_is_built() {
    check_on_threads(BOUND, async {
        let palisade = locks().await;
        let cache = Cache::new(palisade.clone(), Broken);
        assert_eq!(cache.get("home", || async { Ok::<_, io::Error>(1) }).await.expect("a value"), 1);
        let cache = Cache::new(palisade.clone(), Memory::default());
        palisade.close().await.expect("it closes");
        assert_eq!(cache.get("home", || async { Ok::<_, io::Error>(2) }).await.expect("a value"), 2);
    });
}
