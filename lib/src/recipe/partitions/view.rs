//! A member's view of the group: the members and the owners, built from a list of locks and kept up to date by events.

use std::collections::BTreeMap;

use palisade_core::{Event, SessionId, Token};

use super::assignment::{Capacities, assign};
use crate::engine::LockInfo;

/// The most partitions that one name can have. The names of their locks have four digits.
pub(super) const MAX_PARTITIONS: u32 = 4096;

/// The most members that a view keeps. Sessions that are not members can take locks with such names too.
const MAX_MEMBERS: usize = 10_000;

/// The names of the locks of one group.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// Ends with a slash. All locks of the group have it.
    pub(super) prefix: String,
    count: u32,
}

/// The meaning of a lock of the group.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    Member { count: u32, capacity: u32 },
    Partition(u32),
}

impl Names {
    pub(super) fn new(name: &str, count: u32) -> Names {
        Names { prefix: format!("{name}/"), count }
    }

    /// Returns the name of the lock that makes its holder the owner of a partition. It does not depend on the number of
    /// partitions, so that members that disagree about the number still exclude each other.
    pub(super) fn partition(&self, partition: u32) -> String {
        format!("{}partitions/{partition:04}", self.prefix)
    }

    /// Returns the name of the lock that makes its holder a member. A grant of it tells the other members everything.
    pub(super) fn member(&self, capacity: u32, nonce: u64) -> String {
        format!("{}members/{}-{capacity}-{nonce:016x}", self.prefix, self.count)
    }

    fn role(&self, lock: &str) -> Option<Role> {
        let (kind, rest) = lock.strip_prefix(&self.prefix)?.split_once('/')?;
        match kind {
            "partitions" => {
                let partition = rest.parse().ok().filter(|partition| *partition < self.count)?;
                (self.partition(partition) == lock).then_some(Role::Partition(partition))
            }
            "members" => {
                let mut parts = rest.split('-');
                let (count, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                parts.next()?;
                Some(Role::Member { count, capacity })
            }
            _ => None,
        }
    }
}

/// A member's view of the group.
pub(super) struct View {
    names: Names,
    /// By the name of the member's lock.
    members: BTreeMap<String, (SessionId, u32)>,
    owners: Vec<Owner>,
    /// The owners that the partitions are to have, as this member computed them last. An event that brings a partition closer to
    /// that does not change the assignment.
    expected: Vec<Option<SessionId>>,
}

#[derive(Clone, Default)]
struct Owner {
    session: Option<SessionId>,
    /// The highest token that was seen. An event with a lower one is older than this state.
    newest: Option<Token>,
}

impl View {
    pub(super) fn new(names: Names) -> View {
        let owners = vec![Owner::default(); names.count as usize];
        let expected = vec![None; owners.len()];
        View { names, members: BTreeMap::new(), owners, expected }
    }

    /// Applies an event. Returns whether the assignment may have changed.
    pub(super) fn apply(&mut self, event: &Event) -> bool {
        match event {
            Event::Granted { locks, session, token, .. } => {
                locks.iter().fold(false, |changed, lock| self.granted(lock.as_str(), *session, *token) | changed)
            }
            Event::GrantEnded { locks, token, .. } => {
                locks.iter().fold(false, |changed, lock| self.ended(lock.as_str(), *token) | changed)
            }
            _ => false,
        }
    }

    fn granted(&mut self, lock: &str, session: SessionId, token: Token) -> bool {
        match self.names.role(lock) {
            Some(Role::Member { count, capacity }) => {
                let is_ours = count == self.names.count && self.members.len() < MAX_MEMBERS;
                is_ours && self.members.insert(lock.to_owned(), (session, capacity)).is_none()
            }
            Some(Role::Partition(partition)) => {
                let owner = &mut self.owners[partition as usize];
                let is_new = owner.newest.is_none_or(|newest| token > newest);
                if is_new {
                    *owner = Owner { session: Some(session), newest: Some(token) };
                }
                is_new && self.expected[partition as usize] != Some(session)
            }
            None => false,
        }
    }

