//! What a person sees while a command waits its turn.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use palisade::Palisade;
use palisade::engine::LockInfo;

use super::Voice;
use crate::doctor::missing_replicas;
use crate::outcome::say;
use crate::spinner::Spinner;
use crate::text::{plain, time_ms};

/// Nothing is said before so much time has passed: most waits are over sooner.
const PATIENCE: Duration = Duration::from_millis(300);
/// The queue is looked at whenever the spinner has gone round.
const TURN: Duration = Duration::from_millis(125);

pub(super) struct Waiting<'a> {
    palisade: &'a Palisade,
    names: &'a [String],
    voice: Voice<'a>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(palisade: &'a Palisade, names: &'a [String], voice: Voice<'a>) -> Waiting<'a> {
        Waiting { palisade, names, voice }
    }

    /// Shows how it stands until it is dropped: a spinner on a terminal; elsewhere, if asked for, one line.
    pub(super) async fn show(self) -> Infallible {
        tokio::time::sleep(PATIENCE).await;
        if let Some(missing) = missing_replicas(self.voice.url).await {
            say(&format!(
                "waiting for replicas of Redis: {missing} until they are there; `palisade doctor` says more"
            ));
        }
        if !io::stderr().is_terminal() {
            if self.voice.verbose > 0 {
                // With stderr gone there is nobody to tell.
                let _ = writeln!(io::stderr(), "palisade: {}", self.look().await);
            }
            return std::future::pending().await;
        }
        let mut spinner = Spinner::default();
        loop {
            let message = self.look().await;
            for _ in 0..Spinner::FRAMES {
                spinner.turn(&message);
                tokio::time::sleep(TURN).await;
            }
        }
    }

    async fn look(&self) -> String {
        for name in self.names {
            if let Ok(Some(lock)) = self.palisade.inspect(name).await
                && let Some(told) = self.tell(&lock)
            {
                return told;
            }
        }
        format!("waiting for {}", plain(&self.names.join(", ")))
    }

    /// How it stands at one lock; `None` if this one is not in the way.
    fn tell(&self, lock: &LockInfo) -> Option<String> {
        let name = plain(lock.name.as_str());
        let place = lock.waiters.iter().position(|waiter| waiter.label == self.voice.label)?;
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
        let label = holder.label.as_deref().map_or("nobody: it is withheld for a delay".to_owned(), plain);
        Some(format!("waiting for {name}: {place}, held{since} by {label}{others}"))
    }
}
