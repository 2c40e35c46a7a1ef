//! Checks a user's rights and a request's size before the request is proposed.

use palisade_core::{GrantState, Limit, Limits, LockName, Machine, Refusal, SessionId, Token};

use super::principal::Principal;
use super::response::Refused;
use crate::access::{User, Verb};
use crate::request::{ClusterRequest, Query, Request};

/// Why a user may not make a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Denial {
    /// A right is missing: to this lock, or to any.
    Missing(Verb, Option<LockName>),
    /// A right to all locks is missing.
    NotEverywhere(Verb),
    /// The session is another user's.
    NotYours(SessionId),
    /// The lock, session or grant that the request names does not exist.
    Refused(Refusal),
}

impl Denial {
    fn message(&self, user: &User) -> String {
        let name = user.name();
        match self {
            Denial::Missing(verb, Some(lock)) => format!("user '{name}' has no right to '{verb}' for lock '{lock}'"),
            Denial::Missing(verb, None) => format!("user '{name}' has no right to '{verb}' for any lock"),
            Denial::NotEverywhere(verb) => {
                format!("user '{name}' has no right to '{verb}' for all locks (a rule with the prefix '')")
            }
            Denial::NotYours(session) => format!("session {session} does not belong to user '{name}'"),
            Denial::Refused(refusal) => refusal.to_string(),
        }
    }
}

/// Checks the rights of a user, if the service has users, and the request's size.
pub(super) fn check(user: Option<&User>, request: &Request, machine: &Machine) -> Result<(), Refused> {
    if let Some(user) = user {
        check_rights(user, request, machine).map_err(|denial| refused(user, denial))?;
    }
    early_refusal(request, machine.limits()).map_or(Ok(()), |refusal| Err(refusal.into()))
}

/// Checks whether a principal may see the service's metrics, which are about all locks together.
pub(crate) fn check_metrics(principal: &Principal) -> Result<(), Refused> {
    let Some(user) = principal.user() else { return Ok(()) };
    check_any_lock(user, Verb::Observe).map_err(|denial| refused(user, denial))
}

/// Checks whether a principal may see the cluster, or change it.
pub(crate) fn check_cluster(principal: &Principal, request: &ClusterRequest) -> Result<(), Refused> {
    let user = match principal {
        Principal::Anyone => return Ok(()),
        Principal::Unauthenticated => return Err(Refused::Unauthenticated),
        Principal::User(user) => user,
    };
    let checked = match request {
        ClusterRequest::Status => check_any_lock(user, Verb::Observe),
        _ => check_all_locks(user, Verb::Admin),
    };
    checked.map_err(|denial| refused(user, denial))
}

fn refused(user: &User, denial: Denial) -> Refused {
    match denial {
        Denial::Refused(refusal) => refusal.into(),
        denial => Refused::Denied(denial.message(user)),
    }
}

fn check_rights(user: &User, request: &Request, machine: &Machine) -> Result<(), Denial> {
    match request {
        Request::OpenSession { .. } => check_any_lock(user, Verb::AcquireShared),
        Request::KeepAlive { sessions } => {
            sessions.iter().try_for_each(|session| check_session(user, *session, machine, true))
        }
        Request::CloseSession { session } | Request::Attach { session } | Request::Cancel { session, .. } => {
            check_session(user, *session, machine, false)
        }
        Request::Acquire(acquire) => {
            for want in &acquire.wants {
                check_lock(user, Verb::to_acquire(want.mode), &want.lock)?;
            }
            acquire.holder.session().map_or(Ok(()), |session| check_session(user, session, machine, false))
        }
        Request::Release { lock, token, session, .. } | Request::Query(Query::Claims { lock, token, session }) => {
            check_lock(user, Verb::AcquireShared, lock)?;
            match session {
                Some(session) => check_session(user, *session, machine, false),
                None => check_grant(user, lock, *token, machine),
            }
        }
        Request::Publish { session, lock, .. } => {
            check_lock(user, Verb::Acquire, lock)?;
            check_session(user, *session, machine, false)
        }
        Request::ReleaseHeld { locks, .. }
        | Request::ExtendHeld { locks, .. }
        | Request::Query(Query::Held { locks, .. }) => {
            locks.iter().try_for_each(|lock| check_lock(user, Verb::Acquire, lock))
        }
        Request::DropHeld { lock } | Request::ExpireHeld { lock, .. } => check_lock(user, Verb::Acquire, lock),
        Request::Query(Query::Lock { lock, .. } | Query::Leader { lock }) => check_lock(user, Verb::Observe, lock),
        Request::Query(Query::Locks { .. }) | Request::Watch { .. } => check_any_lock(user, Verb::Observe),
        Request::Break { lock, .. } => check_lock(user, Verb::Break, lock),
        Request::Resize { lock, .. } => check_lock(user, Verb::Admin, lock),
        Request::RaiseTokens { .. } => check_all_locks(user, Verb::Admin),
        Request::Unwatch { .. } => Ok(()),
    }
}

