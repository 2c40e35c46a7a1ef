//! The node as a member of a cluster.

use std::time::Duration;

use palisade_core::Machine;
use thiserror::Error;

use super::clients::Clients;
use super::reads::Reads;
use super::waits::Waits;
use super::watches::Watches;
use super::{Moment, Node};
use crate::replica::{ELECTION_TICKS, Follower, MembershipChange, PeerMessage};
use crate::storage::{Member, Membership, Snapshot};

/// The version of the log that has changes of the members.
const MEMBER_CHANGES: u16 = 2;
/// How often a member writes down how far its log has come.
const NOTE_PROGRESS: Duration = Duration::from_secs(5);
/// How often the replica's clock advances.
const REPLICA_TICK: Duration = Duration::from_millis(100);
/// How long a node waits at most, after the leader's connection was closed, until it asks for votes. Chosen at random, so that
/// seldom two ask at once.
const CAMPAIGN_WITHIN_MS: u64 = 60;

/// A member as its cluster sees it, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ClusterReport {
    pub member: u64,
    pub leader: Option<u64>,
    pub term: u64,
    pub applied: u64,
    pub last_index: u64,
    pub membership: Membership,
    /// How long its writes took lately.
    pub write_time: Duration,
    /// The other members, if this node leads.
    pub followers: Vec<Follower>,
}

/// Why the members or the leader are not changed. Nothing has happened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChangeRefused {
    /// Another node leads, or none does.
    #[error("this node does not lead")]
    NotLeader,
    /// A change takes several steps.
    #[error("the change of the nodes before this one is not finished; try again in a moment")]
    Busy,
    /// A member has this name.
    #[error(
        "there is a node '{0}' already (palisade cluster status shows it). To replace it, remove it first: palisade cluster remove {0}"
    )]
    NameTaken(String),
    /// A member has this address.
    #[error("node '{0}' has this address already")]
    AddressTaken(String),
    /// This node was started as a service of one node.
    #[error(
        "this service has no name and no address for other nodes; start it with --node NAME --cluster NAME=HOST:PORT first"
    )]
    Unnamed,
    /// A member was not upgraded yet.
    #[error("node '{0}' runs an older build, which knows no changes of the nodes; upgrade it first")]
    OldMember(String),
    /// No member has this name.
    #[error("there is no node '{0}'")]
    Unknown(String),
    /// There would be no voter left.
    #[error("'{0}' is the only node that votes, and cannot be removed")]
    OnlyVoter(String),
    /// The nodes that are left would not be able to decide anything.
    #[error(
        "without '{0}' too few of the other nodes run to decide anything: start them. While a majority runs, you can also remove one \
         that does not run first. If the majority is lost, see `palisade cluster recover`"
    )]
    NoMajority(String),
    /// It cannot lead.
    #[error("node '{0}' cannot lead: it does not vote, or cannot be reached")]
    CannotLead(String),
    /// There is no other node.
    #[error("no other node can lead now: none votes and can be reached")]
    NoCandidate,
}

impl Node {
    /// Describes the cluster as this node sees it.
    pub fn cluster_report(&self) -> ClusterReport {
        let replica = &self.replica;
        ClusterReport {
            member: replica.id(),
            leader: replica.leader(),
            term: replica.term(),
            applied: replica.applied(),
            last_index: replica.last_index(),
            membership: replica.membership().clone(),
            write_time: self.write_time,
            followers: replica.followers().collect(),
        }
    }

    /// Asks for a snapshot of everything that is applied now. Returns the last entry that it must have.
    pub fn want_snapshot(&mut self) -> u64 {
        self.is_snapshot_wanted = self.replica.snapshot_index() < self.replica.applied();
        self.replica.applied()
    }

    /// Returns the last entry of the newest snapshot.
    pub fn snapshot_index(&self) -> u64 {
        self.replica.snapshot_index()
    }

    /// Returns the index of the last applied entry.
    pub fn applied_index(&self) -> u64 {
        self.replica.applied()
    }

    /// Returns the state as of the last applied entry.
    pub fn machine(&self) -> &Machine {
        self.replica.machine()
    }

    /// Returns the members as of the last applied entry.
    pub fn membership(&self) -> &Membership {
        self.replica.membership()
    }

    /// Returns the member that leads, as far as this node knows.
    pub fn leader(&self) -> Option<u64> {
        self.replica.leader()
    }

    /// Returns the number of the cluster, which was drawn at random when it began.
    pub fn cluster(&self) -> u128 {
        self.cluster
    }

    /// Returns the latest term. A node leads one term at a time, and no other node leads in that term.
    pub fn term(&self) -> u64 {
        self.replica.term()
    }

