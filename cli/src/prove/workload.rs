//! The writers of one number, some of which are paused, and the count of what they report.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::fencing::Fencing;
use super::pauser::Pauser;
use super::store::{Access, Store};
use super::wire::{WriterConfig, WriterEvent};
use super::writers::Writers;
use crate::outcome::Failure;
use crate::stores::redact_secret;

/// How long to wait for the next message of any writer after their end was requested. Longer than any update takes.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// The settings of a workload.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) engine: String,
    pub(super) resource: String,
    pub(super) writers: usize,
    pub(super) ttl: Duration,
    pub(super) seed: u64,
}

/// The result of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Updates that the resource acknowledged.
    pub(super) acknowledged: u64,
    /// Updates that the fence refused.
    pub(super) refused: u64,
    /// Those of them whose writer was not paused: its session ended, or the lock was granted twice.
    pub(super) refused_awake: u64,
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

/// Running writers.
pub(super) struct Workload {
    settings: Settings,
    fencing: Fencing,
    lock: String,
    writers: Writers,
    pauser: Pauser,
    paused: Vec<Paused>,
    /// The number that each writer has read and not written yet.
    pending_read: Vec<Option<u64>>,
    /// Whether each writer was paused since its last update.
    was_paused: Vec<bool>,
    written: BTreeSet<u64>,
    pub(super) counts: Counts,
}

/// A paused writer.
struct Paused {
    writer: usize,
    until: Instant,
    /// The number that it has read, if it was paused between reading and writing.
    read: Option<u64>,
    is_overtaken: bool,
}

/// What a workload has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A writer got the lock.
    Granted,
    /// An update was acknowledged.
    Acknowledged {
        /// Another update had written the same number: one of the two is lost.
        is_repeated: bool,
    },
    /// The fence refused an update.
    Refused,
    /// Anything else.
    Other,
}

impl Workload {
    /// Starts the writers of the number of this name.
    pub(super) fn start(settings: &Settings, fencing: Fencing, name: &str) -> io::Result<Workload> {
        let lock = super::lock_name(name);
        let config = |writer: usize| WriterConfig {
            engine: settings.engine.clone(),
            lock: lock.clone(),
            ttl_ms: u64::try_from(settings.ttl.as_millis()).unwrap_or(u64::MAX),
            resource: settings.resource.clone(),
            name: name.to_owned(),
            fencing,
            seed: settings.seed.wrapping_add(writer as u64 + 1),
        };
        Ok(Workload {
            settings: settings.clone(),
            fencing,
            writers: Writers::start((0..settings.writers).map(config))?,
            lock,
            pauser: Pauser::new(settings.seed, settings.ttl),
            paused: Vec::new(),
            pending_read: vec![None; settings.writers],
            was_paused: vec![false; settings.writers],
            written: BTreeSet::new(),
            counts: Counts::default(),
        })
    }

    /// Waits for the next message of a writer, or the end of the next pause, and handles it.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost.
    pub(super) async fn step(&mut self) -> Result<Step, Failure> {
        // Without a paused writer, no timer is due.
        let far = || Instant::now() + END_TIMEOUT;
        let next_resume = self.paused.iter().map(|paused| paused.until).min().unwrap_or_else(far);
        tokio::select! {
            message = self.writers.receive() => match message {
                Some((writer, Some(event))) => Ok(self.note(writer, event, true)?),
                Some((writer, None)) => Err(self.unexpected_exit(writer)),
                None => Err(Failure::Unavailable("all writers have ended".to_owned())),
            },
            () = tokio::time::sleep_until(next_resume) => {
                self.resume_due()?;
                Ok(Step::Other)
            }
        }
    }

    /// Resumes all writers, and asks them to stop after their current update.
    pub(super) fn request_end(&mut self) -> io::Result<()> {
        self.writers.request_end()
    }

    /// Waits until all writers have ended, after [`Workload::request_end`].
    pub(super) async fn finish(&mut self) -> Result<(), Failure> {
        let mut running = self.writers.len();
        while running > 0 {
            let message = tokio::time::timeout(END_TIMEOUT, self.writers.receive()).await;
            let too_late = |_| Failure::Unavailable(format!("a writer did not end within {END_TIMEOUT:?}"));
            match message.map_err(too_late)? {
                Some((writer, Some(event))) => {
                    self.note(writer, event, false)?;
                }
                Some(_) | None => running -= 1,
            }
        }
        Ok(())
    }

    /// Reads the number as the next holder would, and counts the lost and repeated updates.
    pub(super) async fn count_lost(mut self, store: &dyn Store) -> Result<Counts, Failure> {
        let palisade = super::connect(&self.settings.engine, self.settings.ttl).await?;
        let guard = palisade.lock(&self.lock).acquire().await?;
        let access = Access::begin(store, self.fencing, guard.token()?).await?;
        self.counts.number = access.read().await?;
        guard.release().await?;
        self.counts.lost = self.counts.acknowledged.saturating_sub(self.counts.number);
        self.counts.repeated = self.counts.acknowledged - self.written.len() as u64;
        Ok(self.counts)
    }

    fn note(&mut self, writer: usize, event: WriterEvent, may_pause: bool) -> io::Result<Step> {
        self.pending_read[writer] = None;
        let is_paused = self.paused.iter().any(|paused| paused.writer == writer);
        let was_paused = self.was_paused[writer] || is_paused;
        self.was_paused[writer] = was_paused && (is_paused || matches!(event, WriterEvent::Read(_)));
        Ok(match event {
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
                Step::Granted
            }
            WriterEvent::Wrote(number) => {
                self.counts.acknowledged += 1;
                Step::Acknowledged { is_repeated: !self.written.insert(number) }
            }
            WriterEvent::Refused => {
                self.counts.refused += 1;
                self.counts.refused_awake += u64::from(!was_paused);
                Step::Refused
            }
            WriterEvent::UnknownOutcome(message) => {
                self.counts.unknown += 1;
                self.counts.last_error = Some(self.redacted(message));
                Step::Other
            }
            WriterEvent::Failed(message) => {
                self.counts.failed += 1;
                self.counts.last_error = Some(self.redacted(message));
                Step::Other
            }
        })
    }

    fn redacted(&self, message: String) -> String {
        redact_secret(redact_secret(message, &self.settings.resource), &self.settings.engine)
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
        self.was_paused[pause.writer] = true;
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
