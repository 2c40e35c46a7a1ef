//! Very many sessions whose leader is killed, and a snapshot of very many locks that travels while others work.

use std::time::{Duration, Instant};

use palisade::engine::service::{ClusterStatus, Config, cluster_status};
use palisade_testbench::servers::{Absent, ServiceCluster, processor_time};
use tokio::runtime::Runtime;
use tokio::time::sleep_until;

use crate::client::Client;
use crate::driver::{Sample, sample};
use crate::resp::{self, Reply};

const SESSIONS: usize = 100_000;
const TTL: Duration = Duration::from_secs(10);
/// How many sessions one command keeps alive.
const AT_ONCE: usize = 1000;
/// How many commands are under way together.
const UNDER_WAY: usize = 500;
/// The share of one core that keep-alives may cost the leader.
const CORE_SHARE: f64 = 0.2;

const LOCKS: usize = 1_000_000;
/// How many locks one session holds, and one command names.
const LOCKS_EACH: usize = 62_500;
const NAMES: usize = 50;
/// Clients that work while the snapshot travels.
const CLIENTS: usize = 8;
const P99_MS: f64 = 50.0;
/// The length of each sample of their work.
const SLICE: Duration = Duration::from_secs(1);
/// A follower that has not caught up after this long never will.
const CATCH_UP: Duration = Duration::from_secs(120);

/// Sessions on a cluster, and the connection to its leader.
struct Crowd {
    line: resp::Client,
    ids: Vec<String>,
}

impl Crowd {
    async fn gather(cluster: &ServiceCluster) -> Crowd {
        let mut crowd = Crowd { line: connect_to_leader(cluster).await, ids: Vec::new() };
        let mut kept_at = Instant::now();
        while crowd.ids.len() < SESSIONS {
            crowd.open(UNDER_WAY, TTL).await;
            if kept_at.elapsed() > TTL / 3 {
                crowd.keep_all().await;
                kept_at = Instant::now();
            }
        }
        crowd.keep_all().await;
        crowd
    }

    async fn open(&mut self, count: usize, ttl: Duration) {
        let ttl_ms = ttl.as_millis().to_string();
        (0..count).for_each(|_| self.line.say(&["SESSION", "OPEN", &ttl_ms]));
        self.line.send().await;
        for _ in 0..count {
            self.ids.push(self.line.answer().await.get("session").unwrap().to_string());
        }
    }

    async fn keep_all(&mut self) {
        for part in 0..self.ids.len().div_ceil(AT_ONCE) {
            self.keep(part).await;
        }
    }

    /// Keeps a part of them alive.
    async fn keep(&mut self, part: usize) {
        let ids = self.ids.chunks(AT_ONCE).nth(part).unwrap();
        let words: Vec<_> = ["SESSION", "KEEPALIVE"].into_iter().chain(ids.iter().map(String::as_str)).collect();
        let Reply::Array(kept) = self.line.ask(&words).await else { panic!("no list of sessions") };
        let ended = kept.iter().filter(|ttl_ms| ttl_ms.number() == Some(0)).count();
        assert_eq!((kept.len(), ended), (ids.len(), 0), "sessions have ended that were kept alive");
    }

    /// Keeps all alive for this time, three times in a TTL, evenly spread, as the library does.
    async fn keep_for(&mut self, length: Duration) {
        let (began_at, turns) = (Instant::now(), SESSIONS / AT_ONCE);
        for turn in 0.. {
            let at = TTL / 3 * turn / u32::try_from(turns).unwrap();
            if at > length {
                break;
            }
            sleep_until((began_at + at).into()).await;
            self.keep(turn as usize % turns).await;
        }
    }
}

