//! Runs simulations: `scripts/simulate` has the usage.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use palisade_testbench::simulation::{Coverage, Outcome, Plan, run, shrink};

/// What the caller wants.
struct Arguments {
    seeds: Range<u64>,
    limit: Option<Duration>,
    /// One seed: its trace is printed.
    one: Option<u64>,
    is_shrunk: bool,
    is_speed: bool,
    /// Fails if something of the table has never happened.
    needs_all: bool,
    threads: usize,
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("simulate: see scripts/simulate --help");
        return ExitCode::from(64);
    };
    if arguments.is_speed {
        return measure_speed();
    }
    match arguments.one {
        Some(seed) => run_one(seed, arguments.is_shrunk),
        None => run_many(&arguments),
    }
}

fn parse(words: impl Iterator<Item = String>) -> Option<Arguments> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut arguments = Arguments {
        seeds: 0..200,
        limit: None,
        one: None,
        is_shrunk: false,
        is_speed: false,
        needs_all: false,
        threads,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => {
                let range = words.next()?;
                let (from, to) = range.split_once("..").unwrap_or(("0", &range));
                arguments.seeds = from.parse().ok()?..to.parse().ok()?;
            }
            "--hours" => {
                let hours: f64 = words.next()?.parse().ok()?;
                arguments.limit = Some(Duration::try_from_secs_f64(hours * 3600.0).ok()?);
                arguments.seeds.end = u64::MAX;
            }
            "--seed" => arguments.one = Some(words.next()?.parse().ok()?),
            "--threads" => arguments.threads = words.next()?.parse().ok()?,
            "--shrink" => arguments.is_shrunk = true,
            "--speed" => arguments.is_speed = true,
            "--all" => arguments.needs_all = true,
            _ => return None,
        }
    }
    Some(arguments)
}

fn run_one(seed: u64, is_shrunk: bool) -> ExitCode {
    let plan = Plan::of_seed(seed);
    println!("{plan:?}");
    let (plan, outcome) = match is_shrunk {
        true => shrink(&plan),
        false => (plan.clone(), run(&plan, true)),
    };
    if is_shrunk {
        println!("shrunk to {plan:?}");
    }
    match outcome.trace.whole() {
        Some(whole) => print!("{whole}"),
        None => outcome.trace.last_lines(400).for_each(|line| println!("{line}")),
    }
    println!(
        "seed {seed}: {:.1} s simulated, {} faults, {} grants, trace {:016x}",
        outcome.simulated.as_secs_f64(),
        outcome.faults,
        outcome.grants,
        outcome.trace.checksum()
    );
    match outcome.failure {
        Some(failure) => {
            println!("BROKEN: {failure}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// The sums of all simulations so far.
#[derive(Default)]
struct Sums {
    seeds: u64,
    simulated: Duration,
    faults: usize,
    grants: usize,
    coverage: Coverage,
    failed: Vec<(u64, String)>,
}

fn run_many(arguments: &Arguments) -> ExitCode {
    let next = AtomicU64::new(arguments.seeds.start);
    let (sums, has_failed, began_at) = (Mutex::new(Sums::default()), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = arguments.limit.is_some_and(|limit| began_at.elapsed() >= limit);
                    if seed >= arguments.seeds.end || is_over || has_failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = run_guarded(seed);
                    has_failed.fetch_or(outcome.failure.is_some(), Ordering::Relaxed);
                    add(&sums, seed, outcome, began_at);
                }
            });
        }
    });
    report(&sums.into_inner().unwrap_or_else(PoisonError::into_inner), arguments, began_at)
}

/// Runs a seed. A panic is a failure, too.
fn run_guarded(seed: u64) -> Outcome {
    let plan = Plan::of_seed(seed);
    match std::panic::catch_unwind(|| run(&plan, false)) {
        Ok(outcome) => outcome,
        Err(_) => Outcome {
            failure: Some("it panicked; the message is above".to_owned()),
            trace: Default::default(),
            coverage: Coverage::default(),
            simulated: Duration::ZERO,
            faults: 0,
            grants: 0,
        },
    }
}

fn add(sums: &Mutex<Sums>, seed: u64, outcome: Outcome, began_at: Instant) {
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    sums.seeds += 1;
    sums.simulated += outcome.simulated;
    sums.faults += outcome.faults;
    sums.grants += outcome.grants;
    sums.coverage.add(&outcome.coverage);
    if let Some(failure) = outcome.failure {
        println!("seed {seed}, commit {}", commit());
        outcome.trace.last_lines(40).for_each(|line| println!("  {line}"));
        println!("seed {seed} BROKEN: {failure}");
        println!("repeat it: scripts/simulate --seed {seed}    make it smaller: add --shrink");
        sums.failed.push((seed, failure));
    }
    if sums.seeds.is_multiple_of(100) {
        eprintln!(
            "{} seeds, {:.0} simulated minutes ({:.0} times real time), {} faults, {} grants",
            sums.seeds,
            sums.simulated.as_secs_f64() / 60.0,
            sums.simulated.as_secs_f64() / began_at.elapsed().as_secs_f64(),
            sums.faults,
            sums.grants
        );
    }
}

/// Returns the commit that is checked out, for the report.
fn commit() -> String {
    let described = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    described.map_or_else(|_| "unknown".to_owned(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn report(sums: &Sums, arguments: &Arguments, began_at: Instant) -> ExitCode {
    let took = began_at.elapsed().as_secs_f64();
    for (what, count) in sums.coverage.table() {
        println!("{count:>12}  {what}");
    }
    println!(
        "{} seeds from {}, {:.1} simulated minutes in {took:.1} s ({:.0} times real time), {} faults, {} grants",
        sums.seeds,
        arguments.seeds.start,
        sums.simulated.as_secs_f64() / 60.0,
        sums.simulated.as_secs_f64() / took,
        sums.faults,
        sums.grants
    );
    let missing = sums.coverage.missing();
    if !missing.is_empty() {
        println!("never happened: {}", missing.join("; "));
    }
    match sums.failed.is_empty() && (missing.is_empty() || !arguments.needs_all) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn measure_speed() -> ExitCode {
    let began_at = Instant::now();
    let outcome = run(&Plan::for_speed(1), false);
    let took = began_at.elapsed().as_secs_f64();
    println!(
        "three nodes and ten clients: {:.0} s simulated in {took:.2} s, {:.0} times real time; {} grants, {} faults",
        outcome.simulated.as_secs_f64(),
        outcome.simulated.as_secs_f64() / took,
        outcome.grants,
        outcome.faults
    );
    if let Some(failure) = outcome.failure {
        println!("BROKEN: {failure}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
