//! What a person sees while the writers work.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::measure::{Counts, Until};
use super::scheme::Scheme;
use crate::spinner::Spinner;
use crate::text::time;

/// The shortest time between two updates of the line.
const TURN: Duration = Duration::from_millis(125);

/// A line on stderr, where that is a terminal.
pub(super) struct Progress {
    shown: Option<Spinner>,
    at: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { shown: io::stderr().is_terminal().then(Spinner::default), at: None }
    }

    pub(super) fn show(&mut self, scheme: Scheme, until: Until, elapsed: Duration, counts: &Counts) {
        let Some(spinner) = &mut self.shown else { return };
        if self.at.is_some_and(|at| at.elapsed() < TURN) {
            return;
        }
        self.at = Some(Instant::now());
        let rest = match until {
            Until::Passed(all) => format!("{} left", time(all.saturating_sub(elapsed))),
            Until::Overtaken(times) => format!("overtaken {} of {times} times", counts.overtaken),
        };
        let Counts { acknowledged, refused, pauses, .. } = counts;
        spinner.turn(&format!(
            "{}: {rest}, {acknowledged} acknowledged, {refused} refused, {pauses} pauses",
            scheme.name()
        ));
    }
}
