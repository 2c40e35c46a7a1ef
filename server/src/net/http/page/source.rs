//! The node of this service as the source of a board.

use std::net::{IpAddr, Ipv4Addr};

use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, unfold};
use palisade_core::{LockName, Token};

use crate::net::handle::{ServiceHandle, ServiceReport, WatchItem};
use crate::node::{Principal, Protocol, RequestContext, Response};
use crate::page::{Broken, Changes, Counters, Lock, Member, Source, WatchedItem};
use crate::request::{Query, Request};

/// How many unread events the board's watch has at most. If it misses some, it reads the whole list.
const BACKLOG: usize = 4096;
/// How many locks are read at once.
const PAGE: u32 = 1000;

/// The node of this service. It tells the board everything; each reader gets as much as its user may see.
pub(super) struct NodeSource(pub(super) ServiceHandle);

fn context() -> RequestContext {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    RequestContext { principal: Principal::Anyone, protocol: Protocol::Http, peer: "the page".into(), address }
}

fn no_answer<T>(_: T) -> String {
    "the service does not answer".to_owned()
}

impl NodeSource {
    async fn query(&self, query: Query) -> Result<Response, String> {
        match self.0.request(context(), Request::Query(query)).await.map_err(no_answer)? {
            Response::Refused(_) => Err("no node leads at the moment".to_owned()),
            response => Ok(response),
        }
    }
}

impl Source for NodeSource {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Lock>, String>> {
        Box::pin(async {
            let (mut all, mut cursor) = (Vec::new(), 0);
            loop {
                let query = Query::Locks { prefix: String::new(), cursor, count: PAGE };
                let Response::Locks { cursor: next, locks } = self.query(query).await? else { return Ok(all) };
                all.extend(locks.into_iter().map(Lock::from));
                if next == 0 {
                    return Ok(all);
                }
                cursor = next;
            }
        })
    }

    fn lock(&self, name: LockName) -> BoxFuture<'_, Result<Option<Lock>, String>> {
        Box::pin(async {
            // As many holders and waiters as the list has of each lock.
            match self.query(Query::Lock { lock: name, cursor: 0, count: 16 }).await? {
                Response::Lock(report) => Ok(report.map(|report| Lock::from(*report))),
                _ => Ok(None),
            }
        })
    }

    fn watch(&self) -> BoxFuture<'_, Result<Changes, String>> {
        Box::pin(async {
            let watch = self.0.watch(context(), String::new(), BACKLOG).await.map_err(no_answer)?;
            let watch = watch.map_err(|_| "no node leads at the moment".to_owned())?;
            let items = unfold(watch, async |mut watch| {
                let item = match watch.next().await? {
                    WatchItem::Event(event) => WatchedItem::Event(event),
                    WatchItem::Missed(_) => WatchedItem::Missed,
                };
                Some((item, watch))
            });
            Ok(items.boxed())
        })
    }

    fn counters(&self) -> BoxFuture<'_, Option<Counters>> {
        Box::pin(async {
            let report = self.0.report().await.ok();
            Some(report.map(|report| counters(&report)).unwrap_or_default())
        })
    }

    fn members(&self) -> BoxFuture<'_, Option<Vec<Member>>> {
        Box::pin(async { members(&self.0.report().await.ok()?) })
    }

    fn take_away(&self, _: LockName, _: Option<Token>, _: String) -> BoxFuture<'_, Result<Broken, String>> {
        // A reader of the page takes a lock away as its own user.
        Box::pin(async { Err("only a user can take a lock away".to_owned()) })
    }
}

fn counters(report: &ServiceReport) -> Counters {
    let metrics = &report.node.metrics;
    let ended =
        |wanted: &[&str]| metrics.ended.iter().filter(|(how, _)| wanted.contains(how)).map(|(_, count)| count).sum();
    Counters {
        grants: metrics.grants,
        handovers: metrics.waits_granted.counts.iter().sum(),
        losses: ended(&["session_expired", "forced"]),
        expiries: metrics.sessions_expired,
        waits: metrics.waits_granted.clone(),
        commits: Some(metrics.commits.clone()),
        sessions: Some(report.node.sessions.into()),
        locks: report.node.locks.into(),
        waiting: metrics.waiting,
    }
}

/// Returns the members of a cluster; `None` for a node that is alone.
fn members(report: &ServiceReport) -> Option<Vec<Member>> {
    let cluster = &report.node.cluster;
    let membership = &cluster.membership;
    let all = membership.members.iter().map(|(id, member)| {
        let follower = cluster.followers.iter().find(|follower| follower.member == *id);
        Member {
            id: member.name.clone(),
            address: member.address.clone(),
            role: match () {
                () if cluster.leader == Some(*id) => "leader",
                () if membership.learners.contains(id) => "learner",
                () => "follower",
            },
            lag: follower.map(|follower| cluster.last_index.saturating_sub(follower.matched)),
            reachable: if *id == cluster.member { Some(true) } else { follower.map(|follower| follower.is_active) },
        }
    });
    (membership.members.len() > 1).then(|| all.collect())
}
