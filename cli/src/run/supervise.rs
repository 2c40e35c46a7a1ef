//! Supervision of the running command: sends its warden a new deadline at each renewal, and passes signals on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::{BootInstant, Loss};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    pidfd_open, set_child_subreaper, waitid, waitpgid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::terminal::{Terminal, group_of};
use super::warden::{KILLED, WARDEN, exit_code_of};
use super::wire::{Order, Report, Wire, send_descriptors};
use super::{CommandArgs, Extras, OnLoss};
use crate::acquire::AnyGuard;
use crate::lease::RUN_SESSION;
use crate::outcome::{Failure, message_of, say};
use crate::settings::Settings;
use crate::signals::{Signals, StopSignal, stop_this_process};
use crate::text::plain;

/// How long a warden may take to start the command. Generous: a loaded host may need seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the warden may take, after the command has ended, to end the rest of the process group and to report. Longer
/// than the 5 s that it gives that group.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the warden may take to kill the command whose lock is lost.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// A command to run, and the lock that is held for it.
pub(super) struct Job<'a> {
    pub(super) command_args: &'a CommandArgs,
    pub(super) names: Vec<String>,
    pub(super) settings: &'a Settings,
    pub(super) held: AnyGuard,
    pub(super) signed: Option<String>,
    /// The partitions that the command works on, if `held` is one of them.
    pub(super) partitions: Option<PartitionVariables>,
}

/// The variables of a command that works on partitions. They have a token each.
pub(super) struct PartitionVariables {
    pub(super) partitions: String,
    pub(super) tokens: String,
}

/// The moment until which the command has to end; `None` while it may run. Its sender must outlive the command.
pub(super) type StopBy = watch::Receiver<Option<BootInstant>>;

/// A command whose process group is empty.
pub(super) struct Supervised {
    pub(super) code: u8,
    /// Whether the warden ended the command.
    pub(super) by_warden: bool,
    pub(super) loss: Option<Loss>,
    /// The last signal that asked this process to stop. It was passed on to the command.
    pub(super) stop_signal: Option<StopSignal>,
}

/// The state when the warden's connection has ended.
struct Outcome {
    /// The warden's last report; `None` if the warden was killed or failed.
    ended: Option<Ended>,
    loss: Option<Loss>,
    /// The command's process group; `None` if the command was not started.
    group: Option<Pid>,
    stop_signal: Option<StopSignal>,
}

/// How the command ended.
struct Ended {
    code: u8,
    by_warden: bool,
}

