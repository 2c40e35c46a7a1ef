//! Why a call to an engine failed, and whether a retry helps.

use std::error::Error as StdError;

use palisade_core::Refusal;
use thiserror::Error;

/// The failure of a call.
#[derive(Debug, Error)]
pub enum Failure {
    /// The rules refuse it. Nothing has changed, and a retry fails too.
    #[error(transparent)]
    Refused(Refusal),
    /// The session that asked has ended, and with it everything it had.
    #[error("the session has ended")]
    SessionEnded,
    /// The engine refuses this client's credentials or rights. Nothing has changed, and a retry fails until the operator
    /// changes them.
    #[error("{0}")]
    Denied(String),
    /// The engine could not be reached, or did not answer.
    #[error(transparent)]
    Unavailable(Unavailable),
}

impl Failure {
    /// Whether the same call may succeed later without a change by the operator.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Failure::Unavailable(why) if why.is_retryable)
    }

    /// Whether the call may have been carried out all the same.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Failure::Unavailable(why) if why.may_have_taken_effect)
    }
}

impl Failure {
    /// The same failure, for a call of which an earlier attempt may have taken effect.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "redlock", feature = "service"))]
    pub(crate) fn possibly_applied(self) -> Failure {
        match self {
            Failure::Unavailable(why) => Unavailable { may_have_taken_effect: true, ..why }.into(),
            failure => Unavailable::new(failure.to_string()).permanent().into(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::NoSuchSession { .. } => Failure::SessionEnded,
            refusal => Failure::Refused(refusal),
        }
    }
}

/// An engine that could not be reached, or did not answer.
#[derive(Debug, Error)]
#[error("{what}")]
pub struct Unavailable {
    /// What failed, and what to do about it.
    pub what: String,
    /// Whether the call may have been carried out all the same. *Yes* unless the engine knows better.
    pub may_have_taken_effect: bool,
    /// Whether the same call may succeed later without a change by the operator.
    pub is_retryable: bool,
    /// The underlying error.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Unavailable {
    /// A failure that may have taken effect and may pass.
    pub fn new(what: impl Into<String>) -> Unavailable {
        Unavailable { what: what.into(), may_have_taken_effect: true, is_retryable: true, source: None }
    }

    /// The same, with its underlying error.
    pub fn because(self, source: impl StdError + Send + Sync + 'static) -> Unavailable {
        Unavailable { source: Some(Box::new(source)), ..self }
    }

    /// The same, for a call that certainly changed nothing.
    pub fn without_effect(self) -> Unavailable {
        Unavailable { may_have_taken_effect: false, ..self }
    }

    /// The same, for a failure that stays until the operator changes something.
    pub fn permanent(self) -> Unavailable {
        Unavailable { is_retryable: false, ..self }
    }
}

impl From<Unavailable> for Failure {
    fn from(unavailable: Unavailable) -> Failure {
        Failure::Unavailable(unavailable)
    }
}
