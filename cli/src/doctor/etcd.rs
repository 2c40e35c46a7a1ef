//! Checks of etcd: members, version, alarms, authentication, encryption.

use palisade::engine::etcd::{Config, Member, Survey, survey};

use super::finding::Finding;
use super::is_this_host;

/// The oldest version that the tests cover.
const OLDEST: (u64, u64, u64) = (3, 4, 0);
/// The size of a database from which on its default quota, 2 GiB, is nearly used up.
const LARGE: u64 = 1536 << 20;

/// Examines the cluster of a URL.
pub(super) async fn findings(rest: &str, is_encrypted: bool) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let Ok(survey) = survey(&config).await else { return Vec::new() };
    judge(&survey, &config)
}

fn judge(survey: &Survey, config: &Config) -> Vec<Finding> {
    let mut findings = vec![judge_access(survey.is_open, config), judge_members(survey, config)];
    findings.extend(judge_version(&survey.members));
    findings.push(judge_alarms(survey.alarms.as_deref()));
    findings.push(judge_size(&survey.members));
    findings
}

fn judge_access(is_open: Option<bool>, config: &Config) -> Finding {
    const CHECK: &str = "access";
    const REMEDY: &str = "create a user with the right to the prefix, then run etcdctl auth enable";
    let is_remote = config.nodes.iter().any(|node| !is_this_host(&node.host));
    let has_certificate = config.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
    match (config.user.is_some(), config.tls.is_some()) {
        (true, false) if is_remote => {
            let says = "the password and all answers go over the network unencrypted";
            Finding::warning(CHECK, says, "use etcds:// instead of etcd://")
        }
        (false, _) if !has_certificate => {
            Finding::warning(CHECK, "etcd has no authentication: any client that reaches it can end locks", REMEDY)
        }
        _ if is_open == Some(true) => Finding::warning(
            CHECK,
            "etcd does not require the certificate, and has no authentication: any client that reaches it can end locks",
            format!("start etcd with --client-cert-auth and --trusted-ca-file; or {REMEDY}"),
        ),
        _ => Finding::ok(CHECK, "clients are authenticated"),
    }
}

fn judge_members(survey: &Survey, config: &Config) -> Finding {
    const CHECK: &str = "members";
    let silent = survey.members.iter().filter_map(|member| Some((&member.address, member.state.as_ref().err()?)));
    let silent: Vec<_> = silent.map(|(address, why)| format!("{address} ({why})")).collect();
    let mut clusters: Vec<_> =
        survey.members.iter().filter_map(|member| Some(member.state.as_ref().ok()?.cluster)).collect();
    clusters.dedup();
    if clusters.len() > 1 {
        return Finding::failure(
            CHECK,
            "the URL names members of different clusters: each of them would grant the same lock",
            "name the members of one cluster".to_owned(),
        );
    }
    if let [first, ..] = &silent[..] {
        let says =
            format!("{} of {} members of the URL do not answer, such as {first}", silent.len(), config.nodes.len());
        return Finding::warning(CHECK, says, "start them, or remove them from the URL");
    }
    match survey.voters {
        Some(1) => Finding::warning(
            CHECK,
            "the cluster has one member: no lock can be had while it is down",
            "run three members",
        ),
        Some(voters) if voters % 2 == 0 => Finding::warning(
            CHECK,
            format!("{voters} members survive no more failures than {} would", voters - 1),
            "run an odd number of members",
        ),
        Some(voters) if config.nodes.len() == 1 => Finding::warning(
            CHECK,
            format!("the URL names one of {voters} members: clients that start while it is down cannot connect"),
            "name all members: etcd://a,b,c",
        ),
        Some(voters) => Finding::ok(CHECK, format!("{voters} members, of which {} may fail", (voters - 1) / 2)),
        None => Finding::ok(CHECK, format!("all {} members of the URL answer", config.nodes.len())),
    }
}

fn judge_version(members: &[Member]) -> Option<Finding> {
    let versions = members.iter().filter_map(|member| Some(member.state.as_ref().ok()?.version.as_str()));
    versions.min_by_key(|version| parsed(version)).map(judge_oldest)
}

