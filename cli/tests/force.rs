//! `palisade break`, as a shell and a person at a terminal see it: the real binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::process::Stdio;

use common::terminal::Terminal;
use common::{Place, without_times};
use palisade::Loss;

const HARMFUL: &str = "report \u{1b}[31mred\n on host-b (pid 12)";
const SURE: [&str; 3] = ["--yes", "--reason", "it hangs"];

fn breaking<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["break"], args].concat()
}

/// A person at a terminal who breaks `orders/42` and sees whom it concerns.
fn person(place: &Place, args: &[&str]) -> Terminal {
    Terminal::run(place, &breaking(&[&["orders/42"], args].concat()), (30, 100))
}

#[test]
fn the_lock_is_free_the_token_moves_on_and_it_is_recorded() {
    let place = Place::new();
    let holder = place.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    let next = place.queue("deploy", "orders/42");
    insta::assert_snapshot!("broken", place.stdout(&breaking(&[&["orders/42"], &SURE[..]].concat())));
    assert!(matches!(guard.wait_until_lost(), Loss::ForcedBy { .. }));
    let next = next.join().unwrap().unwrap();
    assert_eq!(next.token().unwrap().get(), 3, "the token in between is for sealing");
    let lock = holder.inspect("orders/42").unwrap().unwrap();
    let how = &lock.history[0].how;
    assert!(how.starts_with("forced by operator on desk (user ") && how.ends_with(": it hangs"), "{how}");
}

