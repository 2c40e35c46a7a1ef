//! The invariants that hold after every command.

use thiserror::Error;

use crate::list::List;
use crate::machine::{ALL, Claim, ClaimState, FORCED_KEPT, Lock, Session};
use crate::slab::{Slab, Slot};
use crate::{Machine, Token, Ttl};

/// An invariant that does not hold. Always a bug, or damage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Broken(String);

type Checked = Result<(), Broken>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

/// Checks all invariants of a machine:
///
/// - an exclusive lock has at most one holder, shared holders exclude an exclusive one, and the holders' permits add up
///   to the lock's count;
/// - no token is held twice or lies above the last one given;
/// - a repeat of a request that is held is recognised;
/// - every claim is in its session, at each of its locks, and nowhere else;
/// - a session that was opened for one request has that request and no other, and only such a session has a secret or no end;
/// - queues are in the order of arrival, and no waiter waits that could be granted;
/// - an idle lock keeps nothing but its last force-releases, at most 256 for all idle locks together;
/// - the look-up tables find every session, lock, token and request.
///
/// Takes time linear in the size of the machine: for tests and for restored snapshots.
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

/// No real counter gets this far. A restored one that did could overflow.
const COUNTER_MAX: u64 = u64::MAX / 2;

fn check_counters(machine: &Machine) -> Checked {
    ensure(machine.last_token <= Token::MAX.get(), || "a token was given above the last possible one".to_owned())?;
    let forced = machine.forced.len();
    ensure(forced <= FORCED_KEPT, || format!("{forced} endings of idle locks are kept, of {FORCED_KEPT}"))?;
    ensure(machine.last_arrival <= COUNTER_MAX, || "a counter is higher than it can have got".to_owned())?;
    let mut tokens: Vec<_> = machine.claims.iter().filter_map(|(_, claim)| claim.token()).collect();
    tokens.sort_unstable();
    let twice = tokens.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| Err(Broken(format!("token {} is held twice", pair[0]))))
}

/// Checks the number of permits of an entry: all or 1 at an ordinary lock, at least 1 at a semaphore.
fn check_need(lock: &Lock, need: u32) -> Checked {
    let sound = need > 0 && (lock.limit != ALL || need == 1 || need == ALL);
    ensure(sound, || format!("'{}' is held or wanted with an impossible number of permits", lock.name))
}

fn check_holders(machine: &Machine, lock: &Lock) -> Checked {
    let name = &lock.name;
    ensure(lock.limit > 0, || format!("'{name}' has no permits"))?;
    let mut taken = 0u64;
    for slot in lock.holders.iter(&machine.entries, |entry| &entry.at_lock) {
        let entry = &machine.entries[slot];
        taken += u64::from(entry.need);
        check_need(lock, entry.need)?;
        let waits = matches!(machine.claims[entry.claim].state(), ClaimState::Waiting { .. });
        ensure(!waits, || format!("a waiter is among the holders of '{name}'"))?;
    }
    ensure(taken == u64::from(lock.taken), || format!("'{name}' counts {} taken, not {taken}", lock.taken))?;
    ensure(!lock.is_idle(), || format!("'{name}' is kept though it has no holder and no waiter"))
}

fn check_queue(machine: &Machine, lock: &Lock) -> Checked {
    let name = &lock.name;
    let mut last = 0;
    for slot in lock.queue.iter(&machine.entries, |entry| &entry.at_lock) {
        let ClaimState::Waiting { arrival } = machine.claims[machine.entries[slot].claim].state() else {
            return Err(Broken(format!("a holder is in the queue of '{name}'")));
        };
        ensure(arrival > last, || format!("the queue of '{name}' is not in the order of arrival"))?;
        ensure(arrival <= machine.last_arrival, || format!("a waiter of '{name}' never arrived"))?;
        check_need(lock, machine.entries[slot].need)?;
        ensure(machine.entries[slot].need <= lock.limit, || format!("a waiter of '{name}' can never be granted"))?;
        last = arrival;
    }
    let exhausted = machine.last_token >= Token::MAX.get();
    let Some(front) = lock.queue.head.some() else { return Ok(()) };
    let blocked = machine.entries_of(machine.entries[front].claim).any(|slot| {
        let entry = &machine.entries[slot];
        let at = &machine.locks[entry.lock];
        at.queue.head != slot || !at.admits(entry.need)
    });
    ensure(blocked || exhausted, || format!("the first in the queue of '{name}' waits though it could be granted"))
}

