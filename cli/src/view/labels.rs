//! The labels of sessions. Events have only their numbers.

use std::collections::HashMap;

use palisade::{Error, Palisade, SessionId};

use super::event_line::EventLine;

/// The cache is cleared beyond this size.
const MANY: usize = 10_000;

/// The labels of the sessions that were met so far.
#[derive(Default)]
pub(super) struct Labels {
    known: HashMap<SessionId, String>,
}

impl Labels {
    /// Adds the label of the event's session, if it can still be found at the lock.
    pub(super) async fn add(&mut self, palisade: &Palisade, line: &mut EventLine<'_>) -> Result<(), Error> {
        let (Some(session), Some(lock)) = (line.session, line.locks.first()) else { return Ok(()) };
        if !self.known.contains_key(&session) {
            self.fetch(palisade, lock).await?;
        }
        line.label = self.known.get(&session).cloned();
        Ok(())
    }

    /// Fetches the labels of the holders, waiters and past holders of a lock.
    async fn fetch(&mut self, palisade: &Palisade, lock: &str) -> Result<(), Error> {
        let Some(lock) = palisade.inspect(lock).await? else { return Ok(()) };
        if self.known.len() > MANY {
            self.known.clear();
        }
        let holders = lock.holders.into_iter().filter_map(|holder| Some((holder.session?, holder.label?)));
        let waiters = lock.waiters.into_iter().map(|waiter| (waiter.session, waiter.label));
        let before = lock.history.into_iter().map(|ended| (ended.session, ended.label));
        self.known.extend(holders.chain(waiters).chain(before));
        Ok(())
    }
}
