//! The suite that every engine passes.

use std::sync::Arc;

use palisade::engine::Failure;
use palisade::engine::redlock::{Config, Redlock};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::Subject;
use palisade_testbench::servers::{InUse, Redis, Shared};

use super::servers;

static SERVERS: Shared<Vec<Redis>> = Shared::new(servers::start);

#[derive(Clone)]
struct OnFive {
    servers: Arc<InUse<Vec<Redis>>>,
}

impl OnFive {
    fn new() -> OnFive {
        OnFive { servers: SERVERS.in_use().unwrap_or_else(|absent| panic!("{absent}")) }
    }

    fn url(&self) -> String {
        // The machine may be busy, and the servers are young.
        servers::url(&self.servers.0, &format!("{}&timeout=20s", servers::FRESH))
    }
}

impl Subject for OnFive {
    type Engine = Redlock;

    async fn engine(&self) -> Result<Redlock, Failure> {
        Redlock::connect(Config::parse(self.url().trim_start_matches("redlock:"))?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.url()).await
    }
}

palisade_testbench::conformance!(on_five_servers, OnFive::new());
