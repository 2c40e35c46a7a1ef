//! etcd.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_cli::harness::etcd::{self, PeerAddress};
use rustix::process::Signal;

use super::{Absent, Process, free_port, is_healthy};
use crate::bounded::output;

/// A member of an etcd cluster, or an etcd of one node.
pub struct Etcd {
    process: Process,
    folder: PathBuf,
    arguments: Vec<String>,
    /// Its address: `http://127.0.0.1:12345`.
    pub endpoint: String,
    /// The same as an address.
    pub address: SocketAddr,
}

impl Etcd {
    /// Starts one of one node whose files are in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<Etcd, Absent> {
        let (clients, peers) = (free_port()?, free_port()?);
        let mut etcd = Etcd::begin(directory, "one", clients, peers, &format!("one=http://{peers}"))?;
        etcd.until_healthy()?;
        Ok(etcd)
    }

    /// The same with TLS for clients, which may need a certificate. `ca.pem`, `server.pem` and `server.key` are in the directory.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_encrypted(directory: &Path, needs_certificate: bool) -> Result<Etcd, Absent> {
        let (clients, peers, plain) = (free_port()?, free_port()?, free_port()?);
        let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
        let (endpoint, metrics) = (format!("https://{clients}"), format!("http://{plain}"));
        let tls = [
            ["--listen-client-urls", &endpoint],
            ["--advertise-client-urls", &endpoint],
            ["--cert-file", &file("server.pem")],
            ["--key-file", &file("server.key")],
            ["--listen-metrics-urls", &metrics],
        ];
        let mut arguments: Vec<_> = tls.concat().into_iter().map(str::to_owned).collect();
        if needs_certificate {
            arguments.extend(["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), file("ca.pem")]);
        }
        let mut etcd =
            Etcd::begin_with(directory, "one", clients, peers, &format!("one=http://{peers}"), &arguments)?;
        etcd.process.until(|| is_healthy(plain))?;
        Ok(Etcd { endpoint, ..etcd })
    }

    fn begin(
        directory: &Path,
        name: &str,
        address: SocketAddr,
        peers: SocketAddr,
        cluster: &str,
    ) -> Result<Etcd, Absent> {
        Etcd::begin_with(directory, name, address, peers, cluster, &etcd::client_options(address))
    }

    fn begin_with(
        directory: &Path,
        name: &str,
        address: SocketAddr,
        peers: SocketAddr,
        cluster: &str,
        clients: &[String],
    ) -> Result<Etcd, Absent> {
        let folder = directory.join(format!("etcd-{name}"));
        fs::create_dir_all(&folder)?;
        let (endpoint, peer) = (format!("http://{address}"), PeerAddress { listens: peers, reached: peers });
        let mut arguments = etcd::member_options(name, &folder.join("data"), peer, cluster);
        arguments.extend_from_slice(clients);
        let process = spawn(&folder, &arguments)?;
        Ok(Etcd { process, folder, arguments, endpoint, address })
    }

    fn until_healthy(&mut self) -> Result<(), Absent> {
        let address = self.address;
        self.process.until(|| is_healthy(address))
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`Etcd::kill`], on the same files and at the same address, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = spawn(&self.folder, &self.arguments)?;
        self.until_healthy()
    }

    /// Starts it again at the same address, without its data.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart_empty(&mut self) -> Result<(), Absent> {
        self.process.end();
        fs::remove_dir_all(self.folder.join("data"))?;
        self.restart()
    }

    /// Stops it, until [`Etcd::go_on`].
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Runs `etcdctl` with these arguments and returns its output.
    ///
    /// # Panics
    ///
    /// It is not installed, or fails.
    pub fn ctl(&self, words: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint]).args(words);
        let reply = output(&mut command).unwrap_or_else(|error| panic!("etcdctl: {error}; run scripts/setup"));
        assert!(reply.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&reply.stderr));
        String::from_utf8_lossy(&reply.stdout).trim().to_owned()
    }

    /// Whether it is the leader of its cluster.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn is_leader(&self) -> io::Result<bool> {
        Ok(etcd::leadership(self.address)?.is_leader)
    }
}

fn spawn(folder: &Path, arguments: &[String]) -> Result<Process, Absent> {
    let mut command = Command::new("etcd");
    command.args(arguments);
    Process::start("etcd", command, folder)
}

/// A cluster of three members.
pub struct EtcdCluster {
    /// Its members.
    pub members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts one of a single member.
    ///
    /// # Errors
    ///
    /// As [`EtcdCluster::start`].
    pub fn start_one(directory: &Path) -> Result<EtcdCluster, Absent> {
        Ok(EtcdCluster { members: vec![Etcd::start(directory)?] })
    }

    /// Starts one whose files are in this directory, and waits until all its members answer.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<EtcdCluster, Absent> {
        let mut addresses = Vec::new();
        for name in ["one", "two", "three"] {
            addresses.push((name, free_port()?, free_port()?));
        }
        let cluster: Vec<_> = addresses.iter().map(|(name, _, peers)| format!("{name}=http://{peers}")).collect();
        let begin = |(name, clients, peers): &(&str, SocketAddr, SocketAddr)| {
            Etcd::begin(directory, name, *clients, *peers, &cluster.join(","))
        };
        let mut members = addresses.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
        members.iter_mut().try_for_each(Etcd::until_healthy)?;
        Ok(EtcdCluster { members })
    }
}
