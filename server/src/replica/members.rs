//! Changes of the members.

use std::collections::BTreeMap;

use protobuf::Message as _;
use raft::StateRole;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry};

use super::Replica;
use crate::storage::Member;

/// A change of the members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MembershipChange {
    /// Members that vote afterwards.
    pub voters: Vec<u64>,
    /// Members that receive the log and do not vote afterwards: new ones, or voters that will be removed.
    pub learners: Vec<u64>,
    /// Members that are removed.
    pub removed: Vec<u64>,
    /// Names and addresses of members that are new or have moved.
    pub members: BTreeMap<u64, Member>,
}

/// Another member, as the leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follower {
    /// The member.
    pub member: u64,
    /// The last entry that it is known to have written.
    pub matched: u64,
    /// Whether the leader has heard from it within the last election time-out or two.
    pub is_active: bool,
}

/// How many committed entries a new member may lack when it gets a vote. It receives them while it votes.
const ALMOST: u64 = 64;

impl<C, R> Replica<C, R> {
    /// Goes on with changes that take several steps, if this member leads: gives a new member its vote once it has the log, and
    /// removes a member that does not vote any more.
    pub fn advance_members(&mut self) {
        if !self.is_leader || self.membership().is_joint() || self.node.raft.has_pending_conf() {
            return;
        }
        let committed = self.node.raft.raft_log.committed;
        let (mut voters, mut removed) = (Vec::new(), Vec::new());
        for follower in self.followers() {
            let id = follower.member;
            let is_leaving = self.membership().members.get(&id).is_some_and(|member| member.is_leaving);
            if !self.membership().learners.contains(&id) {
                continue;
            }
            if is_leaving {
                removed.push(id);
            } else if follower.is_active && follower.matched > 0 && follower.matched + ALMOST >= committed {
                voters.push(id);
            }
        }
        if !voters.is_empty() || !removed.is_empty() {
            self.change_members(&MembershipChange { voters, removed, ..MembershipChange::default() });
        }
    }

    /// Proposes a change of the members. It takes effect when it is applied. Returns `false` if this member does not lead, or if
    /// the change before it is not finished: then nothing has happened.
    pub fn change_members(&mut self, change: &MembershipChange) -> bool {
        let steps = [
            (ConfChangeType::AddNode, &change.voters),
            (ConfChangeType::AddLearnerNode, &change.learners),
            (ConfChangeType::RemoveNode, &change.removed),
        ];
        let steps = steps.into_iter().flat_map(|(kind, ids)| ids.iter().map(move |id| (kind, *id)));
        let steps =
            steps.map(|(change_type, node_id)| ConfChangeSingle { change_type, node_id, ..Default::default() });
        let context = match postcard::to_allocvec(&change.members) {
            Ok(context) => context,
            Err(error) => unreachable!("names can always be encoded: {error}"),
        };
        self.propose_change(ConfChangeV2 {
            changes: steps.collect::<Vec<_>>().into(),
            context: context.into(),
            ..ConfChangeV2::default()
        })
    }

    /// Ends the transition from one set of voters to the next, if the leader that began it did not.
    pub(super) fn leave_joint(&mut self) {
        if self.is_leader && self.membership().is_joint() && !self.node.raft.has_pending_conf() {
            self.propose_change(ConfChangeV2::default());
        }
    }

    /// Appends an empty entry after a change of the members. The write of this entry also says that the change is committed: a majority
    /// that has it starts again with the new members. With the old ones it may be too few, if one of them has lost its disk since.
    pub(super) fn record_change(&mut self) {
        if self.is_change_unrecorded && self.is_leader && !self.membership().is_joint() {
            // A leader that hands over appends nothing.
            self.is_change_unrecorded = self.node.propose(Vec::new(), Vec::new()).is_err();
        }
    }

    fn propose_change(&mut self, change: ConfChangeV2) -> bool {
        if self.node.raft.state != StateRole::Leader || self.node.raft.has_pending_conf() {
            return false;
        }
        let before = self.last_index();
        self.node.propose_conf_change(Vec::new(), change).is_ok() && self.last_index() > before
    }

    pub(super) fn apply_membership(&mut self, entry: &Entry) {
        let mut change = ConfChangeV2::default();
        if change.merge_from_bytes(&entry.data).is_err() {
            return;
        }
        // An impossible change is refused by every member alike.
        let Ok(state) = self.node.apply_conf_change(&change) else { return };
        let added = postcard::from_bytes(&change.context).unwrap_or_default();
        self.node.mut_store().set_members(&state, added);
        self.members_changed = true;
        self.is_change_unrecorded = self.node.raft.state == StateRole::Leader;
        // The others learn at once who votes now: without this leader they could not decide anything before they do.
        self.node.ping();
    }
}
