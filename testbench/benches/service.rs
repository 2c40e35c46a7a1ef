//! What the service does beside a Redis that is as durable, and one that is not: `scripts/bench service`.
//!
//! - W1: acquire and release on distinct locks, one connection a client.
//! - W2: one hot lock and 64 contenders; a hand-over counts only when another client gets it.
//!
//! Real processes, closed loop, turn about, since what else happens on the machine changes from second to second.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use palisade_testbench::servers::{Redis, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ROUNDS: usize = 5;
const SAMPLE: Duration = Duration::from_secs(2);

/// A client of either: it says something and reads one answer.
struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    async fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, read: Vec::new() }
    }

    async fn ask(&mut self, words: &[&str]) -> String {
        let mut frame = format!("*{}\r\n", words.len());
        for word in words {
            frame.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(frame.as_bytes()).await.unwrap();
        self.read.clear();
        loop {
            self.stream.read_buf(&mut self.read).await.unwrap();
            if let Some(answer) = whole(&self.read) {
                assert!(!answer.starts_with('-'), "{words:?}: {answer}");
                return answer;
            }
        }
    }
}

/// The answer, if all of it is there. One is awaited at a time, so whatever ends in a line's end and has as many lines
/// as it says is whole.
fn whole(read: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(read).ok()?;
    let mut lines = text.split_inclusive("\r\n").filter(|line| line.ends_with("\r\n"));
    let mut left = 1;
    while left > 0 {
        let line = lines.next()?;
        left -= 1;
        let number = || line[1..].trim_end().parse::<i64>().unwrap_or(0);
        match line.as_bytes()[0] {
            b'*' => left += number().max(0),
            b'$' if number() >= 0 => drop(lines.next()?),
            _ => {}
        }
    }
    Some(text.to_owned())
}

/// How a lock is taken and given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Palisade,
    Redis,
}

/// What a client holds.
struct Holder {
    client: Client,
    peer: Peer,
    session: String,
    script: String,
    chance: u64,
}

impl Holder {
    async fn connect(peer: Peer, address: &str, number: usize) -> Holder {
        let mut client = Client::connect(address).await;
        let (mut session, mut script) = (number.to_string(), String::new());
        match peer {
            Peer::Palisade => {
                let opened = client.ask(&["SESSION", "OPEN", "60000"]).await;
                session = opened.split("\r\n").nth(3).unwrap()[1..].to_owned();
            }
            Peer::Redis => {
                let text = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";
                let loaded = client.ask(&["SCRIPT", "LOAD", text]).await;
                script = loaded.split("\r\n").nth(1).unwrap().to_owned();
            }
        }
        Holder { client, peer, session, script, chance: number as u64 }
    }

    /// The token; `None` if it is not free.
    async fn acquire(&mut self, name: &str, wait: bool) -> Option<String> {
        match self.peer {
            Peer::Palisade => {
                let mut words = vec!["LOCK", "ACQUIRE", name, "SESSION", &self.session];
                if wait {
                    words.extend(["WAIT", "60000"]);
                }
                let granted = self.client.ask(&words).await;
                (!granted.starts_with("$-1")).then(|| granted.split("\r\n").nth(3).unwrap()[1..].to_owned())
            }
            Peer::Redis => loop {
                let set = self.client.ask(&["SET", name, &self.session, "NX", "PX", "60000"]).await;
                if set.starts_with('+') {
                    return Some(self.session.clone());
                }
                if !wait {
                    return None;
                }
                // As its clients do: a pause, with some chance in it.
                self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                tokio::time::sleep(Duration::from_millis(5 + (self.chance >> 60))).await;
            },
        }
    }

    async fn release(&mut self, name: &str, token: &str) {
        match self.peer {
            Peer::Palisade => drop(self.client.ask(&["LOCK", "RELEASE", name, token]).await),
            Peer::Redis => drop(self.client.ask(&["EVALSHA", &self.script, "1", name, token]).await),
        }
    }
}

/// What a sample has shown.
#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    cpu_us: f64,
    p50: f64,
    p99: f64,
    mean: f64,
    jain: f64,
}

