//! A handle to a client process.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::client;
use super::wire::{ClientConfig, Reply, Request};
use crate::outcome::Failure;

/// How long a client may take to reply. Longer than any request takes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A client process. Dropping this kills it.
pub(super) struct ClientProcess {
    process: Child,
    stdin: ChildStdin,
    replies: UnboundedReceiver<Reply>,
}

impl ClientProcess {
    /// Starts a client, and waits until it is connected.
    pub(super) async fn start(config: &ClientConfig) -> Result<ClientProcess, Failure> {
        use std::os::unix::process::CommandExt;
        // A separate process group, so that Ctrl-C reaches only the parent, which kills the client.
        let mut process = client::command().process_group(0).spawn()?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let (sender, replies) = unbounded_channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines();
            let mut reply = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
            reply.all(|reply| sender.send(reply).is_ok())
        });
        let mut client = ClientProcess { process, stdin, replies };
        client.write_line(config)?;
        match client.receive().await? {
            Reply::Ready => Ok(client),
            reply => Err(Failure::Unavailable(format!("a client could not begin: {}", describe(&reply)))),
        }
    }

    /// Sends a request without waiting for the reply.
    pub(super) fn send(&mut self, request: Request) -> io::Result<()> {
        self.write_line(&request)
    }

    /// Returns the next line that the process prints.
    pub(super) async fn receive(&mut self) -> Result<Reply, Failure> {
        let gone = || Failure::Unavailable("a client has ended unexpectedly, or does not answer".to_owned());
        timeout(REPLY_TIMEOUT, self.replies.recv()).await.ok().flatten().ok_or_else(gone)
    }

    /// Sends a request and waits for the reply.
    pub(super) async fn call(&mut self, request: Request) -> Result<Reply, Failure> {
        self.send(request)?;
        self.receive().await
    }

    pub(super) fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    pub(super) fn wake(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    fn write_line(&mut self, message: &impl Serialize) -> io::Result<()> {
        writeln!(self.stdin, "{}", serde_json::to_string(message)?)
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // It may have exited already. SIGKILL also ends a stopped process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn describe(reply: &Reply) -> String {
    match reply {
        Reply::Failed(message) => message.clone(),
        reply => format!("{reply:?}"),
    }
}
