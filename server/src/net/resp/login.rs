//! Logging in on a RESP connection, and what a client may send before.

use std::sync::Arc;

use super::connection::Connection;
use super::listener::too_many;
use super::{Command, Reply};
use crate::net::connection_limit::TooMany;
use crate::net::login::{GUESS_DELAY, GUESSES, LoginError, log_in};
use crate::node::{Input, Principal};

pub(super) fn no_auth() -> Reply {
    Reply::Error("NOAUTH", "authenticate first: AUTH user secret, or HELLO 3 AUTH user secret".to_owned())
}

impl Connection {
    /// Whether the client may send this command: before it has logged in, only the commands for that.
    pub(super) fn may_send(&self, command: &Command) -> bool {
        let is_login =
            matches!(command, Command::Hello { .. } | Command::Auth { .. } | Command::Ping { .. } | Command::Quit);
        is_login || self.writer.is_authenticated()
    }

    /// Whether the client may be told what is wrong with a command that begins like this.
    pub(super) fn may_be_told(&self, first: Option<&&[u8]>) -> bool {
        let logins: [&[u8]; 4] = [b"AUTH", b"HELLO", b"PING", b"QUIT"];
        self.writer.is_authenticated()
            || first.is_some_and(|word| logins.iter().any(|login| word.eq_ignore_ascii_case(login)))
    }

    /// Logs the client in. A wrong secret is answered after a delay.
    pub(super) async fn log_in(&mut self, name: &[u8], secret: &[u8]) -> Result<(), Reply> {
        let Some(users) = &self.server.users else {
            return Err(Reply::Error("BADARG", "no users are configured here: leave AUTH out".to_owned()));
        };
        let before = self.writer.principal();
        match log_in(users, before.user(), name, secret, &self.writer.audit()) {
            Ok(user) => {
                let known = self.counted.be_known(Some(user.name()));
                let (name, principal) = (user.name().to_owned(), Principal::User(user));
                if let Err(TooMany(most)) = known {
                    self.is_over = true;
                    return Err(too_many(&principal, most));
                }
                let audit = self.writer.audit().of_user(&name, self.server.limiters.of_user(&name));
                let account = self.server.unread.account(Some(&name));
                self.writer.set_principal(principal.clone(), Arc::new(audit), &account);
                self.server.step(Input::Authenticated { connection: self.id, principal });
                Ok(())
            }
            Err(LoginError::OtherUser(why)) => Err(Reply::Error("DENIED", why)),
            Err(LoginError::WrongSecret) => {
                self.failed_logins += 1;
                self.is_over = self.failed_logins >= GUESSES;
                tokio::time::sleep(GUESS_DELAY).await;
                Err(Reply::Error("WRONGPASS", "there is no such user with such a secret".to_owned()))
            }
        }
    }
}
