//! Redis.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Absent, Process, answers_ping, free_port};

/// A Redis of one node.
pub struct Redis {
    process: Process,
    folder: PathBuf,
    options: Vec<String>,
    /// Where clients find it.
    pub address: SocketAddr,
}

impl Redis {
    /// Starts one whose files are in this directory, and waits until it answers. `fsync` is its `appendfsync`, or `no`
    /// for one that keeps nothing.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path, fsync: &str) -> Result<Redis, Absent> {
        match fsync {
            "no" => Redis::start_with(&directory.join("redis-no"), &[]),
            fsync => {
                let options = ["--appendonly", "yes", "--appendfsync", fsync];
                Redis::start_with(&directory.join(format!("redis-{fsync}")), &options)
            }
        }
    }

    /// The same in this very folder, with options as on its command line.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with(folder: &Path, options: &[&str]) -> Result<Redis, Absent> {
        let address = free_port()?;
        fs::create_dir_all(folder)?;
        let (folder, options) = (folder.to_owned(), options.iter().map(ToString::to_string).collect::<Vec<_>>());
        let process = begin(&folder, &options, address)?;
        Ok(Redis { process, folder, options, address })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// How clients call it: `redis://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Kills it, as a power cut would: it has no time for anything.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`Redis::kill`], on the same files and at the same address, and waits until it has read them.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = begin(&self.folder, &self.options, self.address)?;
        self.process.until(|| answers_ping(self.address))
    }
}

fn begin(folder: &Path, options: &[String], address: SocketAddr) -> Result<Process, Absent> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string()]);
    command.arg("--dir").arg(folder).args(options);
    let mut process = Process::start("redis-server", command, folder)?;
    process.until(|| TcpStream::connect(address).is_ok())?;
    Ok(process)
}
