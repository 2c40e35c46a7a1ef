//! The program `worker` as a process that is told what to do, stopped and killed.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A worker process. It is killed when this value is dropped.
pub struct WorkerProcess {
    child: Child,
    tell: ChildStdin,
    heard: Lines<BufReader<ChildStdout>>,
}

impl WorkerProcess {
    /// Starts it by this command.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn spawn(command: &mut Command) -> io::Result<WorkerProcess> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(tell), Some(heard)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a worker without pipes"));
        };
        Ok(WorkerProcess { child, tell, heard: BufReader::new(heard).lines() })
    }

    /// Tells it something, without waiting for what it says.
    ///
    /// # Panics
    ///
    /// It is gone.
    pub fn tell(&mut self, what: &str) {
        writeln!(self.tell, "{what}").expect("it listens");
    }

    /// Returns the next line that the process prints; `None` if it has ended.
    pub fn hear(&mut self) -> Option<String> {
        self.heard.next().and_then(Result::ok)
    }

    /// Tells it something and waits for what it says.
    ///
    /// # Panics
    ///
    /// It is gone.
    pub fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear().expect("it answers")
    }

    /// Stops it, until [`WorkerProcess::go_on`].
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it. It has no time for anything.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Terminates it.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Whether it has ended.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is not waited for yet");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
