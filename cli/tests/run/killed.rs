//! `palisade` or its warden is killed; commands leave processes behind.

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::ChildStdout;
use std::thread;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};

use crate::common::bounded::{OutputLines, TIMEOUT, until};
use crate::common::environment::{self, NO_HOME};
use crate::common::process::Process;
use crate::fixture::{ALONE, Finished, Fixture, Running, full_pipe, is_running, pid};

/// Returns a command with a child and a grandchild in the background, none of which exits unless it is killed.
fn family() -> String {
    format!("{ALONE}(sleep 1000 & echo grandchild $!; wait) & read go; echo unexpected")
}

/// Starts two processes: one whose command has a family, and one that waits for its lock.
fn holder_and_successor(fixture: &Fixture) -> (Running, Running) {
    let mut command = fixture.script(&["x"], &family());
    command.process_group(0);
    let mut holder = Running::new(command);
    assert!(holder.line().starts_with("grandchild "));
    let successor = fixture.queue(&["x"], &format!("{ALONE}echo mine"));
    (holder, successor)
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn killing_palisade_ends_the_command_and_its_family_before_the_next_begins() {
    for _ in 0..5 {
        let fixture = Fixture::new();
        let (holder, successor) = holder_and_successor(&fixture);
        kill(holder.pid());
        successor.end().expect(0, &["mine"]);
        holder.end().expect(137, &[]);
    }
}

#[test]
fn the_lock_is_not_granted_again_before_the_warden_has_ended_the_command() {
    // The system continues a stopped process whose parent died in another session, so this process becomes its parent.
    set_child_subreaper(Some(getpid())).unwrap();
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture);
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
        let fixture = Fixture::new();
        let (holder, successor) = holder_and_successor(&fixture);
        kill(holder.warden());
        successor.end().expect(0, &["mine"]);
        holder.end().expect(137, &[]);
    }
}

