//! `palisade top`: the locks on a live screen.

mod draw;
mod follow;
mod screen;
mod state;

use std::io::{self, IsTerminal};

use ratatui::crossterm::event::{Event, KeyEventKind};
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
  /                 show only locks whose names begin so
  p                 pause, and go on
  q, Esc, Ctrl-C    quit";

/// The options of `palisade top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only locks whose names begin so
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Shows the locks until the person quits.
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
    // Before the screen is taken, so that what fails is said where it stays readable.
    state.update(Ok(palisade.list(&options.prefix).await?));
    let (prefix, wanted) = watch::channel(options.prefix.clone());
    let (finder, found) = mpsc::channel(1);
    tokio::select! {
        result = show(&mut state, signals, prefix, found) => result,
        () = follow(&palisade, wanted, finder) => Ok(()),
    }
}

/// Draws, and waits for whatever changes the picture.
async fn show(
    state: &mut State,
    mut signals: Signals,
    prefix: watch::Sender<String>,
    mut found: mpsc::Receiver<Listing>,
) -> Result<(), Failure> {
    let mut screen = Screen::take()?;
    let mut keys = keyboard();
    loop {
        screen.draw(|frame| draw::draw(state, frame))?;
        tokio::select! {
            end = signals.stop_requested() => return Err(Failure::Exit(end.exit_code())),
            Some(locks) = found.recv() => state.update(locks),
            Some(event) = keys.recv() => match event? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match state.press(key) {
                    Action::Nothing => {}
                    Action::Reload => drop(prefix.send_replace(state.prefix.clone())),
                    Action::Quit => return Ok(()),
                },
                // The terminal has another size, or something else that only asks for a new picture.
                _ => {}
            },
        }
    }
}
