//! Why there is no line to a database, or not any more, or why a call on it has failed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::lines::InTheWay;
use super::{Failure, Unavailable};

/// What a driver says when something fails, and of which database.
pub(super) trait Driver: Error + Send + Sync + 'static {
    const DATABASE: &'static str;
}

/// What went wrong. It has many callers, so it can be cloned.
#[derive(Debug)]
pub(super) struct Trouble<E> {
    pub(super) what: String,
    pub(super) is_for_good: bool,
    pub(super) source: Option<Arc<E>>,
}

impl<E: Driver> Trouble<E> {
    /// Somebody has to do something about it.
    pub(super) fn for_good(what: String) -> Trouble<E> {
        Trouble { what, is_for_good: true, source: None }
    }

    /// It may go away by itself.
    pub(super) fn passing(what: String) -> Trouble<E> {
        Trouble { what, is_for_good: false, source: None }
    }

    /// What a call fails with that needed the line.
    pub(super) fn failure(&self, address: &str, may_have_taken_effect: bool) -> Failure {
        let mut why = Unavailable::new(format!("{} at {address}: {self}", E::DATABASE));
        if let Some(source) = &self.source {
            why = why.because(source.clone());
        }
        why.may_have_taken_effect = may_have_taken_effect;
        why.is_retryable = !self.is_for_good;
        why.into()
    }
}

impl<E> Clone for Trouble<E> {
    fn clone(&self) -> Trouble<E> {
        Trouble { what: self.what.clone(), is_for_good: self.is_for_good, source: self.source.clone() }
    }
}

impl<E> fmt::Display for Trouble<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl<E> InTheWay for Trouble<E> {
    fn is_for_good(&self) -> bool {
        self.is_for_good
    }
}
