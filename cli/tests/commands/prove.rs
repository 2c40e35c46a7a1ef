//! `palisade prove`, as a shell sees it: real processes that are really stopped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use palisade::engine::Watched;
use palisade::{Ending, Event, SessionEnd};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::bounded::{Bounded, within};
use crate::sandbox::{Numbers, Sandbox, have_ended};

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Returns the result with one kind of fencing.
fn result<'a>(report: &'a Value, fencing: &str) -> &'a Value {
    let results = report["schemes"].as_array().expect("a list");
    results.iter().find(|result| result["scheme"] == fencing).unwrap_or_else(|| panic!("{fencing} was not tried"))
}

/// Returns the test data that an experiment has left in the sandbox.
fn leftovers(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.contains("palisade_proof")).collect()
}

#[test]
fn help_has_examples_and_exit_codes() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("prove-help", sandbox.stdout(&["prove", "--help"]));
    insta::assert_snapshot!("prove-pauses-help", sandbox.stdout(&["prove", "pauses", "--help"]));
    insta::assert_snapshot!("prove-order-help", sandbox.stdout(&["prove", "order", "--help"]));
    insta::assert_snapshot!("prove-redlock-help", sandbox.stdout(&["prove", "redlock", "--help"]));
}

#[test]
#[ignore = "long: several seconds"]
fn without_a_fence_paused_writers_lose_updates_and_behind_the_strict_one_none() {
    let sandbox = Sandbox::new();
    let args = ["prove", "pauses", "--resource", "file:.", "--ttl", "500ms", "--overtaken", "2", "--json"];
    let report = json(&sandbox.stdout_long(&args));
    for name in ["none", "ratchet", "strict"] {
        assert!(result(&report, name)["overtaken"].as_u64() >= Some(2), "{report:#}");
    }
    // Each overtaken writer wrote the same number as another one.
    assert!(result(&report, "none")["lost"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(result(&report, "none")["refused"], 0, "{report:#}");
    let strict = result(&report, "strict");
    assert_eq!((&strict["lost"], &strict["repeated"]), (&0.into(), &0.into()), "{report:#}");
    assert_eq!((&strict["number"], &strict["unsure"]), (&strict["acknowledged"], &0.into()), "{report:#}");
    assert!(strict["refused"].as_u64() >= Some(2), "{report:#}");
    assert_eq!(report["shown"], true);
    assert_eq!(leftovers(&sandbox), [""; 0]);
}

#[test]
fn the_report_is_a_table_and_a_line_for_each_kind_of_fencing() {
    let sandbox = Sandbox::new();
    let args =
        ["prove", "pauses", "--resource", "sqlite:try.db", "--ttl", "300ms", "--overtaken", "1", "--seed", "7"];
    let text = sandbox.stdout_long(&args);
    let lines: Vec<&str> = text.lines().collect();
    let head = sandbox.redacted(&lines[..2].join("\n"), Numbers::Kept);
    assert_eq!(
        head,
        "SQLite try.db, locks of embedded://[DIR]/locks.db\n5 writers, TTL 300ms, until one writer was overtaken, seed 7"
    );
    assert_eq!(lines[3], "FENCING          ACKNOWLEDGED  REFUSED  LOST  PAUSES  OVERTAKEN");
    for (line, name) in lines[4..7].iter().zip(["no fence", "ratchet", "strictly fenced"]) {
        assert!(
            line.starts_with(name) && line.split_whitespace().rev().take(5).all(|word| word.parse::<u64>().is_ok())
        );
    }
    assert!(lines[8].starts_with("no fence: ") && lines[8].ends_with(" acknowledged updates are gone"), "{text}");
    assert!(lines[10].starts_with("strictly fenced: nothing is lost: all "), "{text}");
    assert_eq!(lines.len(), 11, "{text}");
}

#[test]
fn in_the_wrong_order_a_ratchet_loses_an_update_and_a_seal_does_not() {
    let sandbox = Sandbox::new();
    let text = sandbox.redacted(&sandbox.stdout_long(&["prove", "order", "--resource", "file:."]), Numbers::Kept);
    insta::assert_snapshot!("prove-order", text);
    let report = json(&sandbox.stdout_long(&["prove", "order", "--resource", "sqlite:try.db", "--json"]));
    let lost = ["none", "ratchet", "strict"].map(|name| result(&report, name)["lost"].as_u64());
    assert_eq!(lost, [Some(1), Some(1), Some(0)], "{report:#}");
    assert_eq!(leftovers(&sandbox), [""; 0]);
}

#[test]
fn no_writer_outlives_the_experiment() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let sandbox = Sandbox::new();
        let observer = sandbox.client("observer");
        let mut watch = observer.watch("palisade-proof/").unwrap();
        let args = ["prove", "pauses", "--resource", "file:.", "--ttl", "300ms", "--for", "1h"];
        let running = sandbox.start(&args);
        // A writer has been stopped for longer than its lock lives, and is stopped still, or was a moment ago.
        let is_expiry = |seen: Watched| {
            matches!(seen, Watched::Event(Event::GrantEnded { how: Ending::SessionEnded(SessionEnd::Expired), .. }))
        };
        assert!(within("an expiry", move || watch.any(is_expiry)), "the watch lasts as long as its client");
        let writers = running.children();
        assert_eq!(writers.len(), 5, "they are its children");
        running.signal(signal);
        assert_eq!(running.end().code(), code, "{signal:?}");
        assert!(have_ended(&writers), "{signal:?}");
        if signal != Signal::KILL {
            assert_eq!(leftovers(&sandbox), [""; 0], "{signal:?}");
        }
    }
}