    fn ended(&mut self, lock: &str, token: Token) -> bool {
        match self.names.role(lock) {
            Some(Role::Member { .. }) => self.members.remove(lock).is_some(),
            Some(Role::Partition(partition)) => {
                let owner = &mut self.owners[partition as usize];
                let is_latest = owner.newest.is_none_or(|newest| token >= newest);
                if is_latest {
                    owner.newest = Some(token);
                }
                let freed_by = owner.session.take_if(|_| is_latest);
                freed_by.is_some() && freed_by == self.expected[partition as usize]
            }
            None => false,
        }
    }

    /// Replaces the view by a list of the group's locks that is newer than all events applied so far. Events that the list
    /// already contains may follow.
    pub(super) fn reset(&mut self, locks: &[LockInfo]) {
        self.members.clear();
        for owner in &mut self.owners {
            owner.session = None;
        }
        for lock in locks {
            for holder in &lock.holders {
                let Some(session) = holder.session else { continue };
                if let Some(Role::Partition(partition)) = self.names.role(lock.name.as_str()) {
                    let owner = &mut self.owners[partition as usize];
                    // A list from a store whose data went back shows the truth all the same.
                    *owner = Owner { session: Some(session), newest: Some(holder.token) };
                } else {
                    self.granted(lock.name.as_str(), session, holder.token);
                }
            }
        }
    }

    /// Returns another number of partitions that members in this list have.
    pub(super) fn other_count(names: &Names, locks: &[LockInfo]) -> Option<u32> {
        let held = locks.iter().filter(|lock| !lock.holders.is_empty());
        held.filter_map(|lock| names.role(lock.name.as_str())).find_map(|role| match role {
            Role::Member { count, .. } if count != names.count => Some(count),
            Role::Member { .. } | Role::Partition(_) => None,
        })
    }

    /// Returns the owners that the partitions are to have, as the member with this session sees it. It knows first what it
    /// owns itself, and what it waits for.
    pub(super) fn target(
        &mut self,
        (me, capacity): (SessionId, u32),
        is_owned: impl Fn(u32) -> bool,
        is_waited_for: impl Fn(u32) -> bool,
    ) -> Target {
        let mut members = self.members();
        members.insert(me, capacity);
        let mut owners = self.owners();
        for (partition, owner) in (0..).zip(&mut owners) {
            if is_owned(partition) {
                *owner = Some(me);
            } else if *owner == Some(me) && !is_waited_for(partition) {
                // Its release is on the way.
                *owner = None;
            }
        }
        self.expected = assign(&members, &owners);
        Target { owners: self.expected.clone(), members: members.len() }
    }

    fn members(&self) -> Capacities {
        self.members.values().copied().collect()
    }

    fn owners(&self) -> Vec<Option<SessionId>> {
        self.owners.iter().map(|owner| owner.session).collect()
    }
}

/// The owners that partitions are to have.
pub(super) struct Target {
    pub(super) owners: Vec<Option<SessionId>>,
    pub(super) members: usize,
}

#[cfg(test)]
mod tests {
    use palisade_core::{Ending, LockName, Mode};

    use super::*;
    use crate::engine::HolderInfo;

    fn session(number: u64) -> SessionId {
        SessionId::new(number).expect("not 0")
    }

    fn token(number: u64) -> Token {
        Token::new(number).expect("not 0")
    }

    fn name(lock: &str) -> LockName {
        LockName::new(lock).expect("a name")
    }

    fn granted(lock: &str, holder: u64, number: u64) -> Event {
        let (session, token) = (session(holder), token(number));
        Event::Granted { locks: [name(lock)].into_iter().collect(), session, token, ticket: None, number: None }
    }

    fn ended(lock: &str, holder: u64, number: u64) -> Event {
        let (session, token) = (session(holder), token(number));
        Event::GrantEnded { locks: [name(lock)].into_iter().collect(), session, token, how: Ending::Released }
    }

    fn listed(lock: &str, holder: u64, number: u64) -> LockInfo {
        let holder = HolderInfo {
            token: token(number),
            mode: Mode::Exclusive,
            session: Some(session(holder)),
            label: None,
            held_for_ms: None,
            time_left_ms: None,
        };
        let (holders, waiters, history) = (vec![holder], Vec::new(), Vec::new());
        LockInfo { name: name(lock), limit: None, holders, waiters, value: None, history }
    }

    fn view() -> View {
        View::new(Names::new("orders", 3))
    }

