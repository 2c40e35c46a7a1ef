//! The real binary, with a private home and private locks, and without a terminal.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

use crate::common::bounded::{self, TIMEOUT};
use crate::common::signals;
pub(crate) use crate::common::within;

/// A private home directory with its own locks.
pub(crate) struct Sandbox {
    directory: TempDir,
}

/// The exit code and the output of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        signals::handle_ignored_signals();
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
        // Independent of the umask, since tests compare output that shows the mode.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).expect("it is ours");
        Sandbox { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("embedded://{}/locks.db", self.path().display())
    }

    /// Connects the library, in this process, to the same locks.
    pub(crate) fn client(&self, label: &str) -> palisade::blocking::Palisade {
        let options = palisade::Options::new().label(label);
        palisade::blocking::connect_with(options, &self.url()).expect("the engine works")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(args).stdin(Stdio::null()).current_dir(self.path());
        command.env("HOME", self.path()).env("PALISADE_URL", self.url()).env("COLUMNS", "100");
        for name in ["CLICOLOR_FORCE", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "PALISADE_CONFIG", "PALISADE_LOG"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.output(&self.command(args).output().expect("palisade runs"))
    }

    pub(crate) fn output(&self, output: &Output) -> CommandOutput {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        CommandOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Returns stdout of a command that succeeds with an empty stderr.
    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{args:?}");
        output.out
    }

    /// Returns stderr of a command that fails with this code and an empty stdout.
    pub(crate) fn stderr(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.code, output.out.as_str()), (Some(code), ""), "{args:?}: {}", output.err);
        output.err
    }

    /// Replaces what differs in every run: the sandbox's path and, with [`Numbers::Hidden`], every number.
    pub(crate) fn redacted(&self, text: &str, numbers: Numbers) -> String {
        let text = text.replace(&self.path().display().to_string(), "[DIR]");
        match numbers {
            Numbers::Kept => text,
            Numbers::Hidden => without_numbers(&text),
        }
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("palisade starts");
        let lines = BufReader::new(child.stdout.take().expect("stdout is a pipe")).lines();
        Running { child: Some(child), lines: Some(lines) }
    }
}

/// Whether a snapshot contains numbers.
#[derive(Clone, Copy)]
pub(crate) enum Numbers {
    Kept,
    Hidden,
}

fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let is_inside = shown.ends_with('#') && (c.is_ascii_digit() || c == '.');
        match c.is_ascii_digit() {
            _ if is_inside => {}
            true => shown.push('#'),
            false => shown.push(c),
        }
    }
    shown
}

/// A command that is still running. Dropping it ends it.
pub(crate) struct Running {
    /// `None` once its end was waited for.
    child: Option<Child>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("its end was not waited for"))
    }

    /// Waits for the next line of stdout.
    pub(crate) fn line(&mut self) -> String {
        let mut lines = self.lines.take().expect("stdout is open");
        let (line, lines) = within("a line of output", move || {
            let line = lines.next();
            (line, lines)
        });
        self.lines = Some(lines);
        line.expect("it prints one more line").expect("UTF-8")
    }

    /// Closes the reading end of its stdout.
    pub(crate) fn stop_reading(&mut self) {
        self.lines = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Returns the processes that it has started, and that run.
    pub(crate) fn children(&self) -> Vec<OwnedFd> {
        let pid = self.pid().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
        let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
    }

    /// Waits until it has started this many processes, and returns them.
    pub(crate) fn until_children(&self, count: usize) -> Vec<OwnedFd> {
        let began = Instant::now();
        loop {
            let children = self.children();
            if children.len() >= count {
                return children;
            }
            assert!(began.elapsed() < TIMEOUT, "{} of {count} processes run", children.len());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the command to exit.
    pub(crate) fn end(mut self) -> ExitStatus {
        let pid = self.pid();
        let child = self.child.take().expect("its end was not waited for");
        end_of(child).unwrap_or_else(|| {
            let _ = kill_process(pid, Signal::KILL);
            panic!("it did not end within {TIMEOUT:?}")
        })
    }
}

/// Waits for these processes, and returns whether all have ended.
pub(crate) fn have_ended(processes: &[OwnedFd]) -> bool {
    let timeout = Timespec::try_from(TIMEOUT).expect("it is short");
    let has_ended =
        |process| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)).is_ok_and(|ended| ended == 1);
    processes.iter().all(has_ended)
}

/// Waits for a process to exit; `None` if it does not in time.
pub(crate) fn end_of(mut child: Child) -> Option<ExitStatus> {
    bounded::awaited(move || child.wait().expect("it can be waited for"))
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}
