//! `palisade break`, as a shell and a person at a terminal see it: the real binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::Deref;

use crate::common::bounded::Bounded;
use crate::common::terminal::Terminal;
use crate::common::{TestEngine, within, without_times};
use palisade::blocking::Held;
use palisade::{Guard, Loss};

const HARMFUL: &str = "report \u{1b}[31mred\n on host-b (pid 12)";
const CONFIRMED: [&str; 3] = ["--yes", "--reason", "it hangs"];

/// Waits until a lock is lost, and checks that it was by force.
fn assert_forced<G: Deref<Target = Guard> + Send + 'static>(guard: Held<G>) {
    let loss = within("the loss of the lock", move || guard.wait_until_lost());
    assert!(matches!(loss, Loss::ForcedBy { .. }));
}

fn breaking<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["break"], args].concat()
}

/// Runs `palisade break orders/42` on a terminal.
fn interactively(engine: &TestEngine, args: &[&str]) -> Terminal {
    Terminal::run(engine, &breaking(&[&["orders/42"], args].concat()), (30, 100))
}

#[test]
fn a_broken_lock_is_free_and_one_token_is_kept_for_sealing() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    let next = engine.queue("deploy", "orders/42");
    insta::assert_snapshot!("broken", engine.stdout(&breaking(&[&["orders/42"], &CONFIRMED[..]].concat())));
    assert_forced(guard);
    let next = next.join().unwrap().unwrap();
    assert_eq!(next.token().unwrap().get(), 3, "the token in between is for sealing");
    let lock = holder.inspect("orders/42").unwrap().unwrap();
    let how = &lock.history[0].how;
    assert!(how.starts_with("forced by operator on desk (user ") && how.ends_with(": it hangs"), "{how}");
}

#[test]
fn a_break_without_waiters_is_recorded() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let _guard = holder.lock("orders/42").acquire().unwrap();
    engine.stdout(&breaking(&[&["orders/42", "--by", "alice"], &CONFIRMED[..]].concat()));
    drop(holder);
    let shown = engine.stdout(&["show", "orders/42"]);
    assert!(shown.starts_with("orders/42 is not in use: no holder, no waiters\n"), "{shown}");
    let user = if rustix::process::getuid().is_root() { "root" } else { "" };
    assert!(shown.contains(&format!("forced by alice (user {user}")) && shown.contains(": it hangs"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&engine.stdout(&["show", "orders/42", "--json"])).unwrap();
    assert_eq!((&json["in_use"], json["history"].as_array().map(Vec::len)), (&false.into(), Some(1)));
    // The record stays when the lock is acquired and released again; other grants leave no record.
    engine.client("next").lock("orders/42").acquire().unwrap().release().unwrap();
    assert!(engine.stdout(&["show", "orders/42"]).contains("forced by alice"));
    assert!(engine.stdout(&["show", "never/used"]).ends_with("no holder, no waiters\n"));
}

#[test]
fn json_has_a_stable_form() {
    let engine = TestEngine::new();
    let clients = ["one", "two"].map(|label| engine.client(label));
    let _read = clients.each_ref().map(|client| client.read_lock("table").acquire().unwrap());
    insta::assert_snapshot!(
        "broken-json",
        engine.stdout(&breaking(&[&["table", "--json"], &CONFIRMED[..]].concat()))
    );
}

#[test]
fn without_a_terminal_missing_options_are_named_and_nothing_changes() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    insta::assert_snapshot!("refused-all", engine.refusal(&breaking(&["orders/42"])));
    let unconfirmed = engine.refusal(&breaking(&["orders/42", "--reason", "it hangs"]));
    assert!(unconfirmed.contains("--yes") && !unconfirmed.contains("--reason"), "{unconfirmed}");
    let without_reason = engine.refusal(&breaking(&["orders/42", "--yes"]));
    assert!(without_reason.contains("--reason") && !without_reason.contains("--yes"), "{without_reason}");
    assert!(engine.refusal(&breaking(&["orders/42", "--yes", "--reason", " "])).contains("no reason was given"));
    guard.token().unwrap();
}

