//! The state of an etcd cluster that the engine's promises depend on.

use etcd_client::{AlarmAction, AlarmType};

use super::Config;
use super::connection::{CALL_TIMEOUT, Connection, Dialer, NAMES};
use super::wire::Keys;
use crate::engine::Failure;
use crate::engine::remote::{Address, Peer, Tls};

/// The state of an etcd cluster. `None` for a part that this user cannot read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// How many members vote.
    pub voters: Option<usize>,
    /// The members of the URL.
    pub members: Vec<Member>,
    /// The raised alarms: `NOSPACE` or `CORRUPT`.
    pub alarms: Option<Vec<&'static str>>,
    /// Whether a member answers a client without a user and a certificate.
    pub is_open: Option<bool>,
}

/// A member of the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its address.
    pub address: String,
    /// Its state; otherwise why it does not answer.
    pub state: Result<MemberState, String>,
}

/// The state of a member that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberState {
    /// Its version.
    pub version: String,
    /// The id of its cluster.
    pub cluster: u64,
    /// The size of its database in bytes.
    pub database_bytes: u64,
}

/// Reads the state of the cluster, over separate connections to each member of the URL.
///
/// # Errors
///
/// No member can be reached, or this client is refused.
pub async fn survey(config: &Config) -> Result<Survey, Failure> {
    let (keys, mut survey, mut failed) = (Keys::new(&config.prefix, NAMES), Survey::default(), None);
    for node in &config.nodes {
        let dialer = Dialer::new(Config { nodes: vec![node.clone()], ..config.clone() });
        let state = match dialer.dial(&keys, CALL_TIMEOUT).await {
            Ok(dialed) => {
                survey.read_cluster(&dialed.connection).await;
                if survey.is_open.is_none() {
                    survey.is_open = is_open(config, node, &keys).await;
                }
                member_state(&dialed.connection, dialed.cluster).await.map_err(|failure| failure.to_string())
            }
            Err(error) => {
                let what = error.to_string();
                failed = Some(error);
                Err(what)
            }
        };
        survey.members.push(Member { address: node.to_string(), state });
    }
    match failed {
        Some(error) if survey.members.iter().all(|member| member.state.is_err()) => {
            let addresses: Vec<_> = config.nodes.iter().map(ToString::to_string).collect();
            Err(error.at(&Peer::new("etcd", addresses.join(", "))).failure(false))
        }
        _ => Ok(survey),
    }
}

/// Reads a key of the prefix without a user and a certificate. Returns whether the member, which answers this client, answers that
/// too.
async fn is_open(config: &Config, node: &Address, keys: &Keys) -> Option<bool> {
    let tls = config.tls.clone().map(|tls| Tls { identity: None, ..tls });
    let has_certificate = config.tls != tls;
    let anonymous =
        Config { nodes: vec![node.clone()], user: None, secret: None, tls, prefix: config.prefix.clone() };
    match Dialer::new(anonymous).dial(keys, CALL_TIMEOUT).await {
        Ok(_) => Some(true),
        // A member that requires a certificate may just close the connection.
        Err(error) if error.is_permanent() || has_certificate => Some(false),
        Err(_) => None,
    }
}

async fn member_state(connection: &Connection, cluster: u64) -> Result<MemberState, Failure> {
    let mut client = connection.client();
    let status = connection.call(CALL_TIMEOUT, client.status()).await?;
    let database_bytes = status.db_size().unsigned_abs();
    Ok(MemberState { version: status.version().to_owned(), cluster, database_bytes })
}

impl Survey {
    /// Reads the members and alarms, which every member knows.
    async fn read_cluster(&mut self, connection: &Connection) {
        let mut client = connection.client();
        if self.voters.is_none()
            && let Ok(list) = connection.call(CALL_TIMEOUT, client.member_list()).await
        {
            self.voters = Some(list.members().iter().filter(|member| !member.is_learner()).count());
        }
        if self.alarms.is_none()
            && let Ok(list) =
                connection.call(CALL_TIMEOUT, client.alarm(AlarmAction::Get, AlarmType::None, None)).await
        {
            let name = |alarm: AlarmType| match alarm {
                AlarmType::None => None,
                AlarmType::Nospace => Some("NOSPACE"),
                AlarmType::Corrupt => Some("CORRUPT"),
            };
            self.alarms = Some(list.alarms().iter().filter_map(|alarm| name(alarm.alarm())).collect());
        }
    }
}