async fn connect_to_leader(cluster: &ServiceCluster) -> resp::Client {
    let leader = loop {
        match cluster.leader() {
            Some(leader) => break leader,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    resp::Client::connect(&cluster.address(leader).to_string()).await
}

/// Kills the leader of very many sessions. Returns the targets that are missed.
pub(crate) fn measure_sessions(runtime: &Runtime, cluster: &mut ServiceCluster) -> Result<Vec<String>, Absent> {
    println!("\n{SESSIONS} sessions, TTL {} s, kept alive on one connection", TTL.as_secs());
    let mut crowd = runtime.block_on(Crowd::gather(cluster));
    let leader = cluster.leader().unwrap();
    let pids: Vec<_> = (0..cluster.len()).filter_map(|at| cluster.pid(at)).collect();
    let used = |pids: &[u32]| pids.iter().map(|pid| processor_time(*pid)).collect::<Vec<_>>();
    let (before, began_at) = (used(&pids), Instant::now());
    runtime.block_on(crowd.keep_for(2 * TTL));
    let share = |at: usize| (used(&pids)[at] - before[at]).as_secs_f64() / began_at.elapsed().as_secs_f64();
    let shares: Vec<_> = (0..pids.len()).map(|at| format!("{:.1} %", share(at) * 100.0)).collect();
    let of_leader = share(leader);
    println!("  processor time of each node: {} of one core; node {} leads", shares.join(", "), leader + 1);

    cluster.kill(leader);
    let killed_at = Instant::now();
    runtime.block_on(async {
        crowd.line = connect_to_leader(cluster).await;
        crowd.keep_all().await;
    });
    println!("  leader killed: all sessions are kept alive after {:.2} s", killed_at.elapsed().as_secs_f64());
    // Each keep-alive of these TTLs would find a session that has ended.
    runtime.block_on(crowd.keep_for(2 * TTL));
    println!("  none has ended within two TTLs after that");
    cluster.restart(leader)?;
    let is_met = of_leader <= CORE_SHARE;
    Ok((!is_met).then(|| format!("keep-alives cost {:.0} % of a core", of_leader * 100.0)).into_iter().collect())
}

/// Lets a follower miss very many locks, so that it gets a snapshot of them while other clients work. Returns the targets that
/// are missed.
pub(crate) fn measure_snapshot(runtime: &Runtime, cluster: &mut ServiceCluster) -> Result<Vec<String>, Absent> {
    println!(
        "\na snapshot of {LOCKS} locks for a follower that was away, while {CLIENTS} clients work on their own locks"
    );
    let follower = (cluster.leader().unwrap() + 1) % cluster.len();
    cluster.kill(follower);
    let mut crowd = runtime.block_on(async { Crowd { line: connect_to_leader(cluster).await, ids: Vec::new() } });
    runtime.block_on(async {
        crowd.open(LOCKS / LOCKS_EACH, Duration::from_secs(3600)).await;
        let names: Vec<_> = (0..LOCKS).map(|at| format!("orders/{at:07}")).collect();
        for part in names.chunks(NAMES * UNDER_WAY) {
            for (at, names) in part.chunks(NAMES).enumerate() {
                let session = &crowd.ids[at % crowd.ids.len()];
                let words = ["LOCK", "ACQUIRE"].into_iter().chain(names.iter().map(String::as_str));
                crowd.line.say(&words.chain(["SESSION", session]).collect::<Vec<_>>());
            }
            crowd.line.send().await;
            for _ in part.chunks(NAMES) {
                crowd.line.answer().await.get("token").unwrap();
            }
        }
        // It makes a snapshot, and the log before that is removed.
        crowd.line.ask(&["CLUSTER", "BACKUP"]).await.get("bytes").unwrap();
    });
    let show = |when: &str, sample: &Sample| {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        println!(
            "  {when:<24} p50 {:>6.2} ms, p99 {:>6.2} ms, {:>6.0}/s",
            ms(sample.p50),
            ms(sample.p99),
            sample.per_second
        );
        ms(sample.p99)
    };
    show("without it", &work(runtime, cluster));
    let wanted = status(runtime, cluster).last_index;
    cluster.restart(follower)?;
    let (name, began_at, mut worst) = (format!("node{}", follower + 1), Instant::now(), 0.0_f64);
    loop {
        let since = began_at.elapsed();
        let sample = work(runtime, cluster);
        worst = worst.max(show(&format!("from {:.1} s after it is back", since.as_secs_f64()), &sample));
        let status = status(runtime, cluster);
        if status.members.iter().any(|member| member.name == name && member.matched >= Some(wanted)) {
            break;
        }
        assert!(since < CATCH_UP, "the follower has not caught up within {CATCH_UP:?}");
    }
    let files = std::fs::read_dir(cluster.directory(follower))?.filter_map(Result::ok);
    let has_snapshot = files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("snapshot-"));
    assert!(has_snapshot, "the follower has got no snapshot");
    println!("  it has caught up within {:.1} s; worst p99 {worst:.1} ms", began_at.elapsed().as_secs_f64());
    let is_met = worst <= P99_MS;
    Ok((!is_met)
        .then(|| format!("p99 while a snapshot travels: {worst:.1} ms, wanted {P99_MS}"))
        .into_iter()
        .collect())
}

/// Lets clients work on their own locks for a moment.
fn work(runtime: &Runtime, cluster: &ServiceCluster) -> Sample {
    runtime.block_on(async {
        let url = cluster.url();
        let clients = (0..CLIENTS).map(|at| format!("own-{at}"));
        let mut connected = Vec::new();
        for lock in clients {
            connected.push(Client::palisade(&url, &lock).await);
        }
        sample(connected, false, SLICE).await
    })
}

fn status(runtime: &Runtime, cluster: &ServiceCluster) -> ClusterStatus {
    let config = Config::parse(cluster.url().strip_prefix("palisade:").unwrap()).unwrap();
    runtime.block_on(cluster_status(&config)).unwrap()
}
