//! A file in a folder. Without a fence it is replaced by a rename. The ratchet keeps its token in the same file.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use palisade::Token;
use palisade_fence::file::FencedFile;

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;

pub(super) struct Counter {
    folder: PathBuf,
    name: String,
}

impl Counter {
    pub(super) fn open(folder: &str, name: &str) -> Result<Counter, Failure> {
        let cannot = |error| Failure::Misuse(format!("'{}' is not a folder: {error}", folder.escape_debug()));
        let folder = fs::canonicalize(folder).map_err(cannot)?;
        if !folder.is_dir() {
            return Err(cannot(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Counter { folder, name: name.to_owned() })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Reads the token and the number. The file contains `TOKEN NUMBER`, or the number alone; then the token is 0.
    fn load(&self) -> io::Result<(u64, u64)> {
        let text = fs::read_to_string(self.path())?;
        let mut words = text.split_whitespace().rev().map(|word| word.parse().unwrap_or(0));
        let number = words.next().unwrap_or(0);
        Ok((words.next().unwrap_or(0), number))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let new = self.folder.join(format!("{}.{}", self.name, std::process::id()));
        fs::write(&new, text)?;
        fs::rename(new, self.path())
    }

    fn write_if_not_lower(&self, token: Token, number: u64) -> io::Result<bool> {
        let lock_file = File::create(self.folder.join(format!("{}.turn", self.name)))?;
        lock_file.lock()?;
        let (highest, _) = self.load()?;
        if highest > token.get() {
            return Ok(false);
        }
        self.replace(&format!("{token} {number}")).map(|()| true)
    }

    fn remove_all(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().contains(&self.name) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn failed(error: io::Error) -> StoreError {
    StoreError::Failed(format!("the file cannot be used: {error}"))
}

fn unknown_outcome(error: io::Error) -> StoreError {
    StoreError::UnknownOutcome(format!("the file cannot be written: {error}"))
}

impl Store for Counter {
    fn describe(&self) -> String {
        format!("a file in {}", self.folder.display())
    }

    fn create_data(&self, _: Fencing) -> StoreFuture<'_, ()> {
        Box::pin(async { self.replace("0").map_err(failed) })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.remove_all().map_err(failed) })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { self.load().map(|(_, number)| number).map_err(failed) })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.replace(&number.to_string()).map_err(unknown_outcome) })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.write_if_not_lower(token, number).map_err(unknown_outcome)? {
                true => Ok(()),
                false => Err(ratchet_refusal(token)),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        Box::pin(async move { seal(FencedFile::open(self.path())?, Contents, token).await })
    }
}

/// A file whose whole content is the number.
struct Contents;

impl CounterAdapter for Contents {
    type Resource = FencedFile;

    fn query(&self) {}

    fn number(&self, answer: Option<Vec<u8>>) -> Option<u64> {
        str::from_utf8(&answer?).ok()?.parse().ok()
    }

    fn change(&self, number: u64) -> Option<Vec<u8>> {
        Some(number.to_string().into_bytes())
    }
}
