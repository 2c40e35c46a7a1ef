//! One run with one kind of fencing: writers increment a number, some are paused, and the final number is compared with
//! the acknowledged updates.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::fencing::Fencing;
use super::pauser::Pauser;
use super::progress::Progress;
use super::store::{self, Access, Store};
use super::wire::{WriterConfig, WriterEvent};
use super::writers::Writers;
use crate::outcome::Failure;
use crate::signals::Signals;
use crate::stores::redact_secret;

/// How long to wait for the next message of any writer after their end was requested. Longer than any update takes.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest time between two updates of the progress line.
const TICK: Duration = Duration::from_millis(200);

/// The settings that all runs share.
pub(super) struct Plan {
    pub(super) engine: String,
    pub(super) resource: String,
    pub(super) writers: usize,
    pub(super) ttl: Duration,
    pub(super) until: Until,
    pub(super) seed: u64,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// After this time.
    Passed(Duration),
    /// After this many pauses in which the paused writer was overtaken.
    Overtaken(u64),
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Updates that the resource acknowledged.
    pub(super) acknowledged: u64,
    /// Updates that the fence refused.
    pub(super) refused: u64,
    /// Acknowledged updates that are gone. An update of unknown outcome that took effect hides one of them.
    pub(super) lost: u64,
    /// Acknowledged updates that wrote the same number as another one.
    pub(super) repeated: u64,
    /// How often a writer was paused.
    pub(super) pauses: u64,
    /// Pauses in which another writer read the same number before the paused one had written.
    pub(super) overtaken: u64,
    /// Updates whose outcome is unknown.
    // Programs rely on the names in JSON.
    #[serde(rename = "unsure")]
    pub(super) unknown: u64,
    /// Attempts that failed, and certainly changed nothing.
    pub(super) failed: u64,
    /// The final number.
    pub(super) number: u64,
    /// The message of the last attempt that failed or whose outcome is unknown.
    #[serde(rename = "trouble")]
    pub(super) last_error: Option<String>,
}

struct Measurement<'a> {
    plan: &'a Plan,
    writers: Writers,
    pauser: Pauser,
    paused: Vec<Paused>,
    /// The number that each writer has read and not written yet.
    pending_read: Vec<Option<u64>>,
    written: BTreeSet<u64>,
    counts: Counts,
}

/// A paused writer.
struct Paused {
    writer: usize,
    until: Instant,
    /// The number that it has read, if it was paused between reading and writing.
    read: Option<u64>,
    is_overtaken: bool,
}

