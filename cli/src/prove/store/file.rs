//! A file in a folder. Plain, it is replaced by renaming; the ratchet keeps its token in the same file.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use palisade::Token;
use palisade_fence::file::FencedFile;

use super::{NumberAdapter, SealedNumber, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::scheme::Scheme;

pub(super) struct Numbers {
    folder: PathBuf,
    name: String,
}

impl Numbers {
    pub(super) fn open(folder: &str, name: &str) -> Result<Numbers, Failure> {
        let cannot = |error| Failure::Misuse(format!("'{}' is no folder: {error}", folder.escape_debug()));
        let folder = fs::canonicalize(folder).map_err(cannot)?;
        if !folder.is_dir() {
            return Err(cannot(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Numbers { folder, name: name.to_owned() })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// The last word of the file: `TOKEN NUMBER`, or the number alone.
    fn look(&self) -> io::Result<(u64, u64)> {
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
        let turn = File::create(self.folder.join(format!("{}.turn", self.name)))?;
        turn.lock()?;
        let (seen, _) = self.look()?;
        if seen > token.get() {
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

fn unsure(error: io::Error) -> StoreError {
    StoreError::Unsure(format!("the file cannot be written: {error}"))
}

impl Store for Numbers {
    fn describe(&self) -> String {
        format!("a file in {}", self.folder.display())
    }

    fn make(&self, _: Scheme) -> StoreFuture<'_, ()> {
        Box::pin(async { self.replace("0").map_err(failed) })
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.remove_all().map_err(failed) })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { self.look().map(|(_, number)| number).map_err(failed) })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.replace(&number.to_string()).map_err(unsure) })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.write_if_not_lower(token, number).map_err(unsure)? {
                true => Ok(()),
                false => Err(ratchet_refusal(token)),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedNumber>> {
        Box::pin(async move { seal(FencedFile::open(self.path())?, Contents, token).await })
    }
}

/// The number is all that the file contains.
struct Contents;

impl NumberAdapter for Contents {
    type Resource = FencedFile;

    fn query(&self) {}

    fn number(&self, answer: Option<Vec<u8>>) -> Option<u64> {
        str::from_utf8(&answer?).ok()?.parse().ok()
    }

    fn change(&self, number: u64) -> Option<Vec<u8>> {
        Some(number.to_string().into_bytes())
    }
}
