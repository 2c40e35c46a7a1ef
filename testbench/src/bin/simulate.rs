//! Runs simulations: `scripts/simulate` has the usage.
#![allow(clippy::print_stderr)]
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use palisade_testbench::simulation::{Coverage, EXPECTED, Outcome, Plan, run, shrink};

/// One seed in this many runs twice: both times must give the same trace.
const TWICE: u64 = 64;

/// Prints a line. The reader may have left.
macro_rules! say {
    ($($what:tt)*) => {{ let _ = writeln!(std::io::stdout(), $($what)*); }};
}

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
    match parse(std::env::args().skip(1)) {
        Err(what) => {
            eprintln!("simulate: {what}; see scripts/simulate --help");
            ExitCode::from(64)
        }
        Ok(arguments) if arguments.is_speed => measure_speed(),
        Ok(arguments) => match arguments.one {
            Some(seed) => run_one(seed, arguments.is_shrunk),
            None => run_many(&arguments),
        },
    }
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
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
    let (mut words, mut modes) = (words, Vec::new());
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let wrong = |value: &str| format!("{word} {value} is not possible");
        match word.as_str() {
            "--seeds" => {
                let range = value()?;
                let (from, to) = range.split_once("..").ok_or_else(|| wrong(&range))?;
                let bound = |number: &str| number.parse().map_err(|_| wrong(&range));
                arguments.seeds = bound(from)?..bound(to)?;
                if arguments.seeds.is_empty() {
                    return Err(format!("{word} {range} is no seed"));
                }
            }
            "--hours" => {
                let hours = value()?;
                let limit = hours.parse().ok().map(|hours: f64| Duration::try_from_secs_f64(hours * 3600.0));
                match limit {
                    Some(Ok(limit)) if !limit.is_zero() => arguments.limit = Some(limit),
                    _ => return Err(wrong(&hours)),
                }
            }
            "--seed" => {
                let seed = value()?;
                arguments.one = Some(seed.parse().map_err(|_| wrong(&seed))?);
            }
            "--threads" => {
                let threads = value()?;
                arguments.threads =
                    threads.parse().ok().filter(|threads| *threads > 0).ok_or_else(|| wrong(&threads))?;
            }
            "--shrink" => arguments.is_shrunk = true,
            "--speed" => arguments.is_speed = true,
            "--all" => arguments.needs_all = true,
            _ => return Err(format!("{word} is unknown")),
        }
        if ["--seeds", "--seed", "--speed"].contains(&word.as_str()) {
            modes.push(word);
        }
    }
    match (&*modes, &arguments) {
        ([first, second, ..], _) => Err(format!("{first} and {second} exclude each other")),
        (_, Arguments { is_shrunk: true, one: None, .. }) => Err("--shrink needs --seed".to_owned()),
        (_, Arguments { limit: Some(_), .. }) => {
            let end = if modes.is_empty() { u64::MAX } else { arguments.seeds.end };
            Ok(Arguments { seeds: arguments.seeds.start..end, ..arguments })
        }
        _ => Ok(arguments),
    }
}

fn run_one(seed: u64, is_shrunk: bool) -> ExitCode {
    let plan = Plan::of_seed(seed);
    say!("{plan}");
    let outcome = match is_shrunk {
        true => {
            let (smaller, outcome) = shrink(&plan);
            match outcome.failure {
                Some(_) => say!("shrunk to {smaller}"),
                None => {
                    say!("no promise was broken, so there is nothing to shrink");
                    return ExitCode::SUCCESS;
                }
            }
            outcome
        }
        false => run(&plan, true),
    };
    match outcome.trace.whole() {
        Some(whole) => say!("{}", whole.trim_end()),
        None => outcome.trace.last_lines(400).for_each(|line| say!("{line}")),
    }
    say!(
        "seed {seed}: {:.1} s simulated, {} faults, {} grants, trace {:016x}",
        outcome.simulated.as_secs_f64(),
        outcome.faults,
        outcome.grants,
        outcome.trace.checksum()
    );
    match outcome.failure {
        Some(failure) => {
            say!("BROKEN: {failure}");
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
    /// How many of the seeds are quiet worlds, and how long those ran.
    quiet: (u64, Duration),
    /// How many seeds ran twice.
    twice: u64,
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

/// Runs a seed, a few of them twice. A panic is a failure, too.
fn run_guarded(seed: u64) -> Outcome {
    let plan = Plan::of_seed(seed);
    let run_twice = || {
        let mut outcome = run(&plan, false);
        if seed.is_multiple_of(TWICE) && outcome.trace.checksum() != run(&plan, false).trace.checksum() {
            outcome.failure.get_or_insert_with(|| "it does not give the same trace twice".to_owned());
        }
        outcome
    };
    match std::panic::catch_unwind(run_twice) {
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
    if Plan::of_seed(seed).is_quiet() {
        sums.quiet = (sums.quiet.0 + 1, sums.quiet.1 + outcome.simulated);
    }
    sums.twice += u64::from(seed.is_multiple_of(TWICE));
    sums.faults += outcome.faults;
    sums.grants += outcome.grants;
    sums.coverage.add(&outcome.coverage);
    if let Some(failure) = outcome.failure {
        say!("seed {seed}, commit {}", commit());
        outcome.trace.last_lines(40).for_each(|line| say!("  {line}"));
        say!("seed {seed} BROKEN: {failure}");
        say!("repeat it: scripts/simulate --seed {seed}    make it smaller: add --shrink");
        sums.failed.push((seed, failure));
    }
    if sums.seeds.is_multiple_of(100) {
        eprintln!(
            "{} seeds, {:.0} simulated minutes ({:.0} times real time), {} planned faults, {} grants, {} of {} faults and rare paths",
            sums.seeds,
            sums.simulated.as_secs_f64() / 60.0,
            sums.simulated.as_secs_f64() / began_at.elapsed().as_secs_f64(),
            sums.faults,
            sums.grants,
            EXPECTED.len() - sums.coverage.missing().len(),
            EXPECTED.len(),
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
        say!("{count:>12}  {what}");
    }
    let minutes = |simulated: Duration| simulated.as_secs_f64() / 60.0;
    let (quiet_seeds, quiet) = sums.quiet;
    say!(
        "{} seeds from {}, {} planned faults, {} grants, {:.0} simulated minutes in {took:.0} s",
        sums.seeds,
        arguments.seeds.start,
        sums.faults,
        sums.grants,
        minutes(sums.simulated),
    );
    say!(
        "of these {quiet_seeds} seeds with {:.0} minutes are quiet worlds; {} seeds ran twice and gave the same trace",
        minutes(quiet),
        sums.twice,
    );
    let missing = sums.coverage.missing();
    if !missing.is_empty() {
        say!("never happened: {}", missing.join("; "));
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
    say!(
        "three nodes and ten clients: {:.0} s simulated in {took:.2} s, {:.0} times real time; {} grants, {} faults",
        outcome.simulated.as_secs_f64(),
        outcome.simulated.as_secs_f64() / took,
        outcome.grants,
        outcome.faults
    );
    if let Some(failure) = outcome.failure {
        say!("BROKEN: {failure}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
