//! The requests of operators: the state of the cluster, changes of its members, and backups.

use std::io;
use std::net::ToSocketAddrs;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{LocalBoxFuture, join_all};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::wire::{self, Purpose};
use super::{CONNECT_TIMEOUT, Peers, random_number};
use crate::node::{ChangeRefused, ClusterReport};
use crate::request::ClusterRequest;
use crate::storage::disk::Disk;
use crate::storage::{Backup, Identity, Member, Stage, read_snapshot};

/// How many bytes of a backup one reply has.
const PART_BYTES: usize = 1 << 20;
/// How long a snapshot for a backup may take.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(50);
/// How long a backup is kept for its reader after its last part was read.
const KEEP_BACKUP: Duration = Duration::from_secs(60);

/// Carries out the requests of operators.
pub(crate) trait Administer {
    fn administer(self: Rc<Self>, request: ClusterRequest) -> LocalBoxFuture<'static, AdminResult>;
}

pub(crate) type AdminResult = Result<AdminReply, AdminError>;

/// The reply to an operator.
#[derive(Debug)]
pub(crate) enum AdminReply {
    Status(Box<ClusterStatus>),
    /// It has begun.
    Begun,
    /// It has begun: this node is to lead.
    Transferring(String),
    /// A backup can be read: its number, and how many bytes it has.
    Backup(u64, u64),
    Part(Bytes),
}

/// Why a request is refused.
#[derive(Debug, Error)]
pub(crate) enum AdminError {
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    #[error("'{address}' {why}")]
    Address { address: String, why: &'static str },
    #[error("'{0}' is on another host, and this node has no certificate for the other nodes (--peer-certificate)")]
    Unprotected(String),
    #[error(
        "no empty node waits at {address}: {why}. Start it there with: palisade serve --node {name} --join --peers {address}"
    )]
    NotThere { name: String, address: String, why: io::Error },
    #[error("the backup cannot be made: {0}")]
    Backup(io::Error),
    #[error("there is no such backup any more; make a new one")]
    NoBackup,
}

/// The cluster as one member sees it.
#[derive(Debug)]
pub(crate) struct ClusterStatus {
    pub(crate) cluster: u128,
    /// The member that answers.
    pub(crate) answered_by: u64,
    pub(crate) seen: ClusterReport,
    pub(crate) members: Vec<MemberStatus>,
}

/// A member.
#[derive(Debug)]
pub(crate) struct MemberStatus {
    pub(crate) number: u64,
    pub(crate) member: Member,
    /// The member's own report, and its round-trip time; otherwise why it cannot be reached.
    pub(crate) said: Result<(MemberReport, Duration), String>,
}

/// The report of a member about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    pub(crate) build: String,
    pub(crate) term: u64,
    pub(crate) applied: u64,
    pub(crate) last_index: u64,
    pub(crate) write_us: u64,
}

impl<D: Disk> Administer for Peers<D> {
    fn administer(self: Rc<Self>, request: ClusterRequest) -> LocalBoxFuture<'static, AdminResult> {
        Box::pin(async move {
            // It is never closed.
            let _place = self.admin_places.acquire().await;
            match request {
                ClusterRequest::Status => Ok(AdminReply::Status(Box::new(self.status().await))),
                ClusterRequest::Add { name, address } => self.add(Member::new(name, address)).await,
                ClusterRequest::Remove { name } => {
                    self.check_others(&name).await?;
                    self.server.with_node(|node| node.remove_member(&name))?;
                    self.server.wake.notify_one();
                    Ok(AdminReply::Begun)
                }
                ClusterRequest::Transfer { name } => self.transfer(name.as_deref()),
                ClusterRequest::Backup => {
                    // Another node may have granted locks since that this one does not know.
                    self.check_leads()?;
                    let backup = self.backup().await.map_err(AdminError::Backup)?;
                    self.check_leads()?;
                    Ok(backup)
                }
                ClusterRequest::ReadBackup { number, from } => self.read_backup(number, from),
            }
        })
    }
}

impl<D: Disk> Peers<D> {
    fn check_leads(&self) -> Result<(), ChangeRefused> {
        if self.server.with_node(|node| node.is_leader()) { Ok(()) } else { Err(ChangeRefused::NotLeader) }
    }

    /// Returns the report of this member.
    pub(super) fn report(&self) -> MemberReport {
        let report = self.server.with_node(|node| node.cluster_report());
        MemberReport {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            term: report.term,
            applied: report.applied,
            last_index: report.last_index,
            write_us: report.write_time.as_micros() as u64,
        }
    }

    async fn status(&self) -> ClusterStatus {
        let seen = self.server.with_node(|node| node.cluster_report());
        let own = self.identity.member;
        let mut known = seen.membership.members.clone();
        // A service of one node has no name.
        known.entry(own).or_insert_with(|| Member::new("", ""));
        let members = join_all(known.into_iter().map(|(number, member)| async move {
            let said = match number == own {
                true => Ok((self.report(), Duration::ZERO)),
                false => self.ask(number, &member.address).await.map_err(|error| error.to_string()),
            };
            // It answers, and what it says about the log is not heard.
            let said = said.and_then(|said| self.refused.borrow().get(&number).cloned().map_or(Ok(said), Err));
            MemberStatus { number, member, said }
        }));
        let mut members = members.await;
        members.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        ClusterStatus { cluster: self.identity.cluster, answered_by: own, members, seen }
    }

