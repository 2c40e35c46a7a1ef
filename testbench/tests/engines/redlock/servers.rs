//! Five servers, and direct access to each of them.

use std::path::Path;
use std::time::Duration;

use palisade::{Options, Palisade};
pub(crate) use palisade_testbench::bounded::until;
use palisade_testbench::bounded::{BOUND, check};
use palisade_testbench::servers::{Absent, Redis};
use redis::{Commands, Connection};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A TTL of which a third passes until a loss is noticed. It survives a machine that stands still for ten seconds.
pub(crate) const SHORT: Duration = Duration::from_secs(18);
/// A TTL that never passes during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The option that lets servers count that have just started.
pub(crate) const FRESH: &str = "dangerous_count_restarted=yes";

/// Five servers for one test.
pub(crate) struct Five {
    pub(crate) servers: Vec<Redis>,
    _folder: TempDir,
}

impl Five {
    pub(crate) fn start() -> Five {
        let folder = tempfile::tempdir().unwrap();
        let servers = start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        Five { servers, _folder: folder }
    }

    /// Returns a URL that names them all.
    pub(crate) fn url(&self, options: &str) -> String {
        url(&self.servers, options)
    }

    /// Connects a client that waits for slow nodes, and counts nodes that have just started.
    pub(crate) async fn client(&self, ttl: Duration) -> Palisade {
        connect(&self.url(&format!("{FRESH}&timeout=20s")), ttl).await
    }

    /// Connects to a server directly.
    pub(crate) fn at(&self, place: usize) -> Connection {
        redis::Client::open(self.servers[place].url()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn signal(&self, place: usize, signal: Signal) {
        let pid = Pid::from_raw(self.servers[place].pid().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns a server's uptime.
    pub(crate) fn uptime(&self, place: usize) -> Duration {
        let reply: String = redis::cmd("INFO").arg("server").query(&mut self.at(place)).unwrap();
        let seconds = reply.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")).unwrap();
        Duration::from_secs(seconds.trim().parse().unwrap())
    }

    /// Returns how many keys have expired on a server.
    pub(crate) fn expired(&self, place: usize) -> u64 {
        let reply: String = redis::cmd("INFO").arg("stats").query(&mut self.at(place)).unwrap();
        let expired = reply.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap();
        expired.trim().parse().unwrap()
    }

    /// Returns those of these servers on which a lock is taken.
    pub(crate) fn taken(&self, places: impl IntoIterator<Item = usize>, lock: &str) -> Vec<usize> {
        places.into_iter().filter(|place| self.at(*place).exists(key(lock)).unwrap()).collect()
    }
}

pub(crate) fn start(folder: &Path) -> Result<Vec<Redis>, Absent> {
    (0..5).map(|number| Redis::start_with(&folder.join(number.to_string()), &[])).collect()
}

pub(crate) fn url(servers: &[Redis], options: &str) -> String {
    let nodes: Vec<_> = servers.iter().map(|server| server.address.to_string()).collect();
    format!("redlock://{}?{options}", nodes.join(","))
}

pub(crate) fn key(lock: &str) -> String {
    format!("palisade:redlock:{lock}")
}

pub(crate) async fn connect(url: &str, ttl: Duration) -> Palisade {
    Options::new().ttl(ttl).label("a client").connect(url).await.unwrap()
}

/// Runs a test that must end.
pub(crate) fn run(test: impl Future<Output = ()>) {
    check(BOUND, test);
}
