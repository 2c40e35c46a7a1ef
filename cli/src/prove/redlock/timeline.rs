//! The steps of one run, and its result.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use crate::text::time_ms;

/// The fault that is injected while a client holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Schedule {
    /// One server's wall clock jumps.
    Clock,
    /// One server is restarted, without its data.
    Restart,
    /// The holder is stopped after it has checked that it holds the lock, and before it writes.
    Pause,
}

impl Schedule {
    pub(super) fn title(self) -> &'static str {
        match self {
            Schedule::Clock => "A server's clock jumps",
            Schedule::Restart => "A server is restarted",
            Schedule::Pause => "The holder is paused",
        }
    }
}

/// The lock engine, and whether the resource is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Protection {
    /// Redlock on five Redis servers, as first published: a restarted server counts at once.
    RedlockAsPublished,
    /// Redlock on five Redis servers, with every correction: a restarted server counts only after the longest TTL.
    Redlock,
    /// The Palisade service and a fenced file.
    Fenced,
}

impl Protection {
    pub(super) fn title(self) -> &'static str {
        match self {
            Protection::RedlockAsPublished => "Redlock as published: a restarted server counts at once",
            Protection::Redlock => "Redlock with every correction",
            Protection::Fenced => "Palisade service and a fenced file",
        }
    }
}

/// The cause of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Actor {
    A,
    B,
    /// The fault that the schedule injects.
    #[serde(rename = "fault")]
    Fault,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StepKind {
    Granted,
    NotGranted,
    Read,
    #[serde(rename = "looked")]
    Checked,
    Lost,
    Wrote,
    Refused,
    Released,
    Fault,
    /// A is stopped (SIGSTOP).
    Stopped,
    /// A is continued (SIGCONT).
    Woken,
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    pub(super) at_ms: u64,
    #[serde(rename = "who")]
    pub(super) actor: Actor,
    #[serde(rename = "mark")]
    pub(super) kind: StepKind,
    #[serde(rename = "what")]
    pub(super) text: String,
}

/// One run of a schedule.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Timeline {
    pub(super) schedule: Schedule,
    #[serde(rename = "kept")]
    pub(super) protection: Protection,
    pub(super) steps: Vec<Step>,
    /// How long both clients believed that they held the lock.
    pub(super) both_ms: u64,
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
    pub(super) number: u64,
    pub(super) lost: u64,
    pub(super) verdict: String,
    #[serde(skip)]
    began: Option<Instant>,
}

impl Timeline {
    pub(super) fn new(schedule: Schedule, protection: Protection) -> Timeline {
        Timeline {
            schedule,
            protection,
            steps: Vec::new(),
            both_ms: 0,
            acknowledged: 0,
            refused: 0,
            number: 0,
            lost: 0,
            verdict: String::new(),
            began: None,
        }
    }

    pub(super) fn note(&mut self, actor: Actor, kind: StepKind, text: impl Into<String>) {
        let began = *self.began.get_or_insert_with(Instant::now);
        let at_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.steps.push(Step { at_ms, actor, kind, text: text.into() });
        match kind {
            StepKind::Wrote => self.acknowledged += 1,
            StepKind::Refused => self.refused += 1,
            _ => {}
        }
    }

    /// Returns from when to when a client believed that it held the lock.
    pub(super) fn held(&self, actor: Actor) -> Option<(u64, u64)> {
        let mut own = self.steps.iter().filter(|step| step.actor == actor);
        let from = own.find(|step| step.kind == StepKind::Granted)?.at_ms;
        let is_over = |step: &&Step| matches!(step.kind, StepKind::Lost | StepKind::Refused | StepKind::Released);
        let to = own.find(is_over).map_or(self.end_ms(), |step| step.at_ms);
        Some((from, to))
    }

    /// Returns from when to when A was stopped.
    pub(super) fn stopped(&self) -> Option<(u64, u64)> {
        let at = |kind| Some(self.steps.iter().find(|step| step.kind == kind)?.at_ms);
        Some((at(StepKind::Stopped)?, at(StepKind::Woken)?))
    }

