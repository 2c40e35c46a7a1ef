//! `palisade acquire`.

use std::io::{Write, stdout};
use std::time::Duration;

use palisade::engine::Guarantees;
use palisade::{Options, SessionId, Token};
use serde::Serialize;

use crate::acquire::{AcquireArgs, Verbosity};
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::{self, parse_ttl, shell_word};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  lease=$(palisade acquire deploy --ttl 10m) || exit
  eval \"$lease\"         # sets PALISADE_LOCK, _TOKEN, _SESSION and _URL
  ./step-one.sh
  palisade renew        # another 10 minutes; fails if the lock was lost
  ./step-two.sh
  palisade release

No process renews such a lock: if a step takes longer than the TTL, another client can get it. `palisade run` keeps a \
lock for as long as a command runs, and ends the command if it cannot. Pass the token to the resource that you write to.";

/// The default TTL: no process renews the lock, so a whole step of a script must fit.
const TTL: Duration = Duration::from_secs(5 * 60);

/// The options of `palisade acquire`.
#[derive(Debug, clap::Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    args: AcquireArgs,

    /// How long the lock is held without being renewed [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Duration>,

    /// The holder's name that other clients see, before host and pid [default: palisade acquire]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Also print the signed token, for resources that verify it; needs a service that signs tokens
    #[arg(long)]
    signed: bool,

    /// Print one JSON object instead of lines for a shell
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Lease<'a> {
    schema: u32,
    locks: &'a [String],
    token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_token: Option<String>,
    session: SessionId,
    ttl_ms: u64,
    url: &'a str,
}

/// Acquires the lock and exits. Its session lives on until the TTL passes without a renewal.
pub(crate) async fn acquire(options: &Acquire, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Acquire { args, ttl, label, signed, json } = options;
    args.check(*signed)?;
    let ttl = ttl.or(settings.ttl).unwrap_or(TTL);
    let label = label.clone().or_else(|| settings.label.clone()).unwrap_or_else(|| "palisade acquire".to_owned());
    let label = text::label(label);
    let palisade = Options::new().ttl(ttl).label(&label).connect(&settings.url).await?;
    check_engine(palisade.guarantees())?;
    // From here on this process catches signals, and ends its session before it exits. While it connects, a signal ends it.
    let mut signals = Signals::listen()?;
    let held = args
        .acquire(&palisade, &mut signals, Verbosity { level: verbose, label: &label, url: &settings.url })
        .await?;
    let token = held.token()?;
    let signed_token = match signed {
        true => {
            let signed = tokio::select! {
                biased;
                signal = signals.stop_requested() => Err(Failure::Exit(signal.exit_code())),
                signed = held.signed(&args.names) => signed.map_err(Failure::from),
            };
            if signed.is_err() {
                // If the release fails, the session ends with this process or by its TTL.
                drop(held.release().await);
            }
            signed?
        }
        false => None,
    };
    // From here on the lock outlives this process, also when a later step fails.
    let session = palisade.detach().await?;
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let url = settings.redacted_url();
    let lease = Lease { schema: 1, locks: &args.names, token, signed_token, session, ttl_ms, url: &url };
    let interrupted = tokio::select! {
        biased;
        signal = signals.stop_requested() => Some(signal),
        () = std::future::ready(()) => None,
    };
    if let Some(signal) = interrupted {
        settings.connect().await?.detached_session(session).close().await?;
        return Err(Failure::Exit(signal.exit_code()));
    }
    let printed = if *json { text::print_json(&lease, &mut stdout()) } else { lease.for_shell(&mut stdout()) };
    if printed.is_err() {
        // The caller did not get the token, so it could not release the lock.
        settings.connect().await?.detached_session(session).close().await?;
    }
    Ok(printed?)
}

/// Refuses an engine on which the lock would end with this process.
fn check_engine(guarantees: &Guarantees) -> Result<(), Failure> {
    let Guarantees { engine, offers, .. } = guarantees;
    // In memory, a session can outlive its client, but not its process.
    if offers.detach && *engine != "memory" {
        return Ok(());
    }
    Err(Failure::Misuse(format!(
        "`palisade acquire` cannot be used on {engine}: its sessions do not outlive their process; use `palisade run`, or \
         another engine"
    )))
}

impl Lease<'_> {
    fn for_shell(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "export PALISADE_LOCK={}", shell_word(&self.locks.join("\n")))?;
        let token = self.token.map(|token| token.to_string());
        let signed_token = self.signed_token.as_deref().map(shell_word);
        for (name, value) in [("PALISADE_TOKEN", token), ("PALISADE_SIGNED_TOKEN", signed_token)] {
            match value {
                Some(value) => writeln!(out, "export {name}={value}")?,
                // An earlier lock has left its own in this shell.
                None if std::env::var_os(name).is_some() => writeln!(out, "unset {name}")?,
                None => {}
            }
        }
        writeln!(out, "export PALISADE_SESSION={}", self.session)?;
        writeln!(out, "export PALISADE_URL={}", shell_word(self.url))
    }
}
