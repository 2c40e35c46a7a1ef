//! On a terminal: what a person sees while waiting, and who has the keyboard while a command runs.

use std::process::ExitStatus;

use pty_process::blocking::Command;
use rustix::process::Signal;

use crate::cast::{Scene, Started, only_child, until};
use crate::common::terminal::Terminal;

const SIZE: (u16, u16) = (24, 80);
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// `palisade` on a terminal.
fn on_terminal(scene: &Scene, args: &[&str]) -> Terminal {
    Terminal::run(&scene.place, args, SIZE)
}

/// A shell on a terminal, to which `palisade` is known.
fn shell(scene: &Scene, args: &[&str]) -> Terminal {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_palisade")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    Terminal::run_as(&scene.place, &[], SIZE, |_| {
        let bash = Command::new("bash").args(["--norc", "--noprofile"]).args(args).envs(scene.place.environment());
        bash.env("PATH", path).env("PS1", "$ ").env("TERM", "xterm-256color").current_dir(scene.file(""))
    })
}

fn assert_code(status: ExitStatus, code: i32, terminal: &Terminal) {
    assert_eq!(status.code(), Some(code), "the screen is\n{}", terminal.seen());
}

/// Somebody who holds a lock until told otherwise.
fn holder(scene: &Scene) -> Started {
    let mut holder = scene.start(&["--label", "nightly", "x"], "echo in; read go");
    holder.expect("in");
    holder
}

#[test]
fn one_who_waits_sees_its_place_and_the_holder_and_later_nothing_of_it() {
    for columns in [80, 30] {
        let scene = Scene::new();
        let mut holder = holder(&scene);
        let args = ["run", "x", "--", "echo", "mine"];
        let mut waiter = Terminal::run(&scene.place, &args, (24, columns));
        waiter.wait_for("waiting for x: next in");
        if columns == 80 {
            waiter.wait_for("by nightly");
        }
        holder.tell("go");
        let status = waiter.end();
        assert_code(status, 0, &waiter);
        assert_eq!(waiter.seen().trim_end(), "mine");
    }
}

#[test]
fn one_who_waits_sees_how_many_are_ahead() {
    let scene = Scene::new();
    let _holder = holder(&scene);
    let _first = scene.queue(&["x"], "true");
    let mut second = on_terminal(&scene, &["run", "x", "--", "true"]);
    second.wait_for("1 ahead of us");
    second.press(CTRL_C);
    let status = second.end();
    assert_code(status, 130, &second);
    until(|| scene.waiters("x") == 1);
    assert_eq!(second.seen().trim_end(), "", "{:?}", String::from_utf8_lossy(&second.raw));
}

#[test]
fn a_label_cannot_command_the_terminal_of_one_who_waits() {
    let scene = Scene::new();
    let client = scene.place.client("evil \u{1b}[31m\u{1b}]0;gotcha\u{7} label");
    let _held = client.lock("x").acquire().unwrap();
    let mut waiter = Terminal::run(&scene.place, &["run", "x", "--", "true"], (24, 200));
    waiter.wait_for("gotcha");
    let raw = String::from_utf8_lossy(&waiter.raw).into_owned();
    assert!(!raw.contains("\u{1b}]0;") && !raw.contains("\u{1b}[31m"), "{raw:?}");
}

