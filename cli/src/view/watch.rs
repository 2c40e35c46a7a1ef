//! `palisade watch`: prints the events of locks as they happen.

use std::io::{self, IsTerminal, Write};
use std::thread;

use clap::builder::styling::Style;
use palisade::Palisade;
use palisade::engine::Watched;
use tokio::sync::{mpsc, oneshot};

use super::event_line::EventLine;
use super::labels::Labels;
use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::stop::stdout_closed;
use crate::text;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade watch
  palisade watch orders/
  palisade watch --json | jq 'select(.event == \"ended\" and .how != \"released\")'

The time of day is UTC. Ends with Ctrl-C, or when its output is closed.";

/// How many lines may wait for a slow reader of stdout. Beyond that, events wait in the watch, which drops them when full.
const MAX_QUEUED_LINES: usize = 64;

/// The options of `palisade watch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,

    /// Print JSON: one object per line, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

/// Prints every event until a signal arrives or stdout is closed.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let palisade = settings.connect().await?;
    let (lines, written) = printer();
    tokio::select! {
        end = signals.stop_requested() => Err(Failure::Exit(end.exit_code())),
        result = written => unless_closed(result.unwrap_or(Ok(()))),
        () = stdout_closed() => Ok(()),
        result = feed(&palisade, options, lines) => result,
    }
}

/// Turns events into lines.
async fn feed(palisade: &Palisade, options: &Options, lines: mpsc::Sender<String>) -> Result<(), Failure> {
    let mut watch = palisade.watch(&options.prefix).await?;
    announce(&options.prefix)?;
    let mut labels = Labels::default();
    while let Some(watched) = watch.next().await {
        let mut line = match &watched {
            Watched::Event(event) => match EventLine::from_event(event) {
                Some(line) => line,
                None => continue,
            },
            Watched::Missed => EventLine::missed(),
        };
        labels.add(palisade, &mut line).await?;
        let line = if options.json { line.as_json()? } else { line.as_text() };
        if lines.send(line).await.is_err() {
            // The printer has failed. `run` gets its error and returns.
            std::future::pending::<()>().await;
        }
    }
    Err(Failure::Unavailable("the connection was closed".to_owned()))
}

/// Says on a terminal that the watch has begun, since the first event may come much later.
fn announce(prefix: &str) -> io::Result<()> {
    if !io::stderr().is_terminal() {
        return Ok(());
    }
    let dim = Style::new().dimmed();
    let mut err = anstream::stderr().lock();
    match prefix {
        "" => writeln!(err, "{dim}watching all locks; Ctrl-C ends it{dim:#}"),
        _ => writeln!(err, "{dim}watching locks that begin with {}; Ctrl-C ends it{dim:#}", text::plain(prefix)),
    }
}

/// Prints lines on a separate thread, so that a slow reader does not block Ctrl-C.
fn printer() -> (mpsc::Sender<String>, oneshot::Receiver<io::Result<()>>) {
    let (lines, mut queue) = mpsc::channel::<String>(MAX_QUEUED_LINES);
    let (done, written) = oneshot::channel();
    thread::spawn(move || {
        let mut print = || {
            let mut out = anstream::stdout();
            while let Some(line) = queue.blocking_recv() {
                writeln!(out, "{line}")?;
                out.flush()?;
            }
            Ok(())
        };
        let result = print();
        let _ = done.send(result);
    });
    (lines, written)
}
