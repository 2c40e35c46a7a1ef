//! A reference model of the rules: a list of requests in the order of arrival, and loops over all of it. Written from the
//! documentation, not from the machine, and slow on purpose.
//!
//! The model takes the numbers of sessions, tokens and tickets from the machine and asserts that each is greater than all
//! before it. It computes everything else, and panics where the machine differs.
//!
//! If several things are wrong with one request, the refusal names the first of these:
//!
//! 1. the session does not exist, or was opened for one request;
//! 2. the request's number was used already;
//! 3. the request is invalid: no locks, too many, a name too long, impossible permits, a name twice
//!    (these three want by want), the delay too long, the value too long or not possible;
//! 4. it does not fit the locks as they are: another kind, another limit, held already (want by want);
//! 5. there is no room: locks of the session, locks of all, waiters (only once it is clear that it would wait);
//! 6. no token is left.
//!
//! With a token: it was never given, it does not hold this lock, it is another session's, and then the rest of the
//! request.

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::{
    Acquire, Answer, Applied, Caller, Command, Departure, Ended, Ending, Event, Force, Kind, Label, Limit, Limits,
    LockName, LockNames, Mode, OpenAndAcquire, Patience, Reentry, Refusal, RequestNo, Secret, SessionEnd, SessionId,
    Ticket, Token, Ttl, Value, Waiting, Want,
};

use super::observed::{Observed, ObservedLock, ObservedSession};

type Outcome = Result<Answer, Refusal>;

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) limits: Limits,
    last_token: u64,
    last_arrival: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    /// The locks in use.
    pub(crate) locks: BTreeMap<LockName, Lock>,
    /// Everything that is held, withheld or waited for, in the order of the requests.
    pub(crate) claims: Vec<Claim>,
}

#[derive(Clone)]
pub(crate) struct Session {
    ttl: Ttl,
    label: Label,
    /// The requests that have ended, in that order.
    answered: Vec<PastRequest>,
    /// An unknown request up to this number may have been carried out.
    forgotten: u64,
    is_for_one_request: bool,
}

#[derive(Clone)]
struct PastRequest {
    number: RequestNo,
    /// `None` for one that was cancelled before it came.
    request: Option<Command>,
    outcome: Outcome,
}

#[derive(Clone)]
pub(crate) struct Lock {
    /// `None` for an ordinary lock.
    pub(crate) permits: Option<u32>,
    history: Vec<Ended>,
}

#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) state: ClaimState,
    pub(crate) request: Acquire,
    value: Option<Value>,
    secret: Option<Secret>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimState {
    Waiting(Ticket),
    Held(Token),
    Withheld(Token),
}

/// The numbers that the machine chose in this step.
struct Assigned {
    ticket: Option<Ticket>,
    token: Option<Token>,
    moved_to: Option<Token>,
    /// The tokens of the waiters that were granted.
    waited: BTreeMap<Ticket, Token>,
}

impl Assigned {
    fn by(applied: &Applied) -> Assigned {
        let mut assigned = Assigned { ticket: None, token: None, moved_to: None, waited: BTreeMap::new() };
        match applied.answer {
            Ok(Answer::Queued { ticket }) => assigned.ticket = Some(ticket),
            Ok(Answer::Granted { token }) => assigned.token = Some(token),
            Ok(Answer::Forced { moved_to, .. }) => assigned.moved_to = Some(moved_to),
            Ok(
                Answer::Opened { .. } | Answer::Busy | Answer::Done | Answer::Raised { .. } | Answer::Matched { .. },
            )
            | Err(_) => {}
        }
        for event in &applied.events {
            if let Event::Granted { ticket: Some(ticket), token, .. } = event {
                assert!(assigned.waited.insert(*ticket, *token).is_none(), "a wait was granted twice");
            }
        }
        assigned
    }
}

impl Claim {
    pub(crate) fn session(&self) -> SessionId {
        self.request.caller.session
    }

    pub(crate) fn number(&self) -> Option<RequestNo> {
        self.request.caller.number
    }

    pub(crate) fn names(&self) -> LockNames {
        self.request.wants.iter().map(|want| want.lock.clone()).collect()
    }