    pub(super) fn end_ms(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.at_ms)
    }

    /// Computes the result from the final number.
    pub(super) fn conclude(&mut self, number: u64) {
        self.number = number;
        self.lost = self.acknowledged.saturating_sub(number);
        if let (Some(a), Some(b)) = (self.held(Actor::A), self.held(Actor::B)) {
            self.both_ms = a.1.min(b.1).saturating_sub(a.0.max(b.0));
        }
        let both = time_ms(self.both_ms);
        let acknowledged = match self.acknowledged {
            1 => "1 update was acknowledged".to_owned(),
            count => format!("{count} updates were acknowledged"),
        };
        let numbers = format!("{acknowledged}, and the number is {number}");
        self.verdict = match (self.lost, self.refused) {
            (1.., _) => format!("LOST: both held the lock for {both}; {numbers}"),
            (0, 1..) => format!(
                "NOTHING LOST: both believed to hold it for {both}, and the late write was refused; {numbers}"
            ),
            (0, 0) if self.both_ms == 0 => format!("NOTHING LOST: one held the lock after the other; {numbers}"),
            (0, 0) => format!("NOTHING LOST, but both held the lock for {both}; {numbers}"),
        };
    }

    /// Whether the run had the expected result.
    pub(super) fn is_as_expected(&self) -> bool {
        match (self.schedule, self.protection) {
            (Schedule::Restart, Protection::Redlock) => self.both_ms == 0 && self.lost == 0,
            (_, Protection::RedlockAsPublished | Protection::Redlock) => self.both_ms > 0 && self.lost > 0,
            (Schedule::Pause, Protection::Fenced) => self.lost == 0 && self.refused > 0,
            (_, Protection::Fenced) => self.lost == 0 && self.both_ms == 0,
        }
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let (bold, dimmed) = (Style::new().bold(), Style::new().dimmed());
        writeln!(out, "  {bold}{}{bold:#}", self.protection.title())?;
        for Step { at_ms, actor, text, .. } in &self.steps {
            let seconds = Duration::from_millis(*at_ms).as_secs_f64();
            let (name, style) = match actor {
                Actor::A => ("A", AnsiColor::Blue.on_default()),
                Actor::B => ("B", AnsiColor::Magenta.on_default()),
                Actor::Fault => ("!", AnsiColor::Yellow.on_default()),
            };
            writeln!(out, "    {dimmed}{seconds:5.2}s{dimmed:#}  {style}{name}  {text}{style:#}")?;
        }
        for (name, actor) in [("A", Actor::A), ("B", Actor::B)] {
            writeln!(out, "    {name} {}", self.bar(actor))?;
        }
        let colour = if self.lost > 0 { AnsiColor::Red } else { AnsiColor::Green };
        let colour = colour.on_default().bold();
        writeln!(out, "    {colour}{}{colour:#}", self.verdict)
    }

    /// Draws when a client believed that it held the lock.
    fn bar(&self, actor: Actor) -> String {
        const WIDTH: u64 = 60;
        let end = self.end_ms().max(1);
        let held = self.held(actor).unwrap_or((u64::MAX, u64::MAX));
        let is_held = |column: &u64| {
            let (from, to) = (column * end / WIDTH, (column + 1) * end / WIDTH);
            held.0 < to && from < held.1
        };
        (0..WIDTH).map(|column| if is_held(&column) { '█' } else { '·' }).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::prove::redlock) fn timeline(steps: &[(u64, Actor, StepKind)], number: u64) -> Timeline {
        let mut timeline = Timeline::new(Schedule::Pause, Protection::Redlock);
        for (at_ms, actor, kind) in steps {
            timeline.note(*actor, *kind, "something");
            if let Some(step) = timeline.steps.last_mut() {
                step.at_ms = *at_ms;
            }
        }
        timeline.conclude(number);
        timeline
    }

    #[test]
    fn overlapping_holders_are_measured() {
        use StepKind::{Granted, Released, Wrote};
        let steps = [
            (0, Actor::A, Granted),
            (100, Actor::B, Granted),
            (200, Actor::B, Wrote),
            (300, Actor::A, Wrote),
            (350, Actor::B, Released),
            (400, Actor::A, Released),
        ];
        let both = timeline(&steps, 1);
        assert_eq!((both.both_ms, both.acknowledged, both.lost), (250, 2, 1));
        assert!(both.is_as_expected() && both.verdict.starts_with("LOST: both held the lock for 250ms; 2 updates"));
        assert_eq!(both.bar(Actor::A), "█".repeat(60));
        assert_eq!(both.bar(Actor::B), format!("{}{}{}", "·".repeat(15), "█".repeat(38), "·".repeat(7)));
    }

    #[test]
    fn sequential_holders_do_not_overlap() {
        use StepKind::{Granted, Released, Wrote};
        let steps = [
            (0, Actor::A, Granted),
            (100, Actor::A, Wrote),
            (150, Actor::A, Released),
            (150, Actor::B, Granted),
            (300, Actor::B, Wrote),
            (400, Actor::B, Released),
        ];
        let sequential = timeline(&steps, 2);
        assert_eq!((sequential.both_ms, sequential.lost), (0, 0));
        assert!(!sequential.is_as_expected());
        assert!(sequential.verdict.contains("one held the lock after the other"), "{}", sequential.verdict);
    }

    #[test]
    fn after_a_refused_write_a_client_no_longer_counts_as_holder() {
        use StepKind::{Granted, Refused, Released, Wrote};
        let steps = [
            (0, Actor::A, Granted),
            (100, Actor::B, Granted),
            (200, Actor::B, Wrote),
            (300, Actor::A, Refused),
            (400, Actor::B, Released),
        ];
        let refused = timeline(&steps, 1);
        assert_eq!((refused.both_ms, refused.lost, refused.refused), (200, 0, 1));
        assert!(refused.verdict.contains("the late write was refused; 1 update was"), "{}", refused.verdict);
    }
}
