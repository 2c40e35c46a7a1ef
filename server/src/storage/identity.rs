//! The identity of a data directory, written once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::membership::{Member, Membership};
use super::small_file::SmallFile;

pub(super) const FILE: SmallFile =
    SmallFile { name: "identity", unfinished: "identity.new", magic: *b"PLSDIDN\n", what: "an identity" };

/// Which member of which cluster a data directory belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster, drawn at random.
    pub cluster: u128,
    /// The member, drawn at random. A directory that was lost never comes back under its number: it may have promised what the
    /// new one does not know.
    pub member: u64,
    /// Its name and address; `None` in a service of one node.
    pub node: Option<Member>,
    /// The members before the first entry.
    pub founders: Membership,
    /// The members when this one was invited. It answers them before its log says who they are.
    pub contacts: BTreeMap<u64, Member>,
    /// How far the member has come.
    pub stage: Stage,
}

/// How far a new member has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It founds the cluster, and not all other founders have accepted yet. No member votes before they have.
    Founding,
    /// It has accepted, and waits for a member that has begun.
    Invited,
    /// It votes and writes.
    Member,
}

impl Identity {
    /// The identity of a service of one node. The numbers come from the host, drawn at random.
    pub fn alone(cluster: u128, member: u64) -> Identity {
        let founders = Membership { voters: vec![member], ..Membership::default() };
        Identity { cluster, member, node: None, founders, contacts: BTreeMap::new(), stage: Stage::Member }
    }
}
