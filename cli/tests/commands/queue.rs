//! `palisade queue`, as a shell sees it: the real binary, on a SQLite file.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::bounded::{Bounded, TIMEOUT, until};
use crate::common::process::Process;
use crate::sandbox::{CommandOutput, Running, Sandbox};
use palisade_cli::harness::wall_clock::WallClock;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Runs `palisade queue`, with the store of the sandbox.
fn queue(sandbox: &Sandbox, args: &[&str]) -> CommandOutput {
    let mut command = sandbox.command(&["queue"]);
    sandbox.output(&command.args(args).env("PALISADE_STORE", store(sandbox)).finish())
}

fn store(sandbox: &Sandbox) -> String {
    format!("sqlite://{}/shop.db", sandbox.path().display())
}

fn push(sandbox: &Sandbox, key: &str, payload: &str) -> String {
    let pushed = queue(sandbox, &["push", "orders", "--key", key, payload]);
    assert_eq!((pushed.code, pushed.err.as_str()), (Some(0), ""));
    pushed.out.trim().to_owned()
}

/// Adds a job of the key `a`, whose payload is read from a file.
fn push_from_stdin(sandbox: &Sandbox, payload: &str) {
    let file = sandbox.path().join("payload");
    fs::write(&file, payload).unwrap();
    let mut push = sandbox.command(&["queue", "push", "orders", "--key", "a"]);
    push.stdin(fs::File::open(file).unwrap()).env("PALISADE_STORE", store(sandbox));
    assert!(push.finish().status.success());
}

/// Does all jobs that are due with this script.
fn drain(sandbox: &Sandbox, options: &[&str], script: &str) -> CommandOutput {
    let args = [&["work", "orders", "--drain"], options, &["--", "sh", "-c", script]].concat();
    queue(sandbox, &args)
}

#[test]
fn a_command_gets_each_job_in_order_with_a_rising_token() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    push(&sandbox, "a", "2");
    push_from_stdin(&sandbox, "3");
    let script = "echo $PALISADE_JOB_KEY $PALISADE_JOB_TOKEN $PALISADE_JOB_ATTEMPT $(cat) >>done";
    assert_eq!(drain(&sandbox, &[], script), CommandOutput { code: Some(0), out: String::new(), err: String::new() });
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "a 1 1 1\na 2 1 2\na 3 1 3\n");
    let nothing = queue(&sandbox, &["ls", "orders"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(0), ""));
    assert_eq!(nothing.err, "palisade: the queue 'orders' has no jobs\n");
}

