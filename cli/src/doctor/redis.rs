//! Checks of Redis: version, eviction, persistence, replicas, stored locks.

use palisade::engine::redis::{Config, Survey, Topology, check, survey};

use super::finding::Finding;
use super::is_this_host;

/// The oldest version that the tests cover.
const OLDEST: (u64, u64) = (6, 2);

/// Examines the server of a URL.
pub(super) async fn findings(rest: &str, is_encrypted: bool) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let mut findings: Vec<_> = plaintext_secret(&config).into_iter().collect();
    if let Ok(survey) = survey(&config).await {
        findings.extend(judge(&survey, &config));
    }
    if let Ok(contradictions) = check(&config).await {
        findings.push(judge_stored(&contradictions));
    }
    findings
}

/// Warns if the password is sent unencrypted to another host.
fn plaintext_secret(config: &Config) -> Option<Finding> {
    let is_remote = config.nodes.iter().any(|node| !is_this_host(&node.host));
    (config.secret.is_some() && config.tls.is_none() && is_remote).then(|| {
        let says = "the password and all replies go over the network unencrypted";
        Finding::warning("encryption", says, "use rediss:// instead of redis://")
    })
}

fn judge(survey: &Survey, config: &Config) -> Vec<Finding> {
    let mut findings =
        vec![judge_version(survey.version.as_deref()), judge_eviction(survey), judge_persistence(survey)];
    findings.push(judge_replicas(survey, config));
    if survey.is_cluster && config.topology == Topology::Alone {
        let says = "the server is a node of a cluster, and the URL does not say so";
        findings.push(Finding::warning(
            "cluster",
            says,
            "add ?cluster, so that the client finds the node of its namespace",
        ));
    }
    findings
}

/// Reports contradictions in the stored locks.
fn judge_stored(contradictions: &[String]) -> Finding {
    const CHECK: &str = "stored locks";
    match contradictions {
        [] => Finding::ok(CHECK, "sessions, holders, queues and tokens agree with each other"),
        [first, ..] => Finding::warning(
            CHECK,
            format!("{} contradictions; the first: {}", contradictions.len(), first.escape_debug()),
            "find out whether another program writes to the key of the namespace; if none does, report it as a bug. To \
             start over, end all clients and delete the key",
        ),
    }
}

fn judge_version(version: Option<&str>) -> Finding {
    const CHECK: &str = "version";
    let Some(version) = version else {
        let says = "this user may not run INFO, which shows the version";
        return Finding::warning(CHECK, says, "let the user run INFO, or make sure that it is Redis 6.2 or newer");
    };
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= OLDEST {
        return Finding::ok(CHECK, format!("Redis {version}"));
    }
    Finding::warning(
        CHECK,
        format!("Redis {version} is older than 6.2, the oldest version that is tested"),
        "upgrade it",
    )
}

fn judge_eviction(survey: &Survey) -> Finding {
    const CHECK: &str = "eviction";
    let no_limit = survey.maxmemory == Some(0);
    match survey.policy.as_deref() {
        // Keys of locks have no TTL, so only the `allkeys-…` policies evict them.
        Some(policy) if policy.starts_with("allkeys") && no_limit => Finding::warning(
            CHECK,
            format!("maxmemory-policy is {policy}: once maxmemory is set, every lock can be evicted"),
            "use noeviction or a volatile-… policy, or a separate Redis for the locks",
        ),
        Some(policy) if policy.starts_with("allkeys") => Finding::warning(
            CHECK,
            format!("maxmemory-policy is {policy}: every lock of a namespace can be evicted at any time"),
            "use noeviction or a volatile-… policy, or a separate Redis for the locks",
        ),
        Some(policy) => Finding::ok(CHECK, format!("maxmemory-policy is {policy}, which does not evict locks")),
        None => Finding::warning(CHECK, "this user may not see maxmemory-policy", "make sure that it is noeviction"),
    }
}

fn judge_persistence(survey: &Survey) -> Finding {
    const CHECK: &str = "persistence";
    let Survey { appendonly, appendfsync, save, .. } = survey;
    match (appendonly.as_deref(), appendfsync.as_deref(), save.as_deref()) {
        (Some("yes"), Some("always"), _) => {
            Finding::ok(CHECK, "every change is flushed to disk before the reply (appendfsync always)")
        }
        (Some("yes"), fsync, _) => Finding::warning(
            CHECK,
            format!("appendfsync is {}: a crash loses about the last second", fsync.unwrap_or("not known")),
            "set appendfsync always, if a crash must not lose grants and tokens",
        ),
        (Some(_), _, Some("")) => Finding::warning(
            CHECK,
            "nothing is stored on disk: after a restart Redis is empty, and clients refuse to go on until they reconnect",
            "set appendonly yes and appendfsync always",
        ),
        (Some(_), ..) => Finding::warning(
            CHECK,
            "only snapshots are stored: a crash loses everything since the last one, tokens included",
            "set appendonly yes and appendfsync always",
        ),
        (None, ..) => Finding::warning(
            CHECK,
            "this user may not see the persistence settings",
            "make sure that they are appendonly yes and appendfsync always",
        ),
    }
}

