//! The grant to renew or release, from the options or from the variables that `acquire` prints for the shell.

use palisade::engine::{HolderInfo, LockInfo};
use palisade::{Palisade, SessionId, Token};

use crate::acquire::WITHHELD;
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::text::{parse_token, plain};

/// The session of the `palisade run` that this process was started by.
pub(crate) const RUN_SESSION: &str = "PALISADE_RUN_SESSION";

/// Refuses the lock of the `palisade run` that this process was started by: its command would go on without the lock.
fn refuse_of_run(names: &[String], session: SessionId) -> Result<(), Failure> {
    if std::env::var(RUN_SESSION).is_ok_and(|its| its == session.to_string()) {
        let message = format!(
            "{} is held by the `palisade run` that this command is part of, which renews it and releases it when the command \
             has ended",
            quoted(names)
        );
        return Err(Failure::Misuse(message));
    }
    Ok(())
}

/// The options that identify a grant.
#[derive(Debug, clap::Args)]
pub(super) struct GrantArgs {
    /// The lock
    #[arg(value_name = "NAME", env = "PALISADE_LOCK", hide_env_values = true)]
    name: Option<String>,

    /// The token it is held with
    #[arg(long, value_name = "TOKEN", env = "PALISADE_TOKEN", hide_env_values = true, value_parser = parse_token)]
    token: Option<Token>,

    /// The session that holds it
    #[arg(long, value_name = "SESSION", env = "PALISADE_SESSION", hide_env_values = true, value_parser = parse_session)]
    session: Option<SessionId>,
}

/// A grant that is held.
#[derive(Debug)]
pub(super) struct Grant {
    /// The locks that the options name, at least one. Locks acquired together have one grant, so looking up the first is enough.
    pub(super) names: Vec<String>,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

fn parse_session(text: &str) -> Result<SessionId, String> {
    let number = text.parse().map_err(|_| format!("'{}' is not a session", text.escape_debug()))?;
    SessionId::new(number).map_err(|bad| bad.to_string())
}

impl GrantArgs {
    /// Connects and returns the grant if it is still held. Does not create a missing `embedded:` database.
    pub(super) async fn find(&self, settings: &Settings) -> Result<(Palisade, Grant), Failure> {
        let names = self.names()?;
        let lock = &names[0];
        if settings.embedded_file().is_some_and(|file| !file.exists()) {
            return Err(Failure::Lost(self.not_held(&names, None)));
        }
        let palisade = settings.connect().await?;
        let info = palisade.inspect(lock).await?;
        let holder = info.as_ref().and_then(|info| info.holders.iter().find(|holder| self.is_selected(holder)));
        match holder.and_then(|holder| Some((holder.token, holder.session?))) {
            Some((token, session)) => {
                refuse_of_run(&names, session)?;
                Ok((palisade, Grant { names, token, session }))
            }
            None => Err(Failure::Lost(self.not_held(&names, info.as_ref()))),
        }
    }

    /// Returns the named locks, at least one. Fails if none is named, or neither a token nor a session.
    fn names(&self) -> Result<Vec<String>, Failure> {
        // Several locks are separated by newlines, as in PALISADE_LOCK.
        let Some(names) = &self.name else {
            let message = "say which lock, as `palisade acquire` printed it: a name and --token, or set PALISADE_LOCK \
                           and PALISADE_TOKEN";
            return Err(Failure::Misuse(message.to_owned()));
        };
        if self.token.is_none() && self.session.is_none() {
            let names = plain(names);
            let message = format!("say with which --token '{names}' is held, as `palisade acquire` printed it");
            return Err(Failure::Misuse(message));
        }
        // Not `lines()`: an empty text has to stay one empty name, which the engine refuses.
        Ok(names.split('\n').map(str::to_owned).collect())
    }

    fn is_selected(&self, holder: &HolderInfo) -> bool {
        self.token.is_none_or(|token| token == holder.token)
            && self.session.is_none_or(|session| holder.session == Some(session))
    }

    fn not_held(&self, names: &[String], info: Option<&LockInfo>) -> String {
        let grant = match (self.token, self.session) {
            (Some(token), Some(session)) => format!("token {token} by session {session}"),
            (Some(token), None) => format!("token {token}"),
            (None, Some(session)) => format!("session {session}"),
            (None, None) => "it".to_owned(),
        };
        let how_it_ended = info.and_then(|info| {
            let has_our_token = |past: &&palisade::engine::EndedInfo| Some(past.token) == self.token;
            Some(format!(": that grant ended ({})", plain(&info.history.iter().find(has_our_token)?.how)))
        });
        let first = plain(&names[0]);
        let now = match info.and_then(|info| info.holders.first()) {
            Some(holder) => {
                let label = holder.label.as_deref().map_or(WITHHELD.to_owned(), plain);
                format!("'{first}' is now held by {label} with token {}", holder.token)
            }
            None => format!("no session holds '{first}' now"),
        };
        format!("{} not held with {grant}{}; {now}", subject(names), how_it_ended.unwrap_or_default())
    }
}

/// Returns `'a' is`, or `'a', 'b' are`.
fn subject(names: &[String]) -> String {
    format!("{} {}", quoted(names), if names.len() == 1 { "is" } else { "are" })
}

/// Returns `'a', 'b'`.
pub(super) fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("'{}'", plain(name))).collect::<Vec<_>>().join(", ")
}
