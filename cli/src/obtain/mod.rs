//! What is wanted, and how it is obtained: for every command that holds something.

mod held;
mod waiting;

use std::time::Duration;

use palisade::{Error, Guard, LockName, Palisade, Request};

pub(crate) use held::Held;
use waiting::Waiting;

use crate::look::words;
use crate::outcome::Failure;
use crate::signals::Signals;
use crate::text::{parse_time, plain, time, time_ms};

/// What is wanted, and for how long it is waited for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Wanted {
    /// The lock; several are taken all at once, or none of them
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) patience: Patience,

    /// Share the lock with others who share it
    #[arg(long, conflicts_with_all = ["permits", "efficiency"])]
    shared: bool,

    /// Take N of the M permits of a semaphore; all who use it must say the same M
    #[arg(long, value_name = "N/M", value_parser = Permits::parse, conflicts_with = "efficiency")]
    permits: Option<Permits>,

    /// The lock only saves work: two holders at once would do no damage
    ///
    /// There is no token then, and engines that cannot fence are allowed.
    #[arg(long)]
    pub(crate) efficiency: bool,

    #[command(flatten)]
    pub(crate) failover: Failover,
}

/// What is accepted of an engine.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Failover {
    /// Accept that a failover may take the lock and its token back, as with redis:
    ///
    /// Two may then hold it under tokens that do not tell who is newer. Refused without this option.
    #[arg(long)]
    dangerous_accept_failover: bool,
}

impl Failover {
    pub(crate) fn accepted<G: From<Guard>>(self, request: Request<G>) -> Request<G> {
        if self.dangerous_accept_failover { request.dangerous_accept_failover() } else { request }
    }
}

/// For how long something is waited for.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Patience {
    /// Wait for so long at most [default: until it is there]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// So many of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Permits {
    count: u32,
    of: u32,
}

impl Permits {
    fn parse(text: &str) -> Result<Permits, String> {
        let parts = text.split_once('/').and_then(|(count, of)| Some((count.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((count, of)) if count > 0 && count <= of => Ok(Permits { count, of }),
            _ => Err(format!("'{}' is not so many of so many permits, like 1/4", text.escape_debug())),
        }
    }
}

impl Patience {
    /// Asks for something with this patience.
    pub(crate) async fn ask<G: From<Guard>>(self, request: Request<G>) -> Result<Option<G>, Error> {
        match self {
            Patience { no_wait: true, .. } => request.try_acquire().await,
            Patience { wait: Some(wait), .. } => request.acquire_within(wait).await,
            Patience { wait: None, .. } => loop {
                match request.clone().acquire().await {
                    // A host that slept while it waited has lost its place, and nothing else.
                    Err(error) if error.loss().is_some() && error.is_retryable() => {}
                    answer => return answer.map(Some),
                }
            },
        }
    }
}

impl Wanted {
    /// Its names, for messages.
    pub(crate) fn names(&self) -> String {
        self.names.join(", ")
    }

    async fn ask(&self, palisade: &Palisade) -> Result<Option<Held>, Error> {
        let Wanted { names, patience, shared, permits, efficiency, failover } = self;
        Ok(match (&names[..], permits) {
            ([name], Some(Permits { count, of })) => {
                patience.ask(failover.accepted(palisade.semaphore(name, *of).many(*count))).await?.map(Held::Permits)
            }
            ([name], None) if *shared => {
                patience.ask(failover.accepted(palisade.rw_lock(name).read())).await?.map(Held::Shared)
            }
            (names, _) if *efficiency => {
                patience.ask(palisade.lock_all(names).efficiency()).await?.map(Held::Efficient)
            }
            (names, _) => patience.ask(failover.accepted(palisade.lock_all(names))).await?.map(Held::Lock),
        })
    }

    /// Refuses what makes no sense before anything is connected. `signed`: the token is wanted signed.
    pub(crate) fn check(&self, signed: bool) -> Result<(), Failure> {
        if self.efficiency && signed {
            let what = "--signed does not go with --efficiency: such a lock has no token that could be signed";
            return Err(Failure::Misuse(what.to_owned()));
        }
        if self.names.len() > 1 && (self.shared || self.permits.is_some()) {
            let what = if self.shared { "--shared" } else { "--permits" };
            return Err(Failure::Misuse(format!(
                "{what} goes with one lock only; several are always taken exclusively"
            )));
        }
        for name in &self.names {
            if let Err(bad) = LockName::new(name) {
                return Err(Failure::Misuse(format!("'{}' cannot be a lock's name: {bad}", plain(name))));
            }
        }
        Ok(())
    }

    /// Obtains it: says on a terminal how it stands meanwhile, and gives up its place when a signal comes.
    pub(crate) async fn obtain(
        &self,
        palisade: &Palisade,
        signals: &mut Signals,
        voice: Voice<'_>,
    ) -> Result<Held, Failure> {
        match obtain(palisade, &self.names, voice, signals, self.ask(palisade)).await? {
            Some(held) => Ok(held),
            None => Err(Failure::NotObtained(self.patience.in_vain(palisade, &self.names).await)),
        }
    }
}

impl Patience {
    /// What to say when it was not obtained.
    pub(crate) async fn in_vain(self, palisade: &Palisade, names: &[String]) -> String {
        let waited = match self.wait {
            Some(wait) => format!(" within {}", time(wait)),
            None => String::new(),
        };
        let mut message = format!("'{}' was not obtained{waited}", plain(&names.join(", ")));
        for name in names {
            // It is only to help: without an answer, the message says less.
            let Ok(Some(lock)) = palisade.inspect(name).await else { continue };
            if let Some(holder) = lock.holders.first() {
                let label = holder.label.as_deref().map_or("nobody (it is withheld for a delay)".to_owned(), plain);
                let since = holder.held_for_ms.map(|ms| format!(" for {}", time_ms(ms))).unwrap_or_default();
                message.push_str(&format!("\n  '{}' is held by {label}{since}", plain(name)));
                if words::has_tokens(palisade) {
                    message.push_str(&format!(", token {}", holder.token));
                }
            }
        }
        message
    }
}

/// How much to say, and as whom one waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Voice<'a> {
    /// How often `-v` was given.
    pub(crate) verbose: u8,
    /// The label of the session that waits.
    pub(crate) label: &'a str,
    /// The engine's URL.
    pub(crate) url: &'a str,
}

/// Waits for something to be granted, or for a signal that says not to.
pub(crate) async fn obtain<T>(
    palisade: &Palisade,
    names: &[String],
    voice: Voice<'_>,
    signals: &mut Signals,
    ask: impl Future<Output = Result<Option<T>, Error>>,
) -> Result<Option<T>, Failure> {
    let waiting = Waiting::new(palisade, names, voice);
    tokio::select! {
        biased;
        // Dropping what asks gives up its place.
        signal = signals.end() => Err(Failure::Exit(signal.exit_code())),
        answer = ask => Ok(answer?),
        never = waiting.show() => match never {},
    }
}
