//! The lock is lost while the command runs, or is about to be: by force, by a stopped process, by an outage.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use palisade::Event;
use rustix::process::{Signal, kill_process_group};

use crate::common::bounded::until;
use crate::fixture::{ALONE, Fixture, Running};

/// These tests wait for it. A twentieth of it, the margin before the KILL, must be enough for a busy machine to run the warden.
const TTL: &str = "10s";

const PRINTS_TERM: &str = "trap 'echo term; exit 3' TERM; sleep 1000 & echo ready; wait";
const IGNORES_TERM: &str = "trap 'echo term' TERM; (trap '' TERM; sleep 1000) & echo ready; while :; do wait; done";

fn alone(script: &str) -> String {
    format!("{ALONE}{script}")
}

/// A running command, and a waiter for its lock.
fn holder_and_successor(fixture: &Fixture, options: &[&str], script: &str) -> (Running, Running) {
    let options = [&["--ttl", TTL, "x"], options].concat();
    let mut command = fixture.script(&options, &alone(script));
    command.process_group(0);
    let mut holder = Running::new(command);
    holder.expect("ready");
    let successor = fixture.queue(&["x"], &alone("echo mine"));
    (holder, successor)
}

#[test]
fn breaking_the_lock_ends_the_command_and_names_the_cause() {
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture, &[], IGNORES_TERM);
    fixture.observer().force_release("x", "it hangs").unwrap();
    let ended = holder.end();
    ended.expect_failure(
        76,
        "palisade: 'x' was lost: it was taken away by an observer: it hangs; the command was ended\n",
    );
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let successor = successor.end();
    assert_eq!(successor.code, 0);
}

#[test]
fn breaking_the_lock_is_reported_with_on_loss_ignore() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--on-loss", "ignore", "x"], "echo ready; read go; exit 9");
    holder.expect("ready");
    fixture.observer().force_release("x", "it hangs").unwrap();
    fixture.run(&["x"], "echo mine").expect(0, &["mine"]);
    holder.send_line("go");
    holder.end().expect_failure(9, "'x' was lost while the command ran: it was taken away by an observer: it hangs");
}

#[test]
fn a_stopped_palisade_ends_the_command_before_the_next_holder_begins() {
    let fixture = Fixture::new();
    let (mut holder, successor) = holder_and_successor(&fixture, &[], PRINTS_TERM);
    holder.signal(Signal::STOP);
    holder.expect("term");
    successor.end().expect(0, &["mine"]);
    holder.signal(Signal::CONT);
    holder.end().expect_failure(76, "'x' was lost: this process was paused for ");
}

#[test]
fn a_stopped_palisade_kills_a_command_that_ignores_term_before_the_next_holder_begins() {
    let fixture = Fixture::new();
    let (mut holder, successor) = holder_and_successor(&fixture, &[], IGNORES_TERM);
    holder.signal(Signal::STOP);
    holder.expect("term");
    successor.end().expect(0, &["mine"]);
    holder.signal(Signal::CONT);
    holder.end().expect_failure(76, "'x' was lost: this process was paused for ");
}

#[test]
fn stopping_the_whole_job_does_not_stop_the_warden() {
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture, &[], IGNORES_TERM);
    kill_process_group(holder.pid(), Signal::STOP).unwrap();
    successor.end().expect(0, &["mine"]);
    kill_process_group(holder.pid(), Signal::CONT).unwrap();
    holder.end().expect_failure(76, "'x' was lost: this process was paused for ");
}

#[test]
fn on_loss_kill_sends_no_term() {
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture, &["--on-loss", "kill"], PRINTS_TERM);
    holder.signal(Signal::STOP);
    successor.end().expect(0, &["mine"]);
    holder.signal(Signal::CONT);
    let ended = holder.end();
    ended.expect_failure(76, "'x' was lost: this process was paused for ");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}

#[test]
fn on_loss_ignore_lets_the_command_go_on() {
    let fixture = Fixture::new();
    let go_on = "echo ready; read go; exit 9";
    let (mut holder, successor) = holder_and_successor(&fixture, &["--on-loss", "ignore"], go_on);
    holder.signal(Signal::STOP);
    assert_eq!(successor.end().stdout, ["overlap", "mine"]);
    holder.signal(Signal::CONT);
    holder.send_line("go");
    holder.end().expect_failure(9, "'x' was lost while the command ran: this process was paused for ");
}

/// Leftover processes have 5 s after TERM, which is longer than this TTL: the lock's deadline comes first.
#[test]
fn leftover_processes_end_before_the_next_holder_begins_even_if_palisade_is_stopped() {
    let fixture = Fixture::new();
    let leave = "(trap '' TERM; sleep 1000; sleep 1000) & echo ready; read go; exit 0";
    let (mut holder, successor) = holder_and_successor(&fixture, &[], leave);
    holder.signal(Signal::STOP);
    holder.send_line("go");
    successor.end().expect(0, &["mine"]);
    holder.signal(Signal::CONT);
    holder.end().expect_failure(76, "'x' was lost: this process was paused for ");
}

/// Returns the directory of the session files, whose locks show that a holder lives.
fn sessions(fixture: &Fixture) -> PathBuf {
    PathBuf::from(format!("{}-sessions", fixture.engine.url().strip_prefix("embedded://").unwrap()))
}

/// Makes keep-alives fail: removes the session files, and prevents new ones. The returned function ends the outage.
fn begin_outage(fixture: &Fixture) -> impl FnOnce() {
    let sessions = sessions(fixture);
    let away = sessions.with_extension("away");
    fs::rename(&sessions, &away).unwrap();
    for file in fs::read_dir(&away).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    fs::write(&sessions, "in the way").unwrap();
    move || {
        fs::remove_file(&sessions).unwrap();
        fs::rename(&away, &sessions).unwrap();
    }
}

#[test]
fn an_outage_ends_the_command_in_time() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--ttl", TTL, "x"], &alone(IGNORES_TERM));
    holder.expect("ready");
    let end_outage = begin_outage(&fixture);
    holder.expect("term");
    holder.end().expect_failure(76, "'x' ");
    end_outage();
    fixture.run(&["x"], &alone("echo mine")).expect(0, &["mine"]);
}

#[test]
fn an_outage_shorter_than_the_ttl_is_survived() {
    let fixture = Fixture::new();
    let mut command = fixture.script(&["--ttl", "30s", "x"], "echo ready; read go; exit 5");
    command.env("PALISADE_LOG", "palisade=warn");
    let log = fs::File::create(fixture.file("log")).unwrap();
    let mut holder = Running::with_errors(command, log);
    holder.expect("ready");
    let end_outage = begin_outage(&fixture);
    until("a keep-alive has failed", || fixture.read("log").contains("keep-alive failed"));
    end_outage();
    until("the session has its file again", || fs::read_dir(sessions(&fixture)).unwrap().count() > 0);
    holder.send_line("go");
    assert_eq!(holder.end().code, 5, "{}", fixture.read("log"));
}

/// Nothing ran yet, so nothing is lost but the place in the queue.
#[test]
fn a_waiter_whose_session_expired_queues_again() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go");
    holder.expect("in");
    let waiter = fixture.queue(&["--ttl", "10s", "--wait", "1h", "x"], "echo ran");
    let left_queue = fixture.next_event(|event| matches!(event, Event::LeftQueue { .. }));
    waiter.signal(Signal::STOP);
    left_queue();
    let queued = fixture.next_event(|event| matches!(event, Event::Queued { .. }));
    waiter.signal(Signal::CONT);
    queued();
    holder.send_line("go");
    holder.end();
    waiter.end().expect(0, &["ran"]);
}
