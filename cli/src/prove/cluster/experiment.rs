//! One run: writers of two numbers, and faults of the cluster that keeps their locks.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

use super::fault::{Action, Fault, FaultKind, Nemesis};
use super::nodes::{Nodes, Seen};
use super::probe::Probe;
use super::record::Record;
use super::system::System;
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::prove::progress::Progress;
use crate::prove::store::{self, Store};
use crate::prove::workload::{Counts, Settings, Workload};
use crate::prove::{connect, lock_name, unused_name};
use crate::signals::{Signals, StopSignal};
use crate::text::{list, time};

/// How long the cluster may take to start, or to serve clients again after a fault. No cluster takes this long.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);
/// The longest time between two looks at the clock.
const TICK: Duration = Duration::from_millis(50);

/// The settings of a run.
pub(super) struct Plan {
    pub(super) system: System,
    pub(super) nodes: usize,
    /// The writers of each number.
    pub(super) writers: usize,
    pub(super) ttl: Duration,
    pub(super) time: Duration,
    pub(super) seed: u64,
}

/// The result of a run.
pub(super) struct Outcome {
    pub(super) results: Vec<(Fencing, Counts)>,
    pub(super) record: Record,
    /// The kinds of faults that were not injected, and why.
    pub(super) skipped: Vec<(FaultKind, &'static str)>,
    /// The signal that ended the run early.
    pub(super) stopped_by: Option<StopSignal>,
}

/// A fault that lasts.
struct ActiveFault {
    fault: Fault,
    number: usize,
    until: Instant,
}

enum Phase {
    /// The cluster works. The next fault begins at this time.
    Healthy { until: Instant },
    /// At least one fault lasts. Another one may begin at some time.
    Faulty { active: Vec<ActiveFault>, next: Option<(Instant, Fault)> },
    /// All faults have ended at this time, and the cluster may not yet serve clients.
    Recovering { since: Instant },
}

struct Experiment<'p> {
    plan: &'p Plan,
    nodes: Nodes,
    seen: UnboundedReceiver<Seen>,
    probe: Probe,
    unfenced: Counter,
    fenced: Counter,
    nemesis: Nemesis,
    phase: Phase,
    record: Record,
}

/// A number, and its writers.
struct Counter {
    workload: Workload,
    store: Box<dyn Store>,
}

/// Runs the writers and the faults, and counts what was lost. All files are in this folder.
pub(super) async fn run(plan: &Plan, folder: &Path, signals: &mut Signals) -> Result<Outcome, Failure> {
    let mut progress = Progress::new();
    progress.show_text(|| format!("starting {} nodes of {}", plan.nodes, plan.system.name()));
    let mut experiment = tokio::select! {
        end = signals.stop_requested() => return Err(Failure::Exit(end.exit_code())),
        started = Experiment::start(plan, folder) => started?,
    };
    let stopped_by = experiment.run(signals, &mut progress).await?;
    progress.show_text(|| "counting what was lost".to_owned());
    let (results, record) = tokio::select! {
        // Another signal ends it at once.
        end = signals.stop_requested() => return Err(Failure::Exit(end.exit_code())),
        concluded = experiment.conclude() => concluded?,
    };
    let skipped = FaultKind::ALL.into_iter().filter_map(|kind| Some((kind, plan.system.refuses(kind, plan.nodes)?)));
    Ok(Outcome { results, record, skipped: skipped.collect(), stopped_by })
}

