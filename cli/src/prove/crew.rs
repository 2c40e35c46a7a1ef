//! The writers, as processes: started, stopped, woken, ended.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::wire::{Part, Said};
use super::writer;

/// Several writers. None of them, running or stopped, is left when this is dropped.
pub(super) struct Crew {
    writers: Vec<Writer>,
    heard: UnboundedReceiver<Heard>,
}

struct Writer {
    process: Child,
    /// `None` once it was told to end.
    stdin: Option<ChildStdin>,
}

/// Something that was heard from one of them. `None`: it will say nothing more.
pub(super) type Heard = (usize, Option<Said>);

impl Crew {
    /// Starts one for each part.
    pub(super) fn start(parts: impl Iterator<Item = Part>) -> io::Result<Crew> {
        let (sender, heard) = unbounded_channel();
        let mut crew = Crew { writers: Vec::new(), heard };
        for (index, part) in parts.enumerate() {
            crew.writers.push(Writer::start(index, &part, sender.clone())?);
        }
        Ok(crew)
    }

    pub(super) fn len(&self) -> usize {
        self.writers.len()
    }

    /// What is said next, by whoever says it. `None` when all of them have ended.
    pub(super) async fn hear(&mut self) -> Option<Heard> {
        self.heard.recv().await
    }

    pub(super) fn stop(&self, writer: usize) -> io::Result<()> {
        self.writers[writer].signal(Signal::STOP)
    }

    pub(super) fn wake(&self, writer: usize) -> io::Result<()> {
        self.writers[writer].signal(Signal::CONT)
    }

    /// Wakes all of them, and tells them to end once they have done what they are at.
    pub(super) fn tell_to_end(&mut self) -> io::Result<()> {
        for writer in &mut self.writers {
            writer.stdin = None;
            writer.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// How one ended that says nothing more.
    pub(super) fn ending(&mut self, writer: usize) -> io::Result<ExitStatus> {
        self.writers[writer].process.wait()
    }
}

impl Writer {
    fn start(index: usize, part: &Part, sender: UnboundedSender<Heard>) -> io::Result<Writer> {
        use std::os::unix::process::CommandExt;
        // In a group of its own, Ctrl-C is for the parent alone, who ends it.
        let mut process = writer::command().process_group(0).spawn()?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let writer = Writer { process, stdin };
        let mut stdin = writer.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{}", serde_json::to_string(part)?)?;
        let stdout = BufReader::new(stdout.ok_or(io::ErrorKind::BrokenPipe)?);
        thread::spawn(move || {
            let said = stdout.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok());
            for said in said.map(Some).chain([None]) {
                if sender.send((index, said)).is_err() {
                    break;
                }
            }
        });
        Ok(writer)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended by itself. One that is stopped can be killed as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
