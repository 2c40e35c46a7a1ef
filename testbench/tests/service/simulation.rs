//! The simulation of the whole system: a few seeds, and that a seed decides everything. `scripts/simulate` runs more of them, faster.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use palisade_testbench::simulation::{Coverage, Plan, run};

/// Short, because the code is not optimised here.
fn short(seed: u64) -> Plan {
    let plan = Plan::of_seed(seed);
    Plan { clients: plan.clients.min(6), duration: plan.duration.min(Duration::from_secs(25)), ..plan }
}

#[test]
#[ignore = "long: without optimisation, and scripts/simulate does the same"]
fn no_promise_is_broken_whatever_fails() {
    let mut coverage = Coverage::default();
    for seed in (0..24).chain([u64::MAX]) {
        let outcome = run(&short(seed), false);
        assert_eq!(outcome.failure, None, "seed {seed}:\n{}", lines(outcome.trace.last_lines(60)));
        coverage.add(&outcome.coverage);
    }
    for path in ["path: election", "path: snapshot sent", "path: session expired", "fault: power cut"] {
        assert!(coverage.of(path) > 0, "{path} never happened");
    }
}

fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

/// Seeds that have found a fault late in their run.
#[test]
fn faults_that_were_found_late_do_not_come_back() {
    for seed in [7228, 10374] {
        let outcome = run(&Plan::of_seed(seed), false);
        assert_eq!(outcome.failure, None, "seed {seed}:\n{}", lines(outcome.trace.last_lines(60)));
    }
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    let [first, again, other] = [3, 3, 4].map(|seed| run(&short(seed), true).trace);
    assert_eq!(first.whole().unwrap(), again.whole().unwrap());
    assert_eq!(first.checksum(), again.checksum());
    assert_ne!(first.whole().unwrap(), other.whole().unwrap());
}

#[test]
fn a_run_that_would_simulate_nothing_is_refused() {
    let words: [&[&str]; 7] = [
        &["--seeds", "5..5"],
        &["--seeds", "5"],
        &["--hours", "0"],
        &["--threads", "0"],
        &["--seed"],
        &["--seed", "1", "--seeds", "0..2"],
        &["--shrink"],
    ];
    for words in words {
        let simulate = Command::new(env!("CARGO_BIN_EXE_simulate")).args(words).output().unwrap();
        assert_eq!(simulate.status.code(), Some(64), "{words:?}");
        let message = String::from_utf8(simulate.stderr).unwrap();
        assert!(message.ends_with("; see scripts/simulate --help\n"), "{message}");
    }
}

/// Otherwise clients would wait for elections that nothing has caused.
#[test]
fn a_quiet_cluster_elects_once() {
    for seed in 0..4 {
        let plan = Plan { nodes: 3, spares: 0, faults: 0, ..short(seed) };
        let outcome = run(&plan, false);
        assert_eq!(outcome.failure, None, "seed {seed}");
        assert_eq!(outcome.coverage.of("path: election"), 1, "seed {seed}");
    }
}
