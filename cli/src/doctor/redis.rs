//! What could spoil locks in Redis: what it is set to forget.

use palisade::engine::redis::{Config, Survey, Topology, check, survey};

use super::finding::Finding;
use super::is_here;

/// The oldest that has all that is needed.
const OLDEST: (u64, u64) = (6, 2);

/// Looks at the server that has the locks.
pub(super) async fn findings(rest: &str, is_encrypted: bool) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let mut findings: Vec<_> = plaintext_secret(&config).into_iter().collect();
    if let Ok(settings) = survey(&config).await {
        findings.extend(judge(&settings, &config));
    }
    if let Ok(wrong) = check(&config).await {
        findings.push(judge_stored(&wrong));
    }
    findings
}

/// Warns of a secret that is sent unencrypted.
fn plaintext_secret(config: &Config) -> Option<Finding> {
    let is_away = config.nodes.iter().any(|node| !is_here(&node.host));
    (config.secret.is_some() && config.tls.is_none() && is_away).then(|| {
        let says = "the password and all answers go over the network as they are";
        Finding::warning("encryption", says, "say rediss:// instead of redis://")
    })
}

fn judge(settings: &Survey, config: &Config) -> Vec<Finding> {
    let mut findings =
        vec![judge_version(settings.version.as_deref()), judge_eviction(settings), judge_persistence(settings)];
    findings.push(judge_replicas(settings, config));
    if settings.is_cluster && config.topology == Topology::Alone {
        let says = "the server is a node of a cluster, and the URL does not say so";
        findings.push(Finding::warning("cluster", says, "add ?cluster, so that a namespace is found wherever it is"));
    }
    findings
}

/// What the rules find wrong with what they have stored.
fn judge_stored(wrong: &[String]) -> Finding {
    const CHECK: &str = "stored locks";
    match wrong {
        [] => Finding::ok(CHECK, "sessions, holders, queues and tokens agree with each other"),
        [first, ..] => Finding::warning(
            CHECK,
            format!("{} things do not agree with each other; the first: {}", wrong.len(), first.escape_debug()),
            "see whether something else writes to the key of the namespace; if nothing does, report it as a bug. To start \
             over, end all clients and delete the key",
        ),
    }
}

fn judge_version(version: Option<&str>) -> Finding {
    const CHECK: &str = "version";
    let Some(version) = version else {
        let says = "it does not let this user see its version (INFO)";
        return Finding::warning(CHECK, says, "let the user run INFO, or see to it that it is Redis 6.2 or newer");
    };
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= OLDEST {
        return Finding::ok(CHECK, format!("Redis {version}"));
    }
    Finding::warning(
        CHECK,
        format!("Redis {version} is older than 6.2, which is the oldest that is tested"),
        "upgrade it",
    )
}

fn judge_eviction(settings: &Survey) -> Finding {
    const CHECK: &str = "eviction";
    let no_limit = settings.maxmemory == Some(0);
    match settings.policy.as_deref() {
        // Keys of locks have no TTL, so only those policies see them that look at all keys.
        Some(policy) if policy.starts_with("allkeys") && no_limit => Finding::warning(
            CHECK,
            format!("maxmemory-policy is {policy}: once maxmemory is set, every lock can be evicted"),
            "use noeviction or a volatile-… policy, or a Redis of their own for locks",
        ),
        Some(policy) if policy.starts_with("allkeys") => Finding::warning(
            CHECK,
            format!("maxmemory-policy is {policy}: every lock of a namespace can be evicted at any time"),
            "use noeviction or a volatile-… policy, or a Redis of their own for locks",
        ),
        Some(policy) => Finding::ok(CHECK, format!("maxmemory-policy is {policy}, which does not evict locks")),
        None => Finding::warning(CHECK, "it does not say what it evicts", "see to it that it is noeviction"),
    }
}

