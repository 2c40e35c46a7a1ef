//! Whether a user may have something carried out, as far as the service knows before it is carried out.

use palisade_core::{GrantState, Limit, Limits, LockName, Machine, Refusal, SessionId, Token};

use super::audit::Audit;
use super::who::{Refused, Who};
use crate::access::{User, Verb};
use crate::resp::Request;

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Denial {
    /// A right is missing: to this lock, or to any.
    Missing(Verb, Option<LockName>),
    /// A right to all locks is missing.
    NotEverywhere(Verb),
    /// The session is another user's.
    NotYours(SessionId),
    /// There is nothing that it could be done with.
    Refused(Refusal),
}

impl Denial {
    /// What is said about it.
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

/// Whether somebody may have this carried out. If not, that is recorded.
pub(super) fn permit(who: &Who, request: &Request, machine: &Machine, audit: &Audit) -> Result<(), Refused> {
    if let Some(user) = who.user() {
        check(user, request, machine).map_err(|denial| denied(user, denial, audit))?;
    }
    oversize(request, machine.limits()).map_or(Ok(()), |refusal| Err(refusal.into()))
}

/// Whether somebody may see how much goes on here. Those numbers are of all locks together.
pub(super) fn measure(who: &Who, audit: &Audit) -> Result<(), Refused> {
    let Some(user) = who.user() else { return Ok(()) };
    somewhere(user, Verb::Observe).map_err(|denial| denied(user, denial, audit))
}

fn denied(user: &User, denial: Denial, audit: &Audit) -> Refused {
    if let Denial::Refused(refusal) = denial {
        return refusal.into();
    }
    let why = denial.message(user);
    audit.denied(user.name(), &why);
    Refused::Denied(why)
}

/// Whether a user may ask for this.
fn check(user: &User, request: &Request, machine: &Machine) -> Result<(), Denial> {
    match request {
        Request::OpenSession { .. } => somewhere(user, Verb::AcquireShared),
        Request::KeepAlive { sessions } => {
            sessions.iter().try_for_each(|session| owned(user, *session, machine, true))
        }
        Request::CloseSession { session } | Request::Attach { session } | Request::Cancel { session, .. } => {
            owned(user, *session, machine, false)
        }
        Request::Acquire(holding) => {
            for want in &holding.wants {
                right(user, Verb::to_acquire(want.mode), &want.lock)?;
            }
            holding.by.map_or(Ok(()), |session| owned(user, session, machine, false))
        }
        Request::Release { lock, token, session, .. } | Request::Sign { lock, token, session } => {
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
        Request::Show { lock, .. } | Request::Observe { lock } => right(user, Verb::Observe, lock),
        Request::List { .. } | Request::Watch { .. } => somewhere(user, Verb::Observe),
        Request::Break { lock, .. } => right(user, Verb::Break, lock),
        Request::Resize { lock, .. } => right(user, Verb::Admin, lock),
        Request::RaiseTokens { .. } => everywhere(user, Verb::Admin),
        Request::Unwatch { .. } | Request::Detail { .. } | Request::ClientId | Request::ClientName => Ok(()),
        Request::Ignored | Request::Help | Request::ListCommands | Request::Info => Ok(()),
        Request::Hello { .. } | Request::Auth { .. } | Request::Ping { .. } | Request::Quit => Ok(()),
    }
}

fn right(user: &User, verb: Verb, lock: &LockName) -> Result<(), Denial> {
    if user.may(verb, lock.as_str()) { Ok(()) } else { Err(Denial::Missing(verb, Some(lock.clone()))) }
}

fn somewhere(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may_somewhere(verb) { Ok(()) } else { Err(Denial::Missing(verb, None)) }
}

/// Tokens are counted for all locks together.
fn everywhere(user: &User, verb: Verb) -> Result<(), Denial> {
    if user.may(verb, "") { Ok(()) } else { Err(Denial::NotEverywhere(verb)) }
}

/// A session that is not there is refused here and now: it may be about to be opened, by somebody else.
fn owned(user: &User, session: SessionId, machine: &Machine, may_be_gone: bool) -> Result<(), Denial> {
    match machine.session(session) {
        Some(view) if user.owns(view.label().as_str()) => Ok(()),
        Some(_) => Err(Denial::NotYours(session)),
        None if may_be_gone => Ok(()),
        None => Err(Denial::Refused(Refusal::NoSuchSession { session })),
    }
}

/// A grant is named without its session. One that was never given is refused here and now: it may be about to be given,
/// to somebody else.
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

/// What is too large for the rules is refused before it is written down.
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
        Request::Acquire(holding) => {
            let value = holding.value.as_ref().map_or(0, |value| value.as_bytes().len());
            over(Limit::LocksPerRequest, holding.wants.len()).or_else(|| over(Limit::ValueBytes, value))
        }
        _ => None,
    }
}
