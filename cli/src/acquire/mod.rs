//! Acquiring locks: the options, the wait and the guard that every holding command shares.

mod guard;
mod queue_status;

use std::time::{Duration, Instant};

use palisade::recipe::Partitions;
use palisade::{Error, ErrorKind, Guard, LockName, Palisade, Request};
use tokio::time::timeout;

pub(crate) use guard::AnyGuard;
use queue_status::QueueStatus;

use crate::outcome::{Failure, message_of};
use crate::signals::Signals;
use crate::text::{parse_time, plain, time, time_ms};
use crate::view::format;

/// Shown as the holder during the lock-delay: the session has expired, and the lock is not granted again yet.
pub(crate) const WITHHELD: &str = "an expired session (withheld until its lock-delay ends)";

/// How long the message about a lock that was not acquired waits for the name of its holder.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The locks to acquire, and how long to wait for them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AcquireArgs {
    /// The lock; several are taken all at once, or none of them
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) wait_args: WaitArgs,

    /// Share the lock with other holders that use --shared
    #[arg(long, conflicts_with = "permits")]
    shared: bool,

    /// Take N of the M permits of a semaphore; every user of it must name the same M
    #[arg(long, value_name = "N/M", value_parser = Permits::parse)]
    permits: Option<Permits>,

    /// The lock only saves work: two holders at once would do no damage
    ///
    /// There is no token then, and engines that cannot fence are allowed.
    #[arg(long)]
    pub(crate) efficiency: bool,

    #[command(flatten)]
    pub(crate) failover: FailoverArgs,
}

/// Whether an engine whose failover can lose a grant is accepted.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct FailoverArgs {
    /// Accept that a failover may take the lock and its token back, as with redis:
    ///
    /// Two clients may then hold it, with tokens that do not show which one is newer. Refused without this option.
    #[arg(long)]
    pub(crate) dangerous_accept_failover: bool,
}

impl FailoverArgs {
    pub(crate) fn apply_to_partitions(self, partitions: Partitions) -> Partitions {
        if self.dangerous_accept_failover { partitions.dangerous_accept_failover() } else { partitions }
    }

    pub(crate) fn apply<G: From<Guard>>(self, request: Request<G>) -> Request<G> {
        if self.dangerous_accept_failover { request.dangerous_accept_failover() } else { request }
    }
}

/// How long to wait.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long [default: until the lock is granted]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// `count` of the `of` permits that a semaphore has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Permits {
    count: u32,
    of: u32,
}

