//! `--every`: at most one run in a period.

use std::time::{Duration, Instant};

use palisade_cli::harness::wall_clock::library;
use rustix::process::Signal;

use crate::common::bounded::until;
use crate::fixture::{Fixture, Running};

#[test]
fn of_many_simultaneous_runs_exactly_one_runs() {
    let fixture = Fixture::new();
    let all: Vec<Running> = (0..12).map(|_| fixture.start(&["--every", "1h", "x"], "echo ran")).collect();
    let ended: Vec<_> = all.into_iter().map(Running::end).collect();
    assert!(ended.iter().all(|one| one.code == 0 && one.errors.is_empty()), "{ended:?}");
    assert_eq!(ended.iter().filter(|one| one.stdout == ["ran"]).count(), 1, "{ended:?}");
    fixture.run(&["--every", "1h", "x"], "echo ran").expect(0, &[]);
}

#[test]
fn a_run_that_is_too_early_says_so_with_verbose() {
    let fixture = Fixture::new();
    fixture.run(&["--every", "1h", "x"], "echo ran").expect(0, &["ran"]);
    let ended = Running::new(fixture.command(&["-v", "run", "--every", "1h", "x", "--", "echo", "ran"])).end();
    assert_eq!((ended.code, ended.stdout.len()), (0, 0));
    assert_eq!(ended.errors, "palisade: x has run in this period already: nothing to do\n");
}

#[test]
fn a_new_period_begins_when_the_old_one_is_over() {
    let fixture = Fixture::new();
    let began = Instant::now();
    fixture.run(&["--every", "6s", "x"], "echo ran").expect(0, &["ran"]);
    // It waits for the rest, if it may.
    fixture.run(&["--every", "1h", "--wait", "1m", "x"], "echo ran").expect(0, &["ran"]);
    assert!(began.elapsed() >= Duration::from_secs(6), "{:?}", began.elapsed());
    for wait in [&["--no-wait"][..], &["--wait", "1m"]] {
        fixture.run(&[wait, &["--every", "1h", "x"]].concat(), "echo ran").expect(0, &[]);
    }
}

/// It waits for a tenth of the period at most.
#[test]
#[ignore = "long: several seconds"]
fn a_run_that_is_slightly_early_waits() {
    let fixture = Fixture::new();
    fixture.run(&["--every", "30s", "x"], "echo ran").expect(0, &["ran"]);
    let observer = fixture.observer();
    let left = || observer.inspect("x.every").unwrap().and_then(|lock| lock.holders.first()?.time_left_ms);
    until("the period is almost over", || left().is_none_or(|left| left < 1500));
    fixture.run(&["--every", "30s", "x"], "echo ran").expect(0, &["ran"]);
}

#[test]
fn a_run_that_fails_or_is_killed_uses_up_the_period() {
    let fixture = Fixture::new();
    fixture.run(&["--every", "1h", "fails"], "exit 3").expect(3, &[]);
    fixture.run(&["--every", "1h", "fails"], "echo ran").expect(0, &[]);
    let mut killed = fixture.start(&["--every", "1h", "killed"], "echo in; read go");
    killed.expect("in");
    killed.signal(Signal::KILL);
    killed.end().expect(137, &[]);
    fixture.run(&["--every", "1h", "killed"], "echo ran").expect(0, &[]);
}

#[test]
fn a_run_that_does_not_get_the_lock_releases_the_period() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go");
    holder.expect("in");
    fixture.run(&["--every", "1h", "--no-wait", "x"], "echo ran").expect_failure(75, "'x' was not acquired");
    let waiter = fixture.queue(&["--every", "1h", "x"], "echo ran");
    waiter.signal(Signal::INT);
    waiter.end().expect(130, &[]);
    let waiter = fixture.queue(&["--every", "1h", "x"], "echo ran");
    waiter.signal(Signal::KILL);
    waiter.end().expect(137, &[]);
    holder.send_line("go");
    holder.end().expect(0, &[]);
    fixture.run(&["--every", "1h", "x"], "echo ran").expect(0, &["ran"]);
}

/// The test pauses a run that waits for its lock until the run's period expires. Another run begins the next period.
#[test]
fn a_run_whose_period_has_expired_does_not_run_in_that_of_another() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go");
    holder.expect("in");
    let paused = fixture.queue(&["--every", "10s", "x"], "echo ran twice");
    paused.signal(Signal::STOP);
    until("the period has expired", || !fixture.is_held("x.every"));
    let other = fixture.queue(&["--every", "1h", "x"], "echo ran");
    // The paused run is the first in the queue, and leaves it to the other one once it notices that its period is over.
    holder.send_line("go");
    holder.end().expect(0, &[]);
    paused.signal(Signal::CONT);
    paused.end().expect(0, &[]);
    other.end().expect(0, &["ran"]);
}

#[test]
fn two_names_have_two_periods() {
    let fixture = Fixture::new();
    for name in ["x", "y"] {
        fixture.run(&["--every", "1h", name], "echo ran").expect(0, &["ran"]);
    }
}

#[test]
fn a_wall_clock_that_is_wrong_makes_no_difference() {
    let fixture = Fixture::new();
    let at = |offset: &str, options: &[&str]| {
        let mut command = fixture.script(options, "date +%Y; echo ran");
        command.env("LD_PRELOAD", library().expect("faketime is not installed: run scripts/setup"));
        command.env("FAKETIME", offset).env("DONT_FAKE_MONOTONIC", "1");
        Running::new(command).end()
    };
    let began = Instant::now();
    let first = at("+0", &["--every", "6s", "x"]);
    assert_eq!((first.code, first.stdout.len()), (0, 2), "{first:?}");
    let behind = at("-10y", &["--every", "1h", "--wait", "1m", "x"]);
    assert_eq!((behind.code, behind.stdout.len()), (0, 2), "{behind:?}");
    assert!(began.elapsed() >= Duration::from_secs(6), "{:?}", began.elapsed());
    assert_ne!(behind.stdout[0], first.stdout[0], "the clock was moved");
    let ahead = at("+10y", &["--every", "1h", "--no-wait", "x"]);
    assert_eq!((ahead.code, ahead.stdout.len()), (0, 0), "{ahead:?}");
}
