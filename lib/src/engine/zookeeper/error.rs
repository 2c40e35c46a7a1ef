//! The driver's errors: permanent or transient, and whether the call may have taken effect.

use zookeeper_client::Error;

use crate::engine::remote::{ConnectError, Peer};
use crate::engine::{Failure, Unavailable};

/// An error, and the node that it is about, as far as that is known.
#[derive(Debug)]
pub(super) struct NodeError {
    pub(super) error: Error,
    pub(super) path: Option<String>,
}

impl NodeError {
    pub(super) fn at(path: &str) -> impl FnOnce(Error) -> NodeError {
        |error| NodeError { error, path: Some(path.to_owned()) }
    }
}

impl From<Error> for NodeError {
    fn from(error: Error) -> NodeError {
        NodeError { error, path: None }
    }
}

/// Returns the failure of a call in a session.
pub(super) fn in_session(peer: &Peer, error: impl Into<NodeError>) -> Failure {
    match error.into() {
        NodeError { error: Error::SessionExpired | Error::ClientClosed, .. } => Failure::SessionEnded,
        error => outside(peer, error),
    }
}

/// Returns the failure of a call that belongs to no session.
pub(super) fn outside(peer: &Peer, error: impl Into<NodeError>) -> Failure {
    let error = error.into();
    let may_have_taken_effect = may_have_taken_effect(&error.error);
    connect_error(error).at(peer).failure(may_have_taken_effect)
}

fn may_have_taken_effect(error: &Error) -> bool {
    !matches!(
        error,
        Error::NoHosts
            | Error::BadArguments(_)
            | Error::NoNode
            | Error::NoAuth
            | Error::BadVersion
            | Error::NoChildrenForEphemerals
            | Error::NodeExists
            | Error::NotEmpty
            | Error::InvalidAcl
            | Error::AuthFailed
            | Error::NotReadOnly
            | Error::QuotaExceeded
            | Error::Throttled
            | Error::Unimplemented
    )
}

/// Classifies an error of the server or of the driver.
pub(super) fn connect_error(error: impl Into<NodeError>) -> ConnectError {
    let NodeError { error, path } = error.into();
    let node = path.map(|path| format!(" at the node '{}'", path.escape_debug())).unwrap_or_default();
    let classified = match &error {
        Error::NoAuth | Error::InvalidAcl => ConnectError::denied(format!(
            "{error}{node}; connect with the user that created the nodes, or give this one the rights to read, write, create \
             and delete below the path"
        )),
        Error::AuthFailed => ConnectError::denied(format!(
            "it does not let this client in: {error}; connect with a user and a secret that it accepts"
        )),
        Error::NoHosts | Error::Timeout => {
            ConnectError::transient("cannot be reached. Is it running, and are the addresses right?")
        }
        Error::ConnectionLoss => ConnectError::closed(),
        Error::SessionExpired | Error::ClientClosed => {
            ConnectError::transient("the connection's session has expired")
        }
        Error::NotReadOnly => ConnectError::transient("the server has no contact with a majority"),
        Error::Unimplemented => {
            ConnectError::permanent(format!("it is too old; ZooKeeper 3.6 or newer is needed ({error})"))
        }
        Error::BadArguments(_) | Error::NoChildrenForEphemerals => ConnectError::permanent(error.to_string()),
        _ => ConnectError::transient(error.to_string()),
    };
    classified.because(error)
}

/// The failure of a client whose namespace was deleted.
pub(super) fn no_namespace(peer: &Peer, root: &str) -> Failure {
    let what = format!(
        "{peer}: nodes below {root} were deleted while this client used them. Other clients may hold its locks. Check the \
         protected data, then connect again; if tokens were raised, raise them again first"
    );
    Unavailable::new(what).without_effect().permanent().into()
}
