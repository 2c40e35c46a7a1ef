//! A process that runs beside a test. Its stderr is read all the time, and shown if the test fails.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::bounded::{self, OutputLines, TIMEOUT};

/// The number of lines that a test shows of each process when it fails.
const SHOWN: usize = 40;

/// A process. It ends with this value.
pub(crate) struct Process {
    name: String,
    child: Child,
    /// The lines of stderr that no call has returned yet.
    lines: Receiver<String>,
    /// All lines of stderr.
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts a command, whose stdout is not read.
    pub(crate) fn start(command: &mut Command) -> Process {
        Process::named(&bounded::command_line(command), command)
    }

    /// Starts a command under a name by which failures refer to it. Its stdout is not read.
    pub(crate) fn named(name: &str, command: &mut Command) -> Process {
        Process::spawn(name.to_owned(), command.stdout(Stdio::null()))
    }

    /// Starts a command. Returns the lines of its stdout too.
    pub(crate) fn start_reading(command: &mut Command) -> (Process, OutputLines<ChildStdout>) {
        let mut process = Process::spawn(bounded::command_line(command), command.stdout(Stdio::piped()));
        let stdout = process.child.stdout.take().expect("stdout is a pipe");
        (process, OutputLines::new(stdout))
    }

    fn spawn(name: String, command: &mut Command) -> Process {
        let spawned = command.stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| bounded::absent(&name, &error));
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        let (sender, lines) = mpsc::channel();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let all = log.clone();
        thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                all.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
                // The test may not read its lines any more.
                let _ = sender.send(text);
                line.clear();
            }
        });
        Process { name, child, lines, log }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends it a signal. It must not have been waited for.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Waits for the next line of stderr; `None` at its end.
    pub(crate) fn next_line(&self) -> Option<String> {
        self.next_line_by(Instant::now() + TIMEOUT)
    }

    fn next_line_by(&self, by: Instant) -> Option<String> {
        match self.lines.recv_timeout(by.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("waited {TIMEOUT:?} in vain for {}", self.name),
        }
    }

    /// Waits for the next line of stderr with this text.
    pub(crate) fn line_with(&self, part: &str) -> String {
        let by = Instant::now() + TIMEOUT;
        loop {
            match self.next_line_by(by) {
                Some(line) if line.contains(part) => return line,
                Some(_) if Instant::now() < by => {}
                Some(_) => panic!("{} has not said {part:?} within {TIMEOUT:?}", self.name),
                None => panic!("{} has ended, and has not said {part:?}", self.name),
            }
        }
    }

    /// Returns the lines of stderr that have come and that no call has returned yet.
    pub(crate) fn new_lines(&self) -> impl Iterator<Item = String> {
        self.lines.try_iter()
    }

    /// Waits for it to exit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        bounded::end_of(&mut self.child).unwrap_or_else(|| panic!("{} has not ended within {TIMEOUT:?}", self.name))
    }

    /// Waits for it to exit. Returns its exit code, and the lines of stderr that no call has returned yet.
    pub(crate) fn end(&mut self) -> (Option<i32>, Vec<String>) {
        let by = Instant::now() + TIMEOUT;
        let code = self.wait().code();
        (code, std::iter::from_fn(|| self.next_line_by(by)).collect())
    }

    /// Kills it, as a power cut would.
    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            show(&self.name, &self.log.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.kill();
    }
}

/// Shows the last lines of a log below the failure of a test.
#[allow(clippy::print_stderr, reason = "a test that fails shows what its processes have said")]
pub(crate) fn show(name: &str, log: &[impl AsRef<str>]) {
    let last = log[log.len().saturating_sub(SHOWN)..].iter().map(|line| format!("  | {}\n", line.as_ref()));
    eprintln!("the last lines of {name}:\n{}", last.collect::<String>());
}
