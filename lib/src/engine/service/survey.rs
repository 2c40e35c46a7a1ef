//! Which nodes of a cluster serve clients.

use futures_util::future::join_all;
use tokio::task::LocalSet;

use super::{ClusterError, Config, Service, cluster_status};
use crate::engine::Failure;
use crate::engine::remote::Address;

/// A node of the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// Its address.
    pub address: Address,
    /// Why it does not serve clients, if it does not.
    pub problem: Option<String>,
    /// Whether it answers, even if it does not serve clients.
    pub runs: bool,
}

/// Connects to each node of the URL by itself.
pub async fn survey(config: &Config) -> Vec<NodeState> {
    LocalSet::new().run_until(join_all(config.addresses.iter().map(|address| node(config, address)))).await
}

async fn node(config: &Config, address: &Address) -> NodeState {
    let one = Config { addresses: vec![address.clone()], ..config.clone() };
    let problem = Service::connect(one.clone()).await.err().map(|failure| failure.to_string());
    let runs = match problem {
        None => true,
        Some(_) => matches!(
            cluster_status(&one).await,
            Ok(_) | Err(ClusterError::Refused(_) | ClusterError::Failed(Failure::Denied(_)))
        ),
    };
    NodeState { address: address.clone(), problem, runs }
}
