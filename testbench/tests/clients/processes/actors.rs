//! The processes of a test.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use palisade_testbench::bounded::BOUND;
use palisade_testbench::worker_process::WorkerProcess;
use tempfile::TempDir;

/// A folder with one file of locks.
pub(crate) struct TempStore {
    folder: TempDir,
}

impl TempStore {
    pub(crate) fn new() -> TempStore {
        TempStore { folder: tempfile::tempdir().expect("a folder can be made") }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("embedded://{}", self.file("locks.db").display())
    }
}

/// A worker process that is connected to the locks of a folder.
pub(crate) struct Worker(WorkerProcess);

impl Worker {
    /// A worker that is connected.
    pub(crate) fn start(place: &TempStore, ttl_ms: u64) -> Worker {
        let mut worker = Worker::spawn(&mut Command::new(env!("CARGO_BIN_EXE_worker")));
        worker.connect(place, ttl_ms);
        worker
    }

    /// A worker that runs under another program, which gets the worker's path as its last argument.
    pub(crate) fn under<S: AsRef<OsStr>>(program: &str, arguments: &[S], variables: &[(&str, &str)]) -> Worker {
        let mut command = Command::new(program);
        command.args(arguments).arg(env!("CARGO_BIN_EXE_worker")).envs(variables.iter().copied());
        Worker::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Worker {
        Worker(WorkerProcess::spawn(command).expect("a worker can be started"))
    }

    /// Connects. Tries again when a busy file makes an attempt time out.
    pub(crate) fn connect(&mut self, place: &TempStore, ttl_ms: u64) {
        let reply = self.ask_again(&format!("connect {} {ttl_ms}", place.url()));
        assert_eq!(reply, "connected");
    }

    /// The token of a lock that it waits for. The session may end before the lock is granted, if the machine stands still.
    pub(crate) fn acquire(&mut self, name: &str) -> u64 {
        token(&self.ask_again(&format!("acquire {name}")))
    }

    /// Repeats a command while it fails.
    fn ask_again(&mut self, command: &str) -> String {
        let began = Instant::now();
        loop {
            let reply = self.ask(command);
            if !reply.starts_with("error ") || began.elapsed() > BOUND {
                return reply;
            }
        }
    }
}

impl Deref for Worker {
    type Target = WorkerProcess;

    fn deref(&self) -> &WorkerProcess {
        &self.0
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut WorkerProcess {
        &mut self.0
    }
}

/// The token in `granted 7`.
pub(crate) fn token(reply: &str) -> u64 {
    let number = reply.strip_prefix("granted ").unwrap_or_else(|| panic!("not granted: {reply}"));
    number.parse().expect("a token is a number")
}
