//! What is printed: figures, ratios, targets, and whether they are met.

use palisade_testbench::chart::Row;

use crate::floors::Turn;
use crate::sample::{Sample, Workload};
use crate::server::Server;
use crate::{ROUNDS, Round, median};

/// How much more than the floor a cycle of one client may take.
const OVER_FLOOR: f64 = 1.3;
const JAIN: f64 = 0.99;
const P99_OVER_MEAN: f64 = 2.0;

pub(crate) fn heading(seconds: u64) {
    println!("medians of {ROUNDS} rounds, {seconds} s of each server in each round, one node each, times in ms");
    println!(
        "redis: SET NX PX, polled after 0 to 100 ms; etcd: Lock API with one lease a client; zookeeper: ephemeral"
    );
    println!("sequential node, watch on the one before; palisade: one session a client, W2 with WAIT");
    println!("CPU: the server's, in us, for each cycle or hand-over");
    println!("overtaking: grants before that of a request which was certainly there earlier");
    if let Some(busy) = busy() {
        println!("THE MACHINE IS BUSY ({busy}), so none of this can be relied on");
    }
}

/// Describes the run under the chart.
pub(crate) fn note(seconds: u64) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let busy = busy().map(|busy| format!("; THE MACHINE WAS BUSY ({busy})")).unwrap_or_default();
    format!("scripts/bench service: medians of {ROUNDS} rounds of {seconds} s; one node each; {cores} cores{busy}")
}

/// Returns the median rate of each server, for the chart.
pub(crate) fn rows(workload: &Workload, servers: &[Server], rounds: &[Round]) -> Vec<Row> {
    let row = |(at, server): (usize, &Server)| Row {
        workload: workload.title.to_owned(),
        unit: unit(workload).to_owned(),
        system: server.name().to_owned(),
        per_second: median(rounds.iter().map(|round| round[at].per_second)).round() as u64,
    };
    servers.iter().enumerate().map(row).collect()
}

fn unit(workload: &Workload) -> &'static str {
    if workload.is_hot { "hand-overs/s" } else { "cycles/s" }
}

pub(crate) fn print(workload: &Workload, servers: &[Server], rounds: &[Round]) {
    let (what, time) = (unit(workload), if workload.is_hot { "wait p50" } else { "cycle p50" });
    println!("\n{}", workload.title);
    println!(
        "  {:<22} {what:>12} {:>7} {time:>10} {:>8} {:>8} {:>8} {:>6} {:>10}  ours is",
        "", "CPU", "p99", "max", "mean", "Jain", "overtaking"
    );
    for (at, server) in servers.iter().enumerate() {
        let of = |value: fn(&Sample) -> f64| median(rounds.iter().map(|round| value(&round[at])));
        let overtaking = rounds[0][at].overtaking.map_or("-".to_owned(), |_| {
            format!("{:.2} %", of(|sample| sample.overtaking.unwrap_or_default()) * 100.0)
        });
        println!(
            "  {:<22} {:>12.0} {:>7.1} {:>10.3} {:>8.3} {:>8.3} {:>8.3} {:>6.3} {overtaking:>10}  {}",
            server.name(),
            of(|sample| sample.per_second),
            of(|sample| sample.cpu_us),
            of(|sample| sample.p50_ms),
            of(|sample| sample.p99_ms),
            rounds.iter().map(|round| round[at].max_ms).fold(0.0, f64::max),
            of(|sample| sample.mean_ms),
            of(|sample| sample.jain),
            ratio(at, workload, rounds),
        );
    }
    if workload.is_hot {
        fairness(rounds);
    }
}

/// How ours does beside a server.
fn ratio(at: usize, workload: &Workload, rounds: &[Round]) -> String {
    if at == 0 {
        return String::new();
    }
    let ratio = median(rounds.iter().map(|round| round[0].per_second / round[at].per_second));
    match workload.wanted[at] {
        Some(wanted) => format!("{ratio:.2} times (target: {wanted:.0}): {}", verdict(ratio >= wanted)),
        None => format!("{ratio:.2} times"),
    }
}

/// One client's cycles beside the floor.
pub(crate) fn print_floors(turns: &[Turn]) {
    let of = |value: fn(&Turn) -> f64| median(turns.iter().map(value));
    println!("\nW1, 1 client, beside what nobody can do faster, medians of {} turns", turns.len());
    println!(
        "  floors: loopback round trip {:.0} us, 512 bytes and fdatasync {:.0} us, a round trip with that in it {:.0} us",
        of(|turn| turn.round_trip_us),
        of(|turn| turn.fdatasync_us),
        of(|turn| turn.durable_round_trip_us),
    );
    let over = of(|turn| turn.cycle_us / turn.parts_us());
    println!(
        "  palisade's cycle of {:.0} us is {over:.2} times two fdatasyncs and two round trips (target: at most {OVER_FLOOR}): {}",
        of(|turn| turn.cycle_us),
        verdict(over <= OVER_FLOOR),
    );
    println!(
        "  and {:.2} times two round trips with an fdatasync in each",
        of(|turn| turn.cycle_us / (2.0 * turn.durable_round_trip_us))
    );
}

fn fairness(rounds: &[Round]) {
    let ours = || rounds.iter().map(|round| &round[0]);
    let (jain, overtaking) =
        (median(ours().map(|sample| sample.jain)), ours().filter_map(|sample| sample.overtaking).fold(0.0, f64::max));
    let over_mean = median(ours().map(|sample| sample.p99_ms / sample.mean_ms));
    println!("  palisade: Jain {jain:.4} (target: at least {JAIN}): {}", verdict(jain >= JAIN));
    println!("  palisade: nobody overtakes, in any round: {}", verdict(overtaking == 0.0));
    println!(
        "  palisade: p99 of the wait is {over_mean:.2} times the mean (target: at most {P99_OVER_MEAN}): {}",
        verdict(over_mean <= P99_OVER_MEAN)
    );
}

/// What the machine does beside this, if that is more than it has cores for.
fn busy() -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split(' ').next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().ok()?.get();
    (load > cores as f64).then(|| format!("load {load} on {cores} cores"))
}

pub(crate) fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}
