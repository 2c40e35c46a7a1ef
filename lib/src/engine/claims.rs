//! Which claims of a lock are granted, for stores that order claims and run no code of ours.
//!
//! A claim is a key or node of the store, and the store orders the claims of a lock by their creation. A claim is granted
//! when every claim ahead of it is granted and compatible with it. So the granted claims are the first ones of the list, no
//! claim ever overtakes another, and the order of creation is the order of the tokens.
//!
//! A claim for several locks has one entry in the list of each, all created at once. It may have to wait at one of them while
//! nothing is ahead of it at the others. Its client therefore marks it when it is granted, and a claim that could share a lock
//! with it waits for the mark.

#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) mod call_error;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) mod queue;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) mod requests;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) mod stored;

use palisade_core::{
    Departure, Ending, Event, Kind, LockName, LockNames, Mode, Refusal, RequestNo, SessionId, Ticket, Token, Value,
};
use serde::Deserialize;
use serde::de::value::{Error as DecodeError, MapDeserializer};

#[cfg(feature = "_claims")]
use super::remote::Peer;
#[cfg(feature = "_claims")]
use super::{Failure, Unavailable};

/// Refuses to create a claim for several locks with a request that the store would not accept: it would close the connection
/// without an answer. Each entry of the claim contains the names of all its locks, so the size grows with the square of their
/// number.
#[cfg(feature = "_claims")]
pub(crate) fn check_size(peer: &Peer, locks: usize, bytes: usize, most: usize) -> Result<(), Failure> {
    if bytes <= most {
        return Ok(());
    }
    let what = format!(
        "{peer}: the names of these {locks} locks are too long for one request: it would have {bytes} bytes, and {most} are \
         allowed. Nothing was acquired. Acquire fewer locks at once, or use shorter names"
    );
    Err(Unavailable::new(what).without_effect().permanent().into())
}

/// An entry in the list of a lock's claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// How it wants the lock.
    pub(crate) mode: Mode,
    /// Whether it is granted as soon as every entry ahead of it is compatible. False for a claim for several locks, until it
    /// is marked.
    pub(crate) is_settled: bool,
}

/// The position of an entry in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Everything ahead of it is granted and compatible.
    Front,
    /// It waits at least until the entry at this index is removed, or marked.
    Behind(usize),
    /// It waits until permits are returned, by any entry ahead of it.
    ShortOfPermits,
}

/// Returns the position of an entry that wants the lock in this mode, behind these entries.
pub(crate) fn position(ahead: &[Entry], mode: Mode) -> Position {
    let blocks = |entry: &Entry| !(entry.is_settled && are_compatible(entry.mode, mode));
    if let Some(last) = ahead.iter().rposition(blocks) {
        return Position::Behind(last);
    }
    match mode {
        Mode::Exclusive | Mode::Shared => Position::Front,
        Mode::Permits { count, of } => {
            let taken: u64 = ahead.iter().map(|entry| permits(entry.mode)).sum();
            if taken + u64::from(count) <= u64::from(of) { Position::Front } else { Position::ShortOfPermits }
        }
    }
}

/// Whether two entries can be granted at the same time, if there are enough permits.
fn are_compatible(ahead: Mode, mode: Mode) -> bool {
    match (ahead, mode) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Permits { of, .. }, Mode::Permits { of: same, .. }) => of == same,
        _ => false,
    }
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { count, .. } => count.into(),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

/// Refuses a new entry of another kind than the first one of its list. An entry that is in the list is never refused: it waits
/// until an entry of another kind, whose client has yet to remove it, is gone.
pub(crate) fn check_kind(lock: &LockName, first: Mode, mode: Mode) -> Result<(), Refusal> {
    match (kind(first), kind(mode)) {
        (is, asked) if is == asked => Ok(()),
        (Kind::Semaphore { limit }, Kind::Semaphore { limit: asked }) => {
            Err(Refusal::LimitDiffers { lock: lock.clone(), limit, asked })
        }
        (is, asked) => Err(Refusal::WrongKind { lock: lock.clone(), is, asked }),
    }
}

fn kind(mode: Mode) -> Kind {
    match mode {
        Mode::Exclusive | Mode::Shared => Kind::Lock,
        Mode::Permits { of, .. } => Kind::Semaphore { limit: of },
    }
}

/// A claim as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimView {
    pub(crate) session: SessionId,
    pub(crate) number: RequestNo,
    pub(crate) token: Token,
    /// All its locks.
    pub(crate) locks: LockNames,
    pub(crate) is_granted: bool,
    /// The value that the holder publishes.
    pub(crate) value: Option<Value>,
}

impl ClaimView {
    fn key(&self) -> (SessionId, RequestNo) {
        (self.session, self.number)
    }

    /// Claims have the order of their tokens, so the token serves as the number of the arrival.
    fn ticket(&self) -> Ticket {
        let fields = [("arrival", self.token.get()), ("slot", 0)];
        let ticket = Ticket::deserialize(MapDeserializer::<_, DecodeError>::new(fields.into_iter()));
        ticket.unwrap_or_else(|error| unreachable!("two numbers: {error}"))
    }

