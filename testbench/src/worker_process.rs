//! The program `worker` as a process: it gets commands on its input and prints replies. A test can stop and kill it.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::bounded::{BOUND, block_until};

/// A worker process. It is killed when this value is dropped.
pub struct WorkerProcess {
    child: Child,
    /// `None` once the input was closed.
    input: Option<ChildStdin>,
    replies: Receiver<String>,
    last_command: String,
}

impl WorkerProcess {
    /// Starts the process.
    ///
    /// # Errors
    ///
    /// The system cannot start it.
    pub fn spawn(command: &mut Command) -> io::Result<WorkerProcess> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let replies = lines(child.stdout.take().ok_or_else(|| io::Error::other("a worker without output"))?);
        Ok(WorkerProcess { input: child.stdin.take(), child, replies, last_command: String::new() })
    }

    /// Sends a command, without waiting for its reply.
    ///
    /// # Panics
    ///
    /// The process has ended.
    pub fn send(&mut self, command: &str) {
        command.clone_into(&mut self.last_command);
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{command}").expect("the worker reads its input");
    }

    /// Returns the next line that the process prints; `None` if it has ended.
    ///
    /// # Panics
    ///
    /// The process lives and prints nothing within [`BOUND`].
    pub fn next_reply(&mut self) -> Option<String> {
        next_line(&self.replies, &format!("the worker replies to '{}'", self.last_command))
    }

    /// Waits for a reply.
    ///
    /// # Panics
    ///
    /// The process has ended, or prints nothing within [`BOUND`].
    pub fn reply(&mut self) -> String {
        self.next_reply().unwrap_or_else(|| panic!("the worker ended instead of replying to '{}'", self.last_command))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Panics
    ///
    /// The process has ended, or prints nothing within [`BOUND`].
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.reply()
    }

    /// Stops the process, until [`WorkerProcess::go_on`].
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the process go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process with `SIGKILL`.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Ends the process with `SIGTERM`.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Closes the input, so that the process ends in an orderly way.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns whether the process has ended.
    ///
    /// # Errors
    ///
    /// The system does not know the process.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    ///
    /// It has not ended within [`BOUND`].
    pub fn until_ended(&mut self) {
        block_until("the worker has ended", || self.has_ended().expect("the process is our child"));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is not reaped yet");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads a process's output on another thread, so that a test can wait for a line with a bound.
pub fn lines(output: impl io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// Returns the next line; `None` at the end of the output.
///
/// # Panics
///
/// Neither comes within [`BOUND`]. The message names `what`.
pub fn next_line(lines: &Receiver<String>, what: &str) -> Option<String> {
    match lines.recv_timeout(BOUND) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("waited in vain until {what}"),
    }
}