fn check_lock(user: &User, verb: Verb, lock: &LockName) -> Result<(), Denial> {
    if user.may(verb, lock.as_str()) { Ok(()) } else { Err(Denial::Missing(verb, Some(lock.clone()))) }
}

fn check_any_lock(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may_somewhere(verb) { Ok(()) } else { Err(Denial::Missing(verb, None)) }
}

/// Checks a right to all locks. Raising tokens affects all of them.
fn check_all_locks(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may(verb, "") { Ok(()) } else { Err(Denial::NotEverywhere(verb)) }
}

/// Checks that a session is the user's. Refuses a session that does not exist: another user may be about to open it.
fn check_session(user: &User, session: SessionId, machine: &Machine, may_be_gone: bool) -> Result<(), Denial> {
    match machine.session(session) {
        Some(view) if user.owns(view.label().as_str()) => Ok(()),
        Some(_) => Err(Denial::NotYours(session)),
        None if may_be_gone => Ok(()),
        None => Err(Denial::Refused(Refusal::NoSuchSession { session })),
    }
}

/// Checks a grant that is named without its session. A token that was never given is refused at once: the next grant may
/// have it, and be another user's.
fn check_grant(user: &User, lock: &LockName, token: Token, machine: &Machine) -> Result<(), Denial> {
    let last = machine.last_token().map_or(0, Token::get);
    if token.get() > last {
        return Err(Denial::Refused(Refusal::NeverGranted { token, last }));
    }
    let Some(view) = machine.lock(lock) else { return Ok(()) };
    let holder = view.holders().find(|grant| grant.token == token);
    match holder.map(|grant| grant.state) {
        Some(GrantState::Held { session, label }) if !user.owns(label.as_str()) => Err(Denial::NotYours(session)),
        _ => Ok(()),
    }
}

/// Returns why the machine would refuse a request, so that it does not reach the log.
fn early_refusal(request: &Request, limits: &Limits) -> Option<Refusal> {
    let over = |limit: Limit, value: usize| {
        let (max, value) = (limits.of(limit), value as u64);
        (value > max).then_some(Refusal::OverLimit { limit, max, value })
    };
    match request {
        Request::OpenSession { label: Some(label), .. } => over(Limit::LabelBytes, label.as_str().len()),
        Request::RaiseTokens { above } => above.check_raise().err(),
        Request::Publish { value, .. } => over(Limit::ValueBytes, value.as_bytes().len()),
        Request::Break { lock, reason, .. } if reason.as_str().trim().is_empty() => {
            Some(Refusal::NoReason { lock: lock.clone() })
        }
        Request::Break { by, reason, .. } => {
            let by = by.as_ref().and_then(|by| over(Limit::LabelBytes, by.as_str().len()));
            by.or_else(|| over(Limit::LabelBytes, reason.as_str().len()))
        }
        Request::Acquire(acquire) => {
            let value = acquire.value.as_ref().map_or(0, |value| value.as_bytes().len());
            let secret = acquire.secret.as_ref().map_or(0, |secret| secret.as_bytes().len());
            over(Limit::LocksPerRequest, acquire.wants.len()).or_else(|| over(Limit::ValueBytes, value.max(secret)))
        }
        Request::ReleaseHeld { locks, secret } | Request::ExtendHeld { locks, secret, .. } => {
            over(Limit::LocksPerRequest, locks.len()).or_else(|| over(Limit::ValueBytes, secret.as_bytes().len()))
        }
        Request::Query(Query::Held { locks, .. }) => over(Limit::LocksPerRequest, locks.len()),
        _ => None,
    }
}
