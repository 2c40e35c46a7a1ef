//! The servers of the experiment: real processes on free ports of this host, gone when they are dropped.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use palisade_cli::harness::free_port;
use palisade_cli::harness::wall_clock::{self, WallClock};

use crate::outcome::Failure;
use crate::prove::child;
use crate::prove::server_process::{self, ServerProcess};

/// How long a server may take until it answers. No server takes this long.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How to install the needed programs.
const INSTALL: &str = "on Debian: apt-get install redis-server faketime";

/// A server.
pub(super) struct Server {
    kind: Kind,
    process: ServerProcess,
    folder: PathBuf,
    /// Its wall clock, if a schedule sets it.
    clock: Option<WallClock>,
    pub(super) address: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Redis,
    Palisade,
}

impl Server {
    /// Starts a server whose files are in this folder, and waits until it answers.
    pub(super) async fn start(kind: Kind, folder: PathBuf, clock: Option<WallClock>) -> Result<Server, Failure> {
        fs::create_dir_all(&folder)?;
        let address = free_port()?;
        let process = spawn(kind, &folder, clock.as_ref(), address)?;
        let mut server = Server { kind, process, folder, clock, address };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Kills the server, as a power cut would, and starts it again on the same files.
    pub(super) async fn restart(&mut self) -> Result<(), Failure> {
        self.process.end();
        self.process = spawn(self.kind, &self.folder, self.clock.as_ref(), self.address)?;
        self.wait_until_ready().await
    }

    /// Sets its wall clock an hour ahead.
    pub(super) fn jump(&self) -> io::Result<()> {
        self.clock.as_ref().map_or(Ok(()), |clock| clock.jump("+1h"))
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        while !answers_ping(self.address) {
            if began.elapsed() > START_TIMEOUT || self.process.ended()?.is_some() {
                let message =
                    format!("{:?} did not start; {INSTALL}. It printed: {}", self.kind, self.process.last_lines());
                return Err(Failure::Unavailable(message));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

fn spawn(kind: Kind, folder: &Path, clock: Option<&WallClock>, address: SocketAddr) -> io::Result<ServerProcess> {
    let mut command = match kind {
        Kind::Redis => redis(folder, address),
        Kind::Palisade => palisade(folder, address)?,
    };
    let variables = clock.map(WallClock::variables);
    ServerProcess::start(&mut command, variables.into_iter().flatten(), folder.join("log"))
}

fn redis(folder: &Path, address: SocketAddr) -> Command {
    let mut command = child::server("redis-server");
    // Without persistence, so that a restarted server is empty.
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--port", &address.port().to_string()]).arg("--dir").arg(folder);
    command
}

fn palisade(folder: &Path, address: SocketAddr) -> io::Result<Command> {
    let mut command = server_process::palisade(folder)?;
    command.args(["--http", "off", "--resp", &address.to_string()]).arg("--data-dir").arg(folder.join("data"));
    Ok(command)
}

fn answers_ping(address: SocketAddr) -> bool {
    let ping = || -> io::Result<[u8; 7]> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ping().is_ok_and(|answer| answer == *b"+PONG\r\n")
}

/// Fails if redis-server or faketime is not installed.
pub(super) fn ensure_installed() -> Result<(), Failure> {
    let found = Command::new("redis-server").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => {}
        _ => return Err(Failure::Unavailable(format!("redis-server is not installed; {INSTALL}"))),
    }
    match wall_clock::library() {
        Some(_) => Ok(()),
        None => Err(Failure::Unavailable(format!("faketime is not installed; {INSTALL}"))),
    }
}
