//! How a cluster begins, and how a node joins one.
//!
//! The founder whose name comes first invites the others. Each gets a number that was never used, and none votes before all have
//! accepted. So the first founder can repeat an invitation without an answer, and no member begins twice under one number.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{LocalBoxFuture, try_join_all};
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::listener::{check, greeted};
use super::notices::Notices;
use super::wire::{self, Answer, Purpose};
use super::{InOtherCluster, PeerTls, dial, random_cluster};
use crate::storage::disk::Disk;
use crate::storage::{
    Identity, Member, Membership, Stage, StorageError, Watermark, check_empty, note_formed, note_forming,
    read_identity, read_watermark, write_identity, write_watermark,
};
use crate::tls::Accepted;

/// The pause before a founder that did not answer is invited again.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an empty node that would found a cluster alone waits for the nodes of another one. They pause for half a second between attempts.
const AWAITED_WITHIN: Duration = Duration::from_secs(2);
/// How many invitations of one cluster a node remembers. It gets a second one if two operators add it at once, or if a leader dies.
const INVITATIONS: usize = 16;
/// How many connections may be greeting at once.
const GREETINGS: usize = 64;
const EMPTY: &str = "this node is empty and belongs to no cluster: if it was a member, its directory was lost. Remove that member (palisade \
                     cluster remove), then add this node as a new one (palisade cluster add)";

/// How a node takes part in a cluster. The founders matter to an empty node only.
#[derive(Debug, Clone, Default)]
pub struct Founding {
    /// The name of this node.
    pub name: String,
    /// The founders, by name, with their addresses; empty if this node joins a cluster.
    pub founders: BTreeMap<String, String>,
}

/// Returns the identity of this node, once it is a member. Notes in `waiting` what it waits for.
pub(crate) async fn form<D: Disk>(
    disk: &D,
    founding: &Founding,
    listener: &TcpListener,
    tls: Option<&PeerTls>,
    waiting: &RefCell<String>,
) -> Result<Identity, StorageError> {
    let known = read_identity(disk)?;
    if known.as_ref().is_none_or(|identity| identity.stage != Stage::Member) {
        check_empty(disk, known.is_some())?;
    }
    let is_lost = match known {
        Some(_) => false,
        None => {
            note_forming(disk)?;
            is_alone(founding) && is_awaited(listener, tls, waiting).await
        }
    };
    let mut identity = match known {
        // A member has a watermark before it votes. Without it, what the member has promised is lost.
        Some(identity) if identity.stage == Stage::Member && read_watermark(disk)?.is_none() => {
            return Err(StorageError::FilesRemoved { directory: disk.path("") });
        }
        // A service of one node becomes the first node of a cluster.
        Some(mut identity) if identity.node.is_none() && is_alone(founding) => {
            identity.node = founding.founders.iter().next().map(|(name, address)| Member::new(name, address));
            write_identity(disk, &identity)?;
            identity
        }
        Some(identity) => identity,
        None if is_lost => {
            say_lost(founding, "a cluster takes it for one of its nodes", waiting);
            invited(disk, founding, listener, tls).await?
        }
        None if founding.founders.keys().next() == Some(&founding.name) => {
            let identity = found(founding);
            write_identity(disk, &identity)?;
            identity
        }
        None => {
            let what = match founding.founders.iter().next() {
                Some((first, address)) => format!("waits for node '{first}' at {address}, which founds the cluster"),
                None => format!("waits to be added: palisade cluster add {}=HOST:PORT", founding.name),
            };
            if let Ok(address) = listener.local_addr() {
                tracing::warn!("this node {what} (it listens on {address})");
            }
            waiting.replace(what);
            invited(disk, founding, listener, tls).await?
        }
    };
    if identity.stage == Stage::Founding
        && let Err(member) = invite_all(&identity, tls, waiting).await
    {
        let Member { name: other, address, .. } = member;
        say_lost(founding, &format!("node '{other}' at {address} is a member of a cluster already"), waiting);
        identity = invited(disk, founding, listener, tls).await?;
    }
    match identity.stage {
        Stage::Member => {
            note_formed(disk)?;
            return Ok(identity);
        }
        Stage::Founding => {}
        Stage::Invited => {
            waiting.replace("was invited, and waits until its cluster has begun".to_owned());
            identity = begun(disk, identity, listener, tls).await?;
        }
    }
    write_watermark(disk, Watermark::default())?;
    identity.stage = Stage::Member;
    write_identity(disk, &identity)?;
    note_formed(disk)?;
    Ok(identity)
}

