//! What a request comes to, over either protocol.

use palisade_core::{Caller, Command, Label, Waiting};

use super::state::Look;
use crate::resp::Request;

pub(super) enum Meaning {
    /// Something is to be changed at once.
    Change(Command),
    /// Something is to be looked at.
    Look(Look),
    /// It is answered in another way.
    Other(Request),
}

impl Meaning {
    /// `label` is what others see of whoever asks, given what it says of itself.
    pub(super) fn of(request: Request, label: impl FnOnce(Option<&Label>) -> Label) -> Meaning {
        let command = match request {
            Request::OpenSession { ttl, label: said } => Command::OpenSession { ttl, label: label(said.as_ref()) },
            Request::CloseSession { session } => Command::CloseSession { session },
            Request::Release { lock, token, session, number } => {
                Command::Release { caller: session.map(|session| Caller { session, number }), lock, token }
            }
            Request::Cancel { session, number } => {
                Command::Cancel { caller: session.into(), waiting: Waiting::Request(number) }
            }
            Request::Publish { session, lock, token, value } => {
                Command::Publish { caller: session.into(), lock, token, value }
            }
            Request::Break { lock, only, by, reason } => {
                Command::ForceRelease { lock, only, by: label(by.as_ref()), reason }
            }
            Request::Resize { lock, permits } => Command::Resize { lock, limit: permits },
            Request::RaiseTokens { above } => Command::RaiseTokens { above },
            Request::Show { lock, cursor, count } => return Meaning::Look(Look::Show { lock, cursor, count }),
            Request::List { prefix, cursor, count } => return Meaning::Look(Look::List { prefix, cursor, count }),
            Request::Observe { lock } => return Meaning::Look(Look::Leader(lock)),
            Request::Sign { lock, token, session } => return Meaning::Look(Look::Sign { lock, token, session }),
            other => return Meaning::Other(other),
        };
        Meaning::Change(command)
    }
}
