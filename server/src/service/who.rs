//! Who asks, over either protocol: how it is let in, what it is called, and what it is told when it may not.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Label, Refusal};

use super::audit::{Audit, Origin, Protocol};
use crate::access::{User, Users, Verb, owner};

/// Whoever guesses has to wait so long for each guess, on its own connection only.
pub(crate) const AFTER_A_GUESS: Duration = Duration::from_millis(500);
/// So many guesses are heard on one connection.
pub(crate) const GUESSES: u32 = 8;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) enum Who {
    /// It does not matter: there are no users.
    Anyone,
    /// One that has not yet said who it is.
    Stranger,
    /// A user.
    User(Arc<User>),
}

impl Who {
    pub(crate) fn user(&self) -> Option<&User> {
        match self {
            Who::Anyone | Who::Stranger => None,
            Who::User(user) => Some(user),
        }
    }

    /// Whether it was a user and has to say anew who it is.
    pub(super) fn is_gone(&self) -> bool {
        self.user().is_some_and(User::is_gone)
    }

    /// Whether it may be shown this lock.
    pub(super) fn sees(&self, lock: &str) -> bool {
        match self {
            Who::Anyone => true,
            Who::Stranger => false,
            Who::User(user) => user.may(Verb::Observe, lock),
        }
    }

    /// What others see as the holder: who it is, as the service knows, and then what it says, or where it comes from.
    pub(super) fn label(&self, said: Option<&Label>, peer: &str) -> Label {
        let text = said.map_or(peer, Label::as_str);
        match self {
            Who::User(user) => Label::new(&user.label(text)),
            // What looks like a user's must not become that user's when there are users one day.
            Who::Anyone | Who::Stranger => match owner(text) {
                Some(_) => Label::new(&text.replacen(": ", " : ", 1)),
                None => Label::new(text),
            },
        }
    }
}

/// Why something is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A right is missing, or it is another's.
    Denied(String),
    /// The rules refuse it.
    Refusal(Refusal),
    /// Nothing is signed here.
    NotSigning,
    /// A bound would be exceeded.
    OverBound(String),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Refusal(refusal)
    }
}

/// What is said where nothing is signed.
pub(crate) const NOT_SIGNING: &str =
    "this service signs no tokens; start it with --sign, or set sign = true under [serve]";

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotLetIn {
    /// There is no such user, or it has another secret. Nobody is told which.
    WrongSecret,
    /// The connection is another user's.
    NotYours(String),
}

/// The user who shows its secret, on a connection that may be a user's already.
pub(crate) fn log_in(
    users: &Users,
    before: Option<&User>,
    name: &[u8],
    secret: &[u8],
    audit: &Audit,
) -> Result<Arc<User>, NotLetIn> {
    let Some(user) = users.with_secret(name, secret) else {
        audit.not_let_in(name);
        return Err(NotLetIn::WrongSecret);
    };
    match before {
        Some(before) if before.name() != user.name() => {
            let why = format!("this connection is that of user '{}'; open another one", before.name());
            audit.denied(user.name(), &why);
            Err(NotLetIn::NotYours(why))
        }
        _ => {
            audit.let_in(user.name(), "with its secret");
            Ok(user)
        }
    }
}

/// Who asks from afar.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) who: Who,
    /// Where it comes from.
    pub(crate) peer: Arc<str>,
    pub(crate) audit: Arc<Audit>,
}

impl Asker {
    pub(super) fn label(&self, said: Option<&Label>) -> Label {
        self.who.label(said, &self.peer)
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { protocol: Protocol::Http, audit: self.audit.clone() }
    }
}
