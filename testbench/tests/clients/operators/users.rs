//! Several users of one host, and their umasks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use palisade_testbench::bounded::output;

use super::fixture::{ALICE, BOB, Fixture, GROUP, LONG_MS, Worker, is_privileged};

/// A holder of one user is killed; the other user gets the lock without waiting for the TTL.
fn passes_on(fixture: &Fixture, umask: &str) {
    let mut last = 0;
    // Each user is the first once, and creates the files.
    for (first, second) in [(ALICE, BOB), (BOB, ALICE), (ALICE, BOB)] {
        let mut holder = fixture.worker_of(first, umask);
        assert_eq!(holder.connect(&fixture.file(), LONG_MS), "connected");
        let token = holder.acquire("orders");
        assert!(token > last);
        let mut next = fixture.worker_of(second, umask);
        assert_eq!(next.connect(&fixture.file(), LONG_MS), "connected");
        assert_eq!(next.ask("try orders"), "busy");
        next.send("acquire orders");
        holder.kill();
        let said = next.reply();
        last = said.strip_prefix("granted ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
        assert!(last > token);
        next.kill();
    }
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_holder_killed_under_a_strict_umask_blocks_no_other_user() {
    if !is_privileged("a_holder_killed_under_a_strict_umask_blocks_no_other_user") {
        return;
    }
    // With and without the bit that passes the directory's group on, and a directory for all users.
    for mode in [0o2770, 0o770, 0o777] {
        for umask in ["077", "022", "777"] {
            let fixture = Fixture::new();
            fixture.make_directory("locks", mode, Some((0, GROUP)));
            passes_on(&fixture, umask);
        }
    }
}

#[test]
fn files_have_the_mode_that_their_directory_gives_whatever_the_umask() {
    if !is_privileged("files_have_the_mode_that_their_directory_gives_whatever_the_umask") {
        return;
    }
    for (mode, expected) in [(0o700, 0o600), (0o755, 0o600), (0o2770, 0o660), (0o777, 0o666)] {
        for umask in ["000", "077"] {
            let fixture = Fixture::new();
            fixture.make_directory("locks", mode, Some((ALICE, GROUP)));
            let mut worker = fixture.worker_of(ALICE, umask);
            assert_eq!(worker.connect(&fixture.file(), LONG_MS), "connected");
            worker.acquire("orders");
            let mut files: Vec<_> =
                ["", "-wal", "-shm", "-lock", "-bell"].map(|suffix| fixture.beside(suffix)).into();
            let of_session = fs::read_dir(fixture.beside("-sessions")).unwrap();
            files.extend(of_session.map(|entry| entry.unwrap().path()));
            assert_eq!(files.len(), 7, "{files:?}");
            for file in files {
                let found = fs::metadata(&file).unwrap();
                assert_eq!(found.mode() & 0o777, expected, "{file:?} in {mode:o} under {umask}");
                assert_eq!(found.gid(), GROUP, "{file:?} in {mode:o} under {umask}");
            }
        }
    }
}

#[test]
fn a_refused_user_leaves_nothing_behind() {
    if !is_privileged("a_refused_user_leaves_nothing_behind") {
        return;
    }
    for mode in [0o644, 0o600, 0o640] {
        let fixture = Fixture::new();
        fixture.make_directory("locks", 0o777, None);
        let mut alice = fixture.worker_of(ALICE, "022");
        assert_eq!(alice.connect(&fixture.file(), LONG_MS), "connected");
        let token = alice.acquire("orders");
        alice.end();
        fs::set_permissions(fixture.file(), fs::Permissions::from_mode(mode)).unwrap();
        let before = fixture.names("locks");
        fixture.worker_of(BOB, "022").refused(&fixture.file(), &["may not write", "locks.db"]);
        assert_eq!(fixture.names("locks"), before);
        let mut alice = fixture.worker_of(ALICE, "022");
        assert_eq!(alice.connect(&fixture.file(), LONG_MS), "connected");
        assert!(alice.acquire("orders") > token);
        alice.end();
    }
}

#[test]
fn a_user_without_write_access_to_the_directory_leaves_nothing_behind() {
    if !is_privileged("a_user_without_write_access_to_the_directory_leaves_nothing_behind") {
        return;
    }
    let fixture = Fixture::new();
    fixture.make_directory("locks", 0o755, Some((ALICE, ALICE)));
    fixture.worker_of(BOB, "022").refused(&fixture.file(), &["may not write"]);
    assert_eq!(fixture.names("locks"), [] as [&str; 0]);
    let mut alice = fixture.worker_of(ALICE, "022");
    assert_eq!(alice.connect(&fixture.file(), LONG_MS), "connected");
    alice.acquire("orders");
    // The database alone is opened to all users, its directory is not.
    fs::set_permissions(fixture.file(), fs::Permissions::from_mode(0o666)).unwrap();
    let before = fixture.names("locks");
    fixture.worker_of(BOB, "022").refused(&fixture.file(), &["may not write"]);
    assert_eq!(fixture.names("locks"), before);
    assert_eq!(alice.ask("release"), "released");
}

#[test]
fn files_that_root_creates_belong_to_the_owner_of_the_directory() {
    if !is_privileged("files_that_root_creates_belong_to_the_owner_of_the_directory") {
        return;
    }
    let fixture = Fixture::new();
    fixture.make_directory("locks", 0o700, Some((ALICE, ALICE)));
    let (root, token) = fixture.holder(LONG_MS);
    let mut alice = fixture.worker_of(ALICE, "022");
    assert_eq!(alice.connect(&fixture.file(), LONG_MS), "connected");
    assert_eq!(alice.ask("try orders"), "busy");
    alice.send("acquire orders");
    root.kill();
    assert_eq!(alice.reply(), format!("granted {}", token + 1));
}

#[test]
fn a_read_only_directory_or_file_system_is_refused_and_left_alone() {
    if !is_privileged("a_read_only_directory_or_file_system_is_refused_and_left_alone") {
        return;
    }
    let fixture = Fixture::new();
    let (holder, _) = fixture.holder(LONG_MS);
    holder.end();
    let before = fixture.names("locks");
    let mut other =
        fixture.worker_by(&["unshare", "--mount"], "mount --bind locks locks\nmount -o remount,bind,ro locks");
    other.refused(&fixture.file(), &["is read-only", "nothing has changed"]);
    assert_eq!(fixture.names("locks"), before);
    assert_eq!(fixture.connected(LONG_MS).ask("try orders").split(' ').next(), Some("granted"));
}

/// The groups of a host whose operator has not set up the default file for its users.
const NO_GROUP: &str = "root:x:0:\n";

/// A worker of this user on a host whose `/var/lib` is a directory of the test, and that has these groups.
fn on_host_with(fixture: &Fixture, groups: &str, user: u32) -> Worker {
    fixture.make_directory("var", 0o755, None);
    fs::write(fixture.path("groups"), groups).unwrap();
    let home = fixture.make_directory(&format!("home-{user}"), 0o700, Some((user, user)));
    let script = format!(
        "mount --bind var /var/lib\nmount --bind groups /etc/group\nexport HOME='{}'\n\
         exec setpriv --reuid {user} --regid {user} --groups {GROUP} \"$WORKER\"",
        home.display()
    );
    fixture.worker_by(&["unshare", "--mount"], &script)
}

fn on_host(fixture: &Fixture, user: u32) -> Worker {
    on_host_with(fixture, NO_GROUP, user)
}

/// Connects to the default file.
fn connect(worker: &mut Worker) -> String {
    worker.ask(&format!("connect embedded: {LONG_MS}"))
}

#[test]
fn the_users_of_a_host_share_the_default_file() {
    if !is_privileged("the_users_of_a_host_share_the_default_file") {
        return;
    }
    let fixture = Fixture::new();
    fixture.make_directory("var/palisade-locks", 0o2770, Some((0, GROUP)));
    let users = [0, ALICE, BOB];
    for holder in users {
        let mut worker = on_host(&fixture, holder);
        assert_eq!(connect(&mut worker), "connected", "user {holder}");
        let token = worker.acquire("orders");
        for other in users.into_iter().filter(|other| *other != holder) {
            let mut other_worker = on_host(&fixture, other);
            assert_eq!(connect(&mut other_worker), "connected", "user {other}");
            assert_eq!(other_worker.ask("try orders"), "busy", "user {other} while user {holder} holds it");
        }
        worker.holds(token);
        worker.kill();
    }
}

#[test]
fn a_user_with_a_private_default_file_is_refused_once_the_host_has_one() {
    if !is_privileged("a_user_with_a_private_default_file_is_refused_once_the_host_has_one") {
        return;
    }
    let fixture = Fixture::new();
    let mut holder = on_host(&fixture, ALICE);
    assert_eq!(connect(&mut holder), "connected");
    let token = holder.acquire("orders");
    fixture.make_directory("var/palisade-locks", 0o2770, Some((0, GROUP)));
    let said = connect(&mut on_host(&fixture, ALICE));
    for part in ["a lock could be held in both", ".local/state/palisade/locks.db", "--url embedded:"] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    holder.holds(token);
}

#[test]
fn a_user_without_write_access_to_the_default_file_gets_an_error_and_no_other_file() {
    if !is_privileged("a_user_without_write_access_to_the_default_file_gets_an_error_and_no_other_file") {
        return;
    }
    let fixture = Fixture::new();
    let mut root = on_host(&fixture, 0);
    assert_eq!(connect(&mut root), "connected");
    assert_eq!(fs::metadata(fixture.path("var/palisade-locks")).unwrap().mode() & 0o7777, 0o700);
    let said = connect(&mut on_host(&fixture, ALICE));
    for part in ["error ", "/var/lib/palisade-locks/locks.db", "this user may not write", "groupadd palisade-locks"] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    assert_eq!(fixture.names(&format!("home-{ALICE}")), [] as [&str; 0]);
    // The remedy in the message works, also for files in use.
    let script = format!(
        "cd '{}'; chgrp -R {GROUP} .; chmod -R g+rwX .; chmod g+s .",
        fixture.path("var/palisade-locks").display()
    );
    assert!(output(Command::new("sh").args(["-ec", &script])).unwrap().status.success());
    root.acquire("orders");
    let mut alice = on_host(&fixture, ALICE);
    assert_eq!(connect(&mut alice), "connected");
    assert_eq!(alice.ask("try orders"), "busy");
}

#[test]
fn the_default_file_that_root_creates_is_for_the_members_of_the_group() {
    if !is_privileged("the_default_file_that_root_creates_is_for_the_members_of_the_group") {
        return;
    }
    let fixture = Fixture::new();
    let groups = format!("root:x:0:\npalisade-locks:x:{GROUP}:\n");
    let mut root = on_host_with(&fixture, &groups, 0);
    assert_eq!(connect(&mut root), "connected");
    let found = fs::metadata(fixture.path("var/palisade-locks")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.gid()), (0o2770, GROUP));
    root.acquire("orders");
    let mut alice = on_host_with(&fixture, &groups, ALICE);
    assert_eq!(connect(&mut alice), "connected");
    assert_eq!(alice.ask("try orders"), "busy");
}

#[test]
fn without_a_default_file_of_the_host_each_user_has_one() {
    if !is_privileged("without_a_default_file_of_the_host_each_user_has_one") {
        return;
    }
    let fixture = Fixture::new();
    for user in [ALICE, BOB] {
        assert_eq!(connect(&mut on_host(&fixture, user)), "connected");
        let directory = fixture.path(&format!("home-{user}/.local/state/palisade"));
        assert!(directory.join("locks.db").exists());
        assert_eq!(fs::metadata(directory).unwrap().mode() & 0o7777, 0o700);
    }
}
