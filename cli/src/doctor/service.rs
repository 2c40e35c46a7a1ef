//! Checks of the service: encryption, and the nodes of a cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade::engine::service::{
    ClusterStatus, Config, MemberState, MemberStatus, NodeState, cluster_status, survey,
};
use tokio::time::sleep;

use super::finding::Finding;
use super::is_this_host;
use crate::text::{list, plain};

/// Examines the nodes of a URL.
pub(super) async fn findings(rest: &str, is_encrypted: bool) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let mut findings: Vec<_> = plaintext_secret(&config).into_iter().collect();
    if config.addresses.len() > 1 {
        findings.push(judge_nodes(&survey(&config).await));
        findings.extend(judge_clusters(&config).await);
    }
    // A user without the right to see it is told about the rest.
    if let Ok(status) = cluster_status(&config).await {
        let stuck = stuck(&config, &status).await;
        findings.extend(judge_cluster(&status, &stuck));
    }
    findings
}

/// How long a node that lags may take to receive something.
const LAG_PAUSE: Duration = Duration::from_secs(2);

/// Returns the nodes that lag and receive nothing for a while.
async fn stuck(config: &Config, before: &ClusterStatus) -> Vec<String> {
    let has = |status: &ClusterStatus, name: &str| status.members.iter().find(|it| it.name == name)?.matched;
    let lags = |member: &MemberStatus| has(before, &member.name).is_some_and(|has| has < before.last_index);
    let lagging: Vec<_> = before.members.iter().filter(|member| member.problem.is_none() && lags(member)).collect();
    if lagging.is_empty() {
        return Vec::new();
    }
    sleep(LAG_PAUSE).await;
    let Ok(after) = cluster_status(config).await else { return Vec::new() };
    let is_stuck = |name: &str| is_stuck(has(before, name), has(&after, name), before.last_index);
    lagging.iter().map(|member| member.name.clone()).filter(|name| is_stuck(name)).collect()
}

/// Whether a node that lacked entries up to `last_index` has received none of them since.
fn is_stuck(before: Option<u64>, after: Option<u64>, last_index: u64) -> bool {
    after.is_some_and(|after| after < last_index && before.is_some_and(|before| after <= before))
}

/// Reports nodes of different clusters: each of them would grant the same lock.
async fn judge_clusters(config: &Config) -> Option<Finding> {
    let mut clusters = BTreeMap::new();
    for address in &config.addresses {
        let one = Config { addresses: vec![address.clone()], ..config.clone() };
        if let Ok(status) = cluster_status(&one).await {
            clusters.entry(status.cluster).or_insert_with(|| address.to_string());
        }
    }
    let addresses: Vec<_> = clusters.into_values().collect();
    (addresses.len() > 1).then(|| {
        let says = format!(
            "the URL names nodes of {} clusters, such as {}: each would grant the same lock",
            addresses.len(),
            addresses.join(" and ")
        );
        Finding::failure("clusters", says, "name the nodes of one cluster".to_owned())
    })
}

/// A write that takes longer delays every grant.
const SLOW_WRITE_US: u64 = 50_000;
/// A round trip of this length is near the election time-out of one second, and heartbeats come every 100 ms.
const SLOW_TRIP_US: u64 = 300_000;

/// Examines what the nodes of a cluster say of themselves. A service of one node has nothing to say.
fn judge_cluster(status: &ClusterStatus, stuck: &[String]) -> Vec<Finding> {
    let members = &status.members;
    if members.len() < 2 {
        return Vec::new();
    }
    let mut findings = vec![judge_redundancy(status, stuck)];
    let slow = |read: fn(&MemberState) -> u64, limit: u64| {
        let slow = members.iter().filter_map(|member| Some((&member.name, member.state.as_ref().map(read)?)));
        slow.filter(|(_, us)| *us > limit).max_by_key(|(_, us)| *us).map(|(name, us)| (name.clone(), us / 1000))
    };
    findings.push(match slow(|state| state.write_us, SLOW_WRITE_US) {
        None => Finding::ok("disks", "all nodes write within 50 ms"),
        Some((name, ms)) => Finding::warning(
            "disks",
            format!("a write of node {name} takes {ms} ms"),
            "give it a faster disk, or one of its own: a slow majority delays every grant",
        ),
    });
    findings.push(match slow(|state| state.round_trip_us, SLOW_TRIP_US) {
        None => Finding::ok("network", "all nodes that can be reached answer within 300 ms"),
        Some((name, ms)) => Finding::warning(
            "network",
            format!("node {name} takes {ms} ms to answer, and after a second without a word another node may lead"),
            "move the nodes closer to each other",
        ),
    });
    let mut builds: Vec<_> =
        members.iter().filter_map(|member| Some(member.state.as_ref()?.build.as_str())).collect();
    builds.sort_unstable();
    builds.dedup();
    findings.push(match builds[..] {
        [] | [_] => {
            Finding::ok("versions", format!("all nodes that can be reached have version {}", builds.join("")))
        }
        _ => Finding::warning(
            "versions",
            format!("the nodes have different versions: {}", builds.join(", ")),
            "finish the upgrade, one node after the other",
        ),
    });
    findings
}

