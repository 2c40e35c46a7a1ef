//! `palisade release`.

use palisade::Palisade;
use palisade::engine::LockInfo;

use super::find::{Grant, GrantArgs, quoted};
use crate::outcome::{Failure, say};
use crate::settings::Settings;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade release               # by PALISADE_LOCK and PALISADE_TOKEN
  palisade release deploy --token 34

Several locks that were acquired together are released together.

Exit codes: 76 if the token no longer holds the lock: another holder may have worked at the same time.";

/// The options of `palisade release`.
#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    #[command(flatten)]
    grant: GrantArgs,
}

/// Releases a lock that is held.
pub(crate) async fn release(options: &Release, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let (palisade, grant) = options.grant.find(settings).await?;
    // Looked up first: the release ends the grant of all its locks.
    let names = if verbose > 0 { all_locks(&palisade, &grant).await } else { Vec::new() };
    let Grant { token, session, .. } = grant;
    palisade.detached_session(session).release(&grant.names[0], token).await?;
    if verbose > 0 {
        let were = if names.len() == 1 { "which was" } else { "which were" };
        say(&format!("released {}, {were} held with token {token}", quoted(&names)));
    }
    Ok(())
}

/// Returns all locks of the grant, or those that were named if the engine does not list them.
async fn all_locks(palisade: &Palisade, grant: &Grant) -> Vec<String> {
    let is_held = |lock: &LockInfo| {
        lock.holders.iter().any(|holder| holder.token == grant.token && holder.session == Some(grant.session))
    };
    let locks = palisade.list("").await.unwrap_or_default();
    let names: Vec<_> = locks.iter().filter(|lock| is_held(lock)).map(|lock| lock.name.to_string()).collect();
    if names.len() > grant.names.len() { names } else { grant.names.clone() }
}
