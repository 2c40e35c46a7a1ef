//! A directory with one file of locks, and worker processes that are started in the way a test needs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

/// The bound of every wait. Nothing here takes this long unless it never comes.
const AT_MOST: Duration = Duration::from_secs(60);

/// A TTL that never passes during a test.
pub(crate) const LONG_MS: u64 = 3_600_000;

/// Two users of the host, and a group that both belong to.
pub(crate) const ALICE: u32 = 61_001;
pub(crate) const BOB: u32 = 61_002;
pub(crate) const GROUP: u32 = 61_000;

/// A directory of one test's own. Every user can reach it and run the worker in it.
pub(crate) struct Fixture {
    directory: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let directory = tempfile::tempdir().expect("a directory can be made");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        // By another process: a program that this one writes cannot be run while another thread starts a process.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_worker")).arg(directory.path().join("worker")).status();
        assert!(copied.expect("cp runs").success());
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

    /// A file beside the database: `-wal`, `-lock`.
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

    /// A worker of this user, who is a member of [`GROUP`], under this umask.
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
pub(crate) struct Worker {
    child: Child,
    /// `None` once it was told to end.
    tell: Option<ChildStdin>,
    heard: Receiver<String>,
}

impl Worker {
    fn spawn(command: &mut Command) -> Worker {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker can be started");
        let tell = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        let (sender, heard) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Worker { child, tell, heard }
    }

    pub(crate) fn tell(&mut self, what: &str) {
        let input = self.tell.as_mut().expect("it was not told to end");
        writeln!(input, "{what}").expect("it listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        self.heard.recv_timeout(AT_MOST).expect("it answers in time")
    }

    /// Tells it something and waits for what it says.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    /// Connects it; returns what it says.
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

    /// Whether it still has the token that it was given.
    pub(crate) fn holds(&mut self, token: u64) {
        assert_eq!(self.ask("token"), format!("token {token}"));
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it can be waited for");
    }

    /// Ends it in an orderly way, and waits until it is gone.
    pub(crate) fn end(mut self) {
        drop(self.tell.take());
        self.child.wait().expect("it can be waited for");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether this test can run here: it needs root, and namespaces. Where it cannot, it is printed as skipped, and fails
/// where everything is required (`CI`).
#[must_use]
#[expect(clippy::print_stderr, reason = "a test that does not run must be seen")]
pub(crate) fn is_privileged(test: &str) -> bool {
    let can_unshare = || {
        let tried = Command::new("unshare").args(["--mount", "--time", "true"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    if geteuid().is_root() && can_unshare() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs root and namespaces, and CI requires every test");
    eprintln!("SKIPPED: {test} needs root and namespaces");
    false
}
