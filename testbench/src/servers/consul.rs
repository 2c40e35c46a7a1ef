//! Consul.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{ANSWER_TIMEOUT, Absent, PATIENCE, Process, free_port};
use crate::bounded::output;

/// Where `scripts/setup` puts it.
const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/consul/usr/bin/consul");

/// Settings for tests: short TTLs and elections, and connections for the clients of many tests at a time.
const SETTINGS: &str =
    "session_ttl_min = \"100ms\" performance { raft_multiplier = 1 } limits { http_max_conns_per_client = 2000 }";

/// The accessor of the token that stands for clients without one. Consul creates it last.
const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";

/// A server of Consul: the only one, or one of three.
pub struct Consul {
    process: Process,
    folder: PathBuf,
    arguments: Vec<String>,
    /// Where it answers HTTP.
    pub address: SocketAddr,
}

impl Consul {
    /// Starts one of one node whose files are in this directory, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<Consul, Absent> {
        Consul::start_with(directory, SETTINGS)
    }

    /// The same with other settings, such as `acl { … }`.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with(directory: &Path, settings: &str) -> Result<Consul, Absent> {
        let ports = Ports::free()?;
        let mut consul = Consul::begin(directory, "one", &ports, &["-bootstrap-expect=1".to_owned()], settings)?;
        consul.until_led()?;
        Ok(consul)
    }

    /// Starts one that checks ACL tokens, and waits until it knows both `master` and clients without a token.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start_with_acls(directory: &Path, default_policy: &str, master: &str) -> Result<Consul, Absent> {
        let acl = format!(
            "acl {{ enabled = true default_policy = \"{default_policy}\" tokens {{ master = \"{master}\" }} }} {SETTINGS}"
        );
        let mut consul = Consul::start_with(directory, &acl)?;
        let (address, anonymous) = (consul.address, format!("GET /v1/acl/token/{ANONYMOUS}?token={master}"));
        consul.process.until(|| request(address, &anonymous).is_some_and(|reply| reply.contains(" 200 ")))?;
        Ok(consul)
    }

    fn begin(
        directory: &Path,
        name: &str,
        ports: &Ports,
        cluster: &[String],
        settings: &str,
    ) -> Result<Consul, Absent> {
        let folder = directory.join(format!("consul-{name}"));
        fs::create_dir_all(&folder)?;
        let port = |address: SocketAddr| address.port().to_string();
        let data = folder.join("data").to_string_lossy().into_owned();
        let fixed =
            ["agent", "-server", "-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=warn", "-disable-host-node-id"];
        let off = ["-dns-port=-1", "-grpc-port=-1", "-serf-wan-port=-1"];
        let mut arguments: Vec<_> = [&fixed[..], &off].concat().into_iter().map(str::to_owned).collect();
        arguments.extend([
            format!("-node={name}"),
            format!("-data-dir={data}"),
            format!("-http-port={}", port(ports.http)),
            format!("-serf-lan-port={}", port(ports.serf)),
            format!("-server-port={}", port(ports.server)),
            format!("-hcl={settings}"),
        ]);
        arguments.extend_from_slice(cluster);
        let process = spawn(&folder, &arguments)?;
        Ok(Consul { process, folder, arguments, address: ports.http })
    }

    fn until_led(&mut self) -> Result<(), Absent> {
        let address = self.address;
        // A leader is known before it can be asked for anything.
        let is_led = || request(address, "GET /v1/kv/none?consistent").is_some_and(|reply| !reply.contains(" 500 "));
        self.process.until(is_led)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&mut self) {
        self.process.end();
    }

    /// Starts it again after [`Consul::kill`], on the same files and at the same address, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    pub fn restart(&mut self) -> Result<(), Absent> {
        self.process.end();
        self.process = spawn(&self.folder, &self.arguments)?;
        self.until_led()
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

    /// Stops it, until [`Consul::go_on`].
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it continue.
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Runs `consul` with these arguments and returns its output.
    ///
    /// # Panics
    ///
    /// It is not installed, or fails.
    pub fn ctl(&self, words: &[&str]) -> String {
        let mut command = Command::new(program());
        command.env("CONSUL_HTTP_ADDR", self.address.to_string()).args(words);
        let reply = output(&mut command).unwrap_or_else(|error| panic!("consul: {error}; run scripts/setup"));
        assert!(reply.status.success(), "consul {words:?}: {}", String::from_utf8_lossy(&reply.stderr));
        String::from_utf8_lossy(&reply.stdout).trim().to_owned()
    }

    /// Sends a request without a body, such as `GET /v1/status/leader`, and returns the answer with its headers.
    ///
    /// # Panics
    ///
    /// There is no answer.
    pub fn http(&self, request_line: &str) -> String {
        let answer = request_within(self.address, request_line, PATIENCE);
        answer.unwrap_or_else(|| panic!("no answer to {request_line}"))
    }
}

fn request(address: SocketAddr, line: &str) -> Option<String> {
    request_within(address, line, ANSWER_TIMEOUT)
}

fn request_within(address: SocketAddr, line: &str, timeout: Duration) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(format!("{line} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn program() -> &'static str {
    if Path::new(UNPACKED).exists() { UNPACKED } else { "consul" }
}

fn spawn(folder: &Path, arguments: &[String]) -> Result<Process, Absent> {
    let mut command = Command::new(program());
    command.args(arguments);
    Process::start("consul", command, folder)
}

/// The ports of a server. Serf needs the UDP port, too.
struct Ports {
    http: SocketAddr,
    serf: SocketAddr,
    server: SocketAddr,
}

impl Ports {
    fn free() -> Result<Ports, Absent> {
        Ok(Ports { http: free_port()?, serf: free_port()?, server: free_port()? })
    }
}

/// A cluster of three servers, or one.
pub struct ConsulCluster {
    /// Its servers.
    pub members: Vec<Consul>,
    servers: Vec<SocketAddr>,
}

impl ConsulCluster {
    /// Starts one whose files are in this directory, and waits until all its servers answer.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    pub fn start(directory: &Path) -> Result<ConsulCluster, Absent> {
        let ports = (0..3).map(|_| Ports::free()).collect::<Result<Vec<_>, _>>()?;
        let mut cluster = vec!["-bootstrap-expect=3".to_owned(), "-retry-interval=1s".to_owned()];
        cluster.extend(ports.iter().map(|ports| format!("-retry-join={}", ports.serf)));
        let begin = |(name, ports): (&str, &Ports)| Consul::begin(directory, name, ports, &cluster, SETTINGS);
        let mut members =
            ["one", "two", "three"].into_iter().zip(&ports).map(begin).collect::<Result<Vec<_>, _>>()?;
        members.iter_mut().try_for_each(Consul::until_led)?;
        Ok(ConsulCluster { members, servers: ports.iter().map(|ports| ports.server).collect() })
    }

    /// Starts a cluster of one server.
    ///
    /// # Errors
    ///
    /// As [`ConsulCluster::start`].
    pub fn start_one(directory: &Path) -> Result<ConsulCluster, Absent> {
        let ports = Ports::free()?;
        let mut member = Consul::begin(directory, "one", &ports, &["-bootstrap-expect=1".to_owned()], SETTINGS)?;
        member.until_led()?;
        Ok(ConsulCluster { members: vec![member], servers: vec![ports.server] })
    }

    /// Returns the index of the server that this one takes for the leader.
    pub fn leader_by(&self, member: usize) -> Option<usize> {
        let answer = request(self.members[member].address, "GET /v1/status/leader")?;
        self.servers.iter().position(|server| answer.contains(&format!("\"{server}\"")))
    }
}
