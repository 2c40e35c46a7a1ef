//! What sessions are called. Events only have their numbers.

use std::collections::HashMap;

use palisade::{Error, Palisade, SessionId};

use super::happening::Happening;

/// Beyond so many it forgets them all and begins anew.
const MANY: usize = 10_000;

/// The labels of the sessions that were met so far.
#[derive(Default)]
pub(super) struct Labels {
    known: HashMap<SessionId, String>,
}

impl Labels {
    /// Adds the label of the event's session, if it can still be found at the lock.
    pub(super) async fn add(&mut self, palisade: &Palisade, happening: &mut Happening<'_>) -> Result<(), Error> {
        let (Some(session), Some(lock)) = (happening.session, happening.locks.first()) else { return Ok(()) };
        if !self.known.contains_key(&session) {
            self.look_at(palisade, lock).await?;
        }
        happening.label = self.known.get(&session).cloned();
        Ok(())
    }

    /// Learns the labels of all who have to do with a lock.
    async fn look_at(&mut self, palisade: &Palisade, lock: &str) -> Result<(), Error> {
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
