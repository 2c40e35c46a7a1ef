//! Checks of the servers of a `zookeeper:` engine.

use palisade::engine::zookeeper::{Access, Config, Survey, survey};

use super::finding::Finding;
use super::is_this_host;
use crate::text::plain;

/// Examines the servers of a URL.
pub(super) async fn findings(rest: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = Config::parse(rest) else { return Vec::new() };
    let servers = survey(&config).await;
    let mut findings = vec![judge_servers(&servers)];
    findings.extend(judge_versions(&servers));
    if servers.iter().any(|server| server.state.is_ok()) {
        findings.push(judge_access(&config));
    }
    findings.extend(judge_encryption(&config));
    findings
}

fn judge_servers(servers: &[Survey]) -> Finding {
    let mode = |server: &Survey| server.state.as_ref().ok().and_then(|state| state.mode.clone());
    let silent = |server: &&Survey| mode(server).is_none();
    let away: Vec<_> = servers.iter().filter(silent).map(|server| plain(&server.server.to_string())).collect();
    if !away.is_empty() {
        let says = format!(
            "{} of {} servers answer and are in contact with a majority; not {}",
            servers.len() - away.len(),
            servers.len(),
            away.join(", ")
        );
        return Finding::warning("servers", says, "start them, or allow the command srvr (4lw.commands.whitelist)");
    }
    let alone = servers.iter().filter(|server| mode(server).as_deref() == Some("standalone")).count();
    if alone > 0 && servers.len() > 1 {
        return Finding::failure(
            "servers",
            "the URL names servers that are not of one ensemble: each of them would grant the same lock",
            "name the servers of one ensemble".to_owned(),
        );
    }
    match alone > 0 {
        true => Finding::warning(
            "servers",
            "one server keeps the locks: without it there are none",
            "use an ensemble of three or five servers for correctness locks that must be available",
        ),
        false => Finding::ok("servers", format!("{} servers of the ensemble answer", servers.len())),
    }
}

/// Versions whose known errors concern locks.
fn judge_versions(servers: &[Survey]) -> Vec<Finding> {
    let mut versions: Vec<_> =
        servers.iter().filter_map(|server| server.state.as_ref().ok()?.version.clone()).collect();
    versions.sort_unstable();
    versions.dedup();
    let judge = |version: &String| {
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
        match numbers.as_slice() {
            [3, 0..=5, ..] | [0..=2, ..] => Finding::failure(
                "version",
                format!("version {} has no recursive watches", plain(version)),
                "use 3.6 or newer".to_owned(),
            ),
            [3, 6 | 7, ..] => Finding::warning(
                "version",
                format!("version {} is not maintained any more", plain(version)),
                "use the latest 3.8 or 3.9",
            ),
            [3, 8, 0, ..] => Finding::warning(
                "version",
                "an ensemble of version 3.8.0 can stall (ZOOKEEPER-4537)",
                "use the latest 3.8 or 3.9",
            ),
            _ => Finding::ok("version", plain(version)),
        }
    };
    versions.iter().map(judge).collect()
}

fn judge_access(config: &Config) -> Finding {
    match config.access {
        Access::Own => Finding::ok("access", "only the user of the URL has access to nodes that it creates"),
        Access::Open => Finding::warning(
            "access",
            "every client of the ensemble may delete locks and sessions",
            "use a new path, and let all its clients connect as one user: zookeeper://user@host/path, with the secret in \
             PALISADE_SECRET",
        ),
    }
}

fn judge_encryption(config: &Config) -> Option<Finding> {
    let is_remote = config.servers.iter().any(|server| !is_this_host(&server.host));
    (config.login.is_some() && is_remote).then(|| {
        Finding::warning(
            "encryption",
            "the secret goes to another host without TLS",
            "use a network that you trust, such as a VPN",
        )
    })
}
