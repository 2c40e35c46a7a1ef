//! Checks of Consul: servers, version, access, the shortest TTL.

use std::time::Duration;

use palisade::engine::consul::{AgentState, Config, Survey, survey};

use super::finding::Finding;
use super::is_this_host;

/// The oldest version that the tests cover.
const OLDEST: (u64, u64) = (1, 8);

/// Examines the cluster of a URL, for sessions with this TTL.
pub(super) async fn findings(rest: &str, is_encrypted: bool, ttl: Option<Duration>) -> Vec<Finding> {
    let parse = if is_encrypted { Config::parse_encrypted } else { Config::parse };
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = parse(rest) else { return Vec::new() };
    let Ok(survey) = survey(&config).await else { return Vec::new() };
    let states: Vec<_> = survey.agents.iter().filter_map(|agent| agent.state.as_ref().ok()).collect();
    let mut findings = vec![judge_servers(&survey, &config), judge_access(&states, survey.is_open, &config)];
    findings.extend(judge_version(&states));
    findings.extend(judge_ttl(&states, ttl));
    findings
}

fn judge_servers(survey: &Survey, config: &Config) -> Finding {
    const CHECK: &str = "servers";
    if survey.has_leader == Some(false) {
        let says = "there is no leader: no lock can be had or released until a majority of the servers is back";
        return Finding::failure(CHECK, says, "start the servers, see consul operator raft list-peers".to_owned());
    }
    let silent = survey.agents.iter().filter_map(|agent| Some((&agent.address, agent.state.as_ref().err()?)));
    let silent: Vec<_> = silent.map(|(address, why)| format!("{address} ({why})")).collect();
    if let [first, ..] = &silent[..] {
        let says =
            format!("{} of {} agents of the URL do not answer, such as {first}", silent.len(), config.nodes.len());
        return Finding::warning(CHECK, says, "start them, or remove them from the URL");
    }
    match survey.voters {
        Some(1) => {
            Finding::warning(CHECK, "there is one server: no lock can be had while it is down", "run three servers")
        }
        Some(voters) if voters % 2 == 0 => Finding::warning(
            CHECK,
            format!("{voters} servers survive no more failures than {} would", voters - 1),
            "run an odd number of servers",
        ),
        Some(voters) => Finding::ok(CHECK, format!("{voters} servers, of which {} may fail", (voters - 1) / 2)),
        None => Finding::ok(CHECK, "a leader is known"),
    }
}

fn judge_access(states: &[&AgentState], is_open: Option<bool>, config: &Config) -> Finding {
    const CHECK: &str = "access";
    let is_remote = config.nodes.iter().any(|node| !is_this_host(&node.host));
    if states.iter().any(|state| state.has_acls == Some(false)) {
        let says = "ACLs are disabled: any client that reaches Consul can end locks";
        return Finding::warning(
            CHECK,
            says,
            "enable ACLs, and give clients a token for the prefix and for sessions",
        );
    }
    if is_open == Some(true) && config.secret.is_some() {
        return Finding::warning(
            CHECK,
            "clients without an ACL token may write the keys: any client that reaches Consul can end locks",
            "set default_policy = \"deny\" in the ACL settings of the servers, and give the anonymous token no right to the prefix",
        );
    }
    match (&config.secret, &config.tls) {
        (Some(_), None) if is_remote => {
            let says = "the ACL token and all answers go over the network unencrypted";
            Finding::warning(CHECK, says, "use consuls:// instead of consul://")
        }
        (Some(_), _) => Finding::ok(CHECK, "clients have ACL tokens"),
        (None, _) => Finding::warning(
            CHECK,
            "this client has no ACL token, so that other clients need none either",
            "give clients a token for the prefix and for sessions, in PALISADE_SECRET",
        ),
    }
}

fn judge_version(states: &[&AgentState]) -> Option<Finding> {
    let oldest = states.iter().filter_map(|state| state.version.as_deref()).min_by_key(|version| parsed(version))?;
    Some(match parsed(oldest) < OLDEST {
        true => Finding::warning(
            "version",
            format!("Consul {oldest} is older than 1.8, the oldest version that is tested"),
            "upgrade it",
        ),
        false => Finding::ok("version", format!("Consul {oldest}")),
    })
}

fn parsed(version: &str) -> (u64, u64) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn judge_ttl(states: &[&AgentState], ttl: Option<Duration>) -> Option<Finding> {
    const CHECK: &str = "ttl";
    let least = states.iter().filter_map(|state| state.ttl_min_ms).max()?;
    let least = Duration::from_millis(least);
    Some(match ttl {
        Some(ttl) if ttl < least => Finding::failure(
            CHECK,
            format!("the TTL is {ttl:?}, and Consul refuses sessions with less than {least:?}"),
            "set a longer TTL, or lower session_ttl_min of the servers".to_owned(),
        ),
        _ => {
            Finding::ok(CHECK, format!("sessions may have a TTL of {least:?} or more, and end after twice their TTL"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consul_that_needs_no_token_is_reported() {
        let config = Config::parse("//:xyzzy@localhost").expect("a URL");
        let open = judge_access(&[], Some(true), &config);
        assert!(open.says.contains("any client"), "{}", open.says);
        assert!(open.advice.is_some_and(|advice| advice.contains("default_policy")));
        for closed in [Some(false), None] {
            assert_eq!(judge_access(&[], closed, &config).says, "clients have ACL tokens");
        }
    }

    #[test]
    fn old_versions_are_reported() {
        assert!(parsed("1.7.14") < OLDEST && parsed("1.8.7") >= OLDEST && parsed("1.21.0-beta1") >= OLDEST);
    }
}
