//! The state of a node, as its INFO reports it.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::config::Config;
use super::error::Absence;
use super::node::Node;
use crate::engine::remote::Address;

/// The time-out of a node that is examined.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The part of `INFO` that this engine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) run_id: String,
    pub(super) uptime: Duration,
    is_replica: bool,
    is_cluster: bool,
    keeps_log: bool,
    evicts: Option<String>,
}

impl Facts {
    pub(super) fn parse(info: &str) -> Facts {
        let facts: HashMap<_, _> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
        let policy = fact("maxmemory_policy");
        let is_bounded = !matches!(fact("maxmemory"), "" | "0");
        Facts {
            run_id: fact("run_id").to_owned(),
            uptime: Duration::from_secs(fact("uptime_in_seconds").parse().unwrap_or(0)),
            is_replica: fact("role") == "slave",
            is_cluster: fact("cluster_enabled") == "1",
            keeps_log: fact("aof_enabled") == "1",
            evicts: (is_bounded && !matches!(policy, "" | "noeviction")).then(|| policy.to_owned()),
        }
    }

    /// Why it cannot be part of a majority.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        match self {
            Facts { is_replica: true, .. } => Some("is a replica, which only repeats its primary"),
            Facts { is_cluster: true, .. } => Some("is part of a Redis Cluster, which moves keys between its nodes"),
            _ => None,
        }
    }
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// Its address.
    pub address: Address,
    /// Its state, or why there is none.
    pub found: Result<Found, Absence>,
}

/// The state of a node that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The run id; two addresses with the same one are one server.
    pub run_id: String,
    /// Its uptime, by its own wall clock.
    pub uptime: Duration,
    /// Why it cannot be part of a majority.
    pub unfit: Option<&'static str>,
    /// Whether it writes every change to a log, so that it loses little in a restart.
    pub keeps_log: bool,
    /// The policy by which it evicts keys, and so locks, when its memory is full.
    pub evicts: Option<String>,
}

/// Examines every node. Changes nothing. Must be called on a `tokio` runtime.
pub async fn examine(config: &Config) -> Vec<NodeReport> {
    let reports = (0..config.nodes.len()).map(async |index| {
        let found = match Node::new(config, index) {
            Ok(node) => examine_node(node).await,
            Err(why) => Err(why),
        };
        NodeReport { address: config.nodes[index].clone(), found }
    });
    join_all(reports).await
}

async fn examine_node(node: Rc<Node>) -> Result<Found, Absence> {
    let (_, facts) = timeout(TIMEOUT, node.reach()).await.unwrap_or(Err(Absence::Silent(TIMEOUT)))?;
    let unfit = facts.unfit();
    let Facts { run_id, uptime, keeps_log, evicts, .. } = facts;
    Ok(Found { run_id, uptime, unfit, keeps_log, evicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:77\r\n# Replication\r\nrole:master\r\n\
                        maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\ncluster_enabled:0\r\n";

    #[test]
    fn info_reveals_volatile_and_dependent_servers() {
        let facts = Facts::parse(INFO);
        assert_eq!((facts.run_id.as_str(), facts.uptime), ("abc", Duration::from_secs(77)));
        assert_eq!((facts.keeps_log, facts.evicts.as_deref(), facts.unfit()), (true, Some("allkeys-lru"), None));
        let unbounded = Facts::parse(&INFO.replace("maxmemory:1000", "maxmemory:0"));
        assert_eq!(unbounded.evicts, None);
        for change in [("role:master", "role:slave"), ("cluster_enabled:0", "cluster_enabled:1")] {
            assert!(Facts::parse(&INFO.replace(change.0, change.1)).unfit().is_some(), "{change:?}");
        }
    }

    #[test]
    fn missing_info_counts_as_the_worst_case() {
        let facts = Facts::parse("not an INFO reply");
        assert_eq!((facts.uptime, facts.keeps_log), (Duration::ZERO, false));
    }
}
