//! Whether there is a pooler in between that gives each transaction another connection.

use std::net::SocketAddr;
use std::pin::pin;

use tokio_postgres::Client;

use super::Config;
use super::connection::dial;
use crate::engine::remote::ConnectError;

const PID: &str = "SELECT pg_backend_pid()";
const ROUNDS: usize = 10;

/// Whether transactions of this connection may come to different servers' sessions. `local` is where our end is: if the
/// server sees us come from there, nothing is in between. If not, it may be a mere proxy: so another connection holds a
/// transaction open and it is seen whether the two share a session of the server, which only a pooler does.
pub(in crate::engine) async fn is_between(
    client: &Client,
    local: Option<SocketAddr>,
    config: &Config,
) -> Result<bool, ConnectError> {
    let ask = "SELECT pg_backend_pid(), inet_client_port(), host(inet_client_addr())";
    let row = client.query_typed_one(ask, &[]).await?;
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
        compared = share(client, &other.client, first) => compared,
        error = &mut driver => Err(error),
    }
}

/// Whether two connections come to the same session of the server. A pooler gives a transaction the session that was used
/// last; as others may be quicker, it is tried a few times.
async fn share(one: &Client, other: &Client, first: i32) -> Result<bool, ConnectError> {
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
