//! SIGHUP: users and certificates are read again. What cannot be used changes nothing.

use std::path::Path;

use palisade_server::Config;
use palisade_server::access::Users;
use palisade_server::tls::Tls;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Options;
use super::plan::Plan;
use crate::outcome::{self, Failure};

/// What can be changed while the service runs, and where it is read from.
pub(super) struct Reload<'a> {
    options: &'a Options,
    file: Option<&'a Path>,
    users: Option<Users>,
    tls: Option<Tls>,
    hangups: Signal,
}

impl<'a> Reload<'a> {
    pub(super) fn new(options: &'a Options, file: Option<&'a Path>, config: &Config) -> Result<Reload<'a>, Failure> {
        let hangups = signal(SignalKind::hangup())?;
        Ok(Reload { options, file, users: config.users.clone(), tls: config.tls.clone(), hangups })
    }

    /// Reads them whenever it is told to, for ever.
    pub(super) async fn whenever_told(mut self) {
        while self.hangups.recv().await.is_some() {
            match self.reload() {
                Ok(()) => outcome::say("read again: users and certificates are those of the configuration now"),
                Err(failure) => {
                    let why = failure.message().unwrap_or_default();
                    outcome::say(&format!("not read again, everything stays as it was: {why}"));
                }
            }
        }
        std::future::pending().await
    }

    fn reload(&self) -> Result<(), Failure> {
        let Config { users, tls, .. } = Plan::make(self.options, self.file)?.config;
        if users.is_some() != self.users.is_some() || tls.is_some() != self.tls.is_some() {
            let why = "to begin or to end with users or TLS, start the service again";
            return Err(Failure::Misuse(why.to_owned()));
        }
        if let (Some(before), Some(after)) = (&self.users, &users) {
            before.replace(after);
        }
        if let (Some(before), Some(after)) = (&self.tls, &tls) {
            before.replace(after);
        }
        Ok(())
    }
}
