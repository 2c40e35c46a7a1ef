//! Who a client on a line is, and what it is told before that is known.

use std::sync::Arc;

use palisade_core::Label;

use super::connection::Connection;
use super::connections::TooMany;
use super::door::too_many;
use super::permission;
use super::state::{not_done, refused};
use super::who::{self, AFTER_A_GUESS, GUESSES, NotLetIn, Who};
use crate::resp::{Reply, Request};
use crate::storage::disk::Disk;

pub(super) fn no_auth() -> Reply {
    Reply::Error("NOAUTH", "say who you are first: AUTH user secret, or HELLO 3 AUTH user secret".to_owned())
}

impl<D: Disk> Connection<D> {
    /// Whether the client may ask for this; otherwise what it is told.
    pub(super) fn permit(&self, request: &Request) -> Result<(), Reply> {
        let who = self.line.who();
        if matches!(who, Who::Stranger) && !is_greeting(request) {
            return Err(no_auth());
        }
        let state = self.service.state.borrow();
        let permitted = permission::permit(&who, request, state.replica.machine(), &self.line.audit());
        permitted.map_err(|why| not_done(&why, &self.line))
    }

    /// Whether the client may be told what is wrong with a command that begins so.
    pub(super) fn may_be_told(&self, first: Option<&&[u8]>) -> bool {
        let greetings: [&[u8]; 4] = [b"AUTH", b"HELLO", b"PING", b"QUIT"];
        !matches!(self.line.who(), Who::Stranger)
            || first.is_some_and(|word| greetings.iter().any(|greeting| word.eq_ignore_ascii_case(greeting)))
    }

    /// Makes the client a user; otherwise what it is told, after a while.
    pub(super) async fn log_in(&mut self, name: &[u8], secret: &[u8]) -> Result<(), Reply> {
        let Some(users) = &self.service.users else {
            return Err(Reply::Error("BADARG", "no users are configured here: leave AUTH out".to_owned()));
        };
        let before = self.line.who();
        match who::log_in(users, before.user(), name, secret, &self.line.audit()) {
            Ok(user) => {
                let known = self.counted.be_known(Some(user.name()));
                let (name, who) = (user.name().to_owned(), Who::User(user));
                if let Err(TooMany(most)) = known {
                    self.is_over = true;
                    return Err(too_many(&who, most));
                }
                let audit = self.line.audit().of_user(&name, self.service.paces.of_user(&name));
                self.line.set_who(who, Arc::new(audit), &self.service.unread.account(Some(&name)));
                Ok(())
            }
            Err(NotLetIn::NotYours(why)) => Err(Reply::Error("DENIED", why)),
            Err(NotLetIn::WrongSecret) => {
                self.failed_logins += 1;
                self.is_over = self.failed_logins >= GUESSES;
                tokio::time::sleep(AFTER_A_GUESS).await;
                Err(Reply::Error("WRONGPASS", "there is no such user with such a secret".to_owned()))
            }
        }
    }

    pub(super) fn label(&self, said: Option<&Label>) -> Label {
        self.line.who().label(said, self.line.audit().peer())
    }

    pub(super) fn user_name(&self) -> String {
        self.line.who().user().map_or_else(String::new, |user| user.name().to_owned())
    }

    /// Whether the client may open one more session; it is then on its way.
    pub(super) fn begin_session(&self) -> Result<(), Reply> {
        let Who::User(user) = self.line.who() else { return Ok(()) };
        let opening = self.service.state.borrow_mut().owners.open(user.name());
        opening.map_err(|refusal| refused(&refusal, &self.line))
    }
}

fn is_greeting(request: &Request) -> bool {
    matches!(request, Request::Hello { .. } | Request::Auth { .. } | Request::Ping { .. } | Request::Quit)
}
