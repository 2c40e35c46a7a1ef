//! The conformance suite against a cluster: at the node that leads, at one that relays, and while leaders fail.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use palisade::engine::Failure;
use palisade::engine::service::{Config, Service};
use palisade::{Error, Options, Palisade};
use palisade_testbench::bounded::block_until;
use palisade_testbench::conformance::Subject;
use palisade_testbench::coordination::Repeating;
use palisade_testbench::servers::{Absent, ServiceCluster, Shared};
use tempfile::TempDir;

/// Between two faults.
const PAUSE: Duration = Duration::from_secs(2);

/// A cluster, and a thread that keeps it and may make its leader fail.
struct Members {
    /// The addresses of all nodes.
    all: String,
    /// The address of one that does not lead.
    follower: String,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<ServiceCluster>>,
}

impl Members {
    fn start(folder: &Path, fault: fn(&mut ServiceCluster, usize)) -> Result<Members, Absent> {
        let variables = [("SERVE_SIGN", "yes"), ("SERVE_COMPACT_AFTER", "20000")];
        let mut cluster = ServiceCluster::start(env!("CARGO_BIN_EXE_serve"), folder, 3, &variables)?;
        let all = cluster.url();
        let follower = (0..3).find(|at| cluster.leader() != Some(*at)).unwrap_or(0);
        let follower = format!("palisade://{}", cluster.address(follower));
        let (end, is_over) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut round = 0;
            while is_over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                fault(&mut cluster, round);
                round += 1;
            }
            cluster
        });
        Ok(Members { all, follower, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        drop(self.end.take());
        // The nodes end with the thread. A panic there has been printed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Kills or stops the leader, or lets another node lead, and waits until another one does.
fn fail(cluster: &mut ServiceCluster, round: usize) {
    let Some(leader) = cluster.leader() else { return };
    match round % 3 {
        0 => cluster.kill(leader),
        1 => cluster.stop(leader),
        _ => transfer(cluster, leader),
    }
    block_until("another node leads", || cluster.leader().is_some_and(|other| other != leader));
    match round % 3 {
        0 => cluster.restart(leader).unwrap(),
        1 => cluster.go_on(leader),
        _ => {}
    }
}

fn transfer(cluster: &ServiceCluster, leader: usize) {
    let mut stream = TcpStream::connect(cluster.address(leader)).unwrap();
    stream.write_all(b"CLUSTER TRANSFER\r\n").unwrap();
    // The connection may be closed before the reply.
    let _ = stream.read(&mut [0; 64]);
}

static CALM: Shared<Members> = Shared::new(|folder| Members::start(folder, |_, _| {}));
static FAILING: Shared<Members> = Shared::new(|folder| Members::start(folder, fail));

#[derive(Clone)]
struct Nodes {
    _members: Arc<(Members, TempDir)>,
    url: String,
}

impl Nodes {
    fn all() -> Nodes {
        let members = CALM.get().unwrap_or_else(|absent| panic!("{absent}"));
        Nodes { url: members.0.all.clone(), _members: members }
    }

    fn follower() -> Nodes {
        let members = CALM.get().unwrap_or_else(|absent| panic!("{absent}"));
        Nodes { url: members.0.follower.clone(), _members: members }
    }

    fn failing() -> Failing {
        let members = FAILING.get().unwrap_or_else(|absent| panic!("{absent}"));
        Failing(Nodes { url: members.0.all.clone(), _members: members })
    }

    async fn service(&self) -> Result<Service, Failure> {
        Service::connect(Config::parse(self.url.strip_prefix("palisade:").unwrap_or_default())?).await
    }
}

impl Subject for Nodes {
    type Engine = Service;

    async fn engine(&self) -> Result<Service, Failure> {
        self.service().await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        options.connect(&self.url).await
    }
}

/// Nodes whose leader fails every few seconds. Calls that fail and may be repeated are repeated.
#[derive(Clone)]
struct Failing(Nodes);

impl Subject for Failing {
    type Engine = Repeating<Service>;

    async fn engine(&self) -> Result<Repeating<Service>, Failure> {
        Repeating::connect(async || self.0.service().await).await
    }

    async fn connect(&self, options: Options) -> Result<Palisade, Error> {
        let subject = self.clone();
        options.connect_engine("a failing cluster", async move || subject.engine().await).await
    }
}

palisade_testbench::conformance!(on_the_leader, Nodes::all());
palisade_testbench::conformance!(on_a_follower, Nodes::follower());
palisade_testbench::conformance!(while_leaders_fail, Nodes::failing(), ignore = "long: leaders that fail");
