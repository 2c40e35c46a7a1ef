//! The same file through other names: links, mounts, moves.

use std::fs;
use std::os::unix::fs::symlink;

use super::fixture::{Fixture, LONG_MS, is_privileged};

/// Short enough that a holder notices soon; nothing else depends on it.
const TTL_MS: u64 = 1_500;

#[test]
fn a_symbolic_link_leads_to_the_same_locks() {
    let fixture = Fixture::new();
    fixture.make_directory("other", 0o755, None);
    symlink(fixture.file(), fixture.path("other/link.db")).unwrap();
    symlink("locks", fixture.path("linked")).unwrap();
    symlink("other/link.db", fixture.path("chain.db")).unwrap();
    // The first link leads to a file that does not exist yet.
    let mut holder = fixture.worker();
    assert_eq!(holder.connect(&fixture.path("chain.db"), LONG_MS), "connected");
    let token = holder.acquire("orders");
    let mut last = token;
    for name in ["locks/locks.db", "other/link.db", "linked/locks.db", "chain.db"] {
        let mut other = fixture.worker();
        assert_eq!(other.connect(&fixture.path(name), LONG_MS), "connected");
        assert_eq!(other.ask("try orders"), "busy", "{name}");
        let next = other.acquire("customers");
        assert!(next > last, "{name}");
        last = next;
        other.end();
        holder.holds(token);
    }
    assert_eq!(fixture.names("other"), ["link.db"], "nothing is beside a link");
}

#[test]
fn a_file_with_a_second_hard_link_is_refused_until_it_has_one_name() {
    let fixture = Fixture::new();
    fixture.make_directory("other", 0o755, None);
    let second = fixture.path("other/second.db");
    let (mut holder, token) = fixture.holder(LONG_MS);
    fs::hard_link(fixture.file(), &second).unwrap();
    for file in [&second, &fixture.file()] {
        fixture.worker().refused(file, &["2 hard links", "remove the others"]);
    }
    assert_eq!(fixture.names("other"), ["second.db"], "a refused user leaves no files");
    holder.holds(token);
    fs::remove_file(&second).unwrap();
    assert_eq!(fixture.connected(LONG_MS).ask("try orders"), "busy");
    holder.holds(token);
}

#[test]
fn a_file_that_is_a_mount_point_is_refused() {
    if !is_privileged("a_file_that_is_a_mount_point_is_refused") {
        return;
    }
    let fixture = Fixture::new();
    fixture.make_directory("inside", 0o755, None);
    fs::write(fixture.path("inside/my locks.db"), "").unwrap();
    let (mut holder, token) = fixture.holder(LONG_MS);
    let mount = "mount --bind locks/locks.db 'inside/my locks.db'";
    let mut other = fixture.worker_by(&["unshare", "--mount"], mount);
    // A URL with a space in its path cannot be an argument of the worker's command: the directory is reached by another name.
    symlink("my locks.db", fixture.path("inside/link.db")).unwrap();
    other.refused(&fixture.path("inside/link.db"), &["is a mount point", "mount its directory"]);
    assert_eq!(fixture.names("inside"), ["link.db", "my locks.db"]);
    holder.holds(token);
}

#[test]
fn a_directory_that_is_mounted_elsewhere_has_the_same_locks() {
    if !is_privileged("a_directory_that_is_mounted_elsewhere_has_the_same_locks") {
        return;
    }
    let fixture = Fixture::new();
    fixture.make_directory("inside", 0o755, None);
    let (mut holder, token) = fixture.holder(LONG_MS);
    let container = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc"];
    let mut other = fixture.worker_by(&container, "mount --bind locks inside");
    assert_eq!(other.connect(&fixture.path("inside/locks.db"), LONG_MS), "connected");
    assert_eq!(other.ask("try orders"), "busy");
    holder.holds(token);
    other.send("acquire orders");
    holder.kill();
    let said = other.reply();
    assert!(said.strip_prefix("granted ").is_some_and(|next| next.parse::<u64>().unwrap() > token), "{said}");
}

#[test]
fn a_file_that_was_moved_while_in_use_is_refused_until_its_users_are_gone() {
    let fixture = Fixture::new();
    let moved = fixture.path("locks/moved.db");
    let (mut holder, token) = fixture.holder(LONG_MS);
    fs::rename(fixture.file(), &moved).unwrap();
    fixture.worker().refused(&moved, &["in use", "stop"]);
    fixture.worker().refused(&fixture.file(), &["in use", "stop"]);
    assert!(holder.ask("try customers").contains("was removed or replaced"));
    assert!(holder.ask("fate").contains("was removed or replaced"));
    holder.end();
    let mut next = fixture.worker();
    assert_eq!(next.connect(&moved, LONG_MS), "connected");
    assert!(next.acquire("orders") > token);
}

#[test]
fn a_holder_of_a_moved_file_learns_of_it_by_its_next_keep_alive() {
    let fixture = Fixture::new();
    let (mut holder, _) = fixture.holder(TTL_MS);
    fs::rename(fixture.file(), fixture.path("locks/moved.db")).unwrap();
    let fate = holder.ask("fate");
    assert!(fate.contains("was removed or replaced") && fate.contains("another client may hold it"), "{fate}");
}

#[test]
fn a_companion_that_is_a_symbolic_link_is_refused() {
    for suffix in ["-lock", "-bell", "-wal", "-sessions"] {
        let fixture = Fixture::new();
        let (holder, _) = fixture.holder(LONG_MS);
        holder.end();
        let target = fixture.path("target");
        match suffix {
            "-sessions" => fs::rename(fixture.beside(suffix), &target).unwrap(),
            _ => fs::write(&target, "precious").unwrap(),
        }
        drop(fs::remove_file(fixture.beside(suffix)));
        symlink(&target, fixture.beside(suffix)).unwrap();
        fixture.worker().refused(&fixture.file(), &[suffix, "is a symbolic link"]);
        assert!(suffix == "-sessions" || fs::read_to_string(&target).unwrap() == "precious");
    }
}
