//! How a cluster begins, and how a node joins one.
//!
//! The founder whose name comes first invites the others. Each gets a number that was never used, and none votes before all have
//! accepted. So the first founder can repeat an invitation without an answer, and no member begins twice under one number.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::listener::{check, greeted};
use super::notices::Notices;
use super::wire::{self, Answer, Purpose};
use super::{InOtherCluster, PeerTls, dial, random_cluster};
use crate::storage::disk::Disk;
use crate::storage::{
    Identity, Member, Membership, Stage, StorageError, Watermark, check_empty, read_identity, read_watermark,
    write_identity, write_watermark,
};
use crate::tls::Accepted;

/// The pause before a founder that did not answer is invited again.
const PAUSE: Duration = Duration::from_millis(200);

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
        let own = founding.founders.get(&founding.name).map_or("HOST:PORT", String::as_str);
        let (name, Member { name: other, address, .. }) = (&founding.name, member);
        let what = format!(
            "waits to be added: its directory is empty, and node '{other}' at {address} is a member of a cluster already. If this \
             node was a member too, its directory was lost: palisade cluster remove {name}, then palisade cluster add {name}={own}. \
             If not, check the addresses in --cluster"
        );
        tracing::warn!("this node {what}");
        waiting.replace(what);
        identity = invited(disk, founding, listener, tls).await?;
    }
    match identity.stage {
        Stage::Member => return Ok(identity),
        Stage::Founding => {}
        Stage::Invited => {
            waiting.replace("was invited, and waits until its cluster has begun".to_owned());
            identity = begun(disk, identity, listener, tls).await?;
        }
    }
    write_watermark(disk, Watermark::default())?;
    identity.stage = Stage::Member;
    write_identity(disk, &identity)?;
    Ok(identity)
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
    let mut notices = Notices::default();
    loop {
        let Some((mut stream, purpose)) = next(listener, tls, &mut notices).await else { continue };
        match purpose {
            Ok(Purpose::Invite(invitation)) => {
                if let Err(why) = check_invitation(founding, &invitation) {
                    if notices.is_due(&why, 1) {
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
                let why = "this node is empty and belongs to no cluster: if it was a member, its directory was lost. Remove that \
                           member (palisade cluster remove), then add this node as a new one (palisade cluster add)";
                drop(wire::send(&mut stream.bytes(), &Answer::Refused(why.to_owned())).await);
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
    let mut notices = Notices::default();
    loop {
        let Some((mut stream, purpose)) = next(listener, tls, &mut notices).await else { continue };
        if let Ok(Purpose::Invite(invitation)) = &purpose
            && invitation.cluster == identity.cluster
            && invitation.member != identity.member
        {
            // The leader has died before it added the first number. This node has promised nothing under it.
            (identity.member, identity.contacts) = (invitation.member, invitation.contacts.clone());
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

/// Accepts the next connection, and receives its greeting.
async fn next(
    listener: &TcpListener,
    tls: Option<&PeerTls>,
    notices: &mut Notices,
) -> Option<(Accepted, Result<Purpose, String>)> {
    let greeting = async { greeted(listener.accept().await?.0, tls).await };
    match greeting.await {
        Ok(greeted) => Some(greeted),
        Err(error) => {
            let error: io::Error = error;
            if notices.is_due(&error.to_string(), 1) {
                tracing::warn!(%error, "a connection to the port of the members has ended");
            }
            None
        }
    }
}
