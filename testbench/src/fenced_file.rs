//! A number in a file that refuses a token which has been overtaken: the resource of the experiments.
//!
//! The file has a line for the mark (the highest token that it was sealed with) and then a line for each write, with
//! the token that made it. Check and write are one step under the file's lock, so a process that
//! was paused is checked against the file as it is when it wakes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use palisade::Token;

/// A number in a file.
#[derive(Debug)]
pub struct FencedFile {
    file: File,
}

/// The outcome of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It was done; the number is now this.
    Done(u64),
    /// A newer token has sealed the file.
    Superseded,
}

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The highest token that it was sealed with; 0 for none.
    pub mark: u64,
    /// The tokens of all writes, oldest first. Their count is the number.
    pub writes: Vec<u64>,
}

impl FencedFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn open(path: &Path) -> io::Result<FencedFile> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(FencedFile { file })
    }

    /// Seals the file with this token, so that older ones are refused. Returns the number.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn seal(&mut self, token: Token) -> io::Result<Access> {
        self.step(|file, mark, number| {
            if mark > token.get() {
                return Ok(Access::Superseded);
            }
            write_line(file, SeekFrom::Start(0), token.get())?;
            Ok(Access::Done(number))
        })
    }

    /// Writes the number one higher than it was read, if the token is still the newest.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn write(&mut self, token: Token, number: u64) -> io::Result<Access> {
        self.step(|file, mark, before| {
            if mark != token.get() {
                return Ok(Access::Superseded);
            }
            assert_eq!(number, before + 1, "an update was lost");
            write_line(file, SeekFrom::End(0), token.get())?;
            Ok(Access::Done(number))
        })
    }

    /// The contents of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn contents(&mut self) -> io::Result<Contents> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let mut numbers = text.lines().map(|line| line.trim().parse().map_err(io::Error::other));
        let mark = numbers.next().unwrap_or(Ok(0))?;
        Ok(Contents { mark, writes: numbers.collect::<io::Result<_>>()? })
    }

    /// Runs one step with the mark and the number, under the lock of the file.
    fn step(&mut self, change: impl FnOnce(&mut File, u64, u64) -> io::Result<Access>) -> io::Result<Access> {
        self.file.lock()?;
        let length = self.file.metadata()?.len();
        let lines = length / LINE as u64;
        if length % LINE as u64 != 0 {
            // The kernel may cut a write short at a page when the process is killed. Half a line was not acknowledged.
            self.file.set_len(lines * LINE as u64)?;
        }
        let mark = if lines == 0 { 0 } else { read_line(&mut self.file)? };
        let access = change(&mut self.file, mark, lines.saturating_sub(1));
        self.file.unlock()?;
        access
    }
}

/// The length of every line. So the file's length tells the number of lines, and a line that a killed process left half
/// written is noticed.
const LINE: usize = 21;

fn read_line(file: &mut File) -> io::Result<u64> {
    let mut line = [0; LINE];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut line)?;
    String::from_utf8_lossy(&line).trim().parse().map_err(io::Error::other)
}

fn write_line(file: &mut File, at: SeekFrom, number: u64) -> io::Result<()> {
    file.seek(at)?;
    file.write_all(format!("{number:020}\n").as_bytes())
}
