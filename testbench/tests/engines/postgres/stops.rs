//! Stopped processes, and a server whose clock jumps.

use palisade_cli::harness::wall_clock::WallClock;
use palisade_testbench::bounded::block_until;

use super::actors::{Worker, token};
use super::fixture::{Fixture, Server};

/// The TTL of sessions that must end, in milliseconds.
const SHORT_TTL: u64 = 1_500;
/// The TTL of a session that must end, and must not end before it is stopped in the queue.
const WAITING_TTL: u64 = 15_000;
/// The TTL of sessions that must not end.
const LONG_TTL: u64 = 60_000;

fn worker(url: &str, ttl_ms: u64) -> Worker {
    let mut worker = Worker::under("env", &[] as &[&str], &[]);
    assert_eq!(worker.ask(&format!("connect {url} {ttl_ms}")), "connected");
    worker
}

/// Returns the token of a lock that a worker waits for, whose session may be lost before it is granted on a machine that stands still.
fn acquire(worker: &mut Worker, lock: &str) -> u64 {
    let mut reply = worker.ask(&format!("acquire {lock}"));
    for _ in 0..20 {
        if reply.starts_with("granted ") {
            break;
        }
        reply = worker.ask(&format!("acquire {lock}"));
    }
    token(&reply)
}

/// Fault 1, at the lock; the fence has its own test.
#[test]
#[ignore = "long: stopped processes"]
fn a_stopped_holder_is_overtaken_and_knows_it_when_it_wakes() {
    let fixture = Fixture::new();
    let (mut old, mut new) = (worker(&fixture.url(), SHORT_TTL), worker(&fixture.url(), LONG_TTL));
    let before = acquire(&mut old, "orders");
    old.stop();
    // Only the end of the old session can let the new one in.
    let after = new.acquire("orders");
    assert!(after > before);
    old.go_on();
    assert_eq!(old.ask("token"), "lost");
    assert_eq!(old.ask("release"), "lost");
    // Fault 9: its late release does not free the newer grant.
    assert_eq!(worker(&fixture.url(), LONG_TTL).ask("try orders"), "busy");
    assert_eq!(new.ask("token"), format!("token {after}"));
}

/// Fault 5.
#[test]
#[ignore = "long: stopped processes"]
fn a_stopped_waiter_is_passed_over_and_never_granted() {
    let fixture = Fixture::new();
    let mut workers = [LONG_TTL, WAITING_TTL, LONG_TTL].map(|ttl| worker(&fixture.url(), ttl));
    let [holder, waiter, next] = &mut workers;
    holder.acquire("orders");
    waiter.send("acquire orders");
    block_until("the waiter is in the queue", || next.ask("waiters orders") == "1");
    waiter.stop();
    next.send("acquire orders");
    assert_eq!(holder.ask("release"), "released");
    let granted = token(&next.reply());
    waiter.go_on();
    let said = waiter.reply();
    // Either its session had ended in the queue, or it was granted and has lost that by now.
    assert!(said.starts_with("error") || waiter.ask("token") == "lost", "{said}");
    assert_eq!(next.ask("token"), format!("token {granted}"));
}

/// Fault 17 at the client: its wall clock does not matter.
#[test]
#[ignore = "long: stopped processes"]
fn a_clients_wall_clock_that_jumps_changes_nothing() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().expect("a folder"));
    let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
    let mut holder = Worker::under("env", &[] as &[&str], &clock.variables());
    assert_eq!(holder.ask(&format!("connect {} 60000", fixture.url())), "connected");
    let mut other = worker(&fixture.url(), 60_000);
    let mut last = holder.acquire("orders");
    for offset in ["+1h", "-1h", "+0"] {
        clock.jump(offset).expect("the time can be set");
        assert_eq!(holder.ask("token"), format!("token {last}"));
        assert_eq!(other.ask("try orders"), "busy");
        assert_eq!(holder.ask("release"), "released");
        let next = other.acquire("orders");
        assert!(next > last);
        assert_eq!(other.ask("release"), "released");
        last = holder.acquire("orders");
        assert!(last > next);
    }
}

/// Fault 17 at the server: sessions end early or late. There is still one holder at a time, and tokens rise.
#[test]
#[ignore = "long: stopped processes"]
fn a_servers_wall_clock_that_jumps_ends_sessions_and_harms_no_grant() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = WallClock::new(&folder.path().join("time")).expect("faketime is installed: scripts/setup");
    let server = Server::start_with(folder.path(), &clock.variables());
    let server = server.unwrap_or_else(|absent| panic!("{absent}"));
    let fixture = Fixture::at(server.address, "jumping");
    let mut one = worker(&fixture.url(), LONG_TTL);
    let first = one.acquire("orders");
    // An hour later the store finds the session expired, so another client gets the lock at once.
    clock.jump("+1h").expect("the time can be set");
    let mut two = worker(&fixture.url(), LONG_TTL);
    let second = two.acquire("orders");
    assert!(second > first);
    let said = one.ask("release");
    assert_eq!(said, "lost", "it was another's");
    assert_eq!(two.ask("token"), format!("token {second}"));
    // Back again: an expired session stays ended.
    clock.jump("+0").expect("the time can be set");
    let third = worker(&fixture.url(), LONG_TTL).ask("try orders");
    assert_eq!(third, "busy");
    assert_eq!(two.ask("release"), "released");
    assert!(acquire(&mut one, "orders") > second);
}
