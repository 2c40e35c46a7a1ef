//! What is true of every machine after every command.

use thiserror::Error;

use crate::list::List;
use crate::machine::{ALL, Claim, FORCED_KEPT, Lock, Session, Stand};
use crate::slab::{Slab, Slot};
use crate::{Machine, Token};

/// An invariant that does not hold. Always a bug, or damage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Broken(String);

type Checked = Result<(), Broken>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

/// Checks everything that must be true of a machine, whatever its history:
///
/// - an exclusive lock has at most one holder, shared holders exclude an exclusive one, and what the holders have
///   adds up to what is taken;
/// - no token is held twice or lies above the last one given;
/// - no request that is held can be taken for a new one;
/// - every claim is in its session, at each of its locks, and nowhere else;
/// - queues are in the order of arrival, and nobody waits whose turn it is;
/// - nothing is kept of a lock that nobody holds or wants, but who took it away, and not of too many;
/// - what is looked up is found.
///
/// Costs time in proportion to everything there is: for tests, and for what was read from outside.
///
/// ```
/// use palisade_core::{Limits, Machine, invariant};
/// assert_eq!(invariant::check(&Machine::new(Limits::default())), Ok(()));
/// ```
pub fn check(machine: &Machine) -> Result<(), Broken> {
    check_links(machine)?;
    check_counters(machine)?;
    for (slot, lock) in machine.locks.iter() {
        check_holders(machine, lock)?;
        check_queue(machine, lock)?;
        ensure(machine.find_lock(&lock.name) == Some(slot), || format!("'{}' is not found by name", lock.name))?;
    }
    for (slot, claim) in machine.claims.iter() {
        check_claim(machine, slot, claim)?;
    }
    for (slot, session) in machine.sessions.iter() {
        check_session(machine, slot, session)?;
    }
    check_tables(machine)
}

/// Far above what any machine can count to, and far below where counting on would overflow.
const FAR: u64 = u64::MAX / 2;

fn check_counters(machine: &Machine) -> Checked {
    ensure(machine.last_token <= Token::MAX.get(), || "a token was given above the last possible one".to_owned())?;
    let forced = machine.forced.len();
    ensure(forced <= FORCED_KEPT, || format!("{forced} endings of idle locks are kept, of {FORCED_KEPT}"))?;
    let near = machine.last_session <= FAR && machine.last_arrival <= FAR;
    ensure(near, || "more was counted than can have happened".to_owned())?;
    let mut tokens: Vec<_> = machine.claims.iter().filter_map(|(_, claim)| claim.token()).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| Err(Broken(format!("token {} is held twice", pair[0]))))
}

/// An ordinary lock is taken whole or by one, a semaphore by at least one.
fn check_need(lock: &Lock, need: u32) -> Checked {
    let sound = need > 0 && (lock.limit != ALL || need == 1 || need == ALL);
    ensure(sound, || format!("'{}' is held or wanted in a way that there is not", lock.name))
}

fn check_holders(machine: &Machine, lock: &Lock) -> Checked {
    let name = &lock.name;
    ensure(lock.limit > 0, || format!("'{name}' has no permits"))?;
    let mut taken = 0u64;
    for slot in lock.holders.iter(&machine.places, |place| &place.at_lock) {
        let place = &machine.places[slot];
        taken += u64::from(place.need);
        check_need(lock, place.need)?;
        let waits = matches!(machine.claims[place.claim].stand(), Stand::Waiting { .. });
        ensure(!waits, || format!("a waiter is among the holders of '{name}'"))?;
    }
    ensure(taken == u64::from(lock.taken), || format!("'{name}' counts {} taken, not {taken}", lock.taken))?;
    ensure(!lock.is_idle(), || format!("'{name}' is kept though nobody holds or wants it"))
}

fn check_queue(machine: &Machine, lock: &Lock) -> Checked {
    let name = &lock.name;
    let mut last = 0;
    for slot in lock.queue.iter(&machine.places, |place| &place.at_lock) {
        let Stand::Waiting { arrival } = machine.claims[machine.places[slot].claim].stand() else {
            return Err(Broken(format!("a holder is in the queue of '{name}'")));
        };
        ensure(arrival > last, || format!("the queue of '{name}' is not in the order of arrival"))?;
        ensure(arrival <= machine.last_arrival, || format!("a waiter of '{name}' never arrived"))?;
        check_need(lock, machine.places[slot].need)?;
        ensure(machine.places[slot].need <= lock.limit, || format!("a waiter of '{name}' can never be granted"))?;
        last = arrival;
    }
    let exhausted = machine.last_token >= Token::MAX.get();
    let Some(front) = lock.queue.head.some() else { return Ok(()) };
    let blocked = machine.places_of(machine.places[front].claim).any(|slot| {
        let place = &machine.places[slot];
        let at = &machine.locks[place.lock];
        at.queue.head != slot || !at.admits(place.need)
    });
    ensure(blocked || exhausted, || format!("the first in the queue of '{name}' waits though it is its turn"))
}

