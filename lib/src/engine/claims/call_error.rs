//! Why a call to a store of claims failed.

use crate::engine::Failure;
use crate::engine::remote::ConnectError;

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// The session does not exist. Nothing has changed.
    SessionEnded,
    Failed {
        /// The error, with the store's name.
        error: ConnectError,
        may_have_taken_effect: bool,
    },
}

impl CallError {
    /// The failure of a call that has changed nothing.
    pub(crate) fn unaffected(error: ConnectError) -> CallError {
        CallError::Failed { error, may_have_taken_effect: false }
    }
}

impl From<CallError> for Failure {
    fn from(failed: CallError) -> Failure {
        match failed {
            CallError::SessionEnded => Failure::SessionEnded,
            CallError::Failed { error, may_have_taken_effect } => error.failure(may_have_taken_effect),
        }
    }
}

impl From<CallError> for ConnectError {
    fn from(failed: CallError) -> ConnectError {
        match failed {
            CallError::SessionEnded => ConnectError::transient("a session ended"),
            CallError::Failed { error, .. } => error,
        }
    }
}
