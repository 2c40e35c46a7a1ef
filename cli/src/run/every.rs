//! At most one run in a period, over all hosts.
//!
//! A period is a second lock, held by a session whose TTL is the period. Its client leaves that session when the run
//! begins. The engine counts the time, so no host's clock matters. A run that finds this lock held comes too early.

use std::time::Duration;

use palisade::{EfficiencyGuard, Options, Palisade};

use crate::acquire::AcquireArgs;
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::signals::Signals;

/// Suffix of the lock name of a period.
const SUFFIX: &str = ".every";

/// A period that has begun with this run.
pub(super) struct Period {
    palisade: Palisade,
    guard: EfficiencyGuard,
}

/// Begins a period, unless one is under way.
pub(super) async fn begin(
    args: &AcquireArgs,
    every: Duration,
    settings: &Settings,
    label: &str,
    signals: &mut Signals,
) -> Result<Option<Period>, Failure> {
    let name = format!("{}{SUFFIX}", args.names[0]);
    let wait_args = wait_args(args, every);
    let begin = async {
        let palisade = Options::new().ttl(every).label(label).connect(&settings.url).await?;
        let guard = ask(&palisade, &name, wait_args).await?;
        Ok(guard.map(|guard| Period { palisade, guard }))
    };
    tokio::select! {
        period = begin => period,
        signal = signals.stop_requested() => Err(Failure::Exit(signal.exit_code())),
    }
}

async fn ask(palisade: &Palisade, name: &str, wait_args: Duration) -> Result<Option<EfficiencyGuard>, Failure> {
    // The period needs no token. The lock of the run itself decides which engines are allowed.
    let lock = palisade.lock(name).efficiency();
    if let Some(guard) = lock.clone().try_acquire().await? {
        return Ok(Some(guard));
    }
    let seen = palisade.inspect(name).await?;
    let left = seen.and_then(|lock| lock.holders.first()?.time_left_ms).map(Duration::from_millis);
    match left {
        Some(left) if left <= wait_args => Ok(lock.acquire_within(wait_args).await?),
        _ => Ok(None),
    }
}

/// How early a run may come and wait: cron is a little off, and the next chance is a whole period away.
fn wait_args(args: &AcquireArgs, every: Duration) -> Duration {
    match (args.wait_args.wait, args.wait_args.no_wait) {
        (_, true) => Duration::ZERO,
        (Some(wait), false) => wait,
        (None, false) => (every / 10).min(Duration::from_secs(60)),
    }
}

impl Period {
    /// Leaves the session, so that no other run begins until the period is over, even if this process dies.
    pub(super) async fn keep(self) -> Result<(), Failure> {
        self.palisade.detach().await?;
        Ok(())
    }

    /// Releases the period after a run that did not begin, so that another host may run.
    pub(super) async fn release(self) {
        // If the engine does not answer, the period ends with this process or by its TTL.
        drop(self.guard.release().await);
    }
}