    /// Returns whether another node leads.
    pub fn is_following(&self) -> bool {
        self.leader().is_some_and(|leader| leader != self.replica.id())
    }

    /// Begins to add a member. It receives the log, and votes once it has it.
    ///
    /// # Errors
    ///
    /// Nothing has happened.
    pub fn add_member(&mut self, number: u64, member: Member) -> Result<(), ChangeRefused> {
        self.check_new_member(&member)?;
        self.change_members(MembershipChange {
            learners: vec![number],
            members: [(number, member)].into(),
            ..MembershipChange::default()
        })
    }

    /// Checks whether a member can be added, as [`Node::add_member`] does.
    ///
    /// # Errors
    ///
    /// It cannot be added.
    pub fn check_new_member(&self, member: &Member) -> Result<(), ChangeRefused> {
        if !self.is_leader() {
            return Err(ChangeRefused::NotLeader);
        }
        let members = &self.membership().members;
        if !members.contains_key(&self.replica.id()) {
            return Err(ChangeRefused::Unnamed);
        }
        if members.values().any(|known| known.name == member.name) {
            return Err(ChangeRefused::NameTaken(member.name.clone()));
        }
        match members.values().find(|known| known.address == member.address) {
            Some(known) => Err(ChangeRefused::AddressTaken(known.name.clone())),
            None => Ok(()),
        }
    }

    /// Notes what a member says of itself.
    pub(super) fn member_connected(&mut self, id: u64, member: Option<Member>, log: u16) {
        self.understood.insert(id, log);
        if let Some(member) = member
            && self.contacts.add(id, member, self.replica.membership())
        {
            self.output.contacts = Some(self.contacts.list(self.replica.membership()));
        }
    }

    /// Names this member, which was the only one of a service of one node.
    pub fn name_member(&mut self, member: Member) {
        self.name = Some(member);
    }

    /// Begins to remove a member. If it is this one, another member leads first: then the caller asks that one. Returns its number.
    ///
    /// # Errors
    ///
    /// Nothing has happened.
    pub fn remove_member(&mut self, name: &str) -> Result<u64, ChangeRefused> {
        if !self.is_leader() {
            return Err(ChangeRefused::NotLeader);
        }
        let membership = self.membership();
        let number = membership.number_of(name).ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?;
        let mut change = MembershipChange::default();
        // A leader that has lost its vote cannot remove itself: another member leads first.
        if membership.learners.contains(&number) && number != self.replica.id() {
            change.removed.push(number);
        } else {
            if membership.is_only_voter(number) {
                return Err(ChangeRefused::OnlyVoter(name.to_owned()));
            }
            let others: Vec<_> = membership.voters.iter().filter(|id| **id != number).collect();
            let is_active = |id: &&&u64| {
                **id == &self.replica.id() || self.replica.followers().any(|it| it.member == ***id && it.is_active)
            };
            if others.iter().filter(is_active).count() <= others.len() / 2 {
                return Err(ChangeRefused::NoMajority(name.to_owned()));
            }
            if number == self.replica.id() {
                self.transfer(None)?;
                return Err(ChangeRefused::NotLeader);
            }
            change.learners.push(number);
            change.members.extend(
                membership.members.get(&number).map(|member| (number, Member { is_leaving: true, ..member.clone() })),
            );
        }
        self.change_members(change).map(|()| number)
    }

    /// Begins to let another member lead: this one, or the one that has most of the log. Returns its number.
    ///
    /// # Errors
    ///
    /// Nothing has happened.
    pub fn transfer(&mut self, name: Option<&str>) -> Result<u64, ChangeRefused> {
        if !self.is_leader() {
            return Err(ChangeRefused::NotLeader);
        }
        let membership = self.membership();
        let named = match name {
            Some(name) => Some(membership.number_of(name).ok_or_else(|| ChangeRefused::Unknown(name.to_owned()))?),
            None => None,
        };
        if named == Some(self.replica.id()) {
            return Ok(self.replica.id());
        }
        let can_lead = |follower: &Follower| {
            follower.is_active
                && membership.voters.contains(&follower.member)
                && named.is_none_or(|named| named == follower.member)
        };
        let best = self.replica.followers().filter(can_lead).max_by_key(|follower| follower.matched);
        let refused = name.map_or(ChangeRefused::NoCandidate, |name| ChangeRefused::CannotLead(name.to_owned()));
        let number = best.ok_or(refused)?.member;
        self.replica.transfer_to(number);
        Ok(number)
    }

