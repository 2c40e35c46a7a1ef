//! A claim in the lists of its locks: whether it may be there, and what it waits for.

use palisade_core::{Acquire, Delay, Limit, LockName, Reentry, Refusal, RequestNo, SessionId, Token, Want};

use super::stored::{Body, Claim, Claims, Keys, hex};
use super::{Position, check_kind, position};
use crate::engine::remote::{Held, WaitKey, check_most};
use crate::engine::{Failure, Unavailable};

/// The state of a claim that stands in its lists.
#[derive(Debug)]
pub(crate) enum Standing {
    Granted(Token),
    /// All its locks are available, and it has to be marked.
    Available(Token, i64),
    Blocked(Blocked),
    Gone,
}

/// What a claim waits for.
#[derive(Debug)]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only etcd counts claims"))]
pub(crate) enum Blocked {
    /// A change of this claim.
    Claim(String),
    /// A change of any claim with this prefix. `count` of them were created up to the revision `own`.
    Any { claims: String, own: i64, count: usize },
}

/// Whether a new claim is checked against the kind of the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckKind {
    Yes,
    No,
}

/// Returns the number of an acquire, which is in the name of its claim.
pub(crate) fn number_of(acquire: &Acquire) -> Result<RequestNo, Failure> {
    acquire.caller.number.ok_or_else(|| {
        let what = "an acquire needs a request number, so that another connection can repeat it";
        Unavailable::new(what).without_effect().permanent().into()
    })
}

pub(crate) fn not_held(held: &Held) -> Refusal {
    Refusal::NotHeld { lock: held.lock.clone(), token: held.token }
}

/// Returns the granted claim with this token, if it is of this session.
pub(crate) fn find_grant(claims: Claims, held: &Held) -> Result<Claim, Refusal> {
    let granted = claims.granted();
    match claims.0.into_iter().take(granted).find(|claim| claim.token == held.token) {
        Some(claim) if claim.session == held.session => Ok(claim),
        Some(_) => Err(Refusal::OtherSession { lock: held.lock.clone(), token: held.token }),
        None => Err(not_held(held)),
    }
}

/// Returns the keys of a claim.
pub(crate) fn claim_keys<'a>(
    keys: &Keys,
    locks: impl IntoIterator<Item = &'a LockName>,
    (session, place): (SessionId, impl Into<u64> + Copy),
) -> Vec<String> {
    locks.into_iter().map(|lock| keys.claim(lock, session, place)).collect()
}

/// Returns the value of each claim of an acquire.
pub(crate) fn bodies(acquire: &Acquire, label: String, offset: u64, granted: bool) -> Vec<Body> {
    let mut locks = Vec::new();
    if acquire.wants.len() > 1 {
        locks = acquire.wants.iter().map(|want| want.lock.clone()).collect();
        locks.sort_unstable();
    }
    let body = |want: &Want| Body {
        number: None,
        label: label.clone(),
        mode: want.mode,
        offset,
        granted: granted && !locks.is_empty(),
        locks: locks.clone(),
        value: acquire.value.as_ref().map(hex),
        delay_ms: acquire.delay.map_or(0, Delay::as_ms),
    };
    acquire.wants.iter().map(body).collect()
}

/// Checks an acquire against the claims that are ahead of its own, or that it would come behind. `offset` is added to its token.
pub(crate) fn check(
    keys: &Keys,
    offset: u64,
    acquire: &Acquire,
    number: RequestNo,
    lists: &[Claims],
) -> Result<(), Failure> {
    let session = acquire.caller.session;
    for (want, claims) in acquire.wants.iter().zip(lists) {
        let ahead = &claims.0[..claims.position(session, number).unwrap_or(claims.0.len())];
        if let Some(first) = ahead.first() {
            check_kind(&want.lock, first.body.mode, want.mode)?;
        }
        if let Some(claim) = ahead.iter().find(|claim| claim.body.offset > offset) {
            return Err(offset_lost(keys, claim));
        }
        let holds = ahead.iter().take(claims.granted()).find(|claim| claim.session == session);
        if let (Some(claim), Reentry::Refuse) = (holds, acquire.reentry) {
            return Err(Refusal::AlreadyHeld { lock: want.lock.clone(), token: claim.token }.into());
        }
        check_most(Limit::WaitersPerLock, ahead.len() as u64)?;
    }
    Ok(())
}

/// The failure of an acquire whose token would be lower than one that was given.
fn offset_lost(keys: &Keys, claim: &Claim) -> Failure {
    let what = format!(
        "the key '{}' is lower than when token {} was given, or was deleted: later tokens would be lower. Raise the tokens above \
         the highest that any fence has seen (palisade tokens raise)",
        keys.offset().escape_debug(),
        claim.token
    );
    Unavailable::new(what).without_effect().permanent().into()
}

/// Returns the state of a claim, and the revision that created it.
pub(crate) fn standing(
    keys: &Keys,
    (session, number): WaitKey,
    wants: &[Want],
    lists: &[Claims],
) -> (Standing, Option<i64>) {
    let mut own = None;
    let mut blocked = None;
    for (want, claims) in wants.iter().zip(lists) {
        let Some(index) = claims.position(session, number) else { return (Standing::Gone, None) };
        own = Some(&claims.0[index]);
        blocked = blocked.or_else(|| match position(&claims.entries()[..index], want.mode) {
            Position::Front => None,
            Position::Behind(index) => {
                let ahead = &claims.0[index];
                Some(Blocked::Claim(keys.claim(&want.lock, ahead.session, ahead.place)))
            }
            Position::ShortOfPermits => {
                let (prefix, own) = (keys.claims(&want.lock), claims.0[index].revision);
                Some(Blocked::Any { claims: prefix, own, count: index + 1 })
            }
        });
    }
    let Some(own) = own else { return (Standing::Gone, None) };
    let standing = match blocked {
        Some(blocked) => Standing::Blocked(blocked),
        None if own.entry().is_settled => Standing::Granted(own.token),
        None => Standing::Available(own.token, own.revision),
    };
    (standing, Some(own.revision))
}

/// The failure to raise tokens while there is a claim with a lower one.
pub(crate) fn hindered(lock: impl std::fmt::Display) -> Unavailable {
    let what = format!(
        "locks are held with lower tokens, or waited for, such as '{lock}'; release them or take them away (palisade ls, \
         palisade break), then raise again"
    );
    Unavailable::new(what).permanent()
}