impl Permits {
    fn parse(text: &str) -> Result<Permits, String> {
        let parts = text.split_once('/').and_then(|(count, of)| Some((count.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((count, of)) if count > of => {
                Err(format!("N must not exceed M: {count} permits are more than the {of} that there are"))
            }
            Some((count, of)) if count > 0 => Ok(Permits { count, of }),
            _ => Err(format!("'{}' is not PERMITS/LIMIT; expected, for example, 1/4", text.escape_debug())),
        }
    }
}

impl WaitArgs {
    /// Acquires, and waits for as long as these options say.
    pub(crate) async fn acquire<G: From<Guard>>(self, request: Request<G>) -> Result<Option<G>, Error> {
        if self.no_wait {
            return request.try_acquire().await;
        }
        let began_at = Instant::now();
        loop {
            let request = request.clone();
            let result = match self.wait.map(|wait| wait.saturating_sub(began_at.elapsed())) {
                Some(Duration::ZERO) if self.wait != Some(Duration::ZERO) => return Ok(None),
                Some(left) => request.acquire_within(left).await,
                None => request.acquire().await.map(Some),
            };
            match result {
                // The session expired while it waited: the process was paused, or the engine was away. Only the place in the
                // queue is lost: queue again.
                Err(error) if error.loss().is_some() && error.is_retryable() => {}
                result => return result,
            }
        }
    }
}

impl AcquireArgs {
    /// Returns the lock names, for messages.
    pub(crate) fn names(&self) -> String {
        self.names.join(", ")
    }

    async fn request(&self, palisade: &Palisade) -> Result<Option<AnyGuard>, Error> {
        match (&self.names[..], self.permits) {
            ([name], Some(Permits { count, of })) => {
                self.send(palisade.semaphore(name, of).many(count), AnyGuard::Permits).await
            }
            ([name], None) if self.shared => self.send(palisade.rw_lock(name).read(), AnyGuard::Shared).await,
            (names, _) => self.send(palisade.lock_all(names), AnyGuard::Lock).await,
        }
    }

    /// Sends a request for efficiency or for correctness. `fenced` makes the guard of the latter.
    async fn send<G: From<Guard>>(
        &self,
        request: Request<G>,
        fenced: fn(G) -> AnyGuard,
    ) -> Result<Option<AnyGuard>, Error> {
        let AcquireArgs { wait_args, failover, .. } = self;
        Ok(match self.efficiency {
            true => wait_args.acquire(request.efficiency()).await?.map(AnyGuard::Efficient),
            false => wait_args.acquire(failover.apply(request)).await?.map(fenced),
        })
    }

    /// Checks the options before connecting. `signed`: the caller also asks for a signed token.
    pub(crate) fn check(&self, signed: bool) -> Result<(), Failure> {
        if self.efficiency && signed {
            let message =
                "--signed cannot be combined with --efficiency: such a lock has no token that could be signed";
            return Err(Failure::Misuse(message.to_owned()));
        }
        if self.names.len() > 1 && (self.shared || self.permits.is_some()) {
            let option = if self.shared { "--shared" } else { "--permits" };
            return Err(Failure::Misuse(format!(
                "{option} takes one lock only; several are always taken exclusively"
            )));
        }
        for name in &self.names {
            if let Err(bad) = LockName::new(name) {
                return Err(Failure::Misuse(format!("'{}' cannot be a lock's name: {bad}", plain(name))));
            }
        }
        Ok(())
    }

    /// Acquires the locks. Shows the queue on a terminal meanwhile, and leaves it when a signal arrives.
    pub(crate) async fn acquire(
        &self,
        palisade: &Palisade,
        signals: &mut Signals,
        verbosity: Verbosity<'_>,
    ) -> Result<AnyGuard, Failure> {
        match wait_for_grant(palisade, &self.names, verbosity, signals, self.request(palisade)).await? {
            Some(held) => Ok(held),
            None => Err(Failure::NotAcquired(self.wait_args.not_acquired(palisade, &self.names).await)),
        }
    }
}

impl WaitArgs {
    /// Returns the message for locks that were not acquired, with their holders.
    pub(crate) async fn not_acquired(self, palisade: &Palisade, names: &[String]) -> String {
        let waited = match self.wait {
            Some(wait) => format!(" within {}", time(wait)),
            None => String::new(),
        };
        let mut message = format!("'{}' was not acquired{waited}", plain(&names.join(", ")));
        for name in names {
            let lock = match timeout(INSPECT_TIMEOUT, palisade.inspect(name)).await {
                Ok(Ok(Some(lock))) => lock,
                // The lock may be free: it was not acquired because the engine does not answer.
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Outage { .. }) => {
                    return format!("{message}\n  {}", message_of(&error));
                }
                Err(_) => return format!("{message}\n  the engine does not answer"),
                // The holder is optional in the message.
                Ok(_) => continue,
            };
            if let Some(holder) = lock.holders.first() {
                let label = holder.label.as_deref().map_or(WITHHELD.to_owned(), plain);
                let since = holder.held_for_ms.map(|ms| format!(" for {}", time_ms(ms))).unwrap_or_default();
                message.push_str(&format!("\n  '{}' is held by {label}{since}", plain(name)));
                if format::has_tokens(palisade) {
                    message.push_str(&format!(", token {}", holder.token));
                }
            }
        }
        message
    }
}

/// How much a wait reports, and what it needs to find its session in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verbosity<'a> {
    /// How often `-v` was given.
    pub(crate) level: u8,
    /// The label of the session that waits.
    pub(crate) label: &'a str,
    /// The engine's URL, to check for missing Redis replicas.
    pub(crate) url: &'a str,
}

/// Waits for a grant, or for a signal that ends the wait.
pub(crate) async fn wait_for_grant<T>(
    palisade: &Palisade,
    names: &[String],
    verbosity: Verbosity<'_>,
    signals: &mut Signals,
    request: impl Future<Output = Result<Option<T>, Error>>,
) -> Result<Option<T>, Failure> {
    let status = QueueStatus::new(palisade, names, verbosity);
    tokio::select! {
        biased;
        // Dropping the acquire leaves the queue.
        signal = signals.stop_requested() => Err(Failure::Exit(signal.exit_code())),
        granted = request => Ok(granted?),
        never = status.show() => match never {},
    }
}