fn judge_oldest(oldest: &str) -> Finding {
    const CHECK: &str = "version";
    match parsed(oldest) {
        found if found < OLDEST => {
            let says = format!("etcd {oldest} is older than 3.4, the oldest version that is tested");
            Finding::warning(CHECK, says, "upgrade it")
        }
        (3, 5, patch) if patch < 3 => {
            let says = format!("etcd {oldest} can lose acknowledged writes in a crash (etcd #13766)");
            Finding::warning(CHECK, says, "upgrade to 3.5.13 or newer")
        }
        (3, 4, patch) if patch < 31 => revokes(oldest, "3.4.31"),
        (3, 5, patch) if patch < 13 => revokes(oldest, "3.5.13"),
        _ => Finding::ok(CHECK, format!("etcd {oldest}")),
    }
}

fn revokes(version: &str, fixed: &str) -> Finding {
    let says = format!(
        "in etcd {version} a leader that hung, for example on a slow disk, may end all sessions too early when it goes on (etcd \
         #15247). Holders are told, and tokens keep rising"
    );
    Finding::warning("version", says, format!("upgrade to {fixed} or newer"))
}

fn parsed(version: &str) -> (u64, u64, u64) {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

fn judge_alarms(alarms: Option<&[&str]>) -> Finding {
    const CHECK: &str = "alarms";
    match alarms {
        None => Finding::warning(CHECK, "this user may not see the alarms", "run etcdctl alarm list as root"),
        Some([]) => Finding::ok(CHECK, "no alarm is raised"),
        Some(alarms) if alarms.contains(&"CORRUPT") => Finding::failure(
            CHECK,
            "a member has other data than the others (CORRUPT)",
            "replace the member before locks are used".to_owned(),
        ),
        Some(alarms) => Finding::failure(
            CHECK,
            format!("{}: etcd refuses all writes, so that locks can neither be had nor released", alarms.join(", ")),
            "compact and defragment it, then run etcdctl alarm disarm".to_owned(),
        ),
    }
}

fn judge_size(members: &[Member]) -> Finding {
    const CHECK: &str = "database";
    let largest = members.iter().filter_map(|member| Some(member.state.as_ref().ok()?.database_bytes)).max();
    let mib = largest.unwrap_or_default() >> 20;
    match largest {
        Some(largest) if largest >= LARGE => Finding::warning(
            CHECK,
            format!("it has {mib} MiB; at its quota, by default 2048 MiB, etcd refuses all writes"),
            "set --auto-compaction-retention, and defragment it",
        ),
        _ => Finding::ok(CHECK, format!("{mib} MiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_reported() {
        for (version, part) in [
            ("3.3.27", Some("older than 3.4")),
            ("3.4.23", Some("#15247")),
            ("3.4.31", None),
            ("3.5.2", Some("#13766")),
            ("3.5.12", Some("#15247")),
            ("3.5.13", None),
            ("3.6.0-rc.1", None),
        ] {
            let found = judge_oldest(version).says;
            match part {
                Some(part) => assert!(found.contains(part), "{version}: {found}"),
                None => assert_eq!(found, format!("etcd {version}")),
            }
        }
    }

    #[test]
    fn a_certificate_that_etcd_does_not_require_is_reported() {
        let config = Config::parse_encrypted("//localhost?cert=a&key=b").expect("a URL");
        let open = judge_access(Some(true), &config);
        assert!(open.says.contains("any client"), "{}", open.says);
        assert!(open.advice.is_some_and(|advice| advice.contains("--client-cert-auth")));
        for closed in [Some(false), None] {
            assert_eq!(judge_access(closed, &config).says, "clients are authenticated");
        }
    }

    #[test]
    fn a_full_or_corrupt_database_is_a_failure() {
        assert!(judge_alarms(Some(&["NOSPACE"])).is_failure());
        assert!(judge_alarms(Some(&["NOSPACE", "CORRUPT"])).says.contains("CORRUPT"));
        assert!(!judge_alarms(Some(&[])).is_failure());
    }
}