#[test]
fn it_is_recorded_also_when_nobody_waits() {
    let place = Place::new();
    let holder = place.client("billing");
    let _guard = holder.lock("orders/42").acquire().unwrap();
    place.stdout(&breaking(&[&["orders/42", "--by", "alice"], &SURE[..]].concat()));
    drop(holder);
    let shown = place.stdout(&["show", "orders/42"]);
    assert!(shown.starts_with("orders/42 is not in use: nobody holds it, nobody waits for it\n"), "{shown}");
    let user = if rustix::process::getuid().is_root() { "root" } else { "" };
    assert!(shown.contains(&format!("forced by alice (user {user}")) && shown.contains(": it hangs"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&place.stdout(&["show", "orders/42", "--json"])).unwrap();
    assert_eq!((&json["in_use"], json["history"].as_array().map(Vec::len)), (&false.into(), Some(1)));
    // It stays when the lock is used and given back, and nothing else does.
    place.client("next").lock("orders/42").acquire().unwrap().release().unwrap();
    assert!(place.stdout(&["show", "orders/42"]).contains("forced by alice"));
    assert!(place.stdout(&["show", "never/used"]).ends_with("nobody waits for it\n"));
}

#[test]
fn json_has_a_stable_form() {
    let place = Place::new();
    let clients = ["one", "two"].map(|label| place.client(label));
    let _read = clients.each_ref().map(|client| client.read_lock("table").acquire().unwrap());
    insta::assert_snapshot!("broken-json", place.stdout(&breaking(&[&["table", "--json"], &SURE[..]].concat())));
}

#[test]
fn without_a_terminal_what_is_missing_is_named_and_nothing_changes() {
    let place = Place::new();
    let holder = place.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    insta::assert_snapshot!("refused-all", place.refusal(&breaking(&["orders/42"])));
    let unsure = place.refusal(&breaking(&["orders/42", "--reason", "it hangs"]));
    assert!(unsure.contains("--yes") && !unsure.contains("--reason"), "{unsure}");
    let without_reason = place.refusal(&breaking(&["orders/42", "--yes"]));
    assert!(without_reason.contains("--reason") && !without_reason.contains("--yes"), "{without_reason}");
    assert!(place.refusal(&breaking(&["orders/42", "--yes", "--reason", " "])).contains("no reason was given"));
    guard.token().unwrap();
}

#[test]
fn what_nobody_holds_cannot_be_broken() {
    let place = Place::new();
    insta::assert_snapshot!("refused-unused", place.refusal(&breaking(&[&["orders/42"], &SURE[..]].concat())));
    let mut terminal = person(&place, &[]);
    assert_eq!(terminal.end().code(), Some(64));
    assert_eq!(terminal.seen().trim_end(), "palisade: nobody holds 'orders/42'; nothing has changed");
}

#[test]
fn a_token_that_is_none_is_refused() {
    let place = Place::new();
    for (token, why) in [("0", "must not be 0"), ("33x", "a token is a number"), ("9007199254740992", "above")] {
        let said = place.refusal(&breaking(&[&["orders/42", "--token", token], &SURE[..]].concat()));
        assert!(said.contains(why), "{token}: {said}");
    }
}

#[test]
fn with_a_token_a_newer_grant_is_spared() {
    let place = Place::new();
    let holder = place.client("billing");
    holder.lock("orders/42").acquire().unwrap().release().unwrap();
    let newer = holder.lock("orders/42").acquire().unwrap();
    let args = breaking(&[&["orders/42", "--token", "1"], &SURE[..]].concat());
    insta::assert_snapshot!("refused-token", place.refusal(&args));
    let mut terminal = person(&place, &["--token", "1", "--reason", "it hangs"]);
    assert_eq!(terminal.end().code(), Some(64));
    assert!(terminal.seen().contains("token 1 does not hold 'orders/42' any more; nothing has changed"));
    newer.token().unwrap();
}

#[test]
fn a_person_sees_the_holder_and_is_asked() {
    let place = Place::new();
    let holder = place.client(HARMFUL);
    let guard = holder.lock("orders/42").acquire().unwrap();
    let mut terminal = person(&place, &[]);
    terminal.wait_for("Why?");
    terminal.press("it hangs\r");
    terminal.wait_for("[y/N]");
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    without_times(|| insta::assert_snapshot!("asked", terminal.seen()));
    assert!(matches!(guard.wait_until_lost(), Loss::ForcedBy { .. }));
}

#[test]
fn only_a_clear_yes_is_a_yes() {
    let place = Place::new();
    let holder = place.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    for answer in ["\r", "n\r", "maybe\r", "\u{4}"] {
        let mut terminal = person(&place, &["--reason", "it hangs"]);
        terminal.wait_for("[y/N]");
        terminal.press(answer);
        assert_eq!(terminal.end().code(), Some(64), "{answer:?}");
        assert!(terminal.seen().contains("not confirmed; nothing has changed"), "{}", terminal.seen());
    }
    let mut terminal = person(&place, &["--yes"]);
    terminal.wait_for("Why?");
    terminal.press("\r");
    assert_eq!(terminal.end().code(), Some(64));
    assert!(terminal.seen().contains("no reason was given; nothing has changed"), "{}", terminal.seen());
    guard.token().unwrap();
}

#[test]
fn who_came_while_the_person_was_asked_is_spared() {
    let place = Place::new();
    let holder = place.client("billing");
    let seen = holder.lock("orders/42").acquire().unwrap();
    let mut terminal = person(&place, &["--reason", "it hangs"]);
    terminal.wait_for("[y/N]");
    seen.release().unwrap();
    let newer = holder.lock("orders/42").acquire().unwrap();
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(64));
    newer.token().unwrap();
}

#[test]
fn all_holders_are_shown_unless_one_was_named() {
    let place = Place::new();
    let clients = ["one", "two", "three"].map(|label| place.client(label));
    let read = clients.each_ref().map(|client| client.read_lock("orders/42").acquire().unwrap());
    let mut terminal = person(&place, &["--token", "2", "--reason", "it hangs"]);
    terminal.wait_for("[y/N]");
    assert!(terminal.seen().contains("two") && !terminal.seen().contains("three"), "{}", terminal.seen());
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    assert!(matches!(read[1].wait_until_lost(), Loss::ForcedBy { .. }));
    let mut terminal = person(&place, &["--reason", "they hang"]);
    terminal.wait_for("[y/N]");
    without_times(|| insta::assert_snapshot!("asked-for-all", terminal.seen()));
    terminal.press("y\r");
    assert_eq!(terminal.end().code(), Some(0));
    for guard in [&read[0], &read[2]] {
        assert!(matches!(guard.wait_until_lost(), Loss::ForcedBy { .. }));
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let place = Place::new();
    let holder = place.client("billing");
    let guard = holder.lock("orders/42").acquire().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let args = breaking(&[&["orders/42"], &SURE[..]].concat());
    let output = place.command(&args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert!(matches!(guard.wait_until_lost(), Loss::ForcedBy { .. }));
}
