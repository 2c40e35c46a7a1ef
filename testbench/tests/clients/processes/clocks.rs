//! Clocks that jump, and clocks that count while the host sleeps.

use palisade_cli::harness::wall_clock::WallClock;

use super::actors::{TempStore, Worker};

#[test]
fn a_wall_clock_that_jumps_an_hour_either_way_changes_nothing() {
    let place = TempStore::new();
    let clock = WallClock::new(&place.file("time")).expect("faketime is installed: scripts/setup");
    let mut holder = Worker::under("env", &[] as &[&str], &clock.variables());
    holder.connect(&place, 60_000);
    let mut other = Worker::start(&place, 60_000);
    let mut last = holder.acquire("orders");
    for offset in ["+1h", "-1h", "+0", "+1h", "-1h"] {
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

/// A suspended host's boot clock advances, and its monotonic clock does not. A time namespace moves the boot clock alone, which
/// has the same effect without a suspend. Deadlines must be counted on the boot clock.
#[test]
fn deadlines_are_counted_on_the_clock_that_also_counts_suspended_time() {
    const DAY_S: &str = "86400";
    let arguments = ["--time", "--boottime", DAY_S, "--monotonic", "0"];
    const DAY_MS: u128 = 86_400_000;
    let mut worker = Worker::under("unshare", &arguments, &[]);
    let ours = || palisade::BootInstant::now().since_boot().as_millis();
    // The worker reads its clock between these two readings of ours.
    let before = ours();
    let theirs: u128 = worker.ask("clock").parse().expect("a number of milliseconds");
    let after = ours();
    assert!((before + DAY_MS..=after + DAY_MS).contains(&theirs), "{theirs}, between {before} and {after}");
}
