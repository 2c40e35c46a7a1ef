//! Detects a pooler that gives each transaction another connection to the server.

use std::net::SocketAddr;
use std::pin::pin;

use tokio_postgres::Client;

use super::Config;
use super::connection::dial;
use crate::engine::remote::ConnectError;

const PID: &str = "SELECT pg_backend_pid()";
/// How often the test is repeated: other clients of the pooler may use the connection in between.
const ROUNDS: usize = 10;

/// Returns whether transactions of this connection may run in different backends of the server. `local` is our address: if the
/// server sees the same one, nothing is in between. Otherwise it may be only a proxy. So a second connection opens a transaction,
/// and if both connections use the same backend in turn, there is a pooler.
pub(in crate::engine) async fn is_between(
    client: &Client,
    local: Option<SocketAddr>,
    config: &Config,
) -> Result<bool, ConnectError> {
    let query = "SELECT pg_backend_pid(), inet_client_port(), host(inet_client_addr())";
    let row = client.query_typed_one(query, &[]).await?;
    let (first, port, seen): (i32, Option<i32>, Option<String>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let is_direct = local.is_some_and(|local| {
        port == Some(i32::from(local.port())) && seen.is_some_and(|seen| seen == local.ip().to_string())
    });
    if is_direct {
        return Ok(false);
    }
    let other = dial(config, |_| ()).await?;
    let mut driver = pin!(other.driver);
    tokio::select! {
        compared = share_backends(client, &other.client, first) => compared,
        error = &mut driver => Err(error),
    }
}

/// Returns whether two connections use the same backend in turn. A pooler gives a transaction the backend that was used last.
async fn share_backends(one: &Client, other: &Client, first: i32) -> Result<bool, ConnectError> {
    for _ in 0..ROUNDS {
        other.batch_execute("BEGIN").await?;
        let of_other: i32 = other.query_typed_one(PID, &[]).await?.try_get(0)?;
        if of_other == first {
            return Ok(true);
        }
        let again: i32 = one.query_typed_one(PID, &[]).await?.try_get(0)?;
        if again != first {
            return Ok(true);
        }
        other.batch_execute("ROLLBACK").await?;
        if one.query_typed_one(PID, &[]).await?.try_get::<_, i32>(0)? != first {
            return Ok(true);
        }
    }
    Ok(false)
}