/// Says that an empty node does not found a cluster, because it was probably a member of one.
fn say_lost(founding: &Founding, why: &str, waiting: &RefCell<String>) {
    let own = founding.founders.get(&founding.name).map_or("HOST:PORT", String::as_str);
    let name = &founding.name;
    let what = format!(
        "waits to be added: its directory is empty, and {why}. If this node was a member too, its directory was lost: palisade cluster \
         remove {name}, then palisade cluster add {name}={own}. If not, check the addresses in --cluster"
    );
    tracing::warn!("this node {what}");
    waiting.replace(what);
}

/// Returns whether a cluster takes this empty node for one of its nodes. A service that was grown begins with one node, whose options name no
/// other one: if its directory is lost, it would found a second cluster. The others of the first one try to connect to it.
async fn is_awaited(listener: &TcpListener, tls: Option<&PeerTls>, waiting: &RefCell<String>) -> bool {
    waiting.replace("finds out whether a cluster takes it for one of its nodes".to_owned());
    let mut greetings = Greetings::new(listener, tls);
    let awaited = async {
        loop {
            let (mut stream, purpose) = greetings.next().await;
            let why = purpose.as_ref().map_or_else(Clone::clone, |_| EMPTY.to_owned());
            drop(wire::send(&mut stream.bytes(), &Answer::Refused(why)).await);
            if purpose.is_ok() {
                return;
            }
        }
    };
    timeout(AWAITED_WITHIN, awaited).await.is_ok()
}

/// Returns whether the node is named and no other one is.
fn is_alone(founding: &Founding) -> bool {
    founding.founders.len() == 1 && founding.founders.contains_key(&founding.name)
}

/// Draws the numbers of a new cluster and its members.
fn found(founding: &Founding) -> Identity {
    let random = RandomState::new();
    let cluster = random_cluster();
    let number = |name: &str| random.hash_one(("member", name)).max(1);
    let members = founding.founders.iter().map(|(name, address)| (number(name), Member::new(name, address)));
    let (founders, member) = (Membership::founded_by(members.collect()), number(&founding.name));
    let node = founders.members.get(&member).cloned();
    Identity { cluster, member, node, founders, contacts: BTreeMap::new(), stage: Stage::Founding }
}

/// Invites the other founders until all have accepted. Returns one that is a member of another cluster, if there is one.
async fn invite_all(identity: &Identity, tls: Option<&PeerTls>, waiting: &RefCell<String>) -> Result<(), Member> {
    let others = identity.founders.members.iter().filter(|(id, _)| **id != identity.member);
    let invited = try_join_all(others.map(|(id, member)| async move {
        let mut notices = Notices::default();
        let invitation =
            Identity { member: *id, node: Some(member.clone()), stage: Stage::Invited, ..identity.clone() };
        let purpose = Purpose::Invite(Box::new(invitation));
        while let Err(error) = dial(&member.address, tls, &purpose).await {
            if error.get_ref().is_some_and(|cause| cause.is::<InOtherCluster>()) {
                return Err(member.clone());
            }
            let what =
                format!("founds a cluster, and waits for node '{}' at {}: {error}", member.name, member.address);
            if notices.is_due(&what, 1) {
                tracing::warn!("this node {what}");
            }
            waiting.replace(what);
            sleep(PAUSE).await;
        }
        tracing::info!(node = member.name, "a founder has accepted");
        Ok(())
    }));
    invited.await.map(drop)
}