    /// Fetches the report of another member.
    async fn ask(&self, member: u64, address: &str) -> io::Result<(MemberReport, Duration)> {
        let began = Instant::now();
        let purpose = Purpose::Report { cluster: self.identity.cluster, to: member };
        let mut stream = self.dial(address, &purpose).await?;
        // A member that was stopped keeps its connections open.
        let report = timeout(CONNECT_TIMEOUT, wire::receive(&mut stream)).await;
        Ok((report.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?, began.elapsed()))
    }

    /// Checks that the voters that are left without this node can decide. The replica notices only after a while that one has died.
    async fn check_others(&self, name: &str) -> Result<(), ChangeRefused> {
        let (membership, own) = (self.server.with_node(|node| node.membership().clone()), self.identity.member);
        let others: Vec<_> = membership.voters.iter().filter(|id| membership.number_of(name) != Some(**id)).collect();
        if others.len() == membership.voters.len() {
            // It has no vote, or is no member.
            return Ok(());
        }
        let asked = join_all(others.iter().map(|id| async {
            match membership.members.get(id) {
                _ if **id == own => true,
                Some(member) => self.ask(**id, &member.address).await.is_ok(),
                None => false,
            }
        }));
        let answers = asked.await.into_iter().filter(|has_answered| *has_answered).count();
        if answers > others.len() / 2 || others.is_empty() {
            Ok(())
        } else {
            Err(ChangeRefused::NoMajority(name.to_owned()))
        }
    }

    /// Invites an empty node, and adds it once it has accepted.
    async fn add(&self, member: Member) -> AdminResult {
        let Member { name, address, .. } = member.clone();
        Member::check_address(&address).map_err(|why| AdminError::Address { address: address.clone(), why })?;
        self.server.with_node(|node| node.check_new_member(&member))?;
        if self.tls.is_none() && !is_loopback(&address) {
            return Err(AdminError::Unprotected(address));
        }
        let number = random_number();
        let invitation = Identity {
            member: number,
            node: Some(member.clone()),
            contacts: self.server.with_node(|node| node.membership().members.clone()),
            stage: Stage::Invited,
            ..self.identity.clone()
        };
        if let Err(why) = self.dial(&address, &Purpose::Invite(Box::new(invitation))).await {
            return Err(AdminError::NotThere { name, address, why });
        }
        self.server.with_node(|node| node.add_member(number, member))?;
        self.server.wake.notify_one();
        Ok(AdminReply::Begun)
    }

    fn transfer(&self, name: Option<&str>) -> AdminResult {
        let (number, membership) =
            self.server.with_node(|node| node.transfer(name).map(|number| (number, node.membership().clone())))?;
        self.server.wake.notify_one();
        Ok(AdminReply::Transferring(membership.members.get(&number).map(|it| it.name.clone()).unwrap_or_default()))
    }

    /// Makes a snapshot of everything that is applied now, and keeps it until it is read.
    async fn backup(self: &Rc<Self>) -> io::Result<AdminReply> {
        let wanted = self.server.with_node(|node| node.want_snapshot());
        self.server.wake.notify_one();
        let until = Instant::now() + SNAPSHOT_TIMEOUT;
        while self.server.with_node(|node| node.snapshot_index()) < wanted {
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        let (disk, cluster) = (self.disk.clone(), self.identity.cluster);
        let bytes = super::blocking(move || {
            let snapshot = read_snapshot(&disk).map_err(io::Error::other)?;
            let snapshot = snapshot.ok_or_else(|| io::Error::other("there is nothing to back up yet"))?;
            Ok(Bytes::from(Backup { cluster, snapshot }.encode()))
        });
        let bytes = bytes.await?;
        let (number, length) = (random_number() >> 1, bytes.len() as u64);
        // One at a time: a newer one replaces it.
        self.backup.replace(Some((number, bytes)));
        self.forget_backup_later(number);
        Ok(AdminReply::Backup(number, length))
    }

    fn read_backup(self: &Rc<Self>, number: u64, from: u64) -> AdminResult {
        let backup = self.backup.borrow();
        let Some((_, bytes)) = backup.as_ref().filter(|(known, _)| *known == number) else {
            return Err(AdminError::NoBackup);
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
        let part = bytes.slice(from..bytes.len().min(from + PART_BYTES));
        drop(backup);
        self.forget_backup_later(number);
        Ok(AdminReply::Part(part))
    }

    /// Drops the backup some time after its last part was read.
    fn forget_backup_later(self: &Rc<Self>, number: u64) {
        let peers = Rc::downgrade(self);
        let forgetting = tokio::task::spawn_local(async move {
            sleep(KEEP_BACKUP).await;
            if let Some(peers) = peers.upgrade() {
                peers.backup.borrow_mut().take_if(|(known, _)| *known == number);
            }
        });
        if let Some(before) = self.forgetting.replace(Some(forgetting.abort_handle())) {
            before.abort();
        }
    }
}

fn is_loopback(address: &str) -> bool {
    address.to_socket_addrs().is_ok_and(|mut found| found.all(|address| address.ip().is_loopback()))
}
