//! Fixtures for commands that need locks: an engine, and clients that hold or wait.
#![allow(dead_code, reason = "each test uses its own part")]

pub(crate) mod bounded;
pub(crate) mod environment;
pub(crate) mod process;
pub(crate) mod signals;
pub(crate) mod terminal;

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

use palisade::blocking::{self, Held};
use palisade::engine::Watched;
use palisade::{Error, Event, LockGuard, Options};
use palisade_cli::harness;
use tempfile::TempDir;

use bounded::Bounded;
pub(crate) use bounded::within;

/// The private engine of one test, and a configuration with the label `operator on desk`.
pub(crate) struct TestEngine {
    folder: TempDir,
}

/// A client in a queue.
pub(crate) struct QueuedClient(JoinHandle<Result<Held<LockGuard>, Error>>);

impl QueuedClient {
    /// Waits until it holds the lock.
    pub(crate) fn join(self) -> thread::Result<Result<Held<LockGuard>, Error>> {
        within("the lock", move || self.0.join())
    }
}

impl TestEngine {
    pub(crate) fn new() -> TestEngine {
        signals::handle_ignored_signals();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("config.toml"), "label = 'operator on desk'\n").unwrap();
        TestEngine { folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("embedded://{}", self.folder.path().join("locks.db").display())
    }

    /// A client of this engine, with this label.
    pub(crate) fn client(&self, label: &str) -> blocking::Palisade {
        blocking::connect_with(Options::new().label(label), &self.url()).unwrap()
    }

    /// Starts a client that waits for a lock, and returns when it is queued.
    pub(crate) fn queue(&self, label: &str, lock: &str) -> QueuedClient {
        let client = self.client(label);
        let mut watch = client.watch(lock).unwrap();
        let request = client.lock(lock);
        let waiting = thread::spawn(move || request.acquire());
        let is_queued = move || watch.any(|watched| matches!(watched, Watched::Event(Event::Queued { .. })));
        assert!(within("the event that it is queued", is_queued), "the watch lasts as long as its client");
        QueuedClient(waiting)
    }

    /// `palisade` with these arguments, and with no terminal attached.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_palisade"));
        command.args(args);
        command
    }

    /// Another program, for which `palisade` uses this engine.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = environment::command(program, self.folder.path());
        command.env("PALISADE_URL", self.url()).env("PALISADE_CONFIG", self.folder.path().join("config.toml"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).finish()
    }

    /// Returns stdout of a command that succeeds with an empty stderr.
    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8 on stdout")
    }

    /// Returns stderr of a command that fails with 64 and an empty stdout.
    pub(crate) fn refusal(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("UTF-8 on stderr")
    }
}

/// Returns an HTTP client that bounds every request, and that heeds no proxy of the environment.
pub(crate) fn http_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(bounded::TIMEOUT).build().expect("a client")
}

/// Returns an address on which no other process listens before this one ends. See [`harness::free_port`].
pub(crate) fn free_address() -> SocketAddr {
    harness::free_port().expect("a port is free")
}

/// Runs a test whose snapshots ignore times and session numbers.
pub(crate) fn without_times(test: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\b\d+(\.\d)?m?s\b *", "[time]   ");
    settings.add_filter(r#""(held_for_ms|time_left_ms|at_unix_ms)": ?\d+"#, r#""$1": "[time]""#);
    settings.add_filter(r#""session":(\s?)\d+"#, r#""session":$1"[session]""#);
    // Random ids have 16 digits, and so has their replacement.
    settings.add_filter(r"\b\d{16}\b", "[random session]");
    settings.add_filter(r"\d\d:\d\d:\d\dZ", "[time]   ");
    settings.bind(test);
}
