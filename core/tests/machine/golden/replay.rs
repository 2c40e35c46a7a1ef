//! The state rebuilt from the events alone, compared with the machine after every command: events are enough to know all
//! holders and waiters.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::{Cursor, Ending, Event, GrantState, LockNames, Machine, Mode, SessionId, Ticket, Token};

type Parts = BTreeSet<(SessionId, LockNames)>;

#[derive(Default)]
pub(crate) struct Replay {
    /// No token up to this one may be granted any more.
    highest: u64,
    sessions: BTreeSet<SessionId>,
    grants: BTreeMap<Token, (SessionId, LockNames)>,
    waits: BTreeMap<Ticket, (SessionId, LockNames)>,
    withheld: BTreeMap<Token, LockNames>,
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl Replay {
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::SessionOpened { session, .. } => {
                ensure(self.sessions.insert(*session), || format!("session {session} opened twice"))
            }
            Event::SessionEnded { session, .. } => {
                let left = |parts: &(SessionId, LockNames)| parts.0 == *session;
                ensure(!self.grants.values().any(left), || format!("session {session} ended and still holds"))?;
                ensure(!self.waits.values().any(left), || format!("session {session} ended and still waits"))?;
                ensure(self.sessions.remove(session), || format!("session {session} ended without being open"))
            }
            Event::Queued { ticket, session, locks } => {
                ensure(self.sessions.contains(session), || format!("session {session} waits without being open"))?;
                self.waits.insert(*ticket, (*session, locks.clone()));
                Ok(())
            }
            Event::LeftQueue { ticket, session, locks, .. } => self.end_wait(*ticket, *session, locks),
            Event::Granted { locks, session, token, ticket, .. } => {
                ensure(token.get() > self.highest, || format!("token {token} is not above {}", self.highest))?;
                ensure(self.sessions.contains(session), || format!("session {session} holds without being open"))?;
                self.highest = token.get();
                self.grants.insert(*token, (*session, locks.clone()));
                ticket.map_or(Ok(()), |ticket| self.end_wait(ticket, *session, locks))
            }
            Event::GrantEnded { locks, session, token, how } => {
                let ended = self.grants.remove(token);
                ensure(ended == Some((*session, locks.clone())), || {
                    format!("token {token} ended with another session or other locks than it began with")
                })?;
                if let Ending::Forced(force) = how {
                    let is_higher = force.moved_to > *token && force.moved_to.get() >= self.highest;
                    ensure(is_higher, || format!("the force-release of token {token} did not move it on"))?;
                    self.highest = force.moved_to.get();
                }
                Ok(())
            }
            Event::Withheld { locks, token, .. } => {
                self.withheld.insert(*token, locks.clone());
                Ok(())
            }
            Event::DelayEnded { locks, token, force } => {
                self.highest = force.as_ref().map_or(self.highest, |force| self.highest.max(force.moved_to.get()));
                let ended = self.withheld.remove(token);
                ensure(ended.as_ref() == Some(locks), || {
                    format!("the delay of token {token} ended with another session or other locks than it began with")
                })
            }
            Event::TtlChanged { session, .. } => ensure(self.sessions.contains(session), || {
                format!("session {session} has a new TTL without being open")
            }),
            Event::Published { lock, token, .. } => {
                let held = self.grants.get(token).is_some_and(|(_, locks)| locks.contains(lock));
                ensure(held, || format!("token {token} published without holding {lock}"))
            }
            Event::TokensRaised { above } => {
                self.highest = self.highest.max(above.get());
                Ok(())
            }
            Event::Resized { .. } | Event::Configured { .. } => Ok(()),
        }
    }

    fn end_wait(&mut self, ticket: Ticket, session: SessionId, locks: &LockNames) -> Result<(), String> {
        let ended = self.waits.remove(&ticket);
        ensure(ended == Some((session, locks.clone())), || {
            format!("{ticket:?} ended with another session or other locks than it began with")
        })
    }

    /// Compares the replay with the machine.
    pub(crate) fn compare(&self, machine: &Machine) -> Result<(), String> {
        let sessions: BTreeSet<_> = machine.sessions().map(|session| session.id()).collect();
        ensure(sessions == self.sessions, || "the events tell of other sessions".to_owned())?;
        let mut grants = BTreeMap::new();
        for session in machine.sessions() {
            grants.extend(session.grants().map(|(locks, token)| (token, (session.id(), locks))));
        }
        ensure(grants == self.grants, || format!("held are {grants:?}, the events say {:?}", self.grants))?;
        let withheld: BTreeMap<_, _> = machine.withheld().map(|(locks, token, _)| (token, locks)).collect();
        ensure(withheld == self.withheld, || "the events tell of other withheld grants".to_owned())?;
        self.compare_locks(machine)
    }

    /// Compares the holders and waiters of each lock.
    fn compare_locks(&self, machine: &Machine) -> Result<(), String> {
        let (mut held, mut waiting) = (Parts::new(), Parts::new());
        for (_, lock) in machine.locks(Cursor::default()) {
            let only: LockNames = [lock.name().clone()].into_iter().collect();
            for grant in lock.holders() {
                let alone = grant.mode != Mode::Exclusive || lock.holder_count() == 1;
                ensure(alone, || format!("{} is held exclusively, and not alone", lock.name()))?;
                if let GrantState::Held { session, .. } = grant.state {
                    held.insert((session, only.clone()));
                }
            }
            waiting.extend(lock.waiters().map(|waiter| (waiter.session, only.clone())));
        }
        let split = |(session, locks): &(SessionId, LockNames)| {
            let session = *session;
            locks.clone().into_iter().map(move |lock| (session, [lock].into_iter().collect::<LockNames>()))
        };
        ensure(held == self.grants.values().flat_map(split).collect(), || "the locks show other holders".to_owned())?;
        ensure(waiting == self.waits.values().flat_map(split).collect(), || "the locks show other waiters".to_owned())
    }
}
