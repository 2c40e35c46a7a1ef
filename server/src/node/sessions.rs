//! Sessions: their deadlines, the lock-delays of expired grants, and the connections that get their pushes.

use std::collections::HashMap;
use std::time::Duration;

use palisade_core::{Command, Delay, Ending, LockName, Refusal, Secret, SessionEnd, SessionId, Token, Ttl};
use smallvec::SmallVec;

use super::clients::{Clients, ConnectionId};
use super::queries::PendingRead;
use super::random::Random;
use super::response::{Push, Refused, Response};
use super::wheel::{Moment, Wheel};
use super::{Node, Recipients, RequestId, TICK};

pub(super) struct Sessions {
    ids: Random,
    deadlines: Wheel<SessionId>,
    /// The ends of lock-delays, by the token of the expired grant.
    delays: Wheel<Token>,
    withheld: HashMap<Token, LockName>,
    granted_at: HashMap<Token, Moment>,
    subscribers: HashMap<SessionId, Subscribers>,
    /// How many extensions of a grant of this lock with this secret are on their way: submitted, and not applied yet.
    extending: HashMap<(LockName, Secret), u32>,
}

/// Connections that get the pushes of a session, or of one wait. Usually one; a client that has reconnected may still
/// have requests under way on its old connection, and both must get the push.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Recipients);

impl Subscribers {
    pub(super) fn add(&mut self, connection: ConnectionId, clients: &Clients) {
        self.0.retain(|other| *other != connection && clients.is_connected(*other));
        self.0.push(connection);
    }

    pub(super) fn connected(&self, clients: &Clients) -> Recipients {
        self.0.iter().copied().filter(|connection| clients.is_connected(*connection)).collect()
    }
}

impl Sessions {
    pub(super) fn new(seed: u64) -> Sessions {
        Sessions {
            ids: Random::new(seed),
            deadlines: Wheel::new(),
            delays: Wheel::new(),
            withheld: HashMap::new(),
            granted_at: HashMap::new(),
            subscribers: HashMap::new(),
            extending: HashMap::new(),
        }
    }

    /// Forgets everything but the ids that were drawn.
    pub(super) fn clear(&mut self) {
        let ids = std::mem::replace(&mut self.ids, Random::new(0));
        *self = Sessions { ids, ..Sessions::new(0) };
    }

    /// Returns when to look for passed deadlines again, not later than so many ticks after the last look.
    pub(super) fn next_look(&self, ticks: u64) -> Moment {
        self.deadlines.next_look(ticks).min(self.delays.next_look(ticks))
    }

    pub(super) fn draw_id(&mut self) -> SessionId {
        SessionId::from_random(self.ids.draw())
    }

    pub(super) fn subscribe(&mut self, session: SessionId, connection: ConnectionId, clients: &Clients) {
        self.subscribers.entry(session).or_default().add(connection, clients);
    }

    pub(super) fn granted(&mut self, token: Token, now: Moment) {
        self.granted_at.insert(token, now);
    }

    pub(super) fn granted_at(&self, token: Token) -> Option<Moment> {
        self.granted_at.get(&token).copied()
    }

    pub(super) fn deadline(&self, session: SessionId) -> Option<Moment> {
        self.deadlines.get(session)
    }

    pub(super) fn delay_end(&self, token: Token) -> Option<Moment> {
        self.delays.get(token)
    }

    /// Counts an extension that was submitted.
    pub(super) fn extending<'a>(&mut self, locks: impl IntoIterator<Item = &'a LockName>, secret: &Secret) {
        for lock in locks {
            *self.extending.entry((lock.clone(), secret.clone())).or_default() += 1;
        }
    }

    /// Stops counting an extension that was applied.
    pub(super) fn extended<'a>(&mut self, locks: impl IntoIterator<Item = &'a LockName>, secret: &Secret) {
        for lock in locks {
            let key = (lock.clone(), secret.clone());
            if let Some(count) = self.extending.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.extending.remove(&key);
                }
            }
        }
    }

    pub(super) fn withhold(&mut self, token: Token, lock: LockName, delay: Delay, now: Moment) {
        self.delays.set(token, now + Duration::from_millis(delay.as_ms()));
        self.withheld.insert(token, lock);
    }

    pub(super) fn end_delay(&mut self, token: Token) {
        self.delays.remove(token);
        self.withheld.remove(&token);
    }
}

fn millis(ttl: Ttl) -> Duration {
    Duration::from_millis(ttl.as_ms())
}

impl Node {
    /// Restarts the TTL of every session, and every lock-delay.
    pub(super) fn restart_deadlines(&mut self) {
        let now = self.session_time();
        let Sessions { deadlines, delays, withheld, .. } = &mut self.sessions;
        deadlines.clear();
        delays.clear();
        withheld.clear();
        for session in self.replica.machine().sessions().filter(|session| session.ttl() != Ttl::ENDLESS) {
            deadlines.set(session.id(), now + millis(session.ttl()));
        }
        for (locks, token, delay) in self.replica.machine().withheld() {
            self.sessions.withhold(token, locks[0].clone(), delay, now);
        }
    }

