//! Rebuilds the state from events alone. Each event must be consistent with the ones before it, and the result must match
//! the machine.

use std::collections::BTreeMap;

use palisade_core::{Delay, Ending, Event, Kind, Limits, LockName, LockNames, SessionId, Ticket, Token, Ttl, Value};

use super::observed::Observed;

#[derive(Clone, Default)]
pub(crate) struct EventChecker {
    sessions: BTreeMap<SessionId, Ttl>,
    waiting: BTreeMap<Ticket, (SessionId, LockNames)>,
    held: BTreeMap<Token, (SessionId, LockNames)>,
    withheld: BTreeMap<Token, (LockNames, Delay)>,
    /// The grant that ended last. Only its locks may be withheld by the next event.
    just_expired: Option<(Token, LockNames)>,
    values: BTreeMap<LockName, (Token, Value)>,
    resized: BTreeMap<LockName, u32>,
    limits: Option<Limits>,
    last_token: u64,
    last_arrival: u64,
}

impl EventChecker {
    /// Applies the events of one command.
    pub(crate) fn apply(&mut self, events: &[Event]) {
        let first_grant = events.iter().position(|event| matches!(event, Event::Granted { ticket: Some(_), .. }));
        for event in &events[first_grant.unwrap_or(events.len())..] {
            let is_grant = matches!(event, Event::Granted { ticket: Some(_), .. } | Event::Published { .. });
            assert!(is_grant, "{event:?} came after a grant that it may have made possible");
        }
        for event in events {
            let expired = self.just_expired.take();
            match event {
                Event::Withheld { locks, token, delay } => {
                    assert_eq!(expired, Some((*token, locks.clone())), "withheld, but not just expired");
                    self.withheld.insert(*token, (locks.clone(), *delay));
                }
                other => self.apply_one(other),
            }
        }
        self.just_expired = None;
    }

    fn apply_one(&mut self, event: &Event) {
        match event {
            Event::SessionOpened { session, ttl } => {
                assert!(self.sessions.insert(*session, *ttl).is_none(), "{event:?}: it was open");
            }
            Event::SessionEnded { session, .. } => {
                assert!(self.sessions.remove(session).is_some(), "{event:?}: it was not open");
                assert!(self.held.values().all(|(holder, _)| holder != session), "{event:?}: it still holds");
                assert!(self.waiting.values().all(|(waiter, _)| waiter != session), "{event:?}: it still waits");
            }
            Event::Queued { ticket, session, locks } => {
                assert!(ticket.arrival() > self.last_arrival, "{event:?}: the ticket is not new");
                self.last_arrival = ticket.arrival();
                self.waiting.insert(*ticket, (*session, locks.clone()));
            }
            Event::LeftQueue { ticket, session, locks, .. } => {
                assert_eq!(self.waiting.remove(ticket), Some((*session, locks.clone())), "{event:?}");
            }
            Event::Granted { .. } | Event::GrantEnded { .. } | Event::DelayEnded { .. } => self.apply_grant(event),
            Event::Published { lock, token, value } => {
                let holds = self.held.get(token).is_some_and(|(_, locks)| locks.as_slice() == [lock.clone()]);
                assert!(holds, "{event:?}: that is not held, or not alone");
                self.values.insert(lock.clone(), (*token, value.clone()));
            }
            Event::Resized { lock, limit } => {
                self.resized.insert(lock.clone(), *limit);
            }
            Event::TokensRaised { above } => self.raise(*above),
            Event::Configured { limits } => self.limits = Some(limits.clone()),
            Event::TtlChanged { session, ttl } => {
                assert!(self.sessions.insert(*session, *ttl).is_some(), "{event:?}: it was not open");
            }
            Event::Withheld { .. } => unreachable!("applied by the caller"),
        }
    }

    fn apply_grant(&mut self, event: &Event) {
        match event {
            Event::Granted { locks, session, token, ticket, .. } => {
                assert!(self.sessions.contains_key(session), "{event:?}: the session is not open");
                if let Some(ticket) = ticket {
                    assert_eq!(self.waiting.remove(ticket), Some((*session, locks.clone())), "{event:?}");
                }
                self.raise(*token);
                self.held.insert(*token, (*session, locks.clone()));
            }
            Event::GrantEnded { locks, session, token, how } => {
                assert_eq!(self.held.remove(token), Some((*session, locks.clone())), "{event:?}");
                self.values.retain(|_, (publisher, _)| publisher != token);
                if let Ending::Forced(force) = how {
                    assert!(force.moved_to > *token, "{event:?}: the token was not moved on");
                    self.last_token = self.last_token.max(force.moved_to.get());
                }
                self.just_expired = Some((*token, locks.clone()));
            }
            Event::DelayEnded { locks, token, force } => {
                if let Some(force) = force {
                    assert!(force.moved_to > *token, "{event:?}: the token was not moved on");
                    self.last_token = self.last_token.max(force.moved_to.get());
                }
                let was = self.withheld.remove(token).map(|(locks, _)| locks);
                assert_eq!(was.as_ref(), Some(locks), "{event:?}: that was not withheld");
            }
            other => unreachable!("{other:?} is about no grant"),
        }
    }

    fn raise(&mut self, token: Token) {
        assert!(token.get() > self.last_token, "token {token} is not greater than all before it");
        self.last_token = token.get();
    }

    /// Compares the rebuilt state with the machine.
    pub(crate) fn check(&mut self, seen: &Observed) {
        let sessions: BTreeMap<_, _> = seen.sessions.iter().map(|(id, session)| (*id, session.ttl)).collect();
        assert_eq!(self.sessions, sessions, "sessions: events (left), machine (right)");
        let mut held = BTreeMap::new();
        for (id, session) in &seen.sessions {
            held.extend(
                session.grants.iter().map(|(locks, token)| (*token, (*id, LockNames::from_vec(locks.clone())))),
            );
        }
        assert_eq!(self.held, held, "grants: events (left), machine (right)");
        for (name, lock) in &seen.locks {
            let events = self.waiting.iter().filter(|(_, (_, locks))| locks.contains(name));
            let waiters = lock.waiters.iter().map(|(ticket, _, session, _)| (*ticket, *session));
            assert!(events.map(|(ticket, (session, _))| (*ticket, *session)).eq(waiters), "waiters of {name}");
            assert_eq!(self.values.get(name).map(|(_, value)| value), lock.value.as_ref(), "value of {name}");
        }
        assert!(self.values.keys().all(|name| seen.locks.contains_key(name)), "a value of a lock that is not in use");
        assert!(self.waiting.values().flat_map(|(_, locks)| locks).all(|name| seen.locks.contains_key(name)));
        let withheld = self.withheld.iter().map(|(token, (locks, delay))| (*token, (locks.to_vec(), *delay)));
        assert_eq!(withheld.collect::<BTreeMap<_, _>>(), seen.withheld, "withheld: events (left), machine (right)");
        self.resized.retain(|name, _| seen.locks.contains_key(name));
        for (name, limit) in &self.resized {
            assert_eq!(seen.locks[name].kind, Kind::Semaphore { limit: *limit }, "permits of {name}");
        }
        assert!(self.limits.as_ref().is_none_or(|limits| *limits == seen.limits), "limits differ");
        assert_eq!(
            self.last_token,
            seen.last_token.map_or(0, Token::get),
            "last token: events (left), machine (right)"
        );
    }
}
