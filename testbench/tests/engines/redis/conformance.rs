//! The conformance suite on Redis: alone as it declares itself, and with every promise about tokens, which hold as long
//! as Redis keeps its data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade::engine::redis::{Config, Redis};
use palisade::engine::{Failure, Guarantees, Level};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::faulty_engine::{EngineFaults, FaultyEngine};
use palisade_testbench::servers::{self, InUse, Shared};

static SERVER: Shared<servers::Redis> = Shared::new(|folder| servers::Redis::start(folder, "no"));

/// Returns a namespace that no other test uses.
fn fresh_namespace() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Declares guarantees as if Redis could not lose its data.
fn sound(guarantees: Guarantees) -> Guarantees {
    Guarantees { level: Level::Fenced, ..guarantees }
}

/// `redis://HOST:PORT?namespace=NAME`, a namespace for each test.
#[derive(Clone)]
struct OnRedis {
    server: Arc<InUse<servers::Redis>>,
    namespace: String,
}

impl OnRedis {
    fn new() -> OnRedis {
        let server = SERVER.in_use().unwrap_or_else(|absent| panic!("{absent}"));
        OnRedis { server, namespace: fresh_namespace() }
    }

    fn place(&self) -> String {
        format!("//{}?namespace={}", self.server.0.address, self.namespace)
    }
}

impl Subject for OnRedis {
    type Engine = Redis;

    async fn engine(&self) -> Result<Redis, Failure> {
        Redis::connect(Config::parse(&self.place())?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&format!("redis:{}", self.place())).await
    }
}

/// Redis declared as if it could not lose its data, so that the promises about tokens are checked too.
#[derive(Clone)]
struct OnSoundRedis(OnRedis);

impl OnSoundRedis {
    fn new() -> OnSoundRedis {
        OnSoundRedis(OnRedis::new())
    }
}

impl Subject for OnSoundRedis {
    type Engine = FaultyEngine;

    async fn engine(&self) -> Result<FaultyEngine, Failure> {
        Ok(EngineFaults::declaring(sound).wrap(Box::new(self.0.engine().await?)))
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let again = self.clone();
        options.connect_engine("redis", async move || again.engine().await).await
    }
}

/// `redis://A,B,C/?cluster&namespace=NAME`: each namespace is on one of three nodes, and most on another than the first.
#[derive(Clone)]
struct OnCluster {
    cluster: Arc<InUse<servers::RedisCluster>>,
    namespace: String,
}

static CLUSTER: Shared<servers::RedisCluster> = Shared::new(servers::RedisCluster::start);

impl OnCluster {
    fn new() -> OnCluster {
        let cluster = CLUSTER.in_use().unwrap_or_else(|absent| panic!("{absent}"));
        OnCluster { cluster, namespace: fresh_namespace() }
    }

    fn place(&self) -> String {
        format!("{}&namespace={}", self.cluster.0.place(), self.namespace)
    }
}

impl Subject for OnCluster {
    type Engine = FaultyEngine;

    async fn engine(&self) -> Result<FaultyEngine, Failure> {
        Ok(EngineFaults::declaring(sound).wrap(Box::new(Redis::connect(Config::parse(&self.place())?).await?)))
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let again = self.clone();
        options.connect_engine("redis", async move || again.engine().await).await
    }
}

palisade_testbench::conformance!(as_it_declares_itself, OnRedis::new());
palisade_testbench::conformance!(on_a_cluster, OnCluster::new());
palisade_testbench::conformance!(as_long_as_it_keeps_its_data, OnSoundRedis::new());
