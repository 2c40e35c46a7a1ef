//! What a person sees while the writers work.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::scheme::Scheme;
use super::trial::{Tally, Until};
use crate::spinner::Spinner;
use crate::text::time;

/// The line is written anew so often at most.
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

    pub(super) fn show(&mut self, scheme: Scheme, until: Until, elapsed: Duration, tally: &Tally) {
        let Some(spinner) = &mut self.shown else { return };
        if self.at.is_some_and(|at| at.elapsed() < TURN) {
            return;
        }
        self.at = Some(Instant::now());
        let rest = match until {
            Until::Passed(all) => format!("{} left", time(all.saturating_sub(elapsed))),
            Until::Overtaken(times) => format!("overtaken {} of {times} times", tally.overtaken),
        };
        let Tally { acknowledged, refused, pauses, .. } = tally;
        spinner.turn(&format!(
            "{}: {rest}, {acknowledged} acknowledged, {refused} refused, {pauses} pauses",
            scheme.name()
        ));
    }
}
