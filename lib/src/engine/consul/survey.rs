//! The state of a Consul cluster that the engine's promises depend on.

use serde_json::Value;

use super::Config;
use super::connection::{Connection, Dialer, Op};
use super::error::duration_ms;
use crate::engine::Failure;
use crate::engine::remote::{Address, ConnectError, Peer, Tls};

/// The state of a Consul cluster. `None` for a part that this client cannot read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// Whether a leader is known.
    pub has_leader: Option<bool>,
    /// How many servers vote.
    pub voters: Option<usize>,
    /// The agents of the URL.
    pub agents: Vec<Agent>,
    /// Whether a client without an ACL token and a certificate may write the keys of the prefix.
    pub is_open: Option<bool>,
}

/// An agent of the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agent {
    /// Its address.
    pub address: String,
    /// Its state; otherwise why it does not answer.
    pub state: Result<AgentState, String>,
}

/// The state of an agent that answers. `None` for a part that this client cannot read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentState {
    /// Its version.
    pub version: Option<String>,
    /// Whether it checks ACL tokens.
    pub has_acls: Option<bool>,
    /// The shortest TTL of a session, in milliseconds.
    pub ttl_min_ms: Option<u64>,
}

/// Reads the state of the cluster from each agent of the URL.
///
/// # Errors
///
/// No agent can be reached.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    let (dialer, mut survey, mut failed) = (Dialer::new(config.clone()), Survey::default(), None);
    for node in &config.nodes {
        let state = match dialer.connection(node) {
            Ok(connection) => survey.read_agent(&connection).await,
            Err(error) => Err(error),
        };
        if state.is_ok() && survey.is_open.is_none() {
            survey.is_open = is_open(config, node).await;
        }
        let state = state.map_err(|error| {
            let what = error.to_string();
            failed = Some(error);
            what
        });
        survey.agents.push(Agent { address: node.to_string(), state });
    }
    match failed {
        Some(error) if survey.agents.iter().all(|agent| agent.state.is_err()) => {
            let addresses: Vec<_> = config.nodes.iter().map(ToString::to_string).collect();
            Err(error.at(&Peer::new("Consul", addresses.join(", "))).failure(false))
        }
        _ => Ok(survey),
    }
}

/// Sends a transaction without an ACL token and a certificate. It would delete a key, but its condition is never met. Consul
/// checks the rights first, so the answer says whether such a client may write.
async fn is_open(config: &Config, node: &Address) -> Option<bool> {
    let tls = config.tls.clone().map(|tls| Tls { identity: None, ..tls });
    let has_certificate = config.tls != tls;
    let anonymous = Config { secret: None, tls, ..config.clone() };
    let connection = Dialer::new(anonymous).connection(node).ok()?;
    let key = format!("{}/none", config.prefix);
    match connection.txn(&[Op::check_index(&key, i64::MAX), Op::delete(&key)]).await.map_err(ConnectError::from) {
        Ok(_) => Some(true),
        // An agent that requires a certificate may just close the connection.
        Err(error) if error.is_permanent() || has_certificate => Some(false),
        Err(_) => None,
    }
}

impl Survey {
    /// Reads what every agent knows of the cluster, and the agent's own settings.
    async fn read_agent(&mut self, connection: &Connection) -> Result<AgentState, ConnectError> {
        let leader: String = connection.get("status/leader").await?;
        self.has_leader = Some(self.has_leader.unwrap_or(false) || !leader.is_empty());
        let peers: Vec<String> = connection.get("status/peers").await?;
        self.voters = Some(self.voters.unwrap_or(0).max(peers.len()));
        // It needs a right that locks do not.
        let Ok(agent) = connection.get::<Value>("agent/self").await else { return Ok(AgentState::default()) };
        let settings = &agent["DebugConfig"];
        Ok(AgentState {
            version: agent["Config"]["Version"].as_str().map(str::to_owned),
            has_acls: settings["ACLsEnabled"].as_bool(),
            ttl_min_ms: settings["SessionTTLMin"].as_str().and_then(duration_ms).map(effective_ttl_min),
        })
    }
}

/// Returns the shortest TTL that an agent with this setting accepts. Without the setting, which is then 0, it is Consul's own.
fn effective_ttl_min(setting_ms: u64) -> u64 {
    if setting_ms == 0 { 10_000 } else { setting_ms }
}
