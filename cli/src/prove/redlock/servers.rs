//! The servers of the experiment: real processes on free ports of this host, gone when they are dropped.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::outcome::Failure;
use crate::prove::child;

/// How long a server may take until it answers. No server takes this long.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How to install the needed programs.
const INSTALL: &str = "on Debian: apt-get install redis-server faketime";

/// A server.
pub(super) struct Server {
    kind: Kind,
    process: Child,
    folder: PathBuf,
    /// Its wall clock, if a schedule sets it.
    clock: Option<Clock>,
    pub(super) address: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Redis,
    Palisade,
}

impl Server {
    /// Starts a server whose files are in this folder, and waits until it answers.
    pub(super) async fn start(kind: Kind, folder: PathBuf, clock: Option<Clock>) -> Result<Server, Failure> {
        fs::create_dir_all(&folder)?;
        let address = free_address()?;
        let process = spawn(kind, &folder, clock.as_ref(), address)?;
        let mut server = Server { kind, process, folder, clock, address };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Kills the server, as a power cut would, and starts it again on the same files.
    pub(super) async fn restart(&mut self) -> Result<(), Failure> {
        self.end();
        self.process = spawn(self.kind, &self.folder, self.clock.as_ref(), self.address)?;
        self.wait_until_ready().await
    }

    /// Sets its wall clock an hour ahead.
    pub(super) fn jump(&self) -> io::Result<()> {
        self.clock.as_ref().map_or(Ok(()), |clock| clock.set("+1h"))
    }

    async fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        while !answers_ping(self.address) {
            if began.elapsed() > START_TIMEOUT || self.process.try_wait()?.is_some() {
                let output = fs::read_to_string(log(&self.folder)).unwrap_or_default();
                let last: Vec<_> = output.lines().rev().take(3).collect();
                let last: Vec<_> = last.into_iter().rev().collect();
                let message = format!("{:?} did not start; {INSTALL}. It printed: {}", self.kind, last.join(" | "));
                return Err(Failure::Unavailable(message));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn end(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn spawn(kind: Kind, folder: &Path, clock: Option<&Clock>, address: SocketAddr) -> io::Result<Child> {
    let mut command = match kind {
        Kind::Redis => redis(folder, address),
        Kind::Palisade => palisade(folder, address)?,
    };
    let variables = ["PATH", "LANG"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(variables);
    if let Some(clock) = clock {
        command.envs(clock.variables());
    }
    let output = File::create(log(folder))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()
}

fn redis(folder: &Path, address: SocketAddr) -> Command {
    let mut command = child::server("redis-server");
    // Without persistence, so that a restarted server is empty.
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--port", &address.port().to_string()]).arg("--dir").arg(folder);
    command
}

fn palisade(folder: &Path, address: SocketAddr) -> io::Result<Command> {
    let config = folder.join("palisade.toml");
    fs::write(&config, "")?;
    let mut command = child::server(std::env::current_exe()?);
    command.arg("--config").arg(config).args(["serve", "--http", "off", "--resp", &address.to_string()]);
    command.arg("--data-dir").arg(folder.join("data"));
    Ok(command)
}

/// Returns a free address. Another process may take it before the server does; then the server fails to bind.
pub(super) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
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

/// The wall clock of one process, set through libfaketime. Its monotonic clocks stay right.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    library: PathBuf,
    time: PathBuf,
}

impl Clock {
    /// Makes a clock that is right until it is set. Its offset is in a file in this folder.
    pub(super) fn new(folder: &Path) -> Result<Clock, Failure> {
        let missing = || Failure::Unavailable(format!("faketime is not installed; {INSTALL}"));
        let clock = Clock { library: faketime().ok_or_else(missing)?, time: folder.join("time") };
        clock.set("+0")?;
        Ok(clock)
    }

    fn set(&self, offset: &str) -> io::Result<()> {
        // A concurrent reader sees the old time or the new one.
        let new = self.time.with_extension("new");
        fs::write(&new, format!("{offset}\n"))?;
        fs::rename(new, &self.time)
    }

    fn variables(&self) -> [(&'static str, PathBuf); 4] {
        // libc too: its malloc then replaces the one of Redis, which asks for the time before libfaketime is initialised.
        let libraries = format!("{}:libc.so.6", self.library.display());
        [
            ("LD_PRELOAD", libraries.into()),
            ("FAKETIME_TIMESTAMP_FILE", self.time.clone()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

fn faketime() -> Option<PathBuf> {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].into_iter().map(PathBuf::from);
    let subfolders = fs::read_dir("/usr/lib").ok()?.flatten().map(|folder| folder.path());
    roots.chain(subfolders).map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.exists())
}

/// Fails if redis-server or faketime is not installed.
pub(super) fn ensure_installed() -> Result<(), Failure> {
    let found = Command::new("redis-server").arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => {}
        _ => return Err(Failure::Unavailable(format!("redis-server is not installed; {INSTALL}"))),
    }
    match faketime() {
        Some(_) => Ok(()),
        None => Err(Failure::Unavailable(format!("faketime is not installed; {INSTALL}"))),
    }
}
