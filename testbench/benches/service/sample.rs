//! A few seconds of one workload on one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::fifo::{self, Grant};
use crate::server::{Contender, Server};

/// What clients do.
pub(crate) struct Workload {
    pub(crate) title: &'static str,
    pub(crate) clients: usize,
    /// Whether all want the same lock.
    pub(crate) is_hot: bool,
    /// How many times as much as each server is wanted of ours, in the order of the servers.
    pub(crate) wanted: [Option<f64>; 5],
}

/// What a sample has shown. Times are of a cycle; on a hot lock, of the wait.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Cycles, or hand-overs.
    pub(crate) per_second: f64,
    /// The server's, for each of them.
    pub(crate) cpu_us: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) mean_ms: f64,
    /// How evenly the clients came to it: 1 is perfect.
    pub(crate) jain: f64,
    /// The part of the grants that went to a request before one that was there earlier.
    pub(crate) overtaking: Option<f64>,
}

/// Whose turn it is, as all the clients see it: the one that holds the lock notes it before it lets go.
#[derive(Default)]
struct Turn {
    grants: AtomicUsize,
    last: AtomicUsize,
}

struct Cycle {
    client: usize,
    began_at: Instant,
    held_at: Instant,
    ended_at: Instant,
    /// Whether the lock was another client's before.
    is_handed_over: bool,
    grant: Option<Grant>,
}

impl Workload {
    pub(crate) async fn sample(&self, server: &Server, length: Duration) -> Sample {
        let mut contenders = Vec::new();
        for number in 0..self.clients {
            let lock = if self.is_hot { "hot".to_owned() } else { format!("lock-{number}") };
            contenders.push(server.connect(number, &lock, self.is_hot).await);
        }
        let (cpu, began_at, turn) = (server.cpu(), Instant::now(), Arc::new(Turn::default()));
        let until = began_at + length;
        let contend = |(number, contender)| tokio::spawn(contend(contender, number + 1, turn.clone(), until));
        let tasks: Vec<_> = contenders.into_iter().enumerate().map(contend).collect();
        let (mut cycles, mut leaving) = (Vec::new(), Vec::new());
        for task in tasks {
            let (contender, own) = task.await.unwrap();
            cycles.extend(own);
            leaving.push(contender);
        }
        let (elapsed, cpu) = (began_at.elapsed(), server.cpu() - cpu);
        for contender in leaving {
            contender.leave().await;
        }
        self.judge(&cycles, elapsed, cpu)
    }

    fn judge(&self, cycles: &[Cycle], elapsed: Duration, cpu: Duration) -> Sample {
        let mut counts = vec![0.0; self.clients];
        for cycle in cycles.iter().filter(|cycle| cycle.is_handed_over || !self.is_hot) {
            counts[cycle.client - 1] += 1.0;
        }
        let (sum, squares) = (counts.iter().sum::<f64>(), counts.iter().map(|count| count * count).sum::<f64>());
        let time = |cycle: &Cycle| if self.is_hot { cycle.held_at } else { cycle.ended_at } - cycle.began_at;
        let mut times: Vec<f64> = cycles.iter().map(|cycle| time(cycle).as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let grants: Option<Vec<Grant>> = cycles.iter().map(|cycle| cycle.grant).collect();
        let grants = grants.filter(|_| self.is_hot);
        Sample {
            per_second: sum / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / sum,
            p50_ms: times[times.len() / 2],
            p99_ms: times[times.len() * 99 / 100],
            max_ms: times[times.len() - 1],
            mean_ms: times.iter().sum::<f64>() / times.len() as f64,
            jain: sum * sum / (counts.len() as f64 * squares),
            overtaking: grants.map(|grants| fifo::overtaking(&grants) as f64 / grants.len() as f64),
        }
    }
}

/// Has the lock again and again. Clients are numbered from 1.
async fn contend(
    mut contender: Contender,
    client: usize,
    turn: Arc<Turn>,
    until: Instant,
) -> (Contender, Vec<Cycle>) {
    let mut cycles = Vec::new();
    while Instant::now() < until {
        let began_at = Instant::now();
        contender.acquire().await;
        let order = turn.grants.fetch_add(1, Ordering::Relaxed);
        let is_handed_over = turn.last.swap(client, Ordering::Relaxed) != client;
        let held_at = Instant::now();
        contender.release().await;
        let ended_at = Instant::now();
        let grant = contender.asked_at().map(|sent_at| Grant {
            began_at,
            sent_at,
            order,
            freeing_at: held_at,
            freed_at: ended_at,
        });
        cycles.push(Cycle { client, began_at, held_at, ended_at, is_handed_over, grant });
    }
    (contender, cycles)
}
