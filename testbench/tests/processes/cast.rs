//! The processes of a test.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A folder with one file of locks.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder can be made") }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("embedded://{}", self.file("locks.db").display())
    }
}

/// A worker process. It is killed when the test is done with it.
pub(crate) struct Worker {
    child: Child,
    tell: ChildStdin,
    heard: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// A worker that is connected.
    pub(crate) fn start(place: &Place, ttl_ms: u64) -> Worker {
        let mut worker = Worker::spawn(&mut Command::new(env!("CARGO_BIN_EXE_worker")));
        worker.connect(place, ttl_ms);
        worker
    }

    /// A worker that runs under another program, which is told the worker's path as its last argument.
    pub(crate) fn under<S: AsRef<OsStr>>(program: &str, arguments: &[S], variables: &[(&str, &str)]) -> Worker {
        let mut command = Command::new(program);
        command.args(arguments).arg(env!("CARGO_BIN_EXE_worker")).envs(variables.iter().copied());
        Worker::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Worker {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker can be started");
        let tell = child.stdin.take().expect("it has an input");
        let heard = BufReader::new(child.stdout.take().expect("it has an output")).lines();
        Worker { child, tell, heard }
    }

    pub(crate) fn connect(&mut self, place: &Place, ttl_ms: u64) {
        assert_eq!(self.ask(&format!("connect {} {ttl_ms}", place.url())), "connected");
    }

    /// Tells it something, without waiting for what it says.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.tell, "{what}").expect("it listens");
    }

    /// What it says next; `None` if it is gone.
    pub(crate) fn hear(&mut self) -> Option<String> {
        self.heard.next().and_then(Result::ok)
    }

    /// Tells it something and waits for what it says.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear().expect("it answers")
    }

    /// The token of a lock that it waits for.
    pub(crate) fn acquire(&mut self, name: &str) -> u64 {
        token(&self.ask(&format!("acquire {name}")))
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The token in `granted 7`.
pub(crate) fn token(said: &str) -> u64 {
    let number = said.strip_prefix("granted ").unwrap_or_else(|| panic!("not granted: {said}"));
    number.parse().expect("a token is a number")
}
