//! The systems whose clusters an experiment can start.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::ValueEnum;
use palisade_cli::harness::etcd::PeerAddress;
use palisade_cli::harness::network::Network;
use palisade_cli::harness::wall_clock;
use palisade_cli::harness::{Leadership, etcd, free_port, service, zookeeper};
use serde::Serialize;

use super::fault::FaultKind;
use crate::outcome::Failure;
use crate::prove::{child, server_process};

/// ZooKeeper's settings about time: sessions may be as short as a fifth of a second, and a follower that the leader does not hear for 2 s
/// is dropped.
const ZOOKEEPER_TIMES: &str = "tickTime=100\ninitLimit=100\nsyncLimit=20\nmaxSessionTimeout=7200000\n";

/// The options of Java. The times in the log are needed to understand a run that fails.
const ZOOKEEPER_OPTIONS: [&str; 3] =
    ["-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true"];

/// A system that keeps locks in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum System {
    /// `palisade serve` of this program
    Palisade,
    /// The installed etcd
    Etcd,
    /// The installed ZooKeeper
    Zookeeper,
}

/// How to start a node, and where it serves clients.
pub(super) struct NodePlan {
    pub(super) address: SocketAddr,
    pub(super) program: Program,
}

/// A node's command line. It can be started several times.
pub(super) struct Program {
    make: Box<dyn Fn() -> io::Result<Command>>,
}

impl Program {
    fn new(make: impl Fn() -> io::Result<Command> + 'static) -> Program {
        Program { make: Box::new(make) }
    }

    pub(super) fn command(&self) -> io::Result<Command> {
        (self.make)()
    }
}

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Palisade => "Palisade",
            System::Etcd => "etcd",
            System::Zookeeper => "ZooKeeper",
        }
    }

    /// Fails if this build or this machine cannot run the system.
    pub(super) fn ensure_usable(self) -> Result<(), Failure> {
        match self {
            System::Palisade => Ok(()),
            System::Etcd if cfg!(not(feature = "etcd")) => {
                let message = "this palisade was built without etcd; build it with `cargo build --features etcd`";
                Err(Failure::Misuse(message.to_owned()))
            }
            System::Etcd => is_installed("etcd", "--version", "on Debian: apt-get install etcd-server"),
            System::Zookeeper => {
                let how = "on Debian: apt-get install zookeeper default-jre-headless";
                is_installed("java", "-version", how)?;
                match Path::new(zookeeper::JAR).exists() {
                    true => Ok(()),
                    false => Err(Failure::Unavailable(format!("{} is missing; {how}", zookeeper::JAR))),
                }
            }
        }
    }

    /// Returns why a kind of fault cannot be injected into a cluster of this many nodes.
    pub(super) fn refuses(self, kind: FaultKind, size: usize) -> Option<&'static str> {
        match kind {
            FaultKind::Ring if size < 5 => Some("three nodes in a ring all reach each other"),
            FaultKind::Clock if self == System::Etcd => {
                Some("faketime has no effect on programs in Go, which read the clock without the C library")
            }
            FaultKind::Clock if self == System::Zookeeper => {
                Some("several Java servers under faketime are too slow to elect a leader")
            }
            FaultKind::Clock if wall_clock::library().is_none() => {
                Some("faketime is not installed; on Debian: apt-get install faketime")
            }
            _ => None,
        }
    }

    /// Plans nodes that reach each other through the network, each in one of these folders.
    pub(super) fn plan(self, network: &mut Network, folders: &[&Path]) -> Result<Vec<NodePlan>, Failure> {
        let addresses = folders.iter().map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
        let programs = match self {
            System::Palisade => palisade(network, folders, &addresses)?,
            System::Etcd => etcd_members(network, folders, &addresses)?,
            System::Zookeeper => zookeeper_servers(network, folders, &addresses)?,
        };
        let plans = addresses.into_iter().zip(programs);
        Ok(plans.map(|(address, program)| NodePlan { address, program }).collect())
    }

    /// Returns the URL of a cluster whose nodes serve clients at these addresses.
    pub(super) fn url(self, addresses: &[SocketAddr]) -> String {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(",");
        match self {
            System::Palisade => format!("palisade://{addresses}"),
            System::Etcd => format!("etcd://{addresses}/palisade-proof"),
            System::Zookeeper => format!("zookeeper://{addresses}/palisade-proof"),
        }
    }

    /// Asks a node whether it leads.
    pub(super) fn leadership(self, address: SocketAddr) -> io::Result<Leadership> {
        match self {
            System::Palisade => service::leadership(address),
            System::Etcd => etcd::leadership(address),
            System::Zookeeper => zookeeper::leadership(address),
        }
    }
}