    #[test]
    fn a_grant_of_a_members_lock_tells_its_capacity() {
        let (mut view, names) = (view(), Names::new("orders", 3));
        let lock = names.member(7, 0xab);
        assert_eq!(lock, "orders/members/3-7-00000000000000ab");
        assert!(view.apply(&granted(&lock, 5, 1)));
        assert_eq!(view.members(), Capacities::from([(session(5), 7)]));
        assert!(view.apply(&ended(&lock, 5, 1)));
        assert_eq!(view.members(), Capacities::new());
    }

    #[test]
    fn locks_that_are_not_the_groups_are_ignored() {
        let mut view = view();
        for lock in [
            "orders/partitions/0003",
            "orders/partitions/1",
            "orders/partitions/+001",
            "orders/partitions/x",
            "orders/members/4-7-ab",
            "orders/members/3-x-ab",
            "orders/members/3",
            "orders/other/0001",
            "orders2/partitions/0001",
            "orders/partitions",
        ] {
            assert!(!view.apply(&granted(lock, 5, 1)), "{lock}");
            view.reset(&[listed(lock, 5, 1)]);
            assert_eq!((view.owners(), view.members()), (vec![None; 3], Capacities::new()), "{lock}");
        }
    }

    #[test]
    fn events_that_the_list_contains_already_do_not_spoil_the_view() {
        let (mut view, lock) = (view(), "orders/partitions/0001");
        view.reset(&[listed(lock, 5, 7)]);
        for event in [granted(lock, 4, 3), ended(lock, 4, 3), granted(lock, 5, 7)] {
            assert!(!view.apply(&event), "{event:?}");
            assert_eq!(view.owners(), [None, Some(session(5)), None]);
        }
        view.apply(&ended(lock, 5, 7));
        assert_eq!(view.owners(), [None; 3]);
        assert!(!view.apply(&granted(lock, 5, 7)), "a grant does not come back");
        assert_eq!(view.owners(), [None; 3]);
        assert!(view.apply(&granted(lock, 6, 8)));
        assert_eq!(view.owners(), [None, Some(session(6)), None]);
    }

    /// Otherwise each of a thousand grants would make all members compute the assignment again.
    #[test]
    fn progress_towards_the_assignment_does_not_change_it() {
        let (mut view, names) = (view(), Names::new("orders", 3));
        view.apply(&granted(&names.member(3, 1), 4, 1));
        view.apply(&granted(&names.member(3, 2), 5, 2));
        for partition in 0..3 {
            assert!(view.apply(&granted(&names.partition(partition), 4, 10 + u64::from(partition))));
        }
        let owners = view.target((session(4), 3), |_| true, |_| false).owners;
        let moved = owners.iter().position(|owner| *owner == Some(session(5))).expect("one moves") as u32;
        let kept = (moved + 1) % 3;
        assert!(!view.apply(&ended(&names.partition(moved), 4, 10 + u64::from(moved))), "it is given up");
        assert!(!view.apply(&granted(&names.partition(moved), 5, 20)), "its next owner has it");
        assert!(view.apply(&ended(&names.partition(moved), 5, 20)), "the owner does not keep it");
        assert!(view.apply(&granted(&names.partition(kept), 6, 21)), "a stranger has it");
    }

    #[test]
    fn a_list_replaces_what_was_missed() {
        let (mut view, names) = (view(), Names::new("orders", 3));
        view.apply(&granted(&names.member(1, 1), 4, 1));
        view.apply(&granted(&names.partition(0), 4, 2));
        view.reset(&[listed(&names.member(2, 2), 5, 3), listed(&names.partition(1), 5, 4)]);
        assert_eq!(view.members(), Capacities::from([(session(5), 2)]));
        assert_eq!(view.owners(), [None, Some(session(5)), None]);
        assert!(!view.apply(&granted(&names.partition(0), 4, 2)), "this grant has ended unseen");
    }

    #[test]
    fn members_with_another_number_of_partitions_are_found() {
        let names = Names::new("orders", 3);
        let ours = listed(&names.member(7, 1), 5, 1);
        assert_eq!(View::other_count(&names, std::slice::from_ref(&ours)), None);
        let theirs = listed(&Names::new("orders", 64).member(7, 2), 6, 2);
        assert_eq!(View::other_count(&names, &[ours, theirs]), Some(64));
    }
}