/// `palisade` is killed after it has started the warden and before the warden has started the command. The process that the warden
/// belongs to then may be in no process group that has a number here, as the first process of a container.
#[test]
fn a_warden_without_its_palisade_ends_the_command() {
    let (ours, wardens) = UnixStream::pair().unwrap();
    let script = r#"exec 3<&0; "$0" _warden sh -c 'exec sleep 1000' <&3 3<&- &"#;
    let mut command = environment::command("sh", NO_HOME);
    command.args(["-c", script, env!("CARGO_BIN_EXE_palisade")]).stdin(OwnedFd::from(wardens));
    let (mut parent, mut printed) = Process::start_reading(&mut command);
    drop(command);
    assert!(parent.wait().success());
    give_stdin(&ours);
    (&ours).write_all(deadlines("null", u64::MAX).as_bytes()).unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut started = String::new();
    BufReader::new(&ours).read_line(&mut started).unwrap();
    let group = started.trim().strip_prefix(r#"{"Started":{"group":"#).and_then(|rest| rest.strip_suffix("}}"));
    ours.shutdown(Shutdown::Both).unwrap();
    // The warden has both pipes open until it exits.
    assert_eq!((printed.next_line("the warden"), parent.next_line()), (None, None), "{started}");
    assert!(!is_running(pid(group.unwrap_or_else(|| panic!("{started}")))));
}

/// Sends a warden the stdin of its command.
fn give_stdin(warden: &UnixStream) {
    let (descriptors, mut space) = ([warden.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(warden, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A warden without a `palisade run`.
struct Warden {
    process: Process,
    stdout: OutputLines<ChildStdout>,
    reports: BufReader<UnixStream>,
}

/// Starts a warden without a `palisade run`, and sends it these orders at once.
fn warden(orders: &str, script: &str) -> Warden {
    let (ours, wardens) = UnixStream::pair().unwrap();
    let mut command = environment::palisade(NO_HOME);
    command.args(["_warden", "sh", "-c", script]).stdin(OwnedFd::from(wardens)).process_group(0);
    let (process, stdout) = Process::start_reading(&mut command);
    give_stdin(&ours);
    (&ours).write_all(orders.as_bytes()).unwrap();
    ours.set_read_timeout(Some(TIMEOUT)).unwrap();
    Warden { process, stdout, reports: BufReader::new(ours) }
}

impl Warden {
    /// Waits for its next report.
    fn report(&mut self) -> String {
        let mut report = String::new();
        self.reports.read_line(&mut report).unwrap();
        report
    }
}

fn deadlines(term_at: &str, kill_at: u64) -> String {
    format!("{{\"Deadlines\":{{\"term_at_ns\":{term_at},\"kill_at_ns\":{kill_at}}}}}\n")
}

/// A warden that was stopped before it has started the command finds a deadline that has passed, and behind it a renewal.
#[test]
fn a_warden_heeds_the_last_deadline_that_has_arrived() {
    let orders = deadlines("null", 1) + &deadlines("null", u64::MAX);
    let mut renewed = warden(&orders, "exit 3");
    assert!(renewed.report().starts_with("{\"Started\""));
    let ended = renewed.report();
    assert!(ended.contains("\"code\":3,\"by_warden\":false"), "{ended}");
    renewed.process.wait();
    let orders = deadlines("null", u64::MAX) + &deadlines("null", 1);
    let mut late = warden(&orders, "exit 3");
    let ended = late.report();
    assert!(ended.contains("\"code\":137,\"by_warden\":true"), "{ended}");
    late.process.wait();
}

/// With a long TTL, the KILL of a lock that is about to be lost comes long after the TERM.
#[test]
fn leftover_processes_that_ignore_term_are_killed_soon_after_the_command_has_ended_by_the_early_term() {
    let script = "trap '' TERM; sleep 1000 & trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut warden = warden(&deadlines("null", u64::MAX), script);
    assert!(warden.report().starts_with("{\"Started\""));
    assert_eq!(warden.stdout.next_line("the command").as_deref(), Some("ready"));
    warden.reports.get_mut().write_all(deadlines("1", u64::MAX).as_bytes()).unwrap();
    let ended = warden.report();
    assert!(ended.contains("\"by_warden\":true"), "{ended}");
    warden.process.wait();
}

#[test]
fn killing_the_whole_job_ends_the_command_and_its_family_before_the_next_begins() {
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture);
    kill_process_group(holder.pid(), Signal::KILL).unwrap();
    successor.end().expect(0, &["mine"]);
    holder.end().expect(137, &[]);
}

/// The kernel ends the command. No process is left that could end the command's children.
#[test]
fn killing_palisade_and_the_warden_ends_the_command() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo $$; read go");
    let command = pid(&holder.line());
    let parts = [holder.warden(), holder.pid()];
    // Stopped first, so that neither can react to the other's death.
    parts.iter().for_each(|part| kill_process(*part, Signal::STOP).unwrap());
    parts.into_iter().for_each(kill);
    holder.end().expect(137, &[]);
    until("the command has ended", || !is_running(command));
    fixture.run(&["x"], "echo mine").expect(0, &["mine"]);
}

#[test]
fn a_stopped_warden_does_not_keep_the_lock_of_a_command_that_has_ended() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "echo in; read go; exit 4");
    holder.expect("in");
    kill_process(holder.warden(), Signal::STOP).unwrap();
    let successor = fixture.queue(&["x"], "echo mine");
    holder.send_line("go");
    successor.end().expect(0, &["mine"]);
    let ended = holder.end();
    ended.expect_failure(4, "does not answer");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}

#[test]
fn a_stopped_warden_does_not_keep_a_command_running_whose_lock_was_taken_away() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["x"], "sleep 1000 & echo $!; echo $$; read go; echo unexpected");
    let (child, command) = (pid(&holder.line()), pid(&holder.line()));
    kill_process(holder.warden(), Signal::STOP).unwrap();
    fixture.observer().force_release("x", "a test").unwrap();
    holder.end().expect_failure(76, "was taken away by");
    until("the command and its child have ended", || !is_running(command) && !is_running(child));
}

