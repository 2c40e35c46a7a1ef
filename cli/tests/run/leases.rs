//! `acquire`, `renew`, `release`: locks that outlive processes. Also `elect`.

use std::time::{Duration, Instant};

use palisade::Event;
use rustix::process::Signal;

use crate::common::bounded::{Bounded, until};
use crate::common::environment;
use crate::fixture::{Finished, Fixture, Running};

fn palisade(fixture: &Fixture, args: &[&str]) -> Finished {
    Running::new(fixture.command(args)).end()
}

/// Runs a script that can call `palisade`.
fn script(fixture: &Fixture, script: &str) -> Finished {
    let mut shell = fixture.program("sh");
    shell.args(["-euc", script]);
    Running::new(shell).end()
}

#[test]
fn a_script_holds_a_lock_across_its_steps() {
    let fixture = Fixture::new();
    let steps = r#"
        lease=$(palisade acquire deploy --ttl 1m)
        eval "$lease"
        echo "$PALISADE_LOCK $PALISADE_TOKEN"
        palisade run --no-wait deploy -- echo overlap 2>/dev/null || echo busy $?
        palisade renew
        palisade release
        palisade run --no-wait deploy -- echo free
        palisade release 2>/dev/null || echo again $?
        palisade renew 2>/dev/null || echo again $?"#;
    script(&fixture, steps).expect(0, &["deploy 1", "busy 75", "free", "again 76", "again 76"]);
}

