//! A cluster of the Palisade service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_cli::harness::service::leadership;
use rustix::process::Signal;

use super::{Absent, Process, free_port};

/// A cluster of nodes, each a process of the test bench's `serve`.
pub struct ServiceCluster {
    nodes: Vec<Node>,
}

struct Node {
    program: PathBuf,
    directory: PathBuf,
    variables: Vec<(String, String)>,
    address: SocketAddr,
    http: SocketAddr,
    /// Where it listens for the other nodes.
    peer: SocketAddr,
    process: Option<Process>,
}

impl Node {
    fn start(&mut self) -> Result<(), Absent> {
        let mut command = Command::new(&self.program);
        command.arg(self.directory.join("service")).arg(self.address.to_string());
        command.envs(self.variables.iter().cloned()).env("SERVE_HTTP", self.http.to_string());
        self.process = Some(Process::start("serve", command, &self.directory)?);
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("serve.log")).unwrap_or_default()
    }

    /// Whether it leads. A node with users or TLS answers no stranger, and is asked through its log.
    fn leads(&self) -> bool {
        let is_guarded = self.variables.iter().any(|(name, _)| name == "SERVE_USERS" || name == "SERVE_TLS");
        if !is_guarded {
            return leadership(self.address).is_ok_and(|leadership| leadership.is_leader);
        }
        let log = self.log();
        let last = log.lines().rfind(|line| line.contains("this node is the leader"));
        last.is_some_and(|line| !line.contains("no more"))
    }
}

impl ServiceCluster {
    /// Starts a cluster whose files are in this directory, and waits until a node leads. With these variables in the
    /// environment of each node.
    ///
    /// # Errors
    ///
    /// A node cannot be started, or none leads.
    pub fn start(
        program: impl Into<PathBuf>,
        directory: &Path,
        size: usize,
        variables: &[(&str, &str)],
    ) -> Result<ServiceCluster, Absent> {
        ServiceCluster::start_through(program, directory, size, variables, |peer| peer)
    }

    /// Starts a cluster whose nodes reach each other at the addresses that `through` returns for those they listen on.
    ///
    /// # Errors
    ///
    /// A node cannot be started, or none leads.
    pub fn start_through(
        program: impl Into<PathBuf>,
        directory: &Path,
        size: usize,
        variables: &[(&str, &str)],
        through: impl FnMut(SocketAddr) -> SocketAddr,
    ) -> Result<ServiceCluster, Absent> {
        let program = program.into();
        let name = |at: usize| format!("node{}", at + 1);
        let peers = (0..size).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
        let addresses = peers.iter().copied().map(through).enumerate();
        let founders: Vec<_> = addresses.map(|(at, peer)| format!("{}={peer}", name(at))).collect();
        let mut nodes = Vec::new();
        for (at, peer) in peers.into_iter().enumerate() {
            let mut variables = super::owned(variables);
            variables.push(("SERVE_NODE".to_owned(), name(at)));
            variables.push(("SERVE_CLUSTER".to_owned(), founders.join(";")));
            variables.push(("SERVE_PEERS".to_owned(), peer.to_string()));
            let directory = directory.join(name(at));
            std::fs::create_dir_all(&directory)?;
            let (program, address, http) = (program.clone(), free_port()?, free_port()?);
            let mut node = Node { program, directory, variables, address, http, peer, process: None };
            node.start()?;
            nodes.push(node);
        }
        let mut cluster = ServiceCluster { nodes };
        cluster.until_led()?;
        Ok(cluster)
    }

    /// Waits until a node leads.
    ///
    /// # Errors
    ///
    /// None does in time.
    pub fn until_led(&mut self) -> Result<(), Absent> {
        let Some(at) = self.nodes.iter().position(|node| node.process.is_some()) else { return Ok(()) };
        let Some(mut process) = self.nodes[at].process.take() else { return Ok(()) };
        let is_led = || self.nodes.iter().any(Node::leads);
        let waited = process.until(is_led);
        self.nodes[at].process = Some(process);
        waited
    }

    /// Returns the URL with all nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address.to_string()).collect();
        format!("palisade://{}", addresses.join(","))
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the address of a node.
    pub fn address(&self, at: usize) -> SocketAddr {
        self.nodes[at].address
    }

    /// Returns the address where a node offers HTTP.
    pub fn http(&self, at: usize) -> SocketAddr {
        self.nodes[at].http
    }

    /// Returns the address where a node listens for the others.
    pub fn peer(&self, at: usize) -> SocketAddr {
        self.nodes[at].peer
    }

    /// Returns the process id of a node that runs.
    pub fn pid(&self, at: usize) -> Option<u32> {
        self.nodes[at].process.as_ref().map(|process| process.child.id())
    }

    /// Returns the node that leads.
    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.process.is_some() && node.leads())
    }

    /// Returns the log of a node since its last start.
    pub fn log(&self, at: usize) -> String {
        self.nodes[at].log()
    }

    /// Returns the directory of a node's files.
    pub fn directory(&self, at: usize) -> PathBuf {
        self.nodes[at].directory.join("service")
    }

    /// Kills a node with `SIGKILL`.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.nodes[at].process.take() {
            process.end();
        }
    }

    /// Stops a node in order, with `SIGTERM`.
    pub fn terminate(&mut self, at: usize) {
        if let Some(mut process) = self.nodes[at].process.take() {
            process.signal(Signal::TERM);
            // It ends, or is killed with the value.
            let _ = process.child.wait();
            process.end();
        }
    }

    /// Returns whether the process of a node has ended by itself.
    ///
    /// # Panics
    ///
    /// The system does not say.
    pub fn has_ended(&mut self, at: usize) -> bool {
        let process = self.nodes[at].process.as_mut();
        process.is_some_and(|process| process.child.try_wait().expect("a child process").is_some())
    }

    /// Starts a node again.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn restart(&mut self, at: usize) -> Result<(), Absent> {
        self.kill(at);
        self.nodes[at].start()
    }

    /// Sets a variable in the environment of a node, from its next start on; without a value, it is removed.
    pub fn set_variable(&mut self, at: usize, name: &str, value: Option<&str>) {
        let variables = &mut self.nodes[at].variables;
        variables.retain(|(known, _)| known != name);
        variables.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Stops a node, until [`ServiceCluster::go_on`].
    pub fn stop(&self, at: usize) {
        if let Some(process) = &self.nodes[at].process {
            process.signal(Signal::STOP);
        }
    }

    /// Lets a node continue.
    pub fn go_on(&self, at: usize) {
        if let Some(process) = &self.nodes[at].process {
            process.signal(Signal::CONT);
        }
    }
}
