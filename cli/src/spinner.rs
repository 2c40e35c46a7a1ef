//! A progress line on a terminal.

use std::io::{self, Write};

use rustix::termios::tcgetwinsize;

const FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// One line of the terminal, drawn over itself. Dropping it clears the line.
#[derive(Default)]
pub(crate) struct Spinner {
    frame: usize,
}

impl Spinner {
    /// The number of frames in one revolution.
    pub(crate) const FRAMES: usize = FRAMES.len();

    /// Redraws the line. Leaves room for the `^C` that a terminal echoes, which would wrap the line and leave half of it
    /// behind.
    pub(crate) fn redraw(&mut self, message: &str) {
        // A terminal of unknown width reports 0 columns.
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { 80 } else { columns }.saturating_sub(6);
        let mut used = 0;
        let fits = message.chars().take_while(|c| {
            // No character is wider than two columns, and no ASCII one than one.
            used += if c.is_ascii() { 1 } else { 2 };
            used <= columns
        });
        self.frame += 1;
        write_over(&format!("{} {}", FRAMES[self.frame % FRAMES.len()], fits.collect::<String>()));
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        write_over("");
    }
}

fn write_over(line: &str) {
    // A closed stderr is no failure.
    let _ = write!(io::stderr(), "\r\x1b[2K{line}");
}