    /// Keeps a session alive. Returns `None` if it has ended; only the leader knows that.
    pub(super) fn keep_alive(&mut self, session: SessionId) -> Result<Option<Ttl>, Refused> {
        if !self.is_leader() {
            return Err(Refused::NotLeader);
        }
        let Some(view) = self.replica.machine().session(session) else { return Ok(None) };
        let ttl = view.ttl();
        self.metrics.keepalives += 1;
        if ttl == Ttl::ENDLESS {
            return Ok(Some(ttl));
        }
        let deadline = self.session_time() + millis(ttl);
        Ok(self.sessions.deadlines.renew(session, deadline).then_some(ttl))
    }

    /// Keeps sessions alive. It is answered when a majority has confirmed that this node leads: otherwise a node that does not
    /// know yet that another leads would promise more time than the other one gives.
    pub(super) fn keep_alive_all(&mut self, id: RequestId, sessions: Vec<SessionId>) {
        let kept: Result<_, Refused> = sessions.into_iter().map(|session| self.keep_alive(session)).collect();
        match kept {
            Ok(kept) => self.reply_once_confirmed(id, Response::KeptAlive(kept)),
            Err(refused) => self.refuse(id, refused),
        }
    }

    /// Subscribes the connection to the session's pushes.
    pub(super) fn attach(&mut self, id: RequestId, session: SessionId) {
        match self.keep_alive(session) {
            Ok(Some(_)) => {
                self.sessions.subscribe(session, id.connection, &self.clients);
                self.replica.read(PendingRead::Attach(id, session));
            }
            Ok(None) => self.reply_once_confirmed(id, Response::Refused(Refusal::NoSuchSession { session }.into())),
            Err(refused) => self.refuse(id, refused),
        }
    }

    /// Replies with the tokens that the session holds, and returns how many they are. The client finds out from them which grants ended
    /// while it was not subscribed.
    pub(super) fn attached(&mut self, id: RequestId, session: SessionId) -> usize {
        let held = self.held(session);
        let count = held.len();
        let response = match self.replica.machine().session(session) {
            Some(view) => Response::Attached { session, ttl: view.ttl(), held },
            None => Response::Refused(Refusal::NoSuchSession { session }.into()),
        };
        self.reply(id, response);
        count
    }

    fn held(&self, session: SessionId) -> Vec<Token> {
        let view = self.replica.machine().session(session);
        view.map_or_else(Vec::new, |view| view.grants().map(|(_, token)| token).collect())
    }

    /// Pushes a loss to the client of a repeated request, if the grant in its answer has ended.
    pub(super) fn push_if_ended(&mut self, connection: ConnectionId, session: SessionId, token: Token) {
        if !self.held(session).contains(&token) {
            self.push(SmallVec::from([connection]), Push::Lost { session, token, how: None });
        }
    }

    pub(super) fn session_opened(&mut self, session: SessionId, ttl: Ttl) {
        self.start_deadline(session, ttl);
        self.user_sessions.opened(session, self.replica.machine());
    }

    /// Starts the TTL of a session that is new, or that has another one.
    pub(super) fn start_deadline(&mut self, session: SessionId, ttl: Ttl) {
        match ttl {
            Ttl::ENDLESS => self.sessions.deadlines.remove(session),
            ttl => self.sessions.deadlines.set(session, self.session_time() + millis(ttl)),
        }
    }

    pub(super) fn session_ended(&mut self, session: SessionId, how: SessionEnd) {
        self.sessions.deadlines.remove(session);
        self.user_sessions.ended(session);
        let subscribers = self.sessions.subscribers.remove(&session).unwrap_or_default();
        self.push(subscribers.connected(&self.clients), Push::SessionEnded { session, how });
    }

    pub(super) fn grant_ended(&mut self, session: SessionId, token: Token, how: &Ending) {
        self.sessions.granted_at.remove(&token);
        if *how == Ending::Released {
            return;
        }
        let Some(subscribers) = self.sessions.subscribers.get(&session) else { return };
        let to = subscribers.connected(&self.clients);
        self.push(to, Push::Lost { session, token, how: Some(how.clone()) });
    }

    /// Returns whether an extension of the session's grants is on its way. The locks and the secret identify it, because a
    /// client that does not wait for replies can submit it before the session is open.
    fn is_extending(&self, session: SessionId) -> bool {
        let machine = self.replica.machine();
        let is_extending = |lock: LockName| match machine.held_with_secret(&lock) {
            Ok(Some((_, _, secret))) => {
                let key = (lock, secret.clone());
                self.sessions.extending.contains_key(&key)
            }
            _ => false,
        };
        let grants = machine.session(session).into_iter().flat_map(|view| view.grants());
        !self.sessions.extending.is_empty() && grants.flat_map(|(locks, _)| locks).any(is_extending)
    }

    /// Proposes the end of every session and lock-delay whose time is over.
    pub(super) fn expire_sessions(&mut self) {
        let now = self.session_time();
        for session in self.sessions.deadlines.due(now) {
            match self.replica.machine().session(session) {
                // The node keeps a session alive that it has opened for a waiting acquire.
                Some(view) if self.waits.is_temporary(session) => {
                    let deadline = now + millis(view.ttl());
                    self.sessions.deadlines.set(session, deadline);
                }
                // The client may be told that the extension succeeded, so it is applied first. If it fails, the next tick
                // expires the session.
                Some(_) if self.is_extending(session) => self.sessions.deadlines.set(session, now + TICK),
                _ => self.expired.push_back(Command::ExpireSession { session }),
            }
        }
        for token in self.sessions.delays.due(now) {
            if let Some(lock) = self.sessions.withheld.remove(&token) {
                self.expired.push_back(Command::EndDelay { lock, token });
            }
        }
    }
}
