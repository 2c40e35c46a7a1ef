//! The warden: a process between `palisade run` and its command, which ends the command in time.
//!
//! It gets the time until which the lock is certainly held. If no later time arrives, because the engine cannot be reached
//! or `palisade run` itself is stopped, it ends the command's process group before that moment. If `palisade run` dies,
//! it does so at once. If the warden dies, the system ends the command.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use palisade::BootInstant;
use rustix::io::{Errno, ioctl_fionread};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, wait, waitpgid,
};
use tokio::signal::unix::{SignalKind, signal};

use super::terminal::{Terminal, group_of};
use super::wire::{Order, Report, Wire, receive_descriptors};
use crate::signals::{Signals, exit_code};

/// The first argument of a warden process. The command follows.
pub(super) const WARDEN: &str = "_warden";
/// The first argument of a process that becomes the command. The warden's pid, its pipe for a failure, and the command follow.
const BECOME: &str = "_become";

/// The exit code of a command that was killed, or that was not started because its deadline had passed.
pub(super) const KILLED: u8 = 128 + 9;
/// The exit code of a warden that could not start or watch its command (`EX_OSERR`).
const WARDEN_FAILED: u8 = 71;

/// How long the processes that a command leaves in its process group have between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a warden, or becomes the command, if the arguments say that this process was started for it.
pub(crate) fn run_as_child(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let role = args.nth(1)?;
    if role == BECOME {
        return Some(become_command(&args.next()?, &args.next()?, &args.next()?, args));
    }
    if role != WARDEN {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(supervise(args.collect())));
    Some(match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            crate::outcome::say(&format!("the command cannot be supervised: {error}"));
            ExitCode::from(WARDEN_FAILED)
        }
    })
}

