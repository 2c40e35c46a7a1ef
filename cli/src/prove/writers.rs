//! The writer processes: start, pause, resume, stop.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::wire::{WriterConfig, WriterEvent};
use super::writer;

/// Several writers. Dropping this kills them all, also stopped ones.
pub(super) struct Writers {
    writers: Vec<Writer>,
    messages: UnboundedReceiver<Message>,
}

struct Writer {
    process: Child,
    /// `None` once the writer was asked to end.
    stdin: Option<ChildStdin>,
}

/// An event of one writer, by its index. `None`: the writer has closed its stdout.
pub(super) type Message = (usize, Option<WriterEvent>);

impl Writers {
    /// Starts a writer for each configuration.
    pub(super) fn start(configs: impl Iterator<Item = WriterConfig>) -> io::Result<Writers> {
        let (sender, messages) = unbounded_channel();
        let mut writers = Writers { writers: Vec::new(), messages };
        for (index, config) in configs.enumerate() {
            writers.writers.push(Writer::start(index, &config, sender.clone())?);
        }
        Ok(writers)
    }

    pub(super) fn len(&self) -> usize {
        self.writers.len()
    }

    /// Returns the next message of any writer; `None` when all have exited.
    pub(super) async fn receive(&mut self) -> Option<Message> {
        self.messages.recv().await
    }

    pub(super) fn pause(&self, writer: usize) -> io::Result<()> {
        self.writers[writer].signal(Signal::STOP)
    }

    pub(super) fn resume(&self, writer: usize) -> io::Result<()> {
        self.writers[writer].signal(Signal::CONT)
    }

    /// Resumes all writers, and asks them to stop after their current update.
    pub(super) fn request_end(&mut self) -> io::Result<()> {
        for writer in &mut self.writers {
            writer.stdin = None;
            writer.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// Waits for the exit of a writer that has closed its stdout.
    pub(super) fn exit_status(&mut self, writer: usize) -> io::Result<ExitStatus> {
        self.writers[writer].process.wait()
    }
}

impl Writer {
    fn start(index: usize, config: &WriterConfig, sender: UnboundedSender<Message>) -> io::Result<Writer> {
        use std::os::unix::process::CommandExt;
        // A separate process group, so that Ctrl-C reaches only the parent, which kills the writer.
        let mut process = writer::command().process_group(0).spawn()?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let writer = Writer { process, stdin };
        let mut stdin = writer.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{}", serde_json::to_string(config)?)?;
        let stdout = BufReader::new(stdout.ok_or(io::ErrorKind::BrokenPipe)?);
        thread::spawn(move || {
            let events = stdout.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok());
            for event in events.map(Some).chain([None]) {
                if sender.send((index, event)).is_err() {
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
        // It may have exited already. SIGKILL also ends a stopped process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
