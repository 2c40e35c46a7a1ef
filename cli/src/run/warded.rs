//! A command with a warden, as this process sees it: starts both, sends the warden's orders, and waits for the command's end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::BootInstant;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    pidfd_open, set_child_subreaper, wait, waitid, waitpgid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::terminal::{Terminal, group_of};
use super::warden::{KILLED, WARDEN, exit_code_of};
use super::wire::{Order, Report, Wire, send_descriptors};
use crate::outcome::say;
use crate::signals::stop_this_process;

/// How long a warden may take to start the command. Generous: a loaded host may need seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the warden may take, after the command has ended, to end the rest of the process group and to report. Longer
/// than the 5 s that it gives that group.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the warden may take to kill the command.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// A running command and its warden.
pub(crate) struct WardedCommand {
    warden: Child,
    wire: Wire,
    /// The command's process group; `None` before it was started.
    group: Option<Pid>,
    command: Option<Process>,
    /// When the warden is killed unless it has answered. A stopped one would not report that the command has ended.
    answer_by: Option<BootInstant>,
    is_killed: bool,
    kill_time: Option<KillTime>,
    /// Whether the warden did not kill the command in time, so that this process killed the warden.
    was_late: bool,
}

/// A command whose process group is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// Its exit code, or 128 plus the number of the signal that ended it.
    pub(crate) code: u8,
    /// Whether the warden ended it, or this process because the warden did not.
    pub(crate) by_warden: bool,
    /// Whether it was never executed: it was not found, cannot be executed, or its warden could not start it.
    pub(crate) was_not_executed: bool,
}

/// Returns a warden for this command, ready for its variables.
pub(crate) fn warden_of(command: &[OsString]) -> Command {
    let mut warden = Command::new("/proc/self/exe");
    // A signal to the job's process group must not reach the warden.
    warden.arg(WARDEN).args(command).process_group(0).arg0("palisade");
    warden
}

/// When a command is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KillTime {
    /// When the warden does it.
    pub(crate) at: BootInstant,
    /// When this process does it, by killing a warden that has not. That one may be stopped.
    pub(crate) at_the_latest: BootInstant,
}

impl KillTime {
    /// For a command that works under something that ends then. The margin lets the warden be scheduled and the processes die.
    pub(crate) fn before(end: BootInstant, margin: Duration) -> KillTime {
        KillTime { at: earlier(end, margin), at_the_latest: earlier(end, margin / 2) }
    }

    /// For a command whose lock ends then, unless it is renewed for the TTL.
    pub(crate) fn before_expiry(end: BootInstant, ttl: Duration) -> KillTime {
        KillTime::before(end, (ttl / 20).min(Duration::from_secs(1)))
    }

    /// For a command that has to end after this time, although nothing else ends then.
    pub(crate) fn after(time: Duration) -> KillTime {
        let at = BootInstant::now() + time;
        KillTime { at, at_the_latest: at + KILL_TIMEOUT }
    }

    /// Returns the earlier moments of both.
    pub(crate) fn or_earlier(self, other: Option<KillTime>) -> KillTime {
        let other = other.unwrap_or(self);
        KillTime { at: self.at.min(other.at), at_the_latest: self.at_the_latest.min(other.at_the_latest) }
    }
}

/// Returns the moment that is this much earlier.
pub(crate) fn earlier(moment: BootInstant, time: Duration) -> BootInstant {
    BootInstant::after_boot(moment.since_boot().saturating_sub(time))
}

impl WardedCommand {
    /// Starts a warden. It starts the command when it gets the first [deadlines](WardedCommand::set_deadlines).
    pub(crate) fn start(
        mut warden: Command,
        stdin: BorrowedFd<'_>,
        lifeline: Option<BorrowedFd<'_>>,
    ) -> io::Result<WardedCommand> {
        // If the warden is killed, its orphans become children of this process, which ends them.
        set_child_subreaper(Some(getpid()))?;
        let (stream, wardens_stream) = UnixStream::pair()?;
        let started = warden.stdin(Stdio::from(OwnedFd::from(wardens_stream))).spawn();
        // Otherwise this process would hold the warden's end too, and never see it close.
        drop(warden);
        let warden = started?;
        send_descriptors(&stream, stdin, lifeline)?;
        let answer_by = Some(BootInstant::now() + START_TIMEOUT);
        let (wire, group, command) = (Wire::new(stream)?, None, None);
        let (is_killed, kill_time, was_late) = (false, None, false);
        Ok(WardedCommand { warden, wire, group, command, answer_by, is_killed, kill_time, was_late })
    }