#[test]
fn a_failed_job_becomes_a_dead_letter_that_can_be_retried_or_dropped() {
    let sandbox = Sandbox::new();
    let (first, second) = (push(&sandbox, "a", "1"), push(&sandbox, "b", "2"));
    push(&sandbox, "a", "3");
    let drained = drain(&sandbox, &["--attempts", "1"], "exit 3");
    assert!(drained.err.ends_with("behind a dead letter: palisade queue ls orders\n"), "{}", drained.err);
    insta::assert_snapshot!(queue(&sandbox, &["ls", "orders", "--dead"]).out, @r"
    ID  KEY  STATE           ATTEMPTS  LAST FAILURE
    1   a    blocks its key  1         exit code 3
    2   b    blocks its key  1         exit code 3
    ");
    insta::assert_snapshot!(queue(&sandbox, &["ls", "orders", "--json"]).out, @r#"
    {
      "schema": 1,
      "queue": "orders",
      "jobs": [
        {
          "id": "3",
          "key": "a",
          "state": "waiting",
          "attempt": 0,
          "token": null,
          "reason": null,
          "payload_bytes": 1
        }
      ]
    }
    "#);
    assert_eq!(queue(&sandbox, &["drop", "orders", &second]).code, Some(0));
    assert_eq!(queue(&sandbox, &["retry", "orders", &first]).code, Some(0));
    let gone = queue(&sandbox, &["retry", "orders", &first]);
    assert_eq!(gone.code, Some(64), "{}", gone.err);
    drain(&sandbox, &[], "cat >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "13");
}

/// A command with a child. It prints the numbers of both processes.
const FAMILY: &str = "sleep 1000 & echo $$; echo $!; wait";

/// The visibility of a job that a test lets expire. A worker extends its job after a third of it.
const SHORT: &str = "6s";
/// The visibility of a job that must not expire.
const LONG: &str = "1h";

/// Starts a worker with [`FAMILY`], and returns the processes of its command.
fn start_family(sandbox: &Sandbox, visibility: &str) -> (Running, Vec<OwnedFd>) {
    let url = store(sandbox);
    let args = ["queue", "work", "orders", "--store", &url, "--visibility", visibility, "--", "sh", "-c", FAMILY];
    let mut worker = sandbox.start(&args);
    let mut process = || {
        let pid = worker.line().parse().ok().and_then(Pid::from_raw).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    };
    let family = vec![process(), process()];
    (worker, family)
}

/// Does the job, which another worker has begun, with this script.
fn drain_after_another(sandbox: &Sandbox, script: &str) {
    until("the job is delivered again", || {
        drain(sandbox, &[], script);
        queue(sandbox, &["ls", "orders"]).out.is_empty()
    });
}

/// A killed worker: its command dies with it, and the job is delivered to the next one with a higher token.
#[test]
fn the_job_of_a_killed_worker_is_done_by_the_next_one() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let (worker, family) = start_family(&sandbox, SHORT);
    worker.signal(Signal::KILL);
    assert!(crate::sandbox::have_ended(&family), "the command and its children die with their worker");
    drain_after_another(&sandbox, "echo $PALISADE_JOB_TOKEN $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "2 2\n");
}

/// A paused worker cannot extend its job. Its command must not run beside that of the next worker.
#[test]
fn the_command_of_a_paused_worker_is_killed_while_it_is_paused() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let (paused, family) = start_family(&sandbox, SHORT);
    paused.signal(Signal::STOP);
    assert!(crate::sandbox::have_ended(&family), "its warden has killed the command");
    drain_after_another(&sandbox, "cat >>done");
    paused.signal(Signal::CONT);
    paused.signal(Signal::TERM);
    assert_eq!(paused.end().code(), Some(128 + 15));
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1", "it has settled nothing");
}

/// A worker is stopped for an upgrade: the job is not to blame.
#[test]
fn a_stopped_worker_uses_up_no_attempt() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let (worker, family) = start_family(&sandbox, LONG);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code(), Some(128 + 15));
    assert!(crate::sandbox::have_ended(&family));
    drain(&sandbox, &[], "echo $PALISADE_JOB_TOKEN $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "2 1\n", "at once, as the first attempt");
}

#[test]
#[ignore = "long: several seconds"]
fn a_worker_extends_its_job_while_the_command_runs() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    // Longer than the visibility.
    drain(&sandbox, &["--visibility", "30s"], "sleep 31; echo $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1\n");
    assert_eq!(queue(&sandbox, &["ls", "orders"]).out, "");
}

#[test]
fn invalid_calls_are_refused() {
    let sandbox = Sandbox::new();
    for store in
        ["redis://127.0.0.1:1", "file:x", "sqlite:", "sqlite::memory:", "sqlite:file:x?mode=memory", "nothing"]
    {
        let output = sandbox.run(&["queue", "ls", "orders", "--store", store]);
        assert_eq!(output.code, Some(64), "{store}: {output:?}");
    }
    let url = sandbox.run(&["--url", "palisade://127.0.0.1:1", "queue", "ls", "orders"]);
    assert!(url.code == Some(64) && url.err.contains("--store"), "{url:?}");
    let command = queue(&sandbox, &["work", "orders", "./ship.sh"]);
    assert!(command.err.contains("palisade queue work orders -- ./ship.sh"), "{command:?}");
    let command = queue(&sandbox, &["work", "orders", "--attempts", "3", "./ship.sh"]);
    assert!(command.err.contains("palisade queue work NAME -- COMMAND"), "{command:?}");
    for args in [
        &["push", "orders", "--key", "", "x"][..],
        &["push", "orders", "--key", "a\nb", "x"],
        &["push", "", "--key", "a", "x"],
        &["retry", "orders", "x"],
        &["drop", "orders", "7"],
        &["work", "orders", "--visibility", "10ms", "--", "true"],
        &["work", "orders", "--attempts", "0", "--", "true"],
        &["work", "orders"],
    ] {
        let output = queue(&sandbox, args);
        assert_eq!(output.code, Some(64), "{args:?}: {output:?}");
    }
}

