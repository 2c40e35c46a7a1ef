//! The assignment: which member is to own which partition. A pure function, so that all members that know the same come to
//! the same result without talking to each other.
//!
//! The result does not depend on how far a rebalancing has come: if some of the partitions have moved already, and others
//! have not, in any order, then the rest of the result is the same. So members whose views differ only in that agree.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use palisade_core::SessionId;

/// The members, by session, with the most partitions that each of them takes.
pub(super) type Capacities = BTreeMap<SessionId, u32>;

/// Returns the owner that each partition is to have; `None` if all members are at their capacity. An owner that is not a
/// member counts as none.
///
/// The loads of members below their capacity differ by at most one. As few partitions as possible change their owner.
pub(super) fn assign(members: &Capacities, owners: &[Option<SessionId>]) -> Vec<Option<SessionId>> {
    let mut owned: BTreeMap<SessionId, Vec<u32>> = BTreeMap::new();
    for (partition, owner) in (0..).zip(owners) {
        if let Some(owner) = owner.filter(|owner| members.contains_key(owner)) {
            owned.entry(owner).or_default().push(partition);
        }
    }
    let load = |member: &SessionId| owned.get(member).map_or(0, |partitions| count(partitions.len()));
    let quotas = quotas(members, count(owners.len()), load);

    let mut assigned = vec![None; owners.len()];
    let mut open_places = Vec::new();
    for (&member, &quota) in &quotas {
        let mut kept = owned.remove(&member).unwrap_or_default();
        if kept.len() > quota as usize {
            kept.sort_by_key(|&partition| Reverse(score(partition, member)));
            kept.truncate(quota as usize);
        }
        for &partition in &kept {
            assigned[partition as usize] = Some(member);
        }
        let open = quota - count(kept.len());
        if open > 0 {
            open_places.push((member, open));
        }
    }
    for (partition, owner) in (0..).zip(&mut assigned).filter(|(_, owner)| owner.is_none()) {
        let best = (0..open_places.len()).max_by_key(|&at| score(partition, open_places[at].0));
        let Some(at) = best else { break };
        let (member, open) = &mut open_places[at];
        *owner = Some(*member);
        *open -= 1;
        if *open == 0 {
            open_places.swap_remove(at);
        }
    }
    assigned
}

/// Returns how many partitions each member is to own.
fn quotas(members: &Capacities, partitions: u32, load: impl Fn(&SessionId) -> u32) -> Capacities {
    let filled = |level: u32| members.values().map(|&capacity| u64::from(capacity.min(level))).sum::<u64>();
    let total = filled(partitions).min(u64::from(partitions));
    // The highest level to which all members can be filled, up to their capacities.
    let (mut level, mut above) = (0, partitions + 1);
    while above - level > 1 {
        let middle = level + (above - level) / 2;
        if filled(middle) <= total { level = middle } else { above = middle }
    }
    let mut remaining = total - filled(level);
    let mut quotas: Capacities = members.iter().map(|(&member, &capacity)| (member, capacity.min(level))).collect();
    // One more goes first to members that own more anyway: each of them then gives up one partition less.
    let mut larger: Vec<_> =
        members.iter().filter(|(_, capacity)| **capacity > level).map(|(&member, _)| member).collect();
    larger.sort_by_key(|member| (load(member) <= level, *member));
    for member in larger {
        if remaining == 0 {
            break;
        }
        remaining -= 1;
        quotas.insert(member, level + 1);
    }
    quotas
}