#[test]
fn a_lock_that_is_not_held_cannot_be_broken() {
    let engine = TestEngine::new();
    insta::assert_snapshot!("refused-unused", engine.refusal(&breaking(&[&["orders/42"], &CONFIRMED[..]].concat())));
    let mut terminal = interactively(&engine, &[]);
    assert_eq!(terminal.end().code(), Some(64));
    assert_eq!(terminal.screen_text().trim_end(), "palisade: 'orders/42' is not held; nothing has changed");
}

#[test]
fn an_invalid_token_is_refused() {
    let engine = TestEngine::new();
    for (token, why) in [("0", "must not be 0"), ("33x", "a token is a number"), ("9007199254740992", "above")] {
        let message = engine.refusal(&breaking(&[&["orders/42", "--token", token], &CONFIRMED[..]].concat()));
        assert!(message.contains(why), "{token}: {message}");
    }
}

#[test]
fn with_a_token_a_newer_grant_is_kept() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    holder.lock("orders/42").acquire().unwrap().release().unwrap();
    let newer = holder.lock("orders/42").acquire().unwrap();
    let args = breaking(&[&["orders/42", "--token", "1"], &CONFIRMED[..]].concat());
    insta::assert_snapshot!("refused-token", engine.refusal(&args));
    let mut terminal = interactively(&engine, &["--token", "1", "--reason", "it hangs"]);
    assert_eq!(terminal.end().code(), Some(64));
    assert!(terminal.screen_text().contains("token 1 does not hold 'orders/42' any more; nothing has changed"));
    newer.token().unwrap();
}

#[test]
fn the_holder_is_shown_before_the_question() {
    let engine = TestEngine::new();
    let holder = engine.client(HARMFUL);
    let guard = holder.lock("orders/42").acquire().unwrap();
    let mut terminal = interactively(&engine, &[]);
    terminal.wait_for("Why?");
    terminal.press("it hangs\r");
    terminal.wait_for("[y/N]");
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    without_times(|| insta::assert_snapshot!("asked", terminal.screen_text()));
    assert_forced(guard);
}

#[test]
fn only_a_typed_y_or_yes_confirms() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    for answer in ["\r", "n\r", "maybe\r", "\u{4}"] {
        let mut terminal = interactively(&engine, &["--reason", "it hangs"]);
        terminal.wait_for("[y/N]");
        terminal.press(answer);
        assert_eq!(terminal.end().code(), Some(64), "{answer:?}");
        assert!(terminal.screen_text().contains("not confirmed; nothing has changed"), "{}", terminal.screen_text());
    }
    let mut terminal = interactively(&engine, &["--yes"]);
    terminal.wait_for("Why?");
    terminal.press("\r");
    assert_eq!(terminal.end().code(), Some(64));
    assert!(
        terminal.screen_text().contains("no reason was given; nothing has changed"),
        "{}",
        terminal.screen_text()
    );
    guard.token().unwrap();
}

#[test]
fn a_grant_that_is_newer_than_the_question_is_kept() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let seen = holder.lock("orders/42").acquire().unwrap();
    let mut terminal = interactively(&engine, &["--reason", "it hangs"]);
    terminal.wait_for("[y/N]");
    seen.release().unwrap();
    let newer = holder.lock("orders/42").acquire().unwrap();
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(64));
    newer.token().unwrap();
}

#[test]
fn all_holders_are_shown_unless_one_was_named() {
    let engine = TestEngine::new();
    let clients = ["one", "two", "three"].map(|label| engine.client(label));
    let [first, second, third] = clients.each_ref().map(|client| client.read_lock("orders/42").acquire().unwrap());
    let mut terminal = interactively(&engine, &["--token", "2", "--reason", "it hangs"]);
    terminal.wait_for("[y/N]");
    assert!(
        terminal.screen_text().contains("two") && !terminal.screen_text().contains("three"),
        "{}",
        terminal.screen_text()
    );
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    assert_forced(second);
    let mut terminal = interactively(&engine, &["--reason", "they hang"]);
    terminal.wait_for("[y/N]");
    without_times(|| insta::assert_snapshot!("asked-for-all", terminal.screen_text()));
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    [first, third].into_iter().for_each(assert_forced);
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let engine = TestEngine::new();
    let holder = engine.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = breaking(&[&["orders/42"], &CONFIRMED[..]].concat());
    let output = engine.command(&args).finish_into(writer);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert_forced(guard);
}
