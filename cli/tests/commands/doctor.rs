//! `palisade doctor`, as a shell sees it: the real binary on real files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use palisade::engine::Watched;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::{Bounded, within};
use crate::sandbox::{Numbers, Sandbox};

/// The beginning of the measurement, which is a warning on a slow disk.
const MEASURED: &str = "20 times acquired and released: median ";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("{check} was not looked at"))
}

/// Removes the lines that depend on the machine: its file systems, its limits, its speed.
fn machine_independent(text: &str) -> String {
    let mut rest = String::new();
    let mut is_dropped = false;
    for line in text.lines() {
        let is_advice = line.trim_start().starts_with("to do:");
        let is_independent =
            ["file-system", "disk-space", "listeners", "It can be used", MEASURED].iter().all(|w| !line.contains(w));
        is_dropped = if is_advice { is_dropped } else { !is_independent };
        if !is_dropped {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    rest
}

#[test]
fn help_has_examples() {
    insta::assert_snapshot!("doctor-help", Sandbox::new().stdout(&["doctor", "--help"]));
}

#[test]
fn an_engine_that_works_is_described_and_measured() {
    let sandbox = Sandbox::new();
    let text = sandbox.stdout(&["doctor"]);
    assert!(text.contains(MEASURED), "{text}");
    let independent = sandbox.redacted(&machine_independent(&text), Numbers::Hidden);
    insta::assert_snapshot!("doctor-text", independent);
    assert!(text.trim_end().lines().last().unwrap().starts_with("It can be used"), "{text}");
    assert!(!text.contains('\u{1b}'));
    assert!(sandbox.client("a").list("palisade-doctor/").unwrap().is_empty(), "its lock is gone");
}

#[test]
fn json_has_a_stable_form() {
    let report = json(&Sandbox::new().stdout(&["doctor", "--json"]));
    let keys: Vec<_> = report.as_object().unwrap().keys().cloned().collect();
    let mut expected = ["schema", "url", "usable", "guarantees", "speed", "findings"];
    expected.sort();
    assert_eq!(
        (keys, &report["schema"], &report["usable"]),
        (expected.map(str::to_owned).to_vec(), &1.into(), &true.into())
    );
    assert_eq!(report["guarantees"]["level"], "fenced");
    assert_eq!(report["speed"]["cycles"], 20);
    assert!(report["speed"]["worst_us"].as_u64() >= report["speed"]["p50_us"].as_u64());
    for check in ["answers", "file", "file-system", "directory", "disk-space", "listeners"] {
        let finding = finding(&report, check);
        assert!(["ok", "warning"].iter().any(|status| finding["status"] == *status), "{finding}");
        assert_eq!(finding["status"] == "ok", finding["advice"].is_null(), "{finding}");
    }
}

#[test]
fn a_world_writable_directory_is_usable_with_a_warning() {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let report = json(&sandbox.stdout(&["doctor", "--json"]));
    let text = serde_json::to_string_pretty(finding(&report, "directory")).unwrap();
    insta::assert_snapshot!("doctor-open-directory", sandbox.redacted(&text, Numbers::Kept));
    assert_eq!(report["usable"], true);
}

#[test]
fn an_engine_that_cannot_be_used_exits_69_with_a_report() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("notes.txt"), "this is no database, but long enough to look at").unwrap();
    let mut output = String::new();
    for url in ["embedded:nowhere/locks.db", "embedded:notes.txt"] {
        let outcome = sandbox.run(&["doctor", url]);
        assert_eq!(outcome.code, Some(69), "{url}");
        output += &format!("{}{}\n", machine_independent(&outcome.out), outcome.err);
        let report = json(&sandbox.run(&["doctor", url, "--json"]).out);
        assert_eq!((&report["usable"], &report["guarantees"]), (&false.into(), &Value::Null), "{url}");
    }
    insta::assert_snapshot!("doctor-unusable", sandbox.redacted(&output, Numbers::Kept));
}

#[test]
fn a_url_of_no_engine_is_misuse() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("doctor-misuse", sandbox.stderr(64, &["doctor", "nothing://localhost"]));
}

#[test]
fn the_url_argument_takes_precedence_over_the_environment() {
    let sandbox = Sandbox::new();
    let report = json(&sandbox.stdout(&["doctor", "memory:", "--json"]));
    assert_eq!((&report["url"], &finding(&report, "sharing")["status"]), (&"memory:".into(), &"warning".into()));
}

#[test]
fn the_test_lock_is_released_on_interrupt() {
    let sandbox = Sandbox::new();
    let observer = sandbox.client("observer");
    // The doctor may finish before the signal arrives. Then try again.
    let was_interrupted = (0..50).any(|_| {
        let mut watch = observer.watch("palisade-doctor/").unwrap();
        let doctor = sandbox.start(&["doctor"]);
        let is_grant = |seen: Watched| matches!(seen, Watched::Event(palisade::Event::Granted { .. }));
        assert!(
            within("a grant of the test lock", move || watch.any(is_grant)),
            "the watch lasts as long as its client"
        );
        doctor.signal(Signal::INT);
        let code = doctor.end().code();
        assert!(observer.list("palisade-doctor/").unwrap().is_empty(), "its lock is gone");
        assert!(matches!(code, Some(0 | 130)), "{code:?}");
        code == Some(130)
    });
    assert!(was_interrupted, "the doctor always finished before the signal arrived");
}

#[test]
fn a_hard_link_is_refused_with_advice_and_a_symbolic_link_is_named() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("locks.db");
    sandbox.stdout(&["doctor"]);
    std::os::unix::fs::symlink("locks.db", sandbox.path().join("link.db")).unwrap();
    let report = json(&sandbox.stdout(&["doctor", "embedded:link.db", "--json"]));
    let says = finding(&report, "file")["says"].as_str().unwrap();
    assert!(says.starts_with(&file.display().to_string()) && says.contains("through "), "{says}");

    fs::hard_link(&file, sandbox.path().join("second.db")).unwrap();
    let refused = sandbox.run(&["doctor", "--json"]);
    assert_eq!(refused.code, Some(69));
    let says = finding(&json(&refused.out), "answers")["says"].to_string();
    assert!(says.contains("has 2 hard links") && says.contains("remove the others"), "{says}");
}

/// With the group, its members share the file. Without it, the file is root's.
#[test]
fn ls_acquire_and_doctor_name_the_default_file() {
    let script =
        "$PALISADE acquire x; $PALISADE ls 2>&1; $PALISADE doctor; stat -c 'mode %a' /var/lib/palisade-locks";
    for (groups, mode) in [("root:x:0:\n", "700"), ("root:x:0:\npalisade-locks:x:0:\n", "2770")] {
        let sandbox = Sandbox::new();
        let output = sandbox.output(&sandbox.on_own_host(groups, script).finish());
        assert_eq!(output.code, Some(0), "{output:?}");
        let file = "/var/lib/palisade-locks/locks.db";
        for part in [
            format!("PALISADE_URL=embedded://{file}"),
            format!("the locks in {file}"),
            format!("file         {file}"),
            format!("mode {mode}\n"),
        ] {
            assert!(output.out.contains(&part), "'{part}' is not in: {}", output.out);
        }
    }
}
