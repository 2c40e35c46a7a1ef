//! Logging in with a secret, over either protocol.

use std::sync::Arc;
use std::time::Duration;

use super::audit::Audit;
use crate::access::{User, Users};

/// How long the reply to a wrong secret is delayed, on that connection only. Slows down guessing.
pub(crate) const WRONG_SECRET_DELAY: Duration = Duration::from_millis(500);
/// How many wrong secrets a connection may send before it is closed.
pub(crate) const MAX_WRONG_SECRETS: u32 = 8;

/// Why a client is not logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// The user does not exist, or has another secret. The client does not learn which.
    WrongSecret,
    /// The connection belongs to another user.
    OtherUser(String),
}

/// Finds the user with this name and secret. `before` is the user that the connection already has.
pub(crate) fn log_in(
    users: &Users,
    before: Option<&User>,
    name: &[u8],
    secret: &[u8],
    audit: &Audit,
) -> Result<Arc<User>, LoginError> {
    let Some(user) = users.with_secret(name, secret) else {
        audit.login_failed(name);
        return Err(LoginError::WrongSecret);
    };
    match before {
        Some(before) if before.name() != user.name() => {
            let why = format!("this connection is that of user '{}'; open another one", before.name());
            audit.denied(user.name(), &why);
            Err(LoginError::OtherUser(why))
        }
        _ => {
            audit.logged_in(user.name(), "with its secret");
            Ok(user)
        }
    }
}
