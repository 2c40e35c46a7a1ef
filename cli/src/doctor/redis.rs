//! What could spoil locks in Redis: what it is set to forget.

use std::collections::HashMap;
use std::time::Duration;

use palisade::engine::redis::Config;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use super::finding::Finding;

/// The oldest that has all that is needed.
const OLDEST: (u64, u64) = (6, 2);
const PATIENCE: Duration = Duration::from_secs(5);

/// What the server says of itself.
#[derive(Debug, Default)]
struct Settings {
    version: String,
    /// `None` where it does not say.
    policy: Option<String>,
    maxmemory: Option<u64>,
    appendonly: Option<String>,
    appendfsync: Option<String>,
    save: Option<String>,
    replicas: u64,
    is_cluster: bool,
}

/// Looks at the server that a `redis:` URL names first. Sentinels are not asked: they have no locks.
pub(super) async fn findings(rest: &str, is_encrypted: bool) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // What is wrong with a URL, or a server that is not there, is told by the attempt to connect.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(in_the_open(&config));
    if !matches!(config.topology, palisade::engine::redis::Topology::Sentinel(_)) && !is_encrypted {
        if let Ok(Ok(settings)) = tokio::time::timeout(PATIENCE, settings(&config)).await {
            findings.extend(judge(&settings, &config));
        }
    } else {
        findings.push(Finding::warning(
            "settings",
            "what the server is set to forget was not looked at: it is behind Sentinels or encrypted",
            "run palisade doctor with the primary's own redis:// address where you may, or see docs/engines/redis.md",
        ));
    }
    findings
}

/// A secret that anybody on the way can read.
fn in_the_open(config: &Config) -> Option<Finding> {
    let is_here = |host: &str| host.parse::<std::net::IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback());
    let is_away = config.nodes.iter().any(|node| !is_here(&node.host));
    (config.secret.is_some() && config.tls.is_none() && is_away).then(|| {
        let says = "the password and all answers go over the network as they are";
        Finding::warning("encryption", says, "say rediss:// instead of redis://")
    })
}

async fn settings(config: &Config) -> Result<Settings, redis::RedisError> {
    let node = &config.nodes[0];
    let mut login = RedisConnectionInfo::default();
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(secret) = &config.secret {
        login = login.set_password(secret.reveal());
    }
    let info = ConnectionAddr::Tcp(node.host.clone(), node.port).into_connection_info()?.set_redis_settings(login);
    let client = redis::Client::open(info)?;
    let patience = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let mut connection = client.get_multiplexed_async_connection_with_config(&patience).await?;
    let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
    let said = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = |name: &str| said(name).and_then(|text| text.trim().parse().ok());
    Ok(Settings {
        version: said("redis_version").unwrap_or_default().trim().to_owned(),
        // Services that others run do not let everybody see their configuration, but say this much.
        policy: said("maxmemory_policy").map(|policy| policy.trim().to_owned()),
        maxmemory: number("maxmemory"),
        appendonly: setting(&mut connection, "appendonly").await,
        appendfsync: setting(&mut connection, "appendfsync").await,
        save: setting(&mut connection, "save").await,
        replicas: number("connected_slaves").unwrap_or(0),
        is_cluster: number("cluster_enabled") == Some(1),
    })
}

async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let mut ask = redis::cmd("CONFIG");
    let found: HashMap<String, String> = ask.arg("GET").arg(name).query_async(connection).await.ok()?;
    found.get(name).cloned()
}

fn judge(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut findings = vec![judge_version(&settings.version), judge_eviction(settings), judge_persistence(settings)];
    findings.push(judge_replicas(settings, config));
    if settings.is_cluster && config.topology == palisade::engine::redis::Topology::Alone {
        let says = "the server is a node of a cluster, and the URL does not say so";
        findings.push(Finding::warning("cluster", says, "add ?cluster, so that a namespace is found wherever it is"));
    }
    findings
}

fn judge_version(version: &str) -> Finding {
    const CHECK: &str = "version";
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

fn judge_eviction(settings: &Settings) -> Finding {
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

fn judge_persistence(settings: &Settings) -> Finding {
    const CHECK: &str = "persistence";
    let Settings { appendonly, appendfsync, save, .. } = settings;
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
            "nothing is kept on a disk: a restart begins empty, and clients refuse to go on until they connect anew",
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

fn judge_replicas(settings: &Settings, config: &Config) -> Finding {
    const CHECK: &str = "replicas";
    match (settings.replicas, config.replicas) {
        (0, None) => Finding::ok(CHECK, "there are none that could be promoted before they have caught up"),
        (found, Some(wanted)) if found >= u64::from(wanted.count) => Finding::ok(
            CHECK,
            format!("{found}, of which {} must have a grant before it is handed out", wanted.count),
        ),
        (found, Some(wanted)) => Finding::warning(
            CHECK,
            format!(
                "there are {found}, and the URL wants {} to have every grant: none will be handed out",
                wanted.count
            ),
            "see to the replicas, or ask for fewer with ?replicas=",
        ),
        (found, None) => Finding::warning(
            CHECK,
            format!("{found}, and nobody waits for them: a failover takes back what they have not got yet"),
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

    fn of(settings: &Settings, url: &str) -> Vec<(String, bool)> {
        let config = Config::parse(url).expect("a URL");
        let judged = judge(settings, &config);
        judged.iter().map(|finding| (finding.check.to_owned(), finding.advice.is_none())).collect()
    }

    fn good() -> Settings {
        Settings {
            version: "7.0.15".to_owned(),
            policy: Some("noeviction".to_owned()),
            maxmemory: Some(0),
            appendonly: Some("yes".to_owned()),
            appendfsync: Some("always".to_owned()),
            save: Some(String::new()),
            replicas: 0,
            is_cluster: false,
        }
    }

    #[test]
    fn a_server_that_forgets_nothing_is_not_warned_of() {
        assert!(of(&good(), "//host").iter().all(|(_, is_ok)| *is_ok));
        let replicated = Settings { replicas: 2, ..good() };
        assert!(of(&replicated, "//host?replicas=2").iter().all(|(_, is_ok)| *is_ok));
    }

    #[test]
    fn whatever_breaks_a_promise_is_warned_of() {
        let text = |text: &str| Some(text.to_owned());
        for (check, url, settings) in [
            ("version", "//host", Settings { version: "5.0.1".to_owned(), ..good() }),
            ("eviction", "//host", Settings { policy: text("allkeys-lru"), maxmemory: Some(1), ..good() }),
            ("eviction", "//host", Settings { policy: None, ..good() }),
            ("persistence", "//host", Settings { appendfsync: text("everysec"), ..good() }),
            ("persistence", "//host", Settings { appendonly: text("no"), ..good() }),
            ("persistence", "//host", Settings { appendonly: text("no"), save: text("3600 1"), ..good() }),
            ("persistence", "//host", Settings { appendonly: None, ..good() }),
            ("replicas", "//host", Settings { replicas: 1, ..good() }),
            ("replicas", "//host?replicas=2", Settings { replicas: 1, ..good() }),
            ("cluster", "//host", Settings { is_cluster: true, ..good() }),
        ] {
            let warned: Vec<_> = of(&settings, url).into_iter().filter(|(_, is_ok)| !is_ok).collect();
            assert_eq!(warned, [(check.to_owned(), false)], "{settings:?}");
        }
    }
}