/// Returns the rendezvous score of a member for a partition. All members must compute the same scores, whatever their
/// platform and version: a change of this function needs another name for the members' locks.
fn score(partition: u32, member: SessionId) -> (u64, SessionId) {
    // The finalizer of SplitMix64.
    let mix = |mut bits: u64| {
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    (mix(mix(member.get()).wrapping_add(u64::from(partition).wrapping_mul(0x9e37_79b9_7f4a_7c15))), member)
}

/// Returns a number of partitions. There are never more than `u32::MAX`.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn member(number: u64) -> SessionId {
        SessionId::new(number).expect("not 0")
    }

    fn members(capacities: &[u32]) -> Capacities {
        (1..).zip(capacities).map(|(number, &capacity)| (member(number), capacity)).collect()
    }

    fn load(owners: &[Option<SessionId>], member: SessionId) -> u32 {
        count(owners.iter().filter(|owner| **owner == Some(member)).count())
    }

    /// Members with capacities, and owners: members, sessions that are not members, and none.
    fn situations(
        most_members: usize,
        most_partitions: usize,
    ) -> impl Strategy<Value = (Capacities, Vec<Option<SessionId>>)> {
        let capacities = vec(prop_oneof![Just(u32::MAX), 1..12_u32], 0..=most_members);
        capacities.prop_flat_map(move |capacities| {
            let sessions = 0..=capacities.len() as u64 + 2;
            let owners = vec(sessions.prop_map(|number| SessionId::new(number).ok()), 1..=most_partitions);
            (Just(members(&capacities)), owners)
        })
    }

    /// Returns whether no partition is left over while a member has room, and members below their capacity differ by at
    /// most one.
    fn check_balance(members: &Capacities, assigned: &[Option<SessionId>]) -> Result<(), TestCaseError> {
        let room: u64 = members.values().map(|&capacity| u64::from(capacity)).sum();
        let placed = assigned.iter().flatten().count() as u64;
        prop_assert_eq!(placed, room.min(assigned.len() as u64));
        let loads: Vec<_> = members.iter().map(|(&id, &capacity)| (load(assigned, id), capacity)).collect();
        for &(load, capacity) in &loads {
            prop_assert!(load <= capacity);
            let most = loads.iter().map(|(load, _)| *load).max().unwrap_or_default();
            prop_assert!(load == capacity || load + 1 >= most, "a member has {} and another {}", load, most);
        }
        Ok(())
    }

    /// Returns the fewest moves after which the loads are balanced, by trying all ways to distribute the partitions.
    fn fewest_moves(members: &Capacities, owners: &[Option<SessionId>]) -> u32 {
        fn most_kept(loads: &[(u32, u32)], left: u32, low: u32) -> Option<u32> {
            let [(owned, capacity), rest @ ..] = loads else { return (left == 0).then_some(0) };
            let choices = [(*capacity).min(low), (*capacity).min(low + 1)];
            choices
                .iter()
                .filter_map(|&quota| Some(most_kept(rest, left.checked_sub(quota)?, low)? + quota.min(*owned)))
                .max()
        }
        let loads: Vec<_> = members.iter().map(|(&id, &capacity)| (load(owners, id), capacity)).collect();
        let room: u64 = members.values().map(|&capacity| u64::from(capacity)).sum();
        let total = count(owners.len().min(usize::try_from(room).expect("64 bits")));
        let kept = (0..=total).filter_map(|low| most_kept(&loads, total, low)).max().expect("some way is balanced");
        loads.iter().map(|(owned, _)| owned).sum::<u32>() - kept
    }

    fn moves(members: &Capacities, owners: &[Option<SessionId>], assigned: &[Option<SessionId>]) -> u32 {
        let is_moved = |(before, after): &(&Option<SessionId>, &Option<SessionId>)| {
            before.is_some_and(|owner| members.contains_key(&owner)) && before != after
        };
        count(owners.iter().zip(assigned).filter(is_moved).count())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn loads_are_balanced_and_no_partition_is_left_over((members, owners) in situations(12, 80)) {
            check_balance(&members, &assign(&members, &owners))?;
        }

        #[test]
        fn no_more_partitions_move_than_necessary((members, owners) in situations(6, 30)) {
            let assigned = assign(&members, &owners);
            prop_assert_eq!(moves(&members, &owners, &assigned), fewest_moves(&members, &owners));
        }

        #[test]
        fn an_assignment_that_was_carried_out_stays((members, owners) in situations(12, 80)) {
            let assigned = assign(&members, &owners);
            prop_assert_eq!(assign(&members, &assigned), assigned);
        }

        /// Each partition is still with its old owner, or free, or with its new owner.
        #[test]
        fn progress_does_not_change_the_assignment(
            (members, owners) in situations(12, 80),
            progress in vec(0..3_u8, 80),
        ) {
            let assigned = assign(&members, &owners);
            let steps = owners.iter().zip(&assigned).zip(progress);
            let midway: Vec<_> = steps.map(|((before, after), progress)| match progress {
                0 => *before,
                // A partition that stays is never free.
                1 if before != after => None,
                _ => *after,
            }).collect();
            prop_assert_eq!(assign(&members, &midway), assigned);
        }
    }

    #[test]
    fn a_new_member_gets_its_share_and_nothing_else_moves() {
        let two = members(&[u32::MAX; 2]);
        let before = assign(&two, &[None; 64]);
        let three = members(&[u32::MAX; 3]);
        let after = assign(&three, &before);
        assert_eq!([1, 2, 3].map(|number| load(&after, member(number))), [22, 21, 21]);
        assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == Some(member(3))));
    }

    #[test]
    fn partitions_without_room_have_no_owner() {
        let assigned = assign(&members(&[2, 3]), &[None; 10]);
        assert_eq!(assigned.iter().filter(|owner| owner.is_none()).count(), 5);
        assert_eq!(assign(&Capacities::new(), &[Some(member(9)); 3]), [None; 3]);
    }

    /// Members of different versions must agree.
    #[test]
    fn the_scores_of_other_versions_are_the_same() {
        let assigned = assign(&members(&[u32::MAX; 3]), &[None; 12]);
        let numbers: Vec<_> = assigned.iter().flatten().map(|member| member.get()).collect();
        assert_eq!(numbers, [3, 3, 2, 1, 1, 3, 2, 2, 3, 1, 1, 2]);
    }
}