/// Waits until a member invites this empty node.
async fn invited<D: Disk>(
    disk: &D,
    founding: &Founding,
    listener: &TcpListener,
    tls: Option<&PeerTls>,
) -> Result<Identity, StorageError> {
    let mut greetings = Greetings::new(listener, tls);
    loop {
        let (mut stream, purpose) = greetings.next().await;
        match purpose {
            Ok(Purpose::Invite(invitation)) => {
                if let Err(why) = check_invitation(founding, &invitation) {
                    if greetings.notices.is_due(&why, 1) {
                        tracing::warn!(why, "an invitation is refused");
                    }
                    drop(wire::send(&mut stream.bytes(), &Answer::Refused(why)).await);
                    continue;
                }
                let identity = Identity { stage: Stage::Invited, ..*invitation };
                write_identity(disk, &identity)?;
                drop(wire::send(&mut stream.bytes(), &Answer::Welcome).await);
                return Ok(identity);
            }
            Ok(
                Purpose::Messages { .. } | Purpose::Snapshot { .. } | Purpose::Relay { .. } | Purpose::Report { .. },
            ) => {
                drop(wire::send(&mut stream.bytes(), &Answer::Refused(EMPTY.to_owned())).await);
            }
            Err(why) => drop(wire::send(&mut stream.bytes(), &Answer::Refused(why)).await),
        }
    }
}

/// Waits until a member that has begun sends its messages.
async fn begun<D: Disk>(
    disk: &D,
    mut identity: Identity,
    listener: &TcpListener,
    tls: Option<&PeerTls>,
) -> Result<Identity, StorageError> {
    let mut greetings = Greetings::new(listener, tls);
    let mut invitations = BTreeMap::from([(identity.member, identity.clone())]);
    loop {
        let (mut stream, purpose) = greetings.next().await;
        if let Ok(Purpose::Invite(invitation)) = &purpose
            && invitation.cluster == identity.cluster
            && invitations.len() < INVITATIONS
        {
            invitations.insert(invitation.member, Identity { stage: Stage::Invited, ..(**invitation).clone() });
        }
        // The number under which it was added decides, and before that the last one. It has promised nothing under any.
        let number = match &purpose {
            Ok(Purpose::Invite(invitation)) => Some(invitation.member),
            Ok(Purpose::Messages { cluster, to, .. } | Purpose::Snapshot { cluster, to, .. })
                if *cluster == identity.cluster =>
            {
                Some(*to)
            }
            _ => None,
        };
        if let Some(invitation) = number.and_then(|number| invitations.get(&number))
            && invitation.member != identity.member
        {
            identity = invitation.clone();
            write_identity(disk, &identity)?;
        }
        match purpose.and_then(|purpose| check(&identity, purpose)) {
            // The invitation is repeated if its answer was lost.
            Ok(Purpose::Invite(_)) => drop(wire::send(&mut stream.bytes(), &Answer::Welcome).await),
            // The other one connects again, and is served then.
            Ok(Purpose::Messages { .. } | Purpose::Snapshot { .. }) => return Ok(identity),
            Ok(Purpose::Relay { .. } | Purpose::Report { .. }) => {
                let why = "this node waits for the first words of the cluster";
                drop(wire::send(&mut stream.bytes(), &Answer::Refused(why.to_owned())).await);
            }
            Err(why) => drop(wire::send(&mut stream.bytes(), &Answer::Refused(why)).await),
        }
    }
}

fn check_invitation(founding: &Founding, invitation: &Identity) -> Result<(), String> {
    let invited = invitation.node.as_ref().map_or("", |node| node.name.as_str());
    if invited != founding.name {
        return Err(format!("the node at this address is called '{}', and not '{invited}'", founding.name));
    }
    let members = invitation.founders.members.values();
    let founders: BTreeMap<_, _> = members.map(|member| (member.name.clone(), member.address.clone())).collect();
    let shown = |founders: &BTreeMap<String, String>| {
        founders.iter().map(|(name, address)| format!("{name}={address}")).collect::<Vec<_>>().join(",")
    };
    // A node that joins names no founders, and an added node was not one of them.
    if !founding.founders.is_empty() && invitation.contacts.is_empty() && founders != founding.founders {
        return Err(format!(
            "node '{}' was started with --cluster {}, and the founder with {}: start all of them with the same nodes",
            founding.name,
            shown(&founding.founders),
            shown(&founders)
        ));
    }
    Ok(())
}

type Greeted = (Accepted, Result<Purpose, String>);

