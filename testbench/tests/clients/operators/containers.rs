//! Containers: processes of one kernel that see another boot id, or another time.

use super::fixture::{Fixture, LONG_MS, Worker, is_privileged};

/// A worker that reads another boot id than the host's.
fn with_another_boot_id(fixture: &Fixture) -> Worker {
    std::fs::write(fixture.path("boot_id"), "00000000-1111-2222-3333-444444444444\n").unwrap();
    fixture.worker_by(&["unshare", "--mount"], "mount --bind boot_id /proc/sys/kernel/random/boot_id")
}

/// A worker whose boot clock is a day ahead.
fn with_another_clock(fixture: &Fixture) -> Worker {
    fixture.worker_by(&["unshare", "--time", "--boottime", "86400", "--monotonic", "86400"], "")
}

fn is_refused_while_a_holder_lives(other: fn(&Fixture) -> Worker) {
    let fixture = Fixture::new();
    let (mut holder, token) = fixture.holder(LONG_MS);
    other(&fixture).refused(&fixture.file(), &["another boot or clock", "time namespace", "stop"]);
    holder.holds(token);
    assert_eq!(fixture.connected(LONG_MS).ask("try orders"), "busy", "its session lives");
    holder.holds(token);
    holder.kill();
    let mut next = other(&fixture);
    assert_eq!(next.connect(&fixture.file(), LONG_MS), "connected");
    let next_token = next.acquire("orders");
    assert!(next_token > token);
    // Now the file uses the other clock, and the host's processes are refused.
    fixture.worker().refused(&fixture.file(), &["another boot or clock"]);
    next.holds(next_token);
}

#[test]
fn another_boot_id_is_refused_while_a_holder_lives() {
    if is_privileged("another_boot_id_is_refused_while_a_holder_lives") {
        is_refused_while_a_holder_lives(with_another_boot_id);
    }
}

#[test]
fn another_time_namespace_is_refused_while_a_holder_lives() {
    if is_privileged("another_time_namespace_is_refused_while_a_holder_lives") {
        is_refused_while_a_holder_lives(with_another_clock);
    }
}

#[test]
fn a_time_namespace_without_an_offset_shares_the_locks() {
    if !is_privileged("a_time_namespace_without_an_offset_shares_the_locks") {
        return;
    }
    let fixture = Fixture::new();
    let (mut holder, token) = fixture.holder(LONG_MS);
    let mut other = fixture.worker_by(&["unshare", "--time", "--pid", "--fork"], "");
    assert_eq!(other.connect(&fixture.file(), LONG_MS), "connected");
    assert_eq!(other.ask("try orders"), "busy");
    holder.holds(token);
}
