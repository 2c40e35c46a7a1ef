//! The queue, shown while a command waits for its grant.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use palisade::Palisade;
use palisade::engine::LockInfo;

use super::{Verbosity, WITHHELD};
use crate::doctor::missing_replicas;
use crate::outcome::say;
use crate::spinner::Spinner;
use crate::text::{plain, time_ms};

/// The wait before the first report. Most acquires are faster and report nothing.
const REPORT_AFTER: Duration = Duration::from_millis(300);
/// Time per spinner frame. The queue is polled once per revolution, so once a second.
const FRAME_TIME: Duration = Duration::from_millis(125);

pub(super) struct QueueStatus<'a> {
    palisade: &'a Palisade,
    names: &'a [String],
    verbosity: Verbosity<'a>,
}

impl<'a> QueueStatus<'a> {
    pub(super) fn new(palisade: &'a Palisade, names: &'a [String], verbosity: Verbosity<'a>) -> QueueStatus<'a> {
        QueueStatus { palisade, names, verbosity }
    }

    /// Shows the queue until it is dropped: a spinner on a terminal, one line elsewhere with `-v`.
    pub(super) async fn show(self) -> Infallible {
        tokio::time::sleep(REPORT_AFTER).await;
        if let Some(missing) = missing_replicas(self.verbosity.url).await {
            say(&format!("waiting for replicas of Redis: {missing}; `palisade doctor` says more"));
        }
        if !io::stderr().is_terminal() {
            if self.verbosity.level > 0 {
                // A closed stderr is no reason to give up the wait.
                let _ = writeln!(io::stderr(), "palisade: {}", self.poll().await);
            }
            return std::future::pending().await;
        }
        let mut spinner = Spinner::default();
        loop {
            let message = self.poll().await;
            for _ in 0..Spinner::FRAMES {
                spinner.redraw(&message);
                tokio::time::sleep(FRAME_TIME).await;
            }
        }
    }

    async fn poll(&self) -> String {
        for name in self.names {
            if let Ok(Some(lock)) = self.palisade.inspect(name).await
                && let Some(text) = self.describe(&lock)
            {
                return text;
            }
        }
        format!("waiting for {}", plain(&self.names.join(", ")))
    }

    /// Describes this session's place in the queue of one lock; `None` if it does not wait there.
    fn describe(&self, lock: &LockInfo) -> Option<String> {
        let name = plain(lock.name.as_str());
        let place = lock.waiters.iter().position(|waiter| waiter.label == self.verbosity.label)?;
        let place = match place {
            0 => "next in the queue".to_owned(),
            ahead => format!("{ahead} ahead of us in the queue"),
        };
        let Some(holder) = lock.holders.first() else { return Some(format!("waiting for {name}: {place}")) };
        let since = holder.held_for_ms.map(|ms| format!(" for {}", time_ms(ms))).unwrap_or_default();
        let others = match lock.holders.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        let label = holder.label.as_deref().map_or(WITHHELD.to_owned(), plain);
        Some(format!("waiting for {name}: {place}, held{since} by {label}{others}"))
    }
}
