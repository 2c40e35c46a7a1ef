//! `palisade advise`, as a shell sees it: the real binary, with no terminal attached.

use std::process::{Command, Output};

use crate::common::bounded::Bounded;
use crate::common::environment::{self, NO_HOME};

fn palisade(args: &[&str]) -> Output {
    command(args).finish()
}

/// The command needs no files.
fn command(args: &[&str]) -> Command {
    let mut command = environment::palisade(NO_HOME);
    command.args(args).env("COLUMNS", "100");
    command
}

fn stdout(args: &[&str]) -> String {
    let output = palisade(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8 on stdout")
}

fn refusal(args: &[&str]) -> String {
    let output = palisade(args);
    assert_eq!(output.status.code(), Some(64), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("UTF-8 on stderr")
}

fn advise(answers: &str) -> Vec<&str> {
    [&["advise"], answers.split_whitespace().collect::<Vec<_>>().as_slice()].concat()
}

#[test]
fn help_and_version_succeed() {
    insta::assert_snapshot!("help", stdout(&["--help"]));
    insta::assert_snapshot!("advise-help", stdout(&["advise", "--help"]));
    assert_eq!(stdout(&["--version"]), concat!("palisade ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn each_tool_comes_with_its_recipe() {
    for (tool, answers) in [
        ("efficiency-lock", "--if-two-hold wasted-work --work own"),
        ("queue", "--if-two-hold damage --work share-out"),
        ("idempotency-key", "--if-two-hold damage --work once"),
        ("one-writer", "--if-two-hold damage --work own --can-assign yes"),
        ("compare-and-swap", "--if-two-hold damage --work change --writes-to one-record --conflicts rare"),
        ("database-lock", "--if-two-hold damage --work change --writes-to one-database --one-transaction yes"),
        ("fenced-lock", "--if-two-hold damage --work change --writes-to can-check"),
    ] {
        insta::assert_snapshot!(tool, stdout(&advise(answers)));
    }
}

#[test]
fn json_has_a_stable_form_and_only_the_answers_that_mattered() {
    let answers = "--if-two-hold damage --work change --writes-to can-check --conflicts rare --json";
    let text = stdout(&advise(answers));
    insta::assert_snapshot!("fenced-lock-json", text);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema"], 1);
    assert_eq!(value["answers"].as_object().unwrap().len(), 3);
}

#[test]
fn without_a_terminal_the_missing_answers_are_named() {
    insta::assert_snapshot!("nothing-answered", refusal(&["advise"]));
    let half = "--if-two-hold damage --work change --writes-to one-record";
    insta::assert_snapshot!("half-answered", refusal(&advise(half)));
}

#[test]
fn misuse_exits_64_and_says_what_is_possible() {
    insta::assert_snapshot!("unknown-answer", refusal(&["advise", "--if-two-hold", "chaos"]));
    insta::assert_snapshot!("unknown-command", refusal(&["advice"]));
    assert!(refusal(&["advise", "--jsno"]).contains("--json"));
    assert!(refusal(&[]).contains("Usage: palisade"));
}

#[test]
fn output_to_a_pipe_or_with_no_color_has_no_colour() {
    let answers = advise("--if-two-hold wasted-work --work own");
    assert!(!stdout(&answers).contains('\u{1b}'));
    let plain = command(&answers).env("NO_COLOR", "1").finish();
    assert!(!plain.stdout.contains(&0x1b));
    let forced = command(&answers).env("CLICOLOR_FORCE", "1").finish();
    assert!(forced.stdout.contains(&0x1b), "the colours can be asked for");
}

#[test]
fn a_closed_stdout_is_no_failure() {
    for args in [advise("--if-two-hold wasted-work --work own"), advise("--help"), vec!["--version"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&args).finish_into(writer);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let args = advise("--if-two-hold wasted-work --work own --json");
    let output = command(&args).finish_into(full);
    assert_eq!(output.status.code(), Some(74));
    assert!(String::from_utf8_lossy(&output.stderr).contains("palisade: reading or writing failed"));
}
