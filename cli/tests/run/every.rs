//! `--every`: at most one run in a period, whoever comes first.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cast::{Scene, Started};

#[test]
fn of_many_at_once_exactly_one_runs_and_the_others_say_nothing() {
    let scene = Scene::new();
    let all: Vec<Started> = (0..12).map(|_| scene.start(&["--every", "1h", "x"], "echo ran")).collect();
    let ended: Vec<_> = all.into_iter().map(Started::end).collect();
    assert!(ended.iter().all(|one| one.code == 0 && one.errors.is_empty()), "{ended:?}");
    assert_eq!(ended.iter().filter(|one| one.said == ["ran"]).count(), 1, "{ended:?}");
    scene.run(&["--every", "1h", "x"], "echo ran").expect(0, &[]);
}

#[test]
fn one_that_comes_too_soon_can_be_heard_to_do_nothing() {
    let scene = Scene::new();
    scene.run(&["--every", "1h", "x"], "echo ran").expect(0, &["ran"]);
    let ended = Started::new(scene.command(&["-v", "run", "--every", "1h", "x", "--", "echo", "ran"])).end();
    assert_eq!((ended.code, ended.said.len()), (0, 0));
    assert_eq!(ended.errors, "palisade: x has run in this period already: nothing to do\n");
}

#[test]
fn a_new_period_begins_when_the_old_one_is_over() {
    let scene = Scene::new();
    let began = Instant::now();
    scene.run(&["--every", "2s", "x"], "echo ran").expect(0, &["ran"]);
    scene.run(&["--every", "2s", "--no-wait", "x"], "echo ran").expect(0, &[]);
    // It waits for the rest, if it may.
    scene.run(&["--every", "2s", "--wait", "1m", "x"], "echo ran").expect(0, &["ran"]);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    scene.run(&["--every", "2s", "--no-wait", "x"], "echo ran").expect(0, &[]);
}

#[test]
fn one_that_comes_a_little_early_waits_for_the_rest() {
    let scene = Scene::new();
    scene.run(&["--every", "3s", "x"], "echo ran").expect(0, &["ran"]);
    let observer = scene.observer();
    let left = || observer.inspect("x.every").unwrap().and_then(|lock| lock.holders[0].time_left_ms);
    crate::cast::until(|| left().is_none_or(|left| left < 250));
    scene.run(&["--every", "3s", "x"], "echo ran").expect(0, &["ran"]);
}

#[test]
fn a_run_that_fails_or_is_killed_uses_up_the_period() {
    let scene = Scene::new();
    scene.run(&["--every", "1h", "fails"], "exit 3").expect(3, &[]);
    scene.run(&["--every", "1h", "fails"], "echo ran").expect(0, &[]);
    let mut killed = scene.start(&["--every", "1h", "killed"], "echo in; read go");
    killed.expect("in");
    killed.signal(Signal::KILL);
    killed.end().expect(137, &[]);
    scene.run(&["--every", "1h", "killed"], "echo ran").expect(0, &[]);
}

#[test]
fn one_that_does_not_get_the_lock_gives_the_period_back() {
    let scene = Scene::new();
    let mut holder = scene.start(&["x"], "echo in; read go");
    holder.expect("in");
    scene.run(&["--every", "1h", "--no-wait", "x"], "echo ran").expect_failure(75, "'x' was not obtained");
    let waiter = scene.queue(&["--every", "1h", "x"], "echo ran");
    waiter.signal(Signal::INT);
    waiter.end().expect(130, &[]);
    let waiter = scene.queue(&["--every", "1h", "x"], "echo ran");
    waiter.signal(Signal::KILL);
    waiter.end().expect(137, &[]);
    holder.tell("go");
    holder.end().expect(0, &[]);
    scene.run(&["--every", "1h", "x"], "echo ran").expect(0, &["ran"]);
}

#[test]
fn two_names_have_two_periods() {
    let scene = Scene::new();
    for name in ["x", "y"] {
        scene.run(&["--every", "1h", name], "echo ran").expect(0, &["ran"]);
    }
}

/// Where Debian's package `faketime` has its library.
fn faketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
    let library = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.exists());
    library.expect("faketime is not installed: run scripts/setup")
}

#[test]
fn a_wall_clock_that_is_wrong_makes_no_difference() {
    let scene = Scene::new();
    let at = |offset: &str, options: &[&str]| {
        let mut command = scene.script(options, "date +%Y; echo ran");
        command.env("LD_PRELOAD", faketime()).env("FAKETIME", offset).env("DONT_FAKE_MONOTONIC", "1");
        Started::new(command).end()
    };
    let first = at("+0", &["--every", "3s", "x"]);
    assert_eq!((first.code, first.said.len()), (0, 2), "{first:?}");
    let ahead = at("+10y", &["--every", "3s", "--no-wait", "x"]);
    assert_eq!((ahead.code, ahead.said.len()), (0, 0), "{ahead:?}");
    thread::sleep(Duration::from_secs(3));
    let behind = at("-10y", &["--every", "3s", "x"]);
    assert_eq!((behind.code, behind.said.len()), (0, 2), "{behind:?}");
    assert_ne!(behind.said[0], first.said[0], "the clock was moved");
}
