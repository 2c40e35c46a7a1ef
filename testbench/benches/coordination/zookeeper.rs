//! ZooKeeper: our locks beside kazoo's `Lock` and beside the lock of `zookeeper-client`. Neither has a token, and neither checks
//! after a wait that its session still exists.
//!
//! The lock of `zookeeper-client` is released when its guard is dropped, without an answer. It is measured in both ways: with an
//! awaited release beside ours, and dropped beside ours dropped.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use palisade_testbench::servers;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::driver::{Contender, ROUNDS, Sample, WORKLOADS, Workload, sample, show};
use crate::ours::{Ours, lock, ours, ours_in_one};

const TTL: Duration = Duration::from_secs(30);

/// Our lock. Drops the guard, and does not wait until the lock is released.
struct Dropping(Ours);

impl Contender for Dropping {
    async fn acquire(&mut self) {
        self.0.acquire().await;
    }

    async fn release(&mut self) {
        self.0.guard = None;
    }
}

/// The lock of `zookeeper-client`.
struct Recipe {
    client: Client,
    folder: String,
    release: Release,
    held: Option<OwnedLockClient>,
    path: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Release {
    Awaited,
    Dropped,
}

impl Contender for Recipe {
    async fn acquire(&mut self) {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-").unwrap();
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(container).unwrap();
        let held = self.client.lock(prefix, b"", options).await.unwrap();
        match self.release {
            Release::Dropped => self.held = Some(held.into_owned()),
            Release::Awaited => self.path = ManuallyDrop::new(held).lock_path().to_owned(),
        }
    }

    async fn release(&mut self) {
        match self.release {
            Release::Dropped => self.held = None,
            Release::Awaited => self.client.delete(&self.path, None).await.unwrap(),
        }
    }

    /// Returns when its session is closed.
    async fn leave(self) {
        let mut state = self.client.state_watcher();
        drop((self.client, self.held));
        while !state.changed().await.is_terminated() {}
    }
}

async fn recipe(address: &str, workload: &Workload, release: Release, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..workload.clients {
        let client = Client::connector().with_session_timeout(TTL).connect(address).await.unwrap();
        let folder = format!("/recipe/{}", lock(number, workload.is_hot));
        contenders.push(Recipe { client, folder, release, held: None, path: String::new() });
    }
    sample(contenders, workload.is_hot, length).await
}

/// A client for each, on a lock of its own. It does not wait for its releases.
async fn ours_dropped(url: &str, clients: usize, length: Duration) -> Sample {
    let mut contenders = Vec::new();
    for number in 0..clients {
        contenders.push(Dropping(Ours::connect(url, lock(number, false)).await));
    }
    sample(contenders, false, length).await
}

/// kazoo, from `scripts/setup --bench`.
fn kazoo(address: &str, workload: &Workload, length: Duration) -> Sample {
    let testbench = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(testbench.join("../target/tools/kazoo/bin/python3"));
    command.arg(testbench.join("benches/coordination/kazoo_lock.py")).arg(address);
    command.arg(workload.clients.to_string()).arg(if workload.is_hot { "hot" } else { "own" });
    let output = command.arg(length.as_secs().to_string()).output();
    let output = output.unwrap_or_else(|error| panic!("kazoo: {error}; run scripts/setup --bench"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    let elapsed = Duration::from_secs_f64(lines.next().unwrap().parse().unwrap());
    let seconds = |word: &str| Duration::from_secs_f64(word.parse().unwrap());
    let times: Vec<Vec<_>> = lines.map(|line| line.split_whitespace().map(seconds).collect()).collect();
    assert_eq!(times.len(), workload.clients);
    Sample::of(&times, elapsed)
}

pub(crate) async fn measure(length: Duration) -> Vec<String> {
    // On the disk that the build is on: a directory for temporary files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    let server = servers::ZooKeeper::start(&folder.path().canonicalize().unwrap());
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let address = server.address.to_string();
    let url = format!("zookeeper://{address}");
    let names = ["palisade", "palisade, one client with all tasks", "zookeeper-client's lock", "kazoo's Lock"];
    let dropped = ["palisade, dropped", "zookeeper-client's lock, dropped"];
    let mut missed = Vec::new();
    for workload in &WORKLOADS {
        let (clients, is_hot) = (workload.clients, workload.is_hot);
        let (mut rounds, mut dropped_rounds) = (Vec::new(), Vec::new());
        for _ in 0..=ROUNDS {
            rounds.push(vec![
                ours(&url, clients, is_hot, length).await,
                ours_in_one(&url, clients, is_hot, length).await,
                recipe(&address, workload, Release::Awaited, length).await,
                kazoo(&address, workload, length),
            ]);
            if !is_hot {
                dropped_rounds.push(vec![
                    ours_dropped(&url, clients, length).await,
                    recipe(&address, workload, Release::Dropped, length).await,
                ]);
            }
        }
        missed.extend(show("ZooKeeper", workload, &names, &rounds[1..], &[None, None, Some(1.0), Some(1.0)]));
        if !is_hot {
            missed.extend(show("ZooKeeper", workload, &dropped, &dropped_rounds[1..], &[None, Some(1.0)]));
        }
    }
    missed
}
