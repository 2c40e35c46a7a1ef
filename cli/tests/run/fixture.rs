//! The fixture of these tests: real `palisade` processes, their commands, and an observer.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use palisade::blocking;
use palisade::engine::Watched;
use palisade::{Event, Options};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::TestEngine;

/// The upper bound of every wait.
pub(crate) const AT_MOST: Duration = Duration::from_secs(60);

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

    /// Starts it.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Running {
        Running::new(self.script(options, script))
    }

    /// Starts it, and returns when it waits in a queue.
    pub(crate) fn queue(&self, options: &[&str], script: &str) -> Running {
        let queued = self.next_event(|event| matches!(event, Event::Queued { .. }));
        let started = self.start(options, script);
        queued();
        started
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, options: &[&str], script: &str) -> Finished {
        self.start(options, script).end()
    }

    /// A client that only observes.
    pub(crate) fn observer(&self) -> blocking::Palisade {
        blocking::connect_with(Options::new().observer().label("an observer"), &self.engine.url()).unwrap()
    }

    /// From now on: what waits for the next event of a kind.
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

    /// How many wait for a lock.
    pub(crate) fn waiters(&self, lock: &str) -> usize {
        self.observer().inspect(lock).unwrap().map_or(0, |lock| lock.waiters.len())
    }

    /// Returns whether a lock is held.
    pub(crate) fn is_held(&self, lock: &str) -> bool {
        self.observer().inspect(lock).unwrap().is_some_and(|lock| !lock.holders.is_empty())
    }
}

/// A `palisade` that runs. What it and all that it started write to stdout ends when the last of them has.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    said: Vec<String>,
}

/// One that has ended, with all that it started.
#[derive(Debug)]
pub(crate) struct Finished {
    /// As a shell sees it.
    pub(crate) code: i32,
    pub(crate) said: Vec<String>,
    pub(crate) errors: String,
}

impl Running {
    pub(crate) fn new(command: Command) -> Running {
        Running::with_errors(command, Stdio::piped())
    }

    /// With stderr elsewhere.
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
        Running { child, stdin, lines, errors: Some(errors), said: Vec::new() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The warden, once there is one.
    pub(crate) fn warden(&self) -> Pid {
        only_child(self.pid())
    }

    /// Says a line to its command.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(AT_MOST) {
            Ok(line) => line,
            Err(why) => {
                let _ = self.child.kill();
                let errors = self.errors.take().map(|errors| errors.join());
                panic!("no line came ({why}); {errors:?}");
            }
        }
    }

    /// Waits for a line.
    pub(crate) fn expect(&mut self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    /// Waits until it has ended, and all that it started.
    pub(crate) fn end(mut self) -> Finished {
        loop {
            match self.lines.recv_timeout(AT_MOST) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; it said {:?}", self.said),
            }
        }
        let status = self.child.wait().unwrap();
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("one or the other");
        let errors = self.errors.take().unwrap().join().unwrap();
        Finished { code, said: std::mem::take(&mut self.said), errors }
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
    /// It went well, and nothing was said about it.
    pub(crate) fn expect(&self, code: i32, said: &[&str]) {
        assert_eq!((self.code, self.errors.as_str()), (code, ""), "{self:?}");
        assert_eq!(self.said, said);
    }

    /// It was told on stderr why it did not go well.
    pub(crate) fn expect_failure(&self, code: i32, reason: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.errors.contains(reason), "{self:?}");
    }
}

/// Waits for a result, at most [`AT_MOST`].
pub(crate) fn soon<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(what()));
    receiver.recv_timeout(AT_MOST).expect("it comes soon")
}

/// Waits until something is so.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + AT_MOST;
    while !is_so() {
        assert!(Instant::now() < end, "it never came");
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

/// Whether a process runs; one that is dead and not yet buried does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}
