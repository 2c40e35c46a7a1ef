//! Checks of the service: encryption, and the nodes of a cluster.

use std::collections::BTreeMap;

use palisade::engine::service::{ClusterStatus, Config, MemberState, NodeState, cluster_status, survey};

use super::finding::Finding;
use super::is_this_host;

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
        findings.extend(judge_cluster(&status));
    }
    findings
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
fn judge_cluster(status: &ClusterStatus) -> Vec<Finding> {
    let members = &status.members;
    if members.len() < 2 {
        return Vec::new();
    }
    let mut findings = vec![judge_redundancy(status)];
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
fn judge_redundancy(status: &ClusterStatus) -> Finding {
    const CHECK: &str = "redundancy";
    let voters: Vec<_> =
        status.members.iter().filter(|member| ["leader", "follower"].contains(&member.role.as_str())).collect();
    let away: Vec<_> = voters.iter().filter(|member| member.problem.is_some()).map(|member| &*member.name).collect();
    let (count, may_be_lost) = (voters.len(), (voters.len().saturating_sub(1)) / 2);
    if status.leader.is_none() {
        let says = format!("no node leads: {} of {count} cannot be reached from {}", away.len(), status.answered_by);
        return Finding::failure(CHECK, says, "start the others: a majority must run".to_owned());
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
                "{} of {count} nodes cannot be reached: {}; {} more may be lost",
                away.len(),
                away.join(", "),
                may_be_lost.saturating_sub(away.len())
            ),
            "start them, or replace them: palisade cluster remove NAME, then palisade cluster add",
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
    let silent: Vec<_> = nodes.iter().filter_map(|node| Some((&node.address, node.problem.as_ref()?))).collect();
    match silent[..] {
        [] => Finding::ok(CHECK, format!("all {} nodes serve clients", nodes.len())),
        [(address, problem), ..] => Finding::warning(
            CHECK,
            format!("{} of {} nodes do not serve clients, such as {address} ({problem})", silent.len(), nodes.len()),
            "start them: with a majority gone, no lock can be had or released",
        ),
    }
}
