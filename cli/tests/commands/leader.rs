//! `palisade leader`, as a shell sees it: the real binary, and a leader in this process.

use rustix::process::Signal;

use crate::common::bounded::Bounded;
use crate::sandbox::Sandbox;

#[test]
fn help_has_examples() {
    insta::assert_snapshot!("leader-help", Sandbox::new().stdout(&["leader", "--help"]));
}

#[test]
fn the_leader_is_shown_with_token_and_value() {
    let sandbox = Sandbox::new();
    let leader = sandbox.client("worker a");
    let leadership = leader.campaign("scheduler", "10.0.0.7:8080").unwrap();
    assert_eq!(leadership.token().unwrap().to_string(), "1");
    insta::assert_snapshot!("leader-text", sandbox.stdout(&["leader", "scheduler"]));
    insta::assert_snapshot!("leader-json", sandbox.stdout(&["leader", "scheduler", "--json"]));
}

#[test]
fn foreign_text_cannot_control_the_terminal() {
    let sandbox = Sandbox::new();
    let leader = sandbox.client("worker\u{1b}[2J\n");
    let leadership = leader.campaign("scheduler", b"a\xff\x1b[2J\n").unwrap();
    insta::assert_snapshot!("leader-hostile-text", sandbox.stdout(&["leader", "scheduler"]));
    insta::assert_snapshot!("leader-hostile-json", sandbox.stdout(&["leader", "scheduler", "--json"]));
    leadership.publish("").unwrap();
    assert!(sandbox.stdout(&["leader", "scheduler"]).ends_with("value   (empty)\n"));
}

#[test]
fn without_a_leader_the_exit_code_is_75() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.stderr(75, &["leader", "scheduler"]), "palisade: 'scheduler' has no leader\n");
    let output = sandbox.run(&["leader", "scheduler", "--json"]);
    assert_eq!(output.code, Some(75));
    assert_eq!(output.out, "{\"schema\":1,\"election\":\"scheduler\",\"leader\":null}\n");
    assert_eq!(output.err, "palisade: 'scheduler' has no leader\n");
    let held = sandbox.client("a").lock("scheduler").acquire().unwrap();
    sandbox.stderr(75, &["leader", "scheduler"]);
    drop(held);
}

#[test]
fn misuse_exits_64_and_a_missing_engine_69() {
    let sandbox = Sandbox::new();
    let mut output = String::new();
    for args in [&["leader"][..], &["leader", ""], &["leader", "a\nb"], &["leader", "$mine"]] {
        output += &format!("{args:?}\n{}\n", sandbox.stderr(64, args));
    }
    output += &sandbox.stderr(69, &["leader", "x", "--url", "embedded:nowhere/locks.db"]);
    insta::assert_snapshot!("leader-misuse", sandbox.redacted(&output, crate::sandbox::Numbers::Kept));
}

#[test]
fn every_change_is_followed_until_it_is_stopped() {
    for (signal, code, args) in [
        (Signal::INT, 130, &["leader", "scheduler", "--follow"][..]),
        (Signal::TERM, 143, &["leader", "scheduler", "--follow", "--json"]),
    ] {
        let sandbox = Sandbox::new();
        let mut follower = sandbox.start(args);
        let mut seen = vec![follower.line()];
        let leader = sandbox.client("worker a");
        let leadership = leader.campaign("scheduler", "first").unwrap();
        seen.push(follower.line());
        leadership.publish("second").unwrap();
        seen.push(follower.line());
        leadership.release().unwrap();
        seen.push(follower.line());
        follower.signal(signal);
        assert_eq!(follower.end().code(), Some(code));
        insta::assert_snapshot!(format!("leader-follow-{code}"), seen.join("\n"));
    }
}

#[test]
fn a_follower_ends_as_soon_as_its_stdout_is_closed() {
    let sandbox = Sandbox::new();
    let mut follower = sandbox.start(&["leader", "scheduler", "--follow"]);
    assert_eq!(follower.line(), "no leader");
    follower.stop_reading();
    assert_eq!(follower.end().code(), Some(0));
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let sandbox = Sandbox::new();
    let _leadership = sandbox.client("a").campaign("scheduler", "x").unwrap();
    for json in [&["leader", "scheduler"][..], &["leader", "scheduler", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = sandbox.output(&sandbox.command(json).finish_into(writer));
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    }
}

#[test]
fn colour_is_for_terminals() {
    let sandbox = Sandbox::new();
    let _leadership = sandbox.client("a").campaign("scheduler", "x").unwrap();
    let args = ["leader", "scheduler"];
    assert!(!sandbox.stdout(&args).contains('\u{1b}'));
    let forced = sandbox.command(&args).env("CLICOLOR_FORCE", "1").finish();
    assert!(sandbox.output(&forced).out.contains('\u{1b}'), "the colours can be asked for");
}
