//! `palisade partitions`: hosts that share partitions, each with a command for its own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::common::bounded::until;
use crate::fixture::{ALONE, Fixture, Running, full_pipe, is_writing_to_stderr};

/// Prints the partitions when it starts and when it gets TERM.
const WORKER: &str = r#"
    trap 'echo "ended $PALISADE_PARTITIONS"; exit 0' TERM
    echo "owns $PALISADE_PARTITIONS"
    while :; do sleep 1000 & wait $!; done"#;

fn host(fixture: &Fixture, options: &[&str], script: &str) -> Running {
    let args: Vec<_> = [&["partitions"], options, &["--", "sh", "-c", script]].concat();
    Running::new(fixture.command(&args))
}

/// The partitions in the next line, which begins with this word.
fn partitions(host: &mut Running, word: &str) -> BTreeSet<u32> {
    let line = host.line();
    let listed = line.strip_prefix(word).unwrap_or_else(|| panic!("'{line}' instead of '{word}…'"));
    listed.trim().split(',').map(|number| number.parse().expect("a number")).collect()
}

/// Waits until a host owns this many partitions. Its command may be restarted meanwhile.
fn until_owned(host: &mut Running, count: usize) -> BTreeSet<u32> {
    loop {
        let owned = partitions(host, "owns ");
        if owned.len() == count {
            return owned;
        }
        assert_eq!(partitions(host, "ended "), owned);
    }
}

#[test]
fn a_command_gets_the_partitions_and_their_tokens_and_passes_on_its_exit_code() {
    let fixture = Fixture::new();
    let script = r#"echo "$PALISADE_PARTITIONS $PALISADE_PARTITION_TOKENS ${PALISADE_TOKEN-none}"; exit 5"#;
    let ended = host(&fixture, &["orders", "3"], script).end();
    ended.expect(5, &["0,1,2 0:2,1:3,2:4 none"]);
    assert!(!fixture.is_held("orders/partitions/0000"));
}

#[test]
fn hosts_share_the_partitions_and_take_over_from_each_other() {
    let fixture = Fixture::new();
    let all: BTreeSet<u32> = (0..4).collect();
    let mut first = host(&fixture, &["orders", "4"], WORKER);
    assert_eq!(until_owned(&mut first, 4), all);
    let mut second = host(&fixture, &["orders", "4"], WORKER);
    assert_eq!(partitions(&mut first, "ended "), all);
    let (ours, theirs) = (until_owned(&mut first, 2), until_owned(&mut second, 2));
    assert_eq!(&ours | &theirs, all);
    first.signal(Signal::TERM);
    assert_eq!(partitions(&mut first, "ended "), ours);
    // The shell may say that its `sleep` was terminated.
    assert_eq!(first.end().code, 0);
    assert_eq!(partitions(&mut second, "ended "), theirs);
    assert_eq!(until_owned(&mut second, 4), all);
    second.signal(Signal::TERM);
    assert_eq!(partitions(&mut second, "ended "), all);
    assert_eq!(second.end().code, 0);
}

#[test]
fn a_capacity_bounds_what_a_host_owns() {
    let fixture = Fixture::new();
    let mut host = host(&fixture, &["orders", "4", "--capacity", "3"], WORKER);
    until_owned(&mut host, 3);
}

/// The member with the most room leaves. The command of the other one need not be restarted for that.
#[test]
fn a_host_says_when_partitions_have_no_owner() {
    let fixture = Fixture::new();
    let said = fixture.file("said");
    let mut large = host(&fixture, &["orders", "4"], WORKER);
    until_owned(&mut large, 4);
    let command = fixture.command(&["partitions", "orders", "4", "--capacity", "1", "--", "sh", "-c", WORKER]);
    let mut small = Running::with_errors(command, fs::File::create(&said).expect("a file"));
    until_owned(&mut small, 1);
    large.signal(Signal::TERM);
    until("it says so", || fixture.read("said").contains("3 partitions of 'orders' have no owner"));
    let mut again = host(&fixture, &["orders", "4"], WORKER);
    until_owned(&mut again, 3);
    until("it says that this is over", || fixture.read("said").contains("have room again"));
}

#[test]
fn killing_palisade_ends_its_command_before_another_host_owns_the_partition() {
    let fixture = Fixture::new();
    let script = format!("{ALONE}echo mine; read go");
    let mut killed = host(&fixture, &["orders", "1"], &script);
    killed.expect("mine");
    let mut next = host(&fixture, &["orders", "1"], &script);
    killed.signal(Signal::KILL);
    next.expect("mine");
    killed.end().expect(137, &[]);
}

/// A command that ignores TERM, as do the processes that hold the kernel's lock of a partition.
const STUBBORN: &str = r#"trap '' TERM
    for partition in $(echo "$PALISADE_PARTITIONS" | tr , ' '); do
        flock -n "$WITNESS-$partition" true || echo overlap
        flock "$WITNESS-$partition" sleep 1000 &
    done
    echo "owns $PALISADE_PARTITIONS"; wait"#;

