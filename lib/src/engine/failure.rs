//! Why a call to an engine failed, and whether a retry helps.

use std::error::Error as StdError;

use palisade_core::Refusal;
use thiserror::Error;

/// The failure of a call.
#[derive(Debug, Error)]
pub enum Failure {
    /// The lock's state or kind does not allow it. Nothing has changed, and a retry fails too.
    #[error(transparent)]
    Refused(Refusal),
    /// The session of the call has ended, with all its grants and waits.
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

    /// Whether the call may have taken effect although it failed.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Failure::Unavailable(why) if why.may_have_taken_effect)
    }
}

impl Failure {
    /// Marks a failure as possibly applied, because an earlier attempt or step of the call may have taken effect. The end of the
    /// session has undone both.
    pub(crate) fn possibly_applied(self) -> Failure {
        match self {
            Failure::SessionEnded => self,
            Failure::Unavailable(why) => Unavailable { may_have_taken_effect: true, ..why }.into(),
            failure => {
                let marked = Unavailable::new(failure.to_string()).permanent();
                Unavailable { if_undone: Some(Box::new(failure)), ..marked }.into()
            }
        }
    }

    /// The failure of a call that was undone: it has certainly changed nothing.
    pub(crate) fn undone(self) -> Failure {
        match self {
            Failure::Unavailable(Unavailable { if_undone: Some(failure), .. }) => *failure,
            Failure::Unavailable(why) => why.without_effect().into(),
            failure => failure,
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
    /// The problem, and how to solve it.
    pub what: String,
    /// Whether the call may have taken effect although it failed. True unless the engine can rule it out.
    pub may_have_taken_effect: bool,
    /// Whether the same call may succeed later without a change by the operator.
    pub is_retryable: bool,
    /// The underlying error.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
    /// The refusal or denial behind it, which is what remains once the call is undone.
    pub(crate) if_undone: Option<Box<Failure>>,
}

impl Unavailable {
    /// A transient failure of a call that may have taken effect.
    pub fn new(what: impl Into<String>) -> Unavailable {
        let (source, if_undone) = (None, None);
        Unavailable { what: what.into(), may_have_taken_effect: true, is_retryable: true, source, if_undone }
    }

    /// Adds the underlying error.
    pub fn because(self, source: impl StdError + Send + Sync + 'static) -> Unavailable {
        Unavailable { source: Some(Box::new(source)), ..self }
    }

    /// Marks the call as one that has certainly changed nothing.
    pub fn without_effect(self) -> Unavailable {
        Unavailable { may_have_taken_effect: false, ..self }
    }

    /// Marks the failure as one that stays until the operator changes something.
    pub fn permanent(self) -> Unavailable {
        Unavailable { is_retryable: false, ..self }
    }
}

impl From<Unavailable> for Failure {
    fn from(unavailable: Unavailable) -> Failure {
        Failure::Unavailable(unavailable)
    }
}
