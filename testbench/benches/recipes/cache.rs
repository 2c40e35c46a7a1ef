//! A value from the cache, beside a plain `GET`; and a value that many miss at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use palisade::recipe::cache::Cache;
use palisade::recipe::store::Redis;
use palisade_testbench::servers::Service;

use super::{Client, sample};

/// How long the value takes to build, and how many callers miss it at once.
const BUILD: Duration = Duration::from_millis(100);
const CALLERS: u32 = 100;

struct Reader(Cache<Redis>);

impl Client for Reader {
    async fn call(&mut self) -> u32 {
        self.0.get("home", || async { Ok::<_, std::io::Error>(7) }).await.unwrap()
    }
}

struct Plain(redis::aio::MultiplexedConnection);

impl Client for Plain {
    async fn call(&mut self) -> u32 {
        redis::cmd("GET").arg("home").query_async(&mut self.0).await.unwrap()
    }
}

pub(super) async fn measure(redis_url: &str, service: &Service) {
    println!("\n{:>8} {:>12} {:>12} {:>8}", "clients", "fresh/s", "plain/s", "ratio");
    let hour = Duration::from_secs(3600);
    for clients in [1, 8] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let palisade = palisade::connect(&service.url()).await.unwrap();
            ours.push(Reader(Cache::new(palisade, Redis::connect(redis_url).await.unwrap()).fresh(hour)));
            let client = redis::Client::open(redis_url).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            redis::cmd("SET").arg("home").arg(7).exec_async(&mut connection).await.unwrap();
            theirs.push(Plain(connection));
        }
        let (ours, theirs) = (sample(ours).await.0, sample(theirs).await.0);
        println!("{clients:>8} {ours:>12.0} {theirs:>12.0} {:>7.2}x", ours / theirs);
    }
    let (builds, waited) = stampede(redis_url, service).await;
    println!(
        "{CALLERS} callers miss a value that takes {BUILD:?} to build: {builds} built it (without the recipe {CALLERS}), the last one \
         had it after {:.0} ms",
        waited.as_secs_f64() * 1e3
    );
}

/// Returns how many callers have built the value, and when the last one had it.
async fn stampede(redis_url: &str, service: &Service) -> (u32, Duration) {
    let builds = Arc::new(AtomicU32::new(0));
    let palisade = palisade::connect(&service.url()).await.unwrap();
    let cache = Cache::new(palisade, Redis::connect(redis_url).await.unwrap());
    let began_at = Instant::now();
    let callers = (0..CALLERS).map(|_| {
        let (cache, builds) = (cache.clone(), builds.clone());
        tokio::spawn(async move {
            let build = move || async move {
                builds.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(BUILD).await;
                Ok::<_, std::io::Error>(7)
            };
            cache.get("missed by all", build).await.unwrap()
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert_eq!(caller.await.unwrap(), 7);
    }
    (builds.load(Ordering::Relaxed), began_at.elapsed())
}
