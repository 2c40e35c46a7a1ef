//! The command while it runs: its warden is told until when the lock is held, and signals are passed on.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade::{BootInstant, Loss};
use rustix::process::Signal;

use super::warden::WARDEN;
use super::wire::{Order, Report, Wire, send_descriptor};
use super::{Keeping, OnLoss};
use crate::obtain::Held;
use crate::outcome::{Failure, say};
use crate::settings::Settings;
use crate::signals::{Signals, exit_code, stop_this_process};
use crate::text::plain;

/// A command to be run, and what is held for it.
pub(super) struct Job<'a> {
    pub(super) keeping: &'a Keeping,
    pub(super) names: &'a [String],
    pub(super) settings: &'a Settings,
    pub(super) held: Held,
}

/// How it came to an end.
struct End {
    code: u8,
    by_warden: bool,
    loss: Option<Loss>,
}

impl Job<'_> {
    pub(super) async fn run(self, signals: &mut Signals) -> Result<(), Failure> {
        let (warden, mut wire) = self.start_warden()?;
        let end = self.watch(&mut wire, signals).await;
        reap(warden);
        let released = self.held.release().await;
        let loss = end.loss.or_else(|| released.as_ref().err().and_then(|error| error.loss().cloned()));
        if let Some(loss) = loss {
            return self.lost(&loss, end.code, end.by_warden);
        }
        if end.by_warden {
            return Err(Failure::Lost(format!(
                "{} could not be kept alive, and the command was ended before another can have it",
                self.what()
            )));
        }
        if let Err(error) = released {
            say(&format!("the command has ended, but {error}; the lock ends with this process, or by its TTL"));
        }
        passed_on(end.code)
    }

    fn what(&self) -> String {
        format!("'{}'", plain(&self.names.join(", ")))
    }

    fn lost(&self, loss: &Loss, code: u8, by_warden: bool) -> Result<(), Failure> {
        if self.keeping.on_loss == OnLoss::Ignore {
            say(&format!("{} was lost while the command ran: {loss}", self.what()));
            return passed_on(code);
        }
        let then = if by_warden { "the command was ended" } else { "the command has ended since" };
        Err(Failure::Lost(format!("{} was lost: {loss}; {then}", self.what())))
    }

    fn start_warden(&self) -> Result<(Child, Wire), Failure> {
        let token = self.held.token()?;
        let (line, wardens) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(WARDEN).args(&self.keeping.command).stdin(Stdio::from(OwnedFd::from(wardens)));
        command.env("PALISADE_LOCK", self.names.join("\n"));
        command.env("PALISADE_SESSION", self.held.session().to_string());
        command.env("PALISADE_URL", &self.settings.url);
        match token {
            Some(token) => command.env("PALISADE_TOKEN", token.to_string()),
            None => command.env_remove("PALISADE_TOKEN"),
        };
        let warden = command.spawn()?;
        // Otherwise this process would hold the warden's end too, and never see it close.
        drop(command);
        send_descriptor(&line, io::stdin())?;
        Ok((warden, Wire::new(line)?))
    }

    async fn watch(&self, wire: &mut Wire, signals: &mut Signals) -> End {
        let mut seen = self.held.safe_until();
        let mut loss = None;
        wire.say(&self.until(seen)).await;
        loop {
            tokio::select! {
                biased;
                why = self.held.lost(), if loss.is_none() => {
                    if self.keeping.on_loss != OnLoss::Ignore {
                        wire.say(&Order::Lost).await;
                    }
                    loss = Some(why);
                }
                report = wire.hear() => match report {
                    Some(Report::Ended { code, by_warden }) => return End { code, by_warden, loss },
                    // What is stopped from its terminal stops as a whole, as the shell expects.
                    Some(Report::Stopped) => stop_this_process(),
                    // The warden was killed, and the command with it.
                    None => return End { code: exit_code(Signal::KILL.as_raw()), by_warden: false, loss },
                },
                signal = signals.next() => wire.say(&Order::Signal(signal.as_raw())).await,
                at = self.held.renewed(seen), if loss.is_none() => {
                    seen = at;
                    wire.say(&self.until(seen)).await;
                }
            }
        }
    }

    /// The moments at which the command is ended unless the lock is renewed before.
    fn until(&self, safe_until: BootInstant) -> Order {
        let ttl = self.keeping.ttl(self.settings);
        let before = |time: Duration| {
            let at = safe_until.since_boot().saturating_sub(time);
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
        };
        // Time to be scheduled and to die in.
        let kill_at_ns = before((ttl / 20).min(Duration::from_secs(1)));
        match self.keeping.on_loss {
            OnLoss::Term => Order::Until { term_at_ns: Some(before(ttl / 3)), kill_at_ns },
            OnLoss::Kill => Order::Until { term_at_ns: None, kill_at_ns },
            OnLoss::Ignore => Order::Until { term_at_ns: None, kill_at_ns: u64::MAX },
        }
    }
}

fn passed_on(code: u8) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Exit(code)) }
}

fn reap(mut warden: Child) {
    // It has said its last word.
    drop(warden.wait());
}
