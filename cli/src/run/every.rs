//! At most one run in a period, over all hosts.
//!
//! A period is a lock of its own, held by a session whose TTL is the period and which its client leaves to itself when
//! the run begins. The engine counts the time, so no host's clock matters; whoever finds the lock held comes too soon.

use std::time::Duration;

use palisade::{EfficiencyGuard, Options, Palisade};

use crate::obtain::Wanted;
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::signals::Signals;

/// What is added to a lock's name for the lock of its period.
const SUFFIX: &str = ".every";

/// A period that has begun with this run.
pub(super) struct Period {
    palisade: Palisade,
    guard: EfficiencyGuard,
}

/// Begins a period, unless one is under way.
pub(super) async fn begin(
    wanted: &Wanted,
    every: Duration,
    settings: &Settings,
    label: &str,
    signals: &mut Signals,
) -> Result<Option<Period>, Failure> {
    let name = format!("{}{SUFFIX}", wanted.names[0]);
    let patience = patience(wanted, every);
    let begin = async {
        let palisade = Options::new().ttl(every).label(label).connect(&settings.url).await?;
        let guard = ask(&palisade, &name, patience).await?;
        Ok(guard.map(|guard| Period { palisade, guard }))
    };
    tokio::select! {
        period = begin => period,
        signal = signals.end() => Err(Failure::Exit(signal.exit_code())),
    }
}

async fn ask(palisade: &Palisade, name: &str, patience: Duration) -> Result<Option<EfficiencyGuard>, Failure> {
    // Nobody needs its token; what the engine must be, the lock of the run itself decides.
    let lock = palisade.lock(name).efficiency();
    if let Some(guard) = lock.clone().try_acquire().await? {
        return Ok(Some(guard));
    }
    let seen = palisade.inspect(name).await?;
    let left = seen.and_then(|lock| lock.holders.first()?.time_left_ms).map(Duration::from_millis);
    match left {
        Some(left) if left <= patience => Ok(lock.acquire_within(patience).await?),
        _ => Ok(None),
    }
}

/// How much too soon is soon enough: clocks and schedulers are a little off, and the next chance is a period away.
fn patience(wanted: &Wanted, every: Duration) -> Duration {
    match (wanted.patience.wait, wanted.patience.no_wait) {
        (_, true) => Duration::ZERO,
        (Some(wait), false) => wait,
        (None, false) => (every / 10).min(Duration::from_secs(60)),
    }
}

impl Period {
    /// The run begins: nobody else runs until the period is over, whatever becomes of this process.
    pub(super) async fn keep(self) -> Result<(), Failure> {
        self.palisade.leave().await?;
        Ok(())
    }

    /// There is no run: somebody else may try.
    pub(super) async fn give_back(self) {
        // If the engine does not answer, the end of this process gives it back, or the end of the period.
        drop(self.guard.release().await);
    }
}
