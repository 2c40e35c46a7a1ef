//! A Redis that was started again from older data: as after a crash with `appendfsync everysec`, or from a backup.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use palisade::{LockGuard, Loss};
use palisade_testbench::conformance::stalls::{is_renewed, short_ttls};

use super::fixture::{
    Fixture, LONG_TTL, check, connect, take, take_unless_lost, taken, taking, token, try_take, until, until_queued,
    until_some,
};

const OPTIONS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Everything that it has on its disk, copied.
struct Backup(PathBuf);

impl Backup {
    fn of(fixture: &Fixture) -> Backup {
        let backup = fixture.folder.path().join("backup");
        copy(&fixture.folder.path().join("redis"), &backup);
        Backup(backup)
    }

    /// Kills the server and starts it again from the copy.
    fn restore(&self, fixture: &mut Fixture) {
        let place = fixture.folder.path().join("redis");
        fixture.redis.kill();
        std::fs::remove_dir_all(&place).expect("it can be removed");
        copy(&self.0, &place);
        fixture.redis.restart().expect("it reads its files");
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().expect("cp can be run");
    assert!(copied.success());
}

async fn assert_data_lost(guard: &LockGuard) {
    let loss = guard.lost().await;
    assert!(matches!(&loss, Loss::DataLost { what } if what.contains("older data")), "{loss:?}");
    assert!(guard.token().is_err());
}

/// The counter is above the client's last token when the client reconnects.
#[test]
#[ignore = "long: restarts on older data"]
fn all_guards_of_a_client_whose_grant_was_lost_are_lost_by_that_name() {
    check(async {
        let mut fixture = Fixture::with(&OPTIONS, &[]);
        let alice = fixture.through_proxy(LONG_TTL).await;
        let kept = take(&alice, "kept").await;
        let backup = Backup::of(&fixture);
        let lost = take(&alice, "lost").await;
        let before = token(&lost);
        fixture.proxy.shut();
        backup.restore(&mut fixture);
        let bob = fixture.client(LONG_TTL).await;
        for number in 0..5 {
            let other = take(&bob, &format!("other {number}")).await;
            assert!(token(&other) > before, "a token that was given before is given again");
        }
        let newer = take(&bob, "lost").await;
        fixture.proxy.pass();
        assert_data_lost(&lost).await;
        assert_data_lost(&kept).await;
        let error = alice.lock("more").efficiency().try_acquire().await.expect_err("it does not go on");
        assert!(!error.is_retryable(), "{error}");
        assert!(newer.token().is_ok(), "the later grant is not lost");
    });
}

/// Only a session was lost, and its number must not be used for another one.
#[test]
#[ignore = "long: restarts on older data"]
fn a_session_that_was_lost_is_not_mistaken_for_a_newer_one() {
    check(async {
        let mut fixture = Fixture::with(&OPTIONS, &[]);
        drop(fixture.client(LONG_TTL).await);
        let backup = Backup::of(&fixture);
        let alice = fixture.through_proxy(LONG_TTL).await;
        let held = take(&alice, "held").await;
        fixture.proxy.shut();
        backup.restore(&mut fixture);
        let bob = fixture.client(LONG_TTL).await;
        let other = take(&bob, "other").await;
        assert_ne!(other.session(), held.session());
        fixture.proxy.pass();
        assert_data_lost(&held).await;
        assert!(other.token().is_ok());
    });
}

#[test]
#[ignore = "long: restarts on older data"]
fn a_waiter_is_never_granted_a_token_that_was_given_before() {
    check(async {
        let mut fixture = Fixture::with(&OPTIONS, &[]);
        let (alice, bob, carol) =
            (fixture.client(LONG_TTL).await, fixture.client(LONG_TTL).await, fixture.through_proxy(LONG_TTL).await);
        let held = take(&alice, "lock").await;
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        let backup = Backup::of(&fixture);
        let lost = take(&carol, "another").await;
        let before = token(&lost);
        fixture.proxy.shut();
        backup.restore(&mut fixture);
        super::fixture::give_back(&held).await;
        let next = taken(waiting).await;
        assert!(token(&next) > before, "{} after {before}", token(&next));
        fixture.proxy.pass();
        assert_data_lost(&lost).await;
        assert!(next.token().is_ok());
    });
}

/// A keep-alive that was answered and then lost does not end a session before its client expects it.
#[test]
#[ignore = "long: restarts on older data"]
fn after_a_restart_every_session_has_its_whole_ttl() {
    check(async {
        for ttl in short_ttls(Duration::from_secs(4)) {
            let mut fixture = Fixture::with(&OPTIONS, &[]);
            let alice = fixture.through_proxy(ttl).await;
            let Some(held) = take_unless_lost(&alice, "lock").await else { continue };
            let backup = Backup::of(&fixture);
            if !(is_renewed(&held).await && is_renewed(&held).await) {
                continue;
            }
            fixture.proxy.shut();
            if held.token().is_err() {
                continue;
            }
            backup.restore(&mut fixture);
            let bob = connect(&fixture.redis.url(), LONG_TTL).await;
            until("bob has the lock", async || try_take(&bob, "lock").await.is_some()).await;
            assert!(held.safe_until().has_passed(), "bob has it while alice is certain of it");
            return;
        }
    });
}

/// A restart that loses nothing is no loss, whichever client connects first.
#[test]
#[ignore = "long: restarts on older data"]
fn a_restart_from_all_data_ends_nothing() {
    check(async {
        let mut fixture = Fixture::with(&OPTIONS, &[]);
        let (alice, bob) = (fixture.through_proxy(LONG_TTL).await, fixture.client(LONG_TTL).await);
        let held = take(&alice, "lock").await;
        for _ in 0..20 {
            fixture.proxy.shut();
            fixture.redis.kill();
            fixture.redis.restart().expect("it reads its files");
            let attempt = async || bob.lock("other").dangerous_accept_failover().try_acquire().await.ok().flatten();
            let other = until_some("the restarted server grants a lock", attempt).await;
            assert!(token(&other) > token(&held));
            super::fixture::give_back(&other).await;
            fixture.proxy.pass();
            alice.inspect("lock").await.ok();
            assert!(held.token().is_ok());
        }
        super::fixture::give_back(&held).await;
        assert!(try_take(&bob, "lock").await.is_some());
    });
}
