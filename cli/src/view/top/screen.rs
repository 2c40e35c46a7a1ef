//! The terminal as a screen and a keyboard.

use std::io::{self, Write};
use std::panic;
use std::thread;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event};
use crossterm::style::Print;
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tokio::sync::mpsc;

use super::line::TextLine;

/// The terminal in full-screen mode. Dropping it restores the terminal, also after a panic.
pub(super) struct Screen {
    /// The columns and rows of the last frame.
    size: (u16, u16),
    /// The last frame.
    lines: Vec<TextLine>,
}

impl Screen {
    pub(super) fn take() -> io::Result<Screen> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let screen = Screen { size: (0, 0), lines: Vec::new() };
        terminal::enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        Ok(screen)
    }

    /// Shows the lines that `frame` returns for a width and a height. Writes those that have changed, all at once.
    pub(super) fn draw(&mut self, frame: impl FnOnce(u16, u16) -> Vec<TextLine>) -> io::Result<()> {
        let size = terminal::size()?;
        let lines = frame(size.0, size.1);
        let mut bytes = Vec::new();
        // Without wrapping, a character that the terminal shows wider than expected does not reach into the next row.
        queue!(bytes, BeginSynchronizedUpdate, DisableLineWrap)?;
        if self.size != size {
            queue!(bytes, Clear(ClearType::All))?;
            self.lines.clear();
        }
        for (row, line) in (0_u16..).zip(&lines) {
            if self.lines.get(usize::from(row)) != Some(line) {
                // Cleared before: after a line as wide as the screen, this would clear its last character.
                queue!(bytes, MoveTo(0, row), Clear(ClearType::UntilNewLine), Print(line))?;
            }
        }
        // Hidden in every frame: a shell may have shown the cursor while this process was stopped.
        queue!(bytes, EnableLineWrap, EndSynchronizedUpdate, Hide)?;
        (self.size, self.lines) = (size, lines);
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Nothing more can be done if that fails.
fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Returns the terminal's events, such as keys. A separate thread reads them, because reading blocks.
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
