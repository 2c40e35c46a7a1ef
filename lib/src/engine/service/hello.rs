//! The login at the beginning of a connection.

use redis_protocol::resp3::types::BytesFrame;

use super::Config;
use super::config::TLS;
use super::connection::{CALL_TIMEOUT, Connection};
use super::error::{NoReply, ReplyError, Unexpected};
use super::wire::{self, Command, field, number, small, text};
use crate::engine::remote::{ConnectError, Login, printable};

/// The reply to HELLO.
pub(super) struct Hello {
    /// Whether the node that has answered leads, or is the only one.
    pub(super) is_leader: bool,
    /// Whether another node has relayed it.
    pub(super) is_relayed: bool,
    /// The latest term of the node that has answered.
    pub(super) term: Option<u64>,
    /// The number of its cluster.
    pub(super) cluster: Option<String>,
    /// How many nodes the cluster has: 0 for a service of its own.
    pub(super) nodes: usize,
}

impl Hello {
    /// Returns whether it is a service of its own, and no node of a cluster.
    pub(super) fn is_alone(&self) -> bool {
        self.nodes == 0
    }

    /// Refuses a service of its own where the URL names the nodes of a cluster: a node whose directory was lost may have been started
    /// without its options.
    pub(super) fn check_is_node(&self, config: &Config) -> Result<(), ConnectError> {
        match self.is_alone() && config.addresses.len() > 1 {
            true => Err(ConnectError::transient(
                "it is a service of its own, and no node of the cluster that the URL names",
            )),
            false => Ok(()),
        }
    }
}

/// Sends HELLO with the login. The outer error is that of the login's file.
pub(super) fn hello<'a>(
    connection: &Connection,
    login: Option<&'a Login>,
) -> Result<impl Future<Output = Result<Hello, ConnectError>> + use<'a>, ConnectError> {
    let mut command = Command::new(&["HELLO", "3"]);
    if let Some(Login { user, secret }) = login {
        let secret = secret.reveal().map_err(|error| error.connect_error(&TLS))?;
        command = command.text("AUTH").text(user).text(&secret);
    }
    let reply = connection.request(&command, CALL_TIMEOUT);
    Ok(async move {
        let reply = received(reply.await).map_err(unanswered)?;
        let reply = wire::accepted(reply).map_err(|error| login_error(error, login))?;
        match field(&reply, "server").and_then(text) {
            Ok("palisade") => {}
            Ok(other) => return Err(not_palisade(format!("it calls itself '{}'", other.escape_debug()))),
            Err(Unexpected(what)) => return Err(not_palisade(format!("it sent {what}"))),
        }
        Ok(Hello {
            is_leader: field(&reply, "role").and_then(text).is_ok_and(|role| role == "master"),
            is_relayed: field(&reply, "relayed").and_then(number).is_ok_and(|relayed| relayed > 0),
            term: field(&reply, "term").and_then(number).ok(),
            cluster: field(&reply, "cluster").and_then(text).ok().map(str::to_owned),
            nodes: field(&reply, "nodes").and_then(small).unwrap_or(1) as usize,
        })
    })
}

/// Converts the failure of a call. The connection is broken then, and its driver returns the same reason.
pub(super) fn received(reply: Result<BytesFrame, NoReply>) -> Result<BytesFrame, ConnectError> {
    reply.map_err(|no_reply| no_reply.error)
}

/// Adds to the error of a server that did not answer a login what it may be.
pub(super) fn unanswered(error: ConnectError) -> ConnectError {
    match error.is_permanent() {
        true => error,
        false => {
            error.advising("Is this the port for clients? The nodes of a cluster have another one for each other")
        }
    }
}

fn not_palisade(what: String) -> ConnectError {
    ConnectError::permanent(format!("not a Palisade service: {what}"))
}

/// Explains why the service rejects HELLO.
fn login_error(error: ReplyError, login: Option<&Login>) -> ConnectError {
    let what = match (error, login) {
        (error @ ReplyError::TryLater(_), _) => return ConnectError::transient(error.to_string()),
        (ReplyError::Unauthenticated(_), None) => {
            "it requires a login; name the user in the URL, as in palisade://user@host:port, and pass the user's secret \
             in the environment variable PALISADE_SECRET or in a file with ?secret_file=FILE"
                .to_owned()
        }
        (ReplyError::Unauthenticated(_), Some(Login { user, .. })) => format!(
            "it has no user '{}' with this secret; check the user's name, and the secret in the URL, in \
             PALISADE_SECRET or in the secret_file",
            printable(user)
        ),
        (ReplyError::Denied(message), _) => printable(&message),
        (ReplyError::Invalid(message), Some(_)) if message.starts_with("BADARG no users") => {
            "it has no users; leave the user out of the URL".to_owned()
        }
        (error, _) => return not_palisade(format!("HELLO failed: {error}")),
    };
    ConnectError::denied(format!("login failed: {what}"))
}
