//! What happened to each lock lately, for its timeline.

use std::collections::{HashMap, VecDeque};

use palisade_core::{Event, SessionId, Token};
use serde::Serialize;

use super::lock::Lock;
use crate::net::words::EventReport;

/// The most moments of one lock, and the most locks that have any.
const OF_ONE_LOCK: usize = 100;
const LOCKS: usize = 4096;

/// Something that happened to a lock.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Moment {
    at: u64,
    event: &'static str,
    session: Option<u64>,
    label: Option<String>,
    token: Option<u64>,
    how: Option<String>,
    why: Option<String>,
}

/// The last moments of each lock.
#[derive(Debug, Default)]
pub(super) struct Moments(HashMap<String, VecDeque<Moment>>);

impl Moments {
    pub(super) fn add(&mut self, event: &Event, now: u64) {
        let Some(report) = EventReport::of(event) else { return };
        for lock in &report.locks {
            let moment = Moment {
                at: now,
                event: report.kind,
                session: report.session.map(SessionId::get),
                label: None,
                token: report.token.map(Token::get),
                how: report.how.clone(),
                why: report.why.clone(),
            };
            let moments = self.0.entry(lock.as_str().to_owned()).or_default();
            if moments.len() >= OF_ONE_LOCK {
                moments.pop_front();
            }
            moments.push_back(moment);
        }
        if self.0.len() > LOCKS {
            self.forget_the_oldest();
        }
    }

    /// Forgets the half of the locks in which nothing has happened for the longest.
    fn forget_the_oldest(&mut self) {
        let last = |moments: &VecDeque<Moment>| moments.back().map_or(0, |moment| moment.at);
        let mut times: Vec<_> = self.0.values().map(last).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.0.retain(|_, moments| last(moments) > middle);
    }

    /// Adds the labels that a lock's holders, waiters and history tell.
    pub(super) fn add_labels(&mut self, lock: &Lock) {
        let Some(moments) = self.0.get_mut(&lock.name) else { return };
        for moment in moments.iter_mut().filter(|moment| moment.label.is_none()) {
            let Some(session) = moment.session else { continue };
            let holder = lock.holders.iter().find(|holder| holder.session == Some(session));
            let waiter = lock.waiters.iter().find(|waiter| waiter.session == session);
            let ended = lock.history.iter().find(|ended| ended.session == session);
            let label = holder.and_then(|holder| holder.label.as_ref());
            let label = label.or(waiter.map(|waiter| &waiter.label)).or(ended.map(|ended| &ended.label));
            moment.label = label.cloned();
        }
    }

    pub(super) fn of(&self, lock: &str) -> Vec<Moment> {
        self.0.get(lock).map(|moments| moments.iter().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::{LockName, LockNames};

    use super::*;

    fn granted(lock: &str) -> Event {
        let locks = LockNames::from([LockName::new(lock).expect("a name")]);
        let (session, token) = (SessionId::new(1).expect("a session"), Token::new(1).expect("a token"));
        Event::Granted { locks, session, token, ticket: None, number: None }
    }

    #[test]
    fn moments_are_bounded_per_lock_and_in_all() {
        let mut moments = Moments::default();
        for now in 0..1000 {
            moments.add(&granted("busy"), now);
        }
        assert_eq!(moments.of("busy").len(), OF_ONE_LOCK);
        for now in 1000..20_000 {
            moments.add(&granted(&format!("lock/{now}")), now);
        }
        assert!(moments.0.len() <= LOCKS);
        assert_eq!(moments.of("lock/19999").len(), 1, "the latest are kept");
        assert!(moments.of("busy").is_empty());
    }
}
