//! What `palisade run` passes through: exit codes, the environment, descriptors; and what it prints.

use crate::fixture::{Fixture, Running};
use std::fs;

#[test]
fn the_exit_code_is_the_commands_own() {
    let fixture = Fixture::new();
    for code in [0, 1, 3, 64, 75, 76, 255] {
        fixture.run(&["x"], &format!("exit {code}")).expect(code, &[]);
    }
    for signal in [1, 2, 6, 9, 13, 15] {
        fixture.run(&["x"], &format!("kill -{signal} $$")).expect(128 + signal, &[]);
    }
}

#[test]
fn a_command_that_cannot_be_started_exits_with_126_or_127() {
    let fixture = Fixture::new();
    let run = |program: &str| Running::new(fixture.command(&["run", "x", "--", program])).end();
    run("./nowhere").expect_failure(127, "cannot run './nowhere': No such file or directory");
    fs::write(fixture.file("forbidden"), "").unwrap();
    run("./forbidden").expect_failure(126, "cannot run './forbidden': Permission denied");
    run("no-such-command-on-the-path").expect_failure(127, "cannot run 'no-such-command-on-the-path'");
    run("/").expect_failure(126, "cannot run '/': Permission denied");
    assert!(!fixture.is_held("x"), "the lock is released");
}

#[test]
fn the_command_gets_lock_token_session_and_url() {
    let fixture = Fixture::new();
    let show = "palisade show x | grep -c \" $PALISADE_SESSION \"";
    let ended = fixture.run(&["x"], &format!("echo \"$PALISADE_LOCK $PALISADE_TOKEN $PALISADE_URL\"; {show}"));
    ended.expect(0, &[&format!("x 1 {}", fixture.engine.url()), "1"]);
}

#[test]
fn a_relative_file_is_named_to_the_command_by_its_absolute_path() {
    let fixture = Fixture::new();
    let script = "cd /; palisade run --no-wait x -- true 2>&-; echo $? $PALISADE_URL";
    let mut command = fixture.script(&["x"], script);
    command.env("PALISADE_URL", "embedded:other.db");
    // The lock is also held when seen from another directory.
    Running::new(command).end().expect(0, &[&format!("75 embedded://{}", fixture.file("other.db").display())]);
}