impl Job<'_> {
    /// Runs the command until it has ended, calls `ended` with its exit code, then releases the lock.
    pub(super) async fn run(
        self,
        extras: Extras,
        signals: &mut Signals,
        ended: impl AsyncFnOnce(u8) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (_never, mut stop_by) = watch::channel(None);
        let Supervised { code, by_warden, loss, .. } = self.supervise(extras, signals, &mut stop_by).await?;
        let ended = ended(code).await;
        let released = self.held.release().await;
        ended?;
        let loss = loss.or_else(|| released.as_ref().err().and_then(|error| error.loss().cloned()));
        if let Some(loss) = loss {
            return self.lost(&loss, code, by_warden);
        }
        if by_warden {
            let why = released.err().map(|error| format!(": {}", message_of(&error))).unwrap_or_default();
            return Err(Failure::Lost(format!(
                "{} could not be kept alive, and the command was ended before another client could get it{why}",
                self.lock_names()
            )));
        }
        if let Err(error) = released {
            say(&format!("the command has ended, but {error}; the lock ends by its TTL at the latest"));
        }
        pass_on(code)
    }

    /// Runs the command until it has ended. As soon as `stop_by` has a moment, the command gets TERM, and at that moment KILL.
    pub(super) async fn supervise(
        &self,
        extras: Extras,
        signals: &mut Signals,
        stop_by: &mut StopBy,
    ) -> Result<Supervised, Failure> {
        let (warden, mut wire) = self.start_warden(extras)?;
        let outcome = self.watch(&mut wire, Pid::from_child(&warden), signals, stop_by).await;
        let Outcome { ended, loss, group, stop_signal } = outcome;
        let Ended { code, by_warden } = match (reap(warden), ended) {
            (_, Some(ended)) => ended,
            (wardens_code, None) => {
                let code = group.and_then(end_orphans).unwrap_or(wardens_code);
                Ended { code, by_warden: false }
            }
        };
        Ok(Supervised { code, by_warden, loss, stop_signal })
    }

    fn lock_names(&self) -> String {
        format!("'{}'", plain(&self.names.join(", ")))
    }

    fn lost(&self, loss: &Loss, code: u8, by_warden: bool) -> Result<(), Failure> {
        if self.command_args.on_loss == OnLoss::Ignore {
            say(&format!("{} was lost while the command ran: {loss}", self.lock_names()));
            return pass_on(code);
        }
        let then = if by_warden { "the command was ended" } else { "the command has ended since" };
        Err(Failure::Lost(format!("{} was lost: {loss}; {then}", self.lock_names())))
    }

    fn start_warden(&self, extras: Extras) -> Result<(Child, Wire), Failure> {
        let token = self.held.token()?;
        // If the warden is killed, its orphans become children of this process, which ends them.
        set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
        let (stream, wardens_stream) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(WARDEN).args(&self.command_args.command).stdin(Stdio::from(OwnedFd::from(wardens_stream)));
        // A signal to the job's process group must not reach the warden.
        command.process_group(0).arg0("palisade");
        command.env("PALISADE_LOCK", self.names.join("\n"));
        let session = self.held.session().to_string();
        command.env("PALISADE_SESSION", &session).env(RUN_SESSION, session);
        command.env("PALISADE_URL", self.settings.redacted_url());
        if let Some(secret) = palisade::split_secret(&self.settings.url).1 {
            // A command that prints its URL shows no secret, and can still log in.
            command.env("PALISADE_SECRET", secret);
        }
        match token.filter(|_| self.partitions.is_none()) {
            Some(token) => command.env("PALISADE_TOKEN", token.to_string()),
            None => command.env_remove("PALISADE_TOKEN"),
        };
        match &self.partitions {
            Some(PartitionVariables { partitions, tokens }) => {
                command.env("PALISADE_PARTITIONS", partitions).env("PALISADE_PARTITION_TOKENS", tokens)
            }
            None => command.env_remove("PALISADE_PARTITIONS").env_remove("PALISADE_PARTITION_TOKENS"),
        };
        match &self.signed {
            Some(signed) => command.env("PALISADE_SIGNED_TOKEN", signed),
            None => command.env_remove("PALISADE_SIGNED_TOKEN"),
        };
        command.envs(extras.variables);
        if let Some(stdout) = extras.stdout {
            command.stdout(stdout);
        }
        let warden = command.spawn()?;
        // Otherwise this process would hold the warden's end too, and never see it close.
        drop(command);
        send_descriptors(&stream, io::stdin().as_fd(), self.held.lifeline())?;
        Ok((warden, Wire::new(stream)?))
    }

    async fn watch(&self, wire: &mut Wire, warden: Pid, signals: &mut Signals, stop_by: &mut StopBy) -> Outcome {
        let mut safe_until = self.held.safe_until();
        let (mut loss, mut group, mut command, mut stop_signal) = (None, None, None, None);
        // A stopped warden would not report that the command has ended, and the lock would stay held.
        let mut answer_by = Some(BootInstant::now() + START_TIMEOUT);
        let mut has_term = false;
        wire.send(&self.deadlines(safe_until, None)).await;
        loop {
            tokio::select! {
                biased;
                reason = self.held.lost(), if loss.is_none() => {
                    if self.command_args.on_loss != OnLoss::Ignore {
                        wire.send(&Order::Lost).await;
                        answer_by = Some(BootInstant::now() + KILL_TIMEOUT);
                    }
                    loss = Some(reason);
                }
                report = wire.receive() => match report {
                    Some(Report::Started { group: number }) => {
                        group = Pid::from_raw(number);
                        let watched = group.map(Process::watch);
                        if loss.is_none() {
                            let is_gone = matches!(&watched, Some(Err(Errno::SRCH)));
                            answer_by = is_gone.then(|| BootInstant::now() + END_TIMEOUT);
                        }
                        command = watched.and_then(Result::ok);
                    }
                    // Ctrl-Z stops the whole job, as the shell expects.
                    Some(Report::Stopped) => stop_this_process(),
                    Some(Report::Ended { code, by_warden }) => {
                        return Outcome { ended: Some(Ended { code, by_warden }), loss, group, stop_signal };
                    }
                    None => return Outcome { ended: None, loss, group, stop_signal },
                },
                () = Process::ended(command.as_ref()) => {
                    command = None;
                    answer_by.get_or_insert(BootInstant::now() + END_TIMEOUT);
                }
                () = answer_by.unwrap_or(safe_until).reached(), if answer_by.is_some() => {
                    say("the warden, which supervises the command, does not answer (it may be stopped) and is killed");
                    answer_by = None;
                    // The system then kills the command, and the warden's connection closes.
                    let _ = kill_process(warden, Signal::KILL);
                }
                signal = signals.next() => {
                    stop_signal = StopSignal::new(signal).or(stop_signal);
                    wire.send(&Order::Signal(signal.as_raw())).await;
                }
                Ok(()) = stop_by.changed() => {
                    // The deadline may come closer. Only the first one sends TERM.
                    if !has_term {
                        has_term = true;
                        wire.send(&Order::Signal(Signal::TERM.as_raw())).await;
                        wire.send(&Order::Signal(Signal::CONT.as_raw())).await;
                    }
                    wire.send(&self.deadlines(safe_until, *stop_by.borrow())).await;
                }
                later = self.held.renewed(safe_until), if loss.is_none() => {
                    safe_until = later;
                    wire.send(&self.deadlines(safe_until, *stop_by.borrow())).await;
                }
            }
        }
    }

    fn deadlines(&self, safe_until: BootInstant, stop_by: Option<BootInstant>) -> Order {
        deadlines(self.command_args.on_loss, self.command_args.ttl(self.settings), safe_until).and_kill_by(stop_by)
    }
}

