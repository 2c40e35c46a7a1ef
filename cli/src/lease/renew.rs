//! `palisade renew`.

use palisade::{SessionId, Token};
use serde::Serialize;

use super::find::{Grant, GrantArgs, quoted};
use crate::outcome::{Failure, say, unless_closed};
use crate::settings::Settings;
use crate::text::{print_json, time_ms};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade renew                 # by PALISADE_LOCK and PALISADE_TOKEN
  palisade renew deploy --token 34

Exit codes: 76 if the token no longer holds the lock: stop, because another client may hold it now.";

/// The options of `palisade renew`.
#[derive(Debug, clap::Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    grant: GrantArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Renewed<'a> {
    schema: u32,
    locks: &'a [String],
    token: Token,
    session: SessionId,
    time_left_ms: Option<u64>,
}

/// Gives a lock that is held another TTL.
pub(crate) async fn renew(options: &Renew, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let (palisade, Grant { names, token, session }) = options.grant.find(settings).await?;
    palisade.detached_session(session).keep_alive().await?;
    // Only for the report: the renewal is done.
    let info = palisade.inspect(&names[0]).await?;
    let holder = info.as_ref().and_then(|info| info.holders.iter().find(|holder| holder.token == token));
    let time_left_ms = holder.and_then(|holder| holder.time_left_ms);
    if options.json {
        let renewed = Renewed { schema: 1, locks: &names, token, session, time_left_ms };
        unless_closed(print_json(&renewed, &mut std::io::stdout()))?;
    } else if verbose > 0 {
        // Some engines do not know the time.
        let time = time_left_ms.map(|left| format!(" for {}", time_ms(left)));
        let are = if names.len() == 1 { "which is" } else { "which are" };
        say(&format!("renewed {}{}, {are} held with token {token}", quoted(&names), time.unwrap_or_default()));
    }
    Ok(())
}
