//! A model of a group: real views and assignments, over locks whose events reach each member late. It checks that members
//! which act on stale views still come to a balanced result.

use std::collections::{BTreeSet, VecDeque};

use palisade_core::{Ending, Event, LockName, Mode, SessionId, Token};

use super::assignment::{Capacities, assign};
use super::view::{Names, View};
use crate::engine::{HolderInfo, LockInfo};

/// Deterministic random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// A member with its view.
struct SimMember {
    session: SessionId,
    capacity: u32,
    lock: String,
    view: View,
    /// How many events of the log it has seen.
    seen: usize,
    owned: BTreeSet<u32>,
    losing: BTreeSet<u32>,
    waits: BTreeSet<u32>,
    /// Whether something happened that its task acts on.
    must_act: bool,
}

#[derive(Clone, Default)]
struct SimLock {
    holder: Option<(SessionId, Token)>,
    queue: VecDeque<SessionId>,
}

/// The locks, their history, and the members.
struct Model {
    names: Names,
    log: Vec<Event>,
    locks: Vec<SimLock>,
    members: Vec<SimMember>,
    last_token: u64,
    last_session: u64,
    /// How many partitions living members have given up.
    moves: usize,
}

impl Model {
    fn new(count: u32) -> Model {
        Model {
            names: Names::new("orders", count),
            log: Vec::new(),
            locks: vec![SimLock::default(); count as usize],
            members: Vec::new(),
            last_token: 0,
            last_session: 0,
            moves: 0,
        }
    }

    fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token::new(self.last_token).expect("not 0")
    }

    fn granted(&mut self, lock: &str, session: SessionId) -> Token {
        let token = self.next_token();
        let locks = [LockName::new(lock).expect("a name")].into_iter().collect();
        self.log.push(Event::Granted { locks, session, token, ticket: None, number: None });
        token
    }

    fn ended(&mut self, lock: &str, session: SessionId, token: Token) {
        let locks = [LockName::new(lock).expect("a name")].into_iter().collect();
        self.log.push(Event::GrantEnded { locks, session, token, how: Ending::Released });
    }

    fn join(&mut self, capacity: u32) {
        self.last_session += 1;
        let session = SessionId::new(self.last_session).expect("not 0");
        let lock = self.names.member(capacity, self.last_session);
        self.granted(&lock, session);
        let mut view = View::new(self.names.clone());
        for event in &self.log {
            view.apply(event);
        }
        let (owned, losing, waits) = Default::default();
        let (seen, must_act) = (self.log.len(), true);
        self.members.push(SimMember { session, capacity, lock, view, seen, owned, losing, waits, must_act });
    }

    /// The member leaves or is killed: its membership ends first, then its waits and its partitions.
    fn remove(&mut self, at: usize) {
        let member = self.members.swap_remove(at);
        self.ended(&member.lock, member.session, Token::new(1).expect("not 0"));
        for partition in member.waits {
            self.locks[partition as usize].queue.retain(|waiter| *waiter != member.session);
        }
        for partition in member.owned {
            self.free(partition);
        }
    }

    /// Ends the grant of a partition, and grants it to the next waiter.
    fn free(&mut self, partition: u32) {
        let lock = self.names.partition(partition);
        let (holder, token) = self.locks[partition as usize].holder.take().expect("it is held");
        self.ended(&lock, holder, token);
        if let Some(next) = self.locks[partition as usize].queue.pop_front() {
            self.grant(partition, next);
        }
    }

    fn grant(&mut self, partition: u32, session: SessionId) {
        let token = self.granted(&self.names.partition(partition), session);
        self.locks[partition as usize].holder = Some((session, token));
        let member = self.members.iter_mut().find(|member| member.session == session).expect("a waiter is a member");
        assert!(member.waits.remove(&partition) && member.owned.insert(partition));
    }

    fn see(&mut self, at: usize, events: usize) {
        let member = &mut self.members[at];
        let until = self.log.len().min(member.seen + events);
        for event in &self.log[member.seen..until] {
            member.must_act |= member.view.apply(event);
        }
        member.seen = until;
    }

    /// The member has missed events. It lists the locks, and then sees some events again that the list contains.
    fn list(&mut self, at: usize, events_again: usize) {
        let info = |lock: &str, session: SessionId, token: Token| {
            let (label, held_for_ms, time_left_ms) = (None, None, None);
            let session = Some(session);
            let holder = HolderInfo { token, mode: Mode::Exclusive, session, label, held_for_ms, time_left_ms };
            let (holders, waiters, history) = (vec![holder], Vec::new(), Vec::new());
            let name = LockName::new(lock).expect("a name");
            LockInfo { name, limit: None, holders, waiters, value: None, history }
        };
        let held = (0..).zip(&self.locks).filter_map(|(partition, lock)| {
            lock.holder.map(|(session, token)| info(&self.names.partition(partition), session, token))
        });
        let members =
            self.members.iter().map(|member| info(&member.lock, member.session, Token::new(1).expect("not 0")));
        let listed: Vec<_> = held.chain(members).collect();
        let again = self.log.len().saturating_sub(events_again);
        let member = &mut self.members[at];
        member.view.reset(&listed);
        member.must_act = true;
        member.seen = member.seen.max(again);
    }

    /// Does as a member's task does.
    fn act(&mut self, at: usize) -> bool {
        let SimMember { session: me, capacity, view, owned, losing, waits, must_act, .. } = &mut self.members[at];
        if !std::mem::take(must_act) {
            return false;
        }
        let me = *me;
        let target = view.target((me, *capacity), |p| owned.contains(&p), |p| waits.contains(&p));
        let is_mine = |partition: &u32| target.owners[*partition as usize] == Some(me);
        let dropped: Vec<u32> = waits.iter().copied().filter(|partition| !is_mine(partition)).collect();
        let given_up: Vec<u32> =
            owned.iter().copied().filter(|partition| !is_mine(partition) && !losing.contains(partition)).collect();
        let wanted: Vec<u32> = (0..self.locks.len() as u32)
            .filter(|partition| is_mine(partition) && !owned.contains(partition) && !waits.contains(partition))
            .collect();
        losing.extend(&given_up);
        for partition in &dropped {
            waits.remove(partition);
            self.locks[*partition as usize].queue.retain(|waiter| *waiter != me);
        }
        self.moves += given_up.len();
        for &partition in &wanted {
            self.members[at].waits.insert(partition);
            match self.locks[partition as usize].holder {
                None => self.grant(partition, me),
                Some(_) => self.locks[partition as usize].queue.push_back(me),
            }
        }
        !dropped.is_empty() || !given_up.is_empty() || !wanted.is_empty()
    }

    /// The application lets go of one partition that it is about to lose.
    fn let_go(&mut self, at: usize) -> bool {
        let member = &mut self.members[at];
        let Some(partition) = member.losing.pop_first() else { return false };
        member.owned.remove(&partition);
        member.must_act = true;
        self.free(partition);
        true
    }

    /// A random step of a random member. Members of one name never own the same partition.
    fn step(&mut self, random: &mut Random) {
        if !self.members.is_empty() {
            let at = random.below(self.members.len());
            match random.below(20) {
                0..8 => self.see(at, 1 + random.below(4)),
                8..13 => drop(self.act(at)),
                13..19 => drop(self.let_go(at)),
                _ => self.list(at, random.below(30)),
            }
        }
        let mut owned = BTreeSet::new();
        for member in &self.members {
            for partition in &member.owned {
                assert!(owned.insert(*partition), "two members own {partition}");
                let holder = self.locks[*partition as usize].holder.expect("an owner holds the lock");
                assert_eq!(holder.0, member.session);
            }
        }
    }

    /// Lets everything happen that is left. Returns whether it came to rest.
    fn settle(&mut self) -> bool {
        (0..100).any(|_| {
            let members = 0..self.members.len();
            let changes = members.map(|at| {
                self.see(at, usize::MAX / 2);
                let acted = self.act(at);
                let mut has_let_go = false;
                while self.let_go(at) {
                    has_let_go = true;
                }
                acted || has_let_go
            });
            let was_at_rest = !changes.fold(false, |any, changed| any | changed);
            was_at_rest && self.members.iter().all(|member| member.seen == self.log.len())
        })
    }

    fn check_balance(&self) {
        let owners: Vec<_> = self.locks.iter().map(|lock| lock.holder.map(|(session, _)| session)).collect();
        let members: Capacities = self.members.iter().map(|member| (member.session, member.capacity)).collect();
        assert_eq!(assign(&members, &owners), owners, "something would still move");
        assert!(self.members.iter().all(|member| member.waits.is_empty() && member.losing.is_empty()));
    }

    /// The moves that a change of the members makes necessary.
    fn necessary_moves(&self) -> usize {
        let owners: Vec<_> = self.locks.iter().map(|lock| lock.holder.map(|(session, _)| session)).collect();
        let members: Capacities = self.members.iter().map(|member| (member.session, member.capacity)).collect();
        let assigned = assign(&members, &owners);
        owners.iter().zip(&assigned).filter(|(before, after)| before.is_some() && before != after).count()
    }
}

#[test]
fn members_with_stale_views_come_to_a_balanced_result() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut model = Model::new(1 + random.below(40) as u32);
        for _ in 0..300 {
            match random.below(25) {
                0 if model.members.len() < 7 => {
                    let capacity = if random.below(3) == 0 { 1 + random.below(9) as u32 } else { 40 };
                    model.join(capacity);
                }
                1 if !model.members.is_empty() && random.below(2) == 0 => {
                    model.remove(random.below(model.members.len()))
                }
                _ => model.step(&mut random),
            }
        }
        assert!(model.settle(), "seed {seed} does not come to rest");
        model.check_balance();
    }
}

#[test]
fn one_change_of_the_members_moves_no_more_than_necessary() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut model = Model::new(1 + random.below(60) as u32);
        for _ in 0..1 + random.below(6) {
            model.join(60);
        }
        assert!(model.settle());
        match random.below(2) {
            0 => model.join(60),
            _ => model.remove(random.below(model.members.len())),
        }
        model.moves = 0;
        let necessary = model.necessary_moves();
        for _ in 0..400 {
            model.step(&mut random);
        }
        assert!(model.settle());
        model.check_balance();
        assert_eq!(model.moves, necessary, "seed {seed}");
    }
}
