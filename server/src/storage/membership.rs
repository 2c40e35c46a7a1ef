//! The members of a cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The members as of one entry of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The members whose majority decides.
    pub voters: Vec<u64>,
    /// Members that receive the log and do not vote.
    pub learners: Vec<u64>,
    /// While the voters change: the voters before, whose majority must agree too.
    pub outgoing: Vec<u64>,
    /// Voters before the change that will be learners after it.
    pub next_learners: Vec<u64>,
    /// The name and the address of every member.
    pub members: BTreeMap<u64, Member>,
    /// The numbers of members that were removed. They never come back.
    pub removed: Vec<u64>,
}

const LONGEST_NAME: usize = 64;
const LONGEST_HOST: usize = 253;

/// The name of a member, and where it listens for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Whether it is being removed. It votes no more then.
    pub is_leaving: bool,
}

impl Member {
    /// A member with this name and address.
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> Member {
        Member { name: name.into(), address: address.into(), is_leaving: false }
    }

    /// Checks the name of a node: it is part of commands and messages.
    ///
    /// # Errors
    ///
    /// Why it cannot be one.
    pub fn check_name(name: &str) -> Result<(), &'static str> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_letter) {
            true => Ok(()),
            false => Err("cannot be a node's name: it has 1 to 64 letters, digits, '-', '_' and '.'"),
        }
    }

    /// Checks the address of a node.
    ///
    /// # Errors
    ///
    /// Why it cannot be one.
    pub fn check_address(address: &str) -> Result<(), &'static str> {
        let (host, port) = address.rsplit_once(':').unwrap_or_default();
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_host =
            !host.is_empty() && host.len() <= LONGEST_HOST && host.bytes().all(|byte| byte.is_ascii_graphic());
        match is_host && is_port {
            true => Ok(()),
            false => Err("is not HOST:PORT"),
        }
    }
}

impl Membership {
    /// The members of a new cluster, all of which vote.
    pub fn founded_by(members: BTreeMap<u64, Member>) -> Membership {
        Membership { voters: members.keys().copied().collect(), members, ..Membership::default() }
    }

    /// Returns the number of the member with this name.
    pub fn number_of(&self, name: &str) -> Option<u64> {
        self.members.iter().find(|(_, member)| member.name == name).map(|(number, _)| *number)
    }

    /// Returns whether this is one of the members.
    pub fn contains(&self, number: u64) -> bool {
        [&self.voters, &self.learners, &self.outgoing, &self.next_learners].iter().any(|list| list.contains(&number))
    }

    /// Returns whether this member decides alone.
    pub fn is_only_voter(&self, id: u64) -> bool {
        self.voters == [id] && self.outgoing.is_empty()
    }

    /// Returns whether the voters are changing.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }
}
