//! `palisade release`.

use super::find::{Grant, GrantArgs};
use crate::outcome::{Failure, say};
use crate::settings::Settings;
use crate::text::plain;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade release                     # what PALISADE_LOCK and PALISADE_TOKEN say
  palisade release deploy --token 34

Exit codes: 76 if the token no longer holds the lock: another holder may have worked at the same time.";

/// The options of `palisade release`.
#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    #[command(flatten)]
    grant: GrantArgs,
}

/// Releases a lock that is held.
pub(crate) async fn release(options: &Release, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let (palisade, Grant { lock, token, session }) = options.grant.find(settings).await?;
    let left = palisade.left_session(session);
    left.release(&lock, token).await?;
    if verbose > 0 {
        say(&format!("released '{}', which was held with token {token}", plain(&lock)));
    }
    Ok(())
}
