//! A command under `strace`, and the data that a power cut at any moment could lose.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Pid;

use super::syscalls::{Call, parse};
use crate::common::bounded::{Bounded, until_some};
use crate::common::environment::{self, NO_HOME};

/// Every call that changes files, flushes them or sends data. A question mark marks a call that some architectures lack.
const CALLS: &str = "write,pwrite64,writev,pwritev,pwritev2,sendto,sendmsg,sendmmsg,sendfile,copy_file_range,fsync,\
                     fdatasync,sync,syncfs,sync_file_range,msync,?rename,renameat,renameat2,?unlink,unlinkat,?link,linkat,\
                     ?mkdir,mkdirat,?open,openat,?creat,io_uring_setup";

/// Calls that the checks below do not understand. A program that begins to use one needs new checks.
const UNSUPPORTED: [&str; 5] = ["sendfile", "copy_file_range", "msync", "sync_file_range", "io_uring_setup"];

/// How long every flush takes at least. The delay exposes a reply that does not wait for the flush.
#[derive(Clone, Copy)]
pub(crate) enum Flushes {
    Quick,
    /// Slower than the work of the service's thread between two flushes.
    Slow,
}

/// The trace of one program's system calls.
pub(crate) struct Tracing {
    output: PathBuf,
}

impl Tracing {
    /// Returns the same command under strace, which shows the first `data_bytes` of each write. Returns `None` and prints a
    /// line if tracing is forbidden. The command stays a child of the test, and strace is its sibling.
    pub(crate) fn of(
        command: &Command,
        output: PathBuf,
        data_bytes: usize,
        flushes: Flushes,
    ) -> Option<(Command, Tracing)> {
        if !is_allowed() {
            return None;
        }
        let micros = match flushes {
            Flushes::Quick => 1_000,
            Flushes::Slow => 30_000,
        };
        let mut traced = environment::command("strace", NO_HOME);
        traced.args([
            "-D",
            "-f",
            "-ttt",
            "-T",
            "-yy",
            "-xx",
            "-s",
            &data_bytes.to_string(),
            "-e",
            &format!("trace={CALLS}"),
        ]);
        traced.args(["-e", &format!("inject=fsync,fdatasync:delay_exit={micros}"), "-o"]).arg(&output);
        traced.arg(command.get_program()).args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            traced.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => traced.env(name, value),
                None => traced.env_remove(name),
            };
        }
        Some((traced, Tracing { output }))
    }

    /// Waits until strace has written everything, and returns the trace of a process that has ended.
    pub(crate) fn end(&self, pid: Pid) -> Trace {
        let pid = pid.as_raw_nonzero().to_string();
        let is_end = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(&pid) && words.nth(1) == Some("+++")
        };
        let text = until_some("strace has written the end of the process", || {
            let text = fs::read_to_string(&self.output).unwrap_or_default();
            text.lines().any(is_end).then_some(text)
        });
        Trace::of(&text)
    }
}

/// Whether processes can be traced here. In CI they must be.
fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let mut strace = environment::command("strace", NO_HOME);
        let tried = strace.args(["-D", "-f", "-e", "trace=none", "-o", "/dev/null", "true"]).finish();
        // A strace that may not trace says so, while the command runs and succeeds.
        if tried.status.success() && tried.stderr.is_empty() {
            return true;
        }
        let message = String::from_utf8_lossy(&tried.stderr);
        let advice = format!(
            "strace may not trace a process here: {}. Allow ptrace: in a container with --cap-add=SYS_PTRACE or a seccomp \
             profile that has ptrace, on a host with sysctl kernel.yama.ptrace_scope=1",
            message.trim()
        );
        let is_forbidden = message.contains("not permitted") || message.contains("not implemented");
        assert!(is_forbidden && std::env::var_os("CI").is_none(), "{advice}");
        // Not by a macro, whose output is shown only if the test fails.
        drop(std::io::stderr().write_all(format!("SKIPPED: {advice}\n").as_bytes()));
        false
    })
}

/// All calls of a process that has ended.
pub(crate) struct Trace {
    pub(crate) calls: Vec<Call>,
    /// The renames and flushes among them, since most checks need them.
    renames: Vec<Call>,
    flushes: Vec<Call>,
}

impl Trace {
    fn of(text: &str) -> Trace {
        let calls = parse(text);
        let unknown = calls.iter().find(|call| UNSUPPORTED.contains(&call.name.as_str()) && call.result.is_some());
        assert_eq!(unknown, None, "this test does not know when such a call makes something durable");
        let select =
            |is_selected: fn(&Call) -> bool| calls.iter().filter(|call| is_selected(call)).cloned().collect();
        Trace { renames: select(Call::is_rename), flushes: select(Call::is_flush), calls }
    }

