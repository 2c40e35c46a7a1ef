//! The conformance suite on every engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use palisade::engine::embedded::{self, Embedded};
use palisade::engine::memory::{Config, Memory};
use palisade::engine::service::{self, Service};
use palisade::engine::{Failure, Guarantees, Level, Offers, Order};
use palisade::{Error, Options, Palisade};
use palisade_testbench::conformance::{PROMISES, Subject};
use palisade_testbench::servers;
use palisade_testbench::staged::{Stage, Staged};
use tempfile::TempDir;

/// A name in this process that nothing else uses.
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

/// `palisade://HOST:PORT`: a process of its own, shared by the tests that run at the same time.
#[derive(Clone)]
struct AtService {
    server: Arc<Server>,
}

struct Server {
    process: servers::Service,
    // Removed after the process has ended.
    _folder: TempDir,
}

impl AtService {
    fn new() -> AtService {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let folder = TempDir::new().expect("a folder for the service");
            let process = servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder.path());
            Arc::new(Server { process: process.unwrap_or_else(|absent| panic!("{absent}")), _folder: folder })
        });
        *shared = Arc::downgrade(&server);
        AtService { server }
    }
}

impl Subject for AtService {
    type Engine = Service;

    async fn engine(&self) -> Result<Service, Failure> {
        let address = self.server.process.address;
        Service::connect(service::Config { host: address.ip().to_string(), port: address.port() }).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.server.process.url()).await
    }
}

/// `memory:` when it declares as little as an engine can, so that every refusal is seen to happen.
#[derive(Clone)]
struct Plain {
    memory: InMemory,
}

impl Plain {
    fn new() -> Plain {
        Plain { memory: InMemory::new() }
    }

    fn declare(guarantees: Guarantees) -> Guarantees {
        let none = Offers {
            shared: false,
            permits: false,
            several: false,
            values: false,
            delay: false,
            force_release: false,
            watch: false,
            leave: false,
        };
        Guarantees { engine: "plain", level: Level::Advisory, order: Order::Race, offers: none, ..guarantees }
    }
}

impl Subject for Plain {
    type Engine = Staged<Memory>;

    async fn engine(&self) -> Result<Staged<Memory>, Failure> {
        Ok(Stage::declaring(Plain::declare).put(self.memory.engine().await?))
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let plain = self.clone();
        options.connect_engine("plain", async move || plain.engine().await).await
    }
}

palisade_testbench::conformance!(memory, InMemory::new());
palisade_testbench::conformance!(in_one_file, InOneFile::new());
palisade_testbench::conformance!(at_the_service, AtService::new());
palisade_testbench::conformance!(plain, Plain::new());

#[test]
fn every_promise_of_the_suite_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = Vec::new();
    for file in fs::read_dir(folder).expect("the suite is there") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("it is text");
        // Whatever stands at the margin is a promise; methods and helpers are not.
        let promises = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split(['<', '(']).next());
        written.extend(promises.map(str::to_owned));
    }
    written.sort();
    let mut listed: Vec<_> = PROMISES.to_vec();
    listed.sort_unstable();
    assert_eq!(written, listed, "a promise is checked only if `for_each_promise!` lists it, once");
}
