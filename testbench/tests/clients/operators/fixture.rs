//! A directory with one file of locks, and worker processes that are started in the way a test needs.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_testbench::bounded;
use palisade_testbench::worker_process::WorkerProcess;
use rustix::process::geteuid;
use tempfile::TempDir;

/// A TTL that never passes during a test.
pub(crate) const LONG_MS: u64 = 3_600_000;

/// Two users of the host, and a group that both belong to.
pub(crate) const ALICE: u32 = 61_001;
pub(crate) const BOB: u32 = 61_002;
pub(crate) const GROUP: u32 = 61_000;

/// A directory for one test. Every user can reach it and run the worker in it.
pub(crate) struct Fixture {
    directory: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let directory = tempfile::tempdir().expect("a directory can be made");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        // Another process copies it: a file that is open for writing cannot be run, and a process that another thread starts
        // would inherit the open file.
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_worker")).arg(directory.path().join("worker"));
        assert!(bounded::output(&mut copy).expect("cp runs").status.success());
        let fixture = Fixture { directory };
        fixture.make_directory("locks", 0o755, None);
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The file of locks that tests use unless they name another one.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("locks/locks.db")
    }

    /// A file next to the database: `-wal`, `-lock`.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        self.path(&format!("locks/locks.db{suffix}"))
    }

    /// Makes a directory of this mode, and gives it to an owner and a group.
    pub(crate) fn make_directory(&self, name: &str, mode: u32, owner: Option<(u32, u32)>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("it can be made");
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&path, Some(user), Some(group)).expect("root may give it away");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).expect("it can be read");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A worker that is not connected yet.
    pub(crate) fn worker(&self) -> Worker {
        Worker::spawn(&mut Command::new(self.path("worker")))
    }

    /// A worker that is started by a shell script, whose last command is `exec "$WORKER"`.
    pub(crate) fn worker_by(&self, program: &[&str], script: &str) -> Worker {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(["sh", "-ec", &format!("{script}\nexec \"$WORKER\"")]);
        command.env("WORKER", self.path("worker")).current_dir(self.directory.path());
        Worker::spawn(&mut command)
    }

    /// A worker of this user, a member of [`GROUP`], with this umask.
    pub(crate) fn worker_of(&self, user: u32, umask: &str) -> Worker {
        let (user, groups) = (user.to_string(), GROUP.to_string());
        let program = ["setpriv", "--reuid", &user, "--regid", &user, "--groups", &groups];
        self.worker_by(&program, &format!("umask {umask}"))
    }

    /// A connected worker on the usual file.
    pub(crate) fn connected(&self, ttl_ms: u64) -> Worker {
        let mut worker = self.worker();
        assert_eq!(worker.connect(&self.file(), ttl_ms), "connected");
        worker
    }

    /// A connected worker that holds `orders`, and its token.
    pub(crate) fn holder(&self, ttl_ms: u64) -> (Worker, u64) {
        let mut worker = self.connected(ttl_ms);
        let token = worker.acquire("orders");
        (worker, token)
    }
}

/// A worker process. It is killed when it is dropped.
pub(crate) struct Worker(WorkerProcess);

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

impl Worker {
    fn spawn(command: &mut Command) -> Worker {
        Worker(WorkerProcess::spawn(command).expect("a worker can be started"))
    }

    /// Connects it; returns its reply.
    pub(crate) fn connect(&mut self, file: &Path, ttl_ms: u64) -> String {
        self.ask(&format!("connect embedded://{} {ttl_ms}", file.display()))
    }

    /// Asserts that it is refused at a file, and that the reason has all of these words.
    pub(crate) fn refused(&mut self, file: &Path, reasons: &[&str]) {
        let said = self.connect(file, LONG_MS);
        assert!(said.starts_with("error "), "it was not refused: {said}");
        for reason in reasons {
            assert!(said.contains(reason), "'{reason}' is not in: {said}");
        }
    }

    /// The token of a lock that it waits for.
    pub(crate) fn acquire(&mut self, name: &str) -> u64 {
        let said = self.ask(&format!("acquire {name}"));
        let number = said.strip_prefix("granted ").unwrap_or_else(|| panic!("not granted: {said}"));
        number.parse().expect("a token is a number")
    }

    /// Asserts that it still has this token.
    pub(crate) fn holds(&mut self, token: u64) {
        assert_eq!(self.ask("token"), format!("token {token}"));
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.0.kill();
        self.until_ended();
    }

    /// Ends it in an orderly way, and waits until it is gone.
    pub(crate) fn end(mut self) {
        self.close_input();
        self.until_ended();
    }
}

/// Whether this test can run here: it needs root, and namespaces. Where it cannot, it is printed as skipped, and fails
/// where everything is required (`CI`).
#[must_use]
#[expect(clippy::print_stderr, reason = "a test that does not run must be seen")]
pub(crate) fn is_privileged(test: &str) -> bool {
    let can_unshare = || {
        let tried = bounded::output(Command::new("unshare").args(["--mount", "--time", "true"]));
        tried.is_ok_and(|tried| tried.status.success())
    };
    if geteuid().is_root() && can_unshare() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root and namespaces, and CI requires every test");
    eprintln!("SKIPPED: {test} needs root and namespaces");
    false
}
