//! The fixture of these tests: real `palisade` processes, their commands, and an observer.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use palisade::blocking;
use palisade::engine::Watched;
use palisade::{Event, Options};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::TestEngine;

/// The upper bound of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Begins a script whose processes all hold one kernel lock. Prints `overlap` if another script holds it.
pub(crate) const ALONE: &str = r#"exec 9>>"$WITNESS"; flock -n 9 || echo overlap; "#;

/// An engine, and files for commands to work on.
pub(crate) struct Fixture {
    pub(crate) engine: TestEngine,
    files: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture { engine: TestEngine::new(), files: TempDir::new().unwrap() }
    }

    /// A file of this fixture.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// `palisade` with these arguments, working among the files.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.engine.command(args);
        command.current_dir(self.files.path()).env("WITNESS", self.file("witness"));
        for name in ["PALISADE_LOCK", "PALISADE_TOKEN", "PALISADE_SESSION"] {
            command.env_remove(name);
        }
        command
    }

    /// `palisade run OPTIONS -- sh -c SCRIPT`.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Command {
        let args: Vec<_> = [&["run"], options, &["--", "sh", "-c", script]].concat();
        self.command(&args)
    }

    /// Starts `palisade run OPTIONS -- sh -c SCRIPT`.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Running {
        Running::new(self.script(options, script))
    }

    /// Starts `palisade run`, and returns when it waits in a queue.
    pub(crate) fn queue(&self, options: &[&str], script: &str) -> Running {
        let queued = self.next_event(|event| matches!(event, Event::Queued { .. }));
        let started = self.start(options, script);
        queued();
        started
    }

    /// Runs `palisade run` to its end.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Finished {
        self.start(options, script).end()
    }

    /// A client that only observes.
    pub(crate) fn observer(&self) -> blocking::Palisade {
        blocking::connect_with(Options::new().observer().label("an observer"), &self.engine.url()).unwrap()
    }

    /// Begins to watch. The returned function waits for the next event of a kind.
    pub(crate) fn next_event(&self, kind: fn(&Event) -> bool) -> impl FnOnce() {
        let observer = self.observer();
        let mut watch = observer.watch("").unwrap();
        let seen = move || {
            let found = watch.find(|watched| matches!(watched, Watched::Event(event) if kind(event)));
            drop(observer);
            found.is_some()
        };
        || assert!(soon(seen), "the watch lasts as long as its client")
    }

    /// Returns how many clients wait for a lock.
    pub(crate) fn waiters(&self, lock: &str) -> usize {
        self.observer().inspect(lock).unwrap().map_or(0, |lock| lock.waiters.len())
    }

    /// Returns whether a lock is held.
    pub(crate) fn is_held(&self, lock: &str) -> bool {
        self.observer().inspect(lock).unwrap().is_some_and(|lock| !lock.holders.is_empty())
    }
}

/// A running `palisade`. Its stdout reaches its end only when all processes that it started have exited too.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    stdout: Vec<String>,
}

/// A `palisade` that has exited, together with all processes that it started.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code that a shell reports: 128 plus the signal's number if a signal ended it.
    pub(crate) code: i32,
    /// The lines of stdout that the test has not read before.
    pub(crate) stdout: Vec<String>,
    pub(crate) errors: String,
}

impl Running {
    pub(crate) fn new(command: Command) -> Running {
        Running::with_errors(command, Stdio::piped())
    }

    /// Starts a command whose stderr goes elsewhere.
    pub(crate) fn with_errors(mut command: Command, errors: impl Into<Stdio>) -> Running {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn().expect("it starts");
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout.unwrap()).lines();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let errors = thread::spawn(move || {
            let mut errors = Vec::new();
            stderr.map(|mut stderr| stderr.read_to_end(&mut errors).unwrap());
            String::from_utf8_lossy(&errors).into_owned()
        });
        Running { child, stdin, lines, errors: Some(errors), stdout: Vec::new() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the warden to start, and returns its pid.
    pub(crate) fn warden(&self) -> Pid {
        only_child(self.pid())
    }

    /// Writes a line to the stdin of its command.
    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for the next line of stdout.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => line,
            Err(why) => {
                let _ = self.child.kill();
                let errors = self.errors.take().map(|errors| errors.join());
                panic!("no line came ({why}); {errors:?}");
            }
        }
    }

    /// Waits for the next line of stdout, and checks it.
    pub(crate) fn expect(&mut self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    /// Waits until it and all processes that it started have exited.
    pub(crate) fn end(mut self) -> Finished {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.stdout.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; it printed {:?}", self.stdout),
            }
        }
        let status = self.child.wait().unwrap();
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("one or the other");
        let errors = self.errors.take().unwrap().join().unwrap();
        Finished { code, stdout: std::mem::take(&mut self.stdout), errors }
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Checks the exit code and stdout, and that stderr is empty.
    pub(crate) fn expect(&self, code: i32, stdout: &[&str]) {
        assert_eq!((self.code, self.errors.as_str()), (code, ""), "{self:?}");
        assert_eq!(self.stdout, stdout);
    }

    /// Checks the exit code, and that stderr contains the reason.
    pub(crate) fn expect_failure(&self, code: i32, reason: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.errors.contains(reason), "{self:?}");
    }
}

/// Runs `wait` on another thread, and fails if it does not return within [`TIMEOUT`].
pub(crate) fn soon<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(wait()));
    receiver.recv_timeout(TIMEOUT).expect("it returns in time")
}

/// Polls until a condition is true.
pub(crate) fn until(condition: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "the condition did not become true within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The only child of a process, as soon as it has one.
pub(crate) fn only_child(parent: Pid) -> Pid {
    let parent = parent.as_raw_nonzero();
    soon(move || {
        loop {
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
            if let Some(child) = children.split_whitespace().next() {
                return pid(child);
            }
            thread::yield_now();
        }
    })
}

/// A process by its number.
pub(crate) fn pid(number: &str) -> Pid {
    Pid::from_raw(number.parse().expect("a number")).expect("a process")
}

/// Whether a process runs; a zombie does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// A pipe that takes no more bytes until they are read.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Whether the main thread of a process is in a write to stderr.
pub(crate) fn is_writing_to_stderr(pid: Pid) -> bool {
    let syscall = fs::read_to_string(format!("/proc/{}/syscall", pid.as_raw_nonzero())).unwrap_or_default();
    let write = if cfg!(target_arch = "x86_64") { "1 0x2 " } else { "64 0x2 " };
    syscall.starts_with(write)
}