impl<'p> Experiment<'p> {
    async fn start(plan: &'p Plan, folder: &Path) -> Result<Experiment<'p>, Failure> {
        let mut nodes = Nodes::start(plan.system, plan.nodes, folder)?;
        until_started(&mut nodes, plan.ttl).await?;
        let settings = Settings {
            engine: nodes.url(),
            resource: format!("file:{}", folder.display()),
            writers: plan.writers,
            ttl: plan.ttl,
            seed: plan.seed,
        };
        // The two numbers get different pauses.
        let fenced_settings = Settings { seed: plan.seed.wrapping_add(1 << 32), ..settings.clone() };
        let is_possible = |kind: &FaultKind| plan.system.refuses(*kind, plan.nodes).is_none();
        let kinds = FaultKind::ALL.into_iter().filter(is_possible).collect();
        Ok(Experiment {
            plan,
            seen: nodes.observe(),
            probe: Probe::start(nodes.url(), plan.ttl),
            unfenced: Counter::start(&settings, Fencing::None).await?,
            fenced: Counter::start(&fenced_settings, Fencing::Strict).await?,
            nemesis: Nemesis::new(plan.seed, plan.nodes, plan.ttl, kinds),
            phase: Phase::Recovering { since: Instant::now() },
            record: Record::new(plan.nodes),
            nodes,
        })
    }

    /// Runs until the time is over and each kind of fault has come once, or until a signal.
    async fn run(&mut self, signals: &mut Signals, progress: &mut Progress) -> Result<Option<StopSignal>, Failure> {
        while !self.is_over() {
            tokio::select! {
                end = signals.stop_requested() => return Ok(Some(end)),
                step = self.unfenced.workload.step() => self.record.step(Fencing::None, step?),
                step = self.fenced.workload.step() => self.record.step(Fencing::Strict, step?),
                () = self.probe.granted() => self.record.grant(),
                Some(seen) = self.seen.recv() => self.record.seen(seen),
                () = tokio::time::sleep(TICK) => {}
            }
            self.advance()?;
            progress.show_text(|| self.describe_progress());
        }
        Ok(None)
    }

    fn is_over(&self) -> bool {
        let is_enough = self.record.elapsed() >= self.plan.time && self.nemesis.is_first_round_over();
        is_enough && matches!(self.phase, Phase::Healthy { .. })
    }

    /// Begins and ends the faults that are due, and starts nodes that have ended.
    fn advance(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        self.restart_ended()?;
        match &mut self.phase {
            Phase::Healthy { until } => {
                let has_time = self.record.elapsed() < self.plan.time || !self.nemesis.is_first_round_over();
                if now >= *until && has_time {
                    self.begin_fault(now)?;
                }
            }
            Phase::Faulty { active, next } => {
                for ended in active.extract_if(.., |active| active.until <= now) {
                    self.nodes.heal(&ended.fault)?;
                    self.record.fault_ended(ended.number);
                }
                if let Some((_, fault)) = next.take_if(|(at, _)| *at <= now && !active.is_empty()) {
                    active.push(inject(&mut self.nodes, &mut self.record, fault, now)?);
                }
                if active.is_empty() {
                    self.phase = Phase::Recovering { since: now };
                }
            }
            Phase::Recovering { since } => {
                let Some(missing) = self.record.missing_since(*since) else {
                    self.nodes.note_recovered();
                    self.phase = Phase::Healthy { until: now + self.nemesis.rest() };
                    return Ok(());
                };
                if now.duration_since(*since) > RECOVERY_TIMEOUT {
                    let after = self.record.faults.last().map_or("the start", |fault| fault.kind.name());
                    return Err(not_served(&self.nodes, &format!("{missing} after '{after}'")));
                }
            }
        }
        Ok(())
    }

    fn begin_fault(&mut self, now: Instant) -> Result<(), Failure> {
        let leader = self.record.leader();
        let Some(fault) = self.nemesis.next(leader) else { return Ok(()) };
        let next = self.nemesis.next_beside(&fault, leader).map(|(delay, fault)| (now + delay, fault));
        let active = vec![inject(&mut self.nodes, &mut self.record, fault, now)?];
        self.phase = Phase::Faulty { active, next };
        Ok(())
    }

    fn restart_ended(&mut self) -> Result<(), Failure> {
        let mut full = BTreeSet::new();
        if let Phase::Faulty { active, .. } = &self.phase {
            let filled = active.iter().filter(|active| active.fault.action == Action::FillDisk);
            full.extend(filled.flat_map(|active| active.fault.nodes.iter().copied()));
        }
        for (node, output) in self.nodes.restart_ended(&full)? {
            self.record.ended_unexpectedly(node, output);
        }
        Ok(())
    }

    /// Ends all faults, waits until all writers have ended, and reads the numbers.
    async fn conclude(mut self) -> Result<(Vec<(Fencing, Counts)>, Record), Failure> {
        if let Phase::Faulty { active, .. } = &self.phase {
            for ended in active {
                self.nodes.heal(&ended.fault)?;
                self.record.fault_ended(ended.number);
            }
        }
        // A node that ended with a full disk.
        self.phase = Phase::Recovering { since: Instant::now() };
        self.restart_ended()?;
        self.record.end();
        for counter in [&mut self.unfenced, &mut self.fenced] {
            counter.workload.request_end()?;
        }
        until_served(&self.nodes, self.plan.ttl).await?;
        let mut results = Vec::new();
        for (fencing, mut counter) in [(Fencing::None, self.unfenced), (Fencing::Strict, self.fenced)] {
            counter.workload.finish().await?;
            let counting = counter.workload.count_lost(&*counter.store);
            let counted = tokio::time::timeout(RECOVERY_TIMEOUT, counting).await;
            results.push((fencing, counted.map_err(|_| not_served(&self.nodes, "no lock was granted"))??));
        }
        Ok((results, self.record))
    }

    fn describe_progress(&self) -> String {
        let left = match self.plan.time.saturating_sub(self.record.elapsed()) {
            Duration::ZERO => "until each fault has come once".to_owned(),
            left => format!("{} left", time(left)),
        };
        let now = match &self.phase {
            Phase::Healthy { .. } => "all nodes work".to_owned(),
            Phase::Faulty { active, .. } => {
                list(&active.iter().map(|active| active.fault.kind.name().to_owned()).collect::<Vec<_>>())
            }
            Phase::Recovering { .. } => "recovering".to_owned(),
        };
        let (grants, faults, refused) =
            (self.record.grants.len(), self.record.faults.len(), self.record.refused.len());
        let lost = self.record.lost.len();
        format!("{left}: {now}; {faults} faults, {grants} grants, {refused} refused, {lost} lost without a fence")
    }
}

impl Counter {
    async fn start(settings: &Settings, fencing: Fencing) -> Result<Counter, Failure> {
        let name = unused_name();
        let store = store::open(&settings.resource, &name).await?;
        store.create_data(fencing).await?;
        Ok(Counter { workload: Workload::start(settings, fencing, &name)?, store })
    }
}

fn inject(nodes: &mut Nodes, record: &mut Record, fault: Fault, now: Instant) -> Result<ActiveFault, Failure> {
    nodes.inject(&fault)?;
    let number = record.fault_began(&fault);
    Ok(ActiveFault { number, until: now + fault.time, fault })
}

/// Waits until the cluster grants its first lock. Fails early if most nodes end: waiting would not help.
async fn until_started(nodes: &mut Nodes, ttl: Duration) -> Result<(), Failure> {
    let url = nodes.url();
    let mut granted = pin!(tokio::time::timeout(RECOVERY_TIMEOUT, first_grant(&url, ttl)));
    loop {
        tokio::select! {
            granted = &mut granted => return granted.map_err(|_| not_served(nodes, "no lock was granted")),
            () = tokio::time::sleep(TICK) => {}
        }
        if nodes.have_mostly_ended()? {
            let output = nodes.last_words();
            return Err(Failure::Unavailable(format!("the nodes do not start; they printed:\n{output}")));
        }
    }
}

/// Waits until the cluster grants a lock.
async fn until_served(nodes: &Nodes, ttl: Duration) -> Result<(), Failure> {
    let granted = tokio::time::timeout(RECOVERY_TIMEOUT, first_grant(&nodes.url(), ttl)).await;
    granted.map_err(|_| not_served(nodes, "no lock was granted"))
}

async fn first_grant(url: &str, ttl: Duration) {
    loop {
        if let Ok(client) = connect(url, ttl).await
            && client.lock(lock_name(&unused_name())).acquire().await.is_ok()
        {
            return;
        }
        tokio::time::sleep(TICK).await;
    }
}

fn not_served(nodes: &Nodes, missing: &str) -> Failure {
    let (limit, output) = (time(RECOVERY_TIMEOUT), nodes.last_words());
    Failure::Unavailable(format!("for {limit} {missing}; the nodes printed:\n{output}"))
}