fn judge_persistence(settings: &Survey) -> Finding {
    const CHECK: &str = "persistence";
    let Survey { appendonly, appendfsync, save, .. } = settings;
    match (appendonly.as_deref(), appendfsync.as_deref(), save.as_deref()) {
        (Some("yes"), Some("always"), _) => {
            Finding::ok(CHECK, "every change is on the disk before it is answered (appendfsync always)")
        }
        (Some("yes"), fsync, _) => Finding::warning(
            CHECK,
            format!("appendfsync is {}: a crash takes back about the last second", fsync.unwrap_or("not known")),
            "set appendfsync always, if a crash must not take back grants and tokens",
        ),
        (Some(_), _, Some("")) => Finding::warning(
            CHECK,
            "nothing is kept on a disk: a restart begins empty, and clients refuse to go on until they reconnect",
            "set appendonly yes and appendfsync always",
        ),
        (Some(_), ..) => Finding::warning(
            CHECK,
            "only snapshots are kept: a crash takes back everything since the last one, tokens included",
            "set appendonly yes and appendfsync always",
        ),
        (None, ..) => Finding::warning(
            CHECK,
            "it does not let this user see what it keeps on a disk",
            "see to it that it is appendonly yes and appendfsync always",
        ),
    }
}

/// Says that fewer replicas follow than the URL asks for.
fn missing(found: u64, config: &Config) -> Option<String> {
    let wanted = config.replicas.filter(|wanted| found < u64::from(wanted.count))?.count;
    Some(format!("there are {found}, and the URL wants {wanted} to have every grant: none will be handed out"))
}

/// Says that a URL of a Redis asks for more replicas than follow it now. `None` for other engines.
pub(crate) async fn missing_replicas(url: &str) -> Option<String> {
    let config = match url.split_once(':')? {
        ("redis", rest) => Config::parse(rest).ok()?,
        ("rediss", rest) => Config::parse_encrypted(rest).ok()?,
        _ => return None,
    };
    config.replicas?;
    missing(survey(&config).await.ok()?.replicas?, &config)
}

fn judge_replicas(settings: &Survey, config: &Config) -> Finding {
    const CHECK: &str = "replicas";
    let Some(found) = settings.replicas else {
        let says = "it does not let this user see whether it has replicas (INFO)";
        return Finding::warning(
            CHECK,
            says,
            "let the user run INFO; a failover takes back what a replica has not got",
        );
    };
    if let Some(missing) = missing(found, config) {
        return Finding::warning(CHECK, missing, "see to the replicas, or ask for fewer with ?replicas=");
    }
    match (found, config.replicas) {
        (0, None) => Finding::ok(CHECK, "there are none that could be promoted before they have caught up"),
        (found, Some(wanted)) => Finding::ok(
            CHECK,
            format!("{found}, of which {} must have a grant before it is handed out", wanted.count),
        ),
        (found, None) => Finding::warning(
            CHECK,
            format!("{found}, and grants do not wait for them: a failover can lose the newest grants"),
            format!(
                "add ?replicas={found} to have grants on them before they are handed out; it narrows the gap, and \
                     does not close it"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &Survey, url: &str) -> Vec<(String, bool)> {
        let config = Config::parse(url).expect("a URL");
        let judged = judge(settings, &config);
        judged.iter().map(|finding| (finding.check.to_owned(), finding.advice.is_none())).collect()
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
    fn a_server_that_forgets_nothing_is_not_warned_of() {
        let mut server = good();
        assert!(of(&server, "//host").iter().all(|(_, is_ok)| *is_ok));
        server.replicas = Some(2);
        assert!(of(&server, "//host?replicas=2").iter().all(|(_, is_ok)| *is_ok));
    }

    #[test]
    fn doctor_reports_volatile_redis_settings() {
        fn text(text: &str) -> Option<String> {
            Some(text.to_owned())
        }
        type Spoil = fn(&mut Survey);
        let cases: [(&str, &str, Spoil); 12] = [
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
        for (check, url, spoil) in cases {
            let mut server = good();
            spoil(&mut server);
            let warned: Vec<_> = of(&server, url).into_iter().filter(|(_, is_ok)| !is_ok).collect();
            assert_eq!(warned, [(check.to_owned(), false)], "{server:?}");
        }
    }
}