    /// Replaces the moments at which the command gets TERM and KILL, if there are any.
    pub(crate) fn set_deadlines(&mut self, term_at: Option<BootInstant>, kill_time: Option<KillTime>) {
        self.kill_time = kill_time;
        let kill_at = kill_time.map(|time| time.at);
        let ns = |at: BootInstant| u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX);
        let order = Order::Deadlines { term_at_ns: term_at.map(ns), kill_at_ns: kill_at.map_or(u64::MAX, ns) };
        // A stopped warden reads it when it continues. Until then this process kills the command in time.
        self.wire.send_latest(&order);
    }

    /// Passes a signal on to the command.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if !self.wire.send(&Order::Signal(signal.as_raw())) {
            self.expect_answer(KILL_TIMEOUT);
        }
    }

    /// Kills the command: what it works under is lost.
    pub(crate) fn kill(&mut self) {
        self.wire.send(&Order::Lost);
        self.is_killed = true;
        self.answer_by = Some(BootInstant::now() + KILL_TIMEOUT);
    }

    /// Waits until the command has ended and its process group is empty.
    ///
    /// # Cancellation
    ///
    /// Call it again.
    pub(crate) async fn ended(&mut self) -> Ended {
        loop {
            tokio::select! {
                biased;
                report = self.wire.receive() => match report {
                    Some(Report::Started { group }) => self.note_start(Pid::from_raw(group)),
                    // Ctrl-Z stops the whole job, as the shell expects.
                    Some(Report::Stopped) => stop_this_process(),
                    Some(Report::Ended { code, by_warden, was_not_executed }) => {
                        self.reap();
                        reap_adopted();
                        return Ended { code, by_warden, was_not_executed };
                    }
                    // The warden was killed, or has failed.
                    None => {
                        let wardens_code = self.reap();
                        let code = self.group.and_then(end_orphans).unwrap_or(wardens_code);
                        reap_adopted();
                        return Ended { code, by_warden: self.was_late, was_not_executed: self.group.is_none() };
                    }
                },
                () = Process::ended(self.command.as_ref()) => {
                    self.command = None;
                    self.expect_answer(END_TIMEOUT);
                }
                () = reached(self.kill_time.map(|time| time.at_the_latest)), if !self.was_late => {
                    self.was_late = true;
                    self.kill_warden();
                }
                () = reached(self.answer_by) => {
                    self.answer_by = None;
                    // First: a full pipe at stderr would keep the command running.
                    self.kill_warden();
                    say("the warden, which supervises the command, does not answer (it may be stopped) and is killed");
                }
            }
        }
    }

    /// Lets the warden be killed after this time unless it answers before.
    fn expect_answer(&mut self, time: Duration) {
        self.answer_by.get_or_insert(BootInstant::now() + time);
    }

    /// Kills the warden. The system then kills the command, and the warden's connection closes.
    fn kill_warden(&self) {
        // One that has ended was not waited for yet, so its number is not used again.
        let _ = kill_process(Pid::from_child(&self.warden), Signal::KILL);
    }

    fn note_start(&mut self, group: Option<Pid>) {
        self.group = group;
        let watched = group.map(Process::watch);
        if !self.is_killed {
            let is_gone = matches!(&watched, Some(Err(Errno::SRCH)));
            self.answer_by = is_gone.then(|| BootInstant::now() + END_TIMEOUT);
        }
        self.command = watched.and_then(Result::ok);
    }

    /// Waits for the warden, whose connection has ended, and returns its exit code.
    fn reap(&mut self) -> u8 {
        let code = self.warden.wait().ok().and_then(|status| status.code());
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(KILLED)
    }
}

/// Waits for a moment. Never returns without one.
async fn reached(at: Option<BootInstant>) {
    match at {
        Some(at) => at.reached().await,
        None => std::future::pending().await,
    }
}

/// Kills the rest of the command's process group after its warden was killed. Returns the command's exit code.
fn end_orphans(group: Pid) -> Option<u8> {
    if let Some(terminal) = group_of(None).and_then(|job| Terminal::of_job(job, io::stdin())) {
        terminal.take_back(group);
    }
    // The system does not reuse the group's number while an unreaped child of this process is in the group.
    let without_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pgid(Some(group)), without_reaping).is_err() {
        return None;
    }
    let _ = kill_process_group(group, Signal::KILL);
    let mut code = None;
    loop {
        match waitpgid(group, WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == group => code = exit_code_of(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return code,
        }
    }
}

/// Reaps daemons of ended commands that have ended too: this process is their subreaper. It has no other children, as it runs
/// one warden at a time, which was waited for.
fn reap_adopted() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// A process that this one can wait for although it is not a child.
struct Process(AsyncFd<OwnedFd>);

impl Process {
    #[allow(
        deprecated,
        reason = "its replacement is unsafe, for types that do not own their descriptor; this one does"
    )]
    fn watch(pid: Pid) -> Result<Process, Errno> {
        let process = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        let readable = AsyncFd::with_interest(process, Interest::READABLE);
        readable.map(Process).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Waits until the process has ended. Never returns without a process.
    async fn ended(process: Option<&Process>) {
        match process {
            Some(process) => drop(process.0.readable().await),
            None => std::future::pending().await,
        }
    }
}
