//! The clients that acquire and release in a closed loop, and the table of what they did.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const ROUNDS: usize = 3;
const CROWD: usize = 64;
/// The least fairness on a hot lock.
const JAIN: f64 = 0.99;

/// What contenders do.
pub(crate) struct Workload {
    title: &'static str,
    pub(crate) clients: usize,
    /// Whether all want the same lock.
    pub(crate) is_hot: bool,
}

pub(crate) const WORKLOADS: [Workload; 3] = [
    Workload { title: "W1: 1 client", clients: 1, is_hot: false },
    Workload { title: "W1: 64 clients on distinct locks", clients: CROWD, is_hot: false },
    Workload { title: "W2: one hot lock, 64 contenders", clients: CROWD, is_hot: true },
];

/// Returns how long a sample takes.
pub(crate) fn sample_length() -> Duration {
    let seconds = std::env::var("PALISADE_BENCH_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    Duration::from_secs(u64::max(seconds, 1))
}

/// Whether this store is to be measured.
pub(crate) fn is_wanted(store: &str) -> bool {
    std::env::var("PALISADE_BENCH_STORE").ok().is_none_or(|only| only == store)
}

/// A client that acquires and releases a lock over and over.
pub(crate) trait Contender: Send + 'static {
    fn acquire(&mut self) -> impl Future<Output = ()> + Send;
    fn release(&mut self) -> impl Future<Output = ()> + Send;

    /// Ends its session, so that the next sample does not pay for it.
    fn leave(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async { drop(self) }
    }
}

/// What a sample has shown. Times are of a cycle; on a hot lock, of the wait.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Cycles, or hand-overs.
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// How evenly the contenders came to it: 1 is perfect.
    pub(crate) jain: f64,
}

impl Sample {
    /// Each contender's times.
    pub(crate) fn of(contenders: &[Vec<Duration>], elapsed: Duration) -> Sample {
        let mut times = contenders.concat();
        times.sort_unstable();
        let at = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default();
        let squares: f64 = contenders.iter().map(|times| (times.len() as f64).powi(2)).sum();
        Sample {
            per_second: times.len() as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            jain: (times.len() as f64).powi(2) / (contenders.len() as f64 * squares),
        }
    }
}

/// Whose turn it is, as all contenders see it: the one that holds the lock notes it before it lets go.
#[derive(Default)]
struct Turn {
    last: AtomicUsize,
    holders: AtomicUsize,
}

/// Runs all contenders for this time.
pub(crate) async fn sample<C: Contender>(mut contenders: Vec<C>, is_hot: bool, length: Duration) -> Sample {
    // A server has to make ready what a connection asks for the first time: that is not what is measured.
    for contender in &mut contenders {
        contender.acquire().await;
        contender.release().await;
    }
    let (began_at, turn) = (Instant::now(), Arc::new(Turn::default()));
    let until = began_at + length;
    let contend = |(number, contender)| tokio::spawn(contend(contender, number + 1, turn.clone(), is_hot, until));
    let tasks: Vec<_> = contenders.into_iter().enumerate().map(contend).collect();
    let (mut times, mut done) = (Vec::new(), Vec::new());
    for task in tasks {
        let (contender, its) = task.await.unwrap();
        times.push(its);
        done.push(contender);
    }
    let elapsed = began_at.elapsed();
    for contender in done {
        contender.leave().await;
    }
    Sample::of(&times, elapsed)
}

/// Returns the times that count.
async fn contend<C: Contender>(
    mut contender: C,
    number: usize,
    turn: Arc<Turn>,
    is_hot: bool,
    until: Instant,
) -> (C, Vec<Duration>) {
    let mut times = Vec::new();
    while Instant::now() < until {
        let began_at = Instant::now();
        contender.acquire().await;
        let waited = began_at.elapsed();
        // A lock that does not exclude would be measured for nothing.
        assert!(turn.holders.fetch_add(1, Ordering::SeqCst) == 0 || !is_hot, "two clients have the lock");
        let is_handed_over = turn.last.swap(number, Ordering::Relaxed) != number;
        turn.holders.fetch_sub(1, Ordering::SeqCst);
        contender.release().await;
        if is_handed_over || !is_hot {
            times.push(if is_hot { waited } else { began_at.elapsed() });
        }
    }
    (contender, times)
}

/// One workload's rounds: ours first, then the others, by name. What is wanted is how many times as much ours should do.
/// Returns the targets that are missed.
pub(crate) fn show(
    store: &str,
    workload: &Workload,
    names: &[&str],
    rounds: &[Vec<Sample>],
    wanted: &[Option<f64>],
) -> Vec<String> {
    let (title, mut missed) = (format!("{store}, {}", workload.title), Vec::new());
    println!("\n{title}");
    println!("  {:<38} {:>12} {:>10} {:>10} {:>6}  ours is", "", "per second", "p50", "p99", "Jain");
    for (at, name) in names.iter().enumerate() {
        let median = |of: &dyn Fn(&Sample) -> f64| median(rounds.iter().map(|round| of(&round[at])));
        let ratios = || rounds.iter().map(|round| round[0].per_second / round[at].per_second);
        let (ratio, least, most) =
            (self::median(ratios()), ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max));
        let verdict = match wanted[at] {
            Some(wanted) if ratio >= wanted => format!(", wanted {wanted}: yes"),
            Some(wanted) => {
                missed.push(format!("{title}: {ratio:.2} times {name}, wanted {wanted}"));
                format!(", wanted {wanted}: NO")
            }
            None => String::new(),
        };
        println!(
            "  {name:<38} {:>12.0} {:>7.2} ms {:>7.2} ms {:>6.3}  {ratio:.2} times ({least:.2} to {most:.2}){verdict}",
            median(&|sample| sample.per_second),
            median(&|sample| sample.p50.as_secs_f64() * 1000.0),
            median(&|sample| sample.p99.as_secs_f64() * 1000.0),
            median(&|sample| sample.jain),
        );
    }
    let jain = median(rounds.iter().map(|round| round[0].jain));
    if workload.is_hot && jain < JAIN {
        missed.push(format!("{title}: Jain {jain:.3}, wanted {JAIN}"));
    }
    missed
}

/// Prints the targets that are missed.
pub(crate) fn report(missed: &[String]) {
    println!("\nmissed: {}", if missed.is_empty() { "nothing" } else { "" });
    for target in missed {
        println!("  {target}");
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
