//! Old copies that are put back, while the file is in use and while it is not.

use std::fs;
use std::path::Path;
use std::process::Command;

use palisade_testbench::bounded::output;

use super::fixture::{Fixture, LONG_MS};

/// Short enough that a keep-alive comes soon; nothing else depends on it.
const TTL_MS: u64 = 3_000;

/// Copies the contents of a directory into a new one.
fn copy(from: &Path, to: &Path) {
    let copied = output(Command::new("cp").arg("-a").arg(from).arg(to)).expect("cp runs");
    assert!(copied.status.success());
}

/// A fixture with a copy of its locks in `backup`, made when they were not in use, and the last token that was given
/// since.
fn with_backup() -> (Fixture, u64) {
    let fixture = Fixture::new();
    let (holder, _) = fixture.holder(LONG_MS);
    holder.end();
    copy(&fixture.path("locks"), &fixture.path("backup"));
    let mut worker = fixture.connected(LONG_MS);
    let mut token = 0;
    for _ in 0..5 {
        token = worker.acquire("orders");
        assert_eq!(worker.ask("release"), "released");
    }
    worker.end();
    (fixture, token)
}

/// The ways in which an operator restores an old database.
fn put_back(fixture: &Fixture, how: &str) {
    let backup = fixture.path("backup/locks.db");
    match how {
        "over it" => drop(fs::copy(&backup, fixture.file()).unwrap()),
        "in its place" => {
            fs::copy(&backup, fixture.path("locks/new")).unwrap();
            fs::rename(fixture.path("locks/new"), fixture.file()).unwrap();
        }
        "with all that was beside it" => {
            fs::remove_dir_all(fixture.path("locks")).unwrap();
            copy(&fixture.path("backup"), &fixture.path("locks"));
        }
        _ => unreachable!("there are three ways"),
    }
}

#[test]
fn an_old_copy_restored_while_unused_repeats_no_token() {
    for how in ["over it", "in its place", "with all that was beside it"] {
        let (fixture, token) = with_backup();
        put_back(&fixture, how);
        let mut worker = fixture.connected(LONG_MS);
        let next = worker.acquire("orders");
        assert!(next > token, "{how}: {next} after {token}");
        worker.ask("release");
        assert_eq!(worker.acquire("orders"), next + 1, "{how}: only once");
        worker.end();
        let mut again = fixture.connected(LONG_MS);
        assert_eq!(again.acquire("orders"), next + 2, "{how}: only once");
    }
}

#[test]
fn one_backup_put_back_twice_gives_no_token_again() {
    for how in ["over it", "in its place", "with all that was beside it"] {
        let (fixture, mut last) = with_backup();
        for _ in 0..2 {
            put_back(&fixture, how);
            let mut worker = fixture.connected(LONG_MS);
            let next = worker.acquire("orders");
            assert!(next > last, "{how}: {next} after {last}");
            last = next;
            worker.end();
        }
    }
}

/// The write-ahead log belongs to the database that was replaced.
#[test]
fn an_old_copy_put_back_after_a_kill_is_not_mixed_with_what_the_killed_process_wrote() {
    for how in ["in its place", "with all that was beside it"] {
        let (fixture, _) = with_backup();
        let (holder, token) = fixture.holder(LONG_MS);
        holder.kill();
        put_back(&fixture, how);
        let mut next = fixture.connected(TTL_MS);
        assert!(next.acquire("orders") > token, "{how}");
        assert_eq!(next.ask("release"), "released");
        next.end();
        fixture.connected(TTL_MS).acquire("orders");
    }
}

#[test]
fn an_old_copy_put_back_while_in_use_is_noticed_and_gives_no_token_again() {
    let (fixture, _) = with_backup();
    let (mut holder, token) = fixture.holder(TTL_MS);
    put_back(&fixture, "in its place");
    fixture.worker().refused(&fixture.file(), &["in use", "stop"]);
    let fate = holder.ask("fate");
    assert!(fate.contains("was removed or replaced") && fate.contains("another client may hold it"), "{fate}");
    holder.end();
    let next = fixture.connected(TTL_MS).acquire("orders");
    assert!(next > token, "{next} after {token}");
}

/// SQLite's write-ahead log may hide the old copy. Then nothing is lost. Otherwise the loss is noticed.
#[test]
fn an_old_copy_written_over_a_file_in_use_gives_no_token_again() {
    let (fixture, _) = with_backup();
    let (mut holder, token) = fixture.holder(TTL_MS);
    put_back(&fixture, "over it");
    let mut other = fixture.worker();
    match other.connect(&fixture.file(), LONG_MS).as_str() {
        "connected" => {
            assert_eq!(other.ask("try orders"), "busy");
            holder.holds(token);
        }
        refused => assert!(refused.starts_with("error "), "{refused}"),
    }
    other.end();
    holder.end();
    let next = fixture.connected(TTL_MS).acquire("orders");
    assert!(next > token, "{next} after {token}");
}

#[test]
fn a_copy_elsewhere_is_a_separate_file_with_higher_tokens() {
    let (fixture, token) = with_backup();
    let (mut holder, held) = fixture.holder(LONG_MS);
    assert!(held > token);
    let mut other = fixture.worker();
    assert_eq!(other.connect(&fixture.path("backup/locks.db"), LONG_MS), "connected");
    assert!(other.acquire("orders") > held);
    holder.holds(held);
}
