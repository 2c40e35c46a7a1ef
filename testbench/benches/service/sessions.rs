//! Very many sessions with a lock each, kept alive by one client: what they cost the server.

use std::path::Path;
use std::time::{Duration, Instant};

use palisade_testbench::servers::{Service, processor_time};

use crate::resp::{Client, Reply};
use crate::table::verdict;

pub(crate) const SESSIONS: usize = 100_000;
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// How many sessions one command names.
const AT_ONCE: usize = 1000;
/// How many commands are under way together.
const UNDER_WAY: usize = 500;
const CPU_PERCENT: f64 = 20.0;
const BYTES_EACH: f64 = 600.0;

/// Sessions that live as long as they are kept alive.
pub(crate) struct Crowd {
    pub(crate) client: Client,
    ids: Vec<String>,
    /// The memory of the server before they came, in bytes.
    before: f64,
}

impl Crowd {
    /// Opens the sessions, and has each acquire a lock of its own.
    pub(crate) async fn gather(service: &Service) -> Crowd {
        println!("\n{SESSIONS} sessions with a lock each, TTL {} s, on one connection", TTL.as_secs());
        let mut client = Client::connect(&service.address.to_string()).await;
        client.ask(&["PING"]).await;
        let mut crowd = Crowd { client, ids: Vec::new(), before: memory(service.pid()) };
        let (began_at, mut renewed_at) = (Instant::now(), Instant::now());
        while crowd.ids.len() < SESSIONS {
            crowd.grow().await;
            if renewed_at.elapsed() > TTL / 3 {
                crowd.renew_all().await;
                renewed_at = Instant::now();
            }
        }
        println!("  opened and acquired in {:.1} s", began_at.elapsed().as_secs_f64());
        crowd
    }

    /// A few more sessions, and a lock for each.
    async fn grow(&mut self) {
        let (ttl_ms, first) = (TTL.as_millis().to_string(), self.ids.len());
        (0..UNDER_WAY).for_each(|_| self.client.say(&["SESSION", "OPEN", &ttl_ms]));
        self.client.send().await;
        for _ in 0..UNDER_WAY {
            self.ids.push(self.client.answer().await.get("session").unwrap().to_string());
        }
        for (at, id) in self.ids.iter().enumerate().skip(first) {
            self.client.say(&["LOCK", "ACQUIRE", &format!("orders/{at:06}"), "SESSION", id]);
        }
        self.client.send().await;
        for _ in 0..UNDER_WAY {
            self.client.answer().await.get("token").unwrap();
        }
    }

    /// Says what they take in memory, and of the log in the service's folder.
    pub(crate) fn weigh(&self, service: &Service, folder: &Path) {
        let each = |bytes: f64| bytes / SESSIONS as f64;
        let (memory, log) = (each(memory(service.pid()) - self.before), each(logged(folder)));
        println!(
            "  memory: {memory:.0} bytes each, session and lock (target: at most {BYTES_EACH}): {}",
            verdict(memory <= BYTES_EACH)
        );
        println!("  log: {log:.0} bytes each, which are in that memory as well until a snapshot is made");
    }

    /// Keeps all of them alive in the library's rhythm, three times in a TTL, evenly spread.
    pub(crate) async fn keep_alive(&mut self, service: &Service, length: Duration) {
        // Those that were opened first have waited longest.
        self.renew_all().await;
        let (used, began_at) = (processor_time(service.pid()), Instant::now());
        let turns = SESSIONS / AT_ONCE;
        for turn in 0.. {
            let at = TTL / 3 * turn / turns as u32;
            if at > length {
                break;
            }
            tokio::time::sleep_until((began_at + at).into()).await;
            self.renew(turn as usize % turns).await;
        }
        let percent = (processor_time(service.pid()) - used).as_secs_f64() / began_at.elapsed().as_secs_f64() * 100.0;
        println!(
            "  kept alive for {:.0} s: {percent:.1} % of one core (target: at most {CPU_PERCENT} %): {}",
            began_at.elapsed().as_secs_f64(),
            verdict(percent <= CPU_PERCENT)
        );
    }

    /// Keeps all alive, as fast as that goes.
    pub(crate) async fn renew_all(&mut self) {
        for part in 0..self.ids.len().div_ceil(AT_ONCE) {
            self.renew(part).await;
        }
    }

    /// Keeps a part of them alive, with one command.
    async fn renew(&mut self, part: usize) {
        let ids = self.ids.chunks(AT_ONCE).nth(part).unwrap();
        let words: Vec<&str> = ["SESSION", "KEEPALIVE"].into_iter().chain(ids.iter().map(String::as_str)).collect();
        let Reply::Array(kept) = self.client.ask(&words).await else { panic!("no list of sessions") };
        let lost = kept.iter().filter(|ttl_ms| ttl_ms.number().unwrap() == 0).count();
        assert_eq!((kept.len(), lost), (ids.len(), 0), "sessions have ended that were kept alive");
    }
}

/// The memory that a process has in use, in bytes.
fn memory(pid: u32) -> f64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// How much of the log's files is used, in bytes. They are filled with zeros beforehand.
fn logged(folder: &Path) -> f64 {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let logs = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-"));
    let used = |path| std::fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    logs.map(used).sum::<usize>() as f64
}
