//! PgBouncer, the pooler.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Absent, Process, free_port};

/// A pooler in transaction mode in front of a PostgreSQL.
pub struct PgBouncer {
    _process: Process,
    /// Its address.
    pub address: SocketAddr,
}

impl PgBouncer {
    /// Starts one with its files in this directory, and waits until it listens. `pool` is the maximum number of server
    /// connections per database.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to listen.
    pub fn start(directory: &Path, server: SocketAddr, pool: u32) -> Result<PgBouncer, Absent> {
        let (folder, address) = (directory.join("pgbouncer"), free_port()?);
        fs::create_dir_all(&folder)?;
        let settings = folder.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {pool}\n\
             max_client_conn = 500\nignore_startup_parameters = extra_float_digits\n",
            server.port(),
            address.port(),
        );
        // `auth_type = any` ignores the client's user, so the server's user is set here.
        let text = text.replace("port=", "user=postgres port=");
        fs::write(&settings, text)?;
        let Some(program) = program() else { return Err(Absent::NotInstalled("pgbouncer")) };
        let mut command = if rustix::process::geteuid().is_root() {
            for path in [directory, folder.as_path(), settings.as_path()] {
                Command::new("chmod").arg("a+rx").arg(path).status()?;
            }
            // PgBouncer refuses to run as root.
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.arg(&settings);
        let mut process = Process::start("pgbouncer", command, &folder)?;
        process.until(|| TcpStream::connect(address).is_ok())?;
        Ok(PgBouncer { _process: process, address })
    }

    /// Returns its URL: `postgres://postgres@127.0.0.1:12345/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }
}

/// Finds the program. Debian installs it in /usr/sbin, which is not on every user's PATH.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.exists())
}
