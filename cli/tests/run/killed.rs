//! `palisade` itself is killed, in all its parts; and commands that leave something running.

use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};

use crate::cast::{ALONE, Ended, Scene, Started, is_running, pid, until};

/// A command with a child and a grandchild in the background, none of which ends by itself.
fn family() -> String {
    format!("{ALONE}(sleep 1000 & echo grandchild $!; wait) & read go; echo unexpected")
}

/// Two processes: one whose command has a family, and one that waits for it to be gone.
fn holder_and_successor(scene: &Scene) -> (Started, Started) {
    let mut command = scene.script(&["x"], &family());
    command.process_group(0);
    let mut holder = Started::new(command);
    assert!(holder.line().starts_with("grandchild "));
    let successor = scene.queue(&["x"], &format!("{ALONE}echo mine"));
    (holder, successor)
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn killing_palisade_ends_the_command_and_its_family_before_the_next_begins() {
    for _ in 0..5 {
        let scene = Scene::new();
        let (holder, successor) = holder_and_successor(&scene);
        kill(holder.pid());
        successor.end().expect(0, &["mine"]);
        holder.end().expect(137, &[]);
    }
}

#[test]
fn the_lock_does_not_pass_on_before_the_warden_has_done_its_work() {
    // What is stopped and has no parent in its session is woken by the system: this process becomes its parent.
    set_child_subreaper(Some(getpid())).unwrap();
    let scene = Scene::new();
    let (holder, successor) = holder_and_successor(&scene);
    let warden = holder.warden();
    kill_process(warden, Signal::STOP).unwrap();
    kill(holder.pid());
    // Time enough for the successor to begin, if it could.
    thread::sleep(Duration::from_secs(1));
    kill_process(warden, Signal::CONT).unwrap();
    successor.end().expect(0, &["mine"]);
    holder.end().expect(137, &[]);
}

#[test]
fn killing_the_warden_ends_the_command_and_its_family_before_the_next_begins() {
    for _ in 0..5 {
        let scene = Scene::new();
        let (holder, successor) = holder_and_successor(&scene);
        kill(holder.warden());
        successor.end().expect(0, &["mine"]);
        holder.end().expect(137, &[]);
    }
}

#[test]
fn killing_the_whole_job_ends_the_command_and_its_family_before_the_next_begins() {
    let scene = Scene::new();
    let (holder, successor) = holder_and_successor(&scene);
    kill_process_group(holder.pid(), Signal::KILL).unwrap();
    successor.end().expect(0, &["mine"]);
    holder.end().expect(137, &[]);
}

/// Nobody is left to end what the command has started, but the system ends the command.
#[test]
fn killing_palisade_and_the_warden_ends_the_command() {
    let scene = Scene::new();
    let mut holder = scene.start(&["x"], "echo $$; read go");
    let command = pid(&holder.line());
    let parts = [holder.warden(), holder.pid()];
    // So that neither can do anything about the other's death.
    parts.iter().for_each(|part| kill_process(*part, Signal::STOP).unwrap());
    parts.into_iter().for_each(kill);
    holder.end().expect(137, &[]);
    until(|| !is_running(command));
    scene.run(&["x"], "echo mine").expect(0, &["mine"]);
}

#[test]
fn a_stopped_warden_does_not_keep_the_lock_of_a_command_that_has_ended() {
    let scene = Scene::new();
    let mut holder = scene.start(&["x"], "echo in; read go; exit 4");
    holder.expect("in");
    kill_process(holder.warden(), Signal::STOP).unwrap();
    let successor = scene.queue(&["x"], "echo mine");
    holder.tell("go");
    successor.end().expect(0, &["mine"]);
    let ended = holder.end();
    ended.expect_failure(4, "does not answer");
    assert!(ended.said.is_empty(), "{ended:?}");
}

#[test]
fn a_stopped_warden_does_not_keep_a_command_running_whose_lock_was_taken_away() {
    let scene = Scene::new();
    let mut holder = scene.start(&["x"], "sleep 1000 & echo $!; echo $$; read go; echo unexpected");
    let (child, command) = (pid(&holder.line()), pid(&holder.line()));
    kill_process(holder.warden(), Signal::STOP).unwrap();
    scene.observer().force_release("x", "a test").unwrap();
    holder.end().expect_failure(76, "was taken away by");
    until(|| !is_running(command) && !is_running(child));
}

#[test]
fn the_lock_of_one_that_was_killed_does_not_wait_for_its_ttl() {
    let scene = Scene::new();
    let mut holder = scene.start(&["--ttl", "10m", "x"], "echo in; read go");
    holder.expect("in");
    kill(holder.pid());
    scene.run(&["x"], "echo mine").expect(0, &["mine"]);
}

#[test]
fn a_stopped_command_is_ended_too() {
    let scene = Scene::new();
    let (holder, successor) = holder_and_successor(&scene);
    let command = crate::cast::only_child(holder.warden());
    kill_process_group(command, Signal::STOP).unwrap();
    kill(holder.pid());
    successor.end().expect(0, &["mine"]);
    holder.end().expect(137, &[]);
}

/// Runs a command that leaves something behind, with somebody waiting for the lock.
fn leave_behind(leave: &str) -> [Ended; 2] {
    let scene = Scene::new();
    let mut first = scene.start(&["x"], &format!("{ALONE}{leave} echo ready; read go; exit 4"));
    first.expect("ready");
    let next = scene.queue(&["x"], &format!("{ALONE}echo mine"));
    first.tell("go");
    [first.end(), next.end()]
}

#[test]
fn what_a_command_leaves_running_is_ended_before_the_lock_is_released() {
    let [first, next] = leave_behind("sleep 1000 & (sleep 1000 & sleep 1000) &");
    first.expect(4, &[]);
    next.expect(0, &["mine"]);
}

#[test]
fn what_a_command_leaves_running_may_say_good_bye() {
    let mind = "(trap 'echo bye; exit' TERM; echo minding; while :; do sleep 0.01; done) & read go2;";
    let scene = Scene::new();
    let mut first = scene.start(&["x"], &format!("{ALONE}{mind} exit 4"));
    first.expect("minding");
    first.tell("go");
    let ended = first.end();
    assert_eq!((ended.code, &ended.said[..]), (4, &["bye".to_owned()][..]), "{ended:?}");
}

#[test]
fn what_a_command_leaves_running_that_ignores_term_is_killed() {
    let [first, next] = leave_behind("(trap '' TERM; sleep 1000; sleep 1000) &");
    first.expect(4, &[]);
    next.expect(0, &["mine"]);
}

/// A process whose parent has left the group is not the warden's to wait for.
#[test]
fn what_is_left_of_a_parent_that_went_away_is_killed() {
    let script = "import os, signal, time
parent = os.fork()
if parent == 0:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print('left', os.getpid(), flush=True)
        time.sleep(1000)
    os.setsid()
    os.close(1)
    os.waitpid(child, 0)
else:
    input()";
    let scene = Scene::new();
    let mut first = Started::new(scene.command(&["run", "x", "--", "python3", "-c", script]));
    let left = pid(first.line().strip_prefix("left ").unwrap());
    first.tell("go");
    first.end().expect(0, &[]);
    until(|| !is_running(left));
}

#[test]
fn a_daemon_outlives_its_command_and_does_not_hold_the_lock_up() {
    let scene = Scene::new();
    let script =
        "setsid sh -c 'echo $$ > daemon; exec sleep 1000 >/dev/null 2>&1' & while [ ! -s daemon ]; do :; done";
    let ended = scene.run(&["x"], script);
    let daemon = pid(scene.read("daemon").trim());
    assert!(is_running(daemon));
    kill(daemon);
    ended.expect(0, &[]);
    scene.run(&["--no-wait", "x"], "echo mine").expect(0, &["mine"]);
}
