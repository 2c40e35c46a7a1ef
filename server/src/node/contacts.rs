//! The members that a node connects to.

use std::collections::BTreeMap;

use crate::storage::{Identity, Member, Membership};

/// How many members that the log does not name are known at most. Without certificates, any process on this machine may claim to be one.
const UNNAMED: usize = 16;

/// The members that this node connects to.
///
/// Its log names them, but may be old: a node that was down while members were added learns of them from their messages. It must answer
/// these. Otherwise a new member that leads never learns what this node lacks, and does not get its vote.
#[derive(Debug)]
pub(super) struct Contacts {
    own: u64,
    /// The members when this one was invited. They count until the log names this one.
    at_invitation: BTreeMap<u64, Member>,
    /// The members that have connected to this one, and that its log does not name.
    unnamed: BTreeMap<u64, Member>,
}

impl Contacts {
    pub(super) fn new(identity: &Identity) -> Contacts {
        Contacts { own: identity.member, at_invitation: identity.contacts.clone(), unnamed: BTreeMap::new() }
    }

    /// Notes a member that has connected to this one. Returns whether it is a new contact.
    pub(super) fn add(&mut self, id: u64, member: Member, membership: &Membership) -> bool {
        let is_named = id == self.own || membership.members.contains_key(&id) || membership.removed.contains(&id);
        let is_full = self.unnamed.len() >= UNNAMED && !self.unnamed.contains_key(&id);
        if is_named || is_full || self.unnamed.get(&id) == Some(&member) {
            return false;
        }
        self.unnamed.insert(id, member);
        true
    }

    /// Returns the members to connect to.
    pub(super) fn list(&mut self, membership: &Membership) -> BTreeMap<u64, Member> {
        let is_unknown = |id: &u64| !membership.members.contains_key(id) && !membership.removed.contains(id);
        self.unnamed.retain(|id, _| is_unknown(id));
        let mut list = self.unnamed.clone();
        if !membership.members.contains_key(&self.own) {
            list.extend(self.at_invitation.clone());
        }
        list.extend(membership.members.clone());
        list.remove(&self.own);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Stage;

    fn member(id: u64) -> Member {
        Member::new(format!("node{id}"), format!("node{id}:7422"))
    }

    fn contacts(own: u64, at_invitation: &[u64]) -> Contacts {
        Contacts::new(&Identity {
            cluster: 1,
            member: own,
            node: Some(member(own)),
            founders: Membership::default(),
            contacts: at_invitation.iter().map(|id| (*id, member(*id))).collect(),
            stage: Stage::Member,
        })
    }

    fn membership(ids: &[u64]) -> Membership {
        Membership::founded_by(ids.iter().map(|id| (*id, member(*id))).collect())
    }

    fn ids(contacts: &mut Contacts, membership: &Membership) -> Vec<u64> {
        contacts.list(membership).into_keys().collect()
    }

    #[test]
    fn a_member_that_the_log_does_not_name_is_a_contact_until_the_log_does() {
        let (mut contacts, founders) = (contacts(1, &[]), membership(&[1, 2, 3]));
        assert!(contacts.add(4, member(4), &founders));
        assert!(!contacts.add(4, member(4), &founders), "it has connected again");
        assert_eq!(ids(&mut contacts, &founders), [2, 3, 4]);
        let moved = Member::new("node4", "elsewhere:7422");
        assert!(contacts.add(4, moved.clone(), &founders), "it has another address");
        assert_eq!(contacts.list(&founders)[&4], moved);
        assert_eq!(contacts.list(&membership(&[1, 2, 3, 4]))[&4], member(4), "the log decides");
        let removed = Membership { removed: vec![4], ..founders };
        assert!(!contacts.add(4, member(4), &removed));
        assert_eq!(ids(&mut contacts, &removed), [2, 3]);
    }

    #[test]
    fn a_member_that_was_removed_is_no_contact() {
        let (mut contacts, founders) = (contacts(1, &[]), membership(&[1, 2]));
        contacts.add(4, member(4), &founders);
        assert_eq!(ids(&mut contacts, &Membership { removed: vec![4], ..founders }), [2]);
    }

    #[test]
    fn a_new_member_connects_to_those_that_invited_it_until_its_log_names_it() {
        let mut contacts = contacts(3, &[1, 2]);
        assert_eq!(ids(&mut contacts, &membership(&[1])), [1, 2]);
        assert_eq!(ids(&mut contacts, &membership(&[1, 3])), [1]);
    }

    #[test]
    fn strangers_cost_a_bounded_number_of_connections() {
        let (mut contacts, founders) = (contacts(1, &[]), membership(&[1, 2]));
        let added = (10..1_000).filter(|id| contacts.add(*id, member(*id), &founders)).count();
        assert_eq!(added, UNNAMED);
        assert!(contacts.add(10, Member::new("node10", "elsewhere:7422"), &founders), "one of them has moved");
    }
}
