//! A command on a separate terminal, and the text on its screen.

use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::process::{Pid, Signal};

use super::TestEngine;
use super::bounded::{self, TIMEOUT};

/// A command whose stdin, stdout and stderr are one terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: Pty,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    /// Everything that was written, byte for byte.
    pub(crate) raw: Vec<u8>,
}

impl Terminal {
    /// Runs `palisade` on a terminal of this size, in rows and columns.
    pub(crate) fn run(engine: &TestEngine, args: &[&str], size: (u16, u16)) -> Terminal {
        Terminal::run_as(engine, args, size, |command| command)
    }

    /// Runs `palisade` on a terminal, after `change` has changed the command.
    pub(crate) fn run_as(
        engine: &TestEngine,
        args: &[&str],
        (rows, columns): (u16, u16),
        change: impl FnOnce(Command) -> Command,
    ) -> Terminal {
        let (pty, tty) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let command = Command::from(engine.command(args)).env("TERM", "xterm-256color");
        let child = change(command).spawn(tty).unwrap();
        let output = read_all(&pty);
        let screen = vt100::Parser::new(rows, columns, 0);
        Terminal { child, keyboard: pty, output, screen, raw: Vec::new() }
    }

    /// Sends the command a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the text on the screen, without trailing blanks.
    pub(crate) fn screen_text(&self) -> String {
        let lines: Vec<_> = self.screen.screen().contents().lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }

    /// Whether a full-screen program has the terminal.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.screen.screen().alternate_screen()
    }

    /// Whether the cursor is hidden.
    pub(crate) fn hides_the_cursor(&self) -> bool {
        self.screen.screen().hide_cursor()
    }

    /// Waits until a condition is true.
    pub(crate) fn wait_until(&mut self, condition: impl Fn(&Terminal) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !condition(self) {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.take(&bytes),
                Err(why) => panic!("the screen did not change as expected ({why}); it is\n{}", self.screen_text()),
            }
        }
    }

    /// Waits until a text is on the screen.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_until(|terminal| terminal.screen_text().contains(text));
    }

    /// Waits until the command has exited, and reads all its output.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.take(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; the screen is\n{}", self.screen_text()),
            }
        }
        let ended = bounded::end_of(&mut self.child);
        ended.unwrap_or_else(|| {
            panic!("it has left the terminal and does not end; the screen is\n{}", self.screen_text())
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        self.screen.process(bytes);
        self.raw.extend_from_slice(bytes);
    }
}

impl Drop for Terminal {
    /// Kills the command, so that a failed test leaves nothing running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads until the last process has closed the terminal, which Linux reports as an error.
fn read_all(pty: &Pty) -> Receiver<Vec<u8>> {
    let mut output = std::fs::File::from(rustix::io::dup(pty).unwrap());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}
