//! One of the two that share the lock: a process of its own, which does what it is told, one thing after the other.

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use palisade::{EfficiencyGuard, LockGuard, Palisade, Standing};

use super::wire::{Order, Part, Said};
use crate::outcome::Failure;
use crate::prove::child;
use crate::prove::scheme::Scheme;
use crate::prove::store::{self, Access, Store, Trouble};

/// A player's role.
const PLAYER: &str = "_player";

/// A process that will be a player.
pub(super) fn command() -> Command {
    let mut command = child::again(PLAYER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Plays, if that is what this process is for.
pub(super) fn serve(args: &[OsString]) -> Option<ExitCode> {
    if let Err(code) = child::begun_as(PLAYER, args)? {
        return Some(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let played = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(play()));
    Some(match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Who started it tells it to the user.
            let _ = say(&Said::Failed(failure.message().unwrap_or_default()));
            ExitCode::from(failure.exit_code())
        }
    })
}

/// What holds the lock.
enum Guard {
    Fenced(LockGuard),
    Efficient(EfficiencyGuard),
}

struct Player<'s> {
    part: Part,
    palisade: Palisade,
    store: &'s dyn Store,
    guard: Option<Guard>,
    access: Option<Access<'s>>,
    number: u64,
}

async fn play() -> Result<(), Failure> {
    let mut lines = io::BufReader::new(io::stdin()).lines();
    let Some(first) = lines.next() else { return Ok(()) };
    let part: Part = serde_json::from_str(&first?).map_err(io::Error::from)?;
    let store = store::open(&part.resource, &part.name).await?;
    let palisade = crate::prove::connect(&part.engine, Duration::from_millis(part.ttl_ms)).await?;
    let mut player = Player { part, palisade, store: &*store, guard: None, access: None, number: 0 };
    say(&Said::Ready)?;
    // The session has a thread of its own: nothing is missed while this one waits for its next line.
    for line in lines {
        let order = serde_json::from_str(&line?).map_err(io::Error::from)?;
        say(&player.carry_out(order).await)?;
    }
    Ok(())
}

impl Player<'_> {
    async fn carry_out(&mut self, order: Order) -> Said {
        match order {
            Order::Acquire { within_ms } => match self.acquire(Duration::from_millis(within_ms)).await {
                Ok(said) => said,
                Err(failure) => Said::Failed(failure.message().unwrap_or_default()),
            },
            Order::Read => match &self.access {
                Some(access) => match access.read().await {
                    Ok(number) => {
                        self.number = number;
                        Said::Read(number)
                    }
                    Err(trouble) => told(trouble),
                },
                None => Said::Failed("it has no lock".to_owned()),
            },
            Order::Look => self.look(),
            Order::Write => match &mut self.access {
                Some(access) => match access.write(self.number + 1).await {
                    Ok(()) => Said::Wrote(self.number + 1),
                    Err(trouble) => told(trouble),
                },
                None => Said::Failed("it has no lock".to_owned()),
            },
            Order::Release => self.release().await,
        }
    }

    async fn acquire(&mut self, within: Duration) -> Result<Said, Failure> {
        let lock = self.palisade.lock(&self.part.lock);
        let token = match self.part.scheme {
            Scheme::None => {
                let Some(guard) = lock.efficiency().acquire_within(within).await? else {
                    return Ok(Said::NotGranted);
                };
                self.guard = Some(Guard::Efficient(guard));
                self.access = Some(Access::Plain(self.store));
                None
            }
            scheme => {
                let Some(guard) = lock.acquire_within(within).await? else { return Ok(Said::NotGranted) };
                let token = guard.token()?;
                self.access = Some(Access::begin(self.store, scheme, token).await?);
                self.guard = Some(Guard::Fenced(guard));
                Some(token.get())
            }
        };
        Ok(Said::Granted { token })
    }

    fn look(&self) -> Said {
        let standing = match &self.guard {
            Some(Guard::Fenced(guard)) => guard.standing(),
            Some(Guard::Efficient(guard)) => guard.standing(),
            None => return Said::Lost("it has none".to_owned()),
        };
        match standing {
            Standing::Held => Said::Holds { is_in_jeopardy: false },
            Standing::Jeopardy { .. } => Said::Holds { is_in_jeopardy: true },
            Standing::Lost(loss) => Said::Lost(loss.to_string()),
        }
    }

    async fn release(&mut self) -> Said {
        let released = match self.guard.take() {
            Some(Guard::Fenced(guard)) => guard.release().await,
            Some(Guard::Efficient(guard)) => guard.release().await,
            None => Ok(()),
        };
        match released {
            Ok(()) => Said::Released,
            Err(error) => match error.loss() {
                Some(loss) => Said::Lost(loss.to_string()),
                None => Said::Failed(error.to_string()),
            },
        }
    }
}

fn told(trouble: Trouble) -> Said {
    match trouble {
        Trouble::Refused(what) => Said::Refused(what),
        trouble => Said::Failed(trouble.to_string()),
    }
}

fn say(said: &Said) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?)?;
    out.flush()
}