fn is_installed(program: &str, option: &str, how: &str) -> Result<(), Failure> {
    let mut command = Command::new(program);
    match command.arg(option).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Failure::Unavailable(format!("{program} is not installed; {how}"))),
    }
}

/// Returns the name of a node, from 0.
pub(super) fn node_name(node: usize) -> String {
    format!("node{}", node + 1)
}

fn palisade(network: &mut Network, folders: &[&Path], addresses: &[SocketAddr]) -> Result<Vec<Program>, Failure> {
    let peers = folders.iter().map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
    let proxies = peers.iter().map(|peer| network.add(*peer)).collect::<Result<Vec<_>, _>>()?;
    let nodes: Vec<_> = proxies.iter().enumerate().map(|(at, proxy)| format!("{}={proxy}", node_name(at))).collect();
    let nodes = nodes.join(",");
    let program = |(at, peer): (usize, &SocketAddr)| {
        let (folder, nodes, peer, address) = (folders[at].to_owned(), nodes.clone(), *peer, addresses[at]);
        Program::new(move || {
            let mut command = server_process::palisade(&folder)?;
            command.args(["--node", &node_name(at), "--cluster", &nodes, "--peers", &peer.to_string()]);
            command.args(["--http", "off", "--resp", &address.to_string()]);
            command.arg("--data-dir").arg(folder.join("data"));
            Ok(command)
        })
    };
    Ok(peers.iter().enumerate().map(program).collect())
}

fn etcd_members(network: &mut Network, folders: &[&Path], addresses: &[SocketAddr]) -> Result<Vec<Program>, Failure> {
    let mut peers = Vec::new();
    for _ in folders {
        let listens = free_port()?;
        peers.push(PeerAddress { listens, reached: network.add(listens)? });
    }
    let member = |(at, peer): (usize, &PeerAddress)| format!("{}=http://{}", node_name(at), peer.reached);
    let members: Vec<_> = peers.iter().enumerate().map(member).collect();
    let members = members.join(",");
    let program = |(at, peer): (usize, &PeerAddress)| {
        let mut options = etcd::member_options(&node_name(at), &folders[at].join("data"), *peer, &members);
        options.extend(etcd::client_options(addresses[at]));
        Program::new(move || {
            let mut command = child::server("etcd");
            command.args(&options);
            Ok(command)
        })
    };
    Ok(peers.iter().enumerate().map(program).collect())
}

fn zookeeper_servers(
    network: &mut Network,
    folders: &[&Path],
    addresses: &[SocketAddr],
) -> Result<Vec<Program>, Failure> {
    // Where each server listens for followers and for elections.
    let ports = folders.iter().map(|_| Ok([free_port()?, free_port()?])).collect::<io::Result<Vec<_>>>()?;
    network.translate_addresses();
    let mut programs = Vec::new();
    for (at, folder) in folders.iter().enumerate() {
        let mut servers = String::new();
        for (other, [followers, elections]) in ports.iter().copied().enumerate() {
            let [followers, elections] = match other == at {
                true => [followers, elections],
                false => [network.add_way((at, other), followers)?, network.add_way((at, other), elections)?],
            };
            servers += &format!("server.{}={followers}:{}\n", other + 1, elections.port());
        }
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        fs::write(data.join("myid"), (at + 1).to_string())?;
        let settings = format!("{ZOOKEEPER_TIMES}{servers}{}", zookeeper::settings(&data, addresses[at]));
        let file = folder.join("zoo.cfg");
        fs::write(&file, settings)?;
        programs.push(Program::new(move || {
            let mut command = child::server("java");
            command.args(zookeeper::java_arguments(&ZOOKEEPER_OPTIONS, &file));
            Ok(command)
        }));
    }
    Ok(programs)
}