async fn sample(server: &Server, clients: usize, hot: bool) -> Sample {
    let mut holders = Vec::new();
    for number in 0..clients {
        holders.push(Holder::connect(server.peer, &server.address, number).await);
    }
    let (cpu, began) = (server.cpu(), Instant::now());
    let tasks = holders.into_iter().enumerate().map(|(number, mut holder)| {
        tokio::spawn(async move {
            let name = if hot { "hot".to_owned() } else { format!("lock/{number}") };
            let mut waits = Vec::new();
            while began.elapsed() < SAMPLE {
                let asked = Instant::now();
                let token = holder.acquire(&name, hot).await.unwrap();
                if hot {
                    waits.push(asked.elapsed());
                }
                holder.release(&name, &token).await;
                if !hot {
                    waits.push(asked.elapsed());
                }
            }
            waits
        })
    });
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        let waits = task.await.unwrap();
        counts.push(waits.len() as f64);
        all.extend(waits);
    }
    let elapsed = began.elapsed().as_secs_f64();
    all.sort();
    let us = |at: usize| all[at.min(all.len() - 1)].as_secs_f64() * 1e6;
    let (sum, squares) = (counts.iter().sum::<f64>(), counts.iter().map(|count| count * count).sum::<f64>());
    Sample {
        per_second: sum / elapsed,
        cpu_us: (server.cpu() - cpu).as_secs_f64() * 1e6 / sum,
        p50: us(all.len() / 2),
        p99: us(all.len() * 99 / 100),
        mean: all.iter().map(Duration::as_secs_f64).sum::<f64>() * 1e6 / sum,
        jain: sum * sum / (counts.len() as f64 * squares),
    }
}

struct Server {
    what: &'static str,
    peer: Peer,
    address: String,
    pid: u32,
}

impl Server {
    /// The processor time that it has used.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn raw_commit_us(folder: &Path) -> f64 {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(folder.join("raw")).unwrap();
    file.write_all_at(&vec![0; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let mut times: Vec<f64> = (0..500)
        .map(|at| {
            let began = Instant::now();
            file.write_all_at(&[7; 512], at * 512).unwrap();
            file.sync_data().unwrap();
            began.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let temporary = tempfile::tempdir_in(".").unwrap();
    let folder = temporary.path().canonicalize().unwrap();
    let service = Service::start(env!("CARGO_BIN_EXE_serve"), &folder).unwrap();
    let always = Redis::start(&folder, "always").unwrap();
    let never = Redis::start(&folder, "no").unwrap();
    let servers = [
        Server { what: "palisade", peer: Peer::Palisade, address: service.address.to_string(), pid: service.pid() },
        Server {
            what: "redis, fsync always",
            peer: Peer::Redis,
            address: always.address.to_string(),
            pid: always.pid(),
        },
        Server {
            what: "redis, no persistence",
            peer: Peer::Redis,
            address: never.address.to_string(),
            pid: never.pid(),
        },
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("raw: 512 bytes and fdatasync on the same disk take {:.0} us", raw_commit_us(&folder));
    for (title, clients, hot) in [
        ("W1, 1 client: acquire and release", 1, false),
        ("W1, 64 clients on distinct locks", 64, false),
        ("W2, one hot lock, 64 contenders", 64, true),
    ] {
        println!("{title}");
        let mut samples = vec![Vec::new(); servers.len()];
        for _ in 0..ROUNDS {
            for (server, samples) in servers.iter().zip(&mut samples) {
                samples.push(runtime.block_on(sample(server, clients, hot)));
            }
        }
        for (server, samples) in servers.iter().zip(&samples) {
            println!(
                "  {:<22} {:>8.0}/s  server {:>6.1} us CPU each  p50 {:>7.0} us  p99 {:>7.0} us  p99/mean {:>4.1}  Jain {:.3}",
                server.what,
                median(samples, |sample| sample.per_second),
                median(samples, |sample| sample.cpu_us),
                median(samples, |sample| sample.p50),
                median(samples, |sample| sample.p99),
                median(samples, |sample| sample.p99 / sample.mean),
                median(samples, |sample| sample.jain),
            );
        }
    }
}
