//! One line that shows that something goes on.

use std::io::{self, Write};

use rustix::termios::tcgetwinsize;

const FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// One line that is written over and over. Leaves nothing on the screen when it is dropped.
#[derive(Default)]
pub(crate) struct Spinner {
    turns: usize,
}

impl Spinner {
    /// How many turns it goes round in.
    pub(crate) const FRAMES: usize = FRAMES.len();

    /// Redraws the line. Leaves room for the `^C` that a terminal echoes, which would wrap the line and leave half of it
    /// behind.
    pub(crate) fn turn(&mut self, message: &str) {
        // A terminal that does not know its width says that it has none.
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { 80 } else { columns }.saturating_sub(6);
        let mut used = 0;
        let fits = message.chars().take_while(|c| {
            // No character is wider than two columns, and no ASCII one than one.
            used += if c.is_ascii() { 1 } else { 2 };
            used <= columns
        });
        self.turns += 1;
        write_over(&format!("{} {}", FRAMES[self.turns % FRAMES.len()], fits.collect::<String>()));
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