    fn change_members(&mut self, change: MembershipChange) -> Result<(), ChangeRefused> {
        let members = &self.membership().members;
        // One that leaves need not understand it: it may have died before it was upgraded.
        let is_leaving =
            |id: &u64| change.removed.contains(id) || change.members.get(id).is_some_and(|member| member.is_leaving);
        let is_old = |id: &&u64| self.understood.get(id).is_some_and(|log| *log < MEMBER_CHANGES) && !is_leaving(id);
        if let Some(old) = members.keys().find(is_old).and_then(|id| members.get(id)) {
            return Err(ChangeRefused::OldMember(old.name.clone()));
        }
        match self.replica.change_members(&change) {
            true => Ok(()),
            false if self.is_leader() => Err(ChangeRefused::Busy),
            false => Err(ChangeRefused::NotLeader),
        }
    }

    /// Writes down every few seconds how far the log has come. A member whose log ends before that has lost what it promised, and must not
    /// vote: sectors that were lost at the end of a log look like its end.
    pub(super) fn note_progress(&mut self) {
        let is_due = self.now.saturating_sub(self.progress_noted_at) >= NOTE_PROGRESS;
        if is_due && self.membership().members.len() > 1 && self.replica.applied() > self.tokens.noted_index() {
            self.progress_noted_at = self.now;
            self.output.watermark = Some(self.tokens.started(self.replica.applied()));
        }
    }

    /// Goes on with changes of the members that take several steps.
    pub(super) fn advance_members(&mut self) {
        let id = self.replica.id();
        match &self.name {
            Some(name) if self.is_leader() && !self.membership().members.contains_key(&id) => {
                let members = [(id, name.clone())].into();
                self.replica.change_members(&MembershipChange {
                    voters: vec![id],
                    members,
                    ..MembershipChange::default()
                });
            }
            // It was elected before it knew that it has no vote any more. Another member leads, and removes it.
            _ if self.is_leader() && !self.membership().voters.contains(&id) => drop(self.transfer(None)),
            _ => self.replica.advance_members(),
        }
    }

    /// Advances the replica's clock. A node that was paused advances it once: the leader may have been heard meanwhile.
    pub(super) fn tick_replica(&mut self) {
        if self.now.saturating_sub(self.replica_ticked_at) >= REPLICA_TICK {
            self.replica_ticked_at = self.now;
            let election_ticks = ELECTION_TICKS + (self.random.draw() % ELECTION_TICKS as u64) as usize;
            self.replica.tick(election_ticks);
        }
        if self.campaign_at.is_some_and(|at| at <= self.now) {
            self.campaign_at = None;
            if self.replica.leader().is_none() {
                self.replica.campaign();
            }
        }
    }

    /// Returns when the replica's clock advances next, or the node campaigns.
    pub(super) fn next_replica_tick(&self) -> Moment {
        let at = self.replica_ticked_at + REPLICA_TICK;
        self.campaign_at.map_or(at, |campaign| campaign.min(at))
    }

    /// Handles that a member's connection was closed. If it was the leader, the node soon asks for votes; if the leader lives, the
    /// others tell it so.
    pub(super) fn suspect(&mut self, member: u64) {
        if self.replica.suspect(member) {
            let delay = Duration::from_millis(self.random.draw() % CAMPAIGN_WITHIN_MS);
            self.campaign_at = Some(self.now + delay);
        }
    }

    /// Counts a leader that this node has not known before.
    pub(super) fn note_leader(&mut self) {
        if let Some(leader) = self.replica.leader()
            && self.last_leader != Some((leader, self.replica.term()))
        {
            self.last_leader = Some((leader, self.replica.term()));
            self.metrics.leader_changes += 1;
        }
    }

    pub(super) fn snapshot_sent(&mut self, member: u64, has_arrived: bool) {
        self.metrics.snapshots_sent += u64::from(has_arrived);
        self.replica.snapshot_sent(member, has_arrived);
    }

    pub(super) fn receive_snapshot(&mut self, message: PeerMessage, snapshot: &Snapshot) {
        self.metrics.snapshots_received += 1;
        if let Err(error) = self.replica.receive_snapshot(message, snapshot) {
            tracing::error!(%error, "the snapshot of another member cannot be used");
        }
    }

    /// Stops leading: forgets all clients. Their requests may have happened, and the new leader knows their outcome.
    pub(super) fn stop_leading(&mut self) {
        tracing::warn!(term = self.replica.term(), "this node is the leader no more");
        self.is_leading = false;
        self.output.is_deposed = true;
        self.output.messages.clear();
        self.queue.clear();
        self.is_urgent = false;
        self.expired.clear();
        self.reads = Reads::default();
        self.clients = Clients::default();
        self.sessions.clear();
        self.user_sessions.forget_opening();
        self.waits = Waits::new();
        self.watches = Watches::default();
    }
}