/// Judges how many nodes may be lost before no lock can be had.
fn judge_redundancy(status: &ClusterStatus, stuck: &[String]) -> Finding {
    const CHECK: &str = "redundancy";
    let voters: Vec<_> =
        status.members.iter().filter(|member| ["leader", "follower"].contains(&member.role.as_str())).collect();
    let is_away = |member: &&&MemberStatus| member.problem.is_some() || stuck.contains(&member.name);
    let away: Vec<_> = voters.iter().filter(is_away).map(|member| plain(&member.name)).collect();
    let (count, may_be_lost) = (voters.len(), (voters.len().saturating_sub(1)) / 2);
    if status.leader.is_none() {
        let by = plain(&status.answered_by);
        let (says, advice) = match away.as_slice() {
            [] => (
                format!("no node leads, and {by} reaches all others"),
                "wait for the election, and look again".to_owned(),
            ),
            away => (
                format!("no node leads: {by} does not reach {} of the other nodes: {}", away.len(), list(away)),
                format!("start {}: a majority must run", list(away)),
            ),
        };
        return Finding::failure(CHECK, says, advice);
    }
    match (away.as_slice(), count) {
        ([], 0..=2) => Finding::warning(
            CHECK,
            format!("{count} nodes vote, and all of them must run"),
            "add nodes until there are three or five (palisade cluster add)",
        ),
        ([], _) => Finding::ok(CHECK, format!("{count} nodes vote; {may_be_lost} of them may be lost")),
        (away, _) => Finding::warning(
            CHECK,
            format!(
                "{} of {count} nodes cannot be reached, or do not catch up: {}; {} more may be lost",
                away.len(),
                list(away),
                may_be_lost.saturating_sub(away.len())
            ),
            "see palisade cluster status. Start them, or replace them: palisade cluster remove NAME, then palisade cluster add",
        ),
    }
}

/// Warns if the secret is sent unencrypted to another host.
fn plaintext_secret(config: &Config) -> Option<Finding> {
    let is_remote = config.addresses.iter().any(|address| !is_this_host(&address.host));
    (config.login.is_some() && config.tls.is_none() && is_remote).then(|| {
        let says = "the user's secret and all replies go over the network unencrypted";
        Finding::warning("encryption", says, "use palisades:// instead of palisade://")
    })
}

fn judge_nodes(nodes: &[NodeState]) -> Finding {
    const CHECK: &str = "nodes";
    let count = nodes.len();
    let away: Vec<_> = nodes.iter().filter_map(|node| Some((node, node.problem.as_ref()?))).collect();
    let Some((first, problem)) = away.first() else {
        return Finding::ok(CHECK, format!("all {count} nodes serve clients"));
    };
    let down: Vec<_> = away.iter().filter(|(node, _)| !node.runs).map(|(node, _)| node.address.to_string()).collect();
    let such = match away.len() {
        1 => format!("1 of {count} nodes does not serve clients: {} ({problem})", first.address),
        some => format!("{some} of {count} nodes do not serve clients, such as {} ({problem})", first.address),
    };
    let start = match down.as_slice() {
        [] => "see palisade cluster status".to_owned(),
        down => format!("start {}", list(down)),
    };
    match away.len() == count {
        true => Finding::failure(
            CHECK,
            such,
            format!("{start}: a majority must run before a lock can be had or released"),
        ),
        false => Finding::warning(CHECK, such, format!("{start}; the others serve clients meanwhile")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_receives_nothing_of_what_it_lacks_is_stuck() {
        assert!(is_stuck(Some(5), Some(5), 9));
        assert!(!is_stuck(Some(5), Some(6), 9), "it receives entries");
        assert!(!is_stuck(Some(5), Some(9), 9), "it has caught up");
        assert!(!is_stuck(Some(5), None, 9), "it is not known");
    }
}
