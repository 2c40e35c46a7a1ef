//! `palisade top`: the locks on a live screen.

mod draw;
mod follow;
mod line;
mod screen;
mod state;

use std::io::{self, IsTerminal};

use crossterm::event::{Event, KeyEventKind};
use tokio::sync::{mpsc, watch};

use self::follow::{Listing, follow};
use self::screen::{Screen, keyboard};
use self::state::{Action, State};
use super::format;
use crate::outcome::Failure;
use crate::settings::Settings;
use crate::signals::Signals;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade top
  palisade top orders/

Keys:
  up, down, k, j    select a lock; its queue and its history are shown below
  /                 show only locks whose names begin with a prefix
  p                 pause and resume
  q, Esc, Ctrl-C    quit";

/// The options of `palisade top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only locks whose names begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Shows the locks until the user quits.
pub(crate) async fn run(settings: &Settings, options: &Options) -> Result<(), Failure> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::Misuse(
            "top needs a terminal for its screen and its keys; without one use `palisade ls --json` or \
             `palisade watch --json`"
                .to_owned(),
        ));
    }
    let signals = Signals::listen()?;
    let palisade = settings.connect().await?;
    let mut state = State::new(&options.prefix);
    state.has_tokens = format::has_tokens(&palisade);
    // Before the screen is taken, so that an error message stays readable.
    state.update(Ok(palisade.list(&options.prefix).await?));
    let (prefix, prefixes) = watch::channel(options.prefix.clone());
    let (sender, listings) = mpsc::channel(1);
    tokio::select! {
        result = show(&mut state, signals, prefix, listings) => result,
        () = follow(&palisade, prefixes, sender) => Ok(()),
    }
}

/// Draws the screen again after every listing, key and resize.
async fn show(
    state: &mut State,
    mut signals: Signals,
    prefix: watch::Sender<String>,
    mut listings: mpsc::Receiver<Listing>,
) -> Result<(), Failure> {
    let mut screen = Screen::take()?;
    let mut keys = keyboard();
    loop {
        screen.draw(|width, height| draw::draw(state, width, height))?;
        tokio::select! {
            end = signals.stop_requested() => return Err(Failure::Exit(end.exit_code())),
            Some(listing) = listings.recv() => state.update(listing),
            Some(event) = keys.recv() => match event? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match state.press(key) {
                    Action::Nothing => {}
                    Action::Reload => drop(prefix.send_replace(state.prefix.clone())),
                    Action::Quit => return Ok(()),
                },
                // A resize, for example, only needs the screen to be drawn again.
                _ => {}
            },
        }
    }
}
