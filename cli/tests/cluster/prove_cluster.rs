//! `palisade prove cluster`, as a shell sees it: real nodes that are really killed, paused and cut off.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
#[cfg(feature = "etcd")]
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::Bounded;
use crate::sandbox::{Numbers, Sandbox, have_ended};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs an experiment with each kind of fault once. Checks that nothing was lost behind the fence, and that no node ended by itself.
fn short_run(sandbox: &Sandbox, options: &[&str]) -> Value {
    let output = sandbox.run_long(&[&["prove", "cluster", "--for", "1s", "--json"], options].concat());
    // In so short a time, nothing may be lost without a fence either.
    assert!(matches!(output.code, Some(0 | 1)), "{output:?}");
    assert_eq!(output.err, "");
    let report = json(&output.out);
    let strict = result(&report, "strict");
    assert_eq!((&strict["lost"], &strict["repeated"]), (&0.into(), &0.into()), "{report:#}");
    assert_eq!((&strict["number"], &strict["unsure"]), (&strict["acknowledged"], &0.into()), "{report:#}");
    assert!(strict["acknowledged"].as_u64() > Some(0), "{report:#}");
    assert_eq!(report["unexpected_ends"], Value::Array(Vec::new()), "{report:#}");
    report
}

fn result<'a>(report: &'a Value, fencing: &str) -> &'a Value {
    let results = report["schemes"].as_array().expect("a list");
    results.iter().find(|result| result["scheme"] == fencing).unwrap_or_else(|| panic!("{fencing} was not tried"))
}

fn kinds(report: &Value) -> BTreeSet<&str> {
    report["faults"].as_object().unwrap().keys().map(String::as_str).collect()
}

fn skipped(report: &Value) -> BTreeSet<&str> {
    report["skipped"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect()
}

const ON_EVERY_SYSTEM: [&str; 9] = [
    "kill-leader",
    "kill-follower",
    "kill-two",
    "pause-leader",
    "pause-follower",
    "cut-off-leader",
    "cut-off-minority",
    "one-way",
    "disk-full",
];

#[test]
fn help_has_examples_and_exit_codes() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("prove-cluster-help", sandbox.stdout(&["prove", "cluster", "--help"]));
}

#[test]
fn three_nodes_lose_nothing_behind_the_fence() {
    let sandbox = Sandbox::new();
    let report = short_run(&sandbox, &["--ttl", "1s", "--seed", "7", "--svg", "timeline.svg"]);
    let expected: BTreeSet<_> = ON_EVERY_SYSTEM.into_iter().chain(["clock"]).collect();
    assert_eq!((kinds(&report), skipped(&report)), (expected, BTreeSet::from(["ring"])), "{report:#}");
    assert_eq!((&report["system"], &report["nodes"], &report["seed"]), (&"palisade".into(), &3.into(), &7.into()));
    assert!(report["grants"].as_u64() > Some(0) && report["leaders"].as_u64() > Some(0), "{report:#}");
    assert!(report["gaps"]["longest_ms"].as_u64() >= report["gaps"]["p99_ms"].as_u64(), "{report:#}");
    let timeline = &report["timeline"];
    for fault in timeline["faults"].as_array().unwrap() {
        assert!(fault["from_ms"].as_u64() < fault["to_ms"].as_u64(), "{fault}");
        assert!(fault["nodes"][0].as_str().unwrap().starts_with("node"), "{fault}");
    }
    let drawing = fs::read_to_string(sandbox.path().join("timeline.svg")).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.contains("<title>leader killed</title>"), "{drawing}");
}

#[test]
#[ignore = "long: an experiment with faults"]
fn five_nodes_are_also_cut_to_a_ring() {
    let sandbox = Sandbox::new();
    let report = short_run(&sandbox, &["--ttl", "1s", "--nodes", "5"]);
    let expected: BTreeSet<_> = ON_EVERY_SYSTEM.into_iter().chain(["clock", "ring"]).collect();
    assert_eq!((kinds(&report), skipped(&report)), (expected, BTreeSet::new()), "{report:#}");
}

