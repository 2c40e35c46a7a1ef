//! Real servers for tests and benchmarks: started on free loopback ports, ended when dropped.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// No server takes this long to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two questions whether it has begun.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a server is not there.
#[derive(Debug)]
pub enum Absent {
    /// The program is not installed.
    NotInstalled(&'static str),
    /// It did not begin to answer. With the end of what it said.
    Silent(&'static str, String),
    /// Its files cannot be written.
    Io(io::Error),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NotInstalled(program) => write!(f, "{program} is not installed: scripts/setup --bench"),
            Absent::Silent(program, said) => write!(f, "{program} does not answer; it said:\n{said}"),
            Absent::Io(error) => write!(f, "cannot start a server: {error}"),
        }
    }
}

impl std::error::Error for Absent {}

impl From<io::Error> for Absent {
    fn from(error: io::Error) -> Absent {
        Absent::Io(error)
    }
}

/// An etcd of one node.
pub struct Etcd {
    _process: Process,
    /// Where clients find it: `http://127.0.0.1:12345`.
    pub endpoint: String,
}

impl Etcd {
    /// Starts one whose files are in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<Etcd, Absent> {
        let (clients, peers) = (free_port()?, free_port()?);
        let (endpoint, peer) = (format!("http://{clients}"), format!("http://{peers}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(directory.join("etcd")).args(["--name", "one"]);
        command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]);
        let mut process = Process::start("etcd", command, directory)?;
        process.until(|| is_healthy(clients))?;
        Ok(Etcd { _process: process, endpoint })
    }
}

/// Whether `GET /health` is answered with a healthy server.
fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(" 200 ") && answer.contains("true"))
}

/// A port that nobody listens on. Somebody else may take it before it is used; then the server says so.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A process that ends with this value.
struct Process {
    program: &'static str,
    child: Child,
    /// What it says.
    log: PathBuf,
}

impl Process {
    fn start(program: &'static str, mut command: Command, directory: &Path) -> Result<Process, Absent> {
        let log = directory.join(format!("{program}.log"));
        let said = File::create(&log)?;
        let spawned = command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said).spawn();
        match spawned {
            Ok(child) => Ok(Process { program, child, log }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Absent::NotInstalled(program)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it answers. A server says so in words that differ from version to version, so it is asked.
    fn until(&mut self, answers: impl Fn() -> bool) -> Result<(), Absent> {
        let began = Instant::now();
        while !answers() {
            if began.elapsed() > PATIENCE || self.child.try_wait()?.is_some() {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = said.lines().collect();
                return Err(Absent::Silent(self.program, lines[lines.len().saturating_sub(5)..].join("\n")));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