/// `palisade` says that it kills the warden. No process reads that.
#[test]
fn a_full_stderr_does_not_keep_a_command_running_whose_warden_is_stopped() {
    let fixture = Fixture::new();
    let (errors, full) = full_pipe();
    let mut holder = Running::with_errors(fixture.script(&["x"], "echo $$; read go; echo unexpected"), full);
    let command = pid(&holder.line());
    kill_process(holder.warden(), Signal::STOP).unwrap();
    fixture.observer().force_release("x", "a test").unwrap();
    until("the command has ended", || !is_running(command));
    drop(errors);
    holder.end().expect(76, &[]);
}

#[test]
fn the_lock_of_a_killed_process_is_free_before_its_ttl() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--ttl", "10m", "x"], "echo in; read go");
    holder.expect("in");
    kill(holder.pid());
    fixture.run(&["x"], "echo mine").expect(0, &["mine"]);
}

#[test]
fn a_stopped_command_is_ended_too() {
    let fixture = Fixture::new();
    let (holder, successor) = holder_and_successor(&fixture);
    let command = crate::fixture::only_child(holder.warden());
    kill_process_group(command, Signal::STOP).unwrap();
    kill(holder.pid());
    successor.end().expect(0, &["mine"]);
    holder.end().expect(137, &[]);
}

/// Runs a command that leaves processes behind, with a waiter for its lock.
fn leave_behind(leave: &str) -> [Finished; 2] {
    let fixture = Fixture::new();
    let mut first = fixture.start(&["x"], &format!("{ALONE}{leave} echo ready; read go; exit 4"));
    first.expect("ready");
    let next = fixture.queue(&["x"], &format!("{ALONE}echo mine"));
    first.send_line("go");
    [first.end(), next.end()]
}

#[test]
fn leftover_processes_end_before_the_lock_is_released() {
    let [first, next] = leave_behind("sleep 1000 & (sleep 1000 & sleep 1000) &");
    first.expect(4, &[]);
    next.expect(0, &["mine"]);
}

#[test]
fn leftover_processes_get_time_to_handle_term() {
    let handler = "(trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.01; done) & read go2;";
    let fixture = Fixture::new();
    let mut first = fixture.start(&["x"], &format!("{ALONE}{handler} exit 4"));
    first.expect("ready");
    first.send_line("go");
    let ended = first.end();
    assert_eq!((ended.code, &ended.stdout[..]), (4, &["bye".to_owned()][..]), "{ended:?}");
}

#[test]
fn leftover_processes_that_ignore_term_are_killed() {
    let [first, next] = leave_behind("(trap '' TERM; sleep 1000; sleep 1000) &");
    first.expect(4, &[]);
    next.expect(0, &["mine"]);
}

/// The warden cannot wait for a process whose parent has left the group.
#[test]
fn orphans_in_the_process_group_are_killed() {
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
    let fixture = Fixture::new();
    let mut first = Running::new(fixture.command(&["run", "x", "--", "python3", "-c", script]));
    let left = pid(first.line().strip_prefix("left ").unwrap());
    first.send_line("go");
    first.end().expect(0, &[]);
    until("the orphan has ended", || !is_running(left));
}

#[test]
fn a_daemon_outlives_its_command_without_keeping_the_lock() {
    let fixture = Fixture::new();
    let script =
        "setsid sh -c 'echo $$ > daemon; exec sleep 1000 >/dev/null 2>&1' & while [ ! -s daemon ]; do :; done";
    let ended = fixture.run(&["x"], script);
    let daemon = pid(fixture.read("daemon").trim());
    assert!(is_running(daemon));
    kill(daemon);
    ended.expect(0, &[]);
    fixture.run(&["--no-wait", "x"], "echo mine").expect(0, &["mine"]);
}
