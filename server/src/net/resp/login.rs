//! Login on a RESP connection, and the commands that are allowed before it.

use std::sync::Arc;

use super::connection::Connection;
use super::listener::too_many_connections;
use super::{Command, Reply};
use crate::net::connection_limit::TooManyConnections;
use crate::net::login::{LoginError, MAX_WRONG_SECRETS, WRONG_SECRET_DELAY, log_in};
use crate::node::{Input, Principal};

pub(super) fn no_auth() -> Reply {
    Reply::Error("NOAUTH", "authenticate first: AUTH user secret, or HELLO 3 AUTH user secret".to_owned())
}

impl Connection {
    /// Returns whether the client may send this command. Before the login only a few are allowed.
    pub(super) fn may_send(&self, command: &Command) -> bool {
        let is_login =
            matches!(command, Command::Hello { .. } | Command::Auth { .. } | Command::Ping { .. } | Command::Quit);
        is_login || self.writer.is_authenticated()
    }

    /// Returns whether an unauthenticated client may see why its command is invalid.
    pub(super) fn may_see_parse_error(&self, first: Option<&&[u8]>) -> bool {
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
                let limited = self.permit.set_authenticated(Some(user.name()));
                let (name, principal) = (user.name().to_owned(), Principal::User(user));
                if let Err(TooManyConnections(most)) = limited {
                    self.is_over = true;
                    return Err(too_many_connections(&principal, most));
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
                self.is_over = self.failed_logins >= MAX_WRONG_SECRETS;
                tokio::time::sleep(WRONG_SECRET_DELAY).await;
                Err(Reply::Error("WRONGPASS", "there is no such user with such a secret".to_owned()))
            }
        }
    }
}
