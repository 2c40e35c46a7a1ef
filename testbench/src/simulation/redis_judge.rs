//! What the client of Redis was told must have been so at some moment between its request and the reply.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::{LockName, Machine, Refusal, Secret, Token};
use palisade_server::node::{Refused, Response};
use palisade_server::request::{AcquireRequest, Extension, Query, Request};

use super::judge::History;
use super::redis_client::LOCKS;

/// The holder of an exclusive lock: its token, and the secret with which it has taken the lock.
type Holder = Option<(Token, Option<Secret>)>;

/// All holders of the locks that the client of Redis uses, in order.
#[derive(Default)]
pub(super) struct RedisLocks {
    changes: u64,
    /// The holder of each lock after a change: the entry, the number of the change, and the holder.
    holders: BTreeMap<LockName, Vec<(u64, u64, Holder)>>,
}

impl RedisLocks {
    /// Notes the holder of a lock after an entry has changed it.
    pub(super) fn changed(&mut self, index: u64, name: &LockName, machine: &Machine) {
        if !LOCKS.contains(&name.as_str()) {
            return;
        }
        let token = machine.lock(name).and_then(|lock| lock.holders().next().map(|grant| grant.token));
        let secret = machine.held_with_secret(name).ok().flatten().map(|(.., secret)| secret.clone());
        self.changes += 1;
        let holder = token.map(|token| (token, secret));
        self.holders.entry(name.clone()).or_default().push((index, self.changes, holder));
    }

    /// Returns every combination of holders that these locks had since an entry, the first one included.
    fn since(&self, locks: &[LockName], since: u64) -> Vec<Vec<Holder>> {
        let of = |lock| self.holders.get(lock).map_or(&[][..], Vec::as_slice);
        let moments = locks.iter().flat_map(of);
        let begin = moments.clone().filter(|(index, ..)| *index <= since).map(|(_, change, _)| *change).max();
        let later = moments.filter(|(index, ..)| *index > since).map(|(_, change, _)| *change);
        let moments: BTreeSet<_> = later.chain([begin.unwrap_or(0)]).collect();
        let at = |lock, moment| {
            let versions = of(lock);
            let next = versions.partition_point(|(_, change, _)| *change <= moment);
            next.checked_sub(1).and_then(|last| versions[last].2.clone())
        };
        moments.into_iter().map(|moment| locks.iter().map(|lock| at(lock, moment)).collect()).collect()
    }

    fn has_another_holder_since(&self, lock: &LockName, since: u64) -> bool {
        let tokens = self.since(std::slice::from_ref(lock), since).into_iter().flatten().flatten();
        tokens.map(|(token, _)| token).collect::<BTreeSet<_>>().len() > 1
    }
}

/// Returns how many locks are held with the secret, and how many otherwise.
fn count(holders: &[Holder], secret: &Secret) -> (u32, u32) {
    let held = holders.iter().flatten();
    let own = held.clone().filter(|(_, held)| held.as_ref() == Some(secret)).count() as u32;
    (own, held.count() as u32 - own)
}

impl History {
    /// Checks a reply to a request that was sent after this entry.
    pub(super) fn check_redis_reply(&self, request: &Request, response: &Response, since: u64) -> Result<(), String> {
        if let (Request::Attach { session }, Response::Refused(Refused::Refusal(Refusal::NoSuchSession { .. }))) =
            (request, response)
        {
            return match self.is_open(*session) {
                true => Err(format!("A: a client was told that there is no {session:?}, which has not ended")),
                false => Ok(()),
            };
        }
        let locks: Vec<_> = match request {
            Request::Acquire(acquire) => acquire.wants.iter().map(|want| want.lock.clone()).collect(),
            Request::ReleaseHeld { locks, .. } | Request::ExtendHeld { locks, .. } => locks.to_vec(),
            Request::DropHeld { lock } => vec![lock.clone()],
            Request::Query(Query::Held { locks, .. }) => locks.to_vec(),
            _ => return Ok(()),
        };
        let is_any = |check: &dyn Fn(&[Holder]) -> bool| {
            let states = self.redis.since(&locks, since);
            match states.iter().any(|holders| check(holders)) {
                true => Ok(()),
                false => Err(format!(
                    "A: a client of Redis was told {response:?} after {request:?}; since {since} the holders were {states:?}"
                )),
            }
        };
        match (request, response) {
            (Request::Acquire(AcquireRequest { secret, .. }), Response::Granted(grant)) => is_any(&|holders| {
                holders
                    .iter()
                    .all(|holder| holder.as_ref().is_some_and(|held| *held == (grant.token, secret.clone())))
            }),
            (Request::Acquire(_), Response::NotGranted) => {
                match locks.iter().any(|lock| self.check_busy(lock, since).is_ok()) {
                    true => Ok(()),
                    false => is_any(&|_| false),
                }
            }
            (Request::ReleaseHeld { secret, .. }, Response::Matched { locks, others }) => {
                is_any(&|holders| count(holders, secret) == (*locks, *others))
            }
            (
                Request::ExtendHeld { secret, time: Extension::For(_), .. },
                Response::Matched { locks: extended, others },
            ) => {
                is_any(&|holders| {
                    let (own, other) = count(holders, secret);
                    let is_whole = own as usize == locks.len();
                    // A grant whose TTL has passed is not extended.
                    let is_expiring = own > 0 && (*extended, *others) == (0, 1);
                    is_expiring || (*extended, *others) == (if is_whole { own } else { 0 }, other)
                })
            }
            (Request::ExtendHeld { secret, .. }, Response::Matched { locks: extended @ 1.., .. }) => {
                is_any(&|holders| count(holders, secret) == (*extended, 0))
            }
            // The grant that was to be released ended first, and the lock went to a waiter.
            (Request::DropHeld { lock }, Response::Matched { locks: 0, others: 0 })
                if self.redis.has_another_holder_since(lock, since) =>
            {
                Ok(())
            }
            (Request::DropHeld { .. }, Response::Matched { locks, others }) => is_any(&|holders| {
                let expected = match &holders[0] {
                    Some((_, Some(_))) => (1, 0),
                    Some((_, None)) => (0, 1),
                    None => (0, 0),
                };
                expected == (*locks, *others)
            }),
            (Request::Query(_), Response::Held(seen)) => is_any(&|holders| {
                holders.len() == seen.len()
                    && holders.iter().zip(seen).all(|(holder, seen)| match (holder, seen) {
                        (None, None) => true,
                        (Some((token, secret)), Some(seen)) => {
                            let own = seen.own.as_ref().map(|(token, secret)| (token, secret));
                            own == secret.as_ref().map(|secret| (token, secret))
                        }
                        _ => false,
                    })
            }),
            (_, Response::Refused(Refused::Refusal(Refusal::NoSecret { lock }))) => is_any(&|holders| {
                let of_lock = locks.iter().zip(holders).find(|(name, _)| *name == lock);
                matches!(of_lock, Some((_, Some((_, None)))))
            }),
            (_, Response::Refused(Refused::Refusal(Refusal::PartOfGrant { lock }))) => is_any(&|holders| {
                let mut tokens = holders.iter().flatten().filter_map(|(token, _)| self.grants.get(token));
                tokens.any(|grant| grant.locks.contains(lock) && !locks.contains(lock))
            }),
            _ => Ok(()),
        }
    }
}
