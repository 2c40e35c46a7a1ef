//! Checks of the Redis servers of a `redlock:` engine.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade::engine::redlock::{Config, Found, NodeReport, examine};

use super::finding::Finding;
use crate::text::{plain, time};

/// Examines the nodes of a URL.
pub(super) async fn findings(rest: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = Config::parse(rest) else { return Vec::new() };
    let reports = examine(&config).await;
    let mut findings = vec![efficiency_only(), judge_count(reports.len()), judge_hosts(&reports)];
    findings.extend(reports.iter().filter_map(judge_node));
    let found = |report: &NodeReport| Some((report.address.to_string(), report.found.clone().ok()?));
    let found: Vec<_> = reports.iter().filter_map(found).collect();
    findings.push(judge_persistence(&found, config.max_ttl));
    findings.push(judge_eviction(&found));
    findings.extend(judge_age(&found, &config));
    findings
}

fn efficiency_only() -> Finding {
    Finding::warning(
        "tokens",
        "Redlock has no tokens: a clock that jumps, a server that loses its data or a holder that is paused lets two \
         clients hold a lock at once",
        "use it to save work, never to protect data (`palisade prove redlock` shows why); use a fenced engine for that",
    )
}

fn judge_count(nodes: usize) -> Finding {
    let spare = (nodes - 1) / 2;
    let says = format!("{nodes} nodes, of which {spare} may be down");
    match nodes % 2 {
        0 => {
            let advice = format!("remove or add one: with {} nodes, {spare} may be down too", nodes - 1);
            Finding::warning("nodes", says, advice)
        }
        _ => Finding::ok("nodes", says),
    }
}

fn judge_hosts(reports: &[NodeReport]) -> Finding {
    let mut by_host: BTreeMap<&str, usize> = BTreeMap::new();
    for report in reports {
        *by_host.entry(&report.address.host).or_default() += 1;
    }
    let shared: Vec<_> = by_host.into_iter().filter(|(_, count)| *count > 1).collect();
    let shared: Vec<_> = shared.into_iter().map(|(host, count)| format!("{count} at {}", plain(host))).collect();
    match shared.is_empty() {
        true => Finding::ok("hosts", "each node has its own host"),
        false => Finding::warning(
            "hosts",
            format!("nodes share a host, its clock and its power: {}", shared.join(", ")),
            "put each node on its own host",
        ),
    }
}

/// Reports a node that does not answer, or that cannot be part of a majority.
fn judge_node(report: &NodeReport) -> Option<Finding> {
    let (address, advice) =
        (&report.address, "start it, or name another; locks are granted as long as a majority answers");
    match &report.found {
        Err(why) => Some(Finding::warning("node", format!("{address} {why}"), advice)),
        Ok(Found { unfit: Some(why), .. }) => {
            Some(Finding::failure("node", format!("{address} {why}"), "name independent primaries".to_owned()))
        }
        Ok(_) => None,
    }
}

fn names<'a>(found: impl Iterator<Item = &'a (String, Found)>) -> String {
    found.map(|(address, _)| address.as_str()).collect::<Vec<_>>().join(", ")
}

fn judge_persistence(found: &[(String, Found)], max_ttl: Duration) -> Finding {
    let volatile = names(found.iter().filter(|(_, node)| !node.keeps_log));
    match volatile.is_empty() {
        true => Finding::ok("persistence", "every node that answers keeps a log"),
        false => Finding::warning(
            "persistence",
            format!("a restart loses the locks of {volatile}, which then do not count for {}", time(max_ttl)),
            "appendonly yes, and appendfsync always",
        ),
    }
}

fn judge_eviction(found: &[(String, Found)]) -> Finding {
    let evicting = names(found.iter().filter(|(_, node)| node.evicts.is_some()));
    match evicting.is_empty() {
        true => Finding::ok("eviction", "no node that answers drops keys when its memory is full"),
        false => Finding::warning(
            "eviction",
            format!("{evicting} drop locks when their memory is full"),
            "maxmemory-policy noeviction",
        ),
    }
}

fn judge_age(found: &[(String, Found)], config: &Config) -> Option<Finding> {
    let is_young = |node: &Found| node.uptime < config.max_ttl && !config.dangerous_count_restarted;
    let young = names(found.iter().filter(|(_, node)| is_young(node)));
    let says = format!("started less than {} ago, and may have lost locks: {young}", time(config.max_ttl));
    let advice = "wait: they count when the longest TTL (max_ttl in the URL) is over";
    (!young.is_empty()).then(|| Finding::warning("age", says, advice))
}

#[cfg(test)]
mod tests {
    use palisade::engine::redlock::Absence;
    use palisade::engine::remote::Address;

    use super::super::finding::Status;
    use super::*;

    fn node(host: &str) -> NodeReport {
        let address = Address { host: host.to_owned(), port: 6379 };
        NodeReport { address, found: Ok(found()) }
    }

    fn found() -> Found {
        let uptime = Duration::from_secs(3600);
        Found { run_id: "x".to_owned(), uptime, unfit: None, keeps_log: true, evicts: None }
    }

    fn named(found: Found) -> Vec<(String, Found)> {
        vec![("a:6379".to_owned(), found)]
    }

    #[test]
    fn warns_about_an_even_number_of_nodes() {
        assert_eq!([3, 4, 5].map(|nodes| judge_count(nodes).status), [Status::Ok, Status::Warning, Status::Ok]);
        assert_eq!(judge_count(5).says, "5 nodes, of which 2 may be down");
        assert_eq!(judge_count(4).says, "4 nodes, of which 1 may be down");
    }

    #[test]
    fn warns_about_nodes_that_share_a_host() {
        assert_eq!(judge_hosts(&["a", "b", "c"].map(node)).status, Status::Ok);
        let shared = judge_hosts(&["a", "b", "a"].map(node));
        assert_eq!(shared.status, Status::Warning);
        assert!(shared.says.ends_with("2 at a"), "{}", shared.says);
    }

    #[test]
    fn warns_about_nodes_that_lose_locks() {
        let (minute, durable) = (Duration::from_secs(60), named(found()));
        assert_eq!(judge_persistence(&durable, minute).status, Status::Ok);
        assert_eq!(judge_eviction(&durable).status, Status::Ok);
        let volatile = named(Found { keeps_log: false, evicts: Some("allkeys-lru".to_owned()), ..found() });
        assert_eq!(judge_persistence(&volatile, minute).status, Status::Warning);
        assert_eq!(judge_eviction(&volatile).status, Status::Warning);
    }

    #[test]
    fn nodes_that_are_young_do_not_count() {
        let config = |url| Config::parse(url).expect("a URL");
        let young = named(Found { uptime: Duration::from_secs(59), ..found() });
        assert!(judge_age(&young, &config("//a,b,c")).is_some());
        assert_eq!(judge_age(&young, &config("//a,b,c?max_ttl=30s")), None);
        assert_eq!(judge_age(&young, &config("//a,b,c?dangerous_count_restarted=yes")), None);
        assert_eq!(judge_age(&named(found()), &config("//a,b,c")), None);
    }

    #[test]
    fn a_node_that_is_down_is_a_warning_and_a_replica_a_failure() {
        assert_eq!(judge_node(&node("a")), None);
        let down = NodeReport { found: Err(Absence::NotReached("refused".to_owned())), ..node("a") };
        assert_eq!(judge_node(&down).map(|finding| finding.status), Some(Status::Warning));
        let replica = NodeReport { found: Ok(Found { unfit: Some("is a replica"), ..found() }), ..node("a") };
        assert_eq!(judge_node(&replica).map(|finding| finding.status), Some(Status::Failure));
    }
}