#[test]
fn help_has_examples() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("queue-help", sandbox.stdout(&["queue", "--help"]));
    insta::assert_snapshot!("queue-work-help", sandbox.stdout(&["queue", "work", "--help"]));
}

/// The store does not answer for longer than the visibility: another worker may have the job by then.
#[test]
fn a_command_is_killed_when_the_store_hangs() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let mut command = sandbox.command(&["queue", "work", "orders", "--visibility", SHORT, "--"]);
    command
        .args(["sh", "-c", "echo began >>log; sleep 1000; echo ended >>log"])
        .env("PALISADE_STORE", store(&sandbox));
    let worker = Process::start(&mut command);
    until("the command runs", || sandbox.path().join("log").exists());
    let database = hang(&sandbox, "BEGIN EXCLUSIVE");
    // The file stays locked until this has been said: the extension has not been answered.
    worker.line_with("could not be extended");
    drop(worker);
    drop(database);
}

/// Lets the store hang until the result is dropped.
fn hang(sandbox: &Sandbox, begin: &str) -> rusqlite::Connection {
    let database = rusqlite::Connection::open(sandbox.path().join("shop.db")).unwrap();
    database.busy_timeout(TIMEOUT).unwrap();
    database.execute_batch(begin).unwrap();
    database
}

/// The warden cannot kill the command, and the worker cannot extend its job.
#[test]
fn a_stopped_warden_does_not_keep_a_command_running_when_the_store_hangs() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let (worker, family) = start_family(&sandbox, SHORT);
    let pid = worker.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let warden = children.trim().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(warden, Signal::STOP).unwrap();
    let database = hang(&sandbox, "BEGIN EXCLUSIVE");
    assert!(crate::sandbox::have_ended(&family), "while the store hangs");
    drop(database);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code(), Some(128 + 15));
}

/// One host with a wrong path does not make every job a dead letter.
#[test]
fn a_worker_whose_command_is_not_found_stops() {
    let sandbox = Sandbox::new();
    for key in ["a", "b"] {
        push(&sandbox, key, "1");
    }
    let output = queue(&sandbox, &["work", "orders", "--drain", "--attempts", "1", "--", "/no/such/command"]);
    assert_eq!(output.code, Some(127));
    assert!(output.err.contains("this worker stops"), "{}", output.err);
    drain(&sandbox, &["--attempts", "1"], "echo $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1\n1\n", "no attempt was used up");
}

/// A handler script of which a part is missing for one kind of job fails for those jobs only.
#[test]
fn a_command_that_runs_and_exits_with_126_or_127_has_failed() {
    let sandbox = Sandbox::new();
    for (key, payload) in [("a", "126"), ("b", "127"), ("c", "0")] {
        push(&sandbox, key, payload);
    }
    let drained = drain(&sandbox, &["--attempts", "1"], "exit $(cat)");
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    let dead = queue(&sandbox, &["ls", "orders", "--dead"]).out;
    assert!(dead.contains("exit code 126") && dead.contains("exit code 127"), "{dead}");
    assert_eq!(queue(&sandbox, &["ls", "orders"]).out, "", "the third job is done");
}

