//! The real binary, with a private home and private locks, and without a terminal.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Output};

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tempfile::TempDir;

use crate::common::bounded::{self, Bounded, OutputLines};
use crate::common::process::Process;
use crate::common::{environment, signals};

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

impl CommandOutput {
    /// Returns stdout of a command that has succeeded with an empty stderr.
    #[track_caller]
    fn success(self, args: &[&str]) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{args:?}: {}", self.out);
        self.out
    }
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

    /// `palisade` with these arguments, in this directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_palisade"));
        command.args(args).env("PALISADE_URL", self.url()).env("COLUMNS", "100");
        command
    }

    /// Another program, in this directory.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = environment::command(program, self.path());
        command.current_dir(self.path());
        command
    }

    /// A script that runs as root on a host whose `/var/lib` is empty and that has these groups, in a separate namespace. It fails with
    /// its first command that fails. `$PALISADE` has no URL.
    pub(crate) fn on_own_host(&self, groups: &str, script: &str) -> Command {
        fs::write(self.path().join("groups"), groups).expect("it is ours");
        let script = format!("mount -t tmpfs none /var/lib; mount --bind groups /etc/group; {script}");
        let mut command = self.program("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script]);
        command.env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.output(&self.command(args).finish())
    }

    /// Runs an experiment of many steps.
    pub(crate) fn run_long(&self, args: &[&str]) -> CommandOutput {
        self.output(&self.command(args).finish_long())
    }

    pub(crate) fn output(&self, output: &Output) -> CommandOutput {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        CommandOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Returns stdout of a command that succeeds with an empty stderr.
    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        self.run(args).success(args)
    }

    /// Returns stdout of an experiment of many steps that succeeds with an empty stderr.
    pub(crate) fn stdout_long(&self, args: &[&str]) -> String {
        self.run_long(args).success(args)
    }

    /// Returns stderr of a command that fails with this code and an empty stdout.
    pub(crate) fn stderr(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.code, output.out.as_str()), (Some(code), ""), "{args:?}: {}", output.err);
        output.err
    }

    /// Replaces what differs in every run: the sandbox's path and, with [`Numbers::Hidden`], every number.
    pub(crate) fn redacted(&self, text: &str, numbers: Numbers) -> String {
        let text = environment::without_host_config(text).replace(&self.path().display().to_string(), "[DIR]");
        match numbers {
            Numbers::Kept => text,
            Numbers::Hidden => without_numbers(&text),
        }
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let (process, stdout) = Process::start_reading(&mut self.command(args));
        Running { process, stdout: Some(stdout), printed: Vec::new() }
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
    process: Process,
    stdout: Option<OutputLines<ChildStdout>>,
    /// The lines of stdout so far.
    printed: Vec<String>,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Waits for the next line of stdout.
    pub(crate) fn line(&mut self) -> String {
        let of = format!("a command that has printed {:?}", self.printed);
        let line = self.stdout.as_mut().expect("stdout is open").next_line(&of);
        let line = line.unwrap_or_else(|| panic!("there is no more line of {of}"));
        self.printed.push(line.clone());
        line
    }

    /// Closes the reading end of its stdout.
    pub(crate) fn stop_reading(&mut self) {
        self.stdout = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
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
        bounded::until_some(&format!("{count} processes run"), || {
            Some(self.children()).filter(|children| children.len() >= count)
        })
    }

    /// Waits for the command to exit.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.process.wait()
    }
}

/// Waits for these processes, and returns whether all have ended.
pub(crate) fn have_ended(processes: &[OwnedFd]) -> bool {
    processes.iter().all(bounded::has_ended)
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}
