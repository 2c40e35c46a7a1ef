//! The conformance suite on a real MariaDB.

use palisade::engine::Failure;
use palisade::engine::mysql::{Config, Mysql};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers::MariaDb;

/// `mysql://root@HOST:PORT/test`: one server for all tests.
#[derive(Clone)]
struct AtMariaDb {
    url: String,
}

impl AtMariaDb {
    fn new() -> AtMariaDb {
        let server = MariaDb::shared().unwrap_or_else(|absent| panic!("{absent}"));
        AtMariaDb { url: server.url() }
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
}

palisade_testbench::conformance!(at_mariadb, AtMariaDb::new());
