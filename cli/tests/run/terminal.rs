//! `palisade run` on a terminal: the display of the wait, and the foreground process group while a command runs.

use std::process::ExitStatus;

use pty_process::blocking::Command;
use rustix::process::Signal;

use crate::common::bounded::{end_of, until};
use crate::common::terminal::Terminal;
use crate::fixture::{Fixture, Running, only_child};

const SIZE: (u16, u16) = (24, 80);
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// Starts `palisade` on a terminal.
fn on_terminal(fixture: &Fixture, args: &[&str]) -> Terminal {
    Terminal::run(&fixture.engine, args, SIZE)
}

/// Starts a shell on a terminal, with `palisade` on its PATH.
fn shell(fixture: &Fixture, args: &[&str]) -> Terminal {
    Terminal::run_as(&fixture.engine, &[], SIZE, |_| {
        let bash = Command::from(fixture.program("bash")).args(["--norc", "--noprofile"]).args(args);
        bash.env("PS1", "$ ").env("TERM", "xterm-256color")
    })
}

fn assert_code(status: ExitStatus, code: i32, terminal: &Terminal) {
    assert_eq!(status.code(), Some(code), "the screen is\n{}", terminal.screen_text());
}

/// A client that holds a lock until it is dropped.
fn holder(fixture: &Fixture) -> Running {
    let mut holder = fixture.start(&["--label", "nightly", "x"], "echo in; read go");
    holder.expect("in");
    holder
}

#[test]
fn the_wait_shows_queue_position_and_holder_and_clears_the_line() {
    for columns in [80, 30] {
        let fixture = Fixture::new();
        let mut holder = holder(&fixture);
        let args = ["run", "x", "--", "echo", "mine"];
        let mut waiter = Terminal::run(&fixture.engine, &args, (24, columns));
        waiter.wait_for("waiting for x: next in");
        if columns == 80 {
            waiter.wait_for("by nightly");
        }
        holder.send_line("go");
        let status = waiter.end();
        assert_code(status, 0, &waiter);
        assert_eq!(waiter.screen_text().trim_end(), "mine");
    }
}

#[test]
fn the_wait_shows_how_many_are_ahead() {
    let fixture = Fixture::new();
    let _holder = holder(&fixture);
    let _first = fixture.queue(&["x"], "true");
    let mut second = on_terminal(&fixture, &["run", "x", "--", "true"]);
    second.wait_for("1 ahead of us");
    second.press(CTRL_C);
    let status = second.end();
    assert_code(status, 130, &second);
    until("it has left the queue", || fixture.waiters("x") == 1);
    assert_eq!(second.screen_text().trim_end(), "", "{:?}", String::from_utf8_lossy(&second.raw));
}

#[test]
fn a_label_cannot_control_the_terminal_during_the_wait() {
    let fixture = Fixture::new();
    let client = fixture.engine.client("evil \u{1b}[31m\u{1b}]0;gotcha\u{7} label");
    let _held = client.lock("x").acquire().unwrap();
    let mut waiter = Terminal::run(&fixture.engine, &["run", "x", "--", "true"], (24, 200));
    waiter.wait_for("gotcha");
    let raw = String::from_utf8_lossy(&waiter.raw).into_owned();
    assert!(!raw.contains("\u{1b}]0;") && !raw.contains("\u{1b}[31m"), "{raw:?}");
}