#[test]
fn a_worker_whose_command_is_not_executable_stops() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    fs::write(sandbox.path().join("ship.sh"), "").unwrap();
    let output = queue(&sandbox, &["work", "orders", "--drain", "--attempts", "1", "--", "./ship.sh"]);
    assert_eq!(output.code, Some(126), "{}", output.err);
    drain(&sandbox, &["--attempts", "1"], "echo $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1\n");
}

/// With few descriptors a worker cannot start its command. With one more each time, every step on the way fails once.
#[test]
fn a_job_whose_command_could_not_be_started_is_given_back() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let mut failures = String::new();
    for descriptors in 6..64 {
        let script = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let mut worker = sandbox.program("sh");
        worker.args(["-c", &script, env!("CARGO_BIN_EXE_palisade")]);
        worker.args(["queue", "work", "orders", "--drain", "--attempts", "1", "--store", &store(&sandbox)]);
        let output = worker.args(["--", "sh", "-c", "echo $PALISADE_JOB_ATTEMPT >>done"]).finish();
        failures += &String::from_utf8_lossy(&output.stderr);
        let dead = queue(&sandbox, &["ls", "orders", "--dead"]);
        assert_eq!(dead.out, "", "with {descriptors} descriptors: {output:?}");
        if output.status.success() {
            break;
        }
    }
    assert!(failures.contains("palisade: reading or writing failed: Too many open files"), "{failures}");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1\n", "{failures}");
}

/// The store delivers the job although its worker is being stopped.
#[test]
fn a_worker_that_is_stopped_while_it_asks_for_a_job_gives_it_back() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let database = hang(&sandbox, "BEGIN IMMEDIATE");
    let worker = sandbox.start(&["queue", "work", "orders", "--store", &store(&sandbox), "--", "true"]);
    until("it handles TERM", || has_term(worker.pid(), "SigCgt:"));
    worker.signal(Signal::TERM);
    until("it has got TERM", || !has_term(worker.pid(), "ShdPnd:"));
    drop(database);
    assert_eq!(worker.end().code(), Some(128 + 15));
    drain(&sandbox, &["--attempts", "1"], "echo $PALISADE_JOB_ATTEMPT >>done");
    assert_eq!(fs::read_to_string(sandbox.path().join("done")).unwrap(), "1\n", "at once, as the first attempt");
}

