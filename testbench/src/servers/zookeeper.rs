//! ZooKeeper, as Debian packages it: a jar, and a Java that runs it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_cli::harness::zookeeper;
use rustix::process::Signal;

use super::{Absent, Process, free_port, owned};

/// The settings of tests: sessions that last from a fifth of a second to an hour, a minute for a server to join the others, and five
/// seconds until a silent leader is given up. It flushes nothing: the system keeps the files of a process that is killed.
const QUICK: &str = "tickTime=100\ninitLimit=600\nsyncLimit=50\nmaxSessionTimeout=7200000\nforceSync=no\n";

/// A ZooKeeper server. With its own settings, what it acknowledges is on its disk.
pub struct ZooKeeper {
    process: Process,
    folder: PathBuf,
    is_quick: bool,
    variables: Vec<(String, String)>,
    /// Its address.
    pub address: SocketAddr,
}

impl ZooKeeper {
    /// Starts one node whose files are in this directory, with ZooKeeper's own settings, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It or Java is not installed, or it does not begin to answer.
    pub fn start(directory: &Path) -> Result<ZooKeeper, Absent> {
        ZooKeeper::start_with(directory, "tickTime=2000\n")
    }

    /// The same, for sessions that may be short and long.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_quick(directory: &Path) -> Result<ZooKeeper, Absent> {
        ZooKeeper::start_with(directory, QUICK)
    }

    /// The same, with more variables in its environment.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_under(directory: &Path, variables: &[(&str, &str)]) -> Result<ZooKeeper, Absent> {
        ZooKeeper::make(directory, QUICK, variables)
    }

    /// The same, with these lines of settings.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_with(directory: &Path, settings: &str) -> Result<ZooKeeper, Absent> {
        ZooKeeper::make(directory, settings, &[])
    }

    fn make(directory: &Path, settings: &str, variables: &[(&str, &str)]) -> Result<ZooKeeper, Absent> {
        let mut tries = 0;
        loop {
            let mut server = ZooKeeper::begin(directory.join("zookeeper"), free_port()?, settings, variables)?;
            match server.until_ready() {
                Ok(()) => return Ok(server),
                // Another process may have taken the port meanwhile.
                Err(_) if tries < 2 => tries += 1,
                Err(absent) => return Err(absent),
            }
        }
    }

    fn begin(
        folder: PathBuf,
        address: SocketAddr,
        settings: &str,
        variables: &[(&str, &str)],
    ) -> Result<ZooKeeper, Absent> {
        if !Path::new(zookeeper::JAR).exists() {
            return Err(Absent::NotInstalled("zookeeper"));
        }
        fs::create_dir_all(&folder)?;
        let text = format!("{settings}{}", zookeeper::settings(&folder, address));
        fs::write(folder.join("zoo.cfg"), text)?;
        let is_quick = settings.starts_with(QUICK);
        let variables = owned(variables);
        let process = java(&folder, is_quick, &variables)?;
        Ok(ZooKeeper { process, folder, is_quick, variables, address })
    }

    fn until_ready(&mut self) -> Result<(), Absent> {
        let address = self.address;
        // A node without a leader answers `ruok`, but not `srvr`.
        self.process.until(|| zookeeper::ask(address, "srvr").is_ok_and(|answer| answer.contains("Mode: ")))
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns the answer to a command of four letters.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn ask(&self, command: &str) -> io::Result<String> {
        zookeeper::ask(self.address, command)
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`ZooKeeper::kill`], on the same files and at the same address.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = java(&self.folder, self.is_quick, &self.variables)?;
        self.until_ready()
    }

    /// Copies its data into this directory, as a backup.
    ///
    /// # Errors
    ///
    /// It cannot be copied, or the server does not begin to answer again.
    pub fn save(&mut self, to: &Path) -> Result<(), Absent> {
        self.process.end();
        copy(&self.folder.join("version-2"), &to.join("version-2"))?;
        self.restart()
    }

    /// Replaces its data by a copy that [`ZooKeeper::save`] made.
    ///
    /// # Errors
    ///
    /// It cannot be copied, or the server does not begin to answer again.
    pub fn restore(&mut self, from: &Path) -> Result<(), Absent> {
        self.process.end();
        fs::remove_dir_all(self.folder.join("version-2"))?;
        copy(&from.join("version-2"), &self.folder.join("version-2"))?;
        self.restart()
    }

    /// Stops it, until [`ZooKeeper::go_on`].
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }
}

/// An ensemble of three servers.
pub struct ZooKeeperEnsemble {
    /// The servers.
    pub servers: Vec<ZooKeeper>,
}

impl ZooKeeperEnsemble {
    /// Starts one whose files are in this directory, and waits until it has a leader.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start(directory: &Path) -> Result<ZooKeeperEnsemble, Absent> {
        ZooKeeperEnsemble::start_with(directory, QUICK)
    }

    /// The same, with the settings that ZooKeeper's documentation starts with.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_usual(directory: &Path) -> Result<ZooKeeperEnsemble, Absent> {
        ZooKeeperEnsemble::start_with(directory, "tickTime=2000\ninitLimit=10\nsyncLimit=5\n")
    }

    fn start_with(directory: &Path, settings: &str) -> Result<ZooKeeperEnsemble, Absent> {
        let mut settings = settings.to_owned();
        for number in 1..=3 {
            let (quorum, election) = (free_port()?.port(), free_port()?.port());
            settings += &format!("server.{number}=127.0.0.1:{quorum}:{election}\n");
        }
        let mut servers = Vec::new();
        for number in 1..=3 {
            let folder = directory.join(format!("zookeeper-{number}"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("myid"), number.to_string())?;
            servers.push(ZooKeeper::begin(folder, free_port()?, &settings, &[])?);
        }
        for server in &mut servers {
            server.until_ready()?;
        }
        Ok(ZooKeeperEnsemble { servers })
    }

    /// Returns the index of the leader.
    pub fn leader(&self) -> Option<usize> {
        let leads = |server: &ZooKeeper| zookeeper::leadership(server.address).is_ok_and(|answer| answer.is_leader);
        self.servers.iter().position(leads)
    }

    /// Returns all addresses: `127.0.0.1:1,127.0.0.1:2,127.0.0.1:3`.
    pub fn addresses(&self) -> String {
        self.servers.iter().map(|server| server.address.to_string()).collect::<Vec<_>>().join(",")
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn java(folder: &Path, is_quick: bool, variables: &[(String, String)]) -> Result<Process, Absent> {
    // Unused containers are removed after a second, not after a minute.
    let quick = is_quick.then_some("-Dznode.container.checkIntervalMs=1000");
    let options: Vec<_> = ["-Xmx1g"].into_iter().chain(quick).collect();
    let mut command = Command::new("java");
    command.envs(variables.iter().cloned()).args(zookeeper::java_arguments(&options, &folder.join("zoo.cfg")));
    Process::start("java", command, folder)
}
