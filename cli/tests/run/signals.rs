//! Signals to `palisade`, in every phase.

use std::thread;
use std::time::Duration;

use palisade::Event;
use rustix::process::Signal;

use crate::common::bounded::{Bounded, until};
use crate::common::environment::{self, NO_HOME};
use crate::fixture::{Fixture, Running, is_running, pid};

const ENDING: [(Signal, i32); 4] = [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1), (Signal::QUIT, 3)];

#[test]
fn a_signal_during_the_wait_leaves_the_queue_at_once() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--ttl", "10m", "x"], "echo in; read go");
    holder.expect("in");
    for (signal, number) in ENDING {
        let waiter = fixture.queue(&["--ttl", "10m", "x"], "echo unexpected");
        let left = fixture.next_event(|event| matches!(event, Event::LeftQueue { .. }));
        waiter.signal(signal);
        left();
        waiter.end().expect(128 + number, &[]);
        assert_eq!(fixture.waiters("x"), 0);
    }
    holder.send_line("go");
    holder.end().expect(0, &[]);
}

#[test]
fn signals_that_do_not_stop_are_ignored_during_the_wait() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go");
    holder.expect("in");
    let waiter = fixture.queue(&["x"], "echo mine");
    for signal in [Signal::USR1, Signal::USR2, Signal::CONT] {
        waiter.signal(signal);
    }
    holder.send_line("go");
    waiter.end().expect(0, &["mine"]);
}

#[test]
fn a_signal_is_passed_on_to_the_command() {
    let fixture = Fixture::new();
    let names = [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)];
    for (name, signal) in names.into_iter().chain([("USR1", Signal::USR1), ("USR2", Signal::USR2)]) {
        let script = format!("trap 'echo {name}; exit 33' {name}; echo ready; while :; do sleep 0.01; done");
        let mut running = fixture.start(&["x"], &script);
        running.expect("ready");
        running.signal(signal);
        let ended = running.end();
        assert_eq!((ended.code, ended.stdout), (33, vec![name.to_owned()]));
    }
}

#[test]
fn a_command_without_a_handler_is_ended_by_a_signal() {
    let fixture = Fixture::new();
    for (signal, number) in ENDING {
        let mut running = fixture.start(&["x"], "ulimit -c 0; echo ready; exec sleep 1000");
        running.expect("ready");
        running.signal(signal);
        running.end().expect(128 + number, &[]);
    }
    fixture.run(&["--no-wait", "x"], "echo mine").expect(0, &["mine"]);
}

#[test]
fn a_command_that_survives_a_signal_goes_on() {
    let fixture = Fixture::new();
    let mut running =
        fixture.start(&["x"], "trap 'echo int' INT; echo ready; read go; read go; echo went on; exit 6");
    running.expect("ready");
    running.signal(Signal::INT);
    running.expect("int");
    running.send_line("go");
    running.send_line("go");
    running.end().expect(6, &["went on"]);
}

#[test]
fn a_signal_at_any_moment_ends_palisade_and_frees_the_lock() {
    let fixture = Fixture::new();
    for moment in 0..24 {
        let running = fixture.start(&["--ttl", "10m", "x"], "exec sleep 1000");
        thread::sleep(Duration::from_millis(moment));
        running.signal(Signal::TERM);
        let ended = running.end();
        assert_eq!((ended.code, ended.errors.as_str()), (143, ""), "after {moment} ms");
        assert!(!fixture.is_held("x"), "after {moment} ms");
    }
}

#[test]
fn nohup_protects_the_wait_and_the_command() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go");
    holder.expect("in");
    let queued = fixture.next_event(|event| matches!(event, Event::Queued { .. }));
    let mut shell = fixture.program("sh");
    shell.args(["-c", "trap '' HUP; exec palisade run x -- sh -c 'echo mine; read go; exit 5'"]);
    let mut protected = Running::new(shell);
    queued();
    protected.signal(Signal::HUP);
    holder.send_line("go");
    holder.end().expect(0, &[]);
    protected.expect("mine");
    protected.signal(Signal::HUP);
    protected.send_line("go");
    protected.end().expect(5, &[]);
}

#[test]
fn a_command_without_a_terminal_is_stopped_and_goes_on_under_the_lock() {
    let fixture = Fixture::new();
    let mut running = fixture.start(&["--ttl", "30s", "x"], "echo $$; read go; echo went on");
    let command = pid(&running.line());
    running.signal(Signal::TSTP);
    until("the command is stopped", || state(command) == "T");
    // Only the command is stopped.
    fixture.until_renewed("x");
    assert!(is_running(running.pid()) && state(command) == "T");
    running.signal(Signal::CONT);
    running.send_line("go");
    running.end().expect(0, &["went on"]);
}

fn state(pid: rustix::process::Pid) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap().to_owned()
}

/// Without the handling of ignored signals some tests never end.
#[test]
fn these_tests_pass_where_signals_are_ignored() {
    let tests = std::env::current_exe().unwrap();
    for test in ["a_signal_is_passed_on_to_the_command", "a_command_without_a_handler_is_ended_by_a_signal"] {
        let mut shell = environment::command("sh", NO_HOME);
        shell.args(["-c", "trap '' HUP INT QUIT TERM USR1 USR2; exec \"$0\" --exact \"$1\""]).arg(&tests);
        let output = shell.arg(path_of(test)).finish();
        let message = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && message.contains("1 passed"), "{test}: {message}");
    }
}

/// Returns the path of a test of this module, without the name of the crate.
fn path_of(test: &str) -> String {
    let (_, module) = module_path!().split_once("::").expect("it is not the root");
    format!("{module}::{test}")
}
