//! The identity behind a request, and where the request comes from.

use std::net::IpAddr;
use std::sync::Arc;

use palisade_core::Label;
use serde::{Deserialize, Serialize};

use crate::access::{User, Verb, owner};

/// An authenticated identity, or the lack of one.
#[derive(Debug, Clone)]
pub enum Principal {
    /// The service has no users: every client may do everything.
    Anyone,
    /// The service has users, and this client has not logged in.
    Unauthenticated,
    /// A user that has logged in.
    User(Arc<User>),
}

impl Principal {
    /// Returns the user, if there is one.
    pub fn user(&self) -> Option<&User> {
        match self {
            Principal::Anyone | Principal::Unauthenticated => None,
            Principal::User(user) => Some(user),
        }
    }

    /// Returns the user's name, if there is one.
    pub fn user_name(&self) -> Option<&str> {
        self.user().map(User::name)
    }

    /// Returns whether the user was changed or removed since it logged in. It must log in again.
    pub fn is_revoked(&self) -> bool {
        self.user().is_some_and(User::is_revoked)
    }

    /// Returns whether this principal may see this lock.
    pub fn sees(&self, lock: &str) -> bool {
        match self {
            Principal::Anyone => true,
            Principal::Unauthenticated => false,
            Principal::User(user) => !user.is_revoked() && user.may(Verb::Observe, lock),
        }
    }

    /// Returns the label of a session: the user's name, then the client's label or its address.
    pub fn label(&self, own: Option<&Label>, peer: &str) -> Label {
        let text = own.map_or(peer, Label::as_str);
        match self {
            Principal::User(user) => Label::new(&user.label(text)),
            // A label that looks like a user's must not become that user's when users are configured later.
            Principal::Anyone | Principal::Unauthenticated => match owner(text) {
                Some(_) => Label::new(&text.replacen(": ", " : ", 1)),
                None => Label::new(text),
            },
        }
    }
}

/// The protocol of a request. Nodes send it to each other, so the order of the variants stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Protocol {
    Resp,
    Http,
}

impl Protocol {
    /// Returns its name in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Resp => "resp",
            Protocol::Http => "http",
        }
    }
}

/// The client of a request.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct RequestContext {
    pub principal: Principal,
    pub protocol: Protocol,
    /// The client's address and port, as text.
    pub peer: Arc<str>,
    pub address: IpAddr,
}

impl RequestContext {
    pub(super) fn label(&self, own: Option<&Label>) -> Label {
        self.principal.label(own, &self.peer)
    }
}
