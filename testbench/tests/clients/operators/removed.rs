//! Files that are removed, while they are in use and while they are not.

use std::fs;

use palisade_testbench::bounded::block_until;

use super::fixture::{Fixture, LONG_MS};

/// Short enough that a keep-alive comes soon; nothing else depends on it.
const TTL_MS: u64 = 3_000;

/// Each of these files alone, and all that look temporary.
const REMOVED: [&[&str]; 6] = [&[""], &["-wal"], &["-shm"], &["-lock"], &["-wal", "-shm"], &["", "-wal", "-shm"]];

fn remove(fixture: &Fixture, suffixes: &[&str]) {
    suffixes.iter().for_each(|suffix| fs::remove_file(fixture.beside(suffix)).unwrap());
}

#[test]
#[ignore = "long: several seconds"]
fn a_holder_learns_that_a_file_was_removed_and_its_token_is_not_given_again() {
    for suffixes in REMOVED {
        let fixture = Fixture::new();
        let (mut holder, token) = fixture.holder(TTL_MS);
        let mut idle = fixture.connected(TTL_MS);
        remove(&fixture, suffixes);
        fixture.worker().refused(&fixture.file(), &["in use", "stop"]);
        let fate = holder.ask("fate");
        assert!(fate.contains("was removed or replaced"), "{suffixes:?}: {fate}");
        assert!(fate.contains("another client may hold it"), "{suffixes:?}: {fate}");
        let reply = idle.ask("try orders");
        assert!(
            reply.contains("was removed or replaced") && reply.contains("start them again"),
            "{suffixes:?}: {reply}"
        );
        holder.end();
        idle.end();
        let next = fixture.connected(TTL_MS).acquire("orders");
        assert!(next > token, "{suffixes:?}: {next} after {token}");
    }
}

#[test]
fn a_holder_that_was_killed_after_a_file_was_removed_does_not_bring_its_token_back() {
    for suffixes in REMOVED {
        let fixture = Fixture::new();
        let (holder, token) = fixture.holder(LONG_MS);
        remove(&fixture, suffixes);
        holder.kill();
        let next = fixture.connected(TTL_MS).acquire("orders");
        assert!(next > token, "{suffixes:?}: {next} after {token}");
    }
}

#[test]
fn files_removed_while_unused_do_not_repeat_tokens() {
    for suffixes in [&[""] as &[&str], &["-lock"]] {
        let fixture = Fixture::new();
        let (holder, token) = fixture.holder(LONG_MS);
        holder.end();
        remove(&fixture, suffixes);
        let next = fixture.connected(LONG_MS).acquire("orders");
        assert!(next > token, "{suffixes:?}: {next} after {token}");
    }
}

#[test]
#[ignore = "long: several seconds"]
fn a_removed_directory_of_sessions_loses_no_lock() {
    let fixture = Fixture::new();
    let (mut holder, token) = fixture.holder(TTL_MS);
    fs::remove_dir_all(fixture.beside("-sessions")).unwrap();
    let mut other = fixture.connected(LONG_MS);
    // Three keep-alives of the holder and more.
    let over_at = std::time::Instant::now() + std::time::Duration::from_millis(2 * TTL_MS);
    while std::time::Instant::now() < over_at {
        assert_eq!(other.ask("try orders"), "busy");
        holder.holds(token);
    }
}

/// Other processes look for a session's file at its path, not at the open file.
#[test]
fn a_directory_of_sessions_that_was_moved_away_is_made_again_by_the_next_keep_alive() {
    let fixture = Fixture::new();
    let (mut holder, token) = fixture.holder(TTL_MS);
    let sessions = fixture.beside("-sessions");
    let files = fs::read_dir(&sessions).unwrap().count();
    fs::rename(&sessions, fixture.path("moved")).unwrap();
    let what = format!("one of {files} files is back");
    block_until(&what, || fs::read_dir(&sessions).map_or(0, Iterator::count) > 0);
    assert_eq!(fixture.connected(LONG_MS).ask("try orders"), "busy");
    holder.holds(token);
}

/// The lock file says which tokens were given. If it is damaged too, they begin above the clock.
#[test]
fn a_removed_database_with_a_damaged_lock_file_repeats_no_token() {
    let fixture = Fixture::new();
    let (holder, token) = fixture.holder(LONG_MS);
    holder.end();
    remove(&fixture, &[""]);
    let lock = fs::OpenOptions::new().write(true).open(fixture.beside("-lock")).unwrap();
    let length = lock.metadata().unwrap().len();
    lock.set_len(length - 1).unwrap();
    let next = fixture.connected(LONG_MS).acquire("orders");
    assert!(next > token, "{next} after {token}");
}