#[test]
fn ctrl_c_reaches_the_running_command() {
    let fixture = Fixture::new();
    let script = "trap 'echo trapped; exit 12' INT; echo ready; while :; do sleep 0.01; done";
    let mut running = on_terminal(&fixture, &["run", "x", "--", "sh", "-c", script]);
    running.wait_for("ready");
    running.press(CTRL_C);
    running.wait_for("trapped");
    let status = running.end();
    assert_code(status, 12, &running);
    let mut running = on_terminal(&fixture, &["run", "x", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    running.wait_for("ready");
    running.press(CTRL_C);
    let status = running.end();
    assert_code(status, 130, &running);
}

#[test]
fn the_command_reads_the_keyboard_and_sets_the_terminal() {
    let fixture = Fixture::new();
    let script = "[ -t 0 ] && [ -t 1 ] && stty -echo && stty size && read a && stty echo && read b </dev/tty && echo \"<$a $b>\"";
    let mut running = on_terminal(&fixture, &["run", "x", "--", "sh", "-c", script]);
    running.wait_for("24 80");
    running.press("hidden\n");
    running.press("shown\n");
    running.wait_for("<hidden shown>");
    let status = running.end();
    assert_code(status, 0, &running);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on_with_it() {
    let fixture = Fixture::new();
    let mut shell = shell(&fixture, &["-i"]);
    shell.press("palisade run --ttl 1m x -- sh -c 'echo rea\"\"dy; read a; echo \"got $a\"'\n");
    shell.wait_for("ready");
    shell.press(CTRL_Z);
    shell.wait_for("Stopped");
    assert!(fixture.is_held("x"));
    shell.press("echo the shell li\"\"ves\n");
    shell.wait_for("the shell lives");
    shell.press("fg\n");
    shell.press("line\n");
    shell.wait_for("got line");
    shell.press("echo code $?; exit\n");
    shell.wait_for("code 0");
    shell.end();
    assert!(!fixture.is_held("x"));
}

#[test]
fn a_background_job_is_stopped_when_it_reads_and_can_be_brought_forward() {
    let fixture = Fixture::new();
    let mut shell = shell(&fixture, &["-i"]);
    // The shell reports a stopped job at once. `fg` continues a job only if the shell knows that it is stopped.
    shell.press("set -b\n");
    shell.press("palisade run --ttl 1m x -- sh -c 'read a; echo \"got $a\"' &\n");
    until("the job holds the lock", || fixture.is_held("x"));
    shell.wait_for("Stopped");
    shell.press("fg\n");
    shell.press("line\n");
    shell.wait_for("got line");
    shell.press("exit\n");
    shell.end();
}

/// Returns the pid of the lock's holder, from its label.
fn holder_pid(fixture: &Fixture) -> String {
    let label = fixture.observer().inspect("x").unwrap().unwrap().holders[0].label.clone().unwrap();
    label.rsplit("(pid ").next().unwrap().trim_end_matches(')').to_owned()
}

#[test]
fn in_a_pipeline_the_command_reads_the_keyboard_too() {
    let fixture = Fixture::new();
    let mut shell = shell(&fixture, &["-i"]);
    shell.press("palisade run x -- cat | sed 's/^/got /'\n");
    until("the job holds the lock", || fixture.is_held("x"));
    shell.press("line\n");
    shell.press("\x04");
    shell.wait_for("got line");
    shell.press("palisade run x -- sh -c 'echo rea\"\"dy >&2; exec sleep 1000' | cat\n");
    shell.wait_for("ready");
    shell.press(CTRL_C);
    shell.press("echo code ${PIPESTATUS[0]}; exit\n");
    shell.wait_for("code 130");
    shell.end();
}

#[test]
fn the_script_gets_the_terminal_back() {
    let fixture = Fixture::new();
    for command in ["true", "false", "sh -c 'kill -9 $$'", "sh -c 'sleep 1000 &'"] {
        let script = format!("palisade run x -- {command}; read a; echo \"the script got $a\"");
        let mut shell = shell(&fixture, &["-c", &script]);
        until("the lock is released", || !fixture.is_held("x"));
        shell.press("line\n");
        shell.wait_for("the script got line");
        shell.end();
    }
}

#[test]
fn the_script_gets_the_terminal_back_when_the_warden_was_killed() {
    let fixture = Fixture::new();
    let script = "palisade run x -- sh -c 'echo ready; read a'; echo code $?; read a; echo \"the script got $a\"";
    let mut shell = shell(&fixture, &["-c", script]);
    shell.wait_for("ready");
    let warden = only_child(crate::fixture::pid(&holder_pid(&fixture)));
    rustix::process::kill_process(warden, Signal::KILL).unwrap();
    shell.wait_for("code 137");
    shell.press("line\n");
    shell.wait_for("the script got line");
    shell.end();
}

#[test]
fn terminal_modes_are_restored_when_the_command_is_killed() {
    let fixture = Fixture::new();
    let script = "palisade run x -- sh -c 'stty raw -echo; echo ready; exec sleep 1000'; stty -a | grep -ow -e -echo -e -icanon; echo done";
    let mut shell = shell(&fixture, &["-c", script]);
    shell.wait_for("ready");
    fixture.observer().force_release("x", "it hangs").unwrap();
    shell.wait_for("done");
    shell.end();
    assert!(
        !shell.screen_text().contains("-echo") && !shell.screen_text().contains("-icanon"),
        "{}",
        shell.screen_text()
    );
}

#[test]
fn a_terminal_that_goes_away_ends_the_command() {
    let fixture = Fixture::new();
    let (keyboard, tty) = pty_process::blocking::open().unwrap();
    let command = Command::from(fixture.command(&["run", "x", "--", "sleep", "1000"]));
    let mut running = command.spawn(tty).unwrap();
    until("the command holds the lock", || fixture.is_held("x"));
    drop(keyboard);
    assert_eq!(end_of(&mut running).expect("it ends").code(), Some(129));
    assert!(!fixture.is_held("x"));
}
