//! The labels of sessions. Events have only the sessions' numbers.

use std::collections::HashMap;

use palisade::{Error, Palisade, SessionId};

use super::event_line::EventLine;

/// The cache is cleared beyond this size, so that a long watch does not grow without bound.
const MAX_CACHED: usize = 10_000;

/// The labels of the sessions that appeared in events so far.
#[derive(Default)]
pub(super) struct Labels {
    cache: HashMap<SessionId, String>,
}

impl Labels {
    /// Adds the label of the event's session, if it can still be found at the lock.
    pub(super) async fn add(&mut self, palisade: &Palisade, line: &mut EventLine<'_>) -> Result<(), Error> {
        let (Some(session), Some(lock)) = (line.session, line.locks.first()) else { return Ok(()) };
        if !self.cache.contains_key(&session) {
            self.fetch(palisade, lock).await?;
        }
        line.label = self.cache.get(&session).cloned();
        Ok(())
    }

    /// Fetches the labels of the holders, waiters and past holders of a lock.
    async fn fetch(&mut self, palisade: &Palisade, lock: &str) -> Result<(), Error> {
        let Some(lock) = palisade.inspect(lock).await? else { return Ok(()) };
        if self.cache.len() > MAX_CACHED {
            self.cache.clear();
        }
        let holders = lock.holders.into_iter().filter_map(|holder| Some((holder.session?, holder.label?)));
        let waiters = lock.waiters.into_iter().map(|waiter| (waiter.session, waiter.label));
        let past_holders = lock.history.into_iter().map(|ended| (ended.session, ended.label));
        self.cache.extend(holders.chain(waiters).chain(past_holders));
        Ok(())
    }
}
