//! `palisade page`: the live page of any engine, on a loopback port.

use std::io::{self, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, unfold};
use palisade::engine::{HolderInfo, LockInfo, Watched};
use palisade::{Error, LockName, Palisade, Token};
use palisade_server::access::Secret;
use palisade_server::page::{
    Board, Broken, Changes, Counters, Ended, Holder, Lock, Member, Source, Standalone, Waiter, WatchedItem,
    serve_page, text,
};
use tempfile::NamedTempFile;
use tokio::net::TcpListener;

use crate::force::recorded_name;
use crate::outcome::{Failure, say};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::shell_word;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade page
  palisade --url postgres://app@db/app page --port 8080
  palisade page --allow-break --no-open

The address has a key, so that other users of this host cannot open the page. Ends with Ctrl-C. `palisade serve` \
offers the same page on its HTTP port.";

/// The options of `palisade page`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The port on this host [default: any free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Let the page take locks away from their holders
    #[arg(long)]
    allow_break: bool,

    /// Print the address, and do not open a browser
    #[arg(long)]
    no_open: bool,
}

/// Serves the page until a signal arrives.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let palisade = settings.connect_as(recorded_name(settings.label.as_ref())).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::IoMessage(format!("cannot listen at {address}: {error}; choose another --port")))?;
    let key = Secret::random()?.reveal().to_owned();
    let url = format!("http://{}/?key={key}", listener.local_addr()?);
    let place = settings.redacted_url();
    let about = Standalone {
        engine: palisade.guarantees().engine.to_owned(),
        command: format!("palisade --url {}", shell_word(&place)),
        place,
        may_break: options.allow_break,
        key,
    };
    let _link = announce(&url, options)?;
    let board = Board::new(Arc::new(ClientSource(palisade)));
    tokio::select! {
        end = signals.stop_requested() => Err(Failure::Exit(end.exit_code())),
        () = board.clone().run() => Ok(()),
        served = serve_page(listener, board, about) => served.map_err(Failure::Io),
    }
}

/// Prints the address, and opens a browser. The browser gets the address from a file that is returned: other users can read the
/// arguments of a command, and the address has the key.
fn announce(url: &str, options: &Options) -> io::Result<Option<NamedTempFile>> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{url}")?;
    out.flush()?;
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if options.no_open || !has_display || !io::stdout().is_terminal() {
        return Ok(None);
    }
    let mut link = tempfile::Builder::new().prefix("palisade-page-").suffix(".html").tempfile()?;
    writeln!(link, "<!doctype html><title>Palisade</title><meta http-equiv=refresh content='0;url={url}'>")?;
    let mut open = Command::new("xdg-open");
    open.arg(link.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if open.spawn().is_err() {
        say("no browser was found; open the address yourself");
    }
    Ok(Some(link))
}

/// A client of any engine.
struct ClientSource(Palisade);

fn plain(error: Error) -> String {
    error.to_string()
}

impl Source for ClientSource {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Lock>, String>> {
        Box::pin(async { Ok(self.0.list("").await.map_err(plain)?.into_iter().map(lock).collect()) })
    }

    fn lock(&self, name: LockName) -> BoxFuture<'_, Result<Option<Lock>, String>> {
        Box::pin(async move { Ok(self.0.inspect(name.as_str()).await.map_err(plain)?.map(lock)) })
    }

    fn watch(&self) -> BoxFuture<'_, Result<Changes, String>> {
        Box::pin(async {
            let watch = self.0.watch("").await.map_err(plain)?;
            let items = unfold(watch, async |mut watch| {
                let item = match watch.next().await? {
                    Watched::Event(event) => WatchedItem::Event(Arc::new(event)),
                    Watched::Missed => WatchedItem::Missed,
                };
                Some((item, watch))
            });
            Ok(items.boxed())
        })
    }

    fn counters(&self) -> BoxFuture<'_, Option<Counters>> {
        Box::pin(async { None })
    }

    fn members(&self) -> BoxFuture<'_, Option<Vec<Member>>> {
        Box::pin(async { None })
    }

    fn take_away(
        &self,
        name: LockName,
        only: Option<Token>,
        reason: String,
    ) -> BoxFuture<'_, Result<Broken, String>> {
        Box::pin(async move {
            let forced = match only {
                Some(token) => self.0.force_release_only(name.as_str(), token, &reason).await,
                None => self.0.force_release(name.as_str(), &reason).await,
            };
            forced.map(|forced| Broken { grants: forced.grants, moved_to: forced.moved_to.get() }).map_err(plain)
        })
    }
}

fn lock(info: LockInfo) -> Lock {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    Lock {
        name: info.name.as_str().to_owned(),
        limit: info.limit,
        holder_count: count(info.holders.len()),
        waiter_count: count(info.waiters.len()),
        holders: info.holders.into_iter().map(holder).collect(),
        waiters: info
            .waiters
            .into_iter()
            .map(|waiter| Waiter::new(waiter.session.get(), waiter.label, waiter.mode))
            .collect(),
        cursor: 0,
        value: info.value.as_ref().map(text),
        history: info
            .history
            .into_iter()
            .map(|ended| Ended {
                token: ended.token.get(),
                session: ended.session.get(),
                label: ended.label,
                how: ended.how,
            })
            .collect(),
    }
}

fn holder(info: HolderInfo) -> Holder {
    Holder {
        session: info.session.map(palisade::SessionId::get),
        label: info.label,
        held_for_ms: info.held_for_ms,
        time_left_ms: info.time_left_ms,
        ..Holder::new(info.token.get(), info.mode)
    }
}
