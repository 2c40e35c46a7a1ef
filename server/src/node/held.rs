//! Locks that are held with a secret: requests that name a grant by its secret, or by the lock alone.

use palisade_core::{Command, GrantState, LockName, LockNames, Refusal, Secret, SessionId, Token, Ttl};

use super::clients::ConnectionId;
use super::queries::ms;
use super::response::{HeldReport, Refused, Response};
use super::{Node, Origin, ReplyKind, RequestId};
use crate::request::Extension;

/// The response for a lock that is free, and for one that another client holds.
const FREE: Response = Response::Matched { locks: 0, others: 0 };
const OTHERS: Response = Response::Matched { locks: 0, others: 1 };

impl Node {
    /// Releases a lock by its name. The release names the token, so that it cannot end a later grant.
    pub(super) fn drop_held(&mut self, id: RequestId, lock: LockName) {
        let (session, token, _) = match self.held_from_here(id.connection, &lock) {
            Ok(Ok(held)) => held,
            Ok(Err(response)) => return self.reply_once_confirmed(id, response),
            Err(refusal) => return self.reply_once_confirmed(id, Response::Refused(refusal.into())),
        };
        let view = self.replica.machine().session(session);
        let mut held = view.into_iter().flat_map(|view| view.grants().collect::<Vec<_>>());
        if let Some(other) = held.find_map(|(locks, _)| locks.into_iter().find(|name| *name != lock)) {
            let refusal = Refusal::PartOfGrant { lock: other };
            return self.reply_once_confirmed(id, Response::Refused(refusal.into()));
        }
        let release = Command::Release { caller: None, lock, token };
        self.submit_for(id.connection, release, Origin::Request(id, ReplyKind::Dropped));
    }

    /// Changes the TTL of a lock by its name.
    pub(super) fn expire_held(&mut self, id: RequestId, lock: LockName, ttl: Ttl) {
        match self.held_from_here(id.connection, &lock) {
            Ok(Ok((_, _, secret))) => self.extend_held(id, LockNames::from([lock]), secret, Extension::For(ttl)),
            Ok(Err(response)) => self.reply_once_confirmed(id, response),
            Err(refusal) => self.reply_once_confirmed(id, Response::Refused(refusal.into())),
        }
    }

    /// Returns the grant of a lock that a client of the same user on the same host has taken with a secret; otherwise the
    /// response. A client that was paused for too long does not end the grant of a client on another host.
    fn held_from_here(
        &self,
        connection: ConnectionId,
        lock: &LockName,
    ) -> Result<Result<(SessionId, Token, Secret), Response>, Refusal> {
        let machine = self.replica.machine();
        let Some((session, token, secret)) = machine.held_with_secret(lock)? else { return Ok(Err(FREE)) };
        let label = self.clients.label(connection, None);
        let is_from_here =
            machine.session(session).is_some_and(|view| host(view.label().as_str()) == host(label.as_str()));
        Ok(if is_from_here { Ok((session, token, secret.clone())) } else { Err(OTHERS) })
    }

    pub(super) fn extend_held(&mut self, id: RequestId, locks: LockNames, secret: Secret, time: Extension) {
        if self.is_expiring(&locks, &secret) {
            return self.reply_once_confirmed(id, OTHERS);
        }
        let ttl = match (time, self.time_left(&locks, &secret)) {
            (Extension::For(ttl), _) | (Extension::Replace(ttl), Some(_)) => Ok(ttl),
            (Extension::Add(extra), Some(left)) => Ttl::from_ms(left.saturating_add(extra)),
            // It is not held with this secret, or does not end.
            (Extension::Replace(_) | Extension::Add(_), None) => return self.reply_once_confirmed(id, OTHERS),
        };
        match ttl {
            Ok(ttl) => {
                let ttl = self.at_least_shortest(ttl);
                self.sessions.extending(&locks, &secret);
                let kind = ReplyKind::Extended { locks: locks.clone(), secret: secret.clone() };
                let extend = Command::ExtendHeld { locks, secret, ttl };
                self.submit_for(id.connection, extend, Origin::Request(id, kind));
            }
            Err(bad) => {
                let refused = Refused::OverBound(format!("{bad}; nothing was changed"));
                self.reply_once_confirmed(id, Response::Refused(refused));
            }
        }
    }

    /// Returns whether any of these locks is held with this secret by a session whose deadline has passed. The command that
    /// ends the session is queued or proposed, so an extension would be acknowledged and then be void.
    pub(super) fn is_expiring<'a>(&self, locks: impl IntoIterator<Item = &'a LockName>, secret: &Secret) -> bool {
        let machine = self.replica.machine();
        let is_expiring = |lock| match machine.held_with_secret(lock) {
            Ok(Some((session, _, held))) if held == secret => {
                let has_ttl = machine.session(session).is_some_and(|view| view.ttl() != Ttl::ENDLESS);
                has_ttl && self.sessions.deadline(session).is_none()
            }
            _ => false,
        };
        // A node that is about to lead has set no deadlines yet.
        self.is_leading && locks.into_iter().any(is_expiring)
    }

    /// Returns the TTL, or the shortest one that the limits allow. A lock that is held a moment longer than asked is safe, and
    /// the libraries expect no error.
    pub(super) fn at_least_shortest(&self, ttl: Ttl) -> Ttl {
        let shortest = Ttl::from_ms(self.replica.machine().limits().ttl_min_ms.into());
        shortest.map_or(ttl, |shortest| ttl.max(shortest))
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

    /// Returns how a lock is held. Another user's secret is not shown, except to a client that knows it.
    pub(super) fn held_report(
        &self,
        connection: ConnectionId,
        lock: &LockName,
        known: Option<&Secret>,
    ) -> Option<HeldReport> {
        let machine = self.replica.machine();
        let grant = machine.lock(lock)?.holders().next()?;
        let (session, label) = match grant.state {
            GrantState::Held { session, label } => (session, label),
            GrantState::Withheld => {
                let ends_at = self.sessions.delay_end(grant.token);
                let time_left_ms = ends_at.map(|at| ms(at.saturating_sub(self.session_time())));
                return Some(HeldReport { own: None, time_left_ms });
            }
        };
        let user = self.clients.context(connection)?.principal.user();
        let is_own = user.is_none_or(|user| user.owns(label.as_str()));
        let with_secret = machine.held_with_secret(lock).ok().flatten();
        let shown = with_secret.filter(|(_, _, secret)| is_own || known == Some(secret));
        let own = shown.map(|(_, token, secret)| (token, secret.clone()));
        Some(HeldReport { own, time_left_ms: self.session_time_left(session) })
    }
}

/// Returns the user and the host in the label of a session that a command of Redis has opened.
fn host(label: &str) -> &str {
    label.rsplit_once(':').map_or(label, |(host, _port)| host)
}