fn check_claim(machine: &Machine, slot: Slot<Claim>, claim: &Claim) -> Checked {
    match claim.state() {
        ClaimState::Held { token } | ClaimState::Withheld { token } => {
            ensure(token.get() <= machine.last_token, || format!("token {token} was never given"))?;
            let found = |entry| machine.find_token(machine.entries[entry].lock, token) == Some(slot);
            ensure(machine.entries_of(slot).all(found), || format!("token {token} is held twice, or not found"))?;
        }
        ClaimState::Waiting { .. } => {}
    }
    let mut at: Vec<_> = machine.entries_of(slot).map(|entry| machine.entries[entry].lock.number()).collect();
    at.sort_unstable();
    ensure(at.windows(2).all(|pair| pair[0] != pair[1]), || "a claim is at one lock twice".to_owned())?;
    if let Some(number) = claim.number {
        let found = machine.find_request(claim.session, number);
        ensure(found == Some(slot), || format!("request {number} is there twice, or not found"))?;
    }
    let withheld = matches!(claim.state(), ClaimState::Withheld { .. });
    let delay = claim.extras.as_ref().is_some_and(|extras| extras.delay.is_some());
    ensure(withheld == claim.session.is_none(), || "a claim has no session though it is not withheld".to_owned())?;
    ensure(!withheld || (delay && claim.number.is_none()), || "a claim is withheld without a delay".to_owned())?;
    let is_exclusive =
        |entry| machine.entries[entry].need == ALL && machine.locks[machine.entries[entry].lock].limit == ALL;
    let is_secret_possible = || {
        !withheld && machine.sessions[claim.session].is_for_one_request && machine.entries_of(slot).all(is_exclusive)
    };
    ensure(machine.secret_of(slot).is_none() || is_secret_possible(), || "a claim cannot have its secret".to_owned())
}

fn check_session(machine: &Machine, slot: Slot<Session>, session: &Session) -> Checked {
    let id = session.id;
    ensure(machine.find_session(id) == Some(slot), || format!("session {id} is not found by its id"))?;
    let is_for_one = session.is_for_one_request;
    ensure(!is_for_one || session.claims.len == 1, || format!("session {id} is not for one request"))?;
    ensure(is_for_one || session.ttl != Ttl::ENDLESS, || format!("session {id} has no end"))
}

fn check_tables(machine: &Machine) -> Checked {
    let held = machine.claims.iter().filter(|(_, claim)| !matches!(claim.state(), ClaimState::Waiting { .. }));
    let shared = held.filter(|(slot, _)| machine.is_indexed_by_token(*slot)).count();
    let numbered = machine.claims.iter().filter(|(_, claim)| claim.number.is_some()).count();
    let expected = [machine.locks.len() as usize, machine.sessions.len() as usize, shared, numbered];
    let found = machine.table_sizes();
    ensure(found == expected, || format!("the look-up tables have {found:?} entries, not {expected:?}"))
}

/// Checks that every referenced slot is filled and that every list is consistent. Runs before all other checks, which
/// follow these links unchecked. Terminates on any damaged input.
pub(crate) fn check_links(machine: &Machine) -> Checked {
    let sound = machine.sessions.is_sound() && machine.locks.is_sound();
    ensure(sound && machine.claims.is_sound() && machine.entries.is_sound(), || {
        "its slots do not add up".to_owned()
    })?;
    let (mut at_locks, mut in_sessions) = (0, 0);
    for (slot, lock) in machine.locks.iter() {
        for list in [&lock.holders, &lock.queue] {
            at_locks += walk(
                &machine.entries,
                list,
                |entry| (entry.at_lock.prev, entry.at_lock.next),
                |entry| entry.lock == slot,
            )?;
        }
    }
    for (slot, session) in machine.sessions.iter() {
        let link = |claim: &Claim| (claim.at_session.prev, claim.at_session.next);
        in_sessions += walk(&machine.claims, &session.claims, link, |claim| claim.session == slot)?;
        let entries = session
            .claims
            .iter(&machine.claims, |claim| &claim.at_session)
            .map(|claim| count_entries(machine, claim));
        let locks = entries.sum::<Result<u32, Broken>>()?;
        ensure(locks == session.locks, || format!("session {} counts its locks wrongly", session.id))?;
    }
    let mut of_claims = 0;
    for (slot, _) in machine.claims.iter() {
        of_claims += count_entries(machine, slot)?;
    }
    let withheld = machine.claims.iter().filter(|(_, claim)| claim.session.is_none()).count() as u32;
    let entries = machine.entries.len();
    ensure(at_locks == entries && of_claims == entries, || "an entry is at no lock, or of no claim".to_owned())?;
    ensure(in_sessions + withheld == machine.claims.len(), || "a claim is in no session".to_owned())
}

/// Counts the entries of a claim. A claim without entries, or with an entry of another claim, is an error.
fn count_entries(machine: &Machine, claim: Slot<Claim>) -> Result<u32, Broken> {
    let (mut next, mut count) = (machine.claims[claim].first, 0);
    while let Some(slot) = next.some() {
        let entry = machine.entries.get(slot).filter(|entry| entry.claim == claim && count < machine.entries.len());
        let entry = entry.ok_or_else(|| Broken("a claim has an entry that is not its own".to_owned()))?;
        (next, count) = (entry.sibling, count + 1);
    }
    ensure(count > 0, || "a claim has no entry".to_owned())?;
    Ok(count)
}

/// Follows a list from head to tail and returns its length.
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
