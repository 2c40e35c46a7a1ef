//! One run with one kind of fencing: writers increment a number, some are paused, and the final number is compared with
//! the acknowledged updates.

use std::time::Duration;

use tokio::time::Instant;

use super::fencing::Fencing;
use super::progress::Progress;
use super::store::{self, Store};
use super::workload::{Counts, Settings, Workload};
use crate::outcome::Failure;
use crate::signals::Signals;

/// The longest time between two updates of the progress line.
const TICK: Duration = Duration::from_millis(200);

/// The settings that all runs share.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) until: Until,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// After this time.
    Passed(Duration),
    /// After this many pauses in which the paused writer was overtaken.
    Overtaken(u64),
}

/// Runs the writers with one kind of fencing. Removes its test data afterwards, also when a signal ends the run.
pub(super) async fn run(
    plan: &Plan,
    fencing: Fencing,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Counts, Failure> {
    let name = super::unused_name();
    let store = store::open(&plan.settings.resource, &name).await?;
    store.create_data(fencing).await?;
    let result = tokio::select! {
        biased;
        end = signals.stop_requested() => Err(Failure::Exit(end.exit_code())),
        result = measure(plan, fencing, &name, &*store, progress) => result,
    };
    let removed = store.remove().await;
    let counts = result?;
    removed?;
    Ok(counts)
}

async fn measure(
    plan: &Plan,
    fencing: Fencing,
    name: &str,
    store: &dyn Store,
    progress: &mut Progress,
) -> Result<Counts, Failure> {
    let mut workload = Workload::start(&plan.settings, fencing, name)?;
    let began = Instant::now();
    while !plan.until.is_reached(began, &workload.counts) {
        progress.show(fencing, plan.until, began.elapsed(), &workload.counts);
        // The time may be over, or the progress line due, before the writers do anything.
        if let Ok(step) = tokio::time::timeout(TICK, workload.step()).await {
            step?;
        }
    }
    workload.request_end()?;
    workload.finish().await?;
    workload.count_lost(store).await
}

impl Until {
    fn is_reached(self, began: Instant, counts: &Counts) -> bool {
        match self {
            Until::Passed(time) => began.elapsed() >= time,
            Until::Overtaken(times) => counts.overtaken >= times,
        }
    }
}
