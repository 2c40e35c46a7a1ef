//! The conformance suite on every engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use palisade::engine::embedded::{self, Embedded};
use palisade::engine::memory::{Config, Memory};
use palisade::engine::service::{self, Service};
use palisade::engine::{Failure, Guarantees, Level, Offers, Order};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::{PROMISES, Subject};
use palisade_testbench::credentials::{self, Credentials, Login};
use palisade_testbench::faulty_engine::{EngineFaults, FaultyEngine};
use palisade_testbench::servers::{self, InUse, Shared};
use tempfile::TempDir;

/// Returns a name that no other test of this process uses.
fn fresh_name() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("conformance-{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// `memory:NAME`.
#[derive(Clone)]
struct InMemory {
    name: String,
}

impl InMemory {
    fn new() -> InMemory {
        InMemory { name: fresh_name() }
    }
}

impl Subject for InMemory {
    type Engine = Memory;

    async fn engine(&self) -> Result<Memory, Failure> {
        Ok(Memory::connect(&Config { name: Some(self.name.clone()) }))
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&format!("memory:{}", self.name)).await
    }
}

/// `embedded:///FILE`.
#[derive(Clone)]
struct InOneFile {
    folder: Arc<TempDir>,
}

impl InOneFile {
    fn new() -> InOneFile {
        InOneFile { folder: Arc::new(TempDir::new().expect("a folder for the file")) }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }
}

impl Subject for InOneFile {
    type Engine = Embedded;

    async fn engine(&self) -> Result<Embedded, Failure> {
        Embedded::connect(embedded::Config::at(self.file())).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&format!("embedded://{}", self.file().display())).await
    }
}

/// `palisade://HOST:PORT`: a process that concurrent tests share.
#[derive(Clone)]
struct AtService {
    server: Arc<InUse<servers::Service>>,
}

/// Starts a service that signs tokens, with these variables in its environment.
fn start(folder: &Path, variables: &[(&str, String)]) -> Result<servers::Service, servers::Absent> {
    let variables = variables.iter().map(|(name, value)| (*name, value.as_str()));
    let variables: Vec<_> = variables.chain([("SERVE_SIGN", "yes")]).collect();
    servers::Service::start_with(env!("CARGO_BIN_EXE_serve"), folder, &variables)
}

impl AtService {
    fn new() -> AtService {
        static SHARED: Shared<servers::Service> = Shared::new(|folder| start(folder, &[]));
        AtService { server: SHARED.in_use().unwrap_or_else(|absent| panic!("{absent}")) }
    }
}

impl Subject for AtService {
    type Engine = Service;

    async fn engine(&self) -> Result<Service, Failure> {
        Service::connect(service::Config::parse(&format!("//{}", self.server.0.address))?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.server.0.url()).await
    }
}

/// `palisades://USER:SECRET@HOST:PORT`: the same, encrypted, for a user with a certificate.
#[derive(Clone)]
struct AtGuardedService {
    server: Arc<InUse<servers::Service>>,
    login: Login,
}

static LOGIN: LazyLock<Login> = LazyLock::new(|| Login::new("ci", "admin", ""));

impl AtGuardedService {
    fn new() -> AtGuardedService {
        static SHARED: Shared<servers::Service> = Shared::new(|folder| {
            let credentials = Credentials::new(folder);
            credentials.demand_certificates();
            start(folder, &[credentials.tls(), credentials::users(&[&LOGIN])])
        });
        let server = SHARED.in_use().unwrap_or_else(|absent| panic!("{absent}"));
        AtGuardedService { server, login: LOGIN.clone() }
    }

    /// Returns the part of the URL after `palisades:`.
    fn place(&self) -> String {
        let (folder, address) = (self.server.1.path(), self.server.0.address);
        format!("//{}@{address}?{}", self.login.in_url(), credentials::options(folder))
    }
}

impl Subject for AtGuardedService {
    type Engine = Service;

    async fn engine(&self) -> Result<Service, Failure> {
        Service::connect(service::Config::parse_encrypted(&self.place())?).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&format!("palisades:{}", self.place())).await
    }

    fn seen(&self, label: &str) -> String {
        format!("{}: {label}", self.login.name())
    }
}

/// `memory:` with the weakest guarantees that an engine can declare, so that every refusal is tested.
#[derive(Clone)]
struct Plain {
    memory: InMemory,
}

impl Plain {
    fn new() -> Plain {
        Plain { memory: InMemory::new() }
    }

    fn declare(guarantees: Guarantees) -> Guarantees {
        Guarantees { engine: "plain", level: Level::Advisory, order: Order::Race, offers: Offers::NONE, ..guarantees }
    }
}

impl Subject for Plain {
    type Engine = FaultyEngine;

    async fn engine(&self) -> Result<FaultyEngine, Failure> {
        Ok(EngineFaults::declaring(Plain::declare).wrap(Box::new(self.memory.engine().await?)))
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let plain = self.clone();
        options.connect_engine("plain", async move || plain.engine().await).await
    }
}

palisade_testbench::conformance!(memory, InMemory::new());
palisade_testbench::conformance!(in_one_file, InOneFile::new());
palisade_testbench::conformance!(at_the_service, AtService::new());
palisade_testbench::conformance!(at_the_guarded_service, AtGuardedService::new());
palisade_testbench::conformance!(plain, Plain::new());

#[test]
fn every_promise_of_the_suite_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = Vec::new();
    for file in fs::read_dir(folder).expect("the suite is there") {
        let path = file.expect("a file").path();
        if path.ends_with("stalls.rs") {
            // What the promises have in common.
            continue;
        }
        let text = fs::read_to_string(path).expect("it is text");
        // Whatever stands at the margin is a promise; methods and helpers are not.
        let promises = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split(['<', '(']).next());
        written.extend(promises.map(str::to_owned));
    }
    written.sort();
    let mut listed: Vec<_> = PROMISES.to_vec();
    listed.sort_unstable();
    assert_eq!(written, listed, "a promise is checked only if `for_each_promise!` lists it, once");
}
