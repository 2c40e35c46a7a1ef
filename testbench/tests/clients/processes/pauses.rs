//! Holders that are stopped for longer than their session lives.

use palisade_testbench::bounded::block_until;

use super::actors::{TempStore, Worker};

/// The TTL of sessions that must end, in milliseconds. They outlive a standstill of ten seconds before their processes are stopped.
const SHORT_TTL: u64 = 18_000;
/// The TTL of sessions that must not end.
const LONG_TTL: u64 = 3_600_000;

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_stopped_holder_is_overtaken_and_knows_it_when_it_wakes() {
    let place = TempStore::new();
    let (mut old, mut new) = (Worker::start(&place, SHORT_TTL), Worker::start(&place, LONG_TTL));
    let before = old.acquire("orders");
    old.stop();
    // Only the end of the old session can free the lock.
    let after = new.acquire("orders");
    assert!(after > before);
    old.go_on();
    assert_eq!(old.ask("token"), "lost");
    assert_eq!(new.ask("token"), format!("token {after}"));
}

#[test]
#[ignore = "long: cut and slow connections"]
fn a_late_release_does_not_free_a_newer_grant() {
    let place = TempStore::new();
    let (mut old, mut new) = (Worker::start(&place, SHORT_TTL), Worker::start(&place, LONG_TTL));
    old.acquire("orders");
    old.stop();
    let token = new.acquire("orders");
    old.go_on();
    assert_eq!(old.ask("release"), "lost");
    let mut third = Worker::start(&place, LONG_TTL);
    assert_eq!(third.ask("try orders"), "busy");
    assert_eq!(new.ask("token"), format!("token {token}"));
}

#[test]
fn a_killed_holder_is_replaced_without_waiting_for_its_ttl() {
    const HOUR_MS: u64 = 3_600_000;
    let place = TempStore::new();
    let (mut old, mut new) = (Worker::start(&place, HOUR_MS), Worker::start(&place, HOUR_MS));
    let before = old.acquire("orders");
    new.send("acquire orders");
    old.kill();
    // With a TTL of an hour, only the death itself can have ended the session.
    let said = new.reply();
    assert!(super::actors::token(&said) > before);
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_stopped_waiter_is_passed_over_and_never_granted() {
    let place = TempStore::new();
    let mut workers = [LONG_TTL, SHORT_TTL, LONG_TTL].map(|ttl| Worker::start(&place, ttl));
    let [holder, waiter, next] = &mut workers;
    holder.acquire("orders");
    waiter.send("acquire orders");
    // It is stopped once it is seen in the queue; its session then ends.
    block_until("the waiter is in the queue", || next.ask("waiters orders") == "1");
    waiter.stop();
    next.send("acquire orders");
    assert_eq!(holder.ask("release"), "released");
    let said = next.reply();
    let token = super::actors::token(&said);
    waiter.go_on();
    let said = waiter.reply();
    // Either its session had ended in the queue, or it was granted and has lost that by now.
    let lost = said.starts_with("error") || waiter.ask("token") == "lost";
    assert!(lost, "{said}");
    assert_eq!(next.ask("token"), format!("token {token}"));
}
