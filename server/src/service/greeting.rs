//! Who a client is, and what it may do.

use std::time::Duration;

use palisade_core::{Label, Limit, Refusal};

use super::connection::Connection;
use super::line::Who;
use super::permission::{self, Denial};
use super::state::refused;
use crate::resp::{Reply, Request};
use crate::storage::disk::Disk;

/// Whoever guesses has to wait so long for each guess, on its own line only.
const AFTER_A_GUESS: Duration = Duration::from_millis(500);
/// So many guesses are heard on one line.
const GUESSES: u32 = 8;

pub(super) fn no_auth() -> Reply {
    Reply::Error("NOAUTH", "say who you are first: AUTH user secret, or HELLO 3 AUTH user secret".to_owned())
}

impl<D: Disk> Connection<D> {
    /// Whether the client may ask for this; otherwise what it is told.
    pub(super) fn permit(&self, request: &Request) -> Result<(), Reply> {
        let state = self.service.state.borrow();
        let machine = state.replica.machine();
        let denial = match self.line.who() {
            Who::Anyone => None,
            Who::Stranger if is_greeting(request) => None,
            Who::Stranger => return Err(no_auth()),
            Who::User(user) => permission::check(&user, request, machine).err().map(|denial| (user, denial)),
        };
        match denial {
            Some((_, Denial::Refused(refusal))) => Err(refused(&refusal, &self.line)),
            Some((user, denial)) => {
                let why = denial.message(&user);
                self.audit.denied(user.name(), &why);
                Err(Reply::Error("DENIED", why))
            }
            None => match permission::oversize(request, machine.limits()) {
                Some(refusal) => Err(refused(&refusal, &self.line)),
                None => Ok(()),
            },
        }
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
        let found = users.with_secret(name, secret);
        match (found, self.line.who()) {
            (Some(user), Who::User(before)) if user.name() != before.name() => {
                let why = format!("this connection is that of user '{}'; open another one", before.name());
                Err(Reply::Error("DENIED", why))
            }
            (Some(user), _) => {
                self.audit.let_in(user.name(), "with its secret");
                self.line.set_who(Who::User(user));
                self.be_known();
                Ok(())
            }
            (None, _) => {
                self.audit.not_let_in(name);
                self.failed_logins += 1;
                self.is_over = self.failed_logins >= GUESSES;
                tokio::time::sleep(AFTER_A_GUESS).await;
                Err(Reply::Error("WRONGPASS", "there is no such user with such a secret".to_owned()))
            }
        }
    }

    /// What others see as the holder: who it is, as the service knows, and then what it says.
    pub(super) fn label(&self, said: Option<&Label>) -> Label {
        let text = said.map_or(self.peer.as_str(), Label::as_str);
        match self.line.who() {
            Who::User(user) => Label::new(&user.label(text)),
            Who::Anyone | Who::Stranger => Label::new(text),
        }
    }

    pub(super) fn user_name(&self) -> String {
        match self.line.who() {
            Who::User(user) => user.name().to_owned(),
            Who::Anyone | Who::Stranger => String::new(),
        }
    }

    /// Whether the client may open one more session; it is then on its way.
    pub(super) fn begin_session(&self) -> Result<(), Reply> {
        let Who::User(user) = self.line.who() else { return Ok(()) };
        let opening = self.service.state.borrow_mut().owners.open(user.name());
        opening.map_err(|bound| {
            let max = bound as u64;
            refused(&Refusal::OverLimit { limit: Limit::Sessions, max, value: max + 1 }, &self.line)
        })
    }
}

fn is_greeting(request: &Request) -> bool {
    matches!(request, Request::Hello { .. } | Request::Auth { .. } | Request::Ping { .. } | Request::Quit)
}
