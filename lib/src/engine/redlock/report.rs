//! What a node says about itself.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::config::{Config, NodeAddress};
use super::error::Absence;
use super::node::Node;

/// How long a node is waited for that is only looked at.
const PATIENCE: Duration = Duration::from_secs(2);

/// What matters of what `INFO` says.
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
    pub(super) fn parse(said: &str) -> Facts {
        let facts: HashMap<_, _> = said.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
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

    /// Why it cannot be one of a majority.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        match self {
            Facts { is_replica: true, .. } => Some("is a replica: it only repeats what its primary says"),
            Facts { is_cluster: true, .. } => Some("is part of a Redis Cluster, which moves keys between its nodes"),
            _ => None,
        }
    }
}

/// A node as somebody finds it who only looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// Where it is.
    pub address: NodeAddress,
    /// What was found there.
    pub found: Result<Found, Absence>,
}

/// What was found at a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The process; two addresses with the same one are one server.
    pub run_id: String,
    /// How long it runs, by its own wall clock.
    pub uptime: Duration,
    /// Why it cannot be one of a majority.
    pub unfit: Option<&'static str>,
    /// Whether it writes every change to a log, so that it forgets little when it is restarted.
    pub keeps_log: bool,
    /// The policy by which it drops keys, and locks with them, when its memory is full.
    pub evicts: Option<String>,
}

/// Looks at every node, without taking anything. Must be called within a `tokio` runtime.
pub async fn examine(config: &Config) -> Vec<NodeReport> {
    let looks = (0..config.nodes.len()).map(async |place| {
        let found = match Node::new(config, place) {
            Ok(node) => look(node).await,
            Err(why) => Err(why),
        };
        NodeReport { address: config.nodes[place].clone(), found }
    });
    join_all(looks).await
}

async fn look(node: Rc<Node>) -> Result<Found, Absence> {
    let (_, facts) = timeout(PATIENCE, node.reach()).await.unwrap_or(Err(Absence::Silent(PATIENCE)))?;
    let unfit = facts.unfit();
    let Facts { run_id, uptime, keeps_log, evicts, .. } = facts;
    Ok(Found { run_id, uptime, unfit, keeps_log, evicts })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:77\r\n# Replication\r\nrole:master\r\n\
                        maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\ncluster_enabled:0\r\n";

    #[test]
    fn what_matters_is_found() {
        let facts = Facts::parse(SAID);
        assert_eq!((facts.run_id.as_str(), facts.uptime), ("abc", Duration::from_secs(77)));
        assert_eq!((facts.keeps_log, facts.evicts.as_deref(), facts.unfit()), (true, Some("allkeys-lru"), None));
        let unbounded = Facts::parse(&SAID.replace("maxmemory:1000", "maxmemory:0"));
        assert_eq!(unbounded.evicts, None);
        for change in [("role:master", "role:slave"), ("cluster_enabled:0", "cluster_enabled:1")] {
            assert!(Facts::parse(&SAID.replace(change.0, change.1)).unfit().is_some(), "{change:?}");
        }
    }

    #[test]
    fn of_what_says_nothing_the_worst_is_believed() {
        let facts = Facts::parse("what is this?");
        assert_eq!((facts.uptime, facts.keeps_log), (Duration::ZERO, false));
    }
}