#[test]
fn invalid_experiments_are_refused() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("notes.txt"), "this is no folder").unwrap();
    let mut output = String::new();
    for args in [
        &["prove", "pauses", "--resource", "ftp://host/x"][..],
        &["prove", "pauses", "--resource", "nothing"],
        &["prove", "pauses", "--resource", "file:nowhere"],
        &["prove", "order", "--resource", "file:notes.txt"],
        &["prove", "order", "--resource", "redis://"],
        &["prove", "order", "--resource", "mysql://"],
        &["prove", "pauses", "--url", "memory:"],
        &["prove", "pauses", "--writers", "1"],
        &["prove", "pauses", "--for", "1m", "--overtaken", "3"],
    ] {
        output += &format!("$ palisade {}\n{}\n", args.join(" "), sandbox.stderr(64, args));
    }
    insta::assert_snapshot!("prove-refused", sandbox.redacted(&output, Numbers::Kept));
}

#[test]
fn an_unreachable_resource_is_named_without_its_secret() {
    let sandbox = Sandbox::new();
    for (scheme, database) in [("postgres", "try"), ("mysql", "try"), ("redis", "0")] {
        let url = format!("{scheme}://user:xyzzy@127.0.0.1:1/{database}");
        let output = sandbox.stderr(69, &["prove", "pauses", "--resource", &url]);
        assert!(output.to_lowercase().contains(scheme) && !output.contains("xyzzy"), "{output}");
    }
}

#[test]
fn a_run_that_loses_nothing_is_inconclusive_and_exits_1() {
    let sandbox = Sandbox::new();
    let output = sandbox.run_long(&["prove", "pauses", "--for", "1ms", "--json"]);
    assert_eq!((output.code, output.err.as_str()), (Some(1), ""));
    let report = json(&output.out);
    assert_eq!(report["shown"], false);
    let verdict = result(&report, "none")["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("nothing was lost, so nothing is proven; try longer"), "{verdict}");
}

#[test]
#[ignore = "long: several seconds"]
fn redlock_grants_one_lock_twice_and_behind_a_fence_nothing_is_lost() {
    let sandbox = Sandbox::new();
    let report = json(&sandbox.stdout_long(&["prove", "redlock", "--json", "--svg", "redlock.svg"]));
    assert_eq!(report["shown"], true, "{report:#}");
    let result = |schedule: &str, kept: &str| {
        let timelines = report["timelines"].as_array().unwrap();
        let is_it = |one: &&Value| one["schedule"] == schedule && one["kept"] == kept;
        let one = timelines.iter().find(is_it).unwrap_or_else(|| panic!("{schedule} on {kept} was not run"));
        let number = |field: &str| one[field].as_u64().unwrap();
        (number("both_ms") > 0, number("acknowledged"), number("refused"), number("number"), number("lost"))
    };
    let (lost, sequential) = ((true, 2, 0, 1, 1), (false, 2, 0, 2, 0));
    assert_eq!(result("clock", "redlock"), lost, "{report:#}");
    assert_eq!(result("clock", "fenced"), sequential, "{report:#}");
    assert_eq!(result("restart", "redlock-as-published"), lost, "{report:#}");
    assert!(!result("restart", "redlock").0, "{report:#}");
    assert_eq!(result("restart", "fenced"), sequential, "{report:#}");
    assert_eq!(result("pause", "redlock"), lost, "{report:#}");
    assert_eq!(result("pause", "fenced"), (true, 1, 1, 1, 0), "{report:#}");
    let drawing = fs::read_to_string(sandbox.path().join("redlock.svg")).unwrap();
    assert_eq!(drawing.matches("class=\"bad\"").count(), 3, "{drawing}");
    assert_eq!(drawing.matches("class=\"good\"").count(), 4, "{drawing}");
}

#[test]
fn prove_redlock_needs_redis_and_says_so() {
    let sandbox = Sandbox::new();
    let output = sandbox.command(&["prove", "redlock"]).env("PATH", sandbox.path()).finish();
    assert_eq!(output.status.code(), Some(69));
    let output = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output, "palisade: redis-server is not installed; on Debian: apt-get install redis-server faketime\n");
}

#[test]
fn no_server_outlives_the_experiment() {
    for (signal, code) in [(Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let sandbox = Sandbox::new();
        let running = sandbox.start(&["prove", "redlock"]);
        let servers = running.until_children(5);
        running.signal(signal);
        assert_eq!(running.end().code(), code, "{signal:?}");
        assert!(have_ended(&servers), "{signal:?}");
    }
}
