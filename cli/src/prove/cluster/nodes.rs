//! The nodes of the cluster: real processes, and what is done to them.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use palisade_cli::harness::Leadership;
use palisade_cli::harness::network::{Network, Way};
use palisade_cli::harness::wall_clock::WallClock;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::fault::{Action, Fault, FaultKind};
use super::system::{Program, System, node_name};
use crate::outcome::Failure;
use crate::prove::server_process::ServerProcess;

/// The environment variable by which the network knows a node.
const NODE: &str = "PALISADE_PROOF_NODE";
/// The time between two questions to a node whether it leads.
const POLL: Duration = Duration::from_millis(100);
/// The shortest time between two starts of a node that ends by itself.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The nodes, and the network between them. Dropping this kills them.
pub(super) struct Nodes {
    system: System,
    nodes: Vec<Node>,
    network: Network,
    /// The ways that the lasting faults cut.
    cuts: Vec<Way>,
}

struct Node {
    name: String,
    folder: PathBuf,
    address: SocketAddr,
    program: Program,
    clock: Option<WallClock>,
    /// `None` while it is killed.
    process: Option<ServerProcess>,
    started_at: Instant,
    /// Its disk was full a moment ago, so that it may end.
    may_end: bool,
}

/// An answer of a node, or that there was none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) node: usize,
    pub(super) at: Instant,
    pub(super) leadership: Option<Leadership>,
}

impl Nodes {
    /// Starts the nodes, with their files in this folder.
    pub(super) fn start(system: System, size: usize, folder: &Path) -> Result<Nodes, Failure> {
        let folders: Vec<_> = (0..size).map(|at| folder.join(node_name(at))).collect();
        folders.iter().try_for_each(fs::create_dir_all)?;
        let mut network = Network::start(NODE)?;
        let plans = system.plan(&mut network, &folders.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
        let has_clocks = system.refuses(FaultKind::Clock, size).is_none();
        let mut nodes = Vec::new();
        for (at, (plan, folder)) in plans.into_iter().zip(folders).enumerate() {
            let clock = if has_clocks { Some(WallClock::new(&folder.join("time"))?) } else { None };
            let (name, address, program) = (node_name(at), plan.address, plan.program);
            nodes.push(Node {
                name,
                folder,
                address,
                program,
                clock,
                process: None,
                started_at: Instant::now(),
                may_end: false,
            });
        }
        let mut nodes = Nodes { system, nodes, network, cuts: Vec::new() };
        (0..size).try_for_each(|at| nodes.start_node(at))?;
        Ok(nodes)
    }

    /// Returns the URL with all nodes.
    pub(super) fn url(&self) -> String {
        self.system.url(&self.nodes.iter().map(|node| node.address).collect::<Vec<_>>())
    }

    /// Asks each node, again and again, whether it leads. Ends when the receiver is dropped.
    pub(super) fn observe(&self) -> UnboundedReceiver<Seen> {
        let (sender, seen) = unbounded_channel();
        for (node, address) in self.nodes.iter().map(|node| node.address).enumerate() {
            let (sender, system) = (sender.clone(), self.system);
            thread::spawn(move || {
                loop {
                    let asked_at = Instant::now();
                    let leadership = system.leadership(address).ok();
                    if sender.send(Seen { node, at: asked_at, leadership }).is_err() {
                        break;
                    }
                    thread::sleep(POLL);
                }
            });
        }
        seen
    }

    /// Begins a fault.
    pub(super) fn inject(&mut self, fault: &Fault) -> io::Result<()> {
        for node in &fault.nodes {
            let node = &mut self.nodes[*node];
            match fault.action {
                Action::Kill => node.process = None,
                Action::Pause => node.signal(Signal::STOP),
                Action::MoveClocks(offset) => node.move_clock(offset)?,
                Action::FillDisk => {
                    node.may_end = true;
                    node.limit_files(true)?;
                }
                Action::Cut(_) => {}
            }
        }
        if let Action::Cut(ways) = &fault.action {
            self.cuts.extend(ways);
            self.network.lose(self.cuts.iter().copied());
        }
        Ok(())
    }

    /// Ends a fault.
    pub(super) fn heal(&mut self, fault: &Fault) -> io::Result<()> {
        for at in &fault.nodes {
            let node = &mut self.nodes[*at];
            match fault.action {
                Action::Kill => self.start_node(*at)?,
                Action::Pause => node.signal(Signal::CONT),
                Action::MoveClocks(_) => node.move_clock("+0")?,
                Action::FillDisk => node.limit_files(false)?,
                Action::Cut(_) => {}
            }
        }
        if let Action::Cut(ways) = &fault.action {
            self.cuts.retain(|way| !ways.contains(way));
            self.network.lose(self.cuts.iter().copied());
        }
        Ok(())
    }

    /// Starts the nodes again that have ended. Returns those that had no reason to end, with their last words.
    pub(super) fn restart_ended(&mut self, full: &BTreeSet<usize>) -> io::Result<Vec<(usize, String)>> {
        let mut unexpected = Vec::new();
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let Some(process) = &mut node.process else { continue };
            // A node that cannot start would otherwise be started thousands of times.
            let is_early = node.started_at.elapsed() < RESTART_PAUSE;
            let Some(status) = process.ended()?.filter(|_| !is_early && !full.contains(&at)) else { continue };
            if !node.may_end {
                unexpected.push((at, format!("{status}; {}", process.last_lines())));
            }
            self.start_node(at)?;
        }
        Ok(unexpected)
    }

    /// Returns whether a majority of the nodes has ended by itself.
    pub(super) fn have_mostly_ended(&mut self) -> io::Result<bool> {
        let mut ended = 0;
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            ended += usize::from(process.ended()?.is_some());
        }
        Ok(ended > self.nodes.len() / 2)
    }

    /// Notes that all nodes work again.
    pub(super) fn note_recovered(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.may_end = false);
    }

    /// Returns the last lines of each node's output.
    pub(super) fn last_words(&self) -> String {
        let last = |node: &Node| Some(format!("{}: {}", node.name, node.process.as_ref()?.last_lines()));
        self.nodes.iter().filter_map(last).collect::<Vec<_>>().join("\n")
    }

    fn start_node(&mut self, at: usize) -> io::Result<()> {
        let node = &mut self.nodes[at];
        let clock = node.clock.as_ref().map(WallClock::variables);
        let variables = clock.into_iter().flatten().chain([(NODE, node.name.as_str())]);
        let log = node.folder.join("log");
        // The process before this one must be gone before the new one opens its files.
        node.process = None;
        node.started_at = Instant::now();
        node.process = Some(ServerProcess::start(&mut node.program.command()?, variables, log)?);
        Ok(())
    }
}

impl Node {
    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    fn move_clock(&self, offset: &str) -> io::Result<()> {
        self.clock.as_ref().map_or(Ok(()), |clock| clock.jump(offset))
    }

    /// Lets all writes to files fail, or none. It sets the soft limit of their size: a hard one could not be raised again without rights.
    fn limit_files(&mut self, is_full: bool) -> io::Result<()> {
        let Some(process) = &mut self.process else { return Ok(()) };
        if process.ended()?.is_some() {
            return Ok(());
        }
        let usual = getrlimit(Resource::Fsize);
        let limit = if is_full { Rlimit { current: Some(0), ..usual } } else { usual };
        match prlimit(Some(process.pid()), Resource::Fsize, limit) {
            // It has ended a moment ago.
            Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
