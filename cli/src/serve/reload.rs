//! Reads users, certificates and keys again on SIGHUP. If any of them cannot be used, nothing changes.

use std::path::Path;

use palisade_server::access::Users;
use palisade_server::sign::Signer;
use palisade_server::tls::Tls;
use palisade_server::{Config, PeerTls};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::plan::Plan;
use super::{Options, keys};
use crate::outcome::{self, Failure};

/// The settings that can change while the service runs, and their sources.
pub(super) struct Reload<'a> {
    options: &'a Options,
    file: Option<&'a Path>,
    users: Option<Users>,
    tls: Option<Tls>,
    peer_tls: Option<PeerTls>,
    signer: Option<Signer>,
    hangups: Signal,
}

impl<'a> Reload<'a> {
    pub(super) fn new(options: &'a Options, file: Option<&'a Path>, config: &Config) -> Result<Reload<'a>, Failure> {
        let hangups = signal(SignalKind::hangup())?;
        let Config { users, tls, signer, cluster, .. } = config.clone();
        let peer_tls = cluster.and_then(|cluster| cluster.tls);
        Ok(Reload { options, file, users, tls, peer_tls, signer, hangups })
    }

    /// Reloads on every SIGHUP. Never returns.
    pub(super) async fn run(mut self) {
        while self.hangups.recv().await.is_some() {
            match self.reload() {
                Ok(()) => outcome::say("read again: users, certificates and keys are those of the configuration now"),
                Err(failure) => {
                    let why = failure.message().unwrap_or_default();
                    outcome::say(&format!("not read again, everything stays as it was: {why}"));
                }
            }
        }
        std::future::pending().await
    }

    fn reload(&self) -> Result<(), Failure> {
        let Config { users, tls, signer, cluster, .. } = Plan::make(self.options, self.file)?.config;
        let peer_tls = cluster.and_then(|cluster| cluster.tls);
        let before = [self.users.is_some(), self.tls.is_some(), self.peer_tls.is_some(), self.signer.is_some()];
        if before != [users.is_some(), tls.is_some(), peer_tls.is_some(), signer.is_some()] {
            let why = "to turn users, TLS or signing on or off, restart the service";
            return Err(Failure::Misuse(why.to_owned()));
        }
        // First the step that may fail, so that a failure changes nothing.
        if let Some(signer) = &self.signer {
            signer.read().map_err(keys::misuse)?;
        }
        if let (Some(before), Some(after)) = (&self.users, &users) {
            before.replace(after);
        }
        if let (Some(before), Some(after)) = (&self.tls, &tls) {
            before.replace(after);
        }
        if let (Some(before), Some(after)) = (&self.peer_tls, &peer_tls) {
            before.replace(after);
        }
        Ok(())
    }
}
