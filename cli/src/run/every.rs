//! `palisade run --every`: at most one run in a period, over all hosts.
//!
//! A period is a second lock, held by a session whose TTL is the period. When the run begins, the client detaches from that
//! session, which then ends by its TTL. The engine counts the time, so no host's clock matters. A run that finds this
//! lock held comes too early.

use std::time::Duration;

use palisade::{EfficiencyGuard, Options, Palisade, Standing};

use crate::acquire::AcquireArgs;
use crate::outcome::{Failure, period_failure};
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
    let max_wait = max_wait(args, every);
    let begin = async {
        let palisade = Options::new().ttl(every).label(label).connect(&settings.url).await.map_err(period_failure)?;
        let guard = acquire(&palisade, &name, max_wait).await?;
        Ok(guard.map(|guard| Period { palisade, guard }))
    };
    tokio::select! {
        period = begin => period,
        signal = signals.stop_requested() => Err(Failure::Exit(signal.exit_code())),
    }
}

async fn acquire(palisade: &Palisade, name: &str, max_wait: Duration) -> Result<Option<EfficiencyGuard>, Failure> {
    // The period needs no token. The lock of the run itself decides which engines are allowed.
    let lock = palisade.lock(name).efficiency();
    if let Some(guard) = lock.clone().try_acquire().await? {
        return Ok(Some(guard));
    }
    let info = palisade.inspect(name).await?;
    let left = info.and_then(|lock| lock.holders.first()?.time_left_ms).map(Duration::from_millis);
    match left {
        Some(left) if left <= max_wait => Ok(lock.acquire_within(max_wait).await?),
        _ => Ok(None),
    }
}

/// Returns how long a run that comes too early waits. Cron is not exact, and the next try is a whole period away.
fn max_wait(args: &AcquireArgs, every: Duration) -> Duration {
    match (args.wait_args.wait, args.wait_args.no_wait) {
        (_, true) => Duration::ZERO,
        (Some(wait), false) => wait,
        (None, false) => (every / 10).min(Duration::from_secs(60)),
    }
}

impl Period {
    /// Detaches from the session, so that no other run begins until the period is over, even if this process dies. Returns whether the
    /// period is still this run's: its session may have expired while the run waited for its lock, and the client has a new one then.
    pub(super) async fn keep(self) -> Result<bool, Failure> {
        let Period { palisade, guard } = self;
        if matches!(guard.standing(), Standing::Lost(_)) {
            return Ok(false);
        }
        Ok(palisade.detach().await? == guard.session())
    }

    /// Releases the period after a run that did not begin, so that another host may run.
    pub(super) async fn release(self) {
        // If the engine does not answer, the period ends with this process or by its TTL.
        drop(self.guard.release().await);
    }
}
