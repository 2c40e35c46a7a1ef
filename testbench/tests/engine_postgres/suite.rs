//! The conformance suite on a real PostgreSQL.

use palisade::engine::Failure;
use palisade::engine::postgres::{Config, Postgres};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers;

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

palisade_testbench::conformance!(direct, AtPostgres::new());
