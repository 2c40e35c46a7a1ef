//! `palisade once`, as a shell sees it: the real binary, real kills.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::bounded::{Bounded, until};
use crate::sandbox::{CommandOutput, Sandbox};

#[test]
fn help_has_examples() {
    insta::assert_snapshot!("once-help", Sandbox::new().stdout(&["once", "--help"]));
}

/// Each delivery of a message calls the command. Without `once` it would run three times.
#[test]
fn a_repeat_prints_the_kept_output_and_runs_nothing() {
    let sandbox = Sandbox::new();
    let charge = [
        "once",
        "charge/42",
        "--",
        "sh",
        "-c",
        "echo x >>charges; echo receipt $(wc -l <charges) of $PALISADE_ONCE_KEY",
    ];
    for _delivery in 1..=3 {
        assert_eq!(sandbox.stdout(&charge), "receipt 1 of charge/42\n");
    }
    assert_eq!(fs::read_to_string(sandbox.path().join("charges")).unwrap(), "x\n");
    let other = sandbox.stdout(&["once", "charge/43", "--", "sh", "-c", "echo token $PALISADE_TOKEN"]);
    assert!(other.starts_with("token "), "{other}");
    // The records are where only their user can read them.
    assert!(sandbox.path().join(".local/state/palisade/recipes.db").exists());
}

#[test]
fn output_is_kept_byte_by_byte() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite://{}/once.db", sandbox.path().display());
    let command = ["once", "--store", &store, "bytes", "--", "printf", "\\000\\377\\nno newline"];
    for _ in 0..2 {
        let output = sandbox.command(&command).finish();
        assert_eq!((output.status.code(), output.stdout), (Some(0), b"\0\xff\nno newline".to_vec()));
    }
}

/// Prints a line, and then more than a pipe takes.
const LONG: [&str; 6] =
    ["once", "report", "--", "sh", "-c", "echo first; head -c 150000 /dev/zero | tr '\\0' x; echo; echo last"];

/// The output goes to a pager that reads only the first page. All of it is kept, and printed when the pager reads on.
#[test]
fn output_that_is_read_late_is_kept_whole() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.start(&LONG);
    assert_eq!(first.line(), "first");
    let kept = sandbox.stdout(&["once", "report", "--", "echo", "again"]);
    assert_eq!((kept.len(), kept.ends_with("x\nlast\n")), (150_012, true));
    assert_eq!((first.line().len(), first.line().as_str()), (150_000, "last"));
    assert!(first.end().success());
}

#[test]
fn a_call_whose_output_is_not_read_can_be_stopped() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.start(&LONG);
    assert_eq!(first.line(), "first");
    assert!(sandbox.stdout(&["once", "report", "--", "echo", "again"]).ends_with("x\nlast\n"));
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(128 + 15));
}

