//! Locks that are held with a secret: requests that name a grant by its secret, or by the lock alone.

use palisade_core::{Command, GrantState, LockName, LockNames, Refusal, Secret, SessionId, Ttl};

use super::clients::ConnectionId;
use super::queries::ms;
use super::response::{HeldReport, Response};
use super::{Node, Origin, ReplyKind, RequestId};
use crate::request::Extension;

impl Node {
    /// Releases a lock by its name. The release names the token, so that it cannot end a later grant.
    pub(super) fn drop_held(&mut self, id: RequestId, lock: LockName) {
        let machine = self.replica.machine();
        let (session, token) = match machine.held_with_secret(&lock) {
            Ok(Some((session, token, _))) => (session, token),
            Ok(None) => return self.reply(id, Response::Matched { locks: 0, others: 0 }),
            Err(refusal) => return self.refuse(id, refusal),
        };
        let mut held = machine.session(session).into_iter().flat_map(|view| view.grants().collect::<Vec<_>>());
        if let Some(other) = held.find_map(|(locks, _)| locks.into_iter().find(|name| *name != lock)) {
            return self.refuse(id, Refusal::PartOfGrant { lock: other });
        }
        let release = Command::Release { caller: None, lock, token };
        self.submit_for(id.connection, release, Origin::Request(id, ReplyKind::Dropped));
    }

    /// Changes the TTL of a lock by its name.
    pub(super) fn expire_held(&mut self, id: RequestId, lock: LockName, ttl: Ttl) {
        match self.replica.machine().held_with_secret(&lock) {
            Ok(Some((_, _, secret))) => {
                let secret = secret.clone();
                self.extend_held(id, LockNames::from([lock]), secret, Extension::For(ttl));
            }
            Ok(None) => self.reply(id, Response::Matched { locks: 0, others: 0 }),
            Err(refusal) => self.refuse(id, refusal),
        }
    }

    pub(super) fn extend_held(&mut self, id: RequestId, locks: LockNames, secret: Secret, time: Extension) {
        let ttl = match time {
            Extension::For(ttl) => Ok(ttl),
            Extension::Add(extra) => match self.time_left(&locks, &secret) {
                Some(left) => Ttl::from_ms(left.saturating_add(extra)),
                // It is not held with this secret, or its session does not expire.
                None => return self.reply(id, Response::Matched { locks: 0, others: 0 }),
            },
        };
        match ttl {
            Ok(ttl) => {
                let extend = Command::ExtendHeld { locks, secret, ttl };
                self.submit_for(id.connection, extend, Origin::Request(id, ReplyKind::Matched));
            }
            Err(bad) => self.refuse(id, super::Refused::OverBound(format!("{bad}; nothing was changed"))),
        }
    }

    /// Returns how long these locks stay held with this secret, the shortest time of all.
    fn time_left(&self, locks: &[LockName], secret: &Secret) -> Option<u64> {
        let mut shortest = None;
        for lock in locks {
            let (session, _, held) = self.replica.machine().held_with_secret(lock).ok()??;
            let left = self.session_time_left(session).filter(|_| held == secret)?;
            shortest = Some(shortest.map_or(left, |other: u64| other.min(left)));
        }
        shortest
    }

    fn session_time_left(&self, session: SessionId) -> Option<u64> {
        self.sessions.deadline(session).map(|at| ms(at.saturating_sub(self.session_time())))
    }

    /// Returns how a lock is held. Another user's secret is not shown.
    pub(super) fn held_report(&self, connection: ConnectionId, lock: &LockName) -> Option<HeldReport> {
        let machine = self.replica.machine();
        let grant = machine.lock(lock)?.holders().next()?;
        let (session, label) = match grant.state {
            GrantState::Held { session, label } => (session, label),
            GrantState::Withheld => return Some(HeldReport { own: None, time_left_ms: None }),
        };
        let user = self.clients.context(connection)?.principal.user();
        let is_own = user.is_none_or(|user| user.owns(label.as_str()));
        let with_secret = machine.held_with_secret(lock).ok().flatten().filter(|_| is_own);
        let own = with_secret.map(|(_, token, secret)| (token, secret.clone()));
        Some(HeldReport { own, time_left_ms: self.session_time_left(session) })
    }
}