/// Becomes the command, after arranging that it dies with its parent.
fn become_command(
    parent: &OsStr,
    failure: &OsStr,
    program: &OsStr,
    args: impl Iterator<Item = OsString>,
) -> ExitCode {
    let death_signal = set_parent_process_death_signal(Some(Signal::KILL));
    let is_parent_alive = getppid().is_some_and(|pid| *parent == *pid.as_raw_nonzero().to_string());
    if death_signal.is_err() || !is_parent_alive {
        return ExitCode::from(KILLED);
    }
    let error = Command::new(program).args(args).exec();
    // The exit code alone does not tell: a command may exit with the same one.
    let pipe = Path::new("/proc").join(parent).join("fd").join(failure);
    drop(File::options().write(true).open(pipe).and_then(|mut pipe| pipe.write_all(b".")));
    crate::outcome::say(&format!("cannot run '{}': {error}", program.to_string_lossy().escape_debug()));
    // The codes that shells use.
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

async fn supervise(command: Vec<OsString>) -> io::Result<u8> {
    // `palisade run` passes signals on. The warden survives a `killall palisade`, to end the command in order.
    let _handlers = Signals::listen()?;
    let mut deaths = signal(SignalKind::child())?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // While a process has the lifeline open, the engine takes the holder for alive, even if `palisade run` is dead.
    let (stdin, _lifeline) = match receive_descriptors(&stream) {
        // `palisade run` was killed before it sent them.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(KILLED),
        received => received?,
    };
    let mut wire = Wire::new(stream)?;
    let Some(first) = wire.receive::<Order>().await else { return Ok(KILLED) };
    let mut orders = vec![first];
    // A warden that was stopped finds the renewals of a lock behind the first deadline.
    while let Some(order) = wire.try_receive().await {
        orders.push(order);
    }
    if is_overdue(&orders) {
        wire.send(&Report::Ended { code: KILLED, by_warden: true, was_not_executed: false });
        return Ok(KILLED);
    }
    set_child_subreaper(Some(getpid()))?;
    let mut supervised = Supervised::start(command, stdin)?;
    wire.send(&Report::Started { group: supervised.group.as_raw_nonzero().get() });
    orders.into_iter().for_each(|order| supervised.handle(order));
    let mut is_orphan = false;
    loop {
        let next = supervised.next_deadline();
        tokio::select! {
            biased;
            // First, because a warden that was stopped finds the later deadlines here.
            order = wire.receive(), if !is_orphan => match order {
                Some(order) => supervised.handle(order),
                None => {
                    is_orphan = true;
                    supervised.end(Signal::KILL);
                }
            },
            _ = deaths.recv() => {}
            () = next.unwrap_or_else(BootInstant::now).reached(), if next.is_some() => supervised.enforce_deadlines(),
        }
        if supervised.reap()? {
            wire.send(&Report::Stopped);
        }
        if let Some(code) = supervised.finish() {
            let (by_warden, was_not_executed) = (supervised.was_ended, supervised.was_not_executed());
            wire.send(&Report::Ended { code, by_warden, was_not_executed });
            return Ok(code);
        }
    }
}

fn instant(ns: u64) -> BootInstant {
    BootInstant::after_boot(Duration::from_nanos(ns))
}

/// Whether the lock is lost, or its last deadline has passed, before the command is started.
fn is_overdue(orders: &[Order]) -> bool {
    let kill_at = orders.iter().rev().find_map(|order| match order {
        Order::Deadlines { kill_at_ns, .. } => Some(instant(*kill_at_ns)),
        Order::Signal(_) | Order::Lost => None,
    });
    kill_at.is_some_and(BootInstant::has_passed) || orders.iter().any(|order| matches!(order, Order::Lost))
}

/// Returns the exit code of a process as shells report it: its own, or 128 plus the number of the signal that ended it.
pub(super) fn exit_code_of(status: WaitStatus) -> Option<u8> {
    let signalled = status.terminating_signal().map(exit_code);
    signalled.or_else(|| status.exit_status().and_then(|code| u8::try_from(code).ok()))
}

/// The command, in its own process group.
struct Supervised {
    group: Pid,
    terminal: Option<Terminal>,
    term_at: Option<BootInstant>,
    kill_at: Option<BootInstant>,
    /// When the processes that the command left behind are killed.
    leftovers_kill_at: Option<BootInstant>,
    /// The command's exit code, once it has ended.
    code: Option<u8>,
    /// Whether the warden ended the command.
    was_ended: bool,
    /// Has a byte if the command could not be executed. The writing end is opened through its number.
    failure: (PipeReader, PipeWriter),
}

impl Supervised {
    fn start(command: Vec<OsString>, stdin: OwnedFd) -> io::Result<Supervised> {
        // `palisade run` may be dead already. Then the connection to it is closed, and the command is ended at once.
        let terminal = getppid().and_then(|run| group_of(Some(run))).and_then(|job| Terminal::of_job(job, &stdin));
        let mut start = Command::new("/proc/self/exe");
        let failure = io::pipe()?;
        let pipe = failure.1.as_raw_fd().to_string();
        start.arg(BECOME).arg(getpid().as_raw_nonzero().to_string()).arg(pipe).args(command);
        let child = start.stdin(Stdio::from(stdin)).process_group(0).spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let (term_at, kill_at, leftovers_kill_at, code, was_ended) = (None, None, None, None, false);
        let supervised =
            Supervised { group, terminal, term_at, kill_at, leftovers_kill_at, code, was_ended, failure };
        if let Some(terminal) = &supervised.terminal
            && terminal.is_interactive()
        {
            supervised.give_terminal(terminal);
        }
        Ok(supervised)
    }

    /// Gives the group the terminal, and continues processes that were stopped for using it too early.
    fn give_terminal(&self, terminal: &Terminal) {
        terminal.give(self.group);
        self.send(Signal::CONT);
    }

    fn was_not_executed(&self) -> bool {
        ioctl_fionread(&self.failure.0).is_ok_and(|bytes| bytes > 0)
    }

    fn send(&self, signal: Signal) {
        // A group that is gone needs no signal.
        let _ = kill_process_group(self.group, signal);
    }

    fn handle(&mut self, order: Order) {
        match order {
            Order::Deadlines { term_at_ns, kill_at_ns } if !self.was_ended => {
                // After the command's end, the rest of its group already had TERM.
                self.term_at = term_at_ns.filter(|_| self.code.is_none()).map(instant);
                self.kill_at = Some(instant(kill_at_ns));
            }
            Order::Deadlines { .. } => {}
            Order::Signal(number) => {
                let Some(signal) = Signal::from_named_raw(number) else { return };
                if signal == Signal::CONT
                    && let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_interactive())
                {
                    terminal.give(self.group);
                }
                self.send(signal);
            }
            Order::Lost => self.end(Signal::KILL),
        }
    }

    /// Signals the group because the lock is lost or about to be.
    fn end(&mut self, signal: Signal) {
        self.was_ended |= self.code.is_none();
        self.send(signal);
        // A stopped process handles the signal only once it continues.
        self.send(Signal::CONT);
    }

    fn next_deadline(&self) -> Option<BootInstant> {
        [self.term_at, self.kill_at, self.leftovers_kill_at].into_iter().flatten().min()
    }

    fn enforce_deadlines(&mut self) {
        if [self.kill_at, self.leftovers_kill_at].into_iter().flatten().any(BootInstant::has_passed) {
            (self.term_at, self.kill_at, self.leftovers_kill_at) = (None, None, None);
            self.end(Signal::KILL);
        } else if self.term_at.is_some_and(BootInstant::has_passed) {
            self.term_at = None;
            self.end(Signal::TERM);
        }
    }

    /// Reaps ended children and notes how the command ended. Returns whether the command was stopped from its terminal.
    fn reap(&mut self) -> io::Result<bool> {
        let mut was_stopped = false;
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.group => was_stopped |= self.note(status),
                Ok(Some(_)) => {}
                Ok(None) | Err(Errno::CHILD) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(was_stopped)
    }

    fn note(&mut self, status: WaitStatus) -> bool {
        if let Some(signal) = status.stopping_signal() {
            return self.note_stop(signal);
        }
        self.code = exit_code_of(status);
        if let Some(terminal) = &self.terminal {
            match status.terminating_signal() {
                Some(_) => terminal.recover(self.group),
                None => drop(terminal.take_back(self.group)),
            }
        }
        // The rest of the group would go on without the lock. An earlier deadline of the lock stays in force.
        (self.term_at, self.leftovers_kill_at) = (None, Some(BootInstant::now() + GRACE));
        self.send(Signal::TERM);
        self.send(Signal::CONT);
        false
    }

    fn note_stop(&self, signal: i32) -> bool {
        let Some(terminal) = &self.terminal else { return false };
        if (signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw()) && terminal.is_ours() {
            self.give_terminal(terminal);
            return false;
        }
        terminal.take_back(self.group);
        signal == Signal::TSTP.as_raw() || signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw()
    }

    /// Returns the command's exit code once its process group is empty.
    fn finish(&self) -> Option<u8> {
        let code = self.code?;
        loop {
            // Orphans of the group are children of this subreaper.
            match waitpgid(self.group, WaitOptions::NOHANG) {
                Err(Errno::CHILD) => {
                    // Members whose parent has left the group cannot be waited for.
                    self.send(Signal::KILL);
                    return Some(code);
                }
                Ok(None) => return None,
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }
}