/// The greetings on connections to a node that does not take part yet. A connection on which nothing is said holds up no other.
struct Greetings<'a> {
    listener: &'a TcpListener,
    tls: Option<&'a PeerTls>,
    pending: FuturesUnordered<LocalBoxFuture<'a, io::Result<Greeted>>>,
    notices: Notices,
}

impl<'a> Greetings<'a> {
    fn new(listener: &'a TcpListener, tls: Option<&'a PeerTls>) -> Greetings<'a> {
        Greetings { listener, tls, pending: FuturesUnordered::new(), notices: Notices::default() }
    }

    /// Returns the next greeting.
    async fn next(&mut self) -> Greeted {
        loop {
            let greeting = tokio::select! {
                accepted = self.listener.accept(), if self.pending.len() < GREETINGS => match accepted {
                    Ok((stream, _)) => {
                        self.pending.push(Box::pin(greeted(stream, self.tls)));
                        continue;
                    }
                    Err(error) => {
                        sleep(PAUSE).await;
                        Err(error)
                    }
                },
                Some(greeting) = self.pending.next() => greeting,
            };
            match greeting {
                Ok(greeting) => return greeting,
                Err(error) if self.notices.is_due(&error.to_string(), 1) => {
                    tracing::warn!(%error, "a connection to the port of the members has ended");
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::RealDisk;

    fn member(id: u64) -> Member {
        Member::new(format!("node{id}"), format!("localhost:{id}"))
    }

    fn invitation(number: u64) -> Identity {
        let founders = Membership::founded_by([(1, member(1))].into());
        let contacts = founders.members.clone();
        Identity { cluster: 9, member: number, node: Some(member(2)), founders, contacts, stage: Stage::Invited }
    }

    fn messages(to: u64) -> Purpose {
        Purpose::Messages { cluster: 9, from: 1, to, log: 1, has_users: false, node: None }
    }

    /// Connects for each of these purposes in turn, and returns whether each was welcome.
    async fn connect(listener: &TcpListener, purposes: &[Purpose]) -> Vec<bool> {
        let address = listener.local_addr().unwrap().to_string();
        let mut welcome = Vec::new();
        for purpose in purposes {
            welcome.push(dial(&address, None, purpose).await.is_ok());
        }
        welcome
    }

    /// Two operators add it at once, or a leader has died between the two.
    #[tokio::test]
    async fn a_node_that_was_invited_twice_begins_under_the_number_that_was_added() {
        for added in [5, 6] {
            let directory = tempfile::tempdir().unwrap();
            let disk = RealDisk::open(directory.path().to_owned()).unwrap();
            let listener = TcpListener::bind("localhost:0").await.unwrap();
            let said = [5, 6].map(|number| Purpose::Invite(Box::new(invitation(number))));
            let said = said.into_iter().chain([messages(7), messages(added)]).collect::<Vec<_>>();
            let begun = begun(&disk, invitation(5), &listener, None);
            let (begun, welcome) = tokio::join!(begun, connect(&listener, &said));
            assert_eq!(begun.unwrap().member, added);
            assert_eq!(read_identity(&disk).unwrap().unwrap().member, added);
            assert_eq!(welcome[..3], [true, true, false], "it was never invited under number 7");
        }
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_cluster_from_an_empty_node() {
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..GREETINGS / 2 {
            silent.push(tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        }
        let waiting = RefCell::default();
        let said = [messages(5)];
        let (is_awaited, welcome) = tokio::join!(is_awaited(&listener, None, &waiting), connect(&listener, &said));
        assert!(is_awaited && welcome == [false]);
    }

    #[tokio::test]
    async fn invitations_are_kept_up_to_a_bound() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path().to_owned()).unwrap();
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let said: Vec<_> =
            (5..5 + 2 * INVITATIONS as u64).map(|number| Purpose::Invite(Box::new(invitation(number)))).collect();
        let said = said.into_iter().chain([messages(1_000), messages(5)]).collect::<Vec<_>>();
        let begun = begun(&disk, invitation(5), &listener, None);
        let (begun, _) = tokio::join!(begun, connect(&listener, &said));
        assert_eq!(begun.unwrap().member, 5);
    }
}
