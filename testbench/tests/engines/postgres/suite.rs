//! The conformance suite on a real PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use palisade::engine::advisory::Advisory;
use palisade::engine::postgres::{Config, Postgres};
use palisade::engine::{Failure, WakeUp};
use palisade::{Error, Options, Palisade};
use palisade_testbench::bounded::BOUND;
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers;

use super::fixture::{Fixture, LONG_TTL, check, client};

/// `postgres://HOST:PORT/postgres`: one server for all tests.
#[derive(Clone)]
struct AtPostgres {
    url: String,
    _logs: Arc<servers::LogsOnFailure>,
}

impl AtPostgres {
    fn new() -> AtPostgres {
        let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtPostgres::at(server.url())
    }

    fn at(url: String) -> AtPostgres {
        let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtPostgres { url, _logs: Arc::new(server.logs_on_failure()) }
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

    /// In another database.
    fn alone(&self) -> AtPostgres {
        AtPostgres::at(Fixture::new().url())
    }
}

/// The same through a pooler in transaction mode, in a database where all that is overdue is ended, and all rows that are not
/// in use are removed, all the time.
#[derive(Clone)]
struct ThroughPooler {
    direct: AtPostgres,
    pooler: Arc<servers::InUse<servers::PgBouncer>>,
}

impl ThroughPooler {
    fn new() -> ThroughPooler {
        static SHARED: servers::Shared<servers::PgBouncer> = servers::Shared::new(|folder| {
            let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}"));
            servers::PgBouncer::start(folder, server.address, 20)
        });
        static SWEEPING: std::sync::Once = std::sync::Once::new();
        let pooler = SHARED.in_use().unwrap_or_else(|absent| panic!("{absent}"));
        SWEEPING.call_once(sweep_always);
        ThroughPooler::to(SWEPT, pooler)
    }

    fn to(database: &str, pooler: Arc<servers::InUse<servers::PgBouncer>>) -> ThroughPooler {
        let url = format!("postgres://postgres@{}/{database}", pooler.0.address);
        ThroughPooler { direct: AtPostgres::at(url), pooler }
    }
}

const SWEPT: &str = "swept";

/// Makes the database, and sweeps and cleans up in it as long as this process lives.
fn sweep_always() {
    let server = servers::Postgres::shared().unwrap_or_else(|absent| panic!("{absent}")).address;
    let (is_made, made) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let maker = client(&format!("postgres://postgres@{server}/postgres")).await;
            maker.batch_execute(&format!("CREATE DATABASE {SWEPT}")).await.expect("a database");
            let sweeper = client(&format!("postgres://postgres@{server}/{SWEPT}")).await;
            sweeper.batch_execute(palisade::engine::postgres::SCHEMA).await.expect("the schema");
            is_made.send(()).expect("it is waited for");
            // Until the server is gone.
            while sweeper.batch_execute("SELECT palisade.sweep()").await.is_ok() {
                drop(sweeper.batch_execute("SELECT palisade.clean(0, 100000)").await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    });
    made.recv_timeout(BOUND).expect("the database is made in time");
}

impl Subject for ThroughPooler {
    type Engine = Postgres;

    async fn engine(&self) -> Result<Postgres, Failure> {
        self.direct.engine().await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        self.direct.connect(options).await
    }

    /// In another database, which is not swept.
    fn alone(&self) -> ThroughPooler {
        let url = Fixture::new().url();
        ThroughPooler::to(url.rsplit('/').next().unwrap_or_default(), self.pooler.clone())
    }
}

/// `?mode=advisory`, which has much less to offer.
#[derive(Clone)]
struct Advised(AtPostgres);

impl Advised {
    fn new() -> Advised {
        let AtPostgres { url, .. } = AtPostgres::new();
        Advised(AtPostgres::at(format!("{url}?mode=advisory")))
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
fn a_pooler_is_noticed_and_a_proxy_is_not_taken_for_one() {
    let (pooler, fixture) = (ThroughPooler::new(), Fixture::new());
    check(async {
        let polled = pooler.connect(Options::new()).await.expect("a client");
        assert_eq!(polled.guarantees().wake_up, WakeUp::Polled);
        let (direct, proxied) = (fixture.client(LONG_TTL).await, fixture.through_proxy(LONG_TTL).await);
        assert_eq!((direct.guarantees().wake_up, proxied.guarantees().wake_up), (WakeUp::Pushed, WakeUp::Pushed));
    });
}
