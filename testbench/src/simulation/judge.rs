//! The judge: what was committed, what it means by the rules of `core`, and what the clients were told.
//!
//! The committed log is the one order in which everything happened. A reply is right if it is the answer of the machine at some
//! point of that order between the request and the reply.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use palisade::Loss;
use palisade::engine::LockInfo;
use palisade_core::{
    Command, Cursor, Ending, Event, Limits, LockName, Machine, RequestNo, SessionEnd, SessionId, Ticket, Token, Ttl,
    invariant,
};
use palisade_server::replica::entry_commands;

use super::redis_judge::RedisLocks;
use super::trace::{Coverage, Trace};

/// Everything that the world and its clients share.
pub(super) struct Record {
    pub(super) now: Duration,
    pub(super) trace: Trace,
    pub(super) coverage: Coverage,
    pub(super) history: History,
    pub(super) failure: Option<String>,
}

impl Record {
    pub(super) fn new(is_whole: bool) -> Record {
        Record {
            now: Duration::ZERO,
            trace: Trace::new(is_whole),
            coverage: Coverage::default(),
            history: History::default(),
            failure: None,
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.add(self.now, what);
    }

    pub(super) fn count(&mut self, what: &'static str) {
        self.coverage.count(what);
    }

    /// Notes a broken promise. The first one counts.
    pub(super) fn fail(&mut self, what: String) {
        self.note(format_args!("BROKEN {what}"));
        self.failure.get_or_insert(what);
    }

    pub(super) fn check(&mut self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.fail(what);
        }
    }
}

/// A grant in the committed history.
#[derive(Debug)]
pub(super) struct GrantRecord {
    pub(super) locks: Vec<LockName>,
    pub(super) session: SessionId,
    pub(super) granted_at: u64,
    pub(super) ended: Option<(u64, Ending)>,
}

/// A grant that a command has ended.
pub(super) struct EndedGrant {
    pub(super) token: Token,
    pub(super) how: Ending,
}

/// The effects of one committed entry that the world has to check against its clients.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) granted: Vec<Token>,
    pub(super) ended: Vec<EndedGrant>,
    pub(super) expired: Vec<SessionId>,
    /// Sessions whose TTL has begun, or begun again.
    pub(super) restarted: Vec<(SessionId, Ttl)>,
    /// Rare paths that the entry has taken.
    pub(super) paths: Vec<&'static str>,
}

/// The committed history.
pub(super) struct History {
    /// The entries: term and data.
    entries: Vec<(u64, Bytes)>,
    model: Machine,
    sessions: BTreeSet<SessionId>,
    newest_session: Option<(u64, SessionId)>,
    pub(super) grants: BTreeMap<Token, GrantRecord>,
    requests: BTreeSet<(SessionId, RequestNo)>,
    last_token: u64,
    /// The tokens that hold each lock, from each index on.
    holders: BTreeMap<LockName, Vec<(u64, Vec<Token>)>>,
    /// The last index at which each lock was in use. Locks that are in use now are not here.
    in_use_until: BTreeMap<LockName, u64>,
    /// The events of each lock, in order.
    pub(super) events: Vec<Event>,
    /// How many events there are up to each entry.
    events_up_to: Vec<usize>,
    /// The last entry that a leader has applied. Followers may apply an entry before a leader whose disk is slow, and no client
    /// learns of it before the leader has applied it.
    announced: u64,
    pub(super) redis: RedisLocks,
}

impl Default for History {
    fn default() -> History {
        History {
            entries: Vec::new(),
            model: Machine::new(Limits::default()),
            sessions: BTreeSet::new(),
            newest_session: None,
            grants: BTreeMap::new(),
            requests: BTreeSet::new(),
            last_token: 0,
            holders: BTreeMap::new(),
            in_use_until: BTreeMap::new(),
            events: Vec::new(),
            events_up_to: vec![0],
            announced: 0,
            redis: RedisLocks::default(),
        }
    }
}