/// Returns the moments at which the command is ended unless the lock is renewed before.
fn deadlines(on_loss: OnLoss, ttl: Duration, safe_until: BootInstant) -> Order {
    let before = |time: Duration| {
        let at = safe_until.since_boot().saturating_sub(time);
        u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
    };
    // The margin lets the warden be scheduled and the processes die.
    let kill_at_ns = before((ttl / 20).min(Duration::from_secs(1)));
    match on_loss {
        OnLoss::Term => Order::Deadlines { term_at_ns: Some(before(ttl / 3)), kill_at_ns },
        OnLoss::Kill => Order::Deadlines { term_at_ns: None, kill_at_ns },
        OnLoss::Ignore => Order::Deadlines { term_at_ns: None, kill_at_ns: u64::MAX },
    }
}

impl Order {
    /// Returns the deadlines with the KILL at this moment, if it comes first.
    fn and_kill_by(self, kill_by: Option<BootInstant>) -> Order {
        match (self, kill_by) {
            (Order::Deadlines { term_at_ns, kill_at_ns }, Some(at)) => {
                let at_ns = u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX);
                Order::Deadlines { term_at_ns, kill_at_ns: kill_at_ns.min(at_ns) }
            }
            (order, _) => order,
        }
    }
}

pub(super) fn pass_on(code: u8) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Exit(code)) }
}

/// Waits for the warden, whose connection has ended, and returns its exit code.
fn reap(mut warden: Child) -> u8 {
    let code = warden.wait().ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(KILLED)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The deadlines, in milliseconds before another session can get the lock.
    fn ms_before_loss(on_loss: OnLoss, ttl_ms: u64) -> (Option<u64>, u64) {
        let safe_until = BootInstant::after_boot(Duration::from_secs(1000));
        let ms_before = |ns: u64| 1_000_000 - ns / 1_000_000;
        match deadlines(on_loss, Duration::from_millis(ttl_ms), safe_until) {
            Order::Deadlines { term_at_ns, kill_at_ns } => (term_at_ns.map(ms_before), ms_before(kill_at_ns)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_that_has_to_end_is_killed_at_the_earlier_deadline() {
        let order = |kill_at_ns| Order::Deadlines { term_at_ns: None, kill_at_ns };
        let kill_at_ns = |order| match order {
            Order::Deadlines { kill_at_ns, .. } => kill_at_ns,
            other => panic!("{other:?}"),
        };
        let at = BootInstant::after_boot(Duration::from_nanos(500));
        assert_eq!(kill_at_ns(order(700).and_kill_by(Some(at))), 500);
        assert_eq!(kill_at_ns(order(300).and_kill_by(Some(at))), 300);
        assert_eq!(kill_at_ns(order(700).and_kill_by(None)), 700);
    }

    #[test]
    fn the_command_is_killed_before_another_client_can_get_the_lock() {
        assert_eq!(ms_before_loss(OnLoss::Kill, 2000), (None, 100));
        assert_eq!(ms_before_loss(OnLoss::Term, 2000), (Some(667), 100));
        assert_eq!(ms_before_loss(OnLoss::Term, 30_000), (Some(10_000), 1000));
        assert_eq!(ms_before_loss(OnLoss::Kill, 300_000), (None, 1000));
    }
}