/// Describes that Redis has fewer replicas than the URL asks for; `None` if it has enough.
fn missing(found: u64, config: &Config) -> Option<String> {
    let wanted = config.replicas.filter(|wanted| found < u64::from(wanted.count))?.count;
    Some(format!("{found} connected, and the URL asks for {wanted}: no lock is granted until they are connected"))
}

/// Describes that the Redis of a URL has fewer replicas than the URL asks for; `None` for other engines.
pub(crate) async fn missing_replicas(url: &str) -> Option<String> {
    let config = match url.split_once(':')? {
        ("redis", rest) => Config::parse(rest).ok()?,
        ("rediss", rest) => Config::parse_encrypted(rest).ok()?,
        _ => return None,
    };
    config.replicas?;
    missing(survey(&config).await.ok()?.replicas?, &config)
}

fn judge_replicas(survey: &Survey, config: &Config) -> Finding {
    const CHECK: &str = "replicas";
    let Some(found) = survey.replicas else {
        let says = "this user may not run INFO, which shows the replicas";
        return Finding::warning(
            CHECK,
            says,
            "let the user run INFO; a failover loses the grants that the replica does not have",
        );
    };
    if let Some(missing) = missing(found, config) {
        return Finding::warning(CHECK, missing, "start the replicas, or ask for fewer with ?replicas=");
    }
    match (found, config.replicas) {
        (0, None) => Finding::ok(CHECK, "none, so no failover can lose grants"),
        (found, Some(wanted)) => {
            Finding::ok(CHECK, format!("{found}, of which {} must confirm each grant", wanted.count))
        }
        (found, None) => Finding::warning(
            CHECK,
            format!("{found}, and grants do not wait for them: a failover can lose the newest grants"),
            format!(
                "add ?replicas={found}, so that they confirm each grant first; a failover can then rarely lose a grant, \
                 but still can"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each check, and whether it has no advice.
    fn results(survey: &Survey, url: &str) -> Vec<(String, bool)> {
        let config = Config::parse(url).expect("a URL");
        let findings = judge(survey, &config);
        findings.iter().map(|finding| (finding.check.to_owned(), finding.advice.is_none())).collect()
    }

    fn good() -> Survey {
        let mut good = Survey::default();
        good.version = Some("7.0.15".to_owned());
        good.replicas = Some(0);
        good.policy = Some("noeviction".to_owned());
        good.maxmemory = Some(0);
        good.appendonly = Some("yes".to_owned());
        good.appendfsync = Some("always".to_owned());
        good.save = Some(String::new());
        good
    }

    #[test]
    fn a_durable_server_has_no_warnings() {
        let mut server = good();
        assert!(results(&server, "//host").iter().all(|(_, is_ok)| *is_ok));
        server.replicas = Some(2);
        assert!(results(&server, "//host?replicas=2").iter().all(|(_, is_ok)| *is_ok));
    }

    #[test]
    fn doctor_reports_volatile_redis_settings() {
        fn text(text: &str) -> Option<String> {
            Some(text.to_owned())
        }
        type Change = fn(&mut Survey);
        let cases: [(&str, &str, Change); 12] = [
            ("version", "//host", |server| server.version = None),
            ("replicas", "//host", |server| server.replicas = None),
            ("version", "//host", |server| server.version = text("5.0.1")),
            ("eviction", "//host", |server| (server.policy, server.maxmemory) = (text("allkeys-lru"), Some(1))),
            ("eviction", "//host", |server| server.policy = None),
            ("persistence", "//host", |server| server.appendfsync = text("everysec")),
            ("persistence", "//host", |server| server.appendonly = text("no")),
            ("persistence", "//host", |server| (server.appendonly, server.save) = (text("no"), text("3600 1"))),
            ("persistence", "//host", |server| server.appendonly = None),
            ("replicas", "//host", |server| server.replicas = Some(1)),
            ("replicas", "//host?replicas=2", |server| server.replicas = Some(1)),
            ("cluster", "//host", |server| server.is_cluster = true),
        ];
        for (check, url, change) in cases {
            let mut server = good();
            change(&mut server);
            let warned: Vec<_> = results(&server, url).into_iter().filter(|(_, is_ok)| !is_ok).collect();
            assert_eq!(warned, [(check.to_owned(), false)], "{server:?}");
        }
    }
}
