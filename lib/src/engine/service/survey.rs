//! Which nodes of a cluster serve clients.

use tokio::task::LocalSet;

use super::{Config, Service};
use crate::engine::remote::Address;

/// A node of the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// Its address.
    pub address: Address,
    /// Why it does not serve clients, if it does not.
    pub problem: Option<String>,
}

/// Connects to each node of the URL by itself.
pub async fn survey(config: &Config) -> Vec<NodeState> {
    let mut nodes = Vec::new();
    for address in &config.addresses {
        let one = Config { addresses: vec![address.clone()], ..config.clone() };
        let connected = LocalSet::new().run_until(Service::connect(one)).await;
        nodes.push(NodeState {
            address: address.clone(),
            problem: connected.err().map(|failure| failure.to_string()),
        });
    }
    nodes
}