/// The store counts by the time since the host was booted.
#[test]
fn a_step_of_the_wall_clock_delivers_no_job_early_or_late() {
    let sandbox = Sandbox::new();
    let file = |name: &str| sandbox.path().join(name);
    let clock = WallClock::new(&file("time")).expect("faketime is installed: scripts/setup");
    let with_clock = |offset: &str, mut command: Command| {
        clock.jump(offset).unwrap();
        let output = command.envs(clock.variables()).env("PALISADE_STORE", store(&sandbox)).finish();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut date = sandbox.program("date");
    date.arg("+%s");
    let ahead: u64 = with_clock("+1h", date).trim().parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(ahead > now + 3000, "the clock is not ahead");

    push(&sandbox, "a", "1");
    let script = "echo A >>done; while [ ! -e go ]; do sleep 0.05; done";
    let args =
        ["queue", "work", "orders", "--visibility", "60s", "--store", &store(&sandbox), "--", "sh", "-c", script];
    let worker = sandbox.start(&args);
    until("the command runs", || file("done").exists());
    let drain = || sandbox.command(&["queue", "work", "orders", "--drain", "--", "sh", "-c", "echo B >>done"]);
    with_clock("+1h", drain());
    assert_eq!(fs::read_to_string(file("done")).unwrap(), "A\n");
    fs::write(file("go"), "").unwrap();
    until("the job is done", || queue(&sandbox, &["ls", "orders"]).err.contains("no jobs"));
    worker.signal(Signal::TERM);

    with_clock("+1h", sandbox.command(&["queue", "push", "orders", "--key", "a", "2"]));
    with_clock("-1h", drain());
    assert_eq!(fs::read_to_string(file("done")).unwrap(), "A\nB\n");
}

#[test]
fn a_worker_says_that_its_jobs_are_in_a_file_of_its_user() {
    let sandbox = Sandbox::new();
    let worker = Process::start(&mut sandbox.command(&["queue", "work", "orders", "--", "true"]));
    let line = worker.next_line().unwrap();
    assert!(line.contains(".local/state/palisade/recipes.db") && line.contains("--store"), "{line}");
}

/// Whether a set of signals of a process, such as those that it handles, contains TERM.
fn has_term(pid: Pid, set: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix(set)).unwrap_or_default();
    u64::from_str_radix(bits.trim(), 16).is_ok_and(|bits| bits & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}

/// A daemon keeps the stdin of its job open, and reads nothing.
#[test]
fn a_payload_that_is_not_read_does_not_keep_the_worker_from_ending() {
    let sandbox = Sandbox::new();
    push_from_stdin(&sandbox, &"x".repeat(200_000));
    let args = ["queue", "work", "orders", "--drain", "--store", &store(&sandbox), "--", "sh", "-c", DAEMON];
    let mut worker = sandbox.start(&args);
    let daemon = worker.line().parse().ok().and_then(Pid::from_raw).unwrap();
    let ended = worker.end();
    kill_process(daemon, Signal::KILL).unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// Leaves a process behind that has left the process group, with the job's stdin, and prints its number.
const DAEMON: &str = "rm -f daemon; exec 3<&0; setsid sh -c 'echo $$ >daemon; exec sleep 1000' >/dev/null 2>&1 & \
                      while ! test -s daemon; do sleep 0.01; done; cat daemon";

#[test]
fn daemons_of_earlier_jobs_do_not_stay_behind_as_zombies() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let mut worker =
        sandbox.start(&["queue", "work", "orders", "--store", &store(&sandbox), "--", "sh", "-c", DAEMON]);
    let first = worker.line().parse().ok().and_then(Pid::from_raw).unwrap();
    // Then its warden, which would reap it, has ended.
    until("the first job is done", || queue(&sandbox, &["ls", "orders"]).out.is_empty());
    kill_process(first, Signal::KILL).unwrap();
    push(&sandbox, "a", "2");
    let second = worker.line().parse().ok().and_then(Pid::from_raw).unwrap();
    until("the first daemon is gone", || {
        !std::path::Path::new(&format!("/proc/{}", first.as_raw_nonzero())).exists()
    });
    kill_process(second, Signal::KILL).unwrap();
}

#[test]
fn a_list_says_that_dead_letters_block_only_if_one_does() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    drain(&sandbox, &["--attempts", "1", "--dangerous-continue-after-dead-letters"], "exit 3");
    let skipped = queue(&sandbox, &["ls", "orders"]).err;
    assert!(skipped.contains("there are dead letters: palisade queue ls orders --dead"), "{skipped}");
    push(&sandbox, "b", "1");
    drain(&sandbox, &["--attempts", "1"], "exit 3");
    let blocking = queue(&sandbox, &["ls", "orders"]).err;
    assert!(blocking.contains("there are dead letters, which block their keys: palisade"), "{blocking}");
}

#[test]
fn the_payload_of_a_dead_letter_can_be_seen() {
    let sandbox = Sandbox::new();
    let id = push(&sandbox, "a", "ship 42");
    drain(&sandbox, &["--attempts", "1"], "exit 3");
    assert_eq!(queue(&sandbox, &["show", "orders", &id]).out, "ship 42");
    let gone = queue(&sandbox, &["show", "orders", "7"]);
    assert!(gone.code == Some(64) && gone.err.contains("palisade queue ls orders"), "{gone:?}");
}

#[test]
fn a_verbose_worker_says_what_it_does() {
    let sandbox = Sandbox::new();
    push(&sandbox, "a", "1");
    let worked = queue(&sandbox, &["work", "orders", "--drain", "-v", "--", "true"]);
    assert_eq!(
        worked.err,
        "palisade: running job 1 of 'a' with token 1, attempt 1\npalisade: job 1 of 'a' is done\n"
    );
}
