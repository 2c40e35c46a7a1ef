//! Redis.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::{Absent, Process, answers_ping, free_port};
use crate::bounded::output;

/// A Redis of one node.
pub struct Redis {
    process: Process,
    folder: PathBuf,
    options: Vec<String>,
    variables: Vec<(String, String)>,
    /// Its address.
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

    /// Does the same in this very folder, with options as on its command line.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with(folder: &Path, options: &[&str]) -> Result<Redis, Absent> {
        Redis::start_under(folder, options, &[])
    }

    /// Does the same for a node of a cluster that has no other nodes and no slots yet. Also returns the port of its bus.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_cluster_node(folder: &Path) -> Result<(Redis, u16), Absent> {
        // Without the second option a node also takes the port 10,000 above its own, which an outgoing connection may have.
        let bus = free_port()?.port();
        // Nodes of a machine that stands still must not take each other for dead.
        let options =
            ["--cluster-enabled", "yes", "--cluster-port", &bus.to_string(), "--cluster-node-timeout", "120000"];
        Ok((Redis::start_with(folder, &options)?, bus))
    }

    /// Does the same as [`Redis::start_with`], with more variables in its environment.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_under(folder: &Path, options: &[&str], variables: &[(&str, &str)]) -> Result<Redis, Absent> {
        let address = free_port()?;
        fs::create_dir_all(folder)?;
        let (folder, options) = (folder.to_owned(), options.iter().map(ToString::to_string).collect::<Vec<_>>());
        let variables = super::owned(variables);
        let process = begin(&folder, &options, &variables, address)?;
        Ok(Redis { process, folder, options, variables, address })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Returns its URL: `redis://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Kills it with `SIGKILL`.
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
        self.process = begin(&self.folder, &self.options, &self.variables, self.address)?;
        self.process.until(|| answers_ping(self.address))
    }

    /// Runs `redis-cli` with these arguments and returns its output.
    ///
    /// # Panics
    ///
    /// It is not installed, or fails.
    pub fn cli(&self, words: &[&str]) -> String {
        cli(self.address, words)
    }

    /// Stops it, until [`Redis::go_on`].
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }
}

fn cli(address: SocketAddr, words: &[&str]) -> String {
    let reply = output(Command::new("redis-cli").args(["-p", &address.port().to_string()]).args(words));
    let reply = reply.unwrap_or_else(|error| panic!("redis-cli: {error}; run scripts/setup"));
    assert!(reply.status.success(), "redis-cli {words:?}: {}", String::from_utf8_lossy(&reply.stderr));
    String::from_utf8_lossy(&reply.stdout).trim().to_owned()
}

/// A cluster of three primaries.
pub struct RedisCluster {
    /// Its nodes.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts one whose files are in this directory, and waits until all its nodes agree.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<RedisCluster, Absent> {
        let mut nodes = Vec::new();
        let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
        for number in 0..3 {
            let (node, bus) = Redis::start_cluster_node(&directory.join(format!("node-{number}")))?;
            create.push(format!("{}@{bus}", node.address));
            nodes.push(node);
        }
        create.extend(["--cluster-replicas", "0", "--cluster-yes"].map(str::to_owned));
        cli(nodes[0].address, &create.iter().map(String::as_str).collect::<Vec<_>>());
        for node in &mut nodes {
            let address = node.address;
            node.process.until(|| cli(address, &["CLUSTER", "INFO"]).contains("cluster_state:ok"))?;
        }
        Ok(RedisCluster { nodes })
    }

    /// Returns the part of the URL after `redis:` that lists all nodes.
    pub fn place(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.address.to_string()).collect();
        format!("//{}/?cluster", nodes.join(","))
    }
}

/// A Sentinel that watches over one primary, which it calls `main`. It replaces the primary only after [`Sentinel::hurry`].
pub struct Sentinel {
    process: Process,
    /// Its address.
    pub address: SocketAddr,
}

impl Sentinel {
    /// Starts one whose files are in this directory. `lines` are further lines of its configuration.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path, primary: SocketAddr, lines: &[&str]) -> Result<Sentinel, Absent> {
        let (address, folder) = (free_port()?, directory.join("sentinel"));
        fs::create_dir_all(&folder)?;
        let file = folder.join("sentinel.conf");
        let (ip, port) = (primary.ip(), primary.port());
        let mut text = format!("port {}\nbind 127.0.0.1\nsentinel monitor main {ip} {port} 1\n", address.port());
        // A primary of a machine that stands still must not be replaced.
        text.push_str("sentinel down-after-milliseconds main 3600000\nsentinel failover-timeout main 5000\n");
        text.push_str(&lines.join("\n"));
        fs::write(&file, text)?;
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel");
        let mut process = Process::start("redis-server", command, &folder)?;
        process.until(|| answers_ping(address))?;
        Ok(Sentinel { process, address })
    }

    /// Lets it replace a primary that is silent for two seconds, by a replica that has lost its primary not much longer ago than
    /// 20 s.
    ///
    /// # Panics
    ///
    /// It does not answer.
    pub fn hurry(&self) {
        assert_eq!(self.cli(&["SENTINEL", "SET", "main", "down-after-milliseconds", "2000"]), "OK");
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Runs `redis-cli` with these arguments and returns its output.
    ///
    /// # Panics
    ///
    /// It is not installed, or fails.
    pub fn cli(&self, words: &[&str]) -> String {
        cli(self.address, words)
    }
}

fn begin(
    folder: &Path,
    options: &[String],
    variables: &[(String, String)],
    address: SocketAddr,
) -> Result<Process, Absent> {
    let mut command = Command::new("redis-server");
    command.envs(variables.iter().cloned());
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string()]);
    command.arg("--dir").arg(folder).args(options);
    let mut process = Process::start("redis-server", command, folder)?;
    process.until(|| TcpStream::connect(address).is_ok())?;
    Ok(process)
}
