//! Whether a user may have a request carried out, as far as the node knows before it is carried out.

use palisade_core::{GrantState, Limit, Limits, LockName, Machine, Refusal, SessionId, Token};

use super::principal::Principal;
use super::response::Refused;
use crate::access::{User, Verb};
use crate::request::{Query, Request};

/// Why not.
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

/// Checks the principal's rights and the request's size.
pub(super) fn check(principal: &Principal, request: &Request, machine: &Machine) -> Result<(), Refused> {
    match principal {
        Principal::Anyone => {}
        Principal::Unauthenticated => return Err(Refused::Unauthenticated),
        Principal::User(user) => rights(user, request, machine).map_err(|denial| refused(user, denial))?,
    }
    oversize(request, machine.limits()).map_or(Ok(()), |refusal| Err(refusal.into()))
}

/// Checks whether a principal may see the service's metrics, which are about all locks together.
pub(crate) fn check_metrics(principal: &Principal) -> Result<(), Refused> {
    let Some(user) = principal.user() else { return Ok(()) };
    somewhere(user, Verb::Observe).map_err(|denial| refused(user, denial))
}

fn refused(user: &User, denial: Denial) -> Refused {
    match denial {
        Denial::Refused(refusal) => refusal.into(),
        denial => Refused::Denied(denial.message(user)),
    }
}

fn rights(user: &User, request: &Request, machine: &Machine) -> Result<(), Denial> {
    match request {
        Request::OpenSession { .. } => somewhere(user, Verb::AcquireShared),
        Request::KeepAlive { sessions } => {
            sessions.iter().try_for_each(|session| owned(user, *session, machine, true))
        }
        Request::CloseSession { session } | Request::Attach { session } | Request::Cancel { session, .. } => {
            owned(user, *session, machine, false)
        }
        Request::Acquire(acquire) => {
            for want in &acquire.wants {
                right(user, Verb::to_acquire(want.mode), &want.lock)?;
            }
            acquire.holder.session().map_or(Ok(()), |session| owned(user, session, machine, false))
        }
        Request::Release { lock, token, session, .. } | Request::Query(Query::Claims { lock, token, session }) => {
            right(user, Verb::AcquireShared, lock)?;
            match session {
                Some(session) => owned(user, *session, machine, false),
                None => granted(user, lock, *token, machine),
            }
        }
        Request::Publish { session, lock, .. } => {
            right(user, Verb::Acquire, lock)?;
            owned(user, *session, machine, false)
        }
        Request::Query(Query::Lock { lock, .. } | Query::Leader { lock }) => right(user, Verb::Observe, lock),
        Request::Query(Query::Locks { .. }) | Request::Watch { .. } => somewhere(user, Verb::Observe),
        Request::Break { lock, .. } => right(user, Verb::Break, lock),
        Request::Resize { lock, .. } => right(user, Verb::Admin, lock),
        Request::RaiseTokens { .. } => everywhere(user, Verb::Admin),
        Request::Unwatch { .. } => Ok(()),
    }
}

fn right(user: &User, verb: Verb, lock: &LockName) -> Result<(), Denial> {
    if user.may(verb, lock.as_str()) { Ok(()) } else { Err(Denial::Missing(verb, Some(lock.clone()))) }
}

fn somewhere(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may_somewhere(verb) { Ok(()) } else { Err(Denial::Missing(verb, None)) }
}

/// Checks a right to all locks: tokens are counted for all of them together.
fn everywhere(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may(verb, "") { Ok(()) } else { Err(Denial::NotEverywhere(verb)) }
}

/// Refuses a session that does not exist at once: another user may be about to open it.
fn owned(user: &User, session: SessionId, machine: &Machine, may_be_gone: bool) -> Result<(), Denial> {
    match machine.session(session) {
        Some(view) if user.owns(view.label().as_str()) => Ok(()),
        Some(_) => Err(Denial::NotYours(session)),
        None if may_be_gone => Ok(()),
        None => Err(Denial::Refused(Refusal::NoSuchSession { session })),
    }
}

/// Checks a grant that is named without its session. A token that was never given is refused at once: the next grant may
/// have it, and be another user's.
fn granted(user: &User, lock: &LockName, token: Token, machine: &Machine) -> Result<(), Denial> {
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

/// Refuses what is too large for the rules before it reaches the log.
fn oversize(request: &Request, limits: &Limits) -> Option<Refusal> {
    let over = |limit: Limit, value: usize| {
        let (max, value) = (limits.of(limit), value as u64);
        (value > max).then_some(Refusal::OverLimit { limit, max, value })
    };
    match request {
        Request::OpenSession { label: Some(label), .. } => over(Limit::LabelBytes, label.as_str().len()),
        Request::RaiseTokens { above } => above.check_raise().err(),
        Request::Publish { value, .. } => over(Limit::ValueBytes, value.as_bytes().len()),
        Request::Break { by, reason, .. } => {
            let by = by.as_ref().and_then(|by| over(Limit::LabelBytes, by.as_str().len()));
            by.or_else(|| over(Limit::LabelBytes, reason.as_str().len()))
        }
        Request::Acquire(acquire) => {
            let value = acquire.value.as_ref().map_or(0, |value| value.as_bytes().len());
            over(Limit::LocksPerRequest, acquire.wants.len()).or_else(|| over(Limit::ValueBytes, value))
        }
        _ => None,
    }
}
