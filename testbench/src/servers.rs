//! Real servers for tests and benchmarks: started on free loopback ports, ended when dropped.

mod consul;
mod etcd;
mod mariadb;
mod pgbouncer;
mod postgres;
mod redis;
mod s3;
mod service_cluster;
mod shared;
mod zookeeper;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use palisade_cli::harness::wall_clock::remove_shared_memory;
use rustix::process::{Pid, Signal, kill_process};

pub use self::s3::{Faults, Loss, S3};
pub use consul::{Consul, ConsulCluster};
pub use etcd::{Etcd, EtcdCluster};
pub use mariadb::MariaDb;
pub use palisade_cli::harness::free_port;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::{Redis, RedisCluster, Sentinel};
pub use service_cluster::ServiceCluster;
pub use shared::{InUse, LogsOnFailure, Shared};
pub use zookeeper::{ZooKeeper, ZooKeeperEnsemble};

/// The bound of a server's start: a Java on a busy machine needs twenty times as long as on an idle one.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a server may take for the answer to one question. Then it is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two checks whether it has started.
const PAUSE: Duration = Duration::from_millis(5);
/// How many lines of a log are shown.
const LINES: usize = 40;

/// Why a server is not there.
#[derive(Debug)]
pub enum Absent {
    /// The program is not installed.
    NotInstalled(&'static str),
    /// It did not begin to answer. With the last lines of its log.
    Silent(&'static str, String),
    /// Its files cannot be written.
    Io(io::Error),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NotInstalled(program) => {
                write!(f, "{program} is not installed: scripts/setup, or scripts/setup --bench")
            }
            Absent::Silent(program, reply) => write!(f, "{program} does not answer; it said:\n{reply}"),
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

/// Whether `GET /health` is answered with a healthy server.
fn is_healthy(address: SocketAddr) -> bool {
    get(address, "/health").is_ok_and(|answer| answer.contains(" 200 ") && answer.contains("true"))
}

/// Returns the answer to `GET`, with its headers.
fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Whether `PING` is answered.
fn answers_ping(address: SocketAddr) -> bool {
    let ask = || -> io::Result<[u8; 7]> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer == *b"+PONG\r\n")
}

/// Returns the processor time that a process has used. Linux counts it in hundredths of a second.
///
/// # Panics
///
/// There is no such process.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|ticks| ticks.parse::<u64>().ok()).expect("a number of ticks");
    Duration::from_millis((ticks() + ticks()) * 10)
}

/// The Palisade service, of one node.
pub struct Service {
    process: Process,
    program: PathBuf,
    directory: PathBuf,
    variables: Vec<(String, String)>,
    /// Its address.
    pub address: SocketAddr,
}

impl Service {
    /// Starts one whose files are in this directory, and waits until it listens. `program` is the test bench's `serve`.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not begin to listen.
    pub fn start(program: impl Into<PathBuf>, directory: &Path) -> Result<Service, Absent> {
        Service::start_with(program, directory, &[])
    }

    /// The same, with more variables in its environment.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not begin to listen.
    pub fn start_with(
        program: impl Into<PathBuf>,
        directory: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Service, Absent> {
        let (program, directory, variables) = (program.into(), directory.to_owned(), owned(variables));
        let (process, address) = begin(&program, &directory, &variables, "127.0.0.1:0")?;
        Ok(Service { process, program, directory, variables, address })
    }

    /// Returns its URL without encryption and users: `palisade://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("palisade://{}", self.address)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns its log since the last start.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.process.log).unwrap_or_default()
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`Service::kill`], on the same files and at the same address.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not begin to listen.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        let address = self.address.to_string();
        let (process, _) = begin(&self.program, &self.directory, &self.variables, &address)?;
        self.process = process;
        Ok(())
    }

    /// The same, with other variables in its environment.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not begin to listen.
    pub fn restart_with(&mut self, variables: &[(&str, &str)]) -> Result<(), Absent> {
        self.variables = owned(variables);
        self.restart()
    }

    /// Stops it, until [`Service::go_on`].
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }
}

fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Starts the service and waits until it prints its address.
fn begin(
    program: &Path,
    directory: &Path,
    variables: &[(String, String)],
    address: &str,
) -> Result<(Process, SocketAddr), Absent> {
    let mut command = Command::new(program);
    command.arg(directory.join("service")).arg(address).envs(variables.iter().cloned());
    let mut process = Process::start("serve", command, directory)?;
    let log = process.log.clone();
    let printed_address = || fs::read_to_string(&log).ok()?.lines().next()?.parse().ok();
    // Over TLS there is no plain `PING`; the service accepts connections only when it is ready.
    let is_encrypted = variables.iter().any(|(name, _)| name == "SERVE_TLS");
    let answers = |address| if is_encrypted { TcpStream::connect(address).is_ok() } else { answers_ping(address) };
    process.until(|| printed_address().is_some_and(answers))?;
    match printed_address() {
        Some(address) => Ok((process, address)),
        None => Err(Absent::Silent("serve", String::new())),
    }
}

/// A process that ends with this value.
struct Process {
    program: &'static str,
    child: Child,
    /// Its output.
    log: PathBuf,
}

impl Process {
    fn start(program: &'static str, mut command: Command, directory: &Path) -> Result<Process, Absent> {
        let log = directory.join(format!("{program}.log"));
        let reply = File::create(&log)?;
        let spawned = command.stdin(Stdio::null()).stdout(reply.try_clone()?).stderr(reply).spawn();
        match spawned {
            Ok(child) => Ok(Process { program, child, log }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Absent::NotInstalled(program)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it answers. The log message for that differs from version to version, so the server is polled.
    fn until(&mut self, answers: impl Fn() -> bool) -> Result<(), Absent> {
        let began = Instant::now();
        while !answers() {
            if began.elapsed() > PATIENCE || self.child.try_wait()?.is_some() {
                return Err(Absent::Silent(self.program, last_lines(&self.log)));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_shared_memory(self.child.id());
    }
}

impl Drop for Process {
    #[allow(clippy::print_stderr, reason = "a test that fails must show what its server said")]
    fn drop(&mut self) {
        if thread::panicking() {
            let state = match self.child.try_wait() {
                Ok(Some(status)) => format!("has ended before ({status})"),
                _ => "runs".to_owned(),
            };
            eprintln!("{} {state}. The end of {}:\n{}", self.program, self.log.display(), last_lines(&self.log));
        }
        self.end();
    }
}

/// Returns the last lines of a log.
fn last_lines(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
