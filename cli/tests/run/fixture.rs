//! The fixture of these tests: real `palisade` processes, their commands, and an observer.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};

use palisade::blocking;
use palisade::engine::Watched;
use palisade::{Event, Options};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::TestEngine;
use crate::common::bounded::{self, TIMEOUT, until, within};

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
        let mut command = self.program(env!("CARGO_BIN_EXE_palisade"));
        command.args(args).env("WITNESS", self.file("witness"));
        command
    }

    /// Another program, working among the files. `palisade` uses the engine, and is on the PATH.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = self.engine.program(program);
        let folder = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().expect("it is in a folder");
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        command.current_dir(self.files.path()).env("PATH", path);
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
        || assert!(within("an event", seen), "the watch lasts as long as its client")
    }

    /// Returns how many clients wait for a lock.
    pub(crate) fn waiters(&self, lock: &str) -> usize {
        self.observer().inspect(lock).unwrap().map_or(0, |lock| lock.waiters.len())
    }

    /// Waits until the session that holds a lock is renewed.
    pub(crate) fn until_renewed(&self, lock: &str) {
        let observer = self.observer();
        let mut last = u64::MAX;
        until(&format!("the session that holds {lock} is renewed"), || {
            let left = observer.inspect(lock).unwrap().and_then(|lock| lock.holders.first()?.time_left_ms);
            left.is_some_and(|left| left > std::mem::replace(&mut last, left))
        });
    }

    /// Returns whether a lock is held.
    pub(crate) fn is_held(&self, lock: &str) -> bool {
        self.observer().inspect(lock).unwrap().is_some_and(|lock| !lock.holders.is_empty())
    }
}

/// A running `palisade`. Its stdout reaches its end only when all processes that it started have exited too.
pub(crate) struct Running {
    /// Its command line.
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    /// All lines of stdout so far.
    printed: Vec<String>,
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
        let name = bounded::command_line(&command);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn();
        let mut child = spawned.unwrap_or_else(|error| bounded::absent(&name, &error));
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
        Running { name, child, stdin, lines, errors: Some(errors), printed: Vec::new() }
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

    /// Ends the stdin of its command.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for the next line of stdout.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => {
                self.printed.push(line.clone());
                line
            }
            Err(why) => self.fail(&format!("no line came ({why})")),
        }
    }

    /// Waits for the next line of stdout, and checks it.
    pub(crate) fn expect(&mut self, wanted: &str) {
        assert_eq!(self.line(), wanted);
    }

    /// Waits until it and all processes that it started have exited.
    pub(crate) fn end(mut self) -> Finished {
        let mut stdout = Vec::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => stdout.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.printed.extend(stdout);
                    self.fail("it does not end");
                }
            }
        }
        let ended = bounded::end_of(&mut self.child);
        let status = ended.unwrap_or_else(|| self.fail("it has closed its stdout and does not end"));
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("one or the other");
        Finished { code, stdout, errors: self.errors().expect("stderr was not read before") }
    }

    /// Waits for the end of stderr and returns all of it, once.
    fn errors(&mut self) -> Option<String> {
        let errors = self.errors.take()?;
        Some(within("the end of stderr", move || errors.join()).expect("it is read"))
    }

    /// Fails, and says what it has printed. Its warden ends the processes that it has started.
    fn fail(&mut self, why: &str) -> ! {
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = self.child.kill();
        let errors = self.errors();
        panic!("{why}: {}\nit has printed {:?}, and on stderr {errors:?}", self.name, self.printed);
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

/// The only child of a process, as soon as it has one.
pub(crate) fn only_child(parent: Pid) -> Pid {
    let parent = parent.as_raw_nonzero();
    bounded::until_some("the process has a child", || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        children.split_whitespace().next().map(pid)
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