    pub(crate) fn want(&self, lock: &LockName) -> Option<&Want> {
        self.request.wants.iter().find(|want| want.lock == *lock)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, ClaimState::Waiting(_))
    }

    /// Returns the token of a claim that is held or withheld.
    pub(crate) fn token(&self) -> Option<Token> {
        match self.state {
            ClaimState::Waiting(_) => None,
            ClaimState::Held(token) | ClaimState::Withheld(token) => Some(token),
        }
    }

    /// Returns whether it is this session's, and not withheld.
    fn is_of(&self, session: SessionId) -> bool {
        self.session() == session && !matches!(self.state, ClaimState::Withheld(_))
    }
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Model {
        Model {
            limits,
            last_token: 0,
            last_arrival: 0,
            sessions: BTreeMap::new(),
            locks: BTreeMap::new(),
            claims: Vec::new(),
        }
    }

    /// Applies the command, and asserts that the machine gave the same answer and events.
    pub(crate) fn step(&mut self, command: &Command, applied: &Applied) {
        let mut events = Vec::new();
        let answer = self.answer(command, &Assigned::by(applied), &mut events);
        assert_eq!(applied.answer, answer, "the machine's answer (left) is not the model's (right)");
        assert!(same_in_any_order(&applied.events, &events), "{:#?} is not the model's: {events:#?}", applied.events);
    }

    fn answer(&mut self, command: &Command, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        let Some(Caller { session, number: Some(number) }) = command.caller() else {
            return self.perform(command, assigned, events);
        };
        self.check_session(session)?;
        if self.sessions[&session].is_for_one_request {
            return Err(Refusal::ForOneRequest { session });
        }
        if let Some(first) = self.first_answer(session, number, command) {
            return first;
        }
        let outcome = self.perform(command, assigned, events);
        if !matches!(outcome, Ok(Answer::Granted { .. } | Answer::Queued { .. })) {
            self.remember(session, number, Some(command.clone()), outcome.clone());
        }
        outcome
    }

    /// Returns the first answer to a repeat, or the refusal of a number that was used for another request or is too
    /// old; `None` for a new request.
    fn first_answer(&self, session: SessionId, number: RequestNo, command: &Command) -> Option<Outcome> {
        if let Some(at) = self.claim_numbered(session, number) {
            let claim = &self.claims[at];
            return Some(match claim.state {
                _ if Command::Acquire(claim.request.clone()) != *command => Err(Refusal::NumberReused { number }),
                ClaimState::Waiting(ticket) => Ok(Answer::Queued { ticket }),
                ClaimState::Held(token) | ClaimState::Withheld(token) => Ok(Answer::Granted { token }),
            });
        }
        let session = &self.sessions[&session];
        if let Some(answered) = session.answered.iter().find(|answered| answered.number == number) {
            let same = answered.request.as_ref().is_none_or(|request| request == command);
            return Some(if same { answered.outcome.clone() } else { Err(Refusal::NumberReused { number }) });
        }
        (number.get() <= session.forgotten).then_some(Err(Refusal::NumberForgotten { number }))
    }

    /// Keeps an outcome for repeats, and forgets the oldest beyond the limit. At least one is kept.
    fn remember(&mut self, session: SessionId, number: RequestNo, request: Option<Command>, outcome: Outcome) {
        let most = self.limits.answers_per_session.max(1) as usize;
        let session = self.sessions.get_mut(&session).expect("only open sessions have requests");
        session.answered.push(PastRequest { number, request, outcome });
        while session.answered.len() > most {
            let oldest = session.answered.remove(0);
            session.forgotten = session.forgotten.max(oldest.number.get());
        }
    }

    /// Keeps the outcome of a claim's request, if it was numbered.
    fn remember_claim(&mut self, claim: &Claim, outcome: Outcome) {
        if let Some(number) = claim.number() {
            self.remember(claim.session(), number, Some(Command::Acquire(claim.request.clone())), outcome);
        }
    }

    /// Returns the claim of this request, if it still waits or is held.
    fn claim_numbered(&self, session: SessionId, number: RequestNo) -> Option<usize> {
        self.claims.iter().position(|claim| claim.is_of(session) && claim.number() == Some(number))
    }

    fn perform(&mut self, command: &Command, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        match command {
            Command::OpenSession { session, ttl, label } => self.open(*session, *ttl, label, events),
            Command::CloseSession { session } => self.end(*session, SessionEnd::Closed, assigned, events),
            Command::ExpireSession { session } => self.end(*session, SessionEnd::Expired, assigned, events),
            Command::Acquire(request) => self.acquire(request, assigned, events),
            Command::Release { caller, lock, token } => self.release(*caller, lock, *token, assigned, events),
            Command::Cancel { caller, waiting } => self.cancel(*caller, *waiting, assigned, events),
            Command::Publish { caller, lock, token, value } => self.publish(*caller, lock, *token, value, events),
            Command::ForceRelease { lock, only, by, reason } => self.force(lock, *only, by, reason, assigned, events),
            Command::Resize { lock, limit } => self.resize(lock, *limit, assigned, events),
            Command::EndDelay { lock, token } => self.end_delay(lock, *token, assigned, events),
            Command::RaiseTokens { above } => {
                let last = self.last_token;
                if above.get() > last {
                    self.last_token = above.get();
                    events.push(Event::TokensRaised { above: *above });
                }
                Ok(Answer::Raised { last })
            }
            Command::Configure { limits } => {
                self.limits = limits.clone();
                events.push(Event::Configured { limits: limits.clone() });
                Ok(Answer::Done)
            }
            Command::OpenAndAcquire(request) => self.open_and_acquire(request, assigned, events),
            Command::ExtendHeld { locks, secret, ttl } => self.extend(locks, secret, *ttl, events),
            Command::ReleaseHeld { locks, secret } => self.release_held(locks, secret, assigned, events),
        }
    }

    fn open_and_acquire(
        &mut self,
        request: &OpenAndAcquire,
        assigned: &Assigned,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let OpenAndAcquire { ttl, label, secret, renews, acquire } = request;
        let session = acquire.caller.session;
        if *ttl != Ttl::ENDLESS {
            self.check_ttl(*ttl)?;
        }
        self.check_new_session(session, label)?;
        self.check_request(acquire)?;
        if let Some(secret) = secret {
            self.at_most(Limit::ValueBytes, secret.as_bytes().len() as u64)?;
            if acquire.wants.iter().any(|want| want.mode != Mode::Exclusive) {
                return Err(Refusal::SecretNotPossible);
            }
        }
        let names = |request: &Acquire| {
            let mut names: Vec<_> = request.wants.iter().map(|want| want.lock.clone()).collect();
            names.sort();
            names
        };
        let same = |claim: &&Claim| {
            matches!(claim.state, ClaimState::Held(_))
                && claim.secret == *secret
                && names(&claim.request) == names(acquire)
        };
        if let Some(held) = self.claims.iter().find(same).filter(|_| *renews && secret.is_some()) {
            let (session, token) = (held.session(), held.token().expect("it is held"));
            self.change_ttl(session, *ttl, events);
            return Ok(Answer::Granted { token });
        }
        // If nothing comes of it, it is as if nothing had been opened.
        let (before, mut opened) = (self.clone(), Vec::new());
        self.add_session(session, *ttl, label, &mut opened);
        let outcome = self.acquire(acquire, assigned, &mut opened);
        if !matches!(outcome, Ok(Answer::Granted { .. } | Answer::Queued { .. })) {
            *self = before;
            return outcome;
        }
        self.sessions.get_mut(&session).expect("just opened").is_for_one_request = true;
        self.claims.last_mut().expect("just made").secret = secret.clone();
        events.append(&mut opened);
        outcome
    }

    fn change_ttl(&mut self, session: SessionId, ttl: Ttl, events: &mut Vec<Event>) {
        self.sessions.get_mut(&session).expect("a holder's session is open").ttl = ttl;
        events.push(Event::TtlChanged { session, ttl });
    }

    /// Returns which claim holds each of these locks with the secret, if any.
    fn with_secret(&self, locks: &[LockName], secret: &Secret) -> Result<(Vec<Option<usize>>, u32), Refusal> {
        self.at_most(Limit::LocksPerRequest, locks.len() as u64)?;
        if locks.is_empty() {
            return Err(Refusal::NoLocks);
        }
        let (mut found, mut others) = (Vec::new(), 0);
        for (at, lock) in locks.iter().enumerate() {
            if locks[..at].contains(lock) {
                return Err(Refusal::NamedTwice { lock: lock.clone() });
            }
            let holder = self.claims.iter().position(|claim| !claim.is_waiting() && claim.want(lock).is_some());
            let own = holder.and_then(|at| self.claims[at].secret.as_ref());
            others += u32::from(holder.is_some() && own != Some(secret));
            found.push(holder.filter(|_| own == Some(secret)));
        }
        Ok((found, others))
    }

    /// Every lock of the grants must be named.
    fn check_whole(&self, found: &[Option<usize>], locks: &[LockName]) -> Result<(), Refusal> {
        for at in found.iter().flatten() {
            if let Some(lock) = self.claims[*at].names().into_iter().find(|name| !locks.contains(name)) {
                return Err(Refusal::PartOfGrant { lock });
            }
        }
        Ok(())
    }

    fn extend(&mut self, locks: &[LockName], secret: &Secret, ttl: Ttl, events: &mut Vec<Event>) -> Outcome {
        self.check_ttl(ttl)?;
        let (found, others) = self.with_secret(locks, secret)?;
        self.check_whole(&found, locks)?;
        if found.contains(&None) {
            return Ok(Answer::Matched { locks: 0, others });
        }
        let mut sessions: Vec<_> = found.iter().flatten().map(|at| self.claims[*at].session()).collect();
        sessions.sort();
        sessions.dedup();
        for session in sessions {
            self.change_ttl(session, ttl, events);
        }
        Ok(Answer::Matched { locks: found.len() as u32, others })
    }

    fn release_held(
        &mut self,
        locks: &[LockName],
        secret: &Secret,
        assigned: &Assigned,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let (found, others) = self.with_secret(locks, secret)?;
        self.check_whole(&found, locks)?;
        let found: Vec<usize> = found.into_iter().flatten().collect();
        let tokens: Vec<_> = found.iter().map(|at| self.claims[*at].token()).collect();
        for token in &tokens {
            if let Some(at) = self.claims.iter().position(|claim| claim.token() == *token) {
                self.end_grant(at, &Ending::Released, events);
                self.claims.remove(at);
            }
        }
        self.settle(assigned, events);
        Ok(Answer::Matched { locks: tokens.len() as u32, others })
    }

    /// Ends the sessions that were opened for one request, which neither waits nor is held any more.
    fn end_done_sessions(&mut self, events: &mut Vec<Event>) {
        let is_done = |(id, session): (&SessionId, &Session)| {
            let is_done = session.is_for_one_request && !self.claims.iter().any(|claim| claim.is_of(*id));
            is_done.then_some(*id)
        };
        let done: Vec<_> = self.sessions.iter().filter_map(is_done).collect();
        for session in done {
            self.sessions.remove(&session);
            events.push(Event::SessionEnded { session, how: SessionEnd::Closed });
        }
    }

    fn open(&mut self, session: SessionId, ttl: Ttl, label: &Label, events: &mut Vec<Event>) -> Outcome {
        self.check_ttl(ttl)?;
        self.check_new_session(session, label)?;
        self.add_session(session, ttl, label, events);
        Ok(Answer::Opened { session })
    }

    fn check_ttl(&self, ttl: Ttl) -> Result<(), Refusal> {
        let (value, min) = (ttl.as_ms(), self.limits.of(Limit::TtlMinMs));
        if value < min {
            return Err(Refusal::UnderLimit { limit: Limit::TtlMinMs, min, value });
        }
        self.at_most(Limit::TtlMaxMs, value)
    }

    fn check_new_session(&self, session: SessionId, label: &Label) -> Result<(), Refusal> {
        self.at_most(Limit::LabelBytes, label.as_str().len() as u64)?;
        self.at_most(Limit::Sessions, self.sessions.len() as u64 + 1)?;
        if self.sessions.contains_key(&session) {
            return Err(Refusal::SessionExists { session });
        }
        Ok(())
    }

    fn add_session(&mut self, session: SessionId, ttl: Ttl, label: &Label, events: &mut Vec<Event>) {
        let label = label.clone();
        let fresh = Session { ttl, label, answered: Vec::new(), forgotten: 0, is_for_one_request: false };
        self.sessions.insert(session, fresh);
        events.push(Event::SessionOpened { session, ttl });
    }

    fn end(&mut self, session: SessionId, how: SessionEnd, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        self.check_session(session)?;
        while let Some(at) = self.claims.iter().position(|claim| claim.is_of(session)) {
            match (self.claims[at].state, self.claims[at].request.delay) {
                (ClaimState::Waiting(_), _) => {
                    self.leave_queue(at, Departure::SessionEnded(how), events);
                }
                (ClaimState::Held(token), Some(delay)) if how == SessionEnd::Expired => {
                    self.end_grant(at, &Ending::SessionEnded(how), events);
                    let claim = &mut self.claims[at];
                    (claim.state, claim.value, claim.secret) = (ClaimState::Withheld(token), None, None);
                    events.push(Event::Withheld { locks: claim.names(), token, delay });
                }
                _ => {
                    self.end_grant(at, &Ending::SessionEnded(how), events);
                    self.claims.remove(at);
                }
            }
        }
        self.sessions.remove(&session);
        events.push(Event::SessionEnded { session, how });
        self.settle(assigned, events);
        Ok(Answer::Done)
    }

    fn acquire(&mut self, request: &Acquire, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        let session = request.caller.session;
        self.check_session(session)?;
        if self.sessions[&session].is_for_one_request {
            return Err(Refusal::ForOneRequest { session });
        }
        self.check_request(request)?;
        self.check_locks(request)?;
        let free =
            request.wants.iter().all(|want| self.queue(&want.lock).next().is_none() && self.has_room_for(want));
        if !free && request.patience == Patience::Try {
            return Ok(Answer::Busy);
        }
        self.check_room(request, free)?;
        if free && self.last_token == Token::MAX.get() {
            return Err(Refusal::TokensExhausted { max: Token::MAX });
        }
        for want in &request.wants {
            let permits = match want.mode {
                Mode::Exclusive | Mode::Shared => None,
                Mode::Permits { of, .. } => Some(of),
            };
            self.locks.entry(want.lock.clone()).or_insert(Lock { permits, history: Vec::new() });
        }
        let locks = request.wants.iter().map(|want| want.lock.clone()).collect();
        if free {
            let token = assigned.token.expect("the lock is free, so it should have been granted");
            self.raise_to(token);
            self.claims.push(Claim {
                state: ClaimState::Held(token),
                request: request.clone(),
                value: request.value.clone(),
                secret: None,
            });
            self.push_grant(self.claims.len() - 1, token, None, events);
            Ok(Answer::Granted { token })
        } else {
            let ticket = assigned.ticket.expect("the lock is not free, so the request should have been queued");
            assert!(ticket.arrival() > self.last_arrival, "a ticket was assigned twice");
            self.last_arrival = ticket.arrival();
            self.claims.push(Claim {
                state: ClaimState::Waiting(ticket),
                request: request.clone(),
                value: request.value.clone(),
                secret: None,
            });
            events.push(Event::Queued { ticket, session, locks });
            Ok(Answer::Queued { ticket })
        }
    }

    fn check_request(&self, request: &Acquire) -> Result<(), Refusal> {
        if request.wants.is_empty() {
            return Err(Refusal::NoLocks);
        }
        self.at_most(Limit::LocksPerRequest, request.wants.len() as u64)?;
        let mut before: Vec<&LockName> = Vec::new();
        for Want { lock, mode } in &request.wants {
            self.at_most(Limit::NameBytes, lock.as_str().len() as u64)?;
            if let Mode::Permits { count, of } = *mode {
                if of == 0 || of == u32::MAX {
                    return Err(Refusal::BadLimit { limit: of });
                }
                if count == 0 || count > of {
                    return Err(Refusal::BadPermits { count, of });
                }
            }
            if before.contains(&lock) {
                return Err(Refusal::NamedTwice { lock: lock.clone() });
            }
            before.push(lock);
        }
        if let Some(delay) = request.delay {
            self.at_most(Limit::DelayMaxMs, delay.as_ms())?;
        }
        if let Some(value) = &request.value {
            self.at_most(Limit::ValueBytes, value.as_bytes().len() as u64)?;
            if request.wants.len() != 1 || request.wants[0].mode != Mode::Exclusive {
                return Err(Refusal::ValueNotPossible);
            }
        }
        Ok(())
    }

    fn check_locks(&self, request: &Acquire) -> Result<(), Refusal> {
        for want in &request.wants {
            let Some(in_use) = self.locks.get(&want.lock) else { continue };
            let lock = want.lock.clone();
            match (in_use.permits, want.mode) {
                (None, Mode::Permits { of, .. }) => {
                    return Err(Refusal::WrongKind { lock, is: Kind::Lock, asked: Kind::Semaphore { limit: of } });
                }
                (Some(limit), Mode::Exclusive | Mode::Shared) => {
                    return Err(Refusal::WrongKind { lock, is: Kind::Semaphore { limit }, asked: Kind::Lock });
                }
                (Some(limit), Mode::Permits { of, .. }) if limit != of => {
                    return Err(Refusal::LimitDiffers { lock, limit, asked: of });
                }
                _ => {}
            }
            let own = self.holders(&want.lock).into_iter().find(|claim| claim.is_of(request.caller.session));
            if let (Reentry::Refuse, Some(token)) = (request.reentry, own.and_then(Claim::token)) {
                return Err(Refusal::AlreadyHeld { lock, token });
            }
        }
        Ok(())
    }

    fn check_room(&self, request: &Acquire, free: bool) -> Result<(), Refusal> {
        let wanted = request.wants.len();
        self.at_most(Limit::LocksPerSession, (self.entries_of(request.caller.session) + wanted) as u64)?;
        let new = request.wants.iter().filter(|want| !self.locks.contains_key(&want.lock)).count();
        self.at_most(Limit::Locks, (self.locks.len() + new) as u64)?;
        for want in request.wants.iter().filter(|_| !free) {
            if self.locks.contains_key(&want.lock) {
                self.at_most(Limit::WaitersPerLock, self.queue(&want.lock).count() as u64 + 1)?;
            }
        }
        Ok(())
    }

    fn release(
        &mut self,
        caller: Option<Caller>,
        lock: &LockName,
        token: Token,
        assigned: &Assigned,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let at = self.held(caller, lock, token)?;
        self.end_grant(at, &Ending::Released, events);
        let claim = self.claims.remove(at);
        self.remember_claim(&claim, Ok(Answer::Granted { token }));
        self.settle(assigned, events);
        Ok(Answer::Done)
    }

    /// Cancels a wait. A ticket identifies a wait until it ends, a number identifies the request as long as the session
    /// remembers it.
    fn cancel(&mut self, caller: Caller, waiting: Waiting, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        let session = caller.session;
        self.check_session(session)?;
        let at = match waiting {
            Waiting::Request(number) if caller.number == Some(number) => {
                return Err(Refusal::NumberReused { number });
            }
            Waiting::Request(number) => self.claim_numbered(session, number),
            Waiting::Ticket(ticket) => self
                .claims
                .iter()
                .position(|claim| claim.session() == session && claim.state == ClaimState::Waiting(ticket)),
        };
        match (at, waiting) {
            (Some(at), _) => {
                if let Some(token) = self.claims[at].token() {
                    return Err(Refusal::AlreadyGranted { token });
                }
                let claim = self.leave_queue(at, Departure::Cancelled, events);
                if let Some(number) = claim.number() {
                    self.remember_claim(&claim, Err(Refusal::Withdrawn { number }));
                }
                self.settle(assigned, events);
                Ok(Answer::Done)
            }
            (None, Waiting::Ticket(_)) => Err(Refusal::NotWaiting),
            (None, Waiting::Request(number)) => self.cancel_without_claim(session, number),
        }
    }

    /// Cancels a request without a claim: it has ended, or it has not arrived yet and is refused when it does.
    fn cancel_without_claim(&mut self, session: SessionId, number: RequestNo) -> Outcome {
        let Session { answered, forgotten, .. } = &self.sessions[&session];
        let withdrawn = Err(Refusal::Withdrawn { number });
        match answered.iter().find(|answered| answered.number == number) {
            Some(answered) if answered.outcome == withdrawn => Ok(Answer::Done),
            Some(_) => Err(Refusal::NotWaiting),
            None if number.get() <= *forgotten => Err(Refusal::NumberForgotten { number }),
            None => {
                self.remember(session, number, None, withdrawn);
                Ok(Answer::Done)
            }
        }
    }

    fn publish(
        &mut self,
        caller: Caller,
        lock: &LockName,
        token: Token,
        value: &Value,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let at = self.held(Some(caller), lock, token)?;
        self.at_most(Limit::ValueBytes, value.as_bytes().len() as u64)?;
        let claim = &mut self.claims[at];
        if claim.request.wants.len() != 1 || claim.request.wants[0].mode != Mode::Exclusive {
            return Err(Refusal::ValueNotPossible);
        }
        claim.value = Some(value.clone());
        events.push(Event::Published { lock: lock.clone(), token, value: value.clone() });
        Ok(Answer::Done)
    }

    fn force(
        &mut self,
        lock: &LockName,
        only: Option<Token>,
        by: &Label,
        reason: &Label,
        assigned: &Assigned,
        events: &mut Vec<Event>,
    ) -> Outcome {
        self.at_most(Limit::LabelBytes, by.as_str().len() as u64)?;
        self.at_most(Limit::LabelBytes, reason.as_str().len() as u64)?;
        if reason.as_str().trim().is_empty() {
            return Err(Refusal::NoReason { lock: lock.clone() });
        }
        let tokens: Vec<Token> = match only {
            Some(token) => self.with_token(lock, token).map(|_| vec![token])?,
            None => self.holders(lock).into_iter().filter_map(Claim::token).collect(),
        };
        if tokens.is_empty() {
            return Err(Refusal::NoHolder { lock: lock.clone() });
        }
        if self.last_token == Token::MAX.get() {
            return Err(Refusal::TokensExhausted { max: Token::MAX });
        }
        let moved_to = assigned.moved_to.expect("the lock should have been taken away");
        self.raise_to(moved_to);
        let force = Arc::new(Force { by: by.clone(), reason: reason.clone(), moved_to });
        for token in &tokens {
            let at = self.with_token(lock, *token)?;
            if let ClaimState::Held(token) = self.claims[at].state {
                self.end_grant(at, &Ending::Forced(force.clone()), events);
                let claim = self.claims.remove(at);
                self.remember_claim(&claim, Ok(Answer::Granted { token }));
            } else {
                let claim = self.claims.remove(at);
                let force = Some(force.clone());
                events.push(Event::DelayEnded { locks: claim.names(), token: *token, force });
            }
        }
        self.settle(assigned, events);
        Ok(Answer::Forced { grants: tokens.len() as u32, moved_to })
    }

    fn resize(&mut self, lock: &LockName, limit: u32, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        let in_use = self.locks.get_mut(lock).ok_or_else(|| Refusal::NoSuchLock { lock: lock.clone() })?;
        let Some(permits) = &mut in_use.permits else {
            let asked = Kind::Semaphore { limit };
            return Err(Refusal::WrongKind { lock: lock.clone(), is: Kind::Lock, asked });
        };
        if limit == 0 || limit == u32::MAX {
            return Err(Refusal::BadLimit { limit });
        }
        *permits = limit;
        events.push(Event::Resized { lock: lock.clone(), limit });
        let refusal = Refusal::ResizedBelow { lock: lock.clone(), limit };
        let never_granted = |claim: &Claim| {
            claim.is_waiting() && claim.want(lock).is_some_and(|want| need(want.mode) > u64::from(limit))
        };
        while let Some(at) = self.claims.iter().position(never_granted) {
            let claim = self.leave_queue(at, Departure::Refused(refusal.clone()), events);
            self.remember_claim(&claim, Err(refusal.clone()));
        }
        self.settle(assigned, events);
        Ok(Answer::Done)
    }

    fn end_delay(&mut self, lock: &LockName, token: Token, assigned: &Assigned, events: &mut Vec<Event>) -> Outcome {
        let at = self.with_token(lock, token)?;
        if let ClaimState::Held(_) = self.claims[at].state {
            return Err(Refusal::NotWithheld { lock: lock.clone(), token });
        }
        let claim = self.claims.remove(at);
        events.push(Event::DelayEnded { locks: claim.names(), token, force: None });
        self.settle(assigned, events);
        Ok(Answer::Done)
    }

    /// Grants waiting requests, each time the first that can be granted, then forgets the idle locks. The very
    /// last token may go to a different waiter in another order, so there the model follows the machine.
    fn settle(&mut self, assigned: &Assigned, events: &mut Vec<Event>) {
        self.end_done_sessions(events);
        let before = self.last_token;
        let last = assigned.waited.values().map(|token| token.get()).max().unwrap_or(before).max(before);
        let exhausted = last == Token::MAX.get();
        let is_next = |model: &Model, at: usize| match model.claims[at].state {
            ClaimState::Waiting(ticket) => {
                model.can_be_granted(at) && (!exhausted || assigned.waited.contains_key(&ticket))
            }
            _ => false,
        };
        while let Some(at) = (0..self.claims.len()).find(|at| is_next(self, *at)) {
            let ClaimState::Waiting(ticket) = self.claims[at].state else { unreachable!("only waiters are next") };
            let token = *assigned.waited.get(&ticket).expect("the waiter can be granted, so it should have been");
            assert!(token.get() > before, "a token is not greater than all before it");
            self.claims[at].state = ClaimState::Held(token);
            self.push_grant(at, token, Some(ticket), events);
        }
        self.last_token = last;
        let claims = &self.claims;
        self.locks.retain(|name, _| claims.iter().any(|claim| claim.want(name).is_some()));
    }

    /// Returns whether no earlier request waits for any of its locks, and enough is left of each.
    pub(crate) fn can_be_granted(&self, at: usize) -> bool {
        let claim = &self.claims[at];
        let mut earlier = self.claims[..at].iter().filter(|claim| claim.is_waiting());
        let overtakes = earlier.any(|other| claim.request.wants.iter().any(|want| other.want(&want.lock).is_some()));
        !overtakes && claim.request.wants.iter().all(|want| self.has_room_for(want))
    }

    /// Returns whether the holders leave enough permits for this want. Ignores the queue.
    fn has_room_for(&self, want: &Want) -> bool {
        let holders = self.holders(&want.lock);
        let modes: Vec<Mode> = holders.iter().filter_map(|claim| claim.want(&want.lock)).map(|w| w.mode).collect();
        match want.mode {
            Mode::Exclusive => modes.is_empty(),
            Mode::Shared => modes.iter().all(|mode| *mode == Mode::Shared),
            Mode::Permits { of, .. } => {
                let limit = self.locks.get(&want.lock).and_then(|lock| lock.permits).unwrap_or(of);
                modes.iter().map(|mode| need(*mode)).sum::<u64>() + need(want.mode) <= u64::from(limit)
            }
        }
    }

    /// Writes the ending down. The caller removes the claim, or withholds it.
    fn end_grant(&mut self, at: usize, how: &Ending, events: &mut Vec<Event>) {
        let claim = self.claims[at].clone();
        let (session, label) = (claim.session(), self.sessions[&claim.session()].label.clone());
        let token = claim.token().expect("only a grant ends");
        let most = self.limits.history_per_lock as usize;
        for want in claim.request.wants.iter().filter(|_| most > 0) {
            let mode = self.shown(want);
            let lock = self.locks.get_mut(&want.lock).expect("a lock that is held is in use");
            lock.history.push(Ended { session, label: label.clone(), token, mode, how: how.clone() });
            let beyond = lock.history.len().saturating_sub(most);
            lock.history.drain(..beyond);
        }
        events.push(Event::GrantEnded { locks: claim.names(), session, token, how: how.clone() });
    }

    fn leave_queue(&mut self, at: usize, why: Departure, events: &mut Vec<Event>) -> Claim {
        let claim = self.claims.remove(at);
        let ClaimState::Waiting(ticket) = claim.state else { unreachable!("only a waiter leaves a queue") };
        events.push(Event::LeftQueue { ticket, session: claim.session(), locks: claim.names(), why });
        claim
    }

    fn push_grant(&self, at: usize, token: Token, ticket: Option<Ticket>, events: &mut Vec<Event>) {
        let claim = &self.claims[at];
        let (locks, session, number) = (claim.names(), claim.session(), claim.number());
        events.push(Event::Granted { locks, session, token, ticket, number });
        if let Some(value) = claim.value.clone() {
            events.push(Event::Published { lock: claim.request.wants[0].lock.clone(), token, value });
        }
    }

    fn raise_to(&mut self, token: Token) {
        assert!(token.get() > self.last_token, "a token is not greater than all before it");
        self.last_token = token.get();
    }

    /// Returns the claim that takes this lock with this token, held or withheld.
    fn with_token(&self, lock: &LockName, token: Token) -> Result<usize, Refusal> {
        if token.get() > self.last_token {
            return Err(Refusal::NeverGranted { token, last: self.last_token });
        }
        let found = self.claims.iter().position(|claim| claim.token() == Some(token) && claim.want(lock).is_some());
        found.ok_or_else(|| Refusal::NotHeld { lock: lock.clone(), token })
    }

    /// Returns the claim that holds this lock with this token, of this caller if one is given.
    fn held(&self, caller: Option<Caller>, lock: &LockName, token: Token) -> Result<usize, Refusal> {
        if let Some(caller) = caller {
            self.check_session(caller.session)?;
        }
        let at = self.with_token(lock, token)?;
        if let ClaimState::Withheld(_) = self.claims[at].state {
            return Err(Refusal::NotHeld { lock: lock.clone(), token });
        }
        if caller.is_some_and(|caller| caller.session != self.claims[at].session()) {
            return Err(Refusal::OtherSession { lock: lock.clone(), token });
        }
        Ok(at)
    }

    fn check_session(&self, session: SessionId) -> Result<(), Refusal> {
        if self.sessions.contains_key(&session) { Ok(()) } else { Err(Refusal::NoSuchSession { session }) }
    }

    fn at_most(&self, limit: Limit, value: u64) -> Result<(), Refusal> {
        let max = self.limits.of(limit);
        if value > max { Err(Refusal::OverLimit { limit, max, value }) } else { Ok(()) }
    }

    fn entries_of(&self, session: SessionId) -> usize {
        self.claims.iter().filter(|claim| claim.is_of(session)).map(|claim| claim.request.wants.len()).sum()
    }

    pub(crate) fn queue<'a>(&'a self, lock: &'a LockName) -> impl Iterator<Item = &'a Claim> {
        self.claims.iter().filter(|claim| claim.is_waiting() && claim.want(lock).is_some())
    }

    /// Returns the claims that hold or withhold the lock, oldest grant first.
    pub(crate) fn holders(&self, lock: &LockName) -> Vec<&Claim> {
        let holds = |claim: &&Claim| !claim.is_waiting() && claim.want(lock).is_some();
        let mut holders: Vec<&Claim> = self.claims.iter().filter(holds).collect();
        holders.sort_by_key(|claim| claim.token());
        holders
    }

    /// Returns a want's mode with the present limit, since a semaphore may have been resized.
    fn shown(&self, want: &Want) -> Mode {
        match (want.mode, self.locks[&want.lock].permits) {
            (Mode::Permits { count, .. }, Some(of)) => Mode::Permits { count, of },
            (mode, _) => mode,
        }
    }

    pub(crate) fn last_token(&self) -> Option<Token> {
        Token::new(self.last_token).ok()
    }

    pub(crate) fn observed(&self) -> Observed {
        let withheld = self.claims.iter().filter_map(|claim| match (claim.state, claim.request.delay) {
            (ClaimState::Withheld(token), Some(delay)) => Some((token, (claim.names().to_vec(), delay))),
            _ => None,
        });
        Observed {
            limits: self.limits.clone(),
            last_token: self.last_token(),
            sessions: self.sessions.iter().map(|(id, session)| (*id, self.observe_session(*id, session))).collect(),
            locks: self.locks.iter().map(|(name, lock)| (name.clone(), self.observe_lock(name, lock))).collect(),
            withheld: withheld.collect(),
        }
    }

    fn observe_session(&self, id: SessionId, session: &Session) -> ObservedSession {
        let held = self.claims.iter().filter(|claim| claim.is_of(id));
        ObservedSession {
            ttl: session.ttl,
            label: session.label.clone(),
            lock_count: self.entries_of(id),
            grants: held.filter_map(|claim| Some((claim.names().to_vec(), claim.token()?))).collect(),
        }
    }

    fn observe_lock(&self, name: &LockName, lock: &Lock) -> ObservedLock {
        let label = |claim: &Claim| self.sessions[&claim.session()].label.clone();
        let mode = |claim: &Claim| self.shown(claim.want(name).expect("a claim at this lock"));
        let holder = |claim: &Claim| match claim.state {
            ClaimState::Held(token) => (token, mode(claim), Some((claim.session(), label(claim)))),
            ClaimState::Withheld(token) => (token, mode(claim), None),
            ClaimState::Waiting(_) => unreachable!("a waiter does not hold"),
        };
        let waiter = |claim: &Claim| match claim.state {
            ClaimState::Waiting(ticket) => (ticket, mode(claim), claim.session(), label(claim)),
            _ => unreachable!("a holder does not wait"),
        };
        let holders = self.holders(name);
        ObservedLock {
            kind: lock.permits.map_or(Kind::Lock, |limit| Kind::Semaphore { limit }),
            value: holders.iter().find_map(|claim| claim.value.clone()),
            secret: holders.iter().find_map(|claim| claim.secret.clone()),
            holders: holders.into_iter().map(holder).collect(),
            waiters: self.queue(name).map(waiter).collect(),
            history: lock.history.clone(),
        }
    }
}

fn same_in_any_order(actual: &[Event], expected: &[Event]) -> bool {
    let mut left: Vec<&Event> = expected.iter().collect();
    let all_expected = actual.iter().all(|event| match left.iter().position(|other| *other == event) {
        Some(at) => {
            left.swap_remove(at);
            true
        }
        None => false,
    });
    all_expected && left.is_empty()
}

/// Returns the number of permits that a semaphore's mode takes.
fn need(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { count, .. } => u64::from(count),
        Mode::Exclusive | Mode::Shared => unreachable!("a lock has no permits"),
    }
}