fn check_claim(machine: &Machine, slot: Slot<Claim>, claim: &Claim) -> Checked {
    match claim.stand() {
        Stand::Held { token } | Stand::Withheld { token } => {
            ensure(token.get() <= machine.last_token, || format!("token {token} was never given"))?;
            let found = |place| machine.find_token(machine.places[place].lock, token) == Some(slot);
            ensure(machine.places_of(slot).all(found), || format!("token {token} is held twice, or not found"))?;
        }
        Stand::Waiting { .. } => {}
    }
    let mut at: Vec<_> = machine.places_of(slot).map(|place| machine.places[place].lock.number()).collect();
    at.sort_unstable();
    ensure(at.windows(2).all(|pair| pair[0] != pair[1]), || "a claim is at one lock twice".to_owned())?;
    if let Some(number) = claim.number {
        let found = machine.find_request(claim.session, number);
        ensure(found == Some(slot), || format!("request {number} is there twice, or not found"))?;
    }
    let withheld = matches!(claim.stand(), Stand::Withheld { .. });
    let delay = claim.rare.as_ref().is_some_and(|rare| rare.delay.is_some());
    ensure(withheld == claim.session.is_none(), || "a claim has no session though it is not withheld".to_owned())?;
    ensure(!withheld || (delay && claim.number.is_none()), || "a claim is withheld without a delay".to_owned())
}

fn check_session(machine: &Machine, slot: Slot<Session>, session: &Session) -> Checked {
    let id = session.id;
    ensure(machine.find_session(id) == Some(slot), || format!("session {id} is not found by its number"))?;
    ensure(id.get() <= machine.last_session, || format!("session {id} was never opened"))?;
    Ok(())
}

fn check_tables(machine: &Machine) -> Checked {
    let held = machine.claims.iter().filter(|(_, claim)| !matches!(claim.stand(), Stand::Waiting { .. }));
    let shared = held.filter(|(slot, _)| machine.is_indexed_by_token(*slot)).count();
    let numbered = machine.claims.iter().filter(|(_, claim)| claim.number.is_some()).count();
    let expected = [machine.locks.len() as usize, machine.sessions.len() as usize, shared, numbered];
    let found = machine.indexed();
    ensure(found == expected, || format!("the look-up tables have {found:?} entries, not {expected:?}"))
}

/// Checks that every slot that is named is there and that every list ends where it says: what a machine must be
/// before anything else can be read of it. Cannot be led astray by damage.
pub(crate) fn check_links(machine: &Machine) -> Checked {
    let sound = machine.sessions.is_sound() && machine.locks.is_sound();
    ensure(sound && machine.claims.is_sound() && machine.places.is_sound(), || "its slots do not add up".to_owned())?;
    let (mut at_locks, mut in_sessions) = (0, 0);
    for (slot, lock) in machine.locks.iter() {
        for list in [&lock.holders, &lock.queue] {
            at_locks += walk(
                &machine.places,
                list,
                |place| (place.at_lock.prev, place.at_lock.next),
                |place| place.lock == slot,
            )?;
        }
    }
    for (slot, session) in machine.sessions.iter() {
        let link = |claim: &Claim| (claim.at_session.prev, claim.at_session.next);
        in_sessions += walk(&machine.claims, &session.claims, link, |claim| claim.session == slot)?;
        let places =
            session.claims.iter(&machine.claims, |claim| &claim.at_session).map(|claim| count_places(machine, claim));
        let locks = places.sum::<Result<u32, Broken>>()?;
        ensure(locks == session.locks, || format!("session {} counts its locks wrongly", session.id))?;
    }
    let mut of_claims = 0;
    for (slot, _) in machine.claims.iter() {
        of_claims += count_places(machine, slot)?;
    }
    let withheld = machine.claims.iter().filter(|(_, claim)| claim.session.is_none()).count() as u32;
    let places = machine.places.len();
    ensure(at_locks == places && of_claims == places, || "a place is at no lock, or of no claim".to_owned())?;
    ensure(in_sessions + withheld == machine.claims.len(), || "a claim is in no session".to_owned())
}

/// How many places a claim has, at least one and all its own.
fn count_places(machine: &Machine, claim: Slot<Claim>) -> Result<u32, Broken> {
    let (mut next, mut count) = (machine.claims[claim].first, 0);
    while let Some(slot) = next.some() {
        let place = machine.places.get(slot).filter(|place| place.claim == claim && count < machine.places.len());
        let place = place.ok_or_else(|| Broken("a claim has a place that is not its own".to_owned()))?;
        (next, count) = (place.sibling, count + 1);
    }
    ensure(count > 0, || "a claim has no place".to_owned())?;
    Ok(count)
}

/// Follows a list from head to tail, and returns how many members it has.
fn walk<T>(
    slab: &Slab<T>,
    list: &List<T>,
    link: impl Fn(&T) -> (Slot<T>, Slot<T>),
    belongs: impl Fn(&T) -> bool,
) -> Result<u32, Broken> {
    let broken = || Broken("a list does not hold together".to_owned());
    let (mut slot, mut before, mut count) = (list.head, Slot::NONE, 0);
    while !slot.is_none() {
        let member = slab.get(slot).filter(|member| belongs(member) && count < slab.len()).ok_or_else(broken)?;
        let (prev, next) = link(member);
        ensure(prev == before, || broken().0)?;
        (before, slot, count) = (slot, next, count + 1);
    }
    ensure(list.tail == before && list.len == count, || broken().0)?;
    Ok(count)
}
