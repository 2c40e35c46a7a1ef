//! The state of the servers that the engine's promises depend on.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Config;
use crate::engine::remote::{Address, connect_tcp};

/// How long one server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The server.
    pub server: Address,
    /// Its state, or why it is unknown.
    pub state: Result<ServerState, String>,
}

/// The state of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Its version, such as `3.8.0`; `None` if it does not say.
    pub version: Option<String>,
    /// Its part: `leader`, `follower`, `observer` or `standalone`; `None` without contact to a majority.
    pub mode: Option<String>,
}

/// Asks every server of the configuration for its state, with the command `srvr`, which ZooKeeper allows by default.
pub async fn survey(config: &Config) -> Vec<Survey> {
    let ask = async |server: &Address| {
        let asked = timeout(PATIENCE, ask(server)).await;
        let state = asked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        Survey { server: server.clone(), state }
    };
    futures_util::future::join_all(config.servers.iter().map(ask)).await
}

async fn ask(server: &Address) -> Result<ServerState, String> {
    let mut stream = connect_tcp(&server.host, server.port).await.map_err(|error| error.to_string())?;
    let mut answer = String::new();
    let asked = async {
        stream.write_all(b"srvr").await?;
        stream.read_to_string(&mut answer).await
    };
    asked.await.map_err(|error| error.to_string())?;
    Ok(state(&answer))
}

fn state(answer: &str) -> ServerState {
    let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = field("Zookeeper version:").map(|text| {
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        text.split(|c| !digits(c)).next().unwrap_or_default().to_owned()
    });
    ServerState { version: version.filter(|text| !text.is_empty()), mode: field("Mode:").map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_mode_are_read() {
        let answer =
            "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022\nMode: leader\n";
        let found = ServerState { version: Some("3.8.0".to_owned()), mode: Some("leader".to_owned()) };
        assert_eq!(state(answer), found);
        let alone = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(state(alone), ServerState { version: None, mode: None });
    }
}
