//! The terminal as a screen and a keyboard.

use std::io;
use std::thread;

use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

/// The whole terminal, until it is dropped. A panic gives it back too.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(super) fn take() -> io::Result<Screen> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Screen { terminal })
    }

    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(picture).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The keys that are pressed. They are read on a thread of their own, because reading them blocks.
pub(super) fn keyboard() -> mpsc::UnboundedReceiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    thread::spawn(move || {
        loop {
            let event = event::read();
            let is_over = event.is_err();
            if sender.send(event).is_err() || is_over {
                return;
            }
        }
    });
    receiver
}