#[test]
fn names_of_any_kind_survive_the_shell() {
    let fixture = Fixture::new();
    let steps = r#"
        eval "$(palisade acquire "it's \$(here) \"so\"" 'b c')"
        printf '%s\n' "$PALISADE_LOCK"
        palisade renew --json | tr -d '\n ' | cut -d, -f2,3
        palisade -v release
        palisade run --no-wait 'b c' -- echo free"#;
    let ended = script(&fixture, steps);
    assert_eq!(
        ended.stdout,
        ["it's $(here) \"so\"", "b c", r#""locks":["it's$(here)\"so\"","bc"]"#, "free"],
        "{ended:?}"
    );
    assert!(ended.errors.contains("released '"), "{ended:?}");
}

/// The variables of an earlier lock would make `renew` look for the wrong grant.
#[test]
fn the_variables_of_an_earlier_lock_do_not_stay() {
    let fixture = Fixture::new();
    let steps = r#"
        eval "$(palisade acquire one)"
        eval "$(palisade acquire two --efficiency)"
        echo "token ${PALISADE_TOKEN-none}"
        palisade renew"#;
    script(&fixture, steps).expect(0, &["token none"]);
}

#[test]
fn a_token_that_another_session_holds_is_reported_with_the_session() {
    let fixture = Fixture::new();
    let steps = r#"
        eval "$(palisade acquire one)"
        palisade acquire two > /dev/null
        echo "by session $PALISADE_SESSION"
        palisade release two --token 2"#;
    let ended = script(&fixture, steps);
    ended.expect_failure(76, &format!("'two' is not held with token 2 {}", ended.stdout[0]));
}

#[test]
fn a_lease_ends_when_its_ttl_passes_without_a_renewal() {
    let fixture = Fixture::new();
    let ttl = Duration::from_secs(10);
    let lease = palisade(&fixture, &["acquire", "x", "--ttl", "10s", "--json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease.stdout.join("\n")).unwrap();
    assert_eq!((&lease["schema"], &lease["token"], &lease["ttl_ms"]), (&1.into(), &1.into(), &10_000.into()));
    let observer = fixture.observer();
    let left = || observer.inspect("x").unwrap().and_then(|lock| lock.holders.first()?.time_left_ms);
    until("a second of the lease has passed", || left().is_none_or(|left| left <= 9_000));
    let began = Instant::now();
    let renewed = palisade(&fixture, &["renew", "x", "--token", "1", "--json"]);
    let renewed: serde_json::Value = serde_json::from_str(&renewed.stdout.join("\n")).unwrap();
    assert!(renewed["time_left_ms"].as_u64().is_some_and(|left| left <= 10_000), "{renewed}");
    // It waits for the end of the lease.
    palisade(&fixture, &["run", "x", "--", "echo", "mine"]).expect(0, &["mine"]);
    assert!(began.elapsed() >= ttl, "it ended {:?} after the renewal", began.elapsed());
    let late = palisade(&fixture, &["renew", "x", "--token", "1"]);
    late.expect_failure(76, "'x' is not held with token 1");
    palisade(&fixture, &["release", "x", "--token", "1"]).expect_failure(76, "'x' is not held with token 1");
}

#[test]
fn only_the_token_releases() {
    let fixture = Fixture::new();
    palisade(&fixture, &["acquire", "x"]);
    palisade(&fixture, &["release", "x", "--token", "2"]).expect_failure(76, "'x' is now held by operator on desk");
    palisade(&fixture, &["release", "x"]).expect_failure(64, "say with which --token 'x' is held");
    palisade(&fixture, &["release"]).expect_failure(64, "say which lock");
    assert!(fixture.is_held("x"));
    palisade(&fixture, &["release", "x", "--token", "1"]).expect(0, &[]);
    assert!(!fixture.is_held("x"));
}

#[test]
fn a_lease_that_could_not_be_printed_is_released() {
    let fixture = Fixture::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(fixture.command(&["acquire", "x"]).finish_into(full).status.code(), Some(74));
    assert!(!fixture.is_held("x"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(fixture.command(&["acquire", "x"]).finish_into(writer).status.code(), Some(74));
    assert!(!fixture.is_held("x"));
}

#[test]
fn a_signal_to_a_waiting_acquire_leaves_the_queue() {
    let fixture = Fixture::new();
    palisade(&fixture, &["acquire", "x"]);
    palisade(&fixture, &["acquire", "x", "--no-wait"]).expect_failure(75, "'x' was not acquired");
    let queued = fixture.next_event(|event| matches!(event, Event::Queued { .. }));
    let waiter = Running::new(fixture.command(&["acquire", "x"]));
    queued();
    waiter.signal(Signal::INT);
    waiter.end().expect(130, &[]);
    assert_eq!(fixture.waiters("x"), 0);
}

#[test]
fn a_killed_leader_is_replaced_by_the_next_candidate() {
    let fixture = Fixture::new();
    let elect = |value| {
        let args =
            ["elect", "scheduler", "--value", value, "--", "sh", "-c", "echo $PALISADE_TOKEN; read go; exit 8"];
        fixture.command(&args)
    };
    let leader = || fixture.observer().leader("scheduler").unwrap().map(|leader| leader.value);
    let mut first = Running::new(elect("10.0.0.7"));
    first.expect("1");
    assert_eq!(leader(), Some(b"10.0.0.7".to_vec()));
    let queued = fixture.next_event(|event| matches!(event, Event::Queued { .. }));
    let mut second = Running::new(elect("10.0.0.8"));
    queued();
    first.signal(Signal::KILL);
    second.expect("2");
    until("the second candidate leads", || leader() == Some(b"10.0.0.8".to_vec()));
    second.send_line("go");
    second.end().expect(8, &[]);
    assert_eq!(leader(), None);
}

#[test]
fn a_lease_that_cannot_exist_is_refused_and_nothing_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded://{}", folder.path().join("locks.db").display());
    for command in ["renew", "release"] {
        for (args, code) in [(&["deploy", "--token", "3"][..], 76), (&["deploy"], 64), (&[], 64)] {
            let mut palisade = environment::palisade(folder.path());
            let output = palisade.args(["--url", &url, command]).args(args).finish();
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{command} {args:?}: {message}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{command} {args:?}");
        }
    }
}

#[test]
fn releasing_a_set_of_locks_names_all_of_them() {
    let fixture = Fixture::new();
    assert_eq!(palisade(&fixture, &["acquire", "a/1", "a/2"]).code, 0);
    let released = palisade(&fixture, &["-v", "release", "a/1", "--token", "1"]);
    assert_eq!(released.errors, "palisade: released 'a/1', 'a/2', which were held with token 1\n");
    let lost = palisade(&fixture, &["release", "a/1\na/2", "--token", "1"]);
    lost.expect_failure(76, "'a/1', 'a/2' are not held with token 1");
}
