//! One scheme, tried for its time: writers that add one, pauses that hit them, and what is there in the end.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::crew::Crew;
use super::pauser::Pauser;
use super::progress::Progress;
use super::scheme::Scheme;
use super::store::{self, Access, Store};
use super::wire::{Part, Said};
use crate::outcome::Failure;
use crate::reach::without_secret;
use crate::signals::Signals;

/// Nothing that a writer is at takes so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at the clock, for whoever watches.
const TICK: Duration = Duration::from_millis(200);

/// What is the same for all schemes.
pub(super) struct Plan {
    pub(super) engine: String,
    pub(super) resource: String,
    pub(super) writers: usize,
    pub(super) ttl: Duration,
    pub(super) until: Until,
    pub(super) seed: u64,
}

/// When a scheme has been tried enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// After so much time.
    Passed(Duration),
    /// After so many pauses in which the paused writer was overtaken.
    Overtaken(u64),
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Updates of which the resource said that they are done.
    pub(super) acknowledged: u64,
    /// Updates that the fence refused.
    pub(super) refused: u64,
    /// Acknowledged updates that are gone.
    pub(super) lost: u64,
    /// Acknowledged updates that wrote a number which another one wrote too.
    pub(super) repeated: u64,
    /// How often a writer was stopped.
    pub(super) pauses: u64,
    /// In how many of them another read the same number before the paused writer had written.
    pub(super) overtaken: u64,
    /// Updates of which nobody knows whether they were done.
    pub(super) unsure: u64,
    /// Attempts that failed, and certainly changed nothing.
    pub(super) failed: u64,
    /// The number in the end.
    pub(super) number: u64,
    /// The last failure, for people.
    pub(super) trouble: Option<String>,
}

struct Trial<'a> {
    plan: &'a Plan,
    crew: Crew,
    pauser: Pauser,
    stopped: Vec<Stopped>,
    /// What each writer has read and not written yet.
    thinking: Vec<Option<u64>>,
    written: BTreeSet<u64>,
    tally: Tally,
}

/// A writer that is stopped.
struct Stopped {
    writer: usize,
    until: Instant,
    /// What it has read, if it was stopped between reading and writing.
    read: Option<u64>,
    is_overtaken: bool,
}

