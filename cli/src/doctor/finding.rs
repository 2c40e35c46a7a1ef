//! The result of one check.

use serde::Serialize;

/// The result of one check, with advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The name of the check. Programs rely on it, so it never changes.
    pub(super) check: &'static str,
    pub(super) status: Status,
    /// The observation.
    pub(super) says: String,
    /// What to do about it.
    pub(super) advice: Option<String>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Status {
    /// No problem.
    Ok,
    /// The engine works, but something threatens a promise, or soon will.
    Warning,
    /// The engine cannot be used, or a promise is broken.
    Failure,
}

impl Finding {
    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Finding {
        Finding { check, status: Status::Ok, says: says.into(), advice: None }
    }

    pub(super) fn warning(check: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, status: Status::Warning, says: says.into(), advice: Some(advice.into()) }
    }

    /// `advice` is `None` if `says` is an error message that already has the advice.
    pub(super) fn failure(
        check: &'static str,
        says: impl Into<String>,
        advice: impl Into<Option<String>>,
    ) -> Finding {
        Finding { check, status: Status::Failure, says: says.into(), advice: advice.into() }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.status == Status::Failure
    }
}
