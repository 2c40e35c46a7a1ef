//! The progress line while the writers work.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::fencing::Fencing;
use super::measure::Until;
use super::workload::Counts;
use crate::spinner::Spinner;
use crate::text::time;

/// The shortest time between two updates of the line.
const FRAME_TIME: Duration = Duration::from_millis(125);

/// A line on stderr, if that is a terminal.
pub(super) struct Progress {
    spinner: Option<Spinner>,
    shown_at: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { spinner: io::stderr().is_terminal().then(Spinner::default), shown_at: None }
    }

    pub(super) fn show(&mut self, fencing: Fencing, until: Until, elapsed: Duration, counts: &Counts) {
        self.show_text(|| {
            let rest = match until {
                Until::Passed(all) => format!("{} left", time(all.saturating_sub(elapsed))),
                Until::Overtaken(times) => format!("overtaken {} of {times} times", counts.overtaken),
            };
            let Counts { acknowledged, refused, pauses, .. } = counts;
            format!("{}: {rest}, {acknowledged} acknowledged, {refused} refused, {pauses} pauses", fencing.name())
        });
    }

    /// Shows a text, unless another one was shown a moment ago.
    pub(super) fn show_text(&mut self, text: impl FnOnce() -> String) {
        let Some(spinner) = &mut self.spinner else { return };
        if self.shown_at.is_some_and(|at| at.elapsed() < FRAME_TIME) {
            return;
        }
        self.shown_at = Some(Instant::now());
        spinner.redraw(&text());
    }
}