/// Runs the writers with one kind of fencing. Removes its test data afterwards, also when a signal ends the run.
pub(super) async fn run(
    plan: &Plan,
    fencing: Fencing,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Counts, Failure> {
    let name = super::unused_name();
    let store = store::open(&plan.resource, &name).await?;
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
    let lock = super::lock_name(name);
    let config = |writer: usize| WriterConfig {
        engine: plan.engine.clone(),
        lock: lock.clone(),
        ttl_ms: u64::try_from(plan.ttl.as_millis()).unwrap_or(u64::MAX),
        resource: plan.resource.clone(),
        name: name.to_owned(),
        fencing,
        seed: plan.seed.wrapping_add(writer as u64 + 1),
    };
    let measurement = Measurement {
        plan,
        writers: Writers::start((0..plan.writers).map(config))?,
        pauser: Pauser::new(plan.seed, plan.ttl),
        paused: Vec::new(),
        pending_read: vec![None; plan.writers],
        written: BTreeSet::new(),
        counts: Counts::default(),
    };
    let (counts, written) = measurement.run(fencing, progress).await?;
    count_lost(plan, fencing, &lock, store, counts, &written).await
}

/// Reads the number as the next holder would, and counts the lost and repeated updates.
async fn count_lost(
    plan: &Plan,
    fencing: Fencing,
    lock: &str,
    store: &dyn Store,
    mut counts: Counts,
    written: &BTreeSet<u64>,
) -> Result<Counts, Failure> {
    let palisade = super::connect(&plan.engine, plan.ttl).await?;
    let guard = palisade.lock(lock).acquire().await?;
    let access = Access::begin(store, fencing, guard.token()?).await?;
    counts.number = access.read().await?;
    guard.release().await?;
    counts.lost = counts.acknowledged.saturating_sub(counts.number);
    counts.repeated = counts.acknowledged - written.len() as u64;
    Ok(counts)
}

impl Measurement<'_> {
    async fn run(mut self, fencing: Fencing, progress: &mut Progress) -> Result<(Counts, BTreeSet<u64>), Failure> {
        let began = Instant::now();
        while !self.is_enough(began) {
            progress.show(fencing, self.plan.until, began.elapsed(), &self.counts);
            let next_timer = self.next_timer();
            tokio::select! {
                message = self.writers.receive() => match message {
                    Some((writer, Some(event))) => self.note(writer, event, true)?,
                    Some((writer, None)) => return Err(self.unexpected_exit(writer)),
                    None => return Err(Failure::Unavailable("all writers have ended".to_owned())),
                },
                () = tokio::time::sleep_until(next_timer) => self.resume_due()?,
            }
        }
        self.writers.request_end()?;
        let mut running = self.writers.len();
        while running > 0 {
            let message = tokio::time::timeout(END_TIMEOUT, self.writers.receive()).await;
            let too_late = |_| Failure::Unavailable(format!("a writer did not end within {END_TIMEOUT:?}"));
            match message.map_err(too_late)? {
                Some((writer, Some(event))) => self.note(writer, event, false)?,
                Some(_) | None => running -= 1,
            }
        }
        Ok((self.counts, self.written))
    }

    fn is_enough(&self, began: Instant) -> bool {
        match self.plan.until {
            Until::Passed(time) => began.elapsed() >= time,
            Until::Overtaken(times) => self.counts.overtaken >= times,
        }
    }

    fn next_timer(&self) -> Instant {
        let tick = Instant::now() + TICK;
        self.paused.iter().map(|paused| paused.until).min().map_or(tick, |until| until.min(tick))
    }

    fn note(&mut self, writer: usize, event: WriterEvent, may_pause: bool) -> io::Result<()> {
        self.pending_read[writer] = None;
        match event {
            WriterEvent::Read(number) => {
                self.pending_read[writer] = Some(number);
                // A line that the writer printed before it was paused may arrive only now.
                if let Some(paused) = self.paused.iter_mut().find(|paused| paused.writer == writer) {
                    paused.read = Some(number);
                }
                let has_overtaken = self.mark_overtaken(writer, number);
                if may_pause {
                    self.maybe_pause(writer, has_overtaken)?;
                }
            }
            WriterEvent::Wrote(number) => {
                self.counts.acknowledged += 1;
                self.written.insert(number);
            }
            WriterEvent::Refused => self.counts.refused += 1,
            WriterEvent::UnknownOutcome(message) => {
                self.counts.unknown += 1;
                self.counts.last_error = Some(self.redacted(message));
            }
            WriterEvent::Failed(message) => {
                self.counts.failed += 1;
                self.counts.last_error = Some(self.redacted(message));
            }
        }
        Ok(())
    }

    fn redacted(&self, message: String) -> String {
        redact_secret(redact_secret(message, &self.plan.resource), &self.plan.engine)
    }

    /// Marks the paused writers that had read `number` too, since both will write the same. Returns whether it marked any.
    fn mark_overtaken(&mut self, writer: usize, number: u64) -> bool {
        let before = self.counts.overtaken;
        for paused in &mut self.paused {
            if paused.writer != writer && paused.read == Some(number) && !paused.is_overtaken {
                paused.is_overtaken = true;
                self.counts.overtaken += 1;
            }
        }
        self.counts.overtaken > before
    }

    fn maybe_pause(&mut self, holder: usize, has_overtaken: bool) -> io::Result<()> {
        let is_paused = |writer: usize| self.paused.iter().any(|paused| paused.writer == writer);
        let running: Vec<usize> = (0..self.writers.len()).filter(|writer| !is_paused(*writer)).collect();
        if is_paused(holder) {
            return Ok(());
        }
        let Some(pause) = self.pauser.decide(holder, &running, has_overtaken) else { return Ok(()) };
        self.writers.pause(pause.writer)?;
        self.counts.pauses += 1;
        let (writer, until, read) = (pause.writer, Instant::now() + pause.time, self.pending_read[pause.writer]);
        self.paused.push(Paused { writer, until, read, is_overtaken: false });
        Ok(())
    }

    /// Resumes the writers whose pause is over.
    fn resume_due(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for paused in self.paused.extract_if(.., |paused| paused.until <= now) {
            self.writers.resume(paused.writer)?;
        }
        Ok(())
    }

    fn unexpected_exit(&mut self, writer: usize) -> Failure {
        let status =
            self.writers.exit_status(writer).map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::Unavailable(format!("a writer exited unexpectedly ({status}); its messages are above"))
    }
}
