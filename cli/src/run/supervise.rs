//! Supervision of the running command: sends its warden a new deadline at each renewal, and passes signals on.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use palisade::{BootInstant, Loss};
use rustix::process::Signal;
use tokio::sync::watch;

use super::warded::{Ended, KillTime, WardedCommand, earlier, warden_of};
use super::{CommandArgs, Extras, OnLoss};
use crate::acquire::AnyGuard;
use crate::lease::RUN_SESSION;
use crate::outcome::{Failure, message_of, say};
use crate::settings::Settings;
use crate::signals::{Signals, StopSignal};
use crate::text::plain;

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

/// When the command has to end; `None` while it may run. Its sender must outlive the command.
pub(super) type StopBy = watch::Receiver<Option<KillTime>>;

/// A command whose process group is empty.
pub(super) struct Supervised {
    pub(super) code: u8,
    /// Whether the warden ended the command.
    pub(super) by_warden: bool,
    pub(super) loss: Option<Loss>,
    /// The last signal that asked this process to stop. It was passed on to the command.
    pub(super) stop_signal: Option<StopSignal>,
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
        let mut command = self.start(extras)?;
        let mut safe_until = self.held.safe_until();
        let (mut loss, mut stop_signal, mut has_term) = (None, None, false);
        self.set_deadlines(&mut command, safe_until, None);
        loop {
            tokio::select! {
                biased;
                reason = self.held.lost(), if loss.is_none() => {
                    if self.command_args.on_loss != OnLoss::Ignore {
                        command.kill();
                    }
                    loss = Some(reason);
                }
                Ended { code, by_warden, .. } = command.ended() => {
                    return Ok(Supervised { code, by_warden, loss, stop_signal });
                }
                signal = signals.next() => {
                    stop_signal = StopSignal::new(signal).or(stop_signal);
                    command.signal(signal);
                }
                Ok(()) = stop_by.changed() => {
                    // The deadline may come closer. Only the first one sends TERM.
                    if !has_term {
                        has_term = true;
                        // The command has survived a HUP: many take it for a request to read their configuration again.
                        stop_signal = stop_signal.filter(|signal| !signal.is_hangup());
                        command.signal(Signal::TERM);
                        command.signal(Signal::CONT);
                    }
                    let kill_by = *stop_by.borrow();
                    self.set_deadlines(&mut command, safe_until, kill_by);
                }
                later = self.held.renewed(safe_until), if loss.is_none() => {
                    safe_until = later;
                    let kill_by = *stop_by.borrow();
                    self.set_deadlines(&mut command, safe_until, kill_by);
                }
            }
        }
    }

    fn set_deadlines(&self, command: &mut WardedCommand, safe_until: BootInstant, kill_by: Option<KillTime>) {
        let ttl = self.command_args.ttl(self.settings);
        let Deadlines { term_at, kill_at } = Deadlines::new(self.command_args.on_loss, ttl, safe_until);
        command.set_deadlines(term_at, kill_at.map(|time| time.or_earlier(kill_by)).or(kill_by));
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

    fn start(&self, extras: Extras) -> Result<WardedCommand, Failure> {
        let token = self.held.token()?;
        let mut command = warden_of(&self.command_args.command);
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
        for (variable, value) in extras.variables {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        if let Some(stdout) = extras.stdout {
            command.stdout(stdout);
        }
        Ok(WardedCommand::start(command, io::stdin().as_fd(), self.held.lifeline())?)
    }
}

/// The moments at which the command is ended unless the lock is renewed before; `None` for never.
#[derive(Debug, PartialEq, Eq)]
struct Deadlines {
    term_at: Option<BootInstant>,
    kill_at: Option<KillTime>,
}

impl Deadlines {
    fn new(on_loss: OnLoss, ttl: Duration, safe_until: BootInstant) -> Deadlines {
        let kill_at = Some(KillTime::before_expiry(safe_until, ttl));
        match on_loss {
            OnLoss::Term => Deadlines { term_at: Some(earlier(safe_until, ttl / 3)), kill_at },
            OnLoss::Kill => Deadlines { term_at: None, kill_at },
            OnLoss::Ignore => Deadlines { term_at: None, kill_at: None },
        }
    }
}

pub(super) fn pass_on(code: u8) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Exit(code)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deadlines, in milliseconds before another session can get the lock.
    fn ms_before_loss(on_loss: OnLoss, ttl_ms: u64) -> (Option<u128>, Option<u128>) {
        let safe_until = BootInstant::after_boot(Duration::from_secs(1000));
        let ms_before = |at: BootInstant| (safe_until.since_boot() - at.since_boot()).as_millis();
        let Deadlines { term_at, kill_at } = Deadlines::new(on_loss, Duration::from_millis(ttl_ms), safe_until);
        (term_at.map(ms_before), kill_at.map(|time| ms_before(time.at)))
    }

    #[test]
    fn the_command_is_killed_before_another_client_can_get_the_lock() {
        assert_eq!(ms_before_loss(OnLoss::Kill, 2000), (None, Some(100)));
        assert_eq!(ms_before_loss(OnLoss::Term, 2000), (Some(666), Some(100)));
        assert_eq!(ms_before_loss(OnLoss::Term, 30_000), (Some(10_000), Some(1000)));
        assert_eq!(ms_before_loss(OnLoss::Kill, 300_000), (None, Some(1000)));
        assert_eq!(ms_before_loss(OnLoss::Ignore, 2000), (None, None));
    }
}
