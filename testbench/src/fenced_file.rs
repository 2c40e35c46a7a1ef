//! A number in a file that refuses a token which has been overtaken: the resource of the experiments.
//!
//! The file has a line for the mark (the highest token that it was sealed with) and then a line for each write, with
//! the token that made it. Check and write are one step under the file's lock, so what a paused process does when it
//! wakes is judged by what the file is then.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use palisade::Token;

/// A number in a file.
#[derive(Debug)]
pub struct FencedFile {
    file: File,
}

/// What an access comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It was done; the number is now this.
    Done(u64),
    /// A newer token has sealed the file.
    Superseded,
}

/// What the file says.
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
    /// What the file system says.
    pub fn open(path: &Path) -> io::Result<FencedFile> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(FencedFile { file })
    }

    /// Shuts out everything older than this token, before anything is read under it.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn seal(&mut self, token: Token) -> io::Result<Access> {
        self.step(|contents| {
            if contents.mark > token.get() {
                return Access::Superseded;
            }
            contents.mark = token.get();
            Access::Done(contents.writes.len() as u64)
        })
    }

    /// Writes the number one higher than it was read, if the token is still the newest.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn write(&mut self, token: Token, number: u64) -> io::Result<Access> {
        self.step(|contents| {
            if contents.mark != token.get() {
                return Access::Superseded;
            }
            assert_eq!(number, contents.writes.len() as u64 + 1, "an update was lost");
            contents.writes.push(token.get());
            Access::Done(number)
        })
    }

    /// What the file says.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn contents(&mut self) -> io::Result<Contents> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let mut numbers = text.lines().map(|line| line.trim().parse().map_err(io::Error::other));
        let mark = numbers.next().unwrap_or(Ok(0))?;
        Ok(Contents { mark, writes: numbers.collect::<io::Result<_>>()? })
    }

    /// One step of the resource: nobody else touches the file meanwhile.
    fn step(&mut self, change: impl FnOnce(&mut Contents) -> Access) -> io::Result<Access> {
        self.file.lock()?;
        let mut contents = self.contents()?;
        let (mark, writes) = (contents.mark, contents.writes.len());
        let access = change(&mut contents);
        // The mark has a fixed width and a write is one more line, so that a process which is killed in between leaves
        // a file that can be read.
        if contents.mark != mark {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(format!("{:020}\n", contents.mark).as_bytes())?;
        }
        if contents.writes.len() != writes {
            self.file.seek(SeekFrom::End(0))?;
            let last = contents.writes.last().copied().unwrap_or_default();
            self.file.write_all(format!("{last:020}\n").as_bytes())?;
        }
        self.file.unlock()?;
        Ok(access)
    }
}