#[cfg(feature = "etcd")]
#[test]
#[ignore = "long: a cluster of etcd"]
fn etcd_loses_nothing_behind_the_fence() {
    let sandbox = Sandbox::new();
    let report = short_run(&sandbox, &["--system", "etcd", "--ttl", "2s"]);
    assert_eq!(kinds(&report), ON_EVERY_SYSTEM.into_iter().collect(), "{report:#}");
    assert_eq!(skipped(&report), BTreeSet::from(["clock", "ring"]), "{report:#}");
}

#[test]
#[ignore = "long: a cluster of ZooKeeper"]
fn zookeeper_loses_nothing_behind_the_fence() {
    let sandbox = Sandbox::new();
    let report = short_run(&sandbox, &["--system", "zookeeper", "--ttl", "2s"]);
    assert_eq!(kinds(&report), ON_EVERY_SYSTEM.into_iter().collect(), "{report:#}");
    assert_eq!(skipped(&report), BTreeSet::from(["clock", "ring"]), "{report:#}");
}

#[test]
fn the_report_is_printed_when_the_run_is_interrupted() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["prove", "cluster", "--ttl", "500ms", "--for", "1h"]);
    // Three nodes, and four writers for each of the two numbers.
    let children = running.until_children(11);
    running.signal(Signal::INT);
    let first = running.line();
    assert!(first.starts_with("Palisade, 3 nodes, 4 writers for each number, TTL 500ms, "), "{first}");
    assert!(first.ends_with(", stopped early"), "{first}");
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.starts_with("strictly fenced: ")) {
        lines.push(running.line());
    }
    assert!(lines.iter().any(|line| line.starts_with("FENCING ")), "{lines:#?}");
    assert_eq!(running.end().code(), Some(130));
    assert!(have_ended(&children));
}

#[test]
fn no_process_outlives_the_experiment() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["prove", "cluster", "--ttl", "500ms", "--for", "1h"]);
    let children = running.until_children(11);
    running.signal(Signal::KILL);
    assert_eq!(running.end().code(), None);
    assert!(have_ended(&children));
}

#[test]
fn invalid_experiments_are_refused() {
    let sandbox = Sandbox::new();
    let mut output = String::new();
    for args in [
        &["--nodes", "4"][..],
        &["--writers", "1"],
        &["--system", "consul"],
        &["--ttl", "5"],
        &["--svg", "nowhere/timeline.svg"],
        &["--url", "palisade://localhost:7420"],
    ] {
        let args = [&["prove", "cluster"], args].concat();
        output += &format!("$ palisade {}\n{}\n", args.join(" "), sandbox.stderr(64, &args));
    }
    insta::assert_snapshot!("prove-cluster-refused", sandbox.redacted(&output, Numbers::Kept));
}

#[test]
fn a_missing_program_is_named() {
    let sandbox = Sandbox::new();
    let mut systems = vec![("zookeeper", "java", "zookeeper default-jre-headless")];
    if cfg!(feature = "etcd") {
        systems.push(("etcd", "etcd", "etcd-server"));
    }
    for (system, program, package) in systems {
        let mut command = sandbox.command(&["prove", "cluster", "--system", system]);
        let output = sandbox.output(&command.env("PATH", sandbox.path()).finish());
        let message = format!("palisade: {program} is not installed; on Debian: apt-get install {package}\n");
        assert_eq!((output.code, output.err), (Some(69), message));
    }
}

/// Without it, the command waits for a minute and a half.
#[cfg(feature = "etcd")]
#[test]
fn nodes_that_do_not_start_are_reported_before_the_time_out() {
    let sandbox = Sandbox::new();
    let program = sandbox.path().join("etcd");
    fs::write(&program, "#!/bin/sh\n[ \"$1\" = --version ] || { echo 'no such option'; exit 2; }\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = sandbox.command(&["prove", "cluster", "--system", "etcd"]);
    let output = sandbox.output(&command.env("PATH", sandbox.path()).finish());
    assert_eq!(output.code, Some(69), "{output:?}");
    assert!(output.err.contains("the nodes do not start; they printed:\nnode1: no such option\n"), "{output:?}");
}

#[cfg(not(feature = "etcd"))]
#[test]
fn a_build_without_etcd_says_so() {
    let error = Sandbox::new().stderr(64, &["prove", "cluster", "--system", "etcd"]);
    assert!(error.contains("this palisade was built without etcd"), "{error}");
}
