//! A PostgreSQL of one node.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Absent, LogsOnFailure, PATIENCE, Process, free_port};
use crate::bounded::output;
use crate::credentials::Credentials;

/// A PostgreSQL of one node, which accepts every connection as `postgres`.
pub struct Postgres {
    process: Process,
    directory: PathBuf,
    settings: Vec<String>,
    variables: Vec<(String, String)>,
    /// Its address.
    pub address: SocketAddr,
}

impl Postgres {
    /// Creates a durable server with its files in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<Postgres, Absent> {
        Postgres::make(directory, &[], &[])
    }

    /// Does the same, with more variables in its environment.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with(directory: &Path, variables: &[(&str, &str)]) -> Result<Postgres, Absent> {
        Postgres::make(directory, &[], variables)
    }

    /// Creates a server with TLS. Its [`Credentials`], for `localhost` only, are written to its directory. The user
    /// `sealed` needs an encrypted connection, and the user `client` a certificate.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_encrypted(directory: &Path) -> Result<Postgres, Absent> {
        Credentials::new(directory).authority.issue(directory, "server", &["localhost"], |_| {});
        let file = |name: &str| directory.join(name);
        fs::set_permissions(file("server.key"), fs::Permissions::from_mode(0o600))?;
        hand_over(&file("server.key"))?;
        let rules = [
            "host all postgres all trust",
            "hostssl all sealed all trust",
            "hostssl all client all trust clientcert=verify-ca",
        ];
        fs::write(file("rules"), rules.join("\n") + "\n")?;
        let setting = |name: &str, value: &str| format!("{name}={}", file(value).display());
        let settings = [
            "ssl=on".to_owned(),
            setting("ssl_cert_file", "server.pem"),
            setting("ssl_key_file", "server.key"),
            setting("ssl_ca_file", "ca.pem"),
            setting("hba_file", "rules"),
        ];
        Postgres::make(directory, &settings.each_ref().map(String::as_str), &[])
    }

    fn make(directory: &Path, settings: &[&str], variables: &[(&str, &str)]) -> Result<Postgres, Absent> {
        let directory = directory.join("postgres");
        fs::create_dir_all(&directory)?;
        hand_over(&directory)?;
        let mut command = tool("initdb")?;
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"]);
        let made = output(command.arg(directory.join("data")).current_dir(&directory))?;
        if !made.status.success() {
            return Err(Absent::Silent("initdb", String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let address = free_port()?;
        let (settings, variables) =
            (settings.iter().map(ToString::to_string).collect::<Vec<_>>(), super::owned(variables));
        let process = begin(&directory, address, &settings, &variables)?;
        Ok(Postgres { process, directory, address, settings, variables })
    }

    /// Returns the server that all tests of this process share. It flushes nothing, since it is not killed.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn shared() -> Result<&'static Postgres, &'static Absent> {
        static SHARED: LazyLock<Result<(Postgres, Child), Absent>> = LazyLock::new(|| {
            let folder = TempDir::new()?;
            let server = Postgres::make(folder.path(), &["fsync=off"], &[])?;
            // A static is never dropped. This shell ends the server when its input closes, which is when this process ends.
            let mut undertaker = Command::new("sh");
            undertaker.args(["-c", "cat; kill -QUIT $1; sleep 1; rm -rf \"$2\"", "sh"]);
            undertaker.arg(server.process.child.id().to_string()).arg(folder.keep());
            Ok((server, undertaker.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?))
        });
        SHARED.as_ref().map(|(server, _)| server)
    }

    /// Returns a value that prints the end of its log if the test fails that has this value.
    pub fn logs_on_failure(&self) -> LogsOnFailure {
        LogsOnFailure::of(&self.directory)
    }

    /// Returns its URL: `postgres://postgres@127.0.0.1:12345/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }

    /// Runs SQL with `psql`; returns the rows, with tabs between their columns.
    ///
    /// # Errors
    ///
    /// `psql` is not installed, or says that it failed.
    pub fn run(&self, sql: &str) -> Result<String, Absent> {
        let output = output(Command::new("psql").args(["-XqtAF", "\t", "-c", sql, &self.url()]))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(Absent::Silent("psql", String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Kills all of its processes with `SIGKILL`.
    pub fn kill(&mut self) {
        let pid = self.process.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        self.process.end();
        for child in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            // It may have ended already.
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Starts it again after [`Postgres::kill`], on the same files and at the same address.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        let began = Instant::now();
        loop {
            match begin(&self.directory, self.address, &self.settings, &self.variables) {
                Ok(process) => self.process = process,
                // It does not start while a killed process of it still exists.
                Err(Absent::Silent(..)) if began.elapsed() < PATIENCE => continue,
                Err(absent) => return Err(absent),
            }
            return Ok(());
        }
    }
}

fn begin(
    directory: &Path,
    address: SocketAddr,
    settings: &[String],
    variables: &[(String, String)],
) -> Result<Process, Absent> {
    let mut command = tool_with("postgres", variables)?;
    command.arg("-D").arg(directory.join("data")).args(["-p", &address.port().to_string()]);
    let usual = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=300",
        "max_prepared_transactions=4",
    ];
    for setting in usual.into_iter().chain(settings.iter().map(String::as_str)) {
        command.args(["-c", setting]);
    }
    let mut process = Process::start("postgres", command, directory)?;
    process.until(|| is_ready(address))?;
    Ok(process)
}

/// Returns whether it accepts a login. It listens before it has recovered.
fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> io::Result<u8> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let parameters = b"user\0postgres\0database\0postgres\0\0";
        let length = u32::try_from(parameters.len() + 8).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), &196_608_u32.to_be_bytes(), &parameters[..]].concat())?;
        let mut answer = [0; 1];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    ask().is_ok_and(|first| first == b'R')
}

/// Returns a command for a program of the package, run as the user `postgres` if root runs the tests.
fn tool(name: &'static str) -> Result<Command, Absent> {
    tool_with(name, &[])
}

/// Does the same, with more variables in the server's environment only.
fn tool_with(name: &'static str, variables: &[(String, String)]) -> Result<Command, Absent> {
    let found = Command::new("pg_config").arg("--bindir").output().ok().filter(|reply| reply.status.success());
    let folder = found.map(|reply| PathBuf::from(String::from_utf8_lossy(&reply.stdout).trim()));
    let folders = folder.into_iter().chain(newest_package());
    let Some(program) = folders.map(|folder| folder.join(name)).find(|program| program.exists()) else {
        return Err(Absent::NotInstalled("postgres"));
    };
    if !rustix::process::geteuid().is_root() {
        let mut command = Command::new(program);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        return Ok(command);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--", "env"]);
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}"))).arg(program);
    Ok(command)
}

/// Returns the folder in which Debian installs it.
fn newest_package() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    versions.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(number).map(|path| path.join("bin"))
}

/// Gives a file or a directory to the user `postgres`, when root runs the tests.
fn hand_over(directory: &Path) -> Result<(), Absent> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let given = Command::new("chown").arg("postgres").arg(directory).status()?;
    // Only its owner can enter a temporary directory.
    Command::new("chmod").arg("a+x").arg(directory.parent().unwrap_or(directory)).status()?;
    if given.success() { Ok(()) } else { Err(Absent::NotInstalled("postgres")) }
}