#[test]
fn an_efficiency_lock_sets_no_token() {
    let fixture = Fixture::new();
    let mut command = fixture.script(&["--efficiency", "x"], r#"echo "${PALISADE_TOKEN-none} $PALISADE_LOCK""#);
    command.env("PALISADE_TOKEN", "7");
    Running::new(command).end().expect(0, &["none x"]);
    for kind in [&["--shared"][..], &["--permits", "1/2"]] {
        let args = [kind, &["--efficiency", "x"]].concat();
        fixture.run(&args, r#"echo "${PALISADE_TOKEN-none}""#).expect(0, &["none"]);
    }
}

#[test]
fn nothing_is_printed_without_verbose() {
    let fixture = Fixture::new();
    fixture.run(&["x"], "true").expect(0, &[]);
    let ended = Running::new(fixture.command(&["-v", "run", "x", "--", "true"])).end();
    assert_eq!((ended.code, ended.errors.as_str()), (0, "palisade: holding x with token 2\n"));
}

/// Returns the output of a command without `palisade run`, and with it.
fn without_and_with(command: &[&str]) -> [Vec<String>; 2] {
    let fixture = Fixture::new();
    let mut without = fixture.program(command[0]);
    without.args(&command[1..]);
    let with = fixture.command(&[&["run", "x", "--"], command].concat());
    [without, with].map(|command| Running::new(command).end().stdout)
}

#[test]
fn the_command_has_no_descriptors_but_its_own() {
    let [without, with] = without_and_with(&["ls", "/proc/self/fd"]);
    assert_eq!(with, without);
}

#[test]
fn descriptors_that_are_meant_for_the_command_reach_it() {
    let fixture = Fixture::new();
    let mut shell = fixture.program("sh");
    shell.args(["-c", "palisade run x -- sh -c 'echo three >&3' 3>&1"]);
    Running::new(shell).end().expect(0, &["three"]);
}

/// Returns lines of `/proc/self/status` without the signals 32 and 33. Only the C library uses these, and its `posix_spawn` ignores
/// them in the child.
fn signals(lines: &[String]) -> Vec<(String, u64)> {
    let signals = lines.iter().map(|line| {
        let (name, bits) = line.split_once(":\t").unwrap();
        (name.to_owned(), u64::from_str_radix(bits, 16).unwrap() & !(0b11 << 31))
    });
    signals.collect()
}

#[test]
fn the_command_begins_with_default_signals_and_none_blocked() {
    let [without, with] = without_and_with(&["grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"]);
    assert_eq!((signals(&with).len(), signals(&with)), (3, signals(&without)));
}

#[test]
fn ignored_signals_stay_ignored_in_the_command() {
    let fixture = Fixture::new();
    let ignoring = |command: &str| {
        let mut shell = fixture.program("sh");
        shell.args(["-c", &format!("trap '' HUP INT; exec {command} grep SigIgn /proc/self/status")]);
        Running::new(shell).end().stdout
    };
    assert_eq!(signals(&ignoring("palisade run x --")), [("SigIgn".to_owned(), 0b11)]);
    assert_eq!(signals(&ignoring("")), [("SigIgn".to_owned(), 0b11)]);
}

#[test]
fn the_command_reads_palisades_stdin() {
    let fixture = Fixture::new();
    let mut cat = Running::new(fixture.command(&["run", "x", "--", "head", "-n", "1"]));
    cat.send_line("through");
    cat.end().expect(0, &["through"]);
}

#[test]
fn closed_standard_descriptors_are_accepted() {
    let fixture = Fixture::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let mut shell = fixture.program("sh");
        shell.args(["-c", &format!("palisade -v run x -- sh -c 'echo done >> did; exit 7' {closed}")]);
        assert_eq!(Running::new(shell).end().code, 7, "{closed}");
    }
    assert_eq!(fixture.read("did"), "done\n".repeat(4));
}

#[test]
fn a_closed_pipe_ends_the_command_as_without_palisade() {
    let fixture = Fixture::new();
    let mut shell = fixture.program("bash");
    shell.args(["-c", "palisade run x -- yes | head -n 1; echo ${PIPESTATUS[0]}"]);
    Running::new(shell).end().expect(0, &["y", "141"]);
}

#[test]
fn a_log_that_cannot_be_written_does_not_lose_the_lock() {
    let fixture = Fixture::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut running = Running::with_errors(fixture.command(&["-vvv", "run", "--ttl", "30s", "x", "--", "cat"]), full);
    running.send_line("in");
    running.expect("in");
    fixture.until_renewed("x");
    running.close_stdin();
    running.end().expect(0, &[]);
}

#[test]
fn a_lock_that_is_not_free_in_time_is_refused_with_its_holder() {
    let fixture = Fixture::new();
    let mut holder = fixture.start(&["--label", "nightly", "x"], "echo in; read go");
    holder.expect("in");
    let ended = fixture.run(&["--no-wait", "x"], "echo in");
    ended.expect_failure(75, "'x' was not acquired\n  'x' is held by nightly on ");
    assert!(ended.errors.ends_with(", token 1\n"), "{ended:?}");
    let ended = fixture.run(&["--wait", "200ms", "x"], "echo in");
    ended.expect_failure(75, "'x' was not acquired within 200ms\n  'x' is held by nightly on ");
    assert!(ended.stdout.is_empty());
    assert_eq!(fixture.waiters("x"), 0);
    holder.send_line("go");
    holder.end().expect(0, &[]);
    fixture.run(&["--wait", "1m", "x"], "echo in").expect(0, &["in"]);
    fixture.run(&["--no-wait", "x"], "echo in").expect(0, &["in"]);
}

#[test]
fn the_lock_of_a_running_command_cannot_be_released_by_others() {
    let fixture = Fixture::new();
    let ended = fixture.run(&["x"], "palisade release && echo released; echo $?; exit 5");
    assert_eq!((ended.code, &ended.stdout[..]), (5, &["64".to_owned()][..]), "{ended:?}");
    assert!(ended.errors.contains("is held by the `palisade run` that this command is part of"), "{ended:?}");
    // Nor can a process that does not know who started it.
    let ended = fixture.run(&["x"], "unset PALISADE_RUN_SESSION; palisade release; echo $?");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &["69".to_owned()][..]), "{ended:?}");
    assert!(ended.errors.contains("keeps it alive; no other process may"), "{ended:?}");
}