#[test]
fn ctrl_c_while_the_command_runs_is_the_commands() {
    let scene = Scene::new();
    let script = "trap 'echo trapped; exit 12' INT; echo ready; while :; do sleep 0.01; done";
    let mut running = on_terminal(&scene, &["run", "x", "--", "sh", "-c", script]);
    running.wait_for("ready");
    running.press(CTRL_C);
    running.wait_for("trapped");
    let status = running.end();
    assert_code(status, 12, &running);
    let mut running = on_terminal(&scene, &["run", "x", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    running.wait_for("ready");
    running.press(CTRL_C);
    let status = running.end();
    assert_code(status, 130, &running);
}

#[test]
fn the_command_reads_the_keyboard_and_sets_the_terminal() {
    let scene = Scene::new();
    let script = "[ -t 0 ] && [ -t 1 ] && stty -echo && stty size && read a && stty echo && read b </dev/tty && echo \"<$a $b>\"";
    let mut running = on_terminal(&scene, &["run", "x", "--", "sh", "-c", script]);
    running.wait_for("24 80");
    running.press("hidden\n");
    running.press("shown\n");
    running.wait_for("<hidden shown>");
    let status = running.end();
    assert_code(status, 0, &running);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on_with_it() {
    let scene = Scene::new();
    let mut shell = shell(&scene, &["-i"]);
    shell.press("palisade run --ttl 1m x -- sh -c 'echo rea\"\"dy; read a; echo \"got $a\"'\n");
    shell.wait_for("ready");
    shell.press(CTRL_Z);
    shell.wait_for("Stopped");
    assert!(scene.is_held("x"));
    shell.press("echo the shell li\"\"ves\n");
    shell.wait_for("the shell lives");
    shell.press("fg\n");
    shell.press("line\n");
    shell.wait_for("got line");
    shell.press("echo code $?; exit\n");
    shell.wait_for("code 0");
    shell.end();
    assert!(!scene.is_held("x"));
}

#[test]
fn a_background_job_is_stopped_when_it_reads_and_can_be_brought_forward() {
    let scene = Scene::new();
    let mut shell = shell(&scene, &["-i"]);
    shell.press("palisade run --ttl 1m x -- sh -c 'read a; echo \"got $a\"' &\n");
    until(|| scene.is_held("x"));
    shell.press("\n");
    until(|| {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", holder_pid(&scene))).unwrap_or_default();
        state.contains(") T ")
    });
    shell.press("fg\n");
    shell.press("line\n");
    shell.wait_for("got line");
    shell.press("exit\n");
    shell.end();
}

/// The process that holds the lock, by its label.
fn holder_pid(scene: &Scene) -> String {
    let label = scene.observer().inspect("x").unwrap().unwrap().holders[0].label.clone().unwrap();
    label.rsplit("(pid ").next().unwrap().trim_end_matches(')').to_owned()
}

#[test]
fn in_a_pipeline_the_command_reads_the_keyboard_too() {
    let scene = Scene::new();
    let mut shell = shell(&scene, &["-i"]);
    shell.press("palisade run x -- cat | sed 's/^/got /'\n");
    until(|| scene.is_held("x"));
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
fn a_script_has_the_keyboard_back_afterwards() {
    let scene = Scene::new();
    for command in ["true", "false", "sh -c 'kill -9 $$'", "sh -c 'sleep 1000 &'"] {
        let script = format!("palisade run x -- {command}; read a; echo \"the script got $a\"");
        let mut shell = shell(&scene, &["-c", &script]);
        until(|| !scene.is_held("x"));
        shell.press("line\n");
        shell.wait_for("the script got line");
        shell.end();
    }
}

#[test]
fn a_script_has_the_keyboard_back_when_the_warden_was_killed() {
    let scene = Scene::new();
    let script = "palisade run x -- sh -c 'echo ready; read a'; echo code $?; read a; echo \"the script got $a\"";
    let mut shell = shell(&scene, &["-c", script]);
    shell.wait_for("ready");
    let warden = only_child(crate::cast::pid(&holder_pid(&scene)));
    rustix::process::kill_process(warden, Signal::KILL).unwrap();
    shell.wait_for("code 137");
    shell.press("line\n");
    shell.wait_for("the script got line");
    shell.end();
}

#[test]
fn a_terminal_is_put_back_as_it_was_when_the_command_is_killed() {
    let scene = Scene::new();
    let script = "palisade run x -- sh -c 'stty raw -echo; echo ready; exec sleep 1000'; stty -a | grep -ow -e -echo -e -icanon; echo done";
    let mut shell = shell(&scene, &["-c", script]);
    shell.wait_for("ready");
    scene.observer().force_release("x", "it hangs").unwrap();
    shell.wait_for("done");
    shell.end();
    assert!(!shell.seen().contains("-echo") && !shell.seen().contains("-icanon"), "{}", shell.seen());
}

#[test]
fn a_terminal_that_goes_away_ends_the_command() {
    let scene = Scene::new();
    let (keyboard, tty) = pty_process::blocking::open().unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_palisade")).args(["run", "x", "--", "sleep", "1000"]);
    let mut running = command.envs(scene.place.environment()).spawn(tty).unwrap();
    until(|| scene.is_held("x"));
    drop(keyboard);
    assert_eq!(running.wait().unwrap().code(), Some(129));
    assert!(!scene.is_held("x"));
}
