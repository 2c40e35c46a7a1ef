//! The conformance suite on a real PostgreSQL.

use std::sync::Arc;

use palisade::engine::postgres::{Advisory, Config, Postgres};
use palisade::engine::{Failure, WakeUp};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers;
use tempfile::TempDir;

use crate::scene::{LONG_TTL, Scene, check};

/// `postgres://HOST:PORT/postgres`: one server for all tests.
#[derive(Clone)]
struct AtPostgres {
    url: String,
}

impl AtPostgres {
    fn new() -> AtPostgres {
        let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtPostgres { url: server.url() }
    }
}

impl Subject for AtPostgres {
    type Engine = Postgres;

    async fn engine(&self) -> Result<Postgres, Failure> {
        let (_, rest) = self.url.split_once(':').expect("a URL");
        Postgres::connect(Config::parse(rest)?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.url).await
    }
}

/// The same through a pooler in transaction mode.
#[derive(Clone)]
struct ThroughPooler {
    direct: AtPostgres,
    _pooler: Arc<(servers::PgBouncer, TempDir)>,
}

impl ThroughPooler {
    fn new() -> ThroughPooler {
        static SHARED: servers::Shared<servers::PgBouncer> = servers::Shared::new(|folder| {
            let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
            servers::PgBouncer::start(folder, server.address, 20)
        });
        let pooler = SHARED.get().unwrap_or_else(|absent| panic!("{absent}"));
        ThroughPooler { direct: AtPostgres { url: pooler.0.url() }, _pooler: pooler }
    }
}

impl Subject for ThroughPooler {
    type Engine = Postgres;

    async fn engine(&self) -> Result<Postgres, Failure> {
        self.direct.engine().await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        self.direct.connect(options).await
    }
}

/// `?mode=advisory`, which has much less to offer.
#[derive(Clone)]
struct Advised(AtPostgres);

impl Advised {
    fn new() -> Advised {
        let AtPostgres { url } = AtPostgres::new();
        Advised(AtPostgres { url: format!("{url}?mode=advisory") })
    }
}

impl Subject for Advised {
    type Engine = Advisory;

    async fn engine(&self) -> Result<Advisory, Failure> {
        let (_, rest) = self.0.url.split_once(':').expect("a URL");
        Advisory::connect(Config::parse(rest)?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        self.0.connect(options).await
    }

    /// It is the name of a connection, which PostgreSQL keeps in ASCII.
    fn seen(&self, label: &str) -> String {
        label.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).take(63).collect()
    }
}

palisade_testbench::conformance!(advised, Advised::new());
palisade_testbench::conformance!(direct, AtPostgres::new());
palisade_testbench::conformance!(through_a_pooler, ThroughPooler::new());

#[test]
fn a_pooler_is_noticed_and_a_proxy_is_none() {
    let (pooler, scene) = (ThroughPooler::new(), Scene::new());
    check(async {
        let polled = pooler.connect(Options::new()).await.expect("a client");
        assert_eq!(polled.guarantees().wake_up, WakeUp::Polled);
        let (direct, proxied) = (scene.client(LONG_TTL).await, scene.through_proxy(LONG_TTL).await);
        assert_eq!((direct.guarantees().wake_up, proxied.guarantees().wake_up), (WakeUp::Pushed, WakeUp::Pushed));
    });
}
