//! A PostgreSQL for the tests of commands.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A PostgreSQL that ends with this value. It refuses to run as root, so it has another user then.
pub(crate) struct Postgres {
    child: Child,
    pub(crate) url: String,
    _directory: tempfile::TempDir,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let directory = tempfile::tempdir().expect("a directory");
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            let handed = Command::new("chown").arg("postgres").arg(directory.path()).status().expect("chown");
            assert!(handed.success(), "there is no user postgres: scripts/setup");
        }
        let tool = |name: &str| {
            let program = programs().join(name);
            let mut command = Command::new(if is_root { "setpriv".into() } else { program.clone() });
            if is_root {
                command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]).arg(program);
            }
            command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made =
            tool("initdb").args(["-U", "postgres", "-A", "trust", "-N", "-D", "data"]).status().expect("initdb");
        assert!(made.success(), "initdb fails");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let mut command = tool("postgres");
        command.args(["-D", "data", "-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-F"]);
        let postgres = Postgres {
            child: command.spawn().expect("postgres"),
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            _directory: directory,
        };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() || postgres.try_psql("SELECT 1").is_none() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        postgres
    }

    pub(crate) fn try_psql(&self, sql: &str) -> Option<String> {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", sql]).arg(&self.url);
        let output = command.output().expect("psql");
        output.status.success().then(|| String::from_utf8(output.stdout).expect("text").trim().to_owned())
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|| panic!("it fails: {sql}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the package keeps them: the newest version.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is not installed: scripts/setup");
    let newest = versions.map(|entry| entry.expect("it can be read").path()).max();
    newest.expect("PostgreSQL is not installed: scripts/setup").join("bin")
}
