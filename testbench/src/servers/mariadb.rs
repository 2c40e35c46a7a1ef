//! MariaDB.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use super::{Absent, LogsOnFailure, Process, free_port};
use crate::bounded::output;
use crate::credentials::Credentials;

/// A MariaDB of one node, whose user `root` needs no password.
pub struct MariaDb {
    process: Process,
    folder: PathBuf,
    options: Vec<String>,
    variables: Vec<(String, String)>,
    /// Its address.
    pub address: SocketAddr,
}

impl MariaDb {
    /// Creates a durable server with its files in this directory, and waits until it answers. It has an empty database `test`.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<MariaDb, Absent> {
        MariaDb::make(directory, &[], &[])
    }

    /// Does the same, with more variables in its environment.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with(directory: &Path, variables: &[(&str, &str)]) -> Result<MariaDb, Absent> {
        MariaDb::make(directory, &[], variables)
    }

    /// Returns the server that all tests of this process share. It flushes nothing, since it is not killed.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn shared() -> Result<&'static MariaDb, &'static Absent> {
        static SHARED: LazyLock<Result<(MariaDb, Child), Absent>> = LazyLock::new(|| {
            let folder = TempDir::new()?;
            let server = MariaDb::make(folder.path(), &["--innodb-flush-log-at-trx-commit=0"], &[])?;
            // A static is never dropped. This shell ends the server when its input closes, which is when this process ends.
            let mut undertaker = Command::new("sh");
            undertaker.args(["-c", "cat; kill -KILL $1; sleep 1; rm -rf \"$2\"", "sh"]);
            undertaker.arg(server.process.child.id().to_string()).arg(folder.keep());
            Ok((server, undertaker.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?))
        });
        SHARED.as_ref().map(|(server, _)| server)
    }

    /// Creates a server with TLS. Its [`Credentials`], for `localhost` only, are written to its directory.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_encrypted(directory: &Path) -> Result<MariaDb, Absent> {
        Credentials::new(directory).authority.issue(directory, "server", &["localhost"], |_| {});
        let option = |name: &str, file: &str| format!("--{name}={}", directory.join(file).display());
        let options = [option("ssl-cert", "server.pem"), option("ssl-key", "server.key"), option("ssl-ca", "ca.pem")];
        MariaDb::make(directory, &options.each_ref().map(String::as_str), &[])
    }

    fn make(directory: &Path, options: &[&str], variables: &[(&str, &str)]) -> Result<MariaDb, Absent> {
        let (folder, address) = (directory.join("mariadb"), free_port()?);
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("mariadb-install-db");
        command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        command.arg(format!("--datadir={}", folder.display())).args(as_root());
        // A starting server removes all temporary tables in the folder, also those of another server.
        command.env("TMPDIR", directory);
        let made = match output(&mut command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Absent::NotInstalled("mariadb-install-db"));
            }
            made => made?,
        };
        if !made.status.success() {
            return Err(Absent::Silent("mariadb-install-db", String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        fs::create_dir_all(folder.join("test"))?;
        let (options, variables) =
            (options.iter().map(ToString::to_string).collect::<Vec<_>>(), super::owned(variables));
        let process = begin(&folder, address, &options, &variables)?;
        Ok(MariaDb { process, folder, options, variables, address })
    }

    /// Returns a value that prints the end of its log if the test fails that has this value.
    pub fn logs_on_failure(&self) -> LogsOnFailure {
        LogsOnFailure::of(&self.folder)
    }

    /// Returns its URL: `mysql://root@127.0.0.1:12345/test`.
    pub fn url(&self) -> String {
        format!("mysql://root@{}/test", self.address)
    }

    /// Runs SQL in the database `test` with its command-line client; returns what that prints.
    ///
    /// # Errors
    ///
    /// The client is not installed, or fails.
    pub fn run(&self, sql: &str) -> Result<String, Absent> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--protocol=tcp", "-uroot", &format!("-P{}", self.address.port())]);
        let output = output(client.args(["-h127.0.0.1", "--batch", "--skip-column-names", "test", "-e", sql]))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(Absent::Silent("mariadb", String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`MariaDb::kill`], on the same files and at the same address.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = begin(&self.folder, self.address, &self.options, &self.variables)?;
        Ok(())
    }
}

fn begin(
    folder: &Path,
    address: SocketAddr,
    options: &[String],
    variables: &[(String, String)],
) -> Result<Process, Absent> {
    let mut command = Command::new("mariadbd");
    command.envs(variables.iter().cloned());
    command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=500"]);
    command.args(options);
    command.args([format!("--datadir={}", folder.display()), format!("--port={}", address.port())]);
    command.args([format!("--socket={}/socket", folder.display()), format!("--pid-file={}/pid", folder.display())]);
    command.args(as_root()).env("TMPDIR", folder.parent().unwrap_or(folder));
    let mut process = Process::start("mariadbd", command, folder)?;
    let log = process.log.clone();
    // It listens before it is ready.
    process.until(|| fs::read_to_string(&log).is_ok_and(|reply| reply.contains("ready for connections")))?;
    Ok(process)
}

/// Returns the option without which it refuses to run as root.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}