    /// Returns the calls that send data with this text in it.
    pub(crate) fn sent<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(move |call| call.is_send() && call.has(text))
    }

    /// Returns the first call for which the condition is true.
    #[track_caller]
    pub(crate) fn first(&self, description: &str, condition: impl Fn(&Call) -> bool) -> &Call {
        self.calls.iter().find(|call| condition(call)).unwrap_or_else(|| panic!("there is no call: {description}"))
    }

    /// Fails unless `evidence` was written to a file that must survive before this acknowledgement, and no power cut from the
    /// acknowledgement on could lose data of those files.
    #[track_caller]
    pub(crate) fn assert_durable_at(&self, answer: &Call, evidence: &str, must_survive: impl Fn(&Path) -> bool) {
        let is_written = self.calls.iter().any(|call| {
            let must_survive =
                || call.target.as_ref().is_some_and(|target| must_survive(&self.later_name(target, call, answer)));
            call.is_write() && call.entry < answer.entry && call.has(evidence) && must_survive()
        });
        assert!(is_written, "nothing with {evidence:?} is written before it is acknowledged by {answer}");
        let at_risk = self.at_risk(answer, must_survive);
        assert!(at_risk.is_empty(), "acknowledged before it is durable:\n{}\nby {answer}", at_risk.join("\n"));
    }

    /// Fails unless each file that must survive gets its name only after its contents have been flushed.
    #[track_caller]
    pub(crate) fn assert_flushed_before_renamed(&self, must_survive: impl Fn(&Path) -> bool) {
        let mut count = 0;
        for rename in &self.renames {
            let (from, to) = (rename.path(0).unwrap_or_default(), rename.path(1).unwrap_or_default());
            if must_survive(Path::new(&to)) {
                let at_risk = self.unflushed_data(rename, &|path: &Path| path == Path::new(&from));
                assert!(at_risk.is_empty(), "{to} gets its name before its contents are flushed: {at_risk:?}");
                count += 1;
            }
        }
        assert!(count > 0, "no file that must survive is renamed");
    }

    /// Returns what a power cut at the beginning of this call could lose of the files that must survive: data that was written
    /// and not flushed, and names whose directory was not flushed.
    pub(crate) fn at_risk(&self, moment: &Call, must_survive: impl Fn(&Path) -> bool) -> Vec<String> {
        let mut at_risk = self.unflushed_data(moment, &must_survive);
        for made in self.before(moment) {
            let Some(name) = made.makes().map(PathBuf::from).filter(|name| must_survive(name)) else { continue };
            let is_gone = between(&self.calls, made, moment).any(|call| {
                let is_left = (call.is_rename() || call.is_removal())
                    && call.path(0).is_some_and(|path| name == Path::new(&path));
                is_left && call.result == Some(0)
            });
            let directory = name.parent().unwrap_or(Path::new("/"));
            if !is_gone && !self.is_flushed(made, moment, directory) {
                at_risk.push(format!("the name {}, made by {made}", name.display()));
            }
        }
        at_risk
    }

    fn unflushed_data(&self, moment: &Call, must_survive: &impl Fn(&Path) -> bool) -> Vec<String> {
        let writes = self.before(moment).filter(|call| call.is_write());
        let unflushed = writes.filter_map(|write| {
            let file = self.later_name(write.target.as_ref()?, write, moment);
            (must_survive(&file) && !self.is_flushed(write, moment, &file))
                .then(|| format!("data of {}, written by {write}", file.display()))
        });
        unflushed.collect()
    }

    /// Whether the file was flushed between the call and `moment`. `file` is its name at `moment`.
    fn is_flushed(&self, call: &Call, moment: &Call, file: &Path) -> bool {
        between(&self.flushes, call, moment).any(|flush| {
            let is_it = |target: &String| self.later_name(target, flush, moment) == file;
            flush.exit.is_some_and(|exit| exit < moment.entry) && flush.target.as_ref().is_some_and(is_it)
        })
    }

    /// Returns the name at a later call of the file that has this name at `call`.
    fn later_name(&self, name: &str, call: &Call, later: &Call) -> PathBuf {
        let mut name = name.trim_end_matches(" (deleted)").to_owned();
        for rename in between(&self.renames, call, later) {
            if rename.path(0).as_ref() == Some(&name) {
                name = rename.path(1).unwrap_or_default();
            }
        }
        name.into()
    }

    fn before<'a>(&'a self, moment: &'a Call) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().take_while(|call| call.entry < moment.entry)
    }
}

/// Returns the calls that begin after `first` has returned and before `last` begins.
fn between<'a>(calls: &'a [Call], first: &'a Call, last: &'a Call) -> impl Iterator<Item = &'a Call> {
    let from = first.exit.map_or(calls.len(), |exit| calls.partition_point(|call| call.entry <= exit));
    calls[from..].iter().take_while(|call| call.entry < last.entry)
}