impl History {
    /// Returns the index of the last committed entry.
    pub(super) fn last_index(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns the machine after all committed entries.
    pub(super) fn model(&self) -> &Machine {
        &self.model
    }

    /// Notes that a node has applied an entry: the next one of the history, or one that is there already.
    pub(super) fn applied(&mut self, index: u64, term: u64, data: &Bytes) -> Result<Effects, String> {
        if let Some((known_term, known)) = self.entries.get(index as usize - 1) {
            return match (known_term, known) == (&term, data) {
                true => Ok(Effects::default()),
                false => {
                    Err(format!("A: entry {index} of term {known_term} was applied, and another of term {term}"))
                }
            };
        }
        if index != self.last_index() + 1 {
            return Err(format!("A: entry {index} was applied after entry {}", self.last_index()));
        }
        self.entries.push((term, data.clone()));
        let mut effects = Effects::default();
        for command in entry_commands(data) {
            self.apply(index, command, &mut effects)?;
        }
        self.events_up_to.push(self.events.len());
        Ok(effects)
    }

    /// Returns the session that was opened last, if a leader has applied that and the session has not ended.
    pub(super) fn newest_session(&self) -> Option<SessionId> {
        let newest = self.newest_session.filter(|(index, _)| *index <= self.announced);
        newest.map(|(_, session)| session).filter(|session| self.is_open(*session))
    }

    /// Returns whether a session has been opened and has not ended.
    pub(super) fn is_open(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    /// Returns the last entry that a leader has applied.
    pub(super) fn announced(&self) -> u64 {
        self.announced
    }

    /// Notes that a leader has applied everything up to an entry.
    pub(super) fn announce(&mut self, index: u64) {
        self.announced = self.announced.max(index);
    }

    fn apply(&mut self, index: u64, command: Command, effects: &mut Effects) -> Result<(), String> {
        let released = match &command {
            Command::Release { token, .. } => Some(*token),
            _ => None,
        };
        match &command {
            Command::Acquire(acquire) => {
                let number = acquire.caller.number.map(|number| (acquire.caller.session, number));
                if number.is_some_and(|number| self.requests.contains(&number)) {
                    effects.paths.push("path: request repeated at the next leader");
                }
            }
            Command::Release { token, .. } => {
                let ended = self.grants.get(token).and_then(|grant| grant.ended.as_ref());
                if matches!(ended, Some((_, Ending::Released))) {
                    effects.paths.push("path: release repeated");
                }
            }
            Command::Cancel { .. } => effects.paths.push("path: acquire cancelled"),
            _ => {}
        }
        let applied = self.model.apply(command);
        invariant::check(&self.model).map_err(|broken| format!("M: {broken}"))?;
        for event in applied.events {
            match &event {
                Event::SessionOpened { session, ttl } => {
                    self.sessions.insert(*session);
                    self.newest_session = Some((index, *session));
                    effects.restarted.push((*session, *ttl));
                }
                Event::TtlChanged { session, ttl } => effects.restarted.push((*session, *ttl)),
                Event::SessionEnded { session, how } => {
                    self.sessions.remove(session);
                    if *how == SessionEnd::Expired {
                        effects.expired.push(*session);
                    }
                }
                Event::Granted { locks, session, token, number, ticket } => {
                    self.check_order(locks, *ticket)?;
                    if !self.sessions.contains(session) {
                        return Err(format!("M: {token} was granted to {session:?}, which has ended"));
                    }
                    if token.get() <= self.last_token {
                        return Err(format!("T: {token} was given after {}", self.last_token));
                    }
                    self.last_token = token.get();
                    if let Some(number) = number
                        && !self.requests.insert((*session, *number))
                    {
                        return Err(format!("D: request {number:?} of {session:?} was granted twice"));
                    }
                    let locks = locks.to_vec();
                    let record = GrantRecord { locks, session: *session, granted_at: index, ended: None };
                    self.grants.insert(*token, record);
                    effects.granted.push(*token);
                }
                Event::GrantEnded { token, how, .. } => {
                    if let (Some(named), Ending::Released) = (released, how)
                        && named != *token
                    {
                        return Err(format!("M: a release of {named} has ended {token}"));
                    }
                    if let Some(record) = self.grants.get_mut(token) {
                        record.ended = Some((index, how.clone()));
                    }
                    effects.ended.push(EndedGrant { token: *token, how: how.clone() });
                }
                Event::Withheld { .. } => effects.paths.push("path: grant withheld by a lock-delay"),
                _ => {}
            }
            for lock in event.locks().into_iter().flatten() {
                self.lock_changed(index, &lock, effects);
            }
            if event.locks().is_some() {
                self.events.push(event);
            }
        }
        Ok(())
    }

    /// Checks that a waiter that was granted has overtaken no other one.
    fn check_order(&self, locks: &[LockName], granted: Option<Ticket>) -> Result<(), String> {
        let Some(granted) = granted else { return Ok(()) };
        for lock in locks.iter().filter_map(|name| self.model.lock(name)) {
            if let Some(first) = lock.waiters().find(|waiter| waiter.ticket.arrival() < granted.arrival()) {
                return Err(format!("L: {granted:?} was granted before {:?}", first.ticket));
            }
        }
        Ok(())
    }

    fn lock_changed(&mut self, index: u64, name: &LockName, effects: &mut Effects) {
        self.redis.changed(index, name, &self.model);
        let lock = self.model.lock(name);
        let held = lock.as_ref().map_or_else(Vec::new, |lock| lock.holders().map(|grant| grant.token).collect());
        let is_in_use = lock.is_some_and(|lock| lock.holder_count() > 0 || lock.waiter_count() > 0)
            || self.model.withheld().any(|(locks, ..)| locks.contains(name));
        match is_in_use {
            true => drop(self.in_use_until.remove(name)),
            false => drop(self.in_use_until.insert(name.clone(), index)),
        }
        if held.len() > 1 {
            effects.paths.push(match name.as_str() {
                "permits" => "path: semaphore granted to several",
                _ => "path: shared lock granted to several",
            });
        }
        let versions = self.holders.entry(name.clone()).or_default();
        match versions.last_mut() {
            Some((at, tokens)) if *at == index => *tokens = held,
            _ => versions.push((index, held)),
        }
    }

    /// Checks a grant that a client was given.
    pub(super) fn check_grant(
        &self,
        token: Token,
        session: SessionId,
        locks: &[LockName],
        since: u64,
    ) -> Result<(), String> {
        let Some(grant) = self.grants.get(&token) else {
            return Err(format!("A: a client has {token} of {locks:?}, which was never committed"));
        };
        let (mut named, mut asked) = (grant.locks.clone(), locks.to_vec());
        named.sort();
        asked.sort();
        match grant.session == session && named == asked && grant.granted_at > since {
            true => Ok(()),
            false => Err(format!("M: a client has {token} of {locks:?} since {since}, which is {grant:?}")),
        }
    }

    /// Checks that a lock was in use at some point since then.
    pub(super) fn check_busy(&self, lock: &LockName, since: u64) -> Result<(), String> {
        match self.in_use_until.get(lock) {
            None if self.holders.contains_key(lock) => Ok(()),
            Some(until) if *until > since => Ok(()),
            _ => Err(format!("L: {lock} was reported as held, and has been free since before {since}")),
        }
    }

    /// Checks a release that a client was told of.
    pub(super) fn check_released(&self, token: Token) -> Result<(), String> {
        match self.grants.get(&token).and_then(|grant| grant.ended.as_ref()) {
            Some(_) => Ok(()),
            None => Err(format!("A: a client was told that {token} is released, and it is not")),
        }
    }

    /// Checks why a client was told that its grant was lost.
    pub(super) fn check_loss(&self, token: Token, session: SessionId, loss: &Loss) -> Result<(), String> {
        let ended = self.grants.get(&token).and_then(|grant| grant.ended.as_ref());
        let is_right = match loss {
            Loss::Expired => !self.sessions.contains(&session),
            Loss::ForcedBy { .. } => matches!(ended, Some((_, Ending::Forced(_)))),
            Loss::Released => matches!(ended, Some((_, Ending::Released))),
            Loss::DataLost { .. } => false,
            _ => true,
        };
        match is_right {
            true => Ok(()),
            false => {
                Err(format!("N: a client was told that {token} of {session:?} is lost: {loss}; it has {ended:?}"))
            }
        }
    }

    /// Checks what a client was told of a lock: it must have been so at some point since then.
    pub(super) fn check_seen(&self, name: &LockName, seen: Option<&LockInfo>, since: u64) -> Result<(), String> {
        let mut seen: Vec<_> =
            seen.map_or_else(Vec::new, |lock| lock.holders.iter().map(|holder| holder.token).collect());
        seen.sort();
        let versions = self.holders.get(name).map_or(&[][..], Vec::as_slice);
        let first = versions.partition_point(|(at, _)| *at <= since).saturating_sub(1);
        let is_first_empty = versions.first().is_none_or(|(at, _)| *at > since);
        let mut possible = versions[first.min(versions.len())..].iter().map(|(_, tokens)| {
            let mut tokens = tokens.clone();
            tokens.sort();
            tokens
        });
        match (is_first_empty && seen.is_empty()) || possible.any(|tokens| tokens == seen) {
            true => Ok(()),
            false => Err(format!("A: {name} was reported as held by {seen:?}, which was not so since {since}")),
        }
    }

    /// Returns the locks that are in use.
    pub(super) fn locks_in_use(&self) -> usize {
        self.model.locks(Cursor(0)).filter(|(_, lock)| lock.holder_count() > 0 || lock.waiter_count() > 0).count()
    }
}

/// Follows a watch through the committed events. Some events look alike, so it may be at one of several places.
#[derive(Debug)]
pub(super) struct WatchPosition {
    /// Where the next event may be; `None` if some may have been missed.
    next: Option<Vec<usize>>,
    /// The next event is not before this one.
    from: usize,
}

impl WatchPosition {
    /// A watch that begins now.
    pub(super) fn new(history: &History) -> WatchPosition {
        WatchPosition { next: None, from: history.events_up_to[history.announced as usize] }
    }

    /// Returns whether it has not missed any since the last call.
    pub(super) fn missed(&mut self) -> bool {
        self.next.take().is_some()
    }

    /// Checks that this is the next event below the prefix.
    pub(super) fn seen(&mut self, history: &History, prefix: &str, event: &Event) -> Result<(), String> {
        let matches = |event: &Event| {
            event.locks().is_some_and(|locks| locks.iter().any(|lock| lock.as_str().starts_with(prefix)))
        };
        let after = |from: usize| history.events.iter().enumerate().skip(from).filter(|(_, event)| matches(event));
        let found: Vec<_> = match &self.next {
            None => after(self.from).filter(|(_, next)| *next == event).map(|(at, _)| at + 1).collect(),
            Some(places) => {
                let next = places.iter().filter_map(|from| after(*from).next());
                next.filter(|(_, next)| *next == event).map(|(at, _)| at + 1).collect()
            }
        };
        let Some(first) = found.first() else {
            let expected = self.next.as_ref().and_then(|places| after(*places.first()?).next());
            return Err(format!("A: a watch below '{prefix}' has lost {expected:?}, and has seen {event:?}"));
        };
        (self.from, self.next) = (*first, Some(found));
        Ok(())
    }
}