    fn granted(&self, ticket: Option<Ticket>, events: &mut Vec<Event>) {
        let ClaimView { session, number, token, locks, .. } = self.clone();
        events.push(Event::Granted { locks, session, token, ticket, number: Some(number) });
        self.published(events);
    }

    fn published(&self, events: &mut Vec<Event>) {
        if let Some(value) = self.value.clone() {
            events.push(Event::Published { lock: self.locks[0].clone(), token: self.token, value });
        }
    }
}

/// Returns the events between two states of claims, both in the order of their tokens. `ending` says how a claim ended that is
/// gone.
pub(crate) fn changes(
    before: &[ClaimView],
    after: &[ClaimView],
    ending: impl Fn(&ClaimView) -> Ending,
) -> Vec<Event> {
    let find = |claims: &[ClaimView], key| claims.iter().position(|claim| claim.key() == key);
    let mut events = Vec::new();
    for gone in before.iter().filter(|claim| find(after, claim.key()).is_none()) {
        let (how, ClaimView { session, token, locks, .. }) = (ending(gone), gone.clone());
        events.push(match (gone.is_granted, how) {
            (true, how) => Event::GrantEnded { locks, session, token, how },
            (false, Ending::SessionEnded(how)) => {
                Event::LeftQueue { ticket: gone.ticket(), session, locks, why: Departure::SessionEnded(how) }
            }
            (false, _) => Event::LeftQueue { ticket: gone.ticket(), session, locks, why: Departure::Cancelled },
        });
    }
    for claim in after {
        match find(before, claim.key()).map(|at| &before[at]) {
            None if claim.is_granted => claim.granted(None, &mut events),
            None => {
                let (session, locks) = (claim.session, claim.locks.clone());
                events.push(Event::Queued { ticket: claim.ticket(), session, locks });
            }
            Some(was) if claim.is_granted && !was.is_granted => claim.granted(Some(claim.ticket()), &mut events),
            Some(was) if claim.value != was.value => claim.published(&mut events),
            Some(_) => {}
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use palisade_core::{
        Acquire, Answer, Caller, Command, Event, Label, Limits, Machine, Patience, Reentry, RequestNo, SessionId,
        Token, Ttl, Waiting, Want,
    };

    use super::*;

    const SESSIONS: u64 = 4;

    /// A store as the engines use it: claims in the order of their creation, and clients that mark their sets.
    #[derive(Default)]
    struct Store {
        claims: Vec<Claim>,
    }

    #[derive(Clone)]
    struct Claim {
        key: (SessionId, RequestNo),
        wants: Vec<Want>,
        is_settled: bool,
    }

    impl Store {
        /// The entries of a lock's list that are ahead of the claim at this index.
        fn ahead(&self, lock: &LockName, index: usize) -> Vec<Entry> {
            let entry = |claim: &Claim| {
                let want = claim.wants.iter().find(|want| want.lock == *lock)?;
                Some(Entry { mode: want.mode, is_settled: claim.is_settled })
            };
            self.claims[..index].iter().filter_map(entry).collect()
        }

        fn is_at_front(&self, index: usize) -> bool {
            let wants = &self.claims[index].wants;
            wants.iter().all(|want| position(&self.ahead(&want.lock, index), want.mode) == Position::Front)
        }

        /// Lets every client mark its sets that are granted.
        fn mark_sets(&mut self) {
            while let Some(index) =
                (0..self.claims.len()).find(|index| !self.claims[*index].is_settled && self.is_at_front(*index))
            {
                self.claims[index].is_settled = true;
            }
        }

        fn granted(&self) -> BTreeSet<(SessionId, RequestNo)> {
            let granted = (0..self.claims.len()).filter(|index| self.is_at_front(*index));
            granted.map(|index| self.claims[index].key).collect()
        }

        /// The answer to an acquire: whether it was granted at once; `None` if it does not wait and is not available.
        fn acquire(&mut self, acquire: &Acquire, number: RequestNo) -> Result<Option<bool>, Refusal> {
            for want in &acquire.wants {
                if let Some(first) = self.ahead(&want.lock, self.claims.len()).first() {
                    check_kind(&want.lock, first.mode, want.mode)?;
                }
            }
            let (key, wants) = ((acquire.caller.session, number), acquire.wants.to_vec());
            self.claims.push(Claim { key, is_settled: wants.len() == 1, wants });
            let is_granted = self.is_at_front(self.claims.len() - 1);
            if !is_granted && acquire.patience == Patience::Try {
                self.claims.pop();
                return Ok(None);
            }
            self.mark_sets();
            Ok(Some(is_granted))
        }

        fn remove(&mut self, is_removed: impl Fn(&Claim) -> bool) {
            self.claims.retain(|claim| !is_removed(claim));
            self.mark_sets();
        }
    }

    /// A small generator of numbers: the same seed gives the same history.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }

        fn mode(&mut self) -> Mode {
            match self.below(8) {
                0..=2 => Mode::Exclusive,
                3..=4 => Mode::Shared,
                kind => Mode::Permits { count: 1 + self.below(2) as u32, of: if kind == 7 { 2 } else { 3 } },
            }
        }

        fn wants(&mut self) -> Vec<Want> {
            let mut wants: Vec<_> = ["a", "b", "c"]
                .into_iter()
                .filter(|_| self.below(5) < 2)
                .map(|name| Want { lock: LockName::new(name).expect("a name"), mode: Mode::Exclusive })
                .collect();
            if wants.is_empty() {
                wants.push(Want { lock: LockName::new("a").expect("a name"), mode: Mode::Exclusive });
            }
            for want in &mut wants {
                want.mode = self.mode();
            }
            wants
        }
    }

    fn session(number: u64) -> SessionId {
        SessionId::new(number).expect("not zero")
    }

    /// The model and the store after the same commands.
    struct Pair {
        machine: Machine,
        store: Store,
        held: BTreeMap<(SessionId, RequestNo), (LockName, Token)>,
        last_number: u64,
        open: BTreeSet<SessionId>,
    }

    impl Pair {
        fn apply(&mut self, command: Command) -> Result<Answer, Refusal> {
            let applied = self.machine.apply(command);
            for event in applied.events {
                match event {
                    Event::Granted { session, number: Some(number), locks, token, .. } => {
                        self.held.insert((session, number), (locks[0].clone(), token));
                    }
                    Event::GrantEnded { token, .. } => self.held.retain(|_, (_, its)| *its != token),
                    _ => {}
                }
            }
            applied.answer
        }

        fn acquire(&mut self, random: &mut Random) {
            let session = session(1 + random.below(SESSIONS));
            if self.open.insert(session) {
                let ttl = Ttl::from_ms(10_000).expect("a TTL");
                self.apply(Command::OpenSession { session, ttl, label: Label::new("a client") }).expect("opened");
            }
            self.last_number += 1;
            let number = RequestNo::new(self.last_number).expect("not zero");
            let mut acquire = Acquire::many(Caller { session, number: Some(number) }, random.wants());
            acquire.patience = if random.below(4) == 0 { Patience::Try } else { Patience::Wait };
            acquire.reentry = Reentry::Queue;
            let answer = self.apply(Command::Acquire(acquire.clone())).map(|answer| match answer {
                Answer::Granted { .. } => Some(true),
                Answer::Queued { .. } => Some(false),
                other => (other != Answer::Busy).then(|| panic!("{other:?}")),
            });
            assert_eq!(self.store.acquire(&acquire, number), answer, "{acquire:?}");
        }

        fn step(&mut self, random: &mut Random) {
            match random.below(10) {
                0..=4 => self.acquire(random),
                5..=7 => {
                    let nth = random.below(self.held.len().max(1) as u64) as usize;
                    let Some((key, (lock, token))) = self.held.clone().into_iter().nth(nth) else { return };
                    self.apply(Command::Release { caller: None, lock, token }).expect("it is held");
                    self.store.remove(|claim| claim.key == key);
                }
                8 => {
                    let held = &self.held;
                    let waits = self.store.claims.iter().filter(|claim| !held.contains_key(&claim.key));
                    let waits: Vec<_> = waits.map(|claim| claim.key).collect();
                    let nth = random.below(waits.len().max(1) as u64) as usize;
                    let Some((session, number)) = waits.get(nth).copied() else { return };
                    let caller = Caller { session, number: None };
                    let cancel = Command::Cancel { caller, waiting: Waiting::Request(number) };
                    self.apply(cancel).expect("it waits");
                    self.store.remove(|claim| claim.key == (session, number));
                }
                _ => {
                    let session = session(1 + random.below(SESSIONS));
                    if self.open.remove(&session) {
                        self.apply(Command::CloseSession { session }).expect("it is open");
                        self.store.remove(|claim| claim.key.0 == session);
                    }
                }
            }
        }
    }

    #[test]
    fn the_claims_that_are_granted_are_those_that_the_machine_grants() {
        let mut sets_granted_after_a_wait = 0;
        for seed in 0..600 {
            let mut random = Random(seed);
            let mut pair = Pair {
                machine: Machine::new(Limits::default()),
                store: Store::default(),
                held: BTreeMap::new(),
                last_number: 0,
                open: BTreeSet::new(),
            };
            for step in 0..60 {
                let waited: BTreeSet<_> = pair.store.claims.iter().map(|claim| claim.key).collect();
                let before = pair.store.granted();
                pair.step(&mut random);
                let granted = pair.store.granted();
                assert_eq!(granted, pair.held.keys().copied().collect(), "seed {seed}, step {step}");
                let new = pair.store.claims.iter().filter(|claim| claim.wants.len() > 1);
                let new = new.filter(|claim| granted.contains(&claim.key) && !before.contains(&claim.key));
                sets_granted_after_a_wait += new.filter(|claim| waited.contains(&claim.key)).count();
            }
        }
        assert!(sets_granted_after_a_wait > 300, "the histories are too tame: {sets_granted_after_a_wait}");
    }
}