/// A second host joins. Each of them ends up with one partition, and no partition ever has two commands.
fn share_with_a_second_host(fixture: &Fixture, first: &mut Running) {
    let mut second = host(fixture, &["orders", "2", "--grace", "500ms"], STUBBORN);
    let (ours, theirs) = (partitions(first, "owns "), partitions(&mut second, "owns "));
    assert_eq!((ours.len(), theirs.len()), (1, 1));
    assert_ne!(ours, theirs);
}

#[test]
fn a_command_that_ignores_term_is_killed_after_the_grace_and_only_then_replaced() {
    let fixture = Fixture::new();
    let mut first = host(&fixture, &["orders", "2", "--grace", "500ms"], STUBBORN);
    first.expect("owns 0,1");
    share_with_a_second_host(&fixture, &mut first);
}

/// The warden cannot kill the command at the end of the grace.
#[test]
fn a_partition_is_not_released_while_a_stopped_warden_keeps_its_command_alive() {
    let fixture = Fixture::new();
    let mut first = host(&fixture, &["orders", "2", "--grace", "500ms"], STUBBORN);
    first.expect("owns 0,1");
    kill_process(first.warden(), Signal::STOP).unwrap();
    share_with_a_second_host(&fixture, &mut first);
}

/// The next partitions of a host whose command is [`STUBBORN`], once there are this many.
fn until_stubborn(host: &mut Running, count: usize) -> BTreeSet<u32> {
    loop {
        let owned = partitions(host, "owns ");
        if owned.len() == count {
            return owned;
        }
    }
}

/// `palisade` is blocked while it says that a partition has no owner, and cannot end its command.
#[test]
fn a_partition_is_not_released_while_a_full_stderr_keeps_its_command_alive() {
    let fixture = Fixture::new();
    let mut small = host(&fixture, &["orders", "4", "--capacity", "1"], WORKER);
    until_owned(&mut small, 1);
    let (mut errors, full) = full_pipe();
    let args = ["partitions", "orders", "4", "--capacity", "3", "--grace", "500ms", "--", "sh", "-c", STUBBORN];
    let mut first = Running::with_errors(fixture.command(&args), full);
    until_stubborn(&mut first, 3);
    small.signal(Signal::TERM);
    until("it is blocked", || is_writing_to_stderr(first.pid()));
    let mut second = host(&fixture, &["orders", "4", "--grace", "500ms"], STUBBORN);
    until_stubborn(&mut second, 1);
    let is_waited_for = || (0..4).any(|number| fixture.waiters(&format!("orders/partitions/{number:04}")) > 0);
    until("the second host waits", is_waited_for);
    // Time enough to release the partition, if it were released at the end of the grace.
    thread::sleep(Duration::from_secs(2));
    assert!(is_waited_for() && is_writing_to_stderr(first.pid()));
    thread::spawn(move || io::copy(&mut errors, &mut io::sink()));
    let (ours, theirs) = (until_stubborn(&mut first, 2), until_stubborn(&mut second, 2));
    assert!(ours.is_disjoint(&theirs), "{ours:?} {theirs:?}");
}

/// A program that reads its configuration again on HUP is not asked to stop.
#[test]
fn a_command_that_survives_a_hup_is_restarted_when_the_partitions_change() {
    let fixture = Fixture::new();
    let mut first = host(&fixture, &["orders", "2"], &format!("trap 'echo reads its configuration' HUP; {WORKER}"));
    until_owned(&mut first, 2);
    first.signal(Signal::HUP);
    first.expect("reads its configuration");
    let mut second = host(&fixture, &["orders", "2"], WORKER);
    assert_eq!(partitions(&mut first, "ended ").len(), 2);
    assert_eq!((until_owned(&mut first, 1).len(), until_owned(&mut second, 1).len()), (1, 1));
}

#[test]
fn a_host_without_partitions_runs_nothing_and_ends_by_a_signal() {
    let fixture = Fixture::new();
    let mut owner = host(&fixture, &["orders", "1"], WORKER);
    until_owned(&mut owner, 1);
    let granted = fixture.next_event(|event| matches!(event, palisade::Event::Granted { .. }));
    let idle = host(&fixture, &["orders", "1"], "echo unexpected");
    granted();
    idle.signal(Signal::TERM);
    idle.end().expect(143, &[]);
}

#[test]
fn misuse_is_refused_with_what_to_change() {
    let fixture = Fixture::new();
    host(&fixture, &["orders", "0"], "true").end().expect_failure(64, "the number of partitions must not be 0");
    host(&fixture, &["orders", "5000"], "true").end().expect_failure(64, "above the highest possible, 4096");
    let mut member = host(&fixture, &["orders", "2"], WORKER);
    until_owned(&mut member, 2);
    host(&fixture, &["orders", "3"], "true").end().expect_failure(64, "its members share 2 partitions, not 3");
    let missing = Running::new(fixture.command(&["partitions", "orders", "64", "./worker"])).end();
    missing.expect_failure(64, "palisade partitions orders 64 -- ./worker");
    let not_found = host(&fixture, &["invoices", "1"], "exec ./no-such-command").end();
    assert_eq!(not_found.code, 127);
}