/// A daemon that the command has started keeps its stdout open.
#[test]
fn a_daemon_does_not_keep_the_output_open() {
    let sandbox = Sandbox::new();
    let script =
        "setsid sh -c 'echo $$ >daemon; exec sleep 1000' 2>/dev/null & while ! test -s daemon; do :; done; echo done";
    let output = sandbox.stdout(&["once", "job", "--", "sh", "-c", script]);
    let daemon = fs::read_to_string(sandbox.path().join("daemon")).unwrap();
    kill_process(Pid::from_raw(daemon.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(output, "done\n");
    assert_eq!(sandbox.stdout(&["once", "job", "--", "echo", "again"]), "done\n");
}

#[test]
fn a_failed_command_is_run_again() {
    let sandbox = Sandbox::new();
    let command = [
        "once",
        "mail",
        "--",
        "sh",
        "-c",
        "echo x >>runs; echo ${PALISADE_ONCE_PREVIOUS:+again}; test $(wc -l <runs) = 2",
    ];
    let first = sandbox.run(&command);
    assert_eq!((first.code, first.out.as_str()), (Some(1), "\n"));
    for _ in 0..2 {
        let later = sandbox.run(&command);
        assert_eq!((later.code, later.out.as_str()), (Some(0), "again\n"), "{}", later.err);
    }
    assert_eq!(fs::read_to_string(sandbox.path().join("runs")).unwrap(), "x\nx\n");
}

/// The worker and its warden are killed in the middle. The next call takes over, with a higher token, and knows of it.
#[test]
fn a_killed_worker_is_taken_over() {
    let sandbox = Sandbox::new();
    let script = "echo began $PALISADE_TOKEN; test -n \"$PALISADE_ONCE_PREVIOUS\" || sleep 1000; echo after $PALISADE_ONCE_PREVIOUS";
    let command = ["once", "import", "--", "sh", "-c", script];
    let mut killed = sandbox.start(&command);
    let first = killed.line();
    let first = first.strip_prefix("began ").unwrap();
    killed.signal(Signal::KILL);
    killed.end();
    let CommandOutput { code, out: output, err } = sandbox.run(&command);
    assert_eq!(code, Some(0));
    assert!(err.contains(&format!("with token {first}, did not succeed, and may have done the work")), "{err}");
    let lines: Vec<_> = output.lines().collect();
    let second = lines[0].strip_prefix("began ").unwrap();
    assert!(second.parse::<u64>().unwrap() > first.parse().unwrap(), "{output}");
    assert_eq!(lines[1..], [format!("after {first}")]);
    assert_eq!(sandbox.stdout(&command), output, "the successor's output is kept");
}

#[test]
fn a_parallel_call_waits_or_says_who_runs_it() {
    let sandbox = Sandbox::new();
    let command =
        ["once", "report", "--", "sh", "-c", "echo began; while ! test -e go; do sleep 0.01; done; echo done"];
    let mut first = sandbox.start(&command);
    assert_eq!(first.line(), "began");
    let busy = sandbox.stderr(75, &["once", "--no-wait", "report", "--", "true"]);
    assert!(busy.contains("'once/report' is held by sh"), "{busy}");
    let mut second = sandbox.start(&command);
    // It waits in the queue of the lock.
    let observer = sandbox.client("observer");
    until("it waits", || observer.inspect("once/report").unwrap().is_some_and(|lock| !lock.waiters.is_empty()));
    fs::write(sandbox.path().join("go"), "").unwrap();
    assert_eq!((second.line(), second.line()), ("began".to_owned(), "done".to_owned()));
    assert!(first.end().success() && second.end().success());
}

/// A worker whose lock was taken away is ended, and its output is not kept.
#[test]
fn a_worker_without_its_lock_keeps_nothing() {
    let sandbox = Sandbox::new();
    let mut paused = sandbox.start(&["once", "job", "--", "sh", "-c", "echo old; sleep 1000"]);
    assert_eq!(paused.line(), "old");
    sandbox.stdout(&["break", "once/job", "--reason", "it hangs", "--yes"]);
    assert_eq!(paused.end().code(), Some(76));
    assert_eq!(sandbox.run(&["once", "job", "--", "echo", "new"]).out, "new\n");
    assert_eq!(sandbox.stdout(&["once", "job", "--", "echo", "newer"]), "new\n");
}

#[test]
fn misuse_exits_64_and_runs_nothing() {
    let sandbox = Sandbox::new();
    let mut output = String::new();
    for args in [
        &["once", "key"][..],
        &["once", "", "--", "touch", "ran"],
        &["once", "a\nb", "--", "touch", "ran"],
        &["once", "--keep", "0s", "key", "--", "touch", "ran"],
        &["once", "--keep", "400d", "key", "--", "touch", "ran"],
        &["once", "--store", "nowhere", "key", "--", "touch", "ran"],
        &["once", "--store", "etcd://host", "key", "--", "touch", "ran"],
        &["once", "--store", "sqlite://here.db", "key", "--", "touch", "ran"],
        &["once", "--store", "postgres//app:xyzzy@host", "key", "--", "touch", "ran"],
    ] {
        output += &format!("{args:?}\n{}\n", sandbox.stderr(64, args));
    }
    assert!(!sandbox.path().join("ran").exists() && !output.contains("palisade: 'xyzzy"));
    insta::assert_snapshot!("once-misuse", sandbox.redacted(&output, crate::sandbox::Numbers::Kept));
}

/// Two hosts that share only the locks, or only the records, would both do the work.
#[test]
fn locks_and_records_must_be_shared_by_the_same_hosts() {
    let sandbox = Sandbox::new();
    let run = |args: &[&str]| {
        let args = [args, &["key", "--", "touch", "ran"]].concat();
        sandbox.output(&sandbox.command(&args).env_remove("PALISADE_URL").finish())
    };
    let only_locks = run(&["--url", "palisade://127.0.0.1:1", "once"]);
    assert!(only_locks.code == Some(64) && only_locks.err.contains("--store"), "{only_locks:?}");
    let only_records = run(&["once", "--store", "redis://127.0.0.1:1"]);
    assert!(only_records.code == Some(64) && only_records.err.contains("--url"), "{only_records:?}");
    // These are accepted, and then cannot be reached.
    let postgres = "postgres://app@127.0.0.1:1/shop";
    for args in [&["once", "--store", postgres][..], &["--url", postgres, "once"]] {
        let both = run(args);
        assert_eq!(both.code, Some(69), "{both:?}");
    }
    let script = "exec $PALISADE --url embedded: once --store redis://127.0.0.1:1 key -- touch ran";
    let both = sandbox.output(&sandbox.on_own_host("", script).finish());
    assert_eq!((both.code, both.err.contains("127.0.0.1:1")), (Some(69), true), "{both:?}");
    assert!(!sandbox.path().join("ran").exists() && !sandbox.path().join(".local/state/palisade").exists());
}

/// A record of work that is under way outlives `--keep`: the next call must learn of it.
#[test]
fn a_short_keep_does_not_forget_work_that_is_under_way() {
    let sandbox = Sandbox::new();
    let command =
        ["once", "--keep", "1ms", "job", "--", "sh", "-c", "echo began; while ! test -e go; do sleep 0.01; done"];
    let mut first = sandbox.start(&command);
    assert_eq!(first.line(), "began");
    // Each attempt removes records whose time has passed.
    for key in ["a", "b"] {
        sandbox.stdout(&["once", key, "--", "echo", key]);
    }
    fs::write(sandbox.path().join("go"), "").unwrap();
    assert!(first.end().success(), "its output was kept");
}

/// A cron line that writes to a full disk must not look like a success.
#[test]
fn output_that_cannot_be_written_is_an_error_and_is_kept_nevertheless() {
    let sandbox = Sandbox::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&["once", "k", "--", "echo", "hi"]).finish_into(full);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{error}");
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(sandbox.stdout(&["once", "k", "--", "echo", "another"]), "hi\n");
}

#[test]
fn a_command_learns_of_no_attempt_at_another_key() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["once", "outer", "--", "false"]).code, Some(1));
    let inner = "once inner -- sh -c 'echo inner $PALISADE_ONCE_PREVIOUS'";
    let inner = format!("echo outer $PALISADE_ONCE_PREVIOUS; {} {inner}", env!("CARGO_BIN_EXE_palisade"));
    let output = sandbox.run(&["once", "outer", "--", "sh", "-c", &inner]);
    let lines: Vec<_> = output.out.lines().collect();
    assert!(lines[0].len() > "outer ".len() && lines[1].trim() == "inner", "{output:?}");
}

#[test]
fn a_call_that_would_wait_for_itself_is_refused() {
    let sandbox = Sandbox::new();
    let inner = format!("{} once k -- true", env!("CARGO_BIN_EXE_palisade"));
    let output = sandbox.run(&["once", "k", "--", "sh", "-c", &inner]);
    assert!(output.code == Some(64) && output.err.contains("wait for itself"), "{output:?}");
}

#[test]
fn a_store_that_cannot_be_written_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite://{}", sandbox.path().join("no/such/folder.db").display());
    let refused = sandbox.run(&["once", "k", "--store", &url, "--", "true"]);
    assert!(refused.code == Some(69) && refused.err.contains("No such file or directory"), "{refused:?}");
}
