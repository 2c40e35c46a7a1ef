//! The conformance suite on a real MariaDB.

use std::sync::Arc;

use futures_util::future::join_all;
use palisade::engine::mysql::{Config, Mysql};
use palisade::engine::{Engine, Failure};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers::{LogsOnFailure, MariaDb};

use super::fixture::{Fixture, check, until};
use super::sessions::ask;

/// `mysql://root@HOST:PORT/test`: one server for all tests.
#[derive(Clone)]
struct AtMariaDb {
    url: String,
    _logs: Arc<LogsOnFailure>,
}

impl AtMariaDb {
    fn new() -> AtMariaDb {
        let server = MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtMariaDb::at(server.url())
    }

    fn at(url: String) -> AtMariaDb {
        let server = MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtMariaDb { url, _logs: Arc::new(server.logs_on_failure()) }
    }
}

impl Subject for AtMariaDb {
    type Engine = Mysql;

    async fn engine(&self) -> Result<Mysql, Failure> {
        let (_, rest) = self.url.split_once(':').expect("a URL");
        Mysql::connect(Config::parse(rest)?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.url).await
    }

    /// In another database.
    fn alone(&self) -> AtMariaDb {
        AtMariaDb::at(Fixture::new().url())
    }
}

palisade_testbench::conformance!(at_mariadb, AtMariaDb::new());

/// The keeper's thread may outlive its engine.
#[test]
fn a_dropped_engine_closes_its_connections() {
    let fixture = Fixture::new();
    check(async {
        let mut store = fixture.store().await;
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let engine = AtMariaDb::at(fixture.url()).engine().await.expect("an engine");
                // Calls at the same time open further connections.
                join_all((0..8).map(|_| engine.list(String::new()))).await;
                drop(engine);
                let open = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND \
                     id <> CONNECTION_ID()";
                until("all connections are closed", async || ask(&mut store, open).await.as_deref() == Some("0"))
                    .await;
            })
            .await;
    });
}
