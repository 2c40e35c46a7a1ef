//! The players' processes, as their director has them.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::player;
use super::wire::{Order, Part, Said};
use crate::outcome::Failure;

/// Nothing that a player does takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A player. It is gone when this is dropped.
pub(super) struct Player {
    process: Child,
    stdin: ChildStdin,
    heard: UnboundedReceiver<Said>,
}

impl Player {
    /// Starts one, and waits until it is connected.
    pub(super) async fn start(part: &Part) -> Result<Player, Failure> {
        use std::os::unix::process::CommandExt;
        // In a group of its own, Ctrl-C is for the parent alone, who ends it.
        let mut process = player::command().process_group(0).spawn()?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let (sender, heard) = unbounded_channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines();
            let mut said = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
            said.all(|said| sender.send(said).is_ok())
        });
        let mut player = Player { process, stdin, heard };
        player.tell(part)?;
        match player.hear().await? {
            Said::Ready => Ok(player),
            said => Err(Failure::Unreachable(format!("a player could not begin: {}", in_words(&said)))),
        }
    }

    /// Tells it something to do, without waiting until it is done.
    pub(super) fn order(&mut self, order: Order) -> io::Result<()> {
        self.tell(&order)
    }

    /// What it says next.
    pub(super) async fn hear(&mut self) -> Result<Said, Failure> {
        let gone = || Failure::Unreachable("a player has ended unexpectedly, or does not answer".to_owned());
        timeout(PATIENCE, self.heard.recv()).await.ok().flatten().ok_or_else(gone)
    }

    /// Tells it something to do, and waits until it is done.
    pub(super) async fn ask(&mut self, order: Order) -> Result<Said, Failure> {
        self.order(order)?;
        self.hear().await
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

    fn tell(&mut self, what: &impl Serialize) -> io::Result<()> {
        writeln!(self.stdin, "{}", serde_json::to_string(what)?)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may have ended by itself. One that is stopped can be killed as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn in_words(said: &Said) -> String {
    match said {
        Said::Failed(what) => what.clone(),
        said => format!("{said:?}"),
    }
}