/// Tries one scheme. What it has made in the resource is taken away again, also when a signal ends it.
pub(super) async fn run(
    plan: &Plan,
    scheme: Scheme,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Tally, Failure> {
    let name = super::unused_name();
    let store = store::open(&plan.resource, &name).await?;
    store.make(scheme).await?;
    let tried = tokio::select! {
        biased;
        end = signals.end() => Err(Failure::Exit(end.exit_code())),
        tried = attempt(plan, scheme, &name, &*store, progress) => tried,
    };
    let removed = store.remove().await;
    let tally = tried?;
    removed?;
    Ok(tally)
}

async fn attempt(
    plan: &Plan,
    scheme: Scheme,
    name: &str,
    store: &dyn Store,
    progress: &mut Progress,
) -> Result<Tally, Failure> {
    let lock = super::lock(name);
    let part = |writer: usize| Part {
        engine: plan.engine.clone(),
        lock: lock.clone(),
        ttl_ms: u64::try_from(plan.ttl.as_millis()).unwrap_or(u64::MAX),
        resource: plan.resource.clone(),
        name: name.to_owned(),
        scheme,
        seed: plan.seed.wrapping_add(writer as u64 + 1),
    };
    let trial = Trial {
        plan,
        crew: Crew::start((0..plan.writers).map(part))?,
        pauser: Pauser::new(plan.seed, plan.ttl),
        stopped: Vec::new(),
        thinking: vec![None; plan.writers],
        written: BTreeSet::new(),
        tally: Tally::default(),
    };
    let (tally, written) = trial.run(scheme, progress).await?;
    judge(plan, scheme, &lock, store, tally, &written).await
}

/// Reads the number as the next holder would, and says what is missing.
async fn judge(
    plan: &Plan,
    scheme: Scheme,
    lock: &str,
    store: &dyn Store,
    mut tally: Tally,
    written: &BTreeSet<u64>,
) -> Result<Tally, Failure> {
    let palisade = super::connect(&plan.engine, plan.ttl).await?;
    let guard = palisade.lock(lock).acquire().await?;
    let access = Access::begin(store, scheme, guard.token()?).await?;
    tally.number = access.read().await?;
    guard.release().await?;
    tally.lost = tally.acknowledged.saturating_sub(tally.number);
    tally.repeated = tally.acknowledged - written.len() as u64;
    Ok(tally)
}

impl Trial<'_> {
    async fn run(mut self, scheme: Scheme, progress: &mut Progress) -> Result<(Tally, BTreeSet<u64>), Failure> {
        let began = Instant::now();
        while !self.is_enough(began) {
            progress.show(scheme, self.plan.until, began.elapsed(), &self.tally);
            let next_look = self.next_look();
            tokio::select! {
                heard = self.crew.hear() => match heard {
                    Some((writer, Some(said))) => self.note(writer, said, true)?,
                    Some((writer, None)) => return Err(self.ended(writer)),
                    None => return Err(Failure::Unreachable("all writers have ended".to_owned())),
                },
                () = tokio::time::sleep_until(next_look) => self.wake()?,
            }
        }
        self.crew.tell_to_end()?;
        let mut running = self.crew.len();
        while running > 0 {
            let heard = tokio::time::timeout(PATIENCE, self.crew.hear()).await;
            let silent = |_| Failure::Unreachable(format!("a writer did not end within {PATIENCE:?}"));
            match heard.map_err(silent)? {
                Some((writer, Some(said))) => self.note(writer, said, false)?,
                Some(_) | None => running -= 1,
            }
        }
        Ok((self.tally, self.written))
    }

    fn is_enough(&self, began: Instant) -> bool {
        match self.plan.until {
            Until::Passed(time) => began.elapsed() >= time,
            Until::Overtaken(times) => self.tally.overtaken >= times,
        }
    }

    fn next_look(&self) -> Instant {
        let tick = Instant::now() + TICK;
        self.stopped.iter().map(|stopped| stopped.until).min().map_or(tick, |until| until.min(tick))
    }

    fn note(&mut self, writer: usize, said: Said, may_pause: bool) -> io::Result<()> {
        self.thinking[writer] = None;
        match said {
            Said::Read(number) => {
                self.thinking[writer] = Some(number);
                let has_overtaken = self.overtake(writer, number);
                if may_pause {
                    self.maybe_pause(writer, has_overtaken)?;
                }
            }
            Said::Wrote(number) => {
                self.tally.acknowledged += 1;
                self.written.insert(number);
            }
            Said::Refused => self.tally.refused += 1,
            Said::Unsure(what) => {
                self.tally.unsure += 1;
                self.tally.trouble = Some(without_secret(what, &self.plan.resource));
            }
            Said::Failed(what) => {
                self.tally.failed += 1;
                self.tally.trouble = Some(without_secret(what, &self.plan.resource));
            }
        }
        Ok(())
    }

    /// Whoever is stopped with the number that another reads now has not written yet, and both will write the same. Says
    /// whether there is one.
    fn overtake(&mut self, by: usize, number: u64) -> bool {
        let before = self.tally.overtaken;
        for stopped in &mut self.stopped {
            if stopped.writer != by && stopped.read == Some(number) && !stopped.is_overtaken {
                stopped.is_overtaken = true;
                self.tally.overtaken += 1;
            }
        }
        self.tally.overtaken > before
    }

    fn maybe_pause(&mut self, holder: usize, has_overtaken: bool) -> io::Result<()> {
        let is_stopped = |writer: usize| self.stopped.iter().any(|stopped| stopped.writer == writer);
        let running: Vec<usize> = (0..self.crew.len()).filter(|writer| !is_stopped(*writer)).collect();
        // What it said before it was stopped may be heard only now.
        if is_stopped(holder) {
            return Ok(());
        }
        let Some(pause) = self.pauser.decide(holder, &running, has_overtaken) else { return Ok(()) };
        self.crew.stop(pause.writer)?;
        self.tally.pauses += 1;
        let (writer, until, read) = (pause.writer, Instant::now() + pause.time, self.thinking[pause.writer]);
        self.stopped.push(Stopped { writer, until, read, is_overtaken: false });
        Ok(())
    }

    /// Wakes those whose time is over.
    fn wake(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for stopped in self.stopped.extract_if(.., |stopped| stopped.until <= now) {
            self.crew.wake(stopped.writer)?;
        }
        Ok(())
    }

    fn ended(&mut self, writer: usize) -> Failure {
        let how = self.crew.ending(writer).map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::Unreachable(format!("a writer ended by itself ({how}); what it said is above"))
    }
}
